// Image panel: generate or edit images, with partial images as they arrive.
import { html, useState } from "../vendor/preact.js";
import { ApiError, api } from "../api.js";
import { Choice, Field, Tabs, ErrorMessage, seconds, secondsSince } from "../components.js";
import { More, Prompt, SEED, Timeline, nonEmptyFields, toForm, useForm, useTask } from "./form.js";
import { Code } from "./code.js";

const KINDS = [{ id: "generations", label: "Generate" }, { id: "edits", label: "Edit" }];
const SIZES = ["auto", "256x256", "512x512", "1024x1024", "1536x1024", "1024x1536"];
const EMPTY = { prompt: "a portrait", size: "auto", n: "1", partial_images: "3", seed: "",
  num_inference_steps: "", guidance_scale: "", negative_prompt: "" };
// The request id is chosen here, so that the trace of a streamed response can be linked.
const newId = () => `studio-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
const TEXTS = ["prompt", "size", "negative_prompt"];

/** Parameters of the request. Only a single image is streamed. */
function requestParams(model, { n, partial_images: partials, ...rest }) {
  const fields = nonEmptyFields(rest).map(([name, value]) => [name, TEXTS.includes(name) ? value : Number(value)]);
  const how = n === "1" ? [["stream", true], ["partial_images", Number(partials)]] : [["n", Number(n)]];
  return [["model", model], ...fields, ...how];
}

/** Send the request and call `onImage` for each image. */
async function draw(path, options, isStream, onImage) {
  const startedAt = performance.now();
  const shot = ({ b64_json: coded }, form, name, isLast) =>
    onImage({ src: `data:image/${form};base64,${coded}`, name, isLast, after: secondsSince(startedAt) });
  if (!isStream) {
    const { data, output_format: form } = await api.json(path, options);
    data.forEach((one, number) => shot(one, form, `image ${number + 1}`, true));
    return;
  }
  for await (const { data } of api.stream(path, options)) {
    if (data.error) throw new ApiError(data.error.message, data.error);
    const isLast = data.type.endsWith("completed");
    shot(data, data.output_format, isLast ? "finished" : `partial ${data.partial_image_index + 1}`, isLast);
  }
}

export default function Images({ model }) {
  const [kind, choose] = useState("generations");
  const form = useForm(EMPTY);
  const [files, take] = useState({ "image[]": [], mask: [] });
  const [drawn, show] = useState({ shots: [] });
  const task = useTask();
  const { prompt, n } = form.values;
  const isEdit = kind === "edits";
  const isStream = n === "1";
  const parts = requestParams(model, form.values);
  const sources = Object.entries(files).flatMap(([name, some]) => some.map((file) => [name, file]));
  const content = isEdit ? toForm([...parts, ...sources]) : { body: Object.fromEntries(parts) };
  const call = { method: "POST", path: `/v1/images/${kind}`, body: content.body, form: content.shown };
  const begin = (event) => {
    event.preventDefault();
    const id = newId();
    show({ shots: [], id });
    const onImage = (shot) => show((last) => ({ ...last, shots: [...last.shots, shot] }));
    task.run((signal) => draw(call.path, { ...content, signal, headers: { "X-Request-Id": id } }, isStream, onImage));
  };
  return html`<div class="grid2 media-panels">
    <form class="panel stack" onSubmit=${begin}>
      <${Tabs} tabs=${KINDS} chosen=${kind} choose=${choose} label="Mode" />
      <${ParamsPanel} form=${form} />
      ${isEdit && html`<${Sources} take=${take} />`}
      <div class="row">
        <button class="button main" disabled=${task.isBusy || !prompt || (isEdit && !sources.length)}>Generate</button>
        ${task.isBusy && html`<button class="button" type="button" onClick=${task.stop}>Stop</button>`}
      </div>
      <${Code} call=${{ ...call, reads: isStream ? "events" : "json" }} />
    </form>
    <section class="panel stack" aria-label="Image">
      <${ErrorMessage} error=${task.error} what="Image generation failed" />
      <${Result} ...${drawn} isBusy=${task.isBusy} />
    </section>
  </div>`;
}

function ParamsPanel({ form }) {
  const { values, set, input } = form;
  const choice = (name, label, options, disabled) => html`<${Choice} label=${label} value=${values[name]}
    options=${options} disabled=${disabled} choose=${(value) => set(name)({ target: { value } })} />`;
  return html`
    <${Prompt} form=${form} />
    <div class="fields">
      ${input("size", "Size", { list: "sizes", pattern: "auto|[1-9]\\d*x[1-9]\\d*" })}
      <datalist id="sizes">${SIZES.map((size) => html`<option value=${size} />`)}</datalist>
      ${input("seed", "Seed", SEED)}
      ${choice("n", "Number of images", ["1", "2", "3", "4"])}
      ${choice("partial_images", "Partial images", ["0", "1", "2", "3"], values.n !== "1")}
    </div>
    <${More} form=${form} />`;
}

function Sources({ take }) {
  const input = (name, isMany) => html`<input type="file" accept="image/*" multiple=${isMany}
    onChange=${(event) => take((last) => ({ ...last, [name]: [...event.target.files] }))} />`;
  return html`<div class="fields">
    <${Field} label="Input images">${input("image[]", true)}<//>
    <${Field} label="Mask" hint="same size as the image; optional">${input("mask", false)}<//>
  </div>`;
}

function Result({ shots, id, isBusy }) {
  const last = shots.at(-1);
  const none = isBusy ? "Waiting for the first image…" : "No image yet.";
  if (!last) return html`<p class="note" role="status">${none}</p>`;
  const one = ({ src, name, after, isLast }) => html`<li><figure>
    <img src=${src} alt=${name} />
    <figcaption>${name}, <small>${seconds(after)}</small>
      ${isLast && html` <a href=${src} download="${name}.png">download</a>`}</figcaption>
  </figure></li>`;
  return html`
    <img class="drawn" src=${last.src} alt=${`image, ${last.name}`} />
    <p class="row"><span role="status">${last.name} after ${seconds(last.after)}</span>
      ${!isBusy && html`<${Timeline} id=${id} />`}</p>
    <ol class="strip">${shots.map(one)}</ol>`;
}
