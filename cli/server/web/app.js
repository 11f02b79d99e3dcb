// The page put together: which part tells which what. Everything else is in the modules it names.

import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { chooseFile, download, fromJson, toJson } from "./exchange.js";
import { ModelChoice } from "./models.js";
import { Banner, KeyDialog, Toast } from "./notices.js";
import { Sidebar } from "./sidebar.js";
import { SettingsDialog } from "./settings.js";
import { countChanged } from "./settings-fields.js";
import { openStore } from "./store.js";
import { bindTheme } from "./theme.js";
import { Transcript } from "./transcript.js";

const TICK_MS = 500; // clocks and countdowns of an answer that says nothing

class App {
  /** @param {Awaited<ReturnType<typeof openStore>>} store */
  constructor(store) {
    this.banner = new Banner();
    this.toast = new Toast();
    this.key = new KeyDialog();
    this.chat = new Chat(store, {
      changed: () => this.show(),
      grew: (generation) => this.transcript.grow(generation),
      ended: (generation) => this.onEnd(generation),
      warn: (text) => this.toast.show(text),
      model: () => this.models.chosen,
    });
    this.models = new ModelChoice({
      onChoose: (model) => this.chat.configure({ model }),
      onState: (error) => this.onServer(error),
    });
    this.transcript = new Transcript({
      regenerate: (turn) => {
        this.beginAnswer();
        this.chat.regenerate(turn);
      },
      retry: (turn) => this.retry(turn),
      edit: (turn, text) => {
        this.beginAnswer();
        this.chat.edit(turn, text);
      },
      show: (turn) => this.chat.showVersion(turn),
      askKey: () => this.askKey(),
      remove: async (turn) =>
        this.toast.show("Question deleted.", "Undo", await this.chat.removeTurn(turn)),
    });
    this.composer = new Composer({
      send: (text) => this.send(text),
      stop: () => this.chat.generations.stop(this.chat.current.id),
      editLast: () => this.transcript.editLast(),
      setThinking: (thinking) =>
        this.chat.configure({ settings: { ...this.chat.current.settings, thinking } }),
    });
    this.sidebar = new Sidebar({
      open: (id) => this.go(id),
      create: () => this.go(""),
      rename: (id, title) => this.chat.rename(id, title),
      remove: async (id) =>
        this.toast.show("Conversation deleted.", "Undo", await this.chat.remove(id)),
      search: (text) => store.search(text),
    });
    this.settings = new SettingsDialog({
      onChange: (settings) => this.chat.configure({ settings }),
      onDefault: (settings) => this.chat.setDefaults(settings),
    });
    bindTheme(byId("theme"));
    this.bindButtons(store);
    this.bindKeys();
    if (!store.persistent)
      this.toast.show(
        "This browser keeps nothing here: conversations last until the page is closed.",
      );
  }

  async start() {
    await this.chat.start();
    addEventListener("hashchange", () => this.route());
    await this.route();
    this.composer.offerFocus();
    // The server may come back while nobody looks.
    const again = () => !document.hidden && !this.models.ids.length && this.models.load();
    addEventListener("online", again);
    document.addEventListener("visibilitychange", () => {
      again();
      this.show();
    });
    setInterval(() => this.chat.running && this.transcript.grow(this.chat.running), TICK_MS);
    await this.models.load();
  }

  bindButtons(store) {
    byId("open-settings").addEventListener("click", () => {
      this.settings.show(this.chat.current.settings);
      this.settings.open();
    });
    byId("export").addEventListener("click", async () => {
      const day = new Date().toISOString().slice(0, 10);
      download(`llamba-${day}.json`, toJson(await store.all()));
    });
    byId("import").addEventListener("click", () => this.import());
    byId("skip").addEventListener("click", (event) => {
      event.preventDefault(); // the hash is the conversation's
      this.composer.focus();
    });
    for (const button of document.querySelectorAll("#welcome [data-prompt]")) {
      button.addEventListener("click", () =>
        this.composer.fill(button.getAttribute("data-prompt") ?? ""),
      );
    }
  }

  bindKeys() {
    document.addEventListener("keydown", (event) => {
      if (document.querySelector("dialog[open]")) return;
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
      if (event.key === "Escape" && this.chat.running) {
        event.preventDefault();
        this.chat.generations.stop(this.chat.current.id);
      } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        this.composer.focus();
      }
    });
  }

  /** The address names the conversation: reload, back and bookmarks work. */
  async route() {
    const id = /^#\/c\/([0-9a-f]+)$/.exec(location.hash)?.[1];
    if (id && (await this.chat.open(id))) return;
    this.chat.create();
  }

  /** @param {string} id "" for a new one */
  go(id) {
    const hash = id ? `#/c/${id}` : "#/";
    if (location.hash === hash) this.route();
    else location.hash = hash;
    if (!id) this.composer.offerFocus();
  }

  /** @param {string} text */
  send(text) {
    if (!this.models.chosen) {
      this.toast.show(
        "There is no model to ask: the server has not answered yet.",
        "Try again",
        () => this.models.load(),
      );
      return false;
    }
    this.beginAnswer();
    return this.chat.send(text);
  }

  /** The end is of interest; and what an "Undo" would bring back is no longer how it was. */
  beginAnswer() {
    this.transcript.follower.following = true;
    this.toast.hide();
  }

  /** Everything as it is now; cheap, as views are kept. */
  show() {
    const { chat } = this;
    const { current } = chat;
    const address = chat.isNew ? "#/" : `#/c/${current.id}`;
    // Only the address of a conversation that has just begun or ended changes here: no new entry.
    if (location.hash !== address && !(chat.isNew && !location.hash))
      history.replaceState(null, "", address);
    this.transcript.show(current, chat.running);
    this.sidebar.show(chat.heads, current.id, new Set(chat.generations.running.keys()));
    this.composer.switchTo(chat.isNew ? "" : current.id);
    this.composer.setBusy(Boolean(chat.running));
    this.composer.showThinking(current.settings.thinking);
    this.models.show(current.model);
    const title = chat.isNew ? "New conversation" : current.title;
    byId("title").textContent = title;
    document.title = chat.isNew ? "llamba" : `${title} · llamba`;
    const changed = countChanged(current.settings);
    byId("settings-count").textContent = changed ? String(changed) : "";
    byId("open-settings").setAttribute(
      "aria-label",
      changed ? `Settings, ${changed} changed` : "Settings",
    );
  }

  /** An answer ended. @param {any} generation */
  async onEnd({ conversation, turn }) {
    const shown = conversation === this.chat.current;
    if (turn.error?.kind === "key" && shown && (await this.key.ask())) {
      this.models.load();
      this.retry(turn);
    } else if (!turn.error && !this.banner.element.hidden) this.models.load();
  }

  /** @param {any} turn an answer that failed */
  retry(turn) {
    this.beginAnswer();
    this.chat.retry(turn);
  }

  /** How the server is. @param {any} error null: well */
  async onServer(error) {
    if (!error) return this.banner.clear();
    const again = () => this.models.load();
    if (error.kind === "key") {
      this.banner.show("This server asks for an API key.", "Enter a key", () => this.askKey());
      await this.askKey();
    } else if (error.kind === "busy") this.banner.show(`${error.message} Trying again shortly.`);
    else this.banner.show(error.message, "Try again", again);
  }

  async askKey() {
    if (!(await this.key.ask())) return;
    await this.models.load();
    const { current } = this.chat;
    const last = current.turns.get(current.leaf ?? "");
    if (last?.error?.kind === "key" && this.models.chosen) this.retry(last);
  }

  async import() {
    const text = await chooseFile();
    if (text === null) return;
    try {
      const conversations = fromJson(text);
      await this.chat.add(conversations);
      this.toast.show(`Imported: ${conversations.length}.`);
    } catch (error) {
      this.toast.show(error.message);
    }
  }
}

const app = new App(await openStore());
await app.start();
