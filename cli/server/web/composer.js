// The message box: grows with its text, Enter sends, one button sends or stops.

import { byId } from "./dom.js";

const THINKING = { "": "Thinking: auto", on: "Thinking: on", off: "Thinking: off" };
const NEXT = { "": "on", on: "off", off: "" };

export class Composer {
  /**
   * @param {object} hooks
   * @param {(text: string) => boolean} hooks.send false: it could not be taken
   * @param {() => void} hooks.stop
   * @param {() => boolean} hooks.editLast
   * @param {(thinking: "" | "on" | "off") => void} hooks.setThinking
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.form = byId("composer");
    this.area = byId("prompt");
    this.button = byId("send");
    this.thinking = byId("thinking");
    /** @type {Map<string, string>} what was typed but not sent, by conversation */
    this.drafts = new Map();
    this.draft = "";
    this.busy = false;
    this.touch = matchMedia("(hover: none) and (pointer: coarse)");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.button.addEventListener("click", () => this.busy && hooks.stop());
    this.area.addEventListener("input", () => this.fit());
    this.area.addEventListener("keydown", (event) => this.onKey(event));
    this.thinking.addEventListener("click", () =>
      hooks.setThinking(NEXT[this.thinking.dataset.value ?? ""]),
    );
    this.fit();
  }

  onKey(event) {
    // A finger's keyboard has no Shift+Enter worth the name: there Enter is a new line.
    const touch = this.touch.matches;
    if (
      event.key === "Enter" &&
      !event.shiftKey &&
      !event.isComposing &&
      !(touch && !event.ctrlKey)
    ) {
      event.preventDefault();
      if (!this.busy) this.submit();
    } else if (event.key === "ArrowUp" && !this.area.value && !this.busy) {
      if (this.hooks.editLast()) event.preventDefault();
    }
  }

  submit() {
    const text = this.area.value.trim();
    if (this.busy || !text || !this.hooks.send(text)) return;
    this.area.value = "";
    this.drafts.delete(this.draft);
    this.fit();
  }

  /** The box is as high as its text, up to the limit of the style sheet. */
  fit() {
    this.area.style.height = "auto";
    this.area.style.height = `${this.area.scrollHeight}px`;
    this.button.disabled = !this.busy && !this.area.value.trim();
  }

  /** @param {boolean} busy an answer of this conversation is being written */
  setBusy(busy) {
    this.busy = busy;
    this.button.type = busy ? "button" : "submit";
    this.button.dataset.mode = busy ? "stop" : "send";
    const label = busy ? "Stop (Esc)" : "Send (Enter)";
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.button.disabled = !busy && !this.area.value.trim();
  }

  /** @param {"" | "on" | "off"} value */
  showThinking(value) {
    this.thinking.dataset.value = value;
    this.thinking.lastElementChild.textContent = THINKING[value];
  }

  /** Changes to the draft of another conversation. @param {string} id "" is the new one */
  switchTo(id) {
    if (id === this.draft) return;
    this.drafts.set(this.draft, this.area.value);
    this.draft = id;
    this.area.value = this.drafts.get(id) ?? "";
    this.fit();
  }

  /** @param {string} text */
  fill(text) {
    this.area.value = text;
    this.fit();
    this.focus();
  }

  /** Ready to type; but a keyboard that covers half the screen comes only when asked for. */
  offerFocus() {
    if (!this.touch.matches) this.focus();
  }

  focus() {
    this.area.focus();
  }
}
