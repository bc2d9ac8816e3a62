// Theme: light, dark, or the system's setting. Saved in local storage.

import { html, useEffect, useState } from "./vendor/preact.js";

const STORAGE_KEY = "mstar-theme";
const THEMES = ["auto", "light", "dark"];

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  // Canvases read their colors from the stylesheet, and must read them again.
  dispatchEvent(new Event("mstar-theme"));
}

const storedTheme = () => {
  const theme = localStorage.getItem(STORAGE_KEY);
  return THEMES.includes(theme) ? theme : "auto";
};

applyTheme(storedTheme());

export function Theme() {
  const [theme, choose] = useState(storedTheme);
  useEffect(() => {
    localStorage.setItem(STORAGE_KEY, theme);
    applyTheme(theme);
  }, [theme]);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  return html`<button class="button quiet" type="button" title=${`Theme: ${theme}. Next: ${next}`}
    aria-label=${`Theme: ${theme}`} onClick=${() => choose(next)}><span class="wide">Theme:</span>${theme}</button>`;
}
