// What the panels of pictures, videos, robots and worlds share: one task at a time, and a form's values and controls.
// It knows no surface of the server.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Field } from "../components.js";

/** {isBusy, error, run, stop}: `run(work)` awaits `work(signal)`; what that throws is the error. */
export function useTask() {
  const [state, tell] = useState({});
  const going = useRef();
  const stop = () => going.current?.abort();
  useEffect(() => stop, []);
  const run = async (work) => {
    going.current = new AbortController();
    tell({ isBusy: true });
    try {
      await work(going.current.signal);
      tell({});
    } catch (error) {
      tell(error.name === "AbortError" ? {} : { error });
    }
  };
  return { ...state, run, stop };
}

/** A link to what a request did. */
export const Timeline = ({ id }) => id && html`<a href=${`#/requests/${encodeURIComponent(id)}`}>timeline</a>`;

/** {value}, or the {error} that making it threw. */
export function tryValue(make) {
  try {
    return { value: make() };
  } catch (error) {
    return { error };
  }
}

/** A form's values, `set(name)(event)`, and `input(name, label, attributes)`, a labelled control. */
export function useForm(begin) {
  const [values, change] = useState(begin);
  const set = (name) => (event) => change((last) => ({ ...last, [name]: event.target.value }));
  const input = (name, label, rest) =>
    html`<${Field} label=${label}><input value=${values[name]} onInput=${set(name)} ...${rest} /><//>`;
  return { values, set, input };
}

export const SEED = { type: "number", placeholder: "any", step: 1 };

/** The prompt, and the wishes that only some models have. */
export function Prompt({ form: { values, set } }) {
  return html`<${Field} label="Prompt"><textarea value=${values.prompt} onInput=${set("prompt")} rows="3" /><//>`;
}

export function More({ form: { input }, children }) {
  return html`<details><summary>More parameters</summary>
    <p class="note">Leave empty what the model does not have: an unsupported parameter is rejected.</p>
    <div class="fields">
      ${input("num_inference_steps", "Steps", { type: "number", min: 1, max: 1000 })}
      ${input("guidance_scale", "Guidance", { type: "number", min: 0, max: 100, step: "any" })}
      ${input("negative_prompt", "Negative prompt")}
      ${children}
    </div>
  </details>`;
}

/** What was not left empty, as [name, value]. */
export const nonEmptyFields = (values) => Object.entries(values).filter(([, value]) => value !== "");

/** A form for the server; and the same for `Code`, which shows a file by its name. */
export function toForm(parts) {
  const form = new FormData();
  for (const [name, value] of parts) form.append(name, value);
  return { form, shown: parts.map(([name, value]) => [name, value instanceof File ? { file: value.name } : value]) };
}
