// What can be done with conversations: the current one, the list, what is kept and what is written.
// It knows the store and the server, and tells whoever shows it when something has changed.

import {
  addTurn,
  messagesFor,
  newConversation,
  removeBranch,
  removeTurn,
  showBranch,
} from "./conversation.js";
import { Generations } from "./generation.js";
import { recallJson, remember } from "./prefs.js";
import { cleanSettings, requestFields } from "./settings-fields.js";
import { isFull } from "./store.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Turn} Turn */

export class Chat {
  /**
   * @param {Awaited<ReturnType<typeof import("./store.js").openStore>>} store
   * @param {object} hooks
   * @param {() => void} hooks.changed show everything anew
   * @param {(generation: any) => void} hooks.grew one answer got longer
   * @param {(generation: any) => void} hooks.ended
   * @param {(text: string) => void} hooks.warn
   * @param {() => string} hooks.model the model to ask, "" while none is known
   */
  constructor(store, hooks) {
    this.store = store;
    this.hooks = hooks;
    /** @type {import("./store.js").Head[]} */
    this.heads = [];
    /** @type {Conversation} */
    this.current = this.blank();
    this.generations = new Generations({
      onChange: (generation) => hooks.grew(generation),
      onEnd: (generation) => {
        hooks.changed();
        hooks.ended(generation);
      },
      save: (conversation) => this.save(conversation),
    });
    // Other tabs: what they save shows here too.
    this.tabs = new BroadcastChannel("llamba");
    this.tabs.addEventListener("message", ({ data }) => this.onOtherTab(data));
    addEventListener("pagehide", () => {
      for (const { conversation } of this.generations.running.values()) this.save(conversation);
    });
  }

  async start() {
    this.heads = await this.store.heads();
  }

  blank() {
    return newConversation(cleanSettings(recallJson("settings")), "");
  }

  get isNew() {
    return this.current.turns.size === 0;
  }

  /** The answer that the current conversation is getting. */
  get running() {
    return this.generations.of(this.current.id);
  }

  /** @param {string} id @returns {Promise<boolean>} whether there is one */
  async open(id) {
    if (id === this.current.id) return true;
    const conversation = this.generations.of(id)?.conversation ?? (await this.store.load(id));
    if (!conversation) return false;
    this.current = conversation;
    this.hooks.changed();
    return true;
  }

  create() {
    if (!this.isNew) this.current = this.blank();
    this.hooks.changed();
  }

  /** @param {string} text @returns {boolean} whether it could be sent */
  send(text) {
    if (this.running || !this.hooks.model()) return false;
    const parent = this.current.leaf;
    const question = addTurn(this.current, { parent, role: "user", text });
    return this.answer(question);
  }

  /** @param {Turn} question @returns {boolean} whether the model was asked */
  answer(question, conversation = this.current) {
    const model = this.hooks.model();
    if (!model) {
      this.hooks.warn("There is no model to ask yet.");
      return false;
    }
    conversation.model = model;
    const request = {
      model,
      messages: messagesFor(conversation, question),
      ...requestFields(conversation.settings),
    };
    const turn = addTurn(conversation, { parent: question.id, role: "assistant", text: "", model });
    this.generations.start(conversation, turn, request);
    this.hooks.changed();
    return true;
  }

  /** Another version of an answer. @param {Turn} turn */
  async regenerate(turn) {
    const conversation = this.current; // another may be on screen when the old answer has stopped
    await this.generations.stop(conversation.id);
    const question = conversation.turns.get(turn.parent ?? "");
    if (question) this.answer(question, conversation);
  }

  /** The same answer once more, in place of one that failed. @param {Turn} turn */
  async retry(turn) {
    if (this.running || !this.hooks.model()) return this.regenerate(turn);
    const question = this.current.turns.get(turn.parent ?? "");
    if (!question) return;
    // What it did say before it failed stays as a version.
    if (!turn.text) removeBranch(this.current, turn);
    this.answer(question);
  }

  /** Asks anew from an earlier question on. @param {Turn} turn @param {string} text */
  async edit(turn, text) {
    const conversation = this.current;
    await this.generations.stop(conversation.id);
    this.answer(addTurn(conversation, { parent: turn.parent, role: "user", text }), conversation);
  }

  /** @param {Turn} turn a question @returns {Promise<() => void>} undoes it */
  async removeTurn(turn) {
    const conversation = this.current;
    await this.generations.stop(conversation.id);
    const before = { turns: structuredClone(conversation.turns), leaf: conversation.leaf };
    removeTurn(conversation, turn);
    this.save(conversation);
    this.hooks.changed();
    return () => {
      // A copy, as a new conversation object makes every view new too.
      const restored = { ...conversation, ...before };
      if (this.current.id === conversation.id) this.current = restored;
      this.save(restored);
      this.hooks.changed();
    };
  }

  /** @param {Turn} turn a version */
  showVersion(turn) {
    showBranch(this.current, turn);
    this.save(this.current);
    this.hooks.changed();
  }

  /** Changes a conversation that may not be the current one. @param {string} id */
  async rename(id, title) {
    const conversation =
      this.generations.of(id)?.conversation ??
      (id === this.current.id ? this.current : await this.store.load(id));
    if (!conversation) return;
    Object.assign(conversation, { title, named: true });
    await this.save(conversation);
    if (id === this.current.id) Object.assign(this.current, { title, named: true }); // since opened
    this.hooks.changed();
  }

  /** @param {string} id @returns {Promise<() => Promise<void>>} undoes it */
  async remove(id) {
    await this.generations.drop(id);
    const conversation = id === this.current.id ? this.current : await this.store.load(id);
    await this.store.remove(id);
    this.heads = this.heads.filter((head) => head.id !== id);
    this.tabs.postMessage({ removed: id });
    if (id === this.current.id) this.current = this.blank();
    this.hooks.changed();
    return async () => {
      if (!conversation) return;
      await this.save(conversation);
      await this.open(id);
    };
  }

  /** @param {Partial<Pick<Conversation, "settings" | "model">>} fields */
  configure(fields) {
    Object.assign(this.current, fields);
    if (!this.isNew) this.save(this.current);
    this.hooks.changed();
  }

  /** @param {import("./settings-fields.js").Settings} settings the start of new conversations */
  setDefaults(settings) {
    remember("settings", JSON.stringify(settings));
  }

  /** @param {Conversation[]} conversations from a file */
  async add(conversations) {
    for (const conversation of conversations) await this.save(conversation);
    this.hooks.changed();
  }

  /** @param {Conversation} conversation */
  async save(conversation) {
    const { id, title, created, updated } = conversation;
    this.heads = [{ id, title, created, updated }, ...this.heads.filter((head) => head.id !== id)];
    this.heads.sort((a, b) => b.updated - a.updated);
    try {
      await this.store.save(conversation);
      this.tabs.postMessage({ saved: id });
    } catch (error) {
      this.hooks.warn(
        isFull(error)
          ? "The browser has no room left for conversations. Export them, then delete some."
          : "The browser could not keep this conversation; it lasts until the page is closed.",
      );
    }
  }

  async onOtherTab({ saved, removed }) {
    this.heads = await this.store.heads();
    const id = this.current.id;
    if (saved === id && !this.running) this.current = (await this.store.load(id)) ?? this.current;
    if (removed === id && !this.running) this.current = this.blank();
    this.hooks.changed();
  }
}
