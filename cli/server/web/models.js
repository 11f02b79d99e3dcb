// The choice of a model: filled from the server, patient while that is away or loading.

import { ApiError, listModels } from "./api.js";
import { byId, el } from "./dom.js";
import { recall, remember } from "./prefs.js";

const LOADING_RETRY_S = 2;

export class ModelChoice {
  /**
   * @param {object} hooks
   * @param {(model: string) => void} hooks.onChoose
   * @param {(error: ApiError | null) => void} hooks.onState null: all is well
   */
  constructor({ onChoose, onState }) {
    this.select = byId("model");
    this.onState = onState;
    /** @type {string[]} */
    this.ids = [];
    this.wanted = "";
    this.select.addEventListener("change", () => {
      remember("model", this.select.value);
      onChoose(this.select.value);
    });
  }

  /** The model that is chosen, "" while none is known. */
  get chosen() {
    return this.ids.length ? this.select.value : "";
  }

  async load() {
    clearTimeout(this.timer);
    try {
      this.ids = await listModels();
      this.draw();
      this.onState(this.ids.length ? null : new ApiError("server", "The server has no model."));
    } catch (error) {
      this.draw();
      this.onState(error);
      if (error.kind === "busy") {
        this.timer = setTimeout(() => this.load(), (error.retryAfter ?? LOADING_RETRY_S) * 1000);
      }
    }
  }

  /** Chooses a conversation's model, or the last one used. @param {string} wanted */
  show(wanted) {
    this.wanted = wanted;
    this.draw();
  }

  draw() {
    const { ids } = this;
    const choice =
      [this.wanted, recall("model", "")].find((id) => ids.includes(id)) ?? ids[0] ?? "";
    const shown = [...this.select.options].map(({ value }) => value);
    if (!ids.length) this.select.replaceChildren(el("option", { value: "", text: "No model" }));
    else if (shown.join("\n") !== ids.join("\n")) {
      this.select.replaceChildren(...ids.map((id) => el("option", { value: id, text: id })));
    }
    this.select.value = choice;
    this.select.disabled = !ids.length;
    this.select.title = choice;
  }
}
