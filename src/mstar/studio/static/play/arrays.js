// Conversion between arrays of the API, {dtype, shape, data: base64}, and typed arrays or images. Draws nothing.

import { base64, decodeBase64 } from "./base64.js";

const KINDS = {
  bool: Uint8Array, uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array,
  int32: Int32Array, uint64: BigUint64Array, int64: BigInt64Array, float32: Float32Array, float64: Float64Array,
  float16: Uint16Array, bfloat16: Uint16Array,
};
export const DTYPES = Object.keys(KINDS).slice(0, 11);

export const isArray = (value) => typeof value?.data === "string" && value.dtype in KINDS && Array.isArray(value.shape);
export const count = (shape) => shape.reduce((product, size) => product * size, 1);
export const sizeOf = ({ dtype, shape }) => count(shape) * KINDS[dtype].BYTES_PER_ELEMENT;

/** Decode to {dtype, shape, values}. 64-bit integers are rounded to doubles. */
export function decode({ dtype, shape, data }) {
  const raw = new KINDS[dtype](decodeBase64(data).buffer);
  let values = raw;
  if (dtype.endsWith("int64")) values = Float64Array.from(raw, Number);
  if (dtype === "float16") values = Float32Array.from(raw, half);
  // A bfloat16 is the upper half of a float32.
  if (dtype === "bfloat16") values = new Float32Array(Uint32Array.from(raw, (bits) => bits << 16).buffer);
  return { dtype, shape, values };
}

function half(bits) {
  const [sign, power, rest] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (power === 31) return rest ? NaN : sign * Infinity;
  return sign * (power ? 2 ** (power - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
}

/** Encode numbers as an array of the API. */
export function encode(dtype, shape, numbers) {
  const kind = KINDS[dtype];
  const isWide = dtype.endsWith("int64");
  const values = kind.from(numbers, isWide ? (one) => BigInt(Math.round(one)) : undefined);
  return { dtype, shape, data: base64(new Uint8Array(values.buffer)) };
}

/** Image dimensions of a shape: {many, height, width, colors, isFirst (channels first)}. Null: not an image. */
export function imageShape(shape) {
  const [a, b, c] = shape.slice(-3);
  const isColor = (size) => size === 3 || size === 1;
  if (shape.length < 3 || !(isColor(c) || isColor(a))) return null;
  const isFirst = !isColor(c);
  const [height, width, colors] = isFirst ? [b, c, a] : [a, b, c];
  return Math.min(height, width) < 8 ? null : { many: count(shape.slice(0, -3)), height, width, colors, isFirst };
}

/** The pictures of a decoded array as ImageData, brightness by what values there are. */
export function toImages({ dtype, shape, values }) {
  const { many, height, width, colors, isFirst } = imageShape(shape);
  const [low, high] = dtype === "uint8" ? [0, 255] : span(values);
  const pixels = height * width;
  return Array.from({ length: many }, (_, number) => {
    const image = new ImageData(width, height);
    for (let at = 0; at < pixels; at++) {
      for (let color = 0; color < 3; color++) {
        const which = colors === 1 ? 0 : color;
        const from = number * pixels * colors + (isFirst ? which * pixels + at : at * colors + which);
        image.data[at * 4 + color] = (255 * (values[from] - low)) / (high - low);
      }
      image.data[at * 4 + 3] = 255;
    }
    return image;
  });
}

// Pictures of floats are from 0 to 1, from -1 to 1 or from 0 to 255; anything else is stretched.
function span(values) {
  const [least, most] = extent(values);
  const usual = [[0, 1], [-1, 1], [0, 255]].find(([low, high]) => least >= low && most <= high);
  return usual ?? [least, most];
}

/** Minimum and maximum of some numbers, never equal. */
export function extent(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return least < most ? [least, most] : [least - 0.5, least + 0.5];
}
