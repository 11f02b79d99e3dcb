// The turns of the conversation on screen. Views are kept by turn, so a step forward costs one view.

import { AnswerView } from "./answer.js";
import { branch, versions } from "./conversation.js";
import { byId } from "./dom.js";
import { QuestionView } from "./question.js";
import { Follower } from "./scroll.js";

const FRAME_MS = 40; // a redraw of a growing answer; faster is not read, only paid for

export class Transcript {
  /** @param {object} actions of the views, see answer.js and question.js */
  constructor(actions) {
    this.list = byId("turns");
    this.welcome = byId("welcome");
    this.live = byId("announcer");
    this.actions = {
      ...actions,
      announce: (text) => this.announce(text),
      stay: () => this.follower.let(false),
    };
    this.follower = new Follower(byId("scroller"), byId("to-end"));
    /** @type {Map<string, AnswerView | QuestionView>} */
    this.views = new Map();
    this.conversation = null;
    this.pending = 0;
    // Whoever opens a block wants to read it, and not to be taken away from it.
    this.list.addEventListener("click", (event) => {
      if (event.target.closest("summary")) this.follower.let(false);
    });
  }

  /**
   * Shows a conversation as it is now.
   * @param {import("./conversation.js").Conversation} conversation
   * @param {any} generation its answer on the way, if there is one
   */
  show(conversation, generation) {
    if (conversation !== this.conversation) {
      this.conversation = conversation;
      this.views.clear();
      this.list.replaceChildren();
      this.follower.following = true;
    }
    const path = branch(conversation);
    const wanted = new Set(path.map(({ id }) => id));
    for (const [id, view] of this.views) {
      if (!wanted.has(id)) {
        view.element.remove();
        this.views.delete(id);
      }
    }
    path.forEach((turn, i) => {
      const view = this.views.get(turn.id) ?? this.add(turn);
      if (this.list.children[i] !== view.element)
        this.list.insertBefore(view.element, this.list.children[i] ?? null);
      this.draw(view, generation);
    });
    this.welcome.hidden = path.length > 0;
    this.list.hidden = !path.length;
    this.follower.settle();
  }

  add(turn) {
    const view =
      turn.role === "user"
        ? new QuestionView(turn, this.actions)
        : new AnswerView(turn, this.actions);
    this.views.set(turn.id, view);
    return view;
  }

  draw(view, generation) {
    const all = versions(this.conversation, view.turn);
    view.update(all, generation?.turn === view.turn ? generation : undefined);
  }

  /** A growing answer: drawn with the next frame that is due. @param {any} generation */
  grow(generation) {
    this.growing = generation;
    if (this.pending || document.hidden) return;
    const wait = Math.max(0, FRAME_MS - (performance.now() - (this.drawnAt ?? 0)));
    this.pending = window.setTimeout(() => requestAnimationFrame(() => this.drawGrowing()), wait);
  }

  drawGrowing() {
    this.pending = 0;
    const generation = this.growing;
    this.growing = null;
    const view = generation && this.views.get(generation.turn.id);
    // It may have ended or left the screen since.
    if (!view || generation.conversation !== this.conversation || generation.ended) return;
    this.draw(view, generation);
    this.follower.settle();
    this.drawnAt = performance.now();
  }

  /** Reads a finished block out, politely. @param {string} text */
  announce(text) {
    if (!text.trim()) return;
    const line = document.createElement("p");
    line.textContent = text;
    this.live.append(line);
    while (this.live.childElementCount > 6) this.live.firstChild.remove();
  }

  /** Opens the last question for editing. @returns {boolean} whether there is one */
  editLast() {
    const view = [...this.views.values()].findLast((each) => each instanceof QuestionView);
    view?.edit();
    return Boolean(view);
  }
}
