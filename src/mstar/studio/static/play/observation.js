// Form for the observation of a robot or world: arrays in the model's spec, or entered by the user.
import { html, useEffect, useState } from "../vendor/preact.js";
import { api } from "../api.js";
import { Choice, Field } from "../components.js";
import { tryValue } from "./form.js";
import { DTYPES, count, encode, imageShape } from "./arrays.js";
import { Pixels } from "./plot.js";

const SLIDERS = 16;
const SIDE = 224;
const SCALES = [["1 0", "0 to 1"], ["2 -1", "−1 to 1"], ["255 0", "0 to 255"]];
const WRONG = "Not an image file. Choose a PNG, JPEG or WebP file.";
const field = (name, dtype, shape) => ({ name, dtype, shape, text: "0", pictures: [], scale: "1 0" });

/** Robot spec of a model, once loaded. {} for a model without actions. */
export function useRobot(model, acts = true) {
  const [spec, setSpec] = useState({});
  useEffect(() => {
    setSpec({ robot: acts ? undefined : {} });
    if (!acts) return;
    const path = `/v1/actions/metadata?model=${encodeURIComponent(model)}`;
    api.json(path).then((robot) => setSpec({ robot }), (error) => setSpec({ error }));
  }, [model]);
  return spec;
}

/** Fields of an observation from a robot spec, which has one of three formats. */
export function observationFields({ observation, cameras = [], state, fields = {} }) {
  if (observation) return Object.entries(observation).map(([name, { dtype, shape }]) => field(name, dtype, shape));
  const parsed = Object.entries(fields).flatMap(([name, what]) => {
    const [, dtype, sizes] = /^(\w+\d+) \[([^\]]*)\]/.exec(what) ?? [];
    if (!dtype) return what.includes("picture") ? [field(name, "uint8", [SIDE, SIDE, 3])] : [];
    return [field(name, dtype, sizes.split(",").map((size) => Number(size) || SIDE))];
  });
  const pose = state ? [field(state, "float32", [8])] : [];
  return [...parsed, ...cameras.map((name) => field(name, "uint8", [SIDE, SIDE, 3])), ...pose];
}

/** Parse numbers: as many as the shape needs, or one for all. Without a shape, any count. */
export function parseNumbers(text, shape, name) {
  const numbers = text.split(/[\s,;]+/).filter(Boolean).map(Number);
  const needed = shape ? count(shape) : numbers.length;
  if (numbers.some(Number.isNaN) || ![1, needed].includes(numbers.length) || !numbers.length) {
    throw new Error(`${name} needs ${shape ? `${needed} numbers, or one for all` : "numbers"}`);
  }
  return numbers.length === needed ? numbers : new Array(needed).fill(numbers[0]);
}

/** Encode an observation. Throws if a field is invalid. */
export function encodeObservation(fields) {
  return Object.fromEntries(fields.map((one) => {
    const { name, dtype, shape, text, pictures } = one;
    return [name, encode(dtype, shape, pictures.length ? brightness(one) : parseNumbers(text, shape, name))];
  }));
}

function brightness({ dtype, shape, pictures, scale }) {
  const { many, height, width, colors, isFirst } = imageShape(shape);
  const [factor, shift] = dtype.startsWith("float") ? scale.split(" ").map(Number) : [255, 0];
  const pixels = height * width;
  const values = new Float32Array(many * pixels * colors);
  for (let at = 0; at < values.length; at++) {
    const [number, rest] = [Math.floor(at / (pixels * colors)), at % (pixels * colors)];
    const place = isFirst ? rest % pixels : Math.floor(rest / colors);
    const color = isFirst ? Math.floor(rest / pixels) : rest % colors;
    const { data } = pictures[Math.min(number, pictures.length - 1)];
    values[at] = (data[place * 4 + color] / 255) * factor + shift;
  }
  return values;
}

/** Decode an image file and crop it to this size. */
async function fitted(file, width, height) {
  const image = await createImageBitmap(file);
  const context = new OffscreenCanvas(width, height).getContext("2d");
  const scale = Math.max(width / image.width, height / image.height);
  const [wide, high] = [image.width * scale, image.height * scale];
  context.drawImage(image, (width - wide) / 2, (height - high) / 2, wide, high);
  return context.getImageData(0, 0, width, height);
}

/** The form. `isFixed`: the spec lists all fields. */
export function Observation({ fields, change, isFixed }) {
  const put = (at) => (changes) => change((last) => last.map((one, i) => (i === at ? { ...one, ...changes } : one)));
  const drop = (at) => () => change((last) => last.filter((_, i) => i !== at));
  const one = (field, at) => html`<fieldset class="stack" key=${at}>
    <legend>${field.name} <small>${field.dtype} [${field.shape.join(", ")}]</small></legend>
    <${imageShape(field.shape) ? Pictures : Numbers} field=${field} put=${put(at)} />
    ${!isFixed && html`<div><${SmallButton} click=${drop(at)}>Remove ${field.name}<//></div>`}
  </fieldset>`;
  return html`${fields.map(one)} ${!isFixed && html`<${Add} add=${(more) => change((last) => [...last, more])} />`}`;
}

const SmallButton = ({ click, children }) =>
  html`<button class="button quiet" type="button" onClick=${click}>${children}</button>`;

function Numbers({ field: { name, text, shape }, put }) {
  const many = count(shape);
  const { value: values = [] } = tryValue(() => parseNumbers(text, shape, name));
  const slide = (at) => (event) => put({ text: values.with(at, event.target.value).join(" ") });
  const slider = (value, at) => html`<div><span>${name} ${at}</span>
    <input type="range" min="-3" max="3" step="0.05" aria-label="${name} ${at}" value=${value} onInput=${slide(at)} />
    <span>${value}</span></div>`;
  const random = () => put({ text: Array.from({ length: many }, () => (Math.random() * 2 - 1).toFixed(2)).join(" ") });
  return html`
    <${Field} label=${`Values of ${name}`} hint=${`${many}, or one for all`}>
      <input value=${text} onInput=${(event) => put({ text: event.target.value })} /><//>
    <div class="row">
      <${SmallButton} click=${() => put({ text: "0" })}>Zeros<//><${SmallButton} click=${random}>Random<//>
    </div>
    ${many <= SLIDERS && html`<div class="sliders">${values.map(slider)}</div>`}`;
}

function Pictures({ field: { name, dtype, shape, pictures, scale, wrong }, put }) {
  const { many, height, width } = imageShape(shape);
  const taken = (event) => {
    const made = [...event.target.files].slice(0, many).map((file) => fitted(file, width, height));
    Promise.all(made).then((all) => put({ pictures: all, wrong: "" }), () => put({ pictures: [], wrong: WRONG }));
  };
  return html`
    <${Field} label=${many > 1 ? `Up to ${many} images of ${name}` : `Image of ${name}`}
      hint=${`resized to ${width} × ${height}; the last image repeats; default black`}>
      <input type="file" accept="image/*" multiple=${many > 1} onChange=${taken} /><//>
    ${wrong && html`<p class="error" role="alert">${wrong}</p>`}
    <div class="strip">${pictures.map((image, at) => html`<${Pixels} image=${image} label=${`${name} ${at}`} />`)}</div>
    ${dtype.startsWith("float") && html`<${Choice} label=${`Range of ${name}`} value=${scale} options=${SCALES}
      choose=${(value) => put({ scale: value })} />`}`;
}

function Add({ add }) {
  const [name, rename] = useState("");
  const [dtype, choose] = useState("float32");
  const [shape, resize] = useState("2, 3, 64, 64");
  const sizes = shape.split(/\D+/).filter(Boolean).map(Number);
  const added = () => {
    add(field(name, dtype, sizes));
    rename("");
  };
  return html`<fieldset class="stack"><legend>Add a field</legend>
    <p class="note">The model has no complete observation spec. See its documentation.</p>
    <div class="fields">
      <${Field} label="Name"><input value=${name} onInput=${(event) => rename(event.target.value)} /><//>
      <${Choice} label="Type" value=${dtype} options=${DTYPES} choose=${choose} />
      <${Field} label="Shape"><input value=${shape} onInput=${(event) => resize(event.target.value)} /><//>
    </div>
    <div><button class="button" type="button" disabled=${!name} onClick=${added}>Add</button></div>
  </fieldset>`;
}
