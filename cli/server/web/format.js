// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");

/** @param {number} ms */
export function duration(ms) {
  if (ms < 950) return `${(ms / 1000).toFixed(2).replace(/0$/, "")} s`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** @param {number} count @param {string} noun */
export function counted(count, noun) {
  return `${whole.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number} perSecond */
export function speed(perSecond) {
  return `${perSecond < 100 ? perSecond.toFixed(1) : whole.format(Math.round(perSecond))} tok/s`;
}

/**
 * The line below an answer, and its details.
 * @param {import("./conversation.js").Stats} stats
 * @returns {{short: string[], long: string[]}}
 */
export function describeStats(stats) {
  const short = [];
  const long = [];
  if (stats.tokensPerSecond) short.push(speed(stats.tokensPerSecond));
  if (stats.tokens !== undefined) short.push(counted(stats.tokens, "token"));
  if (stats.firstMs !== undefined) short.push(`first token after ${duration(stats.firstMs)}`);
  if (stats.promptTokens !== undefined) {
    const kept = stats.cachedTokens
      ? `, ${whole.format(stats.cachedTokens)} of them kept from before`
      : "";
    long.push(`Prompt: ${counted(stats.promptTokens, "token")}${kept}`);
  }
  if (stats.promptPerSecond) long.push(`Prompt read at ${speed(stats.promptPerSecond)}`);
  if (stats.totalMs !== undefined) long.push(`In all: ${duration(stats.totalMs)}`);
  return { short, long };
}

/** The heading a conversation is listed under. @param {number} time @param {Date} [now] */
export function ageGroup(time, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const day = 86_400_000;
  if (time >= midnight) return "Today";
  if (time >= midnight - day) return "Yesterday";
  if (time >= midnight - 7 * day) return "Last seven days";
  if (time >= midnight - 30 * day) return "Last thirty days";
  return "Older";
}
