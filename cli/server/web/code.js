// A code block that grows by lines: what is there is never built again while more arrives.

import { copyText, el, icon } from "./dom.js";
import { Highlighter, languageLabel } from "./highlight.js";

const COPIED_MS = 1600;

export class CodeBlock {
  constructor() {
    this.label = el("span", { class: "lang" });
    this.code = el("code");
    this.copy = el("button", { type: "button", class: "copy-code", "aria-label": "Copy the code" });
    this.copy.append(icon("copy"), el("span", { text: "Copy" }));
    this.copy.addEventListener("click", () => this.onCopy());
    const pre = el("pre", { tabindex: 0 }, this.code); // scrolls with the keyboard too
    this.element = el(
      "figure",
      { class: "code" },
      el("figcaption", {}, this.label, this.copy),
      pre,
    );
    this.lang = null;
    this.text = "";
  }

  /** @param {string} lang @param {string} text all of it so far @returns {CodeBlock} */
  update(lang, text) {
    if (lang !== this.lang || !text.startsWith(this.text)) {
      this.lang = lang;
      this.label.textContent = languageLabel(lang);
      this.highlighter = new Highlighter(lang);
      this.code.replaceChildren();
      this.text = "";
      this.finished = 0; // characters in finished lines
      /** @type {(Element | Text)[]} */
      this.partial = []; // the nodes of the line that isn't finished
    } else if (text === this.text) return this;
    this.text = text;
    for (const node of this.partial) node.remove();
    for (let end; (end = text.indexOf("\n", this.finished)) >= 0; this.finished = end + 1) {
      this.code.append(...tokens(this.highlighter.line(text.slice(this.finished, end))), "\n");
    }
    this.partial = tokens(this.highlighter.peek(text.slice(this.finished)));
    this.code.append(...this.partial);
    return this;
  }

  async onCopy() {
    const done = await copyText(this.text);
    this.copy.replaceChildren(
      icon(done ? "check" : "close"),
      el("span", { text: done ? "Copied" : "Failed" }),
    );
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.copy.replaceChildren(icon("copy"), el("span", { text: "Copy" }));
    }, COPIED_MS);
  }
}

/** @param {[string, string][]} line @returns {(Element | Text)[]} */
function tokens(line) {
  return line.map(([kind, text]) =>
    kind ? el("span", { class: `h-${kind}`, text }) : document.createTextNode(text),
  );
}
