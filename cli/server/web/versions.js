// The "2 / 3" between the versions of a turn.

import { el, iconButton } from "./dom.js";

/**
 * @param {import("./conversation.js").Turn[]} all
 * @param {import("./conversation.js").Turn} turn the one that is shown
 * @param {(turn: import("./conversation.js").Turn) => void} show
 * @returns {HTMLElement[]} nothing if there is only one
 */
export function versionSwitch(all, turn, show) {
  if (all.length < 2) return [];
  const at = all.indexOf(turn);
  const step = (name, label, to) =>
    iconButton(name, label, () => show(all[to]), { disabled: to < 0 || to >= all.length });
  return [
    step("left", "Earlier version", at - 1),
    el("span", {
      class: "count",
      text: `${at + 1} / ${all.length}`,
      "aria-label": `Version ${at + 1} of ${all.length}`,
    }),
    step("right", "Later version", at + 1),
  ];
}
