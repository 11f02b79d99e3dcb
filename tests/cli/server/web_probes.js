// What tests of the chat page run inside of it, by name. An expression, not a module.
({
  /** The HTML of a Markdown text; with `step` it arrives in pieces of that length. */
  render: async ([text, step]) => {
    const { MarkdownStream } = await import("/web/markdown.js");
    const root = document.createElement("div");
    const stream = new MarkdownStream(root);
    for (let at = step; step && at < text.length; at += step) stream.update(text.slice(0, at), false);
    stream.update(text, true);
    for (const node of root.querySelectorAll("figure")) node.replaceWith(node.querySelector("pre"));
    for (const node of root.querySelectorAll("span[class^=h-]")) node.replaceWith(...node.childNodes);
    for (const node of root.querySelectorAll("*")) {
      for (const name of node.getAttributeNames()) {
        if (!["href", "start", "checked"].includes(name)) node.removeAttribute(name);
      }
    }
    root.normalize();
    return root.innerHTML;
  },

  /** The visible text after each character of a text that is being written. */
  everyPrefix: async (text) => {
    const { MarkdownStream } = await import("/web/markdown.js");
    const root = document.createElement("div");
    const stream = new MarkdownStream(root);
    return Array.from({ length: text.length }, (_, i) => {
      stream.update(text.slice(0, i + 1), false);
      return root.textContent;
    });
  },

  /** Whether finished blocks and lines of code stay the same nodes. */
  keepsNodes: async () => {
    const { MarkdownStream } = await import("/web/markdown.js");
    const root = document.createElement("div");
    const stream = new MarkdownStream(root);
    stream.update("first\n\n```js\nconst a = 1;\nlet", false);
    const [paragraph, figure] = root.children;
    const line = figure.querySelector("code").firstChild;
    stream.update("first\n\n```js\nconst a = 1;\nlet b = 2;\n```\nend", true);
    return (
      paragraph === root.children[0] &&
      figure === root.children[1] &&
      line === figure.querySelector("code").firstChild &&
      root.children.length === 3
    );
  },

  /** Milliseconds for long and for hostile texts. */
  times: async () => {
    const { MarkdownStream } = await import("/web/markdown.js");
    const texts = {
      brackets: "[".repeat(20000),
      stars: "*a ".repeat(8000),
      quotes: ">".repeat(5000),
      ticks: "```" + "a` ``".repeat(4000),
      pipes: "|".repeat(20000) + "\n|-|",
      links: "[a](".repeat(5000),
      spaces: "#" + " ".repeat(20000) + "x",
      items: "- a\n".repeat(3000),
      deep: Array.from({ length: 300 }, (_, i) => " ".repeat(2 * i) + "- a").join("\n"),
      bold: "**a** _b_ ".repeat(4000),
      math: "\\(".repeat(8000),
      mixed: "_a*b".repeat(5000),
      address: "https://x.org/" + "(".repeat(3000) + ")".repeat(3000),
      fence: "```js\n" + "const a = '`'; /* x */\n".repeat(3000),
    };
    const times = {};
    for (const [name, text] of Object.entries(texts)) {
      const from = performance.now();
      const stream = new MarkdownStream(document.createElement("div"));
      stream.update(text.slice(0, text.length / 2), false);
      stream.update(text, true);
      times[name] = performance.now() - from;
    }
    const stream = new MarkdownStream(document.createElement("div"));
    const from = performance.now();
    let text = "";
    for (let i = 0; i < 3000; i += 1) {
      text += i % 500 < 250 ? "Some words, **bold**.\n\n" : "```c\nint x = 1;\n```\n";
      stream.update(text, false);
    }
    times.long = performance.now() - from;
    return times;
  },

  /** The kinds of colour that were seen; throws where colouring changes a text. */
  colours: async () => {
    const { Highlighter } = await import("/web/highlight.js");
    const lines = [
      "/* a", "b */ int x = 0x1F; // c", "'''doc", "'''", "s = \"a\\\"b\" 'x", "`a ${b}", "`",
      "<!-- c", "--> <a href='x'>&amp;</a>", "- key: value # no", "[t]", "k = 1", "@@ -1 +1", "+a",
      "-b", "$X ${Y} --flag", "#!/bin/sh", "r'x' @dec Class fn(1)", "\t  ", "", "日本 = é",
      '"' + "\\".repeat(999),
    ];
    const languages = "py js ts c cpp java go rs sh sql json yaml toml html css diff ruby lua none";
    const kinds = new Set();
    for (const lang of languages.split(" ")) {
      const highlighter = new Highlighter(lang);
      for (const line of lines) {
        const peeked = JSON.stringify(highlighter.peek(line));
        const pairs = highlighter.line(line);
        const text = pairs.map(([, part]) => part).join("");
        if (JSON.stringify(pairs) !== peeked || text !== line) throw new Error(`${lang}: ${line}`);
        for (const [kind] of pairs) kinds.add(kind);
      }
    }
    return [...kinds].sort();
  },

  /** [colour, colour behind it, text] of every visible text. */
  colourPairs: () => {
    const rows = [];
    const skipped = ".off-screen, .skip, :disabled, dialog:not([open])";
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.data.trim();
      const node = walker.currentNode.parentElement;
      if (!text || !node.checkVisibility() || node.closest(skipped)) continue;
      let behind = node;
      const seen = (one) => getComputedStyle(one).backgroundColor !== "rgba(0, 0, 0, 0)";
      while (behind.parentElement && !seen(behind)) behind = behind.parentElement;
      const back = getComputedStyle(behind).backgroundColor;
      rows.push([getComputedStyle(node).color, back, text.slice(0, 40)]);
    }
    return rows;
  },

  /** Controls that say nothing to those who can't see them. */
  nameless: () =>
    [...document.querySelectorAll("button, input, select, textarea, summary")]
      .filter((node) => !node.closest("[hidden]"))
      .filter((node) => {
        const label = node.getAttribute("aria-label") || node.textContent.trim() || node.title;
        return !label && !node.labels?.length;
      })
      .map((node) => node.outerHTML),

  /** Whether nothing sticks out to the right. */
  fits: () => {
    const { documentElement, body } = document;
    const all = [documentElement, body, document.querySelector("#scroller")];
    return scrollX === 0 && all.every((one) => one.scrollWidth <= innerWidth);
  },

  /** How far the end of the conversation is below what is shown, in px. */
  distance: () => {
    const { scrollHeight, scrollTop, clientHeight } = document.querySelector("#scroller");
    return scrollHeight - scrollTop - clientHeight;
  },

  /** Notes in `restedAt` the distance at which a movement of the conversation ends. */
  noteRest: () => {
    window.restedAt = 0;
    document.querySelector("#scroller").addEventListener("scrollend", ({ target }) => {
      window.restedAt = target.scrollHeight - target.scrollTop - target.clientHeight;
    });
  },
})
