// Server-sent events out of a fetch body: EventSource can neither POST nor send a key.

/**
 * The data of every event, in order. Comments (keep-alives) and other fields are skipped.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
export async function* eventData(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  /** @type {string[]} */
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      pending += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A "\r" at the end may be half of a "\r\n": it waits for what comes next.
      const lines = pending.split(/\r\n|\n|\r(?!$)/);
      pending = done ? "" : (lines.pop() ?? "");
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) {
        // The last event counts even if the connection ended before its blank line.
        if (data.length) yield data.join("\n");
        return;
      }
    }
  } finally {
    // Whoever stops listening closes the connection, so that the server stops working.
    reader.cancel().catch(() => {});
  }
}
