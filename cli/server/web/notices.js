// What the page has to say outside of an answer: a banner that stays, a toast that goes, the key.

import { byId, el, iconButton } from "./dom.js";
import { apiKey, setApiKey } from "./prefs.js";

const TOAST_MS = 7000;

/** A message on top of the conversation, until it is cleared. */
export class Banner {
  constructor() {
    this.element = byId("banner");
  }

  /** @param {string} text @param {string} [action] @param {() => void} [onAction] */
  show(text, action = "", onAction = () => {}) {
    const parts = [el("p", { text })];
    if (action)
      parts.push(
        el("button", { type: "button", class: "button", text: action, on: { click: onAction } }),
      );
    this.element.replaceChildren(...parts);
    this.element.hidden = false;
  }

  clear() {
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}

/** A short message with one thing to do about it. */
export class Toast {
  constructor() {
    this.element = byId("toast");
  }

  /** @param {string} text @param {string} [action] @param {() => void} [onAction] */
  show(text, action = "", onAction = () => {}) {
    clearTimeout(this.timer);
    const parts = [el("p", { text })];
    if (action) {
      const act = () => {
        this.hide();
        onAction();
      };
      parts.push(
        el("button", { type: "button", class: "button", text: action, on: { click: act } }),
      );
    }
    parts.push(iconButton("close", "Dismiss", () => this.hide()));
    this.element.replaceChildren(...parts);
    this.element.hidden = false;
    this.timer = setTimeout(() => this.hide(), TOAST_MS);
  }

  hide() {
    clearTimeout(this.timer);
    this.element.hidden = true;
  }
}

/** Asks for the server's key; it is kept in this tab only. */
export class KeyDialog {
  constructor() {
    this.dialog = byId("key-dialog");
    this.input = byId("key");
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.input.value.trim();
      if (!key) return;
      setApiKey(key);
      this.dialog.close("given");
    });
    byId("key-cancel").addEventListener("click", () => this.dialog.close(""));
    this.dialog.addEventListener("close", () => {
      this.input.value = "";
      this.answer?.(this.dialog.returnValue === "given");
      this.answer = null;
    });
  }

  /** @returns {Promise<boolean>} whether a key was given */
  ask() {
    if (this.dialog.open) return Promise.resolve(false);
    byId("key-wrong").hidden = !apiKey();
    this.dialog.returnValue = "";
    this.dialog.showModal();
    this.input.focus();
    return new Promise((resolve) => (this.answer = resolve));
  }
}
