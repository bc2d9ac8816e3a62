// Robots: an observation in, a chunk of actions out; once, or so often a second that deadlines can be missed.
import { html, useMemo, useState } from "../vendor/preact.js";
import { api } from "../api.js";
import { ProgressBar, ErrorMessage, seconds, secondsSince } from "../components.js";
import { decode } from "./arrays.js";
import { SEED, Timeline, tryValue, useForm, useTask } from "./form.js";
import { Code } from "./code.js";
import { Observation, observationFields, encodeObservation, useRobot } from "./observation.js";
import { Bars, Histogram, Lines } from "./plot.js";

const REPEAT_S = 10;
const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** One answer, and how long it took, with the way there and back. */
async function act(options) {
  const begun = performance.now();
  const answer = await api.raw("/v1/actions", options);
  const { actions, rate, server_timing: timing } = await answer.json();
  return { took: secondsSince(begun), actions, rate, infer: timing.infer_ms / 1000, id: answer.headers.get("X-Request-Id") };
}

/** Ask at each tick for a while; a robot that still waits at its tick has missed it, and asks at the next. */
async function repeat(hz, options, tell) {
  const begun = performance.now();
  const run = { hz, took: [], asked: 0, skipped: 0, refused: 0 };
  // So the server knows when each is due, as it does of a robot that says its rate.
  const headers = { "Mstar-SLO": `ttft=${(1 / hz).toFixed(4)}` };
  let told = 0;
  for (let tick = 0; tick < hz * REPEAT_S && !options.signal.aborted; ) {
    await pause(Math.max(0, tick / hz - secondsSince(begun)) * 1000);
    run.asked++;
    try {
      const answer = await act({ ...options, headers });
      run.took.push(answer.took * 1000);
      run.answer = answer;
    } catch (error) {
      if (error.status !== 429) throw error;
      run.refused++;
    }
    const next = Math.max(tick + 1, Math.ceil(secondsSince(begun) * hz));
    run.skipped += next - tick - 1;
    tick = next;
    if (secondsSince(begun) - told > 0.2) tell({ ...run, part: (told = secondsSince(begun)) });
  }
  tell(run);
}

export default function Robot({ model }) {
  const { robot, error } = useRobot(model);
  if (error) return html`<${ErrorMessage} error=${error} what="The robot is not known" />`;
  return robot ? html`<${Panel} model=${model} robot=${robot} />` : html`<${ProgressBar} text="Asking what it sees…" />`;
}

function Panel({ model, robot }) {
  const [fields, change] = useState(() => observationFields(robot));
  const every = robot.rate / (robot.actions?.shape[0] ?? 1) || 5;
  const { values, input } = useForm({ prompt: "", seed: "0", hz: String(every) });
  const [answer, show] = useState(null);
  const [run, tell] = useState(null);
  const task = useTask();
  const seen = useMemo(() => tryValue(() => encodeObservation(fields)), [fields]);
  const body = { model, observation: seen.value ?? {}, prompt: values.prompt || undefined, seed: Number(values.seed) };
  const hz = Number(values.hz) || every;
  const isShut = Boolean(task.isBusy || seen.error);
  const once = (event) => {
    event.preventDefault();
    task.run(async (signal) => show(await act({ body, signal })));
  };
  const tellRun = (news) => {
    tell(news);
    show(news.answer ?? null);
  };
  const often = () => task.run((signal) => repeat(hz, { body, signal }, tellRun));
  return html`<div class="grid2 media-panels">
    <form class="panel stack" onSubmit=${once}>
      <${Observation} fields=${fields} change=${change} isFixed=${Boolean(robot.observation)} />
      <div class="fields">
        ${input("prompt", "Task", { placeholder: "pick up the cup" })}
        ${input("seed", "Seed", SEED)}
        ${input("hz", "Requests per second", { type: "number", min: 0.1, max: 500, step: "any" })}
      </div>
      <div class="row">
        <button class="button main" disabled=${isShut}>Act</button>
        <button class="button" type="button" disabled=${isShut} onClick=${often}>Repeat for ${REPEAT_S} s</button>
        ${task.isBusy && html`<button class="button" type="button" onClick=${task.stop}>Stop</button>`}
      </div>
      <${ErrorMessage} error=${seen.error} what="The observation is not complete" />
      <${Code} call=${{ method: "POST", path: "/v1/actions", body, reads: "json" }} />
    </form>
    <section class="panel stack" aria-label="Actions">
      <${ErrorMessage} error=${task.error} what="There are no actions" />
      <${Chunk} answer=${answer} deadline=${1 / hz} />
      <${Run} run=${run} isBusy=${task.isBusy} />
    </section>
  </div>`;
}

function Chunk({ answer, deadline }) {
  const array = useMemo(() => answer && decode(answer.actions), [answer]);
  if (!answer) return html`<p class="note">No action was asked for yet.</p>`;
  const { took, infer, rate, id } = answer;
  const { shape, values } = array;
  const label = `actions, ${shape.join(" × ")}`;
  const isLate = took > deadline;
  return html`
    <p class="row" role="status">
      <span class="tag ${isLate ? "bad" : "good"}">${isLate ? "missed" : "in time"}</span>
      <span>${seconds(took)} of ${seconds(deadline)}, ${seconds(infer)} of it in the server</span>
      <${Timeline} id=${id} />
    </p>
    <h2>${label}${rate ? `, ${rate} a second` : ""}</h2>
    ${values.length === shape.at(-1)
      ? html`<${Bars} values=${values} label=${label} name="action" />`
      : html`<${Lines} values=${values} shape=${shape} rate=${rate} label=${label} name="action" />`}`;
}

function Run({ run, isBusy }) {
  if (!run) return null;
  const { hz, took, asked, skipped, refused, part } = run;
  const sorted = [...took].sort((a, b) => a - b);
  const at = (share) => seconds(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] / 1000);
  const late = took.filter((one) => one > 1000 / hz).length;
  const rows = [["sent", asked], ["missed", late], ["ticks skipped", skipped], ["refused", refused],
    ["p50", at(0.5)], ["p95", at(0.95)], ["max", at(1)]];
  return html`
    <h2>${hz} times a second</h2>
    ${isBusy && html`<${ProgressBar} text=${`${Math.round(part)} of ${REPEAT_S} s`} done=${part} total=${REPEAT_S} />`}
    ${took.length > 0 && html`<${Histogram} values=${took} limit=${1000 / hz}
      label=${`how long ${took.length} answers took; ${late} missed their deadline`} />`}
    <dl class="facts">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
