// The call of a panel as commands that can be pasted: curl and Python. It writes text and sends nothing.
//
// A call is {method, path, query, body | form, reads, begin}: `form` is a list of [name, value | {file: name}], `reads`
// is "json", "events", "sound", "bytes" or "socket", `begin` the body that a world was begun with. A key is never
// shown, `$MSTAR_KEY` stands for it. What is too long to paste is made by the command itself.
import { html, useState } from "../vendor/preact.js";
import { api } from "../api.js";
import { Copy, Tabs } from "../components.js";
import { decode, isArray, sizeOf } from "./arrays.js";

const LONG = 240;
const WIDTH = 96;
const CODED = /^(data:([\w/+.-]+)[^,]*;base64,)?[A-Za-z0-9+/_-]+=*$/;
const TABS = [{ id: "curl", label: "curl" }, { id: "python", label: "Python" }];

const here = () => ({ origin: location.origin, isKeyed: Boolean(api.key) });

/** The equivalent of a call, as tabs. */
export function Code({ call }) {
  const [language, choose] = useState("curl");
  const [isOpen, open] = useState(false);
  const shown = () => html`<${Tabs} tabs=${TABS} chosen=${language} choose=${choose} label="Language" />
    <${Copy} text=${language === "curl" ? curl(call) : python(call)} label=${`${language} code`} />`;
  return html`<details class="call" onToggle=${(event) => open(event.currentTarget.open)}>
    <summary>Code for this call</summary>${isOpen && shown()}
  </details>`;
}

// ---------------------------------------------------------------- values as text
/** What is written as it is: an expression, not a text. */
class Raw {
  constructor(text) {
    this.text = text;
  }
}

/** A value as JSON writes it, or Python with other `words`, in lines that are not too wide. */
function written(value, words, indent = "") {
  if (value instanceof Raw) return value.text;
  if (typeof value !== "object" || value === null) return words[value] ?? JSON.stringify(value);
  const isList = Array.isArray(value);
  const deeper = `${indent}  `;
  const parts = Object.entries(value)
    .filter(([, one]) => one !== undefined)
    .map(([name, one]) => (isList ? "" : `${JSON.stringify(name)}: `) + written(one, words, deeper));
  return (isList ? "[" : "{") + broken(parts, indent, deeper) + (isList ? "]" : "}");
}

function broken(parts, indent, deeper, room = 0) {
  const line = parts.join(", ");
  const fits = line.length + indent.length + room < WIDTH && !line.includes("\n");
  return fits ? line : `\n${deeper}${parts.join(`,\n${deeper}`)}\n${indent}`;
}

/** A value in which arrays, and texts that are long base64, are what `spelled` makes of them. */
function shortened(value, spelled, name = "the array", holder = {}) {
  if (isArray(value)) return spelled.array(value, name, value.data.length > LONG);
  const found = typeof value === "string" && value.length > LONG && CODED.exec(value);
  if (found) return spelled.file(found[1] ?? "", fileOf(found[2] ?? `audio/${holder.format ?? "bin"}`));
  if (typeof value !== "object" || value === null || value instanceof Raw) return value;
  if (Array.isArray(value)) return value.map((one) => shortened(one, spelled, name));
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, shortened(one, spelled, key, value)]));
}

function fileOf(mediaType) {
  const [kind, form] = mediaType.split("/");
  return `${{ image: "picture", audio: "sound" }[kind] ?? "file"}.${{ jpeg: "jpg", mpeg: "mp3" }[form] ?? form}`;
}

const isFile = ([, value]) => typeof value === "object";
const yours = (file) => `# ${file} is a file of yours`;
const zeros = (name, { dtype, shape }) => `# zeros stand for ${name}, which is ${dtype} [${shape.join(", ")}]`;
const soundOf = ({ response_format: form = "mp3" }) => `answer.${form}`;

function address({ path, query }, origin) {
  return origin + path + (query ? `?${new URLSearchParams(query)}` : "");
}

// ---------------------------------------------------------------- curl
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A call as a command for a shell. */
export function curl(call, { origin, isKeyed } = here()) {
  const key = isKeyed ? ['-H "Authorization: Bearer $MSTAR_KEY"'] : [];
  const line = (command, from, parts) => [`${command} ${quoted(address(call, from))}`, ...parts].join(" \\\n  ");
  if (call.reads === "socket") {
    return `# a WebSocket, which websocat speaks\n${line("websocat", origin.replace("http", "ws"), key)}`;
  }
  const { method = "GET", form = [], body } = call;
  const sent = body ? shellBody(body) : { notes: [], options: [], tail: "" };
  const end = ending(call);
  const options = [...key, ...form.map(formPart), ...sent.options, ...end.options];
  if (method !== "GET" && !form.length && !body) options.unshift(`-X ${method}`);
  const notes = new Set([...sent.notes, ...form.filter(isFile).map(([, { file }]) => yours(file)), ...end.notes]);
  const command = line(call.reads === "events" ? "curl -N" : "curl", origin, options);
  return [...notes, command + end.pipe + sent.tail].join("\n");
}

function formPart([name, value]) {
  if (isFile([name, value])) {
    const { file } = value;
    return `-F ${quoted(`${name}=@${/[;,"]/.test(file) ? JSON.stringify(file) : file}`)}`;
  }
  return `${/^[@<]|;/.test(value) ? "--form-string" : "-F"} ${quoted(`${name}=${value}`)}`;
}

/** The body; what is long comes out of commands, in a text that the shell reads. */
function shellBody(body) {
  const commands = [];
  const notes = [];
  const mark = (command) => `\uE000${commands.push(`$(${command} | tr -d '\\n')`) - 1}\uE001`;
  const told = shortened(body, {
    array(value, name, isLong) {
      if (!isLong) return value;
      notes.push(zeros(name, value));
      return { ...value, data: mark(`head -c ${sizeOf(value)} /dev/zero | base64`) };
    },
    file(head, name) {
      notes.push(yours(name));
      return head + mark(`base64 < ${name}`);
    },
  });
  const text = written(told, {});
  const kind = "-H 'Content-Type: application/json'";
  if (!commands.length) return { notes, options: [kind, `-d ${quoted(text)}`], tail: "" };
  const safe = text.replace(/[\\$`]/g, "\\$&").replace(/\uE000(\d+)\uE001/g, (_, at) => commands[at]);
  return { notes, options: [kind, "-d @-"], tail: ` <<END\n${safe}\nEND` };
}

/** What becomes of the answer: it is shown, or kept in a file. */
function ending({ path, body, reads, method }) {
  const [options, notes] = [[], []];
  if (reads === "sound") options.push(`-o ${soundOf(body)}`);
  if (reads === "bytes") options.push("-o video.mp4");
  const isDrawn = path.startsWith("/v1/images");
  if (isDrawn) notes.push("# pictures come as base64, so lines are cut here; the Python code writes files");
  if (path === "/v1/videos" && method === "POST") {
    notes.push("# then GET /v1/videos/ID until it is completed, and /v1/videos/ID/content for the file");
  }
  return { options, notes, pipe: isDrawn ? " | cut -c -160" : "" };
}

// ---------------------------------------------------------------- Python
const NAMES = { null: "None", true: "True", false: "False" };

/** A call as a program. */
export function python(call, place = here()) {
  const program = { imports: new Set(), notes: new Set(), place };
  const lines = writerOf(call)(call, program);
  const top = [...program.imports].sort((a, b) => a.startsWith("from") - b.startsWith("from") || (a < b ? -1 : 1));
  return [...program.notes, ...top, "", ...lines].join("\n");
}

function writerOf({ method, path, reads }) {
  if (reads === "socket") return conversing;
  if (method !== "POST") return plain;
  if (path === "/v1/actions") return acting;
  if (path.endsWith("/step") || path === "/v1/worlds") return imagining;
  return path in SDK ? withSdk : plain;
}

function literal(value, { imports, notes }, indent = "") {
  const told = shortened(value, {
    array(array, name, isLong) {
      imports.add("import numpy as np");
      const { dtype, shape } = array;
      if (isLong) notes.add(zeros(name, array));
      if (isLong) return new Raw(`np.zeros([${shape.join(", ")}], np.${dtype})`);
      const flat = `np.array([${[...decode(array).values].map((x) => shortest(x, dtype)).join(", ")}], np.${dtype})`;
      return new Raw(shape.length === 1 ? flat : `${flat}.reshape([${shape.join(", ")}])`);
    },
    file(head, name) {
      imports.add("import base64");
      notes.add(yours(name));
      return new Raw(`${head && `"${head}" + `}base64.b64encode(open("${name}", "rb").read()).decode()`);
    },
  });
  return written(told, NAMES, indent);
}

// The shortest number that is the same in float32: 0.1, not 0.10000000149011612.
function shortest(number, dtype) {
  const short = Number(number.toPrecision(7));
  return String(dtype === "float32" && Math.fround(short) === number ? short : number);
}

const keyOf = ({ imports }) => imports.add("import os") && 'os.environ["MSTAR_KEY"]';

/** The arguments of a function, by name; those that `extra` names are not known to it. */
function given(fields, program, extra = [], first = [], indent = "") {
  const deeper = `${indent}    `;
  const known = Object.entries(fields).filter(([name, one]) => !extra.includes(name) && one !== undefined);
  const other = Object.fromEntries(Object.entries(fields).filter(([name]) => extra.includes(name)));
  if (Object.keys(other).length) known.push(["extra_body", other]);
  const parts = [...first.map((one) => literal(one, program, deeper)),
    ...known.map(([name, one]) => `${name}=${literal(one, program, deeper)}`)];
  return broken(parts, indent, deeper, 40);
}

// ---------------------------------------------------------------- with OpenAI's package
const DRAWN = ["seed", "num_inference_steps", "guidance_scale", "negative_prompt"];
const SDK = {
  "/v1/chat/completions": [chatting, []],
  "/v1/audio/speech": [speaking, ["seed", "sample_rate", "language"]],
  "/v1/audio/transcriptions": [hearing, []],
  "/v1/images/generations": [drawing, DRAWN, "generate"],
  "/v1/images/edits": [drawing, DRAWN, "edit"],
  "/v1/videos": [filming, DRAWN],
};

function withSdk(call, program) {
  const [write, extra, name] = SDK[call.path];
  const fields = { ...(call.body ?? formFields(call.form, program)) };
  if (fields.stream) fields.stream = true; // in a form it is a text
  return [openAI(program), ...write(fields, () => given(fields, program, extra), program, name)];
}

function openAI(program, name = "OpenAI") {
  const { imports, place } = program;
  imports.add(`from openai import ${name}`);
  return `client = ${name}(base_url="${place.origin}/v1", api_key=${place.isKeyed ? keyOf(program) : '"none"'})`;
}

function formFields(form, { notes }) {
  const fields = {};
  for (const [name, value] of form) {
    const key = name.replace("[]", "");
    if (isFile([name, value])) notes.add(yours(value.file));
    const one = isFile([name, value]) ? new Raw(`open(${JSON.stringify(value.file)}, "rb")`) : value;
    fields[key] = name !== key || key in fields ? [].concat(fields[key] ?? [], one) : one;
  }
  return fields;
}

function chatting({ stream, audio }, told, { imports }) {
  const ask = `answer = client.chat.completions.create(${told()})`;
  if (audio) imports.add("import base64");
  const file = `open("answer.${audio?.format === "pcm16" ? "pcm" : audio?.format}", "wb")`;
  const whole = "answer.choices[0].message";
  if (!stream && !audio) return [ask, `print(${whole}.content)`];
  if (!stream) return [ask, `print(${whole}.audio.transcript)`, `${file}.write(base64.b64decode(${whole}.audio.data))`];
  const each = ["for chunk in answer:", "    delta = chunk.choices[0].delta if chunk.choices else None"];
  if (!audio) return [ask, ...each, '    print(delta and delta.content or "", end="", flush=True)'];
  return [ask, `sound = ${file}`, ...each, "    if delta and delta.audio:",
    '        print(delta.audio.transcript or "", end="", flush=True)',
    '        sound.write(base64.b64decode(delta.audio.data or ""))'];
}

function speaking(fields, told) {
  fields.voice ||= "alloy"; // the package wants one; by this one the server means the model's own
  return [`with client.audio.speech.with_streaming_response.create(${told()}) as spoken:`,
    `    spoken.stream_to_file("${soundOf(fields)}")`];
}

function hearing({ stream, response_format: form }, told) {
  const ask = `heard = client.audio.transcriptions.create(${told()})`;
  if (stream) return [ask, "for event in heard:", '    print(getattr(event, "delta", ""), end="", flush=True)'];
  return [ask, `print(heard${["text", "srt", "vtt"].includes(form) ? "" : ".text"})`];
}

function drawing(fields, told, { imports }, name) {
  imports.add("import base64");
  const { stream, output_format: form = "png" } = fields;
  const save = (one) => `    open(f"picture-{number}.${form}", "wb").write(base64.b64decode(${one}.b64_json))`;
  return [`drawn = client.images.${name}(${told()})`,
    `for number, one in enumerate(drawn${stream ? "" : ".data"}):`, save("one")];
}

function filming(fields, told) {
  return [`video = client.videos.create_and_poll(${told()})`, "print(video.status, video.error)",
    'client.videos.download_content(video.id).write_to_file("video.mp4")'];
}

function conversing({ query, body }, program) {
  program.imports.add("import asyncio");
  const session = body?.session ?? { type: "realtime", output_modalities: ["text"] };
  const said = { type: "message", role: "user", content: [{ type: "input_text", text: "Good morning." }] };
  return [openAI(program, "AsyncOpenAI"), "", "", "async def talk():",
    `    async with client.realtime.connect(${given(query ?? {}, program)}) as call:`,
    `        await call.session.update(session=${literal(session, program, "        ")})`,
    `        await call.conversation.item.create(item=${literal(said, program, "        ")})`,
    "        await call.response.create()",
    "        async for event in call:",
    '            if event.type in ("response.output_text.delta", "response.output_audio_transcript.delta"):',
    '                print(event.delta, end="", flush=True)',
    '            if event.type == "response.done":', "                break", "", "", "asyncio.run(talk())"];
}

// ---------------------------------------------------------------- with mstar's own client, or with none
function asClient(program, lines) {
  program.imports.add("from mstar.client import Client");
  const key = program.place.isKeyed ? `, key=${keyOf(program)}` : "";
  return [`with Client("${program.place.origin}"${key}) as client:`, ...lines.map((line) => `    ${line}`)];
}

function acting({ body }, program) {
  const { model, observation, ...wishes } = body;
  const told = given(wishes, program, [], [model, observation], "    ");
  return asClient(program, [`answer = client.act(${told})`, "print(answer.actions, answer.rate, answer.timing)"]);
}

function imagining({ body, begin }, program) {
  const { model, observation, ...wishes } = begin ?? body;
  const lines = [`world = client.world(${given(wishes, program, [], [model, observation], "    ")})`];
  const shown = begin ? `world.step(${literal(body.action, program, "    ")}).emissions` : "world.id";
  return asClient(program, [...lines, `print(${shown})`]);
}

function plain(call, program) {
  program.imports.add("import httpx2");
  const { method = "GET", body, reads } = call;
  const fields = {};
  if (program.place.isKeyed) fields.headers = new Raw(`{"Authorization": "Bearer " + ${keyOf(program)}}`);
  if (body) fields.json = body;
  const told = given(fields, program, [], [method, address(call, program.place.origin)]);
  const shown = reads === "bytes" ? 'open("video.mp4", "wb").write(answer.content)' : "print(answer.json())";
  return [`answer = httpx2.request(${told})`, shown];
}
