// Block Markdown: lines -> a tree of plain objects.
//
// It leans to how models write: bullets two spaces below a "1." are nested, "---" under a line is
// a rule and not a heading, four spaces are not code. A block is finished as soon as another one
// follows it at the same level; markdown.js builds on that.

/**
 * @typedef {{line: number} & (
 *   {t: "para", text: string} | {t: "heading", level: number, text: string} | {t: "rule"} |
 *   {t: "code", lang: string, text: string, closed: boolean} | {t: "quote", c: Block[]} |
 *   {t: "math", text: string} |
 *   {t: "list", ordered: boolean, start: number, items: {task: boolean | null, c: Block[]}[]} |
 *   {t: "table", align: string[], head: string[], rows: string[][]})} Block
 */

const MAX_DEPTH = 24; // ">>>>>..." deeper than this is text
const FENCE = /^(\s*)(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])(?:(\s+)(.*)|)$/;
const TASK = /^\[([ xX])\][ \t]+/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const MATH_OPEN = /^\s*(?:\\\[|\$\$)/;
// A line that may still become a fence, a rule, a heading or an item: not shown before it did.
const UNDECIDED = /^\s*(?:`{1,2}|~{1,2}|[-*_+]{1,2}|#{1,6}|\d{1,3}[.)]?|>|\\\[?)$/;

const blank = (line) => !line.trim();
const indentOf = (line) => line.length - line.trimStart().length;

/**
 * @param {string[]} lines tabs are taken as they are
 * @param {boolean} [open] more text may follow the last line
 * @param {number} [depth]
 * @returns {Block[]}
 */
export function parseBlocks(lines, open = false, depth = 0) {
  if (open && depth === 0 && UNDECIDED.test(lines.at(-1) ?? "") && !inFence(lines)) {
    lines = lines.slice(0, -1);
  }
  /** @type {Block[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    /** @type {{block: any, end: number}} */
    const { block, end } = readBlock(lines, at, open, depth);
    blocks.push({ ...block, line: at });
    at = end;
  }
  return blocks;
}

/** Whether the last line is inside a fence that is still open. */
function inFence(lines) {
  let fence = "";
  for (const line of lines) {
    const m = FENCE.exec(line);
    if (fence) {
      if (closes(line, fence)) fence = "";
    } else if (m) fence = m[2];
  }
  return fence !== "";
}

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

function readBlock(lines, at, open, depth) {
  const line = lines[at];
  let m = FENCE.exec(line);
  if (m) return readCode(lines, at, m);
  m = HEADING.exec(line);
  if (m) return { block: { t: "heading", level: m[1].length, text: m[2] ?? "" }, end: at + 1 };
  if (RULE.test(line)) return { block: { t: "rule" }, end: at + 1 };
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return readQuote(lines, at, open, depth);
    // "42." alone is an answer and no list.
    if (ITEM.exec(line)?.[4]) return readList(lines, at, open, depth);
  }
  if (isTable(lines, at, open)) return readTable(lines, at);
  if (MATH_OPEN.test(line)) {
    const math = readMath(lines, at);
    if (math) return math;
  }
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, open)) end += 1;
  const text = lines.slice(at, end).map((each, i) => (i ? each : each.trimStart()));
  return { block: { t: "para", text: text.join("\n").trimEnd() }, end };
}

/** Whether the line ends a paragraph before it. */
function interrupts(lines, at, open) {
  const line = lines[at];
  if (blank(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (QUOTE.test(line) || isTable(lines, at, open)) return true;
  const item = ITEM.exec(line);
  // "in\n1984. That" is prose; an empty marker is more likely a stray sign.
  return Boolean(item?.[4]) && !/^\d{3,}/.test(item[2]);
}

/** @param {string[]} lines @param {number} at @param {string[]} fence FENCE's match */
function readCode(lines, at, [, indent, fence, info]) {
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], fence)) end += 1;
  const body = lines.slice(at + 1, end).map((line) => {
    const strip = Math.min(indent.length, indentOf(line));
    return line.slice(strip);
  });
  const lang = info
    .trim()
    .split(/[\s{,:]/)[0]
    .toLowerCase();
  const block = { t: "code", lang, text: body.join("\n"), closed: end < lines.length };
  return { block, end: Math.min(end + 1, lines.length) };
}

function readMath(lines, at) {
  const first = lines[at].trim();
  const closing = first.startsWith("$$") ? "$$" : "\\]";
  for (let end = at; end < lines.length && !(end > at && blank(lines[end])); end += 1) {
    const text = end === at ? first.slice(2) : lines[end];
    if (text.trimEnd().endsWith(closing)) {
      const all = lines
        .slice(at, end + 1)
        .join("\n")
        .trim();
      return { block: { t: "math", text: all.slice(2, -2).trim() }, end: end + 1 };
    }
  }
  return null;
}

function readQuote(lines, at, open, depth) {
  let end = at;
  const inner = [];
  // A line without ">" goes on only with a paragraph.
  while (
    end < lines.length &&
    (QUOTE.test(lines[end]) || (!interrupts(lines, end, false) && !blank(inner.at(-1) ?? "")))
  ) {
    inner.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  const last = open && end === lines.length;
  return { block: { t: "quote", c: parseBlocks(inner, last, depth + 1) }, end };
}

function readList(lines, at, open, depth) {
  const first = ITEM.exec(lines[at]);
  const base = first[1].length;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const m = ITEM.exec(lines[end]);
    if (!m || RULE.test(lines[end]) || /\d/.test(m[2]) !== ordered) break;
    if (m[1].length >= base + 2 || m[1].length + 2 <= base) break;
    const item = readItem(lines, end, m);
    const task = TASK.exec(item.lines[0]);
    if (task) item.lines[0] = item.lines[0].slice(task[0].length);
    const last = open && item.end === lines.length;
    items.push({
      task: task ? task[1] !== " " : null,
      c: parseBlocks(item.lines, last, depth + 1),
    });
    end = item.end;
  }
  const start = ordered ? Number.parseInt(first[2], 10) : 1;
  return { block: { t: "list", ordered, start, items }, end };
}

/**
 * The lines of one item without its indentation, and where the next thing starts.
 * @param {string[]} lines @param {number} at @param {string[]} item ITEM's match
 */
function readItem(lines, at, [, lead, marker, gap = " ", rest = ""]) {
  const own = lead.length + 2; // indented this far, a line belongs to the item
  const content = lead.length + marker.length + (gap.length > 4 ? 1 : gap.length);
  const inner = [rest];
  let fence = FENCE.exec(rest)?.[2] ?? "";
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    const indent = indentOf(line);
    if (fence) {
      inner.push(line.slice(Math.min(content, indent)));
      if (closes(line, fence)) fence = "";
    } else if (blank(line)) {
      inner.push("");
    } else if (indent >= own) {
      inner.push(line.slice(Math.min(content, indent)));
      fence = FENCE.exec(line)?.[2] ?? "";
    } else if (blank(inner.at(-1)) || ITEM.test(line) || interrupts(lines, end, false)) {
      break;
    } else {
      inner.push(line); // a wrapped line of the paragraph before it
    }
    end += 1;
  }
  return { lines: inner, end };
}

function isTable(lines, at, open) {
  if (!lines[at].includes("|")) return false;
  const next = lines[at + 1];
  if (next !== undefined && next.includes("-") && DELIMITERS.test(next)) {
    return (
      splitRow(lines[at]).length === splitRow(next).length || (open && at + 2 === lines.length)
    );
  }
  // While it is being written, a row that starts with "|" is taken for the head of a table.
  const partial = next === undefined || (at + 2 === lines.length && /^[\s|:-]*$/.test(next));
  return open && partial && /^\s*\|.*\S/.test(lines[at]);
}

function readTable(lines, at) {
  const head = splitRow(lines[at]);
  const align = splitRow(lines[at + 1] ?? "").map((cell) => {
    if (!cell.endsWith(":")) return "";
    return cell.startsWith(":") ? "center" : "right";
  });
  const rows = [];
  let end = Math.min(at + 2, lines.length);
  while (end < lines.length && lines[end].includes("|") && !blank(lines[end])) {
    const row = splitRow(lines[end]).slice(0, head.length);
    while (row.length < head.length) row.push("");
    rows.push(row);
    end += 1;
  }
  return { block: { t: "table", align, head, rows }, end };
}

/** The cells of a row; a "|" in code or after a backslash is text. */
function splitRow(line) {
  const cells = [];
  let cell = "";
  let code = false;
  for (const [, token] of line.trim().matchAll(/(\\\||`+|[^\\|`]+|.)/gs)) {
    if (token === "|" && !code) {
      cells.push(cell.trim());
      cell = "";
    } else {
      if (token[0] === "`") code = !code;
      cell += token === "\\|" ? "|" : token;
    }
  }
  cells.push(cell.trim());
  if (/^\s*\|/.test(line)) cells.shift();
  if (cells.length > 1 && cells.at(-1) === "") cells.pop();
  return cells;
}
