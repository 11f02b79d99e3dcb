// What a conversation is: a tree of turns, of which one branch is shown. Editing a question or
// asking again adds a branch; nothing is overwritten. Plain data and functions, no DOM.

/**
 * @typedef {object} Turn
 * @property {string} id
 * @property {string | null} parent
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {number} created
 * @property {string} [model]
 * @property {string} [thinking]
 * @property {number} [thinkingMs]
 * @property {string} [finish] "stop", "length", "stopped" (by the reader), "error"
 * @property {{kind: string, message: string}} [error]
 * @property {Stats} [stats]
 *
 * @typedef {object} Stats
 * @property {number} [promptTokens]
 * @property {number} [cachedTokens]
 * @property {number} [tokens]
 * @property {number} [tokensPerSecond]
 * @property {number} [promptPerSecond]
 * @property {number} [firstMs] from sending to the first token
 * @property {number} [totalMs]
 *
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title
 * @property {boolean} named the title was given by the reader
 * @property {number} created
 * @property {number} updated
 * @property {string} model "" until one is chosen
 * @property {import("./settings-fields.js").Settings} settings
 * @property {Map<string, Turn>} turns in the order of their making
 * @property {string | null} leaf the last turn of the branch that is shown
 */

const TITLE_LENGTH = 52;

/** Ids need to be unique in one browser; randomUUID is missing on plain http. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

/** @param {import("./settings-fields.js").Settings} settings @param {string} model @returns {Conversation} */
export function newConversation(settings, model) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    named: false,
    created: now,
    updated: now,
    model,
    settings: { ...settings },
    turns: new Map(),
    leaf: null,
  };
}

/** @param {Conversation} conversation @param {Omit<Turn, "id" | "created">} fields @returns {Turn} */
export function addTurn(conversation, fields) {
  const turn = { id: newId(), created: Date.now(), ...fields };
  conversation.turns.set(turn.id, turn);
  conversation.leaf = turn.id;
  conversation.updated = turn.created;
  if (!conversation.title && turn.role === "user") conversation.title = titleOf(turn.text);
  return turn;
}

/** The turns from the first one to `leaf`. @param {Conversation} conversation @returns {Turn[]} */
export function branch(conversation, leaf = conversation.leaf) {
  const path = [];
  for (
    let turn = conversation.turns.get(leaf ?? "");
    turn;
    turn = conversation.turns.get(turn.parent ?? "")
  ) {
    path.push(turn);
  }
  return path.reverse();
}

/** The versions of a turn, itself among them. @param {Conversation} conversation @param {Turn} turn */
export function versions(conversation, turn) {
  return [...conversation.turns.values()].filter(
    (other) => other.parent === turn.parent && other.role === turn.role,
  );
}

/** Shows the branch through `turn`, to its newest end. @param {Conversation} conversation @param {Turn} turn */
export function showBranch(conversation, turn) {
  conversation.leaf = newestEnd(conversation, turn.id);
}

function newestEnd(conversation, id) {
  const newest = new Map(); // parent -> its newest child
  for (const turn of conversation.turns.values()) newest.set(turn.parent, turn.id);
  while (id !== null && newest.has(id)) id = newest.get(id);
  return id;
}

/** Takes one turn out, with all that follows it. @param {Conversation} conversation @param {Turn} turn */
export function removeBranch(conversation, turn) {
  const gone = new Set([turn.id]);
  // Children are always made after their parents, so one pass finds them all.
  for (const other of conversation.turns.values()) if (gone.has(other.parent)) gone.add(other.id);
  for (const id of gone) conversation.turns.delete(id);
  if (gone.has(conversation.leaf)) {
    const other = [...conversation.turns.values()].findLast((each) => each.parent === turn.parent);
    conversation.leaf = other ? newestEnd(conversation, other.id) : turn.parent;
  }
}

/**
 * Takes a question and its answers out; later questions move up, so that roles keep alternating.
 * @param {Conversation} conversation @param {Turn} question
 */
export function removeTurn(conversation, question) {
  const path = branch(conversation);
  const answers = new Set(
    [...conversation.turns.values()]
      .filter((turn) => turn.parent === question.id)
      .map(({ id }) => id),
  );
  for (const turn of conversation.turns.values()) {
    if (answers.has(turn.parent ?? "")) turn.parent = question.parent;
  }
  for (const id of [question.id, ...answers]) conversation.turns.delete(id);
  const end = path.findLast((turn) => conversation.turns.has(turn.id));
  conversation.leaf = end ? newestEnd(conversation, end.id) : newestEnd(conversation, null);
  if (end && path.at(-1)?.id === end.id) conversation.leaf = end.id;
}

/**
 * The messages of a request: thinking and failed answers stay out, and two questions in a row
 * (the answer between them failed) become one, as many templates insist on alternating roles.
 * @param {Conversation} conversation @param {Turn} last the question to answer
 */
export function messagesFor(conversation, last) {
  const messages = [];
  const system = conversation.settings.system?.trim();
  if (system) messages.push({ role: "system", content: system });
  for (const { role, text } of branch(conversation, last.id)) {
    const before = messages.at(-1);
    if (!text) continue;
    if (before?.role === role) before.content += `\n\n${text}`;
    else messages.push({ role, content: text });
  }
  return messages;
}

/** A title out of the first question. @param {string} text */
export function titleOf(text) {
  const lines = text
    .split("\n")
    .map((line) => line.replace(/^(?:[\s#>*`-]|\d+[.)]\s)+|[*`]+/g, "").trim());
  const line = (lines.find(Boolean) ?? text.trim()).replace(/\s+/g, " ");
  if (line.length <= TITLE_LENGTH) return line || "Conversation";
  const cut = line.slice(0, TITLE_LENGTH);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), TITLE_LENGTH / 2)).trimEnd()}…`;
}
