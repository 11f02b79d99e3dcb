// Conversations as a JSON file and back. A file may come from anywhere: every field is checked, and
// what is in it is only ever text.

import { newId, titleOf } from "./conversation.js";
import { el } from "./dom.js";
import { cleanSettings } from "./settings-fields.js";

const FORMAT = "llamba-conversations";

/** @param {import("./conversation.js").Conversation[]} conversations @returns {string} */
export function toJson(conversations) {
  const plain = conversations.map((each) => ({ ...each, turns: [...each.turns.values()] }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations: plain }, null, 1);
}

/**
 * @param {string} text
 * @returns {import("./conversation.js").Conversation[]}
 * @throws {Error} with a message for the reader
 */
export function fromJson(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("That file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("That file holds no llamba conversations.");
  }
  return file.conversations.map(conversationOf).filter((each) => each.turns.size);
}

const string = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) && value > 0 ? value : Date.now());

function conversationOf(raw) {
  const turns = new Map();
  const ids = new Map(); // the file's ids -> ours: an import never overwrites anything
  for (const turn of Array.isArray(raw?.turns) ? raw.turns : []) {
    if (!["user", "assistant"].includes(turn?.role) || typeof turn.text !== "string") continue;
    const id = newId();
    const parent = ids.get(turn.parent) ?? null; // only backwards: there can be no circle
    ids.set(turn.id, id);
    turns.set(id, {
      id,
      parent,
      role: turn.role,
      text: turn.text,
      created: time(turn.created),
      ...(turn.role === "assistant" ? answerFields(turn) : {}),
    });
  }
  const first = [...turns.values()][0];
  return {
    id: newId(),
    title: string(raw?.title) || titleOf(first?.text ?? ""),
    named: raw?.named === true,
    created: time(raw?.created),
    updated: time(raw?.updated),
    model: string(raw?.model),
    settings: cleanSettings(raw?.settings),
    turns,
    leaf: ids.get(raw?.leaf) ?? [...turns.keys()].at(-1) ?? null,
  };
}

function answerFields(turn) {
  const fields = { model: string(turn.model), finish: string(turn.finish) || "stop" };
  if (turn.thinking) fields.thinking = string(turn.thinking);
  if (Number.isFinite(turn.thinkingMs)) fields.thinkingMs = turn.thinkingMs;
  if (turn.error)
    fields.error = { kind: string(turn.error.kind), message: string(turn.error.message) };
  const stats = Object.entries(turn.stats ?? {}).filter(([, value]) => Number.isFinite(value));
  if (stats.length) fields.stats = Object.fromEntries(stats);
  return fields;
}

/** Offers a text as a file. @param {string} name @param {string} text */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Asks for a file. @returns {Promise<string | null>} its text, null if none was chosen */
export function chooseFile() {
  return new Promise((resolve) => {
    const input = el("input", { type: "file", accept: "application/json,.json" });
    input.addEventListener("change", async () => resolve((await input.files[0]?.text()) ?? null));
    input.addEventListener("cancel", () => resolve(null));
    input.click();
  });
}
