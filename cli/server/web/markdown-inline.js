// Inline Markdown: text -> a small tree of plain objects. No DOM here, so it can't run anything.
//
// Emphasis follows CommonMark's delimiter algorithm. Left out on purpose: raw HTML (it stays text,
// only <br> means something) and images (shown as links: an answer must not fetch anything).

/**
 * @typedef {{t: "text" | "code" | "math", v: string} | {t: "br"} |
 *   {t: "em" | "strong" | "del", c: Inline[]} | {t: "link", href: string, c: Inline[]}} Inline
 */

const MAX_LABEL = 1000; // looked at for a "]": bounds what "[[[[[..." costs
const MAX_DEPTH = 40; // of emphasis: "*a *a *a" must not exhaust the stack
const MAX_OPEN_CODE = 200; // an unclosed "`" in an unfinished answer is code up to here
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
// One alternative for each thing that isn't plain text; sticky, so nothing is scanned twice.
const PLAIN = /[^\\`*_~[\]!<&$h\n]+/y;
const URL_AT = /https?:\/\/[^\s<>"'`\u0000-\u001f]+/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const ENTITY = /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,7}));/y;
const BREAK = /<br\s*\/?>/iy;
const MATH = /\\\(([^\n]+?)\\\)|\\\[([\s\S]+?)\\\]|\$\$([^$]+)\$\$/y;
const DESTINATION =
  /\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;

/** @param {RegExp} pattern @param {string} text @param {number} at */
function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** A link that may be followed, or null: only the web and mail. @param {string} href */
export function safeHref(href) {
  try {
    // Parsed as a browser will: " java\nscript:" and the like are what they turn into.
    const { protocol, href: parsed } = new URL(href);
    return ["http:", "https:", "mailto:"].includes(protocol) ? parsed : null;
  } catch {
    return null; // relative or broken: there is nothing of ours to point to
  }
}

/**
 * @param {string} text
 * @param {boolean} [open] the text is still being written: what is not closed yet counts as closed
 * @returns {Inline[]}
 */
export function parseInline(text, open = false) {
  if (open) {
    // "**bold*" on its way to "**bold**": what is left is closed below, so nothing flickers.
    text = text.replace(/[*_~`]+$/, "").replace(/!?\[([^[\]]*)(?:\](?:\([^()\s]*)?)?$/, "$1");
  }
  return emphasis(scan(text, open), open);
}

/** Everything but emphasis; delimiter runs stay for later. */
function scan(text, open) {
  const items = [];
  const missing = new Set(); // lengths of backtick runs that have no partner: not searched again
  let at = 0;
  const put = (value) => {
    const last = items.at(-1);
    if (last?.t === "text") last.v += value;
    else items.push({ t: "text", v: value });
  };
  while (at < text.length) {
    const plain = match(PLAIN, text, at);
    if (plain) {
      put(plain[0]);
      at += plain[0].length;
      continue;
    }
    const found = special(text, at, items, missing, open);
    if (found) {
      if (found.item) items.push(found.item);
      else put(found.text);
      at = found.end;
    } else {
      put(text[at]);
      at += 1;
    }
  }
  return items;
}

/** What starts at `at`, or null if it is only a character. */
function special(text, at, items, missing, open) {
  const char = text[at];
  let m;
  switch (char) {
    case "\n":
      return {
        item: { t: "br" },
        end: at + 1 + (/^ */.exec(text.slice(at + 1, at + 40))?.[0].length ?? 0),
      };
    case "\\":
      m = match(MATH, text, at);
      if (m) return { item: { t: "math", v: (m[1] ?? m[2]).trim() }, end: at + m[0].length };
      if (text[at + 1] === "\n") return { text: "", end: at + 1 };
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { text: text[at + 1], end: at + 2 } : null;
    case "$":
      m = match(MATH, text, at);
      return m && { item: { t: "math", v: m[3].trim() }, end: at + m[0].length };
    case "`":
      return codeSpan(text, at, missing, open);
    case "*":
    case "_":
    case "~":
      return delimiter(text, at, char);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1) : null;
    case "[":
      return link(text, at);
    case "<":
      m = match(AUTOLINK, text, at);
      if (m)
        return linkTo(m[1], [{ t: "text", v: m[1].replace(/^mailto:/, "") }], at + m[0].length);
      m = match(BREAK, text, at);
      return m && { item: { t: "br" }, end: at + m[0].length };
    case "&":
      m = match(ENTITY, text, at);
      if (!m) return null;
      return { text: m[1] ? ENTITIES[m[1]] : codePoint(Number(m[2])), end: at + m[0].length };
    case "h":
      return /[\p{L}\p{N}]/u.test(text[at - 1] ?? "") ? null : bareUrl(text, at);
    default:
      return null;
  }
}

function codePoint(number) {
  return number && number <= 0x10ffff && !(number >= 0xd800 && number <= 0xdfff)
    ? String.fromCodePoint(number)
    : "\ufffd";
}

function codeSpan(text, at, missing, open) {
  const run = /^`+/.exec(text.slice(at))[0];
  const start = at + run.length;
  if (!missing.has(run.length)) {
    for (let end = text.indexOf(run, start); end >= 0; end = text.indexOf(run, end)) {
      const length = /^`+/.exec(text.slice(end))[0].length;
      if (length === run.length) {
        let code = text.slice(start, end).replaceAll("\n", " ");
        if (/^ .* $/.test(code) && code.trim()) code = code.slice(1, -1);
        return { item: { t: "code", v: code }, end: end + length };
      }
      end += length;
    }
    missing.add(run.length);
  }
  if (open && text.length - start <= MAX_OPEN_CODE && start < text.length) {
    return { item: { t: "code", v: text.slice(start).replaceAll("\n", " ") }, end: text.length };
  }
  return { text: run, end: start };
}

function bareUrl(text, at) {
  const m = match(URL_AT, text, at);
  if (!m) return null;
  let address = m[0].replace(/[.,;:!?*_~]+$/, "");
  // "(see .../a_(b))": a bracket belongs to it only if it was opened in it.
  while (/[)\]]$/.test(address)) {
    const close = address.at(-1);
    const opened = address.split(close === ")" ? "(" : "[").length;
    if (opened >= address.split(close).length) break;
    address = address.slice(0, -1).replace(/[.,;:!?*_~]+$/, "");
  }
  return linkTo(address, [{ t: "text", v: address }], at + address.length);
}

function link(text, at) {
  let depth = 0;
  const limit = Math.min(text.length, at + MAX_LABEL);
  for (let end = at; end < limit; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") depth += 1;
    else if (text[end] === "]" && --depth === 0) {
      const m = match(DESTINATION, text, end + 1);
      if (!m) return null;
      const label = text.slice(at + 1, end);
      const href = (m[1] ?? m[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1");
      return linkTo(href, parseInline(label || href), end + 1 + m[0].length);
    }
  }
  return null;
}

/** A link, or its bare label where the address is none we follow. */
function linkTo(address, label, end) {
  const href = safeHref(address);
  // A link in a link's label is only its text.
  const flat = label.flatMap((node) => (node.t === "link" ? node.c : [node]));
  return { item: href ? { t: "link", href, c: flat } : { t: "span", c: flat }, end };
}

function delimiter(text, at, char) {
  let end = at;
  while (text[end] === char) end += 1;
  const count = end - at;
  if (char === "~" && count !== 2) return { text: text.slice(at, end), end };
  const before = text[at - 1] ?? " ";
  const after = text[end] ?? " ";
  const left = flanks(after, before);
  const right = flanks(before, after);
  const wordy = char === "_";
  return {
    item: {
      t: "run",
      char,
      count,
      original: count,
      opens: left && (!wordy || !right || PUNCTUATION.test(before)),
      closes: right && (!wordy || !left || PUNCTUATION.test(after)),
      // Inside a word ("5*3") an opener is too weak a sign to act on before its partner is there.
      inWord: /[\p{L}\p{N}]/u.test(before),
    },
    end,
  };
}

function flanks(inner, outer) {
  if (/\s/.test(inner)) return false;
  return !PUNCTUATION.test(inner) || /\s/.test(outer) || PUNCTUATION.test(outer);
}

/** Pairs the runs: CommonMark's "process emphasis". */
function emphasis(items, open) {
  const openers = []; // indices into `out`
  const out = [];
  for (const item of items) {
    if (item.t !== "run") {
      out.push(item);
      continue;
    }
    if (item.closes) close(out, openers, item);
    if (item.count) {
      if (item.opens) openers.push(out.length);
      out.push(item);
    }
  }
  while (open && openers.length) {
    const index = openers.pop();
    const run = out[index];
    if (!run.inWord && index + 1 < out.length) {
      wrap(out, index, run.char === "~" ? "del" : run.count >= 2 ? "strong" : "em", run.count);
    }
  }
  return out.map((item) =>
    item.t === "run" ? { t: "text", v: item.char.repeat(item.count) } : item,
  );
}

function close(out, openers, closer) {
  for (let i = openers.length - 1; i >= 0 && closer.count;) {
    const index = openers[i];
    const opener = out[index];
    const blocked =
      (opener.closes || closer.opens) &&
      (opener.original + closer.original) % 3 === 0 &&
      (opener.original % 3 !== 0 || closer.original % 3 !== 0);
    if (opener.char !== closer.char || (opener.char !== "~" && blocked)) {
      i -= 1;
      continue;
    }
    openers.length = i + 1; // openers in between lost their chance
    const used = opener.count >= 2 && closer.count >= 2 ? 2 : 1;
    wrap(out, index, opener.char === "~" ? "del" : used === 2 ? "strong" : "em", used);
    closer.count -= used;
    if (!opener.count) {
      openers.pop();
      i -= 1;
    }
  }
}

/** Everything after out[index] goes into a new node; the run gives `used` of its characters. */
function wrap(out, index, type, used) {
  const inner = out
    .splice(index + 1)
    .map((item) => (item.t === "run" ? { t: "text", v: item.char.repeat(item.count) } : item));
  out[index].count -= used;
  if (!out[index].count) out.pop();
  const depth = 1 + inner.reduce((most, item) => Math.max(most, item.depth ?? 0), 0);
  if (depth <= MAX_DEPTH) out.push({ t: type, c: inner, depth });
  else out.push({ t: "text", v: inner.map(plainText).join("") });
}

function plainText(node) {
  return node.v ?? (node.c ? node.c.map(plainText).join("") : "\n");
}
