// Answers that are being written. They belong to the page and not to the conversation on screen:
// switching away changes nothing, coming back finds the same turn further on.

import { ApiError, streamChat } from "./api.js";

const SAVE_EVERY_MS = 2000;
const MAX_WAITS = 20; // retries of a busy server before it counts as an error

/** One answer on its way. */
class Generation {
  /**
   * @param {import("./conversation.js").Conversation} conversation
   * @param {import("./conversation.js").Turn} turn the empty answer to fill
   * @param {object} request
   */
  constructor(conversation, turn, request) {
    this.conversation = conversation;
    this.turn = turn;
    this.request = request;
    this.abort = new AbortController();
    this.started = performance.now();
    /** @type {"sent" | "thinking" | "writing" | "waiting"} */
    this.phase = "sent";
    this.pieces = 0; // about as many as tokens
    this.firstAt = 0;
    this.ended = false;
    this.dropped = false; // nothing of it is kept
    /** @type {Promise<void>} */
    this.done = Promise.resolve();
    this.retryAt = 0; // when a busy server is asked again
  }

  get elapsedMs() {
    return performance.now() - this.started;
  }

  /** About how fast it is, while nobody knows exactly. */
  get roughSpeed() {
    const seconds = (performance.now() - this.firstAt) / 1000;
    return this.pieces > 4 && seconds > 0.3 ? (this.pieces - 1) / seconds : 0;
  }

  /** @param {{content?: string, reasoning?: string, finish?: string, usage?: any, timings?: any}} piece */
  take({ content, reasoning, finish, usage, timings }) {
    const { turn } = this;
    const now = performance.now();
    if (content || reasoning) {
      this.pieces += 1;
      if (!this.firstAt) {
        this.firstAt = now;
        turn.stats = { ...turn.stats, firstMs: now - this.started };
      }
    }
    if (reasoning) {
      if (this.phase !== "thinking") {
        this.phase = "thinking";
        this.thoughtFrom = now - (turn.thinkingMs ?? 0);
      }
      turn.thinking = (turn.thinking ?? "") + reasoning;
      turn.thinkingMs = now - this.thoughtFrom;
    }
    if (content) {
      // A model's newlines before the first word are no part of the answer.
      const text = turn.text ? content : content.trimStart();
      if (text) {
        if (this.phase === "thinking") turn.thinkingMs = now - this.thoughtFrom;
        this.phase = "writing";
        turn.text += text;
      }
    }
    if (finish) turn.finish = finish;
    if (usage || timings) this.count(usage ?? {}, timings ?? {});
  }

  count(usage, timings) {
    const number = (value) => (Number.isFinite(value) ? value : undefined);
    this.turn.stats = {
      ...this.turn.stats,
      promptTokens: number(usage.prompt_tokens) ?? this.turn.stats?.promptTokens,
      cachedTokens:
        number(timings.cache_n ?? usage.prompt_tokens_details?.cached_tokens) ??
        this.turn.stats?.cachedTokens,
      tokens: number(usage.completion_tokens ?? timings.predicted_n) ?? this.turn.stats?.tokens,
      tokensPerSecond: number(timings.predicted_per_second) ?? this.turn.stats?.tokensPerSecond,
      promptPerSecond: number(timings.prompt_per_second) ?? this.turn.stats?.promptPerSecond,
    };
  }

  /** The stream, asking a busy server again when it says to. */
  async run(changed) {
    for (let waits = 0; ; waits += 1) {
      try {
        for await (const piece of streamChat(this.request, this.abort.signal)) {
          this.take(piece);
          changed();
        }
        return;
      } catch (error) {
        const busy =
          error instanceof ApiError && error.kind === "busy" && error.retryAfter !== null;
        if (!busy || this.pieces || waits >= MAX_WAITS) throw error;
        this.phase = "waiting";
        this.reason = error.message;
        this.retryAt = performance.now() + Math.max(error.retryAfter, 0.2) * 1000;
        changed();
        await this.pause(this.retryAt - performance.now());
        this.phase = "sent";
        this.started = performance.now();
        changed();
      }
    }
  }

  /** @param {number} ms */
  pause(ms) {
    const { signal } = this.abort;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, ms);
      this.hurry = () => {
        clearTimeout(timer);
        resolve(null);
      };
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }
}

/** All answers that are being written, one a conversation at most. */
export class Generations {
  /**
   * @param {object} hooks
   * @param {(generation: Generation) => void} hooks.onChange something to show
   * @param {(generation: Generation) => void} hooks.onEnd
   * @param {(conversation: any) => void} hooks.save
   */
  constructor({ onChange, onEnd, save }) {
    /** @type {Map<string, Generation>} by conversation id */
    this.running = new Map();
    this.onChange = onChange;
    this.onEnd = onEnd;
    this.save = save;
  }

  /** @param {string} id of a conversation */
  of(id) {
    return this.running.get(id);
  }

  /** Writes into the empty answer `turn`. */
  start(conversation, turn, request) {
    const generation = new Generation(conversation, turn, request);
    this.running.set(conversation.id, generation);
    generation.done = this.follow(generation);
  }

  async follow(generation) {
    const { conversation, turn } = generation;
    this.save(conversation);
    let saved = performance.now();
    this.onChange(generation);
    try {
      await generation.run(() => {
        this.onChange(generation);
        // What is there survives a closed tab.
        if (performance.now() - saved > SAVE_EVERY_MS) {
          saved = performance.now();
          this.save(conversation);
        }
      });
      turn.finish ??= "stop";
    } catch (error) {
      if (generation.abort.signal.aborted) turn.finish = "stopped";
      else {
        turn.finish = "error";
        turn.error = { kind: error.kind ?? "page", message: String(error.message ?? error) };
      }
    }
    turn.stats = { ...turn.stats, totalMs: generation.elapsedMs };
    conversation.updated = Date.now();
    this.running.delete(conversation.id);
    generation.ended = true;
    if (!generation.dropped) this.save(conversation);
    this.onEnd(generation);
  }

  /** Stops an answer; what is there is kept. @param {string} id of a conversation */
  async stop(id) {
    const generation = this.running.get(id);
    generation?.abort.abort();
    await generation?.done;
  }

  /** Stops it without keeping anything: its conversation was deleted. @param {string} id */
  async drop(id) {
    const generation = this.running.get(id);
    if (generation) generation.dropped = true;
    await this.stop(id);
  }
}
