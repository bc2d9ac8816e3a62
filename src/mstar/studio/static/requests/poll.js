// Asks the server for something again and again while the page is visible. What failed is told; the last answer stays.

import { useEffect, useRef, useState } from "../vendor/preact.js";

/**
 * `{got, error, again}`: what `ask(signal)` gave last, why the last try failed or null, and a function that asks now.
 * `pause(got)` is how many seconds later it is asked again, or null for never. Begins anew when `key` changes.
 */
export function usePoll(ask, pause, key) {
  const [told, tell] = useState({ got: null, error: null, key });
  const now = useRef();
  now.current = { ask, pause };
  const asking = useRef(() => {});
  useEffect(() => {
    const ended = new AbortController();
    let timer = 0;
    let last = null;
    const again = async () => {
      clearTimeout(timer);
      let error = null;
      try {
        last = await now.current.ask(ended.signal);
      } catch (failed) {
        error = failed;
      }
      if (ended.signal.aborted) return;
      tell({ got: last, error, key });
      const wait = now.current.pause(last, error);
      clearTimeout(timer);
      if (wait !== null && document.visibilityState === "visible") timer = setTimeout(again, wait * 1000);
    };
    const seen = () => document.visibilityState === "visible" && now.current.pause(last, null) !== null && again();
    document.addEventListener("visibilitychange", seen);
    asking.current = again;
    again();
    return () => {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);
  const fresh = told.key === key ? told : { got: null, error: null };
  return { ...fresh, again: () => asking.current() };
}
