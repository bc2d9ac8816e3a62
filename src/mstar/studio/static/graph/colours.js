// Colours for canvases: they cannot use the style sheet's custom properties, so those are read from a probe.

const HUES = 24;
export const COLOURS = 8;
const sprites = new Map();
const read = new Map();
let [worn, ratio] = ["", 0];

function probe(name) {
  const element = document.createElement("i");
  element.style.color = `var(${name})`;
  document.body.append(element);
  const colour = getComputedStyle(element).color;
  element.remove();
  return colour;
}

/** The colour of a custom property as it is now. */
export function colour(name) {
  if (!read.has(name)) read.set(name, probe(name));
  return read.get(name);
}

const isDark = () => {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Forget what was read when the theme or the screen is another; whether it was. */
export function refreshColours() {
  const now = isDark() ? "dark" : "light";
  if (now === worn && ratio === devicePixelRatio) return false;
  [worn, ratio] = [now, devicePixelRatio];
  sprites.clear();
  read.clear();
  return true;
}

/** A hue that stays with a request. */
export function hueFor(rid) {
  let hash = 7;
  for (let at = 0; at < rid.length; at++) hash = (Math.imul(hash, 31) + rid.charCodeAt(at)) >>> 0;
  // Neighbouring numbers get hues that are far apart.
  return (Math.imul(hash, 2654435761) >>> 16) % HUES;
}

function fill(look) {
  if (look === "good" || look === "bad") return colour(`--${look}`);
  if (look === "other") return colour("--soft");
  return `hsl(${(look * 360) / HUES} ${worn === "dark" ? "75% 64%" : "72% 46%"})`;
}

/** A dot as a small canvas: `look` is a hue, "good", "bad" or "other"; `ring` a worker's colour number or -1. */
export function sprite(look, ring, radius) {
  const key = `${look} ${ring} ${radius}`;
  let found = sprites.get(key);
  if (found) return found;
  found = document.createElement("canvas");
  found.width = found.height = Math.ceil((2 * radius + 2) * ratio);
  const draw = found.getContext("2d");
  draw.scale(ratio, ratio);
  const middle = found.width / ratio / 2;
  const circle = (size, look_) => {
    draw.fillStyle = look_;
    draw.beginPath();
    draw.arc(middle, middle, size, 0, 7);
    draw.fill();
  };
  // The ring, a thin gap in the panel's colour, and the request's own colour in it.
  circle(radius, ring < 0 ? colour("--panel") : colour(`--w${ring}-line`));
  if (ring >= 0) circle(radius - 1.3, colour("--panel"));
  circle(radius - (ring < 0 ? 0.8 : 1.9), fill(look));
  sprites.set(key, found);
  return found;
}
