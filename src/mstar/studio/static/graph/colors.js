// Colors for canvases. A canvas cannot use CSS custom properties, so they are resolved with a probe element.

const HUES = 24;
export const COLORS = 8;
const sprites = new Map();
const resolved = new Map();
let [theme, ratio] = ["", 0];

function probe(name) {
  const element = document.createElement("i");
  element.style.color = `var(${name})`;
  document.body.append(element);
  const color = getComputedStyle(element).color;
  element.remove();
  return color;
}

/** The current color of a CSS custom property. */
export function color(name) {
  if (!resolved.has(name)) resolved.set(name, probe(name));
  return resolved.get(name);
}

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Drop cached colors if the theme or the pixel ratio has changed. Returns whether it has. */
export function refreshColors() {
  const now = isDark() ? "dark" : "light";
  if (now === theme && ratio === devicePixelRatio) return false;
  [theme, ratio] = [now, devicePixelRatio];
  sprites.clear();
  resolved.clear();
  return true;
}

/** A stable hue for a request id. */
export function hueFor(rid) {
  let hash = 7;
  for (let at = 0; at < rid.length; at++) hash = (Math.imul(hash, 31) + rid.charCodeAt(at)) >>> 0;
  // Consecutive numbers get distant hues.
  return (Math.imul(hash, 2654435761) >>> 16) % HUES;
}

function fill(look) {
  if (look === "good" || look === "bad") return color(`--${look}`);
  if (look === "other") return color("--soft");
  return `hsl(${(look * 360) / HUES} ${theme === "dark" ? "75% 64%" : "72% 46%"})`;
}

/** A dot as a small canvas. `look`: a hue, "good", "bad" or "other". `ring`: color index of a worker, or -1. */
export function sprite(look, ring, radius) {
  const key = `${look} ${ring} ${radius}`;
  let canvas = sprites.get(key);
  if (canvas) return canvas;
  canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.ceil((2 * radius + 2) * ratio);
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  const middle = canvas.width / ratio / 2;
  const circle = (size, look_) => {
    draw.fillStyle = look_;
    draw.beginPath();
    draw.arc(middle, middle, size, 0, 7);
    draw.fill();
  };
  // The worker's ring, a thin gap in the panel's color, and the request's color inside.
  circle(radius, ring < 0 ? color("--panel") : color(`--w${ring}-line`));
  if (ring >= 0) circle(radius - 1.3, color("--panel"));
  circle(radius - (ring < 0 ? 0.8 : 1.9), fill(look));
  sprites.set(key, canvas);
  return canvas;
}
