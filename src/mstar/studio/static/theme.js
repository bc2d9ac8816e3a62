// Theme: light, dark, or the system's setting. Saved in local storage.

import { html, useLayoutEffect, useState } from "./vendor/preact.js";

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

const nextTheme = (theme) => THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];

export function Theme() {
  const [theme, choose] = useState(storedTheme);
  useLayoutEffect(() => { // the button never names a theme that the page does not have yet
    localStorage.setItem(STORAGE_KEY, theme);
    applyTheme(theme);
  }, [theme]);
  return html`<button class="button quiet" type="button" title=${`Theme: ${theme}. Next: ${nextTheme(theme)}`}
    aria-label=${`Theme: ${theme}`} onClick=${() => choose(nextTheme)}><span class="wide">Theme:</span>${theme}</button>`;
}
