// Asks for the key when the server wants one. It tries the key before it is kept; it does not make keys.

import { api } from "./api.js";
import { Dialog, Field } from "./components.js";
import { html, useState } from "./vendor/preact.js";

async function keyProblem(key) {
  // Not through api.raw: a wrong key would open this dialog again.
  const answer = await fetch("/v1/models", { headers: { Authorization: `Bearer ${key}` } }).catch(() => null);
  if (!answer) return "The server cannot be reached. See whether it still runs, and try again.";
  if (answer.status === 401) return "The server does not know this key. Look for a space or a missing end.";
  return answer.ok ? "" : `The server answered ${answer.status}. Try again in a moment.`;
}

export function Login() {
  const [key, type] = useState("");
  const [trouble, tell] = useState("");
  const [busy, work] = useState(false);
  const enter = async (event) => {
    event.preventDefault();
    work(true);
    const wrong = await keyProblem(key.trim());
    work(false);
    tell(wrong);
    if (!wrong) api.signIn(key.trim());
  };
  return html`<${Dialog} title="Sign in">
    <form class="stack" onSubmit=${enter}>
      <p class="note">This server wants a key: one of those it was started with, by <code>--api-key</code>, a line of
        its <code>--api-key-file</code>, or <code>[api_keys]</code> in its manifest. Who runs the server has it.
        It is kept in this tab until you sign out or close it.</p>
      <input type="text" autocomplete="username" value="mstar" hidden />
      <${Field} label="API key">
        <input type="password" autocomplete="current-password" required autofocus value=${key}
          aria-invalid=${trouble ? "true" : undefined} onInput=${(event) => type(event.target.value)} />
      <//>
      ${trouble && html`<p class="error" role="alert">${trouble}</p>`}
      <div class="row"><button class="button main" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button></div>
    </form>
  <//>`;
}
