// The settings dialog: it edits a copy, and hands it over on every valid change.

import { byId, el } from "./dom.js";
import { NUMBERS, emptySettings, problemOf } from "./settings-fields.js";

/** @typedef {import("./settings-fields.js").Settings} Settings */

export class SettingsDialog {
  /**
   * @param {object} hooks
   * @param {(settings: Settings) => void} hooks.onChange
   * @param {(settings: Settings) => void} hooks.onDefault make these the start of new conversations
   */
  constructor({ onChange, onDefault }) {
    this.dialog = byId("settings");
    this.system = byId("system");
    this.numbers = byId("numbers");
    this.onChange = onChange;
    /** @type {Settings} */
    this.settings = emptySettings();
    /** @type {Map<string, {input: HTMLInputElement, problem: HTMLElement}>} */
    this.fields = new Map();
    for (const [name, field] of Object.entries(NUMBERS)) this.addNumber(name, field);
    this.system.addEventListener("input", () => this.change("system", this.system.value));
    for (const radio of this.radios()) {
      radio.addEventListener("change", () => this.change("thinking", radio.value));
    }
    byId("settings-reset").addEventListener("click", () => {
      this.show(emptySettings());
      this.onChange({ ...this.settings });
    });
    byId("settings-default").addEventListener("click", (event) => {
      onDefault({ ...this.settings });
      this.confirm(event.currentTarget, "Kept");
    });
    byId("settings-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
  }

  /** @returns {NodeListOf<HTMLInputElement>} */
  radios() {
    return this.dialog.querySelectorAll('input[name="thinking"]');
  }

  /** @param {string} name @param {typeof NUMBERS[string]} field */
  addNumber(name, { label, min, max, step, whole, hint }) {
    const id = `set-${name}`;
    const input = el("input", {
      id,
      name,
      type: "number",
      min,
      max,
      step: whole ? 1 : "any",
      placeholder: "default",
      autocomplete: "off",
      inputmode: whole ? "numeric" : "decimal",
      "aria-describedby": `${id}-hint ${id}-problem`,
    });
    const problem = el("span", { id: `${id}-problem`, class: "problem", role: "alert" });
    input.addEventListener("input", () => {
      // A number field hides what it can't read; its validity tells it from empty.
      const text = input.validity.badInput ? "?" : input.value;
      problem.textContent = problemOf(name, text);
      input.setAttribute("aria-invalid", String(problem.textContent !== ""));
      if (!problem.textContent) this.change(name, text.trim());
    });
    this.fields.set(name, { input, problem });
    const about = el("span", { id: `${id}-hint`, class: "hint", text: hint });
    this.numbers.append(
      el("div", { class: "field" }, el("label", { for: id, text: label }), input, about, problem),
    );
    // Wheels over a focused number field change it by accident. The step only serves the arrows.
    input.addEventListener("wheel", () => input.blur(), { passive: true });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault();
      const next = Number(input.value || 0) + (event.key === "ArrowUp" ? step : -step);
      input.value = String(Math.min(max, Math.max(min, Number(next.toFixed(4)))));
      input.dispatchEvent(new Event("input"));
    });
  }

  change(name, value) {
    if (this.settings[name] === value) return;
    this.settings = { ...this.settings, [name]: value };
    this.onChange({ ...this.settings });
  }

  /** @param {Settings} settings */
  show(settings) {
    this.settings = { ...emptySettings(), ...settings };
    this.system.value = this.settings.system;
    for (const radio of this.radios()) radio.checked = radio.value === this.settings.thinking;
    for (const [name, { input, problem }] of this.fields) {
      input.value = this.settings[name];
      problem.textContent = "";
      input.removeAttribute("aria-invalid");
    }
  }

  open() {
    this.dialog.showModal();
  }

  confirm(button, text) {
    const label = button.textContent;
    button.textContent = text;
    button.disabled = true;
    setTimeout(() => {
      button.textContent = label;
      button.disabled = false;
    }, 1600);
  }
}
