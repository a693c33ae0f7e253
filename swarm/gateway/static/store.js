// What the browser keeps: conversations and settings. Nothing of it leaves this machine but what is asked.
// What is read may be of another version, or broken: what does not fit is left out.

const CONVERSATIONS = "swarm.conversations", SETTINGS = "swarm.settings";
const SETTING_FIELDS = ["system", "temperature", "top_p", "max_tokens", "seed", "key", "theme", "model"];

export function loadConversations() {
  return list(read(CONVERSATIONS), conversationOf);
}

/** Keep the conversations; where the browser has no more room, the oldest go. */
export function saveConversations(conversations) {
  for (let kept = conversations; ; kept = kept.slice(0, -1)) {
    try {
      localStorage.setItem(CONVERSATIONS, JSON.stringify(kept));
      return;
    } catch (error) {
      if (kept.length <= 1) { console.warn("The conversation is too long for this browser to keep", error); return; }
    }
  }
}

export function loadSettings() {
  const kept = record(read(SETTINGS));
  return Object.fromEntries(SETTING_FIELDS.map((name) => [name, text(kept[name]) ?? number(kept[name])?.toString() ?? ""]));
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch (error) {
    console.warn("This browser does not keep settings", error);
  }
}

/** The one place where anything kept is read; undefined when it is no JSON. */
function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return undefined;
  }
}

function conversationOf(value) {
  const { id, messages } = record(value);
  return text(id) === undefined ? undefined : { id, messages: list(messages, messageOf) };
}

function messageOf(value) {
  const kept = record(value);
  if (!["user", "assistant"].includes(kept.role) || text(kept.content) === undefined) return undefined;
  return known({
    role: kept.role,
    content: kept.content,
    pending: flag(kept.pending),
    stopped: flag(kept.stopped),
    open: flag(kept.open),
    error: text(kept.error),
    note: text(kept.note),
    finish: text(kept.finish),
    lastEventId: text(kept.lastEventId),
    rate: number(kept.rate),
    usage: complete({ completion_tokens: number(record(kept.usage).completion_tokens) }),
    chain: kept.chain === undefined ? undefined : chainOf(record(kept.chain)),
  });
}

function chainOf({ hops, resumes }) {
  return { hops: list(hops, hopOf), resumes: list(resumes, resumeOf) };
}

function hopOf(value) {
  const { blocks, peer, dtype, quant, compute_ms, network_ms } = record(value);
  return complete({
    blocks: text(blocks), peer: text(peer), dtype: text(dtype), quant: text(quant),
    compute_ms: number(compute_ms), network_ms: number(network_ms),
  });
}

function resumeOf(value) {
  const { lost_peer, stall_s } = record(value);
  return complete({ lost_peer: text(lost_peer), stall_s: number(stall_s) });
}

function record(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}

function list(value, of) {
  return (Array.isArray(value) ? value : []).map(of).filter((each) => each !== undefined);
}

function text(value) {
  return typeof value === "string" ? value : undefined;
}

function number(value) {
  return Number.isFinite(value) ? value : undefined;
}

function flag(value) {
  return value === true ? true : undefined;
}

/** The fields that are there. */
function known(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** The fields, if all of them are there. */
function complete(fields) {
  return Object.values(fields).includes(undefined) ? undefined : fields;
}
