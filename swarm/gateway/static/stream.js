// A reply as it comes: server-sent events over fetch, taken up again where they broke.

const TRIES = 6;

/** An answer that is an error; `retryAfterS` when the gateway says when to come back. */
export class Refused extends Error {
  constructor(message, status, retryAfterS) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/**
 * Read a reply to its end. `start` is `{body}` for a new one or `{lastEventId}` for one that broke.
 * `onEvent(data, id)` gets every event but [DONE]; `onBreak(attempt)` is told of a lost connection.
 */
export async function readReply({ start, key, signal, onEvent, onBreak }) {
  let lastEventId = start.lastEventId ?? null;
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await open(start.body, lastEventId, key, signal);
      const ended = await readEvents(response, (data, id) => {
        attempt = 0;
        lastEventId = id ?? lastEventId;
        if (data === "[DONE]") return true;
        const event = JSON.parse(data);
        if (event.error) throw new Refused(event.error.message, 200);
        onEvent(event, lastEventId);
        return false;
      });
      if (ended) return;
    } catch (error) {
      if (signal.aborted || error instanceof Refused || lastEventId === null || attempt >= TRIES) throw error;
    }
    onBreak(attempt + 1);
    await pause(Math.min(8000, 400 * 2 ** attempt), signal);
  }
}

/** Headers of every request. */
export function headers(key, more = {}) {
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function open(body, lastEventId, key, signal) {
  const response = lastEventId === null
    ? await fetch("/v1/chat/completions", { method: "POST", headers: headers(key, { "Content-Type": "application/json" }), body: JSON.stringify(body), signal })
    : await fetch(`/v1/responses/${lastEventId.split(":")[0]}`, { headers: headers(key, { "Last-Event-ID": lastEventId }), signal });
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  const retryAfterS = Number(response.headers.get("Retry-After")) || null;
  throw new Refused(answer?.error?.message ?? `The gateway answered ${response.status}.`, response.status, retryAfterS);
}

/** Calls `take(data, id)` for each event until it says the stream has ended; gives whether it did. */
async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return false;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").filter((line) => !line.startsWith(":")).map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data !== undefined && take(fields.data, fields.id)) return true;
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}
