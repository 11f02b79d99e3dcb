// The settings of a conversation as data: their fields, limits, and what is sent of them.

/**
 * @typedef {object} Settings
 * @property {string} system
 * @property {"" | "on" | "off"} thinking "": as the model does by itself
 * @property {string} temperature numbers are kept as they were typed; "": the model's default
 * @property {string} top_p
 * @property {string} top_k
 * @property {string} min_p
 * @property {string} repeat_penalty
 * @property {string} max_tokens
 * @property {string} seed
 */

/**
 * name -> limits of a number field; the names are those of the API.
 * @type {Record<string, {label: string, min: number, max: number, step: number, whole?: boolean, hint: string}>}
 */
export const NUMBERS = {
  temperature: {
    label: "Temperature",
    min: 0,
    max: 5,
    step: 0.1,
    hint: "0 is always the same, over 1 wild",
  },
  top_p: { label: "Top p", min: 0, max: 1, step: 0.05, hint: "likeliest words up to this sum" },
  top_k: {
    label: "Top k",
    min: 0,
    max: 1_000_000,
    step: 1,
    whole: true,
    hint: "this many words; 0: all",
  },
  min_p: { label: "Min p", min: 0, max: 1, step: 0.01, hint: "drops the very unlikely" },
  repeat_penalty: {
    label: "Repeat penalty",
    min: 0.01,
    max: 10,
    step: 0.05,
    hint: "above 1 avoids repetition",
  },
  max_tokens: {
    label: "Max tokens",
    min: 1,
    max: 10_000_000,
    step: 1,
    whole: true,
    hint: "longest answer",
  },
  seed: {
    label: "Seed",
    min: 0,
    max: 4_294_967_295,
    step: 1,
    whole: true,
    hint: "the same seed, the same answer",
  },
};

/** @returns {Settings} */
export function emptySettings() {
  const numbers = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, ""]));
  return /** @type {any} */ ({ system: "", thinking: "", ...numbers });
}

/** What is wrong with a number field, or "". @param {string} name @param {string} text */
export function problemOf(name, text) {
  const { min, max, whole } = NUMBERS[name];
  if (!text.trim()) return "";
  const value = Number(text);
  if (!Number.isFinite(value)) return "not a number";
  if (whole && !Number.isInteger(value)) return "must be a whole number";
  if (value < min) return `must be at least ${min}`;
  if (value > max) return `must be at most ${max}`;
  return "";
}

/** Settings out of anything (storage, a file): what isn't valid is left empty. @param {any} raw */
export function cleanSettings(raw) {
  const settings = emptySettings();
  if (typeof raw?.system === "string") settings.system = raw.system;
  if (raw?.thinking === "on" || raw?.thinking === "off") settings.thinking = raw.thinking;
  for (const name of Object.keys(NUMBERS)) {
    const text = String(raw?.[name] ?? "");
    if (!problemOf(name, text)) settings[name] = text.trim();
  }
  return settings;
}

/** The fields of a request: what is empty is not sent. @param {Settings} settings */
export function requestFields(settings) {
  const fields = {};
  for (const name of Object.keys(NUMBERS)) {
    if (settings[name] !== "" && !problemOf(name, settings[name]))
      fields[name] = Number(settings[name]);
  }
  if (settings.thinking) {
    fields.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  }
  return fields;
}

/** How many settings differ from the model's own. @param {Settings} settings */
export function countChanged(settings) {
  return Object.values(settings).filter((value) => value.trim() !== "").length;
}
