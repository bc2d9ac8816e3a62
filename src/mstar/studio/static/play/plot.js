// Small plots: lines over time, bars, histogram with a limit, heat maps and images.
import { html, useEffect, useRef } from "../vendor/preact.js";
import { decode, extent, isArray, imageShape, toImages } from "./arrays.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [480, 184, 44, 20, 11];
const INSIDE = WIDTH - LEFT - 6;
const short = (x) => String(Number(x.toPrecision(3)));
const color = (number) => `var(--w${number % 8}-line)`;

function Frame({ label, low, high, begin, end, children }) {
  const y = (part) => TOP + (1 - part) * (HEIGHT - TOP - BOTTOM);
  const tick = (part) => html`<line x1=${LEFT} x2=${LEFT + INSIDE} y1=${y(part)} y2=${y(part)} />
    <text x=${LEFT - 6} y=${y(part) + 4} text-anchor="end">${short(low + part * (high - low))}</text>`;
  return html`<svg class="plot" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${label}>
    ${[0, 0.5, 1].map(tick)}
    <text x=${LEFT} y=${HEIGHT - 6}>${begin}</text>
    <text x=${LEFT + INSIDE} y=${HEIGHT - 6} text-anchor="end">${end}</text>
    ${children}
  </svg>`;
}

/** Line plot of [time, dimension] values, one line per dimension. */
export function Lines({ values, shape, label, rate, name = "dimension" }) {
  const many = shape.at(-1) ?? 1;
  const steps = values.length / many;
  const [low, high] = extent(values);
  const x = (step) => LEFT + (steps > 1 ? (step / (steps - 1)) * INSIDE : INSIDE / 2);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const line = (_, one) => {
    const point = (_, step) => `${x(step).toFixed(1)},${y(values[step * many + one]).toFixed(1)}`;
    const points = Array.from({ length: steps }, point).join(" ");
    return html`<polyline points=${points} stroke=${color(one)} stroke-dasharray=${one > 7 ? "6 3" : null} />`;
  };
  const end = `step ${steps - 1}${rate ? `, ${short((steps - 1) / rate)} s` : ""}`;
  return html`<figure class="stack">
    <${Frame} label=${label} low=${low} high=${high} begin="step 0" end=${end}>${Array.from({ length: many }, line)}<//>
    <${Legend} many=${many} name=${name} />
  </figure>`;
}

function Legend({ many, name }) {
  const one = (_, at) => html`<li><i style=${{ background: color(at) }}></i>${name} ${at}</li>`;
  return many <= 16 && html`<ul class="legend">${Array.from({ length: many }, one)}</ul>`;
}

/** Bar chart with one bar per number. */
export function Bars({ values, label, name }) {
  const most = Math.max(...Array.from(values, Math.abs)) || 1;
  const bar = (value, at) => {
    const part = Math.abs(value) / most / 2;
    const style = { left: `${50 - (value < 0 ? part * 100 : 0)}%`, width: `${part * 100}%`, background: color(at) };
    return html`<li><span>${name} ${at}</span><span class="beam"><i style=${style}></i></span>
      <span>${value.toFixed(3)}</span></li>`;
  };
  return html`<ul class="bars" aria-label=${label}>${Array.from(values, bar)}</ul>`;
}

/** Histogram of durations (ms), with a line at the limit. */
export function Histogram({ values, limit, label }) {
  const high = Math.max(...values, limit) * 1.05;
  const bins = new Array(40).fill(0);
  for (const value of values) bins[Math.min(39, Math.floor((value / high) * 40))]++;
  const most = Math.max(...bins);
  const bar = (many, at) => {
    const tall = (many / most) * (HEIGHT - TOP - BOTTOM);
    const isLate = ((at + 0.5) * high) / 40 > limit;
    return html`<rect class=${isLate ? "late" : ""} x=${LEFT + (at * INSIDE) / 40 + 1} width=${INSIDE / 40 - 2}
      y=${HEIGHT - BOTTOM - tall} height=${tall} />`;
  };
  const x = LEFT + (limit / high) * INSIDE;
  return html`<${Frame} label=${label} low=${0} high=${most} begin="0 ms" end=${`${short(high)} ms`}>
    ${bins.map(bar)}
    <line class="limit" x1=${x} x2=${x} y1=${TOP} y2=${HEIGHT - BOTTOM} />
    <text x=${x + (x < WIDTH / 2 ? 4 : -4)} y=${TOP + 10} text-anchor=${x < WIDTH / 2 ? "start" : "end"}>deadline</text>
  <//>`;
}

/** An image in a canvas. */
export function Pixels({ image, label, look = "pixels" }) {
  const canvas = useRef();
  useEffect(() => {
    canvas.current.getContext("2d").putImageData(image, 0, 0);
  }, [image]);
  return html`<canvas class=${look} ref=${canvas} width=${image.width} height=${image.height} role="img"
    aria-label=${label} />`;
}

/** Heat map of rows of numbers, from minimum (dark) to maximum (light). */
function heat({ shape, values }) {
  const width = shape.at(-1);
  const image = new ImageData(width, values.length / width);
  const [low, high] = extent(values);
  values.forEach((value, at) => {
    const part = (value - low) / (high - low);
    image.data.set([255 * part ** 1.5, 40 + 190 * part, 90 + 90 * Math.sin(part * 3), 255], at * 4);
  });
  return image;
}

/** View of any output by its shape: images, heat map, bars, or JSON. */
export function ArrayView({ value, label }) {
  if (!isArray(value)) return html`<pre class="code">${JSON.stringify(value, null, 1)}</pre>`;
  const array = decode(value);
  const { shape, dtype } = array;
  const text = `${label}: ${dtype} [${shape.join(", ")}]`;
  if (imageShape(shape)) return toImages(array).map((image) => html`<${Pixels} image=${image} label=${text} />`);
  const isWide = shape.length > 1 && shape.at(-1) > 1 && array.values.length > 16;
  if (isWide) return html`<${Pixels} image=${heat(array)} label=${text} look="pixels heat" />`;
  return html`<${Bars} values=${array.values.slice(0, 32)} label=${text} name="" />`;
}
