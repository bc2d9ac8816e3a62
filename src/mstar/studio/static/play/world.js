// World-model panel: create a world from an observation, step it with actions, fork it, compare it with its parent.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { api } from "../api.js";
import { ProgressBar, Choice, ErrorMessage } from "../components.js";
import { decode, encode, isArray } from "./arrays.js";
import { SEED, Timeline, tryValue, useForm, useTask } from "./form.js";
import { Code } from "./code.js";
import { Observation, observationFields, parseNumbers, encodeObservation, useRobot } from "./observation.js";
import { ArrayView } from "./plot.js";

const pathOf = ({ id }, verb = "") => `/v1/worlds/${encodeURIComponent(id)}${verb}`;
const NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** Worlds of this panel: {id, name, from, begin, steps}. They are deleted when the panel or page closes. */
function useWorlds() {
  const [worlds, change] = useState([]);
  const all = useRef([]);
  all.current = worlds;
  const end = (world) => api.json(pathOf(world), { method: "DELETE" });
  useEffect(() => {
    const endAll = () => all.current.forEach((world) => end(world).catch(() => {}));
    const hide = ({ persisted }) => persisted || endAll(); // a page in the back-forward cache keeps its worlds
    addEventListener("pagehide", hide);
    return () => {
      removeEventListener("pagehide", hide);
      endAll();
    };
  }, []);
  const others = (list, { id }) => list.filter((world) => world.id !== id);
  const put = (world) => change((last) => [...others(last, world), world].sort((a, b) => (a.name < b.name ? -1 : 1)));
  const add = (created, more) => {
    const name = [...NAMES].find((one) => !all.current.some((world) => world.name === one)) ?? created.id;
    const world = { id: created.id, name, ...more };
    put(world);
    return world;
  };
  const drop = async (world) => {
    await end(world);
    change((last) => others(last, world));
  };
  return { worlds, put, add, drop };
}

export default function World({ model, entry }) {
  const { robot, error } = useRobot(model, entry.capabilities.includes("action"));
  if (error) return html`<${ErrorMessage} error=${error} what="Loading the observation spec failed" />`;
  return robot ? html`<${Panel} model=${model} robot=${robot} />` : html`<${ProgressBar} text="Loading the observation spec…" />`;
}

function Panel({ model, robot }) {
  const [fields, change] = useState(() => observationFields(robot));
  const { values, input } = useForm({ prompt: "", seed: "0", action: "0 0 0 0 0 0 0" });
  const { worlds, put, add, drop } = useWorlds();
  const [id, choose] = useState("");
  const task = useTask();
  const observation = useMemo(() => tryValue(() => encodeObservation(fields)), [fields]);
  const begin = { model, observation: observation.value ?? {}, prompt: values.prompt || undefined, seed: Number(values.seed) };
  const world = worlds.find((one) => one.id === id) ?? worlds[0];
  const doing = tryValue(() => actionOf(values.action));
  const body = world && { action: doing.value, step: world.steps.length };
  const ask = (work) => () => task.run(work);
  const started = async (signal) => {
    choose(add(await api.json("/v1/worlds", { body: begin, signal }), { begin, steps: [] }).id);
  };
  const step = async (signal) => {
    const response = await api.raw(pathOf(world, "/step"), { body, signal });
    const { emissions } = await response.json();
    const done = { emissions, action: values.action, id: response.headers.get("X-Request-Id") };
    put({ ...world, steps: [...world.steps, done] });
  };
  const fork = async (signal) => {
    const forked = await api.json(pathOf(world, "/fork"), { method: "POST", signal });
    choose(add(forked, { begin: world.begin, steps: world.steps, from: world.id }).id);
  };
  const reset = async (signal) => {
    await api.json(pathOf(world, "/reset"), { method: "POST", signal });
    put({ ...world, steps: [] });
  };
  const call = world ? { path: pathOf(world, "/step"), body, begin: world.begin } : { path: "/v1/worlds", body: begin };
  const button = (text, work, look = "") => html`<button class="button ${look}" type="button"
    disabled=${task.isBusy || observation.error || doing.error} onClick=${ask(work)}>${text}</button>`;
  return html`<div class="stack media-panels">
    <div class="grid2">
      <section class="panel stack" aria-label="Observation">
        <h2>Observation</h2>
        <${Observation} fields=${fields} change=${change} isFixed=${Boolean(robot.observation)} />
        <div class="fields">${input("prompt", "Prompt")}${input("seed", "Seed", SEED)}</div>
        <div class="row">${button(world ? "Create another world" : "Create world", started, world ? "" : "main")}</div>
        <${ErrorMessage} error=${observation.error} what="Incomplete observation" />
      </section>
      <section class="panel stack" aria-label="Controls">
        <h2>Controls</h2>
        ${world && html`<${Choice} label="World" value=${world.id} choose=${choose}
          options=${worlds.map((one) => [one.id, `${one.name}, ${one.steps.length} steps`])} />`}
        ${input("action", "Action", { placeholder: "numbers" })}
        ${world ? html`<div class="row">
          ${button("Step", step, "main")} ${button("Fork", fork)} ${button("Reset", reset)}
          ${button("End", () => drop(world))}
        </div>` : html`<p class="note">Create a world first.</p>`}
        <${ErrorMessage} error=${doing.error ?? task.error} />
        <${Code} call=${{ ...call, method: "POST", reads: "json" }} />
      </section>
    </div>
    ${worlds.map((one) => html`<${Rollout} key=${one.id} world=${one}
      parent=${worlds.find((other) => other.id === one.from)} />`)}
  </div>`;
}

function actionOf(text) {
  const numbers = parseNumbers(text, null, "The action");
  return encode("float32", [numbers.length], numbers);
}

function Rollout({ world: { name, steps }, parent }) {
  const one = ({ emissions, action, id }, at) => html`<li key=${at}><figure class="stack">
    <figcaption>step ${at} <${Timeline} id=${id} /><br /><small>${action}</small></figcaption>
    ${Object.entries(emissions).map(([kind, value]) => html`<div>
      <${ArrayView} value=${value} label=${`${kind} of step ${at}`} />
      <br /><small>${kind}${apart(value, parent?.steps[at]?.emissions[kind], parent?.name)}</small>
    </div>`)}
  </figure></li>`;
  return html`<section class="panel stack" aria-label=${`World ${name}`}>
    <h2>World ${name} ${parent && html`<small>forked from ${parent.name}</small>`}</h2>
    ${steps.length ? html`<ol class="strip" tabindex="0" aria-label=${`Steps of ${name}`}>${steps.map(one)}</ol>`
      : html`<p class="note">No steps yet.</p>`}
  </section>`;
}

/** Mean difference to the same value of another world, as text. */
function apart(value, other, name) {
  if (!isArray(value) || !isArray(other)) return "";
  const [a, b] = [decode(value).values, decode(other).values];
  const mean = a.reduce((sum, one, at) => sum + Math.abs(one - b[at]), 0) / a.length;
  return mean ? `, ${Number(mean.toPrecision(3))} mean difference to ${name}` : `, same as ${name}`;
}
