// Robot panel: request an action chunk for an observation, once or at a fixed rate with deadlines.
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

/** Send one request. Returns the actions and the round-trip time. */
async function act(options) {
  const startedAt = performance.now();
  const response = await api.raw("/v1/actions", options);
  const { actions, rate, server_timing: timing } = await response.json();
  return { took: secondsSince(startedAt), actions, rate, infer: timing.infer_ms / 1000, id: response.headers.get("X-Request-Id") };
}

/** Send a request at each tick. A tick that falls into a pending request is skipped. */
async function repeat(hz, options, onProgress) {
  const startedAt = performance.now();
  const run = { hz, took: [], sent: 0, skipped: 0, rejected: 0 };
  // The deadline of each request, as for a robot with a known rate.
  const headers = { "Mstar-SLO": `ttft=${(1 / hz).toFixed(4)}` };
  let reportedAt = 0;
  for (let tick = 0; tick < hz * REPEAT_S && !options.signal.aborted; ) {
    await pause(Math.max(0, tick / hz - secondsSince(startedAt)) * 1000);
    run.sent++;
    try {
      const response = await act({ ...options, headers });
      run.took.push(response.took * 1000);
      run.response = response;
    } catch (error) {
      if (error.status !== 429) throw error;
      run.rejected++;
    }
    const next = Math.max(tick + 1, Math.ceil(secondsSince(startedAt) * hz));
    run.skipped += next - tick - 1;
    tick = next;
    if (secondsSince(startedAt) - reportedAt > 0.2) onProgress({ ...run, part: (reportedAt = secondsSince(startedAt)) });
  }
  onProgress(run);
}

export default function Robot({ model }) {
  const { robot, error } = useRobot(model);
  if (error) return html`<${ErrorMessage} error=${error} what="Loading the robot spec failed" />`;
  return robot ? html`<${Panel} model=${model} robot=${robot} />` : html`<${ProgressBar} text="Loading the robot spec…" />`;
}

function Panel({ model, robot }) {
  const [fields, change] = useState(() => observationFields(robot));
  const every = robot.rate / (robot.actions?.shape[0] ?? 1) || 5;
  const { values, input } = useForm({ prompt: "", seed: "0", hz: String(every) });
  const [response, show] = useState(null);
  const [run, setRun] = useState(null);
  const task = useTask();
  const observation = useMemo(() => tryValue(() => encodeObservation(fields)), [fields]);
  const body = { model, observation: observation.value ?? {}, prompt: values.prompt || undefined, seed: Number(values.seed) };
  const hz = Number(values.hz) || every;
  const isDisabled = Boolean(task.isBusy || observation.error);
  const once = (event) => {
    event.preventDefault();
    task.run(async (signal) => show(await act({ body, signal })));
  };
  const onProgress = (progress) => {
    setRun(progress);
    show(progress.response ?? null);
  };
  const often = () => task.run((signal) => repeat(hz, { body, signal }, onProgress));
  return html`<div class="grid2 media-panels">
    <form class="panel stack" onSubmit=${once}>
      <${Observation} fields=${fields} change=${change} isFixed=${Boolean(robot.observation)} />
      <div class="fields">
        ${input("prompt", "Task", { placeholder: "pick up the cup" })}
        ${input("seed", "Seed", SEED)}
        ${input("hz", "Requests per second", { type: "number", min: 0.1, max: 500, step: "any" })}
      </div>
      <div class="row">
        <button class="button main" disabled=${isDisabled}>Act</button>
        <button class="button" type="button" disabled=${isDisabled} onClick=${often}>Repeat for ${REPEAT_S} s</button>
        ${task.isBusy && html`<button class="button" type="button" onClick=${task.stop}>Stop</button>`}
      </div>
      <${ErrorMessage} error=${observation.error} what="Incomplete observation" />
      <${Code} call=${{ method: "POST", path: "/v1/actions", body, reads: "json" }} />
    </form>
    <section class="panel stack" aria-label="Actions">
      <${ErrorMessage} error=${task.error} what="Request failed" />
      <${Chunk} response=${response} deadline=${1 / hz} />
      <${Run} run=${run} isBusy=${task.isBusy} />
    </section>
  </div>`;
}

function Chunk({ response, deadline }) {
  const array = useMemo(() => response && decode(response.actions), [response]);
  if (!response) return html`<p class="note">No actions yet.</p>`;
  const { took, infer, rate, id } = response;
  const { shape, values } = array;
  const label = `actions, ${shape.join(" × ")}`;
  const isLate = took > deadline;
  return html`
    <p class="row" role="status">
      <span class="tag ${isLate ? "bad" : "good"}">${isLate ? "deadline missed" : "on time"}</span>
      <span>${seconds(took)} of ${seconds(deadline)}, inference ${seconds(infer)}</span>
      <${Timeline} id=${id} />
    </p>
    <h2>${label}${rate ? `, ${rate} Hz` : ""}</h2>
    ${values.length === shape.at(-1)
      ? html`<${Bars} values=${values} label=${label} name="action" />`
      : html`<${Lines} values=${values} shape=${shape} rate=${rate} label=${label} name="action" />`}`;
}

function Run({ run, isBusy }) {
  if (!run) return null;
  const { hz, took, sent, skipped, rejected, part } = run;
  const sorted = [...took].sort((a, b) => a - b);
  const at = (share) => seconds(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] / 1000);
  const late = took.filter((one) => one > 1000 / hz).length;
  const rows = [["sent", sent], ["deadlines missed", late], ["ticks skipped", skipped], ["rejected", rejected],
    ["p50", at(0.5)], ["p95", at(0.95)], ["max", at(1)]];
  return html`
    <h2>${hz} requests per second</h2>
    ${isBusy && html`<${ProgressBar} text=${`${Math.round(part)} of ${REPEAT_S} s`} done=${part} total=${REPEAT_S} />`}
    ${took.length > 0 && html`<${Histogram} values=${took} limit=${1000 / hz}
      label=${`latency of ${took.length} responses; ${late} missed the deadline`} />`}
    <dl class="facts">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
