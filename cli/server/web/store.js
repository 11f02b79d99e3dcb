// Conversations in this browser: IndexedDB, or only memory where that is refused.
//
// Two tables: `heads` (small, read at start for the list) and `bodies` (turns, read when shown).

/** @typedef {{id: string, title: string, created: number, updated: number}} Head */

const NAME = "llamba";
const VERSION = 1;

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {IDBTransaction} transaction @returns {Promise<void>} */
function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    // A full disk shows here and not at the single request.
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

/** @returns {Promise<IDBDatabase>} */
function openDatabase() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("heads", { keyPath: "id" });
    request.result.createObjectStore("bodies", { keyPath: "id" });
  };
  return result(request);
}

const headOf = ({ id, title, created, updated }) => ({ id, title, created, updated });

const newestFirst = (heads) => heads.sort((a, b) => b.updated - a.updated);

class BrowserStore {
  persistent = true;

  /** @param {IDBDatabase} database */
  constructor(database) {
    this.database = database;
    // A newer page in another tab wants to change the tables: make way.
    database.onversionchange = () => database.close();
  }

  read(table) {
    return this.database.transaction(table).objectStore(table);
  }

  /** @returns {Promise<Head[]>} */
  async heads() {
    return newestFirst(await result(this.read("heads").getAll()));
  }

  /** @returns {Promise<import("./conversation.js").Conversation | undefined>} */
  load(id) {
    return result(this.read("bodies").get(id));
  }

  all() {
    return result(this.read("bodies").getAll());
  }

  save(conversation) {
    const transaction = this.database.transaction(["heads", "bodies"], "readwrite");
    transaction.objectStore("heads").put(headOf(conversation));
    transaction.objectStore("bodies").put(conversation);
    return finished(transaction);
  }

  remove(id) {
    const transaction = this.database.transaction(["heads", "bodies"], "readwrite");
    transaction.objectStore("heads").delete(id);
    transaction.objectStore("bodies").delete(id);
    return finished(transaction);
  }

  /** Ids of the conversations that hold the text; one at a time is in memory. @param {string} text */
  async search(text) {
    const found = new Set();
    const request = this.read("bodies").openCursor();
    await new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve(null);
        if (holds(cursor.value, text)) found.add(cursor.value.id);
        cursor.continue();
      };
    });
    return found;
  }
}

class MemoryStore {
  persistent = false;
  /** @type {Map<string, any>} */
  bodies = new Map();

  async heads() {
    return newestFirst([...this.bodies.values()].map(headOf));
  }

  async load(id) {
    return structuredClone(this.bodies.get(id));
  }

  async all() {
    return structuredClone([...this.bodies.values()]);
  }

  async save(conversation) {
    this.bodies.set(conversation.id, structuredClone(conversation));
  }

  async remove(id) {
    this.bodies.delete(id);
  }

  async search(text) {
    return new Set(
      [...this.bodies.values()].filter((each) => holds(each, text)).map(({ id }) => id),
    );
  }
}

function holds(conversation, text) {
  const wanted = text.toLowerCase();
  if (conversation.title.toLowerCase().includes(wanted)) return true;
  for (const turn of conversation.turns.values()) {
    if (turn.text.toLowerCase().includes(wanted)) return true;
  }
  return false;
}

/** The store of this browser. @returns {Promise<BrowserStore | MemoryStore>} */
export async function openStore() {
  try {
    return new BrowserStore(await openDatabase());
  } catch {
    return new MemoryStore(); // private windows of some browsers, or storage switched off
  }
}

/** Whether an error says that there is no room. @param {any} error */
export function isFull(error) {
  return error?.name === "QuotaExceededError";
}
