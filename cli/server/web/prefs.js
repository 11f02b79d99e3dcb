// Small choices of this browser (localStorage) and the key of this tab (sessionStorage).
// Either store may be switched off or full: then a choice lasts as long as the page.

const PREFIX = "llamba.";
const fallback = new Map();

/** @param {() => Storage} storage @param {string} name @returns {string | null} */
function read(storage, name) {
  if (fallback.has(name)) return fallback.get(name);
  try {
    return storage().getItem(PREFIX + name);
  } catch {
    return null;
  }
}

/** @param {() => Storage} storage @param {string} name @param {string} value */
function write(storage, name, value) {
  try {
    storage().setItem(PREFIX + name, value);
    fallback.delete(name);
  } catch {
    fallback.set(name, value);
  }
}

const local = () => localStorage;
const session = () => sessionStorage;

/** A remembered choice. @param {string} name @param {string} otherwise */
export function recall(name, otherwise) {
  return read(local, name) ?? otherwise;
}

/** @param {string} name @param {string} value */
export function remember(name, value) {
  write(local, name, value);
}

/** A remembered value that was JSON; anything else counts as nothing. @param {string} name */
export function recallJson(name) {
  try {
    return JSON.parse(read(local, name) ?? "null");
  } catch {
    return null;
  }
}

/** The API key of this tab; it is gone when the tab is closed. */
export function apiKey() {
  return read(session, "key") ?? "";
}

/** @param {string} key */
export function setApiKey(key) {
  write(session, "key", key);
}
