// A question of the reader, and how it is edited.

import { el, icon, iconButton, copyText } from "./dom.js";
import { versionSwitch } from "./versions.js";

export class QuestionView {
  /**
   * @param {import("./conversation.js").Turn} turn
   * @param {object} actions
   * @param {(turn: any, text: string) => void} actions.edit
   * @param {(turn: any) => void} actions.remove
   * @param {(turn: any) => void} actions.show another version
   * @param {() => void} actions.stay do not scroll away
   */
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.bubble = el("div", { class: "bubble", text: turn.text });
    this.versions = el("span", { class: "versions" });
    this.tools = el(
      "div",
      { class: "tools" },
      this.versions,
      iconButton("copy", "Copy the question", (event) => this.copy(event.currentTarget)),
      iconButton("edit", "Edit and ask again", () => this.edit()),
      iconButton("trash", "Delete this question and its answer", () => actions.remove(this.turn)),
    );
    this.element = el(
      "article",
      { class: "turn question", "data-turn": turn.id },
      el("h2", { class: "off-screen", text: "You" }),
      this.bubble,
      this.tools,
    );
  }

  /** @param {import("./conversation.js").Turn[]} all versions of this turn */
  update(all) {
    this.versions.replaceChildren(...versionSwitch(all, this.turn, this.actions.show));
  }

  async copy(button) {
    if (!(await copyText(this.turn.text))) return;
    button.replaceChildren(icon("check"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1600);
  }

  edit() {
    if (this.form) return;
    const area = el("textarea", { "aria-label": "Edit the question", rows: 1 });
    area.value = this.turn.text;
    const finish = (ask) => {
      const text = area.value.trim();
      if (ask && !text) return;
      this.form.replaceWith(this.bubble);
      this.form = null;
      this.tools.hidden = false;
      if (ask) this.actions.edit(this.turn, text);
      else this.tools.querySelector('[aria-label^="Edit"]').focus();
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation(); // this Esc is no "stop"
        finish(false);
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        finish(true);
      }
    });
    const buttons = el(
      "div",
      { class: "buttons" },
      el("button", {
        type: "button",
        class: "button",
        text: "Cancel",
        on: { click: () => finish(false) },
      }),
      el("button", {
        type: "button",
        class: "button primary",
        text: "Ask again",
        on: { click: () => finish(true) },
      }),
    );
    this.form = el("div", { class: "edit" }, area, buttons);
    this.bubble.replaceWith(this.form);
    this.tools.hidden = true;
    this.actions.stay();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
    this.form.scrollIntoView({ block: "nearest" });
  }
}
