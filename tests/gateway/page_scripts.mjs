// Runs the scripts of the chat page without a browser: just enough of one that they can build what they show.

import { readFileSync } from "node:fs";

const [, , folder, task] = process.argv;
const input = JSON.parse(readFileSync(0, "utf8"));

class Node {
  constructor(name) { this.name = name; this.children = []; this.dataset = {}; }
  append(...more) { this.children.push(...more.filter((each) => each !== "")); }
  set textContent(text) { this.children = [text]; }
  get html() {
    const inner = this.children.map((each) => each instanceof Node ? each.html : each).join("");
    return this.name ? `<${this.name}>${inner}</${this.name}>` : inner;
  }
}

globalThis.document = {
  createDocumentFragment: () => new Node(""),
  createElement: (name) => new Node(name),
  createTextNode: (text) => text,
};
globalThis.localStorage = { getItem: (name) => input[name] ?? null };

const { render } = await import(`${folder}/markdown.js`);
const { loadConversations, loadSettings } = await import(`${folder}/store.js`);

const told = {
  render: () => render(input.text).html,
  load: () => ({ conversations: loadConversations(), settings: loadSettings() }),
  finish: () => { render(input.text); return true; },
}[task]();
console.log(JSON.stringify(told));
