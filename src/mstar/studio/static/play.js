// The playground: a panel for each thing that the served models can do. Panels are imported when first opened.

import { ProgressBar, Choice, Tabs, ErrorMessage } from "./components.js";
import { html, useEffect, useState } from "./vendor/preact.js";

const KINDS = [
  { id: "chat", label: "Chat", needs: "chat", load: () => import("./play/chat.js") },
  { id: "conversation", label: "Conversation", needs: "chat", load: () => import("./play/realtime.js") },
  { id: "speech", label: "Speech", needs: "speech", load: () => import("./play/speech.js") },
  { id: "transcription", label: "Transcription", needs: "transcription", load: () => import("./play/transcription.js") },
  { id: "images", label: "Images", needs: "image", load: () => import("./play/images.js") },
  { id: "video", label: "Video", needs: "video", load: () => import("./play/video.js") },
  { id: "robot", label: "Robot", needs: "action", load: () => import("./play/robot.js") },
  { id: "world", label: "World", needs: "rollout", load: () => import("./play/world.js") },
];

const address = (kind, model) => `#/play/${kind}${model ? `/${encodeURIComponent(model)}` : ""}`;

/** The panel of a kind once it is here; what failed, if it does not come. */
function usePanel(kind) {
  const [found, tell] = useState({});
  const [tries, again] = useState(0);
  useEffect(() => {
    let isWanted = true;
    const told = (fields) => isWanted && tell({ id: kind.id, ...fields });
    kind.load().then(({ default: Panel }) => told({ Panel }), (error) => told({ error }));
    return () => (isWanted = false);
  }, [kind.id, tries]);
  return [found.id === kind.id ? found : {}, () => again(tries + 1)];
}

function SelectedPanel({ kind, models, model, go }) {
  const [{ Panel, error }, retry] = usePanel(kind);
  const able = models.filter((one) => one.capabilities.includes(kind.needs));
  const entry = able.find((one) => one.id === model) ?? able[0];
  if (error) return html`<${ErrorMessage} error=${error} what="This panel did not come" retry=${retry} />`;
  const isElsewhere = model && entry.id !== model;
  return html`${able.length > 1 && html`<div class="which"><${Choice} label="Model" value=${entry.id}
      options=${able.map((one) => one.id)} choose=${(id) => go(address(kind.id, id))} /></div>`}
    ${isElsewhere && html`<p class="note">No model called ${model} does this here: ${entry.id} is shown.</p>`}
    ${Panel
      ? html`<${Panel} key=${`${kind.id} ${entry.id}`} model=${entry.id} entry=${entry} models=${models} go=${go} />`
      : html`<${ProgressBar} text="Opening" />`}`;
}

export default function Play({ models, rest, go }) {
  const kinds = KINDS.filter(({ needs }) => models.some((one) => one.capabilities.includes(needs)));
  const [wanted, model] = rest;
  const kind = kinds.find(({ id }) => id === wanted) ?? kinds[0];
  if (!kind) {
    return html`<section class="panel stack"><h1>Play</h1><p class="note">None of the models that are served here has a
      panel. Any model can be asked by <code>POST /v1/generate</code>, in its own terms.</p></section>`;
  }
  const tabs = kinds.map(({ id, label }) => ({ id, label, href: address(id, id === kind.id ? model : null) }));
  return html`<div class="stack"><h1 class="sr">Play: ${kind.label}</h1>
    <${Tabs} tabs=${tabs} chosen=${kind.id} label="What to try" />
    <${SelectedPanel} key=${kind.id} kind=${kind} models=${models} model=${model} go=${go} />
  </div>`;
}
