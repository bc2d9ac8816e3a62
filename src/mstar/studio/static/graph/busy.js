// Busy time: compute seconds of batches in each second of the last WINDOW_S, from the live ticks.

import { live } from "../live.js";
import { useEffect, useRef, useState } from "../vendor/preact.js";

const WINDOW_S = 10;

/** Fraction of time with a running batch, by key. A tick covers the time since the one before, so the first only sets the start. */
export function busyFractions([first, ...rest], keyOf) {
  const span = rest.length ? Math.max(0.1, rest.at(-1).t - first.t) : 1;
  const sums = new Map();
  for (const op of rest.flatMap((tick) => tick.ops)) {
    const key = keyOf(op);
    sums.set(key, (sums.get(key) ?? 0) + op.busy);
  }
  return new Map([...sums].map(([key, sum]) => [key, Math.min(1, sum / span)]));
}

/** The fractions by `keyOf(op)`, updated every second. */
export function useBusy(keyOf) {
  const [fractions, setFractions] = useState(new Map());
  const now = useRef(keyOf);
  now.current = keyOf;
  useEffect(() => {
    let ticks = [];
    const end = live.on(({ t, ops, full }) => {
      if (full) ticks = []; // the stream restarted: the interval before is unknown
      ticks = [...ticks.filter((one) => one.t > t - WINDOW_S), { t, ops }];
    });
    const timer = setInterval(() => setFractions(busyFractions(ticks, now.current)), 1000);
    return () => {
      end();
      clearInterval(timer);
    };
  }, []);
  return fractions;
}
