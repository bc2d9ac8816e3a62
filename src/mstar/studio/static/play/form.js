// Shared by the image, video, robot and world panels: one task at a time, form values and controls.
// It knows no endpoint.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Field } from "../components.js";

/** {isBusy, error, run, stop}: `run(work)` awaits `work(signal)` and stores its error. */
export function useTask() {
  const [state, setState] = useState({});
  const running = useRef();
  const stop = () => running.current?.abort();
  useEffect(() => stop, []);
  const run = async (work) => {
    running.current = new AbortController();
    setState({ isBusy: true });
    try {
      await work(running.current.signal);
      setState({});
    } catch (error) {
      setState(error.name === "AbortError" ? {} : { error });
    }
  };
  return { ...state, run, stop };
}

/** Link to the trace of a request. */
export const Timeline = ({ id }) => id && html`<a href=${`#/requests/${encodeURIComponent(id)}`}>trace</a>`;

/** {value}, or the {error} that `make` threw. */
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

/** The prompt field. */
export function Prompt({ form: { values, set } }) {
  return html`<${Field} label="Prompt"><textarea value=${values.prompt} onInput=${set("prompt")} rows="3" /><//>`;
}

export function More({ form: { input }, children }) {
  return html`<details><summary>More parameters</summary>
    <p class="note">Leave unsupported parameters empty: the server rejects them.</p>
    <div class="fields">
      ${input("num_inference_steps", "Steps", { type: "number", min: 1, max: 1000 })}
      ${input("guidance_scale", "Guidance", { type: "number", min: 0, max: 100, step: "any" })}
      ${input("negative_prompt", "Negative prompt")}
      ${children}
    </div>
  </details>`;
}

/** Non-empty values as [name, value]. */
export const nonEmptyFields = (values) => Object.entries(values).filter(([, value]) => value !== "");

/** Form data, and the same fields for `Code`, with files by name. */
export function toForm(parts) {
  const form = new FormData();
  for (const [name, value] of parts) form.append(name, value);
  return { form, shown: parts.map(([name, value]) => [name, value instanceof File ? { file: value.name } : value]) };
}
