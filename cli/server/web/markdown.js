// Markdown -> DOM, while it is being written. Model text becomes text nodes and nothing else; the
// only attribute that it reaches is a checked href.

import { CodeBlock } from "./code.js";
import { el } from "./dom.js";
import { parseBlocks } from "./markdown-blocks.js";
import { parseInline } from "./markdown-inline.js";

/** @param {import("./markdown-inline.js").Inline[]} nodes @returns {Node[]} */
function inline(nodes) {
  return nodes.map((node) => {
    switch (node.t) {
      case "text":
        return document.createTextNode(node.v);
      case "br":
        return el("br");
      case "code":
        return el("code", { text: node.v });
      case "math":
        return el("span", { class: "math", text: node.v });
      case "link":
        return el(
          "a",
          { href: node.href, rel: "noopener noreferrer nofollow", target: "_blank" },
          ...inline(node.c),
        );
      default: // em, strong, del, span
        return el(node.t, {}, ...inline(node.c));
    }
  });
}

const spans = (text, open) => inline(parseInline(text, open));

/** One block as an element. @param {import("./markdown-blocks.js").Block} block @param {boolean} open */
function build(block, open) {
  switch (block.t) {
    case "heading":
      // The page has an h1 and an h2 for each turn: an answer's headings go below them.
      return el(
        `h${Math.min(block.level + 2, 6)}`,
        { class: `h${block.level}` },
        ...spans(block.text, open),
      );
    case "rule":
      return el("hr");
    case "math":
      return el("p", { class: "math", text: block.text });
    case "code":
      return new CodeBlock().update(block.lang, block.text).element;
    case "quote":
      return el("blockquote", {}, ...blocks(block.c, open));
    case "list":
      return list(block, open);
    case "table":
      return table(block, open);
    default:
      return el("p", {}, ...spans(block.text, open));
  }
}

function blocks(items, open) {
  return items.map((block, i) => build(block, open && i === items.length - 1));
}

function list(block, open) {
  const items = block.items.map((item, i) => {
    const children = blocks(item.c, open && i === block.items.length - 1);
    // A lone paragraph needs no paragraph's margins.
    if (children[0]?.nodeName === "P" && item.c[0].t === "para") {
      children.splice(0, 1, ...children[0].childNodes);
    }
    if (item.task === null) return el("li", {}, ...children);
    const box = el("input", {
      type: "checkbox",
      disabled: true,
      checked: item.task,
      "aria-label": "done",
    });
    return el("li", { class: "task" }, box, ...children);
  });
  if (!block.ordered) return el("ul", {}, ...items);
  return el("ol", block.start === 1 ? {} : { start: block.start }, ...items);
}

function table(block, open) {
  const row = (cells, tag, last) =>
    el(
      "tr",
      {},
      ...cells.map((cell, i) =>
        el(
          tag,
          { class: block.align[i] || null, ...(tag === "th" ? { scope: "col" } : {}) },
          ...spans(cell, last),
        ),
      ),
    );
  const body = block.rows.map((cells, i) => row(cells, "td", open && i === block.rows.length - 1));
  const inner = el(
    "table",
    {},
    el("thead", {}, row(block.head, "th", open && !body.length)),
    el("tbody", {}, ...body),
  );
  // Wide tables scroll by themselves, also with the keyboard.
  return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, inner);
}

/** Makes `old` look like `fresh`, touching only what differs: no flicker, selections stay. */
function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE && fresh.nodeType === Node.TEXT_NODE) {
    // Appending keeps a selection where it is; setting the text would drop it.
    if (fresh.data.startsWith(old.data)) old.appendData(fresh.data.slice(old.length));
    else old.data = fresh.data;
    return old;
  }
  if (
    old.nodeName !== fresh.nodeName ||
    old.className !== fresh.className ||
    old.nodeName === "FIGURE"
  ) {
    old.replaceWith(fresh);
    return fresh;
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const children = [...fresh.childNodes];
  children.forEach((child, i) => {
    const before = old.childNodes[i];
    if (!before) old.append(child);
    else if (!before.isEqualNode(child)) morph(before, child);
  });
  while (old.childNodes.length > children.length) old.lastChild.remove();
  return old;
}

/** An answer that grows in an element. Only the last block is ever built again. */
export class MarkdownStream {
  /** @param {HTMLElement} root @param {(block: HTMLElement) => void} [onBlock] told of each finished block */
  constructor(root, onBlock = () => {}) {
    this.root = root;
    this.onBlock = onBlock;
    this.reset();
  }

  reset() {
    this.root.replaceChildren();
    this.text = "";
    this.done = false;
    this.stable = 0; // characters whose blocks are finished
    /** @type {HTMLElement | null} */
    this.tail = null;
    /** @type {CodeBlock | null} */
    this.code = null; // the tail, if it is a code block
  }

  /** @param {string} text all of it so far @param {boolean} done nothing will follow */
  update(text, done) {
    if (text === this.text && done === this.done) return;
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    this.done = done;
    const lines = text.slice(this.stable).replaceAll("\r", "").split("\n");
    const found = parseBlocks(lines, !done);
    found.forEach((block, i) => {
      const last = i === found.length - 1;
      this.place(block, last && !done);
      if (!last || done) this.settle();
    });
    if (found.length > 1) this.stable += offset(text.slice(this.stable), found.at(-1).line);
  }

  /** Shows a block as the tail. */
  place(block, open) {
    if (block.t === "code") {
      if (!this.code) {
        this.code = new CodeBlock();
        this.swap(this.code.element);
      }
      this.code.update(block.lang, block.text);
      return;
    }
    this.code = null;
    const fresh = build(block, open);
    this.tail = this.tail ? morph(this.tail, fresh) : fresh;
    if (!this.tail.isConnected || this.tail.parentNode !== this.root) this.root.append(this.tail);
  }

  swap(element) {
    if (this.tail) this.tail.replaceWith(element);
    else this.root.append(element);
    this.tail = element;
  }

  /** The tail is finished: the next block gets an element of its own. */
  settle() {
    if (this.tail) this.onBlock(this.tail);
    this.tail = null;
    this.code = null;
  }
}

/** Where line number `line` starts. */
function offset(text, line) {
  let at = 0;
  for (let i = 0; i < line; i += 1) at = text.indexOf("\n", at) + 1;
  return at;
}

/** Finished Markdown into an element. @param {HTMLElement} root @param {string} text */
export function renderMarkdown(root, text) {
  new MarkdownStream(root).update(text, true);
}
