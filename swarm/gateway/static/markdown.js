// Markdown to DOM nodes. Builds elements and text nodes only, so nothing a model writes can become markup.

const BLOCK = /^(#{1,4}) +(.*)$|^(```+|~~~+) *([\w+#.-]*)|^ {0,3}([-*_])( *\5){2,} *$|^> ?|^ *([-*+]|\d{1,9}[.)]) +/;
// Every repetition is bounded, so that what begins a thousand times and never ends is not looked for to the end each time.
const INLINE = /(?<!`)(`{1,8})(?!`)(.{1,1000}?)(?<!`)\1(?!`)|\*\*(?=\S)(.{1,1000}?\S?)\*\*|\*(?=\S)([^*]{1,1000}?)\*|(?<![\w])_(?=\S)([^_]{1,1000}?)_(?!\w)|~~(.{1,1000}?)~~|\[([^[\]]{1,500})\]\((https?:\/\/[^\s)]{1,2000})\)|(https?:\/\/[^\s<>()]{1,2000}[^\s<>().,;:!?"'])|\\([\\`*_{}[\]()#+.!~|>-])/s;

/** The blocks of a text as a fragment. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  blocks(text.replaceAll("\r\n", "\n").split("\n"), fragment, 0);
  return fragment;
}

function blocks(lines, parent, depth) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) { at += 1; continue; }
    const match = BLOCK.exec(line);
    if (match?.[1]) { parent.append(inline(match[2], element(`h${match[1].length}`))); at += 1; }
    else if (match?.[3]) at = fence(lines, at, match[3], parent);
    else if (match?.[5]) { parent.append(element("hr")); at += 1; }
    else if (line.startsWith(">") && depth < 8) at = quote(lines, at, parent, depth);
    else if (match?.[7] && depth < 8) at = list(lines, at, parent, depth);
    else if (line.includes("|") && isRule(lines[at + 1] ?? "")) at = table(lines, at, parent);
    else at = paragraph(lines, at, parent, depth);
  }
}

function fence(lines, start, mark, parent) {
  let end = start + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().slice(mark.length).trim())) end += 1;
  const source = lines.slice(start + 1, end).join("\n");
  const box = element("div", "code"), copy = element("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.dataset.copy = "";
  const pre = element("pre"), code = element("code");
  pre.tabIndex = 0;
  code.textContent = source;
  pre.append(code);
  box.append(pre, copy);
  parent.append(box);
  return end + 1;
}

function quote(lines, start, parent, depth) {
  let end = start;
  while (end < lines.length && lines[end].startsWith(">")) end += 1;
  const box = element("blockquote");
  blocks(lines.slice(start, end).map((line) => line.replace(/^> ?/, "")), box, depth + 1);
  parent.append(box);
  return end;
}

function list(lines, start, parent, depth) {
  const first = /^( *)([-*+]|\d{1,9}[.)])( +)/.exec(lines[start]);
  const ordered = /\d/.test(first[2]);
  const box = element(ordered ? "ol" : "ul");
  if (ordered) box.start = parseInt(first[2], 10);
  let at = start;
  while (at < lines.length) {
    const item = /^( *)([-*+]|\d{1,9}[.)])( +)/.exec(lines[at]);
    if (!item || item[1].length > first[1].length + 1 || /\d/.test(item[2]) !== ordered || item[1].length < first[1].length) break;
    const indent = item[0].length, own = [lines[at].slice(indent)];
    at += 1;
    while (at < lines.length && (indentOf(lines[at]) > first[1].length || (!lines[at].trim() && indentOf(lines[at + 1] ?? "") > first[1].length))) {
      own.push(lines[at].slice(Math.min(indentOf(lines[at]), indent)));
      at += 1;
    }
    const entry = element("li");
    if (own.length === 1) inline(own[0], entry);
    else { inline(own[0], entry); blocks(own.slice(1), entry, depth + 1); }
    box.append(entry);
    if (!lines[at]?.trim() && /^ *([-*+]|\d{1,9}[.)]) +/.test(lines[at + 1] ?? "")) at += 1;
  }
  parent.append(box);
  return at;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
}

/** Whether a line is the one between a table's head and its body. */
function isRule(line) {
  return line.includes("|") && cells(line).every((cell) => /^:?-+:?$/.test(cell));
}

function table(lines, start, parent) {
  const box = element("div", "table"), grid = element("table"), head = element("tr");
  box.tabIndex = 0;
  for (const cell of cells(lines[start])) head.append(inline(cell, element("th")));
  grid.append(head);
  let at = start + 2;
  for (; at < lines.length && lines[at].includes("|"); at += 1) {
    const row = element("tr");
    for (const cell of cells(lines[at])) row.append(inline(cell, element("td")));
    grid.append(row);
  }
  box.append(grid);
  parent.append(box);
  return at;
}

function paragraph(lines, start, parent, depth) {
  let end = start + 1;
  while (end < lines.length && lines[end].trim() && !(BLOCK.test(lines[end]) && depth < 8)) end += 1;
  const box = element("p");
  lines.slice(start, end).forEach((line, index) => {
    if (index) box.append(element("br"));
    inline(line.trim(), box);
  });
  parent.append(box);
  return end;
}

function inline(text, parent, depth = 0) {
  let rest = text;
  while (rest) {
    const match = depth < 6 ? INLINE.exec(rest) : null;
    if (!match) break;
    parent.append(rest.slice(0, match.index));
    parent.append(span(match, depth));
    rest = rest.slice(match.index + match[0].length);
  }
  parent.append(rest);
  return parent;
}

function span(match, depth) {
  const [, , code, strong, star, under, gone, label, target, bare, escaped] = match;
  if (code !== undefined) { const box = element("code"); box.textContent = code; return box; }
  if (strong !== undefined) return inline(strong, element("strong"), depth + 1);
  if (star !== undefined) return inline(star, element("em"), depth + 1);
  if (under !== undefined) return inline(under, element("em"), depth + 1);
  if (gone !== undefined) return inline(gone, element("s"), depth + 1);
  if (escaped !== undefined) return document.createTextNode(escaped);
  const link = element("a");
  link.href = target ?? bare;
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  if (label !== undefined) inline(label, link, depth + 1);
  else link.textContent = bare;
  return link;
}

function indentOf(line) {
  return line.trim() ? line.length - line.trimStart().length : -1;
}

function element(name, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
}
