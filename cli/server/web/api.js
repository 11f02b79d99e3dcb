// The server's OpenAI endpoints, and its errors as something to show to a person.

import { apiKey } from "./prefs.js";
import { eventData } from "./sse.js";

/**
 * What went wrong. `kind`: "away" (no answer at all), "key" (401), "busy" (503, 429),
 * "request" (other 4xx), "server" (other 5xx), "cut" (the stream ended early).
 */
export class ApiError extends Error {
  /** @param {string} kind @param {string} message @param {number | null} [retryAfter] seconds */
  constructor(kind, message, retryAfter = null) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

const AWAY = "The server does not answer. Is llamba serve still running?";
const CUT = "The connection ended before the answer did.";

/** Relative to the page, so that it also works behind a proxy that adds a prefix. */
function url(path) {
  return new URL(path, document.baseURI.replace(/[?#].*$/, "")).href;
}

/** @param {Response} response @returns {Promise<ApiError>} */
async function errorOf(response) {
  const { status } = response;
  let message = "";
  try {
    const body = JSON.parse(await response.text());
    message = String(body?.error?.message ?? body?.message ?? body?.detail ?? "");
  } catch {
    // Not ours: a proxy's page, perhaps.
  }
  if (status === 401) {
    return new ApiError("key", message || "This server asks for an API key.");
  }
  if (status === 503 || status === 429) {
    const after = Number.parseFloat(response.headers.get("Retry-After") ?? "");
    const wait = Number.isFinite(after) ? Math.min(Math.max(after, 0), 300) : null;
    return new ApiError("busy", message || "The server is busy.", wait);
  }
  message ||= `The server answered ${status} ${response.statusText}`.trim() + ".";
  return new ApiError(status >= 500 ? "server" : "request", message);
}

/** @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
async function call(path, options) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(url(path), { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("away", AWAY);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The ids of the models, in the server's order. @returns {Promise<string[]>} */
export async function listModels() {
  const response = await call("v1/models", { cache: "no-store" });
  try {
    const { data } = await response.json();
    return data.map((model) => String(model.id));
  } catch {
    throw new ApiError("server", "The server's list of models can't be read.");
  }
}

/**
 * One answer as it is written.
 * @param {object} request the body, without the streaming options
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{content?: string, reasoning?: string, finish?: string,
 *   usage?: any, timings?: any}>}
 */
export async function* streamChat(request, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.body) throw new ApiError("cut", CUT);
  let finished = false;
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = parse(data);
      if (chunk.error) {
        throw new ApiError("server", String(chunk.error.message ?? chunk.error));
      }
      const choice = chunk.choices?.[0];
      if (choice?.finish_reason) finished = true;
      yield {
        content: choice?.delta?.content || undefined,
        reasoning: choice?.delta?.reasoning_content || undefined,
        finish: choice?.finish_reason ?? undefined,
        usage: chunk.usage ?? undefined,
        timings: chunk.timings ?? undefined,
      };
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
    throw new ApiError("cut", CUT);
  }
  if (!finished) throw new ApiError("cut", CUT);
}

/** @param {string} data */
function parse(data) {
  try {
    return JSON.parse(data) ?? {};
  } catch {
    throw new ApiError("server", "The server sent something that is not JSON.");
  }
}
