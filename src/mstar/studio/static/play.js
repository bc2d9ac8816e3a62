// Playground: one panel per capability of the served models. Panels are imported when first opened.

import { ProgressBar, Choice, Tabs, ErrorMessage } from "./components.js";
import { html, useEffect, useState } from "./vendor/preact.js";

export const KINDS = [
  { id: "chat", label: "Chat", needs: "chat", load: () => import("./play/chat.js") },
  { id: "conversation", label: "Conversation", needs: "chat", load: () => import("./play/realtime.js") },
  { id: "speech", label: "Speech", needs: "speech", load: () => import("./play/speech.js") },
  { id: "transcription", label: "Transcription", needs: "transcription", load: () => import("./play/transcription.js") },
  { id: "images", label: "Images", needs: "image", load: () => import("./play/images.js") },
  { id: "video", label: "Video", needs: "video", load: () => import("./play/video.js") },
  { id: "robot", label: "Robot", needs: "action", load: () => import("./play/robot.js") },
  { id: "world", label: "World", needs: "rollout", load: () => import("./play/world.js") },
];

export const address = (kind, model) => `#/play/${kind}${model ? `/${encodeURIComponent(model)}` : ""}`;

/** The panel of a kind once its module is loaded, or the error. */
function usePanel(kind) {
  const [result, setResult] = useState({});
  const [tries, setTries] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    const update = (fields) => isCurrent && setResult({ id: kind.id, ...fields });
    kind.load().then(({ default: Panel }) => update({ Panel }), (error) => update({ error }));
    return () => (isCurrent = false);
  }, [kind.id, tries]);
  return [result.id === kind.id ? result : {}, () => setTries(tries + 1)];
}

function SelectedPanel({ kind, models, model, go }) {
  const [{ Panel, error }, retry] = usePanel(kind);
  const able = models.filter((one) => one.capabilities.includes(kind.needs));
  const entry = able.find((one) => one.id === model) ?? able[0];
  if (error) return html`<${ErrorMessage} error=${error} what="Loading the panel failed" retry=${retry} />`;
  const isElsewhere = model && entry.id !== model;
  return html`${able.length > 1 && html`<div class="which"><${Choice} label="Model" value=${entry.id}
      options=${able.map((one) => one.id)} choose=${(id) => go(address(kind.id, id))} /></div>`}
    ${isElsewhere && html`<p class="note">Model ${model} does not support this; showing ${entry.id}.</p>`}
    ${Panel
      ? html`<${Panel} key=${`${kind.id} ${entry.id}`} model=${entry.id} entry=${entry} models=${models} go=${go} />`
      : html`<${ProgressBar} text="Loading…" />`}`;
}

export default function Play({ models, rest, go }) {
  const kinds = KINDS.filter(({ needs }) => models.some((one) => one.capabilities.includes(needs)));
  const [requested, model] = rest;
  const kind = kinds.find(({ id }) => id === requested) ?? kinds[0];
  if (!kind) {
    return html`<section class="panel stack"><h1>Play</h1><p class="note">No panel for the served models. Use
      <code>POST /v1/generate</code> with the request type of the model.</p></section>`;
  }
  const tabs = kinds.map(({ id, label }) => ({ id, label, href: address(id, id === kind.id ? model : null) }));
  return html`<div class="stack"><h1 class="sr">Play: ${kind.label}</h1>
    <${Tabs} tabs=${tabs} chosen=${kind.id} label="Capabilities" />
    <${SelectedPanel} key=${kind.id} kind=${kind} models=${models} model=${model} go=${go} />
  </div>`;
}
