// What the browser keeps: conversations and settings. Nothing of it leaves this machine but what is asked.

const CONVERSATIONS = "swarm.conversations", SETTINGS = "swarm.settings";

export function loadConversations() {
  return read(CONVERSATIONS, []);
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
  return { system: "", temperature: "", top_p: "", max_tokens: "", seed: "", key: "", theme: "", model: "", ...read(SETTINGS, {}) };
}

export function saveSettings(settings) {
  localStorage.setItem(SETTINGS, JSON.stringify(settings));
}

function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}
