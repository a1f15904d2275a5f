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

const readToken = () => new URLSearchParams(location.hash.slice(1)).get("token");
const bearer = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

async function followOnce(path, who, show) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENT_MS);
  const response = await fetch(path, { headers: bearer(readToken()), signal: stop.signal });
  if (response.status === 401) throw new Error("needs a token: add #token=… to the address");
  if (!response.ok) throw new Error(`${who} answers ${response.status}`);
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

/* Show what a server tells for as long as the page is open; `who` it is stands in messages. */
async function follow(path, who, show) {
  for (; ;) {
    try {
      await followOnce(path, who, show);
    } catch (error) {
      at("connection").textContent = `not connected (${error.message}); trying again`;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
