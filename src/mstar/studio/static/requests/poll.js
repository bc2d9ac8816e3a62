// Polling hook: fetches while the page is visible. On an error the last result stays.

import { useEffect, useRef, useState } from "../vendor/preact.js";

/**
 * Returns `{got, error, again}`: the last result of `ask(signal)`, the error of the last attempt or null, and a function
 * that fetches now. `pause(got)` returns the seconds until the next attempt, or null for never. Restarts when `key` changes.
 */
export function usePoll(ask, pause, key) {
  const [result, setResult] = useState({ got: null, error: null, key });
  const now = useRef();
  now.current = { ask, pause };
  const asking = useRef(() => {});
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let last = null;
    const again = async () => {
      clearTimeout(timer);
      let error = null;
      try {
        last = await now.current.ask(abort.signal);
      } catch (failed) {
        error = failed;
      }
      if (abort.signal.aborted) return;
      setResult({ got: last, error, key });
      const wait = now.current.pause(last, error);
      clearTimeout(timer);
      if (wait !== null && document.visibilityState === "visible") timer = setTimeout(again, wait * 1000);
    };
    const onVisible = () => document.visibilityState === "visible" && now.current.pause(last, null) !== null && again();
    document.addEventListener("visibilitychange", onVisible);
    asking.current = again;
    again();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [key]);
  const fresh = result.key === key ? result : { got: null, error: null };
  return { ...fresh, again: () => asking.current() };
}
