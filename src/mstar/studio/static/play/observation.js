// What a robot or a world is shown: a form of arrays, as a model says it needs them, or as its user knows.
import { html, useEffect, useState } from "../vendor/preact.js";
import { api } from "../api.js";
import { Choice, Field } from "../components.js";
import { tryValue } from "./form.js";
import { DTYPES, count, encode, imageShape } from "./arrays.js";
import { Pixels } from "./plot.js";

const SLIDERS = 16;
const SIDE = 224;
const SCALES = [["1 0", "0 to 1"], ["2 -1", "−1 to 1"], ["255 0", "0 to 255"]];
const WRONG = "That cannot be read as a picture. Choose a PNG, JPEG or WebP file.";
const field = (name, dtype, shape) => ({ name, dtype, shape, text: "0", pictures: [], scale: "1 0" });

/** What a model says of its robot, once it is known; {} of one that does not act. */
export function useRobot(model, acts = true) {
  const [told, tell] = useState({});
  useEffect(() => {
    tell({ robot: acts ? undefined : {} });
    if (!acts) return;
    const path = `/v1/actions/metadata?model=${encodeURIComponent(model)}`;
    api.json(path).then((robot) => tell({ robot }), (error) => tell({ error }));
  }, [model]);
  return told;
}

/** The fields of an observation, as far as a model says what it needs; models say it in three ways. */
export function observationFields({ observation, cameras = [], state, fields = {} }) {
  if (observation) return Object.entries(observation).map(([name, { dtype, shape }]) => field(name, dtype, shape));
  const told = Object.entries(fields).flatMap(([name, what]) => {
    const [, dtype, sizes] = /^(\w+\d+) \[([^\]]*)\]/.exec(what) ?? [];
    if (!dtype) return what.includes("picture") ? [field(name, "uint8", [SIDE, SIDE, 3])] : [];
    return [field(name, dtype, sizes.split(",").map((size) => Number(size) || SIDE))];
  });
  const pose = state ? [field(state, "float32", [8])] : [];
  return [...told, ...cameras.map((name) => field(name, "uint8", [SIDE, SIDE, 3])), ...pose];
}

/** The numbers that a text tells: as many as are needed, or one for all. Without a shape, as many as there are. */
export function parseNumbers(text, shape, name) {
  const numbers = text.split(/[\s,;]+/).filter(Boolean).map(Number);
  const needed = shape ? count(shape) : numbers.length;
  if (numbers.some(Number.isNaN) || ![1, needed].includes(numbers.length) || !numbers.length) {
    throw new Error(`${name} needs ${shape ? `${needed} numbers, or one for all` : "numbers"}`);
  }
  return numbers.length === needed ? numbers : new Array(needed).fill(numbers[0]);
}

/** An observation as the API wants it. Throws when a text is not what is needed. */
export function encodeObservation(fields) {
  return Object.fromEntries(fields.map((one) => {
    const { name, dtype, shape, text, pictures } = one;
    return [name, encode(dtype, shape, pictures.length ? brightness(one) : parseNumbers(text, shape, name))];
  }));
}

function brightness({ dtype, shape, pictures, scale }) {
  const { many, height, width, colours, isFirst } = imageShape(shape);
  const [factor, shift] = dtype.startsWith("float") ? scale.split(" ").map(Number) : [255, 0];
  const pixels = height * width;
  const values = new Float32Array(many * pixels * colours);
  for (let at = 0; at < values.length; at++) {
    const [number, rest] = [Math.floor(at / (pixels * colours)), at % (pixels * colours)];
    const place = isFirst ? rest % pixels : Math.floor(rest / colours);
    const colour = isFirst ? Math.floor(rest / pixels) : rest % colours;
    const { data } = pictures[Math.min(number, pictures.length - 1)];
    values[at] = (data[place * 4 + colour] / 255) * factor + shift;
  }
  return values;
}

/** A file as pixels of this size; what is too much at its sides is cut off. */
async function fitted(file, width, height) {
  const image = await createImageBitmap(file);
  const context = new OffscreenCanvas(width, height).getContext("2d");
  const scale = Math.max(width / image.width, height / image.height);
  const [wide, high] = [image.width * scale, image.height * scale];
  context.drawImage(image, (width - wide) / 2, (height - high) / 2, wide, high);
  return context.getImageData(0, 0, width, height);
}

/** The form. `isFixed`: the model says exactly which fields there are. */
export function Observation({ fields, change, isFixed }) {
  const put = (at) => (news) => change((last) => last.map((one, i) => (i === at ? { ...one, ...news } : one)));
  const drop = (at) => () => change((last) => last.filter((_, i) => i !== at));
  const one = (told, at) => html`<fieldset class="stack" key=${at}>
    <legend>${told.name} <small>${told.dtype} [${told.shape.join(", ")}]</small></legend>
    <${imageShape(told.shape) ? Pictures : Numbers} told=${told} put=${put(at)} />
    ${!isFixed && html`<div><${SmallButton} click=${drop(at)}>Remove ${told.name}<//></div>`}
  </fieldset>`;
  return html`${fields.map(one)} ${!isFixed && html`<${Add} add=${(more) => change((last) => [...last, more])} />`}`;
}

const SmallButton = ({ click, children }) =>
  html`<button class="button quiet" type="button" onClick=${click}>${children}</button>`;

function Numbers({ told: { name, text, shape }, put }) {
  const many = count(shape);
  const { value: values = [] } = tryValue(() => parseNumbers(text, shape, name));
  const slide = (at) => (event) => put({ text: values.with(at, event.target.value).join(" ") });
  const slider = (value, at) => html`<div><span>${name} ${at}</span>
    <input type="range" min="-3" max="3" step="0.05" aria-label="${name} ${at}" value=${value} onInput=${slide(at)} />
    <span>${value}</span></div>`;
  const random = () => put({ text: Array.from({ length: many }, () => (Math.random() * 2 - 1).toFixed(2)).join(" ") });
  return html`
    <${Field} label=${`Numbers of ${name}`} hint=${`${many}, or one for all`}>
      <input value=${text} onInput=${(event) => put({ text: event.target.value })} /><//>
    <div class="row">
      <${SmallButton} click=${() => put({ text: "0" })}>Zeros<//><${SmallButton} click=${random}>Random<//>
    </div>
    ${many <= SLIDERS && html`<div class="sliders">${values.map(slider)}</div>`}`;
}

function Pictures({ told: { name, dtype, shape, pictures, scale, wrong }, put }) {
  const { many, height, width } = imageShape(shape);
  const taken = (event) => {
    const made = [...event.target.files].slice(0, many).map((file) => fitted(file, width, height));
    Promise.all(made).then((all) => put({ pictures: all, wrong: "" }), () => put({ pictures: [], wrong: WRONG }));
  };
  return html`
    <${Field} label=${many > 1 ? `Up to ${many} pictures of ${name}` : `Picture of ${name}`}
      hint=${`made ${width} × ${height}; the last stands for those that lack, black if there is none`}>
      <input type="file" accept="image/*" multiple=${many > 1} onChange=${taken} /><//>
    ${wrong && html`<p class="error" role="alert">${wrong}</p>`}
    <div class="strip">${pictures.map((image, at) => html`<${Pixels} image=${image} label=${`${name} ${at}`} />`)}</div>
    ${dtype.startsWith("float") && html`<${Choice} label=${`Values of ${name}`} value=${scale} options=${SCALES}
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
  return html`<fieldset class="stack"><legend>Another field</legend>
    <p class="note">The model does not say exactly what it needs to see: its documentation does.</p>
    <div class="fields">
      <${Field} label="Name"><input value=${name} onInput=${(event) => rename(event.target.value)} /><//>
      <${Choice} label="Type" value=${dtype} options=${DTYPES} choose=${choose} />
      <${Field} label="Shape"><input value=${shape} onInput=${(event) => resize(event.target.value)} /><//>
    </div>
    <div><button class="button" type="button" disabled=${!name} onClick=${added}>Add</button></div>
  </fieldset>`;
}
