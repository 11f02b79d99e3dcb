// Light, dark, or what the system says; early.js applies the choice before the first paint.

import { icon } from "./dom.js";
import { remember, recall } from "./prefs.js";

const ORDER = ["system", "light", "dark"];
const LABELS = { system: "System theme", light: "Light theme", dark: "Dark theme" };
const ICONS = { system: "contrast", light: "sun", dark: "moon" };

/** @returns {string} one of ORDER */
function current() {
  const theme = recall("theme", "system");
  return ORDER.includes(theme) ? theme : "system";
}

/** Makes a button step through the three themes. @param {HTMLButtonElement} button */
export function bindTheme(button) {
  const show = () => {
    const theme = current();
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.replaceChildren(icon(ICONS[theme]));
    button.setAttribute("aria-label", `${LABELS[theme]}, press to change`);
    button.title = LABELS[theme];
  };
  button.addEventListener("click", () => {
    remember("theme", ORDER[(ORDER.indexOf(current()) + 1) % ORDER.length]);
    show();
  });
  // Another tab changed it.
  addEventListener("storage", (event) => event.key === "llamba.theme" && show());
  show();
}
