// Makes the page live. Everything is readable without it: it only replaces parts by newer ones that
// the server rendered, and shows times in the reader's own zone.
"use strict";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZoneName: "short" });

function ago(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${Math.round(seconds / length)} ${unit} ago`;
  }
  return seconds < 2 ? "just now" : `${Math.round(seconds)} s ago`;
}

function showTimes() {
  for (const element of document.querySelectorAll("time")) {
    const at = new Date(element.dateTime);
    const kind = element.dataset.kind;
    const text = kind === "ago" ? ago(Math.max(0, (Date.now() - at) / 1000)) : (kind === "date" ? date : clock).format(at);
    if (element.textContent !== text) element.textContent = text;
    element.title = date.format(at);
  }
}

function addCopyButtons() {
  if (!navigator.clipboard) return;
  for (const box of document.querySelectorAll(".command:not(:has(button))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
}

// A part with the keyboard focus or a selection in it is left alone until the next change.
function inUse(part) {
  const selection = document.getSelection();
  return part.contains(document.activeElement) || (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
}

const served = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.id, part.outerHTML]));

async function refresh() {
  const answer = await fetch(location.pathname + location.search, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const ids = (root) => [...root.querySelectorAll("[data-live]")].map((part) => part.id).join();
  if (ids(fresh) !== ids(document)) {
    location.reload();
    return;
  }
  if (document.title !== fresh.title) {
    document.title = fresh.title;
    document.getElementById("said").textContent = fresh.title;
  }
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const old = document.getElementById(part.id);
    if (served.get(part.id) === part.outerHTML || inUse(old)) continue;
    served.set(part.id, part.outerHTML);
    old.replaceWith(document.adoptNode(part));
  }
  showTimes();
  addCopyButtons();
}

let waiting = null;
function changed() {
  if (waiting !== null || document.hidden) return;
  waiting = setTimeout(() => {
    waiting = null;
    refresh().catch(() => {}); // the next event tries again
  }, 250);
}

showTimes();
addCopyButtons();
setInterval(showTimes, 1000);
document.addEventListener("visibilitychange", changed);
new EventSource("/events").addEventListener("state", changed);
