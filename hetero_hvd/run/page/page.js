"use strict";
// What all pages share. Everything from outside is written with textContent: no name or message can
// become markup.
const RETRY_MS = 2000;
const SILENT_MS = 40000; // the server says something every 15 s
const at = (id) => document.getElementById(id);

function make(tag, text, kind) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

const number = (value, digits = 0) => (value == null ? "–" : value.toFixed(digits));
const percent = (value) => (value == null ? "–" : `${Math.round(value * 100)} %`);
const room = (used, total) =>
  used == null || total == null ? "–" : `${(used / 2 ** 30).toFixed(1)} of ${(total / 2 ** 30).toFixed(1)}`;

const when = (seconds) => (seconds == null ? "–" : new Date(seconds * 1000).toLocaleString());
const problem = (error) => (error instanceof TypeError ? "no answer" : error.message); // from fetch

async function answered(response) {
  const told = await response.json().catch(() => ({}));
  if (response.ok) return told;
  const failure = new Error(told.error ?? `the server answers ${response.status}`);
  failure.status = response.status;
  throw failure;
}

/* Say something where it is read aloud; the same words twice are no news. */
function tell(id, words, isBad = false) {
  if (at(id).textContent !== words) at(id).textContent = words;
  at(id).classList.toggle("bad", isBad);
}

/* A row whose cells say what they are, for narrow screens and for who does not see them. */
function row(table, cells, kind) {
  const tr = make("tr", "", kind);
  tr.role = "row";
  const heads = at(table).closest("table").tHead.rows[0].cells;
  cells.forEach((cell, index) => {
    const td = make("td", "", heads[index].className);
    td.role = "cell";
    td.dataset.label = heads[index].textContent;
    td.append(cell);
    if (cell === "–") td.classList.add("none");
    tr.append(td);
  });
  return tr;
}

/* Put what is told into an element if that is news, and say so: whoever has the focus there keeps it. */
function put(table, told, rows) {
  const text = JSON.stringify(told);
  if (at(table).dataset.told === text) return false;
  at(table).dataset.told = text;
  const focused = document.activeElement?.dataset?.key;
  at(table).replaceChildren(...rows());
  if (focused) [...at(table).querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
  return true;
}

function button(words, key, act) {
  const found = make("button", words);
  found.dataset.key = `${words} ${key}`;
  found.ariaLabel = `${words} ${key}`;
  found.onclick = act;
  return found;
}

const readToken = () => new URLSearchParams(location.hash.slice(1)).get("token");
const bearer = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

async function followOnce(path, who, show) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENT_MS);
  const response = await fetch(path, { headers: bearer(readToken()), signal: stop.signal });
  if (!response.ok) await answered(response);
  at("connection").textContent = "live";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error(`${who} has ended`);
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENT_MS);
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    const news = parts.filter((part) => part.startsWith("data: "));
    if (news.length) show(JSON.parse(news[news.length - 1].slice(6)));
  }
}

/* Show what a server tells for as long as the page is open; `who` it is stands in messages; `whyNot`: why it is gone, if that is no fault. */
async function follow(path, who, show, whyNot = () => "") {
  for (; ;) {
    try {
      await followOnce(path, who, show);
    } catch (error) {
      at("connection").textContent = whyNot() || `not connected (${problem(error)}); trying again`;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
