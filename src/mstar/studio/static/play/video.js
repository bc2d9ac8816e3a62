// Video panel: create, poll, play and delete video jobs.
import { html, useEffect, useState } from "../vendor/preact.js";
import { api } from "../api.js";
import { ProgressBar, Field, ErrorMessage, timeAgo } from "../components.js";
import { More, Prompt, SEED, Timeline, nonEmptyFields, toForm, useForm, useTask } from "./form.js";
import { Code } from "./code.js";

const POLL_MS = 500;
const EMPTY = { prompt: "a sunrise over the sea", seconds: "4", size: "", seed: "",
  num_inference_steps: "", guidance_scale: "", negative_prompt: "", input_reference: "" };
const LOOKS = { completed: "good", failed: "bad" };
const isOver = ({ status }) => status === "completed" || status === "failed";
const pathOf = ({ id }) => `/v1/videos/${encodeURIComponent(id)}`;

/** Jobs of this API key, polled at the server's interval while one is running. */
function useJobs() {
  const [{ jobs, wait }, setJobs] = useState({ jobs: [] });
  const [error, fail] = useState(null);
  const look = async () => {
    try {
      const { data } = await api.json("/v1/videos");
      const open = data.find((job) => !isOver(job));
      // Only the response for a single job has the poll interval.
      const answer = open && (await api.raw(pathOf(open)));
      setJobs({ jobs: data, wait: open && (Number(answer.headers.get("openai-poll-after-ms")) || POLL_MS) });
      fail(null);
    } catch (failed) {
      fail(failed);
    }
  };
  useEffect(() => void look(), []);
  useEffect(() => {
    const timer = wait && setTimeout(look, wait);
    return () => clearTimeout(timer);
  }, [jobs]);
  return { jobs, error, look };
}

export default function Video({ model }) {
  const form = useForm(EMPTY);
  const [id, name] = useState("");
  const { jobs, error, look } = useJobs();
  const task = useTask();
  const content = toForm([["model", model], ...nonEmptyFields(form.values)]);
  const begin = (event) => {
    event.preventDefault();
    task.run(async (signal) => {
      const answer = await api.raw("/v1/videos", { form: content.form, signal });
      name(answer.headers.get("X-Request-Id"));
      await look();
    });
  };
  const one = (job) => html`<${Job} key=${job.id} job=${job} look=${look} />`;
  return html`<div class="grid2 media-panels">
    <form class="panel stack" onSubmit=${begin}>
      <${ParamsPanel} form=${form} />
      <div class="row">
        <button class="button main" disabled=${task.isBusy || !form.values.prompt}>Generate</button>
        <${Timeline} id=${id} />
      </div>
      <${ErrorMessage} error=${task.error} what="Creating the job failed" />
      <${Code} call=${{ method: "POST", path: "/v1/videos", form: content.shown, reads: "json" }} />
    </form>
    <section class="panel stack" aria-label="Videos">
      <h2>Videos</h2>
      <${ErrorMessage} error=${error} retry=${look} what="Loading the videos failed" />
      <ul class="stack">${jobs.map(one)}</ul>
      ${!jobs.length && html`<p class="note">No videos. Each video is stored for one hour.</p>`}
    </section>
  </div>`;
}

function ParamsPanel({ form }) {
  const { set, input } = form;
  return html`
    <${Prompt} form=${form} />
    <div class="fields">
      ${input("seconds", "Seconds", { type: "number", min: 0.1, max: 120, step: "any", required: true })}
      ${input("size", "Size", { placeholder: "640x360", pattern: "[1-9]\\d*x[1-9]\\d*" })}
      ${input("seed", "Seed", SEED)}
    </div>
    <${More} form=${form}>
      <${Field} label="First frame"><input type="file" accept="image/*"
        onChange=${(event) => set("input_reference")({ target: { value: event.target.files[0] ?? "" } })} /><//>
    <//>`;
}

function Job({ job, look }) {
  const [src, play] = useState("");
  const task = useTask();
  useEffect(() => () => URL.revokeObjectURL(src), [src]);
  const content = `${pathOf(job)}/content`;
  const fetched = () => task.run(async (signal) => {
    play(URL.createObjectURL(await (await api.raw(content, { signal })).blob()));
  });
  const drop = () => task.run((signal) => api.json(pathOf(job), { method: "DELETE", signal }).then(look));
  return html`<li class="stack job">
    <p class="row"><span class="tag ${LOOKS[job.status]}">${job.status.replace("_", " ")}</span> <b>${job.prompt}</b>
      <small>${job.model}, ${job.seconds} s, ${job.size}, ${timeAgo(job.created_at)}</small></p>
    ${!isOver(job) && html`<${ProgressBar} text=${`${job.progress} %`} done=${job.progress} total=${100} />`}
    <${ErrorMessage} error=${job.error} what="Generation failed" />
    <${ErrorMessage} error=${task.error} />
    ${src && html`<video src=${src} controls loop autoplay muted playsinline aria-label=${job.prompt}></video>`}
    <p class="row">
      ${job.status === "completed" && !src
        && html`<button class="button" type="button" onClick=${fetched}>Play</button>`}
      ${src && html`<a class="button" href=${src} download="video.mp4">Download</a>`}
      <button class="button quiet" type="button" onClick=${drop}>${isOver(job) ? "Delete" : "Cancel"}</button>
    </p>
    ${src && html`<${Code} call=${{ path: content, reads: "bytes" }} />`}
  </li>`;
}
