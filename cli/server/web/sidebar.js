// The list of conversations: search, rename, delete; a drawer on small screens.

import { byId, el, iconButton } from "./dom.js";
import { ageGroup } from "./format.js";

const SEARCH_WAIT_MS = 150;

export class Sidebar {
  /**
   * @param {object} hooks
   * @param {(id: string) => void} hooks.open
   * @param {() => void} hooks.create
   * @param {(id: string, title: string) => void} hooks.rename
   * @param {(id: string) => void} hooks.remove
   * @param {(text: string) => Promise<Set<string>>} hooks.search
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.element = byId("sidebar");
    this.list = byId("conversations");
    this.search = byId("search");
    this.empty = byId("no-conversations");
    this.backdrop = byId("backdrop");
    this.toggle = byId("menu");
    /** @type {import("./store.js").Head[]} */
    this.heads = [];
    /** @type {Set<string> | null} */
    this.found = null;
    this.current = "";
    this.running = new Set();
    this.narrow = matchMedia("(max-width: 800px)");
    this.shown = !this.narrow.matches;
    this.narrow.addEventListener("change", () => this.setShown(!this.narrow.matches));
    this.toggle.addEventListener("click", () => this.setShown(!this.shown, true));
    byId("menu-close").addEventListener("click", () => this.setShown(false, true));
    this.backdrop.addEventListener("click", () => this.setShown(false, true));
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.narrow.matches) {
        event.stopPropagation();
        this.setShown(false, true);
      }
    });
    byId("new-chat").addEventListener("click", () => {
      this.leave();
      hooks.create();
    });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.lookFor(this.search.value.trim()), SEARCH_WAIT_MS);
    });
    this.setShown(this.shown);
  }

  /** @param {boolean} shown @param {boolean} [moveFocus] */
  setShown(shown, moveFocus = false) {
    this.shown = shown;
    document.body.dataset.sidebar = shown ? "shown" : "hidden";
    this.element.inert = !shown;
    byId("main").inert = shown && this.narrow.matches;
    this.backdrop.hidden = !(shown && this.narrow.matches);
    this.toggle.setAttribute("aria-expanded", String(shown));
    if (moveFocus) (shown ? byId("new-chat") : this.toggle).focus();
  }

  /** On a small screen the drawer covers what was chosen. */
  leave() {
    if (this.narrow.matches) this.setShown(false);
  }

  async lookFor(text) {
    this.found = text ? await this.hooks.search(text) : null;
    this.draw();
  }

  /** @param {import("./store.js").Head[]} heads newest first @param {string} current @param {Set<string>} running */
  show(heads, current, running) {
    this.heads = heads;
    this.current = current;
    this.running = running;
    this.draw();
  }

  draw() {
    if (this.renaming) return; // it draws again when that is done
    const heads = this.heads.filter(({ id }) => !this.found || this.found.has(id));
    const groups = [];
    for (const head of heads) {
      const name = ageGroup(head.updated);
      if (groups.at(-1)?.name !== name) groups.push({ name, heads: [] });
      groups.at(-1).heads.push(head);
    }
    // Drawing anew must not take the focus of whoever walks through the list.
    const focused = document.activeElement?.closest?.("[data-id]")?.getAttribute("data-id");
    this.list.replaceChildren(
      ...groups.map((group, i) =>
        el(
          "section",
          { "aria-labelledby": `group-${i}` },
          el("h2", { id: `group-${i}`, text: group.name }),
          el("ul", {}, ...group.heads.map((head) => this.row(head))),
        ),
      ),
    );
    if (focused) this.list.querySelector(`[data-id="${focused}"] .title`)?.focus();
    this.empty.hidden = heads.length > 0;
    this.empty.textContent = this.found ? "Nothing found." : "No conversations yet.";
  }

  row(head) {
    const open = el("button", {
      type: "button",
      class: "title",
      text: head.title,
      title: head.title,
      "aria-current": head.id === this.current ? "page" : null,
      on: {
        click: () => {
          this.leave();
          this.hooks.open(head.id);
        },
      },
    });
    if (this.running.has(head.id))
      open.append(el("span", { class: "pulse", role: "img", "aria-label": "being written" }));
    const row = el("li", { "data-id": head.id }, open);
    row.append(
      iconButton("edit", `Rename "${head.title}"`, () => this.rename(row, head)),
      iconButton("trash", `Delete "${head.title}"`, () => this.hooks.remove(head.id)),
    );
    return row;
  }

  rename(row, head) {
    this.renaming = true;
    const input = el("input", { type: "text", "aria-label": "New title", maxlength: 200 });
    input.value = head.title;
    const finish = (keep) => {
      if (!this.renaming) return;
      this.renaming = false;
      const title = input.value.trim();
      if (keep && title && title !== head.title) this.hooks.rename(head.id, title);
      this.draw();
      this.list.querySelector(`[data-id="${head.id}"] .title`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) {
        event.preventDefault(); // it would press the title that has the focus then
        finish(true);
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      }
    });
    input.addEventListener("blur", () => finish(true));
    row.replaceChildren(input);
    input.select();
  }
}
