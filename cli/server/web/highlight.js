// Light syntax colouring: a language is a list of rules, read line by line with what is left open.
//
// Kinds: c comment, s string, n number, k keyword, t type or tag, f function, p property, v variable,
// a added, d deleted. Colouring may be wrong in odd corners; the text never is.

const NUMBER = [
  "n",
  String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z]{0,3}\b`,
];
const CALL = ["f", String.raw`[A-Za-z_]\w*(?=\()`];
const TYPE = ["t", String.raw`\b[A-Z]\w*\b`];
const DOUBLE = ["s", String.raw`"(?:[^"\\]|\\.)*(?:"|$)`];
const SINGLE = ["s", String.raw`'(?:[^'\\]|\\.)*(?:'|$)`];
const HASH = ["c", String.raw`#.*`];
const SLASHES = ["c", String.raw`//.*`];
const DASHES = ["c", String.raw`--.*`];
const BLOCK_COMMENT = ["c", String.raw`/\*`, String.raw`\*/`];

const words = (text, flags = "") => [
  "k",
  String.raw`\b(?:${text.trim().replace(/\s+/g, "|")})\b`,
  null,
  flags,
];

const C_WORDS = `if else for while do switch case default break continue return goto struct union enum
  typedef static const volatile extern sizeof void int char float double long short unsigned signed bool
  true false nullptr NULL auto class public private protected virtual override template typename namespace
  using new delete this try catch throw operator constexpr inline include define ifdef ifndef endif`;
const JAVA_WORDS = `abstract boolean break byte case catch char class const continue default do double else
  enum extends final finally float for if implements import instanceof int interface long new null package
  private protected public record return short static super switch synchronized this throw throws true false
  try void volatile while var using namespace string get set async await foreach in is as out ref readonly
  override virtual sealed bool decimal object fun val when data companion let guard func struct protocol self
  nil extension init where some`;
const GO_WORDS = `break case chan const continue default defer else fallthrough for func go goto if import
  interface map package range return select struct switch type var nil true false iota string int int64
  float64 bool byte rune error any`;
const RUST_WORDS = `as async await break const continue crate dyn else enum extern false fn for if impl in let
  loop match mod move mut pub ref return self static struct super trait true type unsafe use where while
  u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool char str`;
const JS_WORDS = `as async await break case catch class const continue debugger default delete do else enum
  export extends false finally for from function get if implements import in instanceof interface let new null
  of private protected public readonly return set static super switch this throw true try type typeof
  undefined var void while yield any number string boolean unknown never keyof declare namespace`;
const PY_WORDS = `and as assert async await break case class continue def del elif else except finally for from
  global if import in is lambda match nonlocal not or pass raise return try while with yield True False None
  self cls`;
const SH_WORDS = `if then else elif fi for while until do done case esac in function return local export
  readonly declare set unset shift exit break continue source alias sudo echo cd test`;
const SQL_WORDS = `select from where and or not insert into values update set delete create table index view
  drop alter add column primary key foreign references join left right inner outer full cross on as group by
  order having limit offset union all distinct case when then else end null is in like between exists with
  recursive default unique check constraint begin commit rollback returning asc desc over partition integer
  int text varchar boolean date timestamp numeric serial`;
const RUBY_WORDS = `def end if elsif else unless while until do class module return yield self nil true false
  and or not begin rescue ensure require include attr_accessor puts case when then lambda proc new function
  local repeat foreach echo public private protected static use namespace array fn print my sub`;

const clike = (keywords) => [
  BLOCK_COMMENT,
  SLASHES,
  DOUBLE,
  SINGLE,
  NUMBER,
  words(keywords),
  CALL,
  TYPE,
];

// A rule is [kind, pattern] or, for what may span lines, [kind, opening, closing]. First match wins.
const LANGUAGES = {
  python: [
    HASH,
    ["s", String.raw`[rRbBfFuU]{0,2}"""`, `"""`],
    ["s", String.raw`[rRbBfFuU]{0,2}'''`, `'''`],
    ["s", String.raw`[rRbBfFuU]{1,2}(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')`],
    DOUBLE,
    SINGLE,
    NUMBER,
    ["f", String.raw`@[\w.]+`],
    words(PY_WORDS),
    CALL,
    TYPE,
  ],
  javascript: [
    BLOCK_COMMENT,
    SLASHES,
    ["s", "`", "(?<!\\\\)`"],
    DOUBLE,
    SINGLE,
    NUMBER,
    words(JS_WORDS),
    CALL,
    TYPE,
  ],
  c: [["k", String.raw`^\s*#\s*\w+`], ...clike(C_WORDS)],
  java: [["f", String.raw`@\w+`], ...clike(JAVA_WORDS)],
  go: [["s", "`", "`"], ...clike(GO_WORDS)],
  rust: [
    ["f", String.raw`\b\w+!|#!?\[[^\]]*\]`],
    ["v", String.raw`'[a-z_]\w*\b(?!')`],
    ...clike(RUST_WORDS),
  ],
  shell: [
    ["c", String.raw`(?:^|(?<=\s))#.*`],
    DOUBLE,
    SINGLE,
    ["v", String.raw`\$(?:\w+|\{[^}]*\}|[@#?*!$])`],
    ["p", String.raw`(?<=\s)--?[A-Za-z][\w-]*`],
    words(SH_WORDS),
    NUMBER,
  ],
  sql: [DASHES, BLOCK_COMMENT, SINGLE, DOUBLE, NUMBER, words(SQL_WORDS, "i"), CALL],
  json: [
    ["p", String.raw`"(?:[^"\\]|\\.)*"(?=\s*:)`],
    DOUBLE,
    SLASHES,
    NUMBER,
    words("true false null"),
  ],
  yaml: [
    ["c", String.raw`(?:^|(?<=\s))#.*`],
    ["p", String.raw`(?:(?<=^\s*(?:-\s+)*))[\w./-]+(?=\s*:(?:\s|$))`],
    DOUBLE,
    SINGLE,
    ["v", String.raw`[&*]\w+`],
    words("true false null yes no"),
    NUMBER,
  ],
  ini: [
    ["c", String.raw`^\s*[#;].*`],
    ["t", String.raw`^\s*\[.*?\]+`],
    ["p", String.raw`^\s*[\w."-]+(?=\s*=)`],
    DOUBLE,
    SINGLE,
    words("true false"),
    NUMBER,
  ],
  html: [
    ["c", "<!--", "-->"],
    ["t", String.raw`</?[\w:-]+|/?>|<!\w+`],
    ["p", String.raw`\b[\w:@-]+(?==["'])`],
    ["s", String.raw`(?<==)(?:"[^"]*"|'[^']*')`],
    ["v", String.raw`&#?\w+;`],
  ],
  css: [
    BLOCK_COMMENT,
    DOUBLE,
    SINGLE,
    ["k", String.raw`@[\w-]+|!important`],
    ["p", String.raw`--[\w-]+|[\w-]+(?=\s*:\s)`],
    ["n", String.raw`#[\da-fA-F]{3,8}\b|-?\b\d+(?:\.\d+)?(?:[a-z]+|%)?`],
    ["t", String.raw`[.#][A-Za-z][\w-]*`],
    ["f", String.raw`[\w-]+(?=\()`],
  ],
  diff: [
    ["f", String.raw`^(?:diff|index|@@|---|\+\+\+).*`],
    ["a", String.raw`^\+.*`],
    ["d", String.raw`^-.*`],
  ],
  ruby: [
    HASH,
    SLASHES,
    DOUBLE,
    SINGLE,
    NUMBER,
    ["v", String.raw`[$@]\w+`],
    ["p", String.raw`:\w+\b`],
    words(RUBY_WORDS),
    CALL,
    TYPE,
  ],
  lua: [
    ["c", String.raw`--\[\[`, String.raw`\]\]`],
    DASHES,
    DOUBLE,
    SINGLE,
    NUMBER,
    words(`${RUBY_WORDS} for in`),
    CALL,
  ],
};

const ALIASES = {
  python: "py python3 py3 pycon ipython",
  javascript: "js jsx ts tsx typescript mjs node",
  c: "cpp c++ cc h hpp cuda objc",
  java: "kotlin kt swift csharp cs c# scala dart",
  go: "golang",
  rust: "rs",
  shell: "sh bash zsh console terminal fish dockerfile makefile",
  sql: "sqlite mysql postgresql postgres",
  json: "jsonc json5 jsonl",
  yaml: "yml",
  ini: "toml cfg conf properties",
  html: "xml svg vue xhtml",
  css: "scss less",
  diff: "patch",
  ruby: "rb php perl pl",
  lua: "haskell hs",
};
const NAMES = new Map(
  Object.entries(ALIASES).flatMap(([name, others]) =>
    [name, ...others.split(" ")].map((alias) => [alias, name]),
  ),
);

/** What stands above a block. @param {string} lang */
export function languageLabel(lang) {
  return lang.slice(0, 24) || "text";
}

const compiled = new Map();

/** One sticky pattern a language: group i + 1 is rule i. */
function compile(name) {
  if (!compiled.has(name)) {
    const rules = LANGUAGES[name];
    const flags = rules.some((rule) => rule[3]) ? "gi" : "g";
    compiled.set(name, {
      rules,
      pattern: new RegExp(rules.map((rule) => `(${rule[1]})`).join("|"), flags),
    });
  }
  return compiled.get(name);
}

export class Highlighter {
  /** @param {string} lang */
  constructor(lang) {
    const name = NAMES.get(lang);
    this.language = name ? compile(name) : null;
    /** @type {number | null} */
    this.open = null; // the rule whose end was not on an earlier line
  }

  /** The next line as [kind, text] pairs ("" is plain). @param {string} text @returns {[string, string][]} */
  line(text) {
    if (!this.language || text.length > 2000) return text ? [["", text]] : [];
    const { rules, pattern } = this.language;
    /** @type {[string, string][]} */
    const out = [];
    let at = 0;
    const put = (kind, end) => {
      if (end > at) out.push([kind, text.slice(at, end)]);
      at = Math.max(at, end);
    };
    const until = (rule, from) => {
      const closing = new RegExp(rules[rule][2], "g");
      closing.lastIndex = from;
      const found = closing.exec(text);
      this.open = found ? null : rule;
      put(rules[rule][0], found ? closing.lastIndex : text.length);
    };
    if (this.open !== null) until(this.open, 0);
    while (at < text.length) {
      pattern.lastIndex = at;
      const found = pattern.exec(text);
      if (!found || !found[0]) break;
      put("", found.index);
      const rule = found.slice(1).findIndex((group) => group !== undefined);
      if (rules[rule][2]) until(rule, pattern.lastIndex);
      else put(rules[rule][0], pattern.lastIndex);
    }
    put("", text.length);
    return out;
  }

  /** A line that may still grow: as line(), but nothing is kept. @param {string} text */
  peek(text) {
    const { open } = this;
    const out = this.line(text);
    this.open = open;
    return out;
  }
}
