// Sign-in dialog for an API key. The key is verified before it is stored.

import { api } from "./api.js";
import { Dialog, Field } from "./components.js";
import { html, useState } from "./vendor/preact.js";

async function keyProblem(key) {
  // Not through api.raw: a wrong key would open this dialog again.
  const response = await fetch("/v1/models", { headers: { Authorization: `Bearer ${key}` } }).catch(() => null);
  if (!response) return "The server cannot be reached. Check that it is running, then try again.";
  if (response.status === 401) return "Invalid API key. Check for spaces and missing characters.";
  return response.ok ? "" : `The server returned status ${response.status}. Try again in a moment.`;
}

export function Login() {
  const [key, type] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const enter = async (event) => {
    event.preventDefault();
    setBusy(true);
    const error = await keyProblem(key.trim());
    setBusy(false);
    setProblem(error);
    if (!error) api.signIn(key.trim());
  };
  return html`<${Dialog} title="Sign in">
    <form class="stack" onSubmit=${enter}>
      <p class="note">This server requires an API key: one passed with <code>--api-key</code> or
        <code>--api-key-file</code>, or set under <code>[api_keys]</code> in its manifest. Ask the operator of the server.
        The key is stored in this tab until you sign out or close it.</p>
      <input type="text" autocomplete="username" value="mstar" hidden />
      <${Field} label="API key">
        <input type="password" autocomplete="current-password" required autofocus value=${key}
          aria-invalid=${problem ? "true" : undefined} onInput=${(event) => type(event.target.value)} />
      <//>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <div class="row"><button class="button main" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button></div>
    </form>
  <//>`;
}
