// One answer on screen: thinking, text, errors, figures. It follows its turn while that grows.

import { copyText, el, icon, iconButton } from "./dom.js";
import { counted, describeStats, duration, speed } from "./format.js";
import { MarkdownStream } from "./markdown.js";
import { versionSwitch } from "./versions.js";

const ENDINGS = {
  length: "Stopped at the token limit.",
  stopped: "Stopped.",
  "": "This answer was interrupted.",
};
const PATIENCE_MS = 1200; // before a wait is explained

export class AnswerView {
  /**
   * @param {import("./conversation.js").Turn} turn
   * @param {object} actions
   * @param {(turn: any) => void} actions.regenerate
   * @param {(turn: any) => void} actions.retry
   * @param {(turn: any) => void} actions.show another version
   * @param {() => void} actions.askKey
   * @param {(text: string) => void} actions.announce for those who listen
   */
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.summary = el("span", { class: "summary" });
    this.thoughts = el("div", { class: "markdown" });
    this.thinking = el(
      "details",
      { class: "thinking", hidden: true },
      el("summary", {}, icon("right"), this.summary),
      this.thoughts,
    );
    // Whoever opens or closes it by hand keeps it so.
    this.thinking.firstChild.addEventListener("click", () => (this.touched = true));
    this.text = el("div", { class: "markdown" });
    this.progress = el("p", { class: "progress", hidden: true });
    this.problem = el("div", { class: "problem-card", hidden: true });
    this.versions = el("span", { class: "versions" });
    this.note = el("span", { class: "note" });
    this.stats = el("span", { class: "stats" });
    this.copyButton = iconButton("copy", "Copy the answer", () => this.copy());
    this.again = iconButton("retry", "Write it again", () => actions.regenerate(this.turn));
    this.tools = el("div", { class: "tools" }, this.versions, this.copyButton, this.again);
    this.foot = el("div", { class: "foot" }, this.tools, this.note, this.stats);
    this.element = el(
      "article",
      { class: "turn answer", "data-turn": turn.id },
      el("h2", { class: "off-screen", text: `Answer${turn.model ? ` of ${turn.model}` : ""}` }),
      this.thinking,
      this.text,
      this.progress,
      this.problem,
      this.foot,
    );
    this.thinkingStream = new MarkdownStream(this.thoughts);
    this.textStream = new MarkdownStream(
      this.text,
      (block) => this.live && actions.announce(spoken(block)),
    );
  }

  /**
   * @param {import("./conversation.js").Turn[]} all versions of this turn
   * @param {import("./generation.js").Generations["running"] extends Map<any, infer G> ? G : never} [generation]
   */
  update(all, generation) {
    const { turn } = this;
    const live = Boolean(generation);
    this.live ||= live; // the last block is announced when the answer is no longer live
    this.element.toggleAttribute("data-live", live);
    this.element.setAttribute("aria-busy", String(live));
    this.showThinking(live, generation);
    this.textStream.update(turn.text, !live);
    this.showProgress(generation);
    this.showProblem();
    this.foot.hidden = live && !turn.text;
    this.tools.hidden = live;
    this.copyButton.hidden = !turn.text;
    this.again.hidden = Boolean(turn.error); // its card has the same button
    this.versions.replaceChildren(...versionSwitch(all, turn, this.actions.show));
    this.note.textContent = live || turn.error ? "" : (ENDINGS[turn.finish ?? ""] ?? "");
    this.showStats(generation);
    if (!live) this.live = false;
  }

  showThinking(live, generation) {
    const { turn } = this;
    this.thinking.hidden = !turn.thinking;
    if (!turn.thinking) return;
    const thinks = live && generation.phase === "thinking";
    this.thinkingStream.update(turn.thinking, !thinks);
    this.thinking.toggleAttribute("data-live", thinks);
    const time = turn.thinkingMs >= 100 ? ` for ${duration(turn.thinkingMs)}` : "";
    this.summary.textContent = thinks ? `Thinking${time}` : `Thought${time}`;
    if (!this.touched) this.thinking.open = thinks;
  }

  showProgress(generation) {
    const shown = generation && ["sent", "waiting"].includes(generation.phase);
    this.progress.hidden = !shown;
    if (!shown) return;
    let text = "";
    if (generation.phase === "waiting") {
      const seconds = Math.max(0, Math.ceil((generation.retryAt - performance.now()) / 1000));
      text = `${generation.reason} Trying again in ${seconds} s.`;
    } else if (generation.elapsedMs > PATIENCE_MS) {
      text = `Waiting for the first word, ${duration(generation.elapsedMs)}`;
    }
    if (!this.progress.firstChild)
      this.progress.append(
        el("span", { class: "dots", "aria-hidden": "true" }, el("i"), el("i"), el("i")),
        el("span"),
      );
    this.progress.lastChild.textContent = text;
  }

  showProblem() {
    const { error } = this.turn;
    this.problem.hidden = !error;
    if (!error || this.shownError === error) return;
    this.shownError = error;
    const retry = el(
      "button",
      { type: "button", class: "button", on: { click: () => this.actions.retry(this.turn) } },
      icon("retry"),
      "Try again",
    );
    const buttons = el("div", { class: "buttons" }, retry);
    if (error.kind === "key") {
      buttons.prepend(
        el("button", {
          type: "button",
          class: "button primary",
          text: "Enter a key",
          on: { click: this.actions.askKey },
        }),
      );
    }
    this.problem.setAttribute("role", "alert");
    this.problem.replaceChildren(el("p", { text: error.message }), buttons);
  }

  showStats(generation) {
    if (generation) {
      const rough = generation.roughSpeed;
      this.stats.replaceChildren(rough ? `about ${speed(rough)}` : "");
      return;
    }
    const { short, long } = describeStats(this.turn.stats ?? {});
    const key = short.join() + long.join();
    if (this.shownStats === key && this.stats.childElementCount) return;
    this.shownStats = key;
    this.stats.replaceChildren();
    if (!short.length || !this.turn.stats?.tokens) return;
    const details = el(
      "details",
      {},
      el("summary", {}, ...short.map((text) => el("span", { text }))),
      el(
        "p",
        {},
        ...[this.turn.model, ...long].filter(Boolean).map((text) => el("span", { text })),
      ),
    );
    this.stats.append(details);
  }

  async copy() {
    const done = await copyText(this.turn.text);
    this.copyButton.replaceChildren(icon(done ? "check" : "close"));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.copyButton.replaceChildren(icon("copy")), 1600);
  }
}

/** What is read out of a block: of code only that it is there. @param {HTMLElement} block */
function spoken(block) {
  if (block.nodeName !== "FIGURE") return block.innerText;
  const lines = block.querySelector("code").textContent.trimEnd().split("\n").length;
  return `Code, ${block.querySelector(".lang").textContent}, ${counted(lines, "line")}`;
}
