// The chat page: conversations, the composer, and the reply that is coming in.

import { render } from "./markdown.js";
import { headers, readReply, Refused } from "./stream.js";
import { loadConversations, loadSettings, saveConversations, saveSettings } from "./store.js";

const $ = (id) => document.getElementById(id);
const SETTING_FIELDS = ["system", "temperature", "top_p", "max_tokens", "seed", "key", "theme"];
const settings = loadSettings();
let conversations = loadConversations();
let current = conversations[0] ?? null;
let running = null; // { controller, conversation, message }

// ---- conversations ----

function newConversation() {
  current = null;
  closeDrawer();
  draw();
  $("prompt").focus();
}

function titleOf(conversation) {
  return conversation.messages[0]?.content.slice(0, 60).replace(/\s+/g, " ") || "New conversation";
}

function keep(conversation) {
  conversations = [conversation, ...conversations.filter((other) => other !== conversation)];
  saveConversations(conversations);
}

function remove(conversation) {
  if (running?.conversation === conversation) stop();
  conversations = conversations.filter((other) => other !== conversation);
  saveConversations(conversations);
  if (current === conversation) current = null;
  draw();
}

// ---- asking ----

async function send(text) {
  current ??= { id: crypto.randomUUID(), messages: [] };
  current.messages.push({ role: "user", content: text });
  await ask(current);
}

/** Let the swarm answer the conversation as it stands. */
async function ask(conversation) {
  const message = { role: "assistant", content: "", pending: true };
  conversation.messages.push(message);
  keep(conversation);
  draw();
  scrollDown();
  await run(conversation, message, { body: requestBody(conversation) });
}

function requestBody(conversation) {
  const messages = conversation.messages.filter((message) => !message.pending).map(({ role, content }) => ({ role, content }));
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  const body = { model: $("model").value, messages, stream: true, include_swarm: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (settings[name] !== "") body[name] = Number(settings[name]);
  return body;
}

/** Read a reply into a message, whether it is new or was broken off by a closed tab. */
async function run(conversation, message, start) {
  const controller = new AbortController();
  const clock = { startedAt: performance.now(), firstAt: null, tokens: 0 };
  running = { controller, conversation, message };
  delete message.error;
  showRunning();
  try {
    await readReply({
      start,
      key: settings.key,
      signal: controller.signal,
      onEvent: (event, id) => { take(message, event, clock); message.lastEventId = id; later(conversation, message); },
      onBreak: () => { message.note = "The connection broke; taking the reply up again …"; later(conversation, message); },
    });
    speak("The reply is complete.");
    finish(message);
  } catch (error) {
    if (controller.signal.aborted) { message.stopped = true; finish(message); speak("Stopped."); }
    else fail(message, error);
  } finally {
    running = null;
    saveConversations(conversations);
    showRunning();
    redraw(conversation, message);
  }
}

function take(message, event, clock) {
  delete message.note;
  const choice = event.choices[0];
  if (choice?.delta.content) {
    message.content += choice.delta.content;
    clock.tokens += 1;
    clock.firstAt ??= performance.now();
    const seconds = (performance.now() - clock.firstAt) / 1000;
    if (seconds > 0.5) message.rate = (clock.tokens - 1) / seconds;
  }
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  if (event.usage) message.usage = event.usage;
  const told = event.swarm?.choices[0];
  if (told) {
    if (told.resumes.length > (message.chain?.resumes.length ?? 0)) speak("A peer was lost; the reply goes on.");
    message.chain = { hops: told.hops.length ? told.hops : message.chain?.hops ?? [], resumes: told.resumes };
    if (told.tokens_per_s) message.rate = told.tokens_per_s;
  }
}

function finish(message) {
  delete message.pending;
  delete message.lastEventId;
  delete message.note;
}

function fail(message, error) {
  delete message.note;
  message.error = error instanceof Refused ? error.message : "The gateway does not answer. Is it still running?";
  if (error.retryAfterS) message.error += ` (again in ${error.retryAfterS} s)`;
  // what has come stays, and can be gone on with while the gateway keeps it
  if (error instanceof Refused) { delete message.pending; delete message.lastEventId; }
  if (error.status === 401) { openSettings(); $("key").focus(); }
  speak(message.error);
}

function stop() {
  if (!running) return;
  const id = running.message.lastEventId?.split(":")[0];
  running.controller.abort();
  if (id) fetch(`/v1/responses/${id}/cancel`, { method: "POST", headers: headers(settings.key) }).catch(() => {});
}

function regenerate(index) {
  current.messages.length = index;
  ask(current);
}

function edit(index, item) {
  const message = current.messages[index], form = make("form", "edit"), field = make("textarea"), row = make("div", "tools");
  field.value = message.content;
  field.setAttribute("aria-label", "Edit the message");
  const save = button("Send", () => form.requestSubmit()), cancel = button("Cancel", () => draw());
  save.className = "primary";
  row.append(save, cancel);
  form.append(field, row);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim() || running) return;
    current.messages.length = index;
    send(field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); draw(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  item.replaceChildren(form);
  field.focus();
}

// ---- drawing ----

function draw() {
  $("welcome").hidden = Boolean(current?.messages.length);
  $("messages").replaceChildren(...(current?.messages ?? []).map(drawMessage));
  $("conversations").replaceChildren(...conversations.map(drawConversation));
  document.title = current ? `${titleOf(current)} · swarm` : "swarm chat";
  scrollDown();
}

function drawConversation(conversation) {
  const item = make("li", conversation === current ? "current" : ""), title = titleOf(conversation);
  const open = button(title, () => { current = conversation; closeDrawer(); draw(); });
  const gone = button("✕", () => remove(conversation));
  open.className = "open";
  if (conversation === current) open.setAttribute("aria-current", "true");
  gone.className = "remove";
  gone.setAttribute("aria-label", `Delete the conversation “${title}”`);
  item.append(open, gone);
  return item;
}

function drawMessage(message, index) {
  const item = make("li", `message ${message.role}`), body = make("div", "body"), live = running?.message === message;
  const who = make("span", "visually-hidden");
  who.textContent = message.role === "user" ? "You said:" : "The model said:";
  if (message.role === "user") body.textContent = message.content;
  else body.append(render(message.content));
  item.append(who, body);
  if (live) item.classList.add(message.content ? "streaming" : "waiting");
  if (message.role === "assistant") drawNotes(message, item, live);
  if (!live) item.append(drawTools(message, index, item));
  return item;
}

function drawNotes(message, item, live) {
  for (const resume of message.chain?.resumes ?? []) {
    item.append(note(`Peer …${resume.lost_peer.slice(-6)} was lost in mid-reply. Another took over after ${resume.stall_s.toFixed(1)} s and the reply went on.`));
  }
  if (message.note) item.append(note(message.note));
  if (message.stopped) item.append(note("Stopped."));
  if (message.finish === "length") item.append(note("The reply reached its longest length."));
  if (message.error) { const told = note(message.error); told.classList.add("failed"); item.append(told); }
  if (message.chain?.hops.length) item.append(drawChain(message, live));
}

function drawChain(message, live) {
  const { chain, rate, usage, open } = message;
  const box = make("details", "chain"), summary = make("summary"), links = make("span", "links");
  box.open = Boolean(open);
  box.addEventListener("toggle", () => { message.open = box.open; });
  links.append(...chain.hops.map(() => make("i")));
  const words = [`${chain.hops.length} ${chain.hops.length === 1 ? "peer" : "peers"}`];
  if (rate) words.push(`${rate.toFixed(1)} tokens/s`);
  if (usage && !live) words.push(`${usage.completion_tokens} tokens`);
  summary.append(links, words.join(" · "));
  const frame = make("div", "chain-table"), table = make("table"), head = make("tr");
  frame.tabIndex = 0;
  for (const title of ["Blocks", "Peer", "Compute", "Network", "Dtype"]) { const cell = make("th"); cell.textContent = title; head.append(cell); }
  table.append(head, ...chain.hops.map(drawHop));
  frame.append(table);
  box.append(summary, frame);
  return box;
}

function drawHop(hop) {
  const row = make("tr"), dtype = hop.quant === "none" ? hop.dtype : `${hop.dtype}, ${hop.quant}`;
  for (const text of [hop.blocks, `…${hop.peer.slice(-8)}`, `${hop.compute_ms.toFixed(1)} ms`, `${hop.network_ms.toFixed(1)} ms`, dtype]) {
    const cell = make("td");
    cell.textContent = text;
    row.append(cell);
  }
  row.title = hop.peer;
  return row;
}

function drawTools(message, index, item) {
  const row = make("div", "tools"), isLast = index === current.messages.length - 1;
  row.append(button("Copy", (event) => copy(message.content, event.currentTarget)));
  if (message.role === "user") row.append(button("Edit", () => { if (!running) edit(index, item); }));
  else if (isLast) {
    if (message.pending && message.lastEventId) row.append(button("Continue", () => { if (!running) resume(current, message); }));
    row.append(button("Regenerate", () => { if (!running) regenerate(index); }));
  }
  return row;
}

let frame = 0;

/** Draw one message again at the next frame, and keep the conversation now and then. */
function later(conversation, message) {
  if (frame) return;
  frame = requestAnimationFrame(() => { frame = 0; redraw(conversation, message); });
  if (!later.saved || performance.now() - later.saved > 1000) { later.saved = performance.now(); saveConversations(conversations); }
}

function redraw(conversation, message) {
  if (conversation !== current) return;
  const index = conversation.messages.indexOf(message), old = $("messages").children[index];
  const follow = nearEnd();
  if (old) old.replaceWith(drawMessage(message, index));
  if (follow) scrollDown();
}

function nearEnd() {
  const box = $("scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function scrollDown() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function showRunning() {
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  if (!running && document.activeElement === document.body) $("prompt").focus({ preventScroll: true });
}

function note(text) {
  const box = make("p", "event");
  box.textContent = text;
  return box;
}

function speak(text) {
  $("spoken").textContent = text;
}

function button(text, onClick) {
  const made = make("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", onClick);
  return made;
}

function make(name, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
}

async function copy(text, from) {
  const before = from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    from.textContent = "Copied";
  } catch {
    from.textContent = "Copying is not allowed here";
  }
  setTimeout(() => { from.textContent = before; }, 1500);
}

// ---- models, settings, drawer ----

async function loadModels() {
  const answer = await fetch("/v1/models", { headers: headers(settings.key) }).catch(() => null);
  if (!answer) return showHealth("broken", "The gateway does not answer");
  if (answer.status === 401) { showHealth("broken", "This gateway asks for an API key"); return openSettings(); }
  const { data } = await answer.json(), select = $("model"), chosen = select.value || settings.model;
  if (select.children.length !== data.length) {
    select.replaceChildren(...data.map((model) => { const option = make("option"); option.value = option.textContent = model.id; return option; }));
    if (data.some((model) => model.id === chosen)) select.value = chosen;
  }
  const model = data.find((each) => each.id === select.value);
  if (!model) return;
  if (model.whole) showHealth("whole", "online", `Every block is on ${model.replicas === 1 ? "one peer" : `${model.replicas} peers`} or more.`);
  else showHealth("broken", `blocks ${model.missing.join(", ")} are on no peer`);
}

function showHealth(kind, text, detail = text) {
  const box = $("health");
  if (box.textContent !== text) box.textContent = text;
  box.className = `health ${kind}`;
  box.title = detail;
}

function openSettings() {
  for (const name of SETTING_FIELDS) $(name).value = settings[name];
  if (!$("settings").open) $("settings").showModal();
}

function closeSettings() {
  for (const name of SETTING_FIELDS) settings[name] = $(name).value;
  saveSettings(settings);
  applyTheme();
  loadModels();
}

function applyTheme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
}

function openDrawer() {
  $("drawer").classList.add("open");
  $("shade").hidden = false;
  $("open-drawer").setAttribute("aria-expanded", "true");
  $("close-drawer").focus();
}

function closeDrawer() {
  if (!$("drawer").classList.contains("open")) return;
  $("drawer").classList.remove("open");
  $("shade").hidden = true;
  $("open-drawer").setAttribute("aria-expanded", "false");
  $("open-drawer").focus();
}

function grow() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

/** A reply that a closed tab left unfinished is read to its end. */
function resume(conversation, message) {
  return run(conversation, message, { lastEventId: message.lastEventId });
}

function begin() {
  applyTheme();
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("prompt").value.trim();
    if (!text || running) return;
    $("prompt").value = "";
    grow();
    send(text);
  });
  $("prompt").addEventListener("input", grow);
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("composer").requestSubmit(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || $("settings").open) return;
    if ($("drawer").classList.contains("open")) closeDrawer();
    else stop();
  });
  $("stop").addEventListener("click", stop);
  $("new-chat").addEventListener("click", newConversation);
  $("open-drawer").addEventListener("click", openDrawer);
  $("close-drawer").addEventListener("click", closeDrawer);
  $("shade").addEventListener("click", closeDrawer);
  $("open-settings").addEventListener("click", openSettings);
  $("settings").addEventListener("close", closeSettings);
  $("delete-all").addEventListener("click", () => { stop(); conversations = []; current = null; saveConversations([]); draw(); $("settings").close(); });
  $("model").addEventListener("change", () => { settings.model = $("model").value; saveSettings(settings); loadModels(); });
  $("messages").addEventListener("click", (event) => {
    const from = event.target.closest("[data-copy]");
    if (from) copy(from.parentElement.querySelector("code").textContent, from);
  });
  draw();
  loadModels();
  setInterval(() => { if (!document.hidden) loadModels(); }, 15000);
  const last = current?.messages.at(-1);
  if (last?.pending && last.lastEventId) resume(current, last);
  else if (last?.pending) { delete last.pending; last.error = "The page was closed before the reply began."; draw(); }
  else $("prompt").focus();
}

begin();
