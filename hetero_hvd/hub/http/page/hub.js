"use strict";
// The page of a hub: its fleet, sessions, their plots and all runs. It asks the hub's API for all of it.
const NODES_SHOWN = 25, LATEST_MS = 2000, RUNS_MS = 30000, RUNS_A_PART = 200, PLOT_MS = 5000;
const FIRST_FIGURES = ["use_ratio", "cpu_use_ratio"];
const SERIES_SHOWN = 50;
const UNITS = [ // how names end, what is shown, and how much of the name's unit that is
  ["_bytes_per_second", "MB/s", 1e6], ["_bytes", "GiB", 2 ** 30], ["_ratio", "%", 0.01], ["_celsius", "°C", 1],
  ["_watts", "W", 1], ["_hertz", "MHz", 1e6], ["_joules", "kJ", 1e3], ["_seconds", "s", 1],
];
const UNITS_OF_PROGRAMS = [ // of whose values nobody knows how large they are
  ["_bytes_per_second", "B/s", 1], ["_bytes", "B", 1], ["_ratio", "%", 0.01], ["_celsius", "°C", 1],
  ["_watts", "W", 1], ["_hertz", "Hz", 1], ["_joules", "J", 1], ["_seconds", "s", 1], ["_total", "count", 1],
];
let news = { nodes: [], sessions: [] };
let latest = new Map();
let runs = [];
let partsOfRuns = 1;
let plotted = null; // {name, node, figure, from, to}: from and to are null for all of the session
let inPlot = null; // the series in the plot
let timer = 0;
const marksOfRuns = new Map();

const every = (seconds) => (seconds == null ? "–" : `${Number(seconds.toPrecision(3))} s`);
const ask = async (path, query = {}) =>
  answered(await fetch(`v1/${path}?${new URLSearchParams(query)}`, { headers: bearer(readToken()) }));

/* What a figure is called, the unit in which it is shown, and how much of its own that is. */
function described(figure, kind) {
  const units = kind === "program" ? UNITS_OF_PROGRAMS : UNITS;
  const [ending, unit, factor] = units.find(([end]) => figure.endsWith(end)) ?? ["", "", 1];
  return { title: figure.slice(0, figure.length - ending.length).replaceAll("_", " "), unit, factor };
}

const kindOf = (name) => news.nodes.find(({ node }) => node === name)?.kind;

// The fleet, and other programs

function machines({ node, is_healthy: isHealthy, has_left: hasLeft, newest_unix_seconds: newest }) {
  const sample = latest.get(node)?.sample;
  const kind = isHealthy ? "" : "silent";
  const state = isHealthy ? "heard" : `${hasLeft ? "has said good-bye" : "not heard"}, last sample ${when(newest)}`;
  const line = (device, use, one) => {
    const tr = row("fleet", [
      node, device, percent(use), room(one.memory_used_bytes, one.memory_total_bytes),
      number(one.temperature_celsius ?? one.cpu_temperature_celsius), number(one.power_watts ?? one.package_power_watts),
      every(sample?.seconds), state,
    ], kind);
    tr.lastChild.classList.add("state");
    return tr;
  };
  if (!sample) return [line("not told yet", null, {})];
  return [
    line("CPU", sample.cpu_use_ratio, sample),
    ...sample.devices.map((gpu) => line(`GPU ${gpu.index} ${gpu.name}`, gpu.use_ratio, gpu)),
  ];
}

/* The series of a program's newest sample. */
function seriesOf({ node }) {
  const found = latest.get(node);
  if (!found) return [row("programs", [node, "not told yet", "–", "–", "–"])];
  const series = Object.entries(found.sample.values).sort();
  const rows = series.slice(0, SERIES_SHOWN).map(([name, value]) => {
    const { title, unit, factor } = described(name, "program");
    return row("programs", [node, title, String(Number((value / factor).toPrecision(6))), unit, when(found.at_unix_seconds)]);
  });
  const more = series.length - rows.length;
  return more > 0 ? [...rows, row("programs", [node, `and ${more} more: a plot has all`, "–", "–", "–"])] : rows;
}

const parts = {
  fleet: { kind: "node", first: 0, rows: machines, known: [] },
  programs: { kind: "program", first: 0, rows: seriesOf, known: [] },
};

/* Of many nodes or programs, those that are looked at. */
function showPart(id) {
  const part = parts[id];
  part.known = news.nodes.filter(({ kind }) => kind === part.kind);
  part.first = Math.min(part.first, Math.max(0, part.known.length - 1));
  const shown = part.known.slice(part.first, part.first + NODES_SHOWN);
  put(id, [shown.map(({ node, is_healthy: well, has_left: left }) => [node, well, left]), shown.map(({ node }) => latest.get(node))],
    () => shown.flatMap(part.rows));
  at(`${id}-pager`).hidden = part.known.length <= NODES_SHOWN;
  at(`${id}-part`).textContent = `${part.first + 1} to ${part.first + shown.length} of ${part.known.length}`;
  at(`${id}-before`).disabled = !part.first;
  at(`${id}-after`).disabled = part.first + NODES_SHOWN >= part.known.length;
}

function showFleet() {
  showPart("fleet");
  showPart("programs");
  at("programs-section").hidden = !parts.programs.known.length;
  const nodes = parts.fleet.known.filter((node) => !node.has_left);
  const silent = nodes.filter((node) => !node.is_healthy).map((node) => node.node);
  const named = silent.length > 20 ? `${silent.slice(0, 20).join(", ")} and ${silent.length - 20} more` : silent.join(", ");
  tell("health", !nodes.length ? (parts.fleet.known.length ? "All nodes have said good-bye." : "No node has told anything yet.")
    : silent.length ? `${silent.length} of ${nodes.length} not heard: ${named}` : `All ${nodes.length} are heard.`, silent.length > 0);
}

async function askLatest() {
  const answers = await Promise.all(Object.values(parts).map(({ kind, first, known }) =>
    ask("latest", { kind, limit: NODES_SHOWN, ...(first ? { after: known[first - 1].node } : {}) })));
  latest = new Map(answers.flatMap(({ items }) => items).map((item) => [item.node, item]));
  showFleet();
}

function turn(id, by) {
  parts[id].first = Math.max(0, parts[id].first + by);
  showFleet();
  askLatest().catch((error) => tell("health", problem(error), true));
}

// Sessions

function limits({ keep_seconds: seconds, keep_bytes: bytes, notice }) {
  const told = [];
  if (seconds != null) told.push(`kept for ${Number((seconds / 86400).toPrecision(3))} d`);
  if (bytes != null) told.push(`at most ${Number((bytes / 1e9).toPrecision(3))} GB`);
  const both = make("span", told.join(", ") || "those of the hub");
  if (notice) both.append(make("span", notice, "notice"));
  return both;
}

function session(one) {
  const { name, until_unix_seconds: until, folder } = one;
  const orders = make("span", "");
  orders.append(button("Plot", name, () => choose(name)));
  if (until == null) orders.append(button("Stop", name, () => order(`sessions/${encodeURIComponent(name)}/stop`, {}, `stopped ${name}`)));
  else if (!folder) orders.append(button("Write", name, () => order("cuts", { name }, `wrote ${name}`)));
  const state = until == null ? "goes on" : folder ? "ended, written" : "ended, not written";
  return row("sessions", [
    name, state, one.from_unix_seconds ? when(one.from_unix_seconds) : "the first sample", when(until),
    one.nodes.join(", ") || "all", every(one.every_seconds), limits(one), orders,
  ]);
}

function showNews(told) {
  news = told;
  showFleet();
  put("sessions", news.sessions, () => news.sessions.map(session).reverse());
  const wanted = new URLSearchParams(location.hash.slice(1)).get("session");
  if (!plotted && wanted && news.sessions.some((one) => one.name === wanted)) choose(wanted);
}

// Orders: each shows the token that stands in its field now; it is kept nowhere else.

async function order(path, body, done) {
  tell("order-status", "…");
  try {
    const headers = { "Content-Type": "application/json", ...bearer(at("token").value) };
    const told = await answered(await fetch(`v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
    const silent = told.silent?.length ? `; not heard: ${told.silent.join(", ")}` : "";
    tell("order-status", `${done}${silent}`);
  } catch (error) {
    tell("order-status", problem(error), true);
    if (error.status === 401) at("token").focus();
  }
}

const nodesIn = (form) => form.nodes.value.split(",").map((node) => node.trim()).filter(Boolean);

at("start").onsubmit = (event) => {
  event.preventDefault();
  const { elements } = event.target;
  const name = elements.name.value;
  const [days, gigabytes] = [elements.days, elements.gigabytes].map((field) => field.valueAsNumber);
  const wanted = { name, nodes: nodesIn(elements), every_seconds: elements.every.valueAsNumber };
  if (days) wanted.keep_seconds = days * 86400;
  if (gigabytes) wanted.keep_bytes = Math.round(gigabytes * 1e9);
  order("sessions", wanted, `started ${name}`);
};

at("cut").onsubmit = (event) => {
  event.preventDefault();
  const { elements } = event.target;
  const [from, to] = [elements.from, elements.to].map((field) => new Date(field.value).getTime() / 1000);
  const name = elements.name.value;
  order("cuts", { name, nodes: nodesIn(elements), from_unix_seconds: from, to_unix_seconds: to }, `cut ${name}`);
};

at("cut-plot").onclick = () => {
  if (!plot.told) return tell("order-status", "no session is plotted: choose Plot of one", true);
  const { elements } = at("cut");
  const local = (seconds) => new Date((seconds - new Date(seconds * 1000).getTimezoneOffset() * 60) * 1000).toISOString().slice(0, 19);
  elements.from.value = local(Math.floor(plot.told.from));
  elements.to.value = local(Math.ceil(plot.told.to));
  elements.nodes.value = plotted.node;
};

// A session's plot

const plot = new TimePlot(at("plot"), (from, to) => {
  Object.assign(plotted, { from: from ?? null, to: to ?? null });
  drawPlot();
});

/* Groups of choices: {label, choices: [[words, value]]}. */
function options(id, groups, chosen) {
  put(id, groups, () => groups.filter(({ choices }) => choices.length).map(({ label, choices }) => {
    const group = make("optgroup", "");
    group.label = label;
    group.append(...choices.map(([words, value]) => new Option(words, value)));
    return group;
  }));
  at(id).value = chosen;
}

function choose(name) {
  const { nodes } = news.sessions.find((one) => one.name === name);
  const known = news.nodes.filter(({ node }) => !nodes.length || nodes.includes(node));
  const of = (wanted) => known.filter(({ kind }) => kind === wanted).map(({ node }) => [node, node]);
  const groups = [{ label: "Nodes", choices: of("node") }, { label: "Other programs", choices: of("program") }];
  plotted = { name, node: groups.flatMap(({ choices }) => choices)[0]?.[1], figure: null, from: null, to: null };
  at("plot-section").hidden = false;
  at("plot-title").textContent = `Session ${name}`;
  options("plot-node", groups, plotted.node);
  at("plot-title").focus();
  drawPlot();
}

at("plot-node").onchange = () => { Object.assign(plotted, { node: at("plot-node").value, figure: null }); drawPlot(); };
at("plot-figure").onchange = () => { plotted.figure = at("plot-figure").value; drawPlot(); };

/* What is wanted of the session; one that begins with the first sample begins where that is. */
async function timesOf(one) {
  const newest = Math.max(0, ...news.nodes.map((node) => node.newest_unix_seconds ?? 0));
  const to = one.until_unix_seconds ?? newest + 1;
  if (one.from_unix_seconds) return [one.from_unix_seconds, Math.max(to, one.from_unix_seconds + 1)];
  const { at_unix_seconds: times } = await ask("series", { node: plotted.node, figure: FIRST_FIGURES[0], from: 0, to, points: 1 });
  return [times[0] ?? 0, to];
}

async function figureOf({ node, figure, from, to }) {
  const points = plot.size().width;
  const query = (name) => ({ node, from, to, points, figure: name });
  let told = await ask("series", query(figure ?? FIRST_FIGURES[0]));
  if (!figure && !told.series.length && told.figures.length) {
    told = await ask("series", query(FIRST_FIGURES.find((name) => told.figures.includes(name)) ?? told.figures[0]));
  }
  return told;
}

async function drawPlot(isAgain = false) {
  const mine = plotted;
  const asked = JSON.stringify(mine);
  clearTimeout(timer);
  if (!mine.node) return tell("plot-status", "No node of this session has told anything yet.");
  const one = news.sessions.find(({ name }) => name === mine.name);
  const began = performance.now();
  if (!isAgain) tell("plot-status", "reading …");
  try {
    const all = await timesOf(one);
    const [from, to] = mine.from == null ? all : [mine.from, mine.to].map((at) => Math.min(all[1], Math.max(all[0], at)));
    const told = await figureOf({ ...mine, from, to });
    if (JSON.stringify(plotted) !== asked) return; // another one was chosen meanwhile
    inPlot = told;
    await showSeries(told);
    tell("plot-status", told.series.length ? "" : "Nothing is known of this time.");
    at("plot").dataset.drawn = `${mine.name} ${mine.node} ${told.figure} ${from} ${to}`;
  } catch (error) {
    if (JSON.stringify(plotted) === asked) tell("plot-status", problem(error), true);
  }
  const isLive = one?.until_unix_seconds == null && mine.from == null;
  if (isLive && JSON.stringify(plotted) === asked) timer = setTimeout(() => drawPlot(true), Math.max(PLOT_MS, 20 * (performance.now() - began)));
}

/* Runs become known before or after a series: either way their marks are on its axis. */
async function showSeries(told) {
  const marks = await marksBetween(told.node, told.from_unix_seconds, told.to_unix_seconds);
  if (told !== inPlot) return;
  const kind = kindOf(told.node);
  const { title: name, unit, factor } = described(told.figure, kind);
  const title = kind === "program" ? `${name}, told by the program ${told.node}` : name;
  const choices = [...new Set([told.figure, ...told.figures])].sort().map((figure) => {
    const one = described(figure, kind);
    return [`${one.title}, ${one.unit}`, figure];
  });
  options("plot-figure", [{ label: kind === "program" ? "Series" : "Figures", choices }], told.figure);
  plot.show({
    title, unit, from: told.from_unix_seconds, to: told.to_unix_seconds, times: told.at_unix_seconds,
    lines: told.series.map(({ device, values }) => ({
      label: kind === "program" ? name : device === "node" ? told.node : `GPU ${device}`,
      values: values.map((value) => (value == null ? null : value / factor)),
    })),
    shaded: told.unhealthy, shadedWords: `${told.node} was not heard`, marks,
  });
}

// Runs

const goesOn = (run, from, to) => (run.started_at_unix_seconds ?? 0) <= to && (run.ended_at_unix_seconds ?? to) >= from;

/* What happened in the runs of a node, for the axis of its figures; a program is of no node, and has all. */
async function marksBetween(node, from, to) {
  const isAnyone = kindOf(node) === "program";
  const isThere = (run) => isAnyone || (run.nodes ?? []).includes(node);
  const there = runs.filter((run) => run.kind === "run" && isThere(run) && goesOn(run, from, to));
  const found = await Promise.all(there.map(async (run) => {
    const known = marksOfRuns.get(run.id);
    if (known && run.state !== "running") return known;
    const told = await ask(`runs/${encodeURIComponent(run.id)}`).catch((error) => {
      if (error.status === 404) return {};
      throw error;
    });
    const marks = (told.marks ?? []).map((mark) => ({ at: mark.at_unix_seconds, kind: mark.kind, text: `${run.name ?? run.id}: ${mark.text}` }));
    marksOfRuns.set(run.id, marks);
    return marks;
  }));
  return found.flat().sort((a, b) => a.at - b.at);
}

function linked(run) {
  const words = run.name || run.id;
  const url = run.url && URL.canParse(run.url, location.href) ? new URL(run.url, location.href) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) return words;
  const link = make("a", words);
  link.href = url.href;
  link.dataset.key = `run ${run.id}`;
  return link;
}

async function askRuns() {
  const found = [];
  let after = null;
  for (let part = 0; part < partsOfRuns && (after || !part); part += 1) {
    const { items, next } = await ask("runs", { limit: RUNS_A_PART, ...(after ? { after } : {}) });
    found.push(...items);
    after = next;
  }
  runs = found.sort((a, b) => (b.started_at_unix_seconds ?? 0) - (a.started_at_unix_seconds ?? 0));
  const isNews = put("runs", runs, () => runs.map((run) => row("runs", [
    linked(run), run.kind, run.state, when(run.started_at_unix_seconds), when(run.ended_at_unix_seconds),
    (run.nodes ?? []).join(", ") || "–", run.last_step == null ? "–" : String(run.last_step),
  ])));
  if (isNews && inPlot) await showSeries(inPlot);
  tell("runs-status", runs.length ? "" : "There are none yet.");
  at("runs-more").hidden = !after;
}

// What goes on

/* Do it again and again while somebody looks; tell in a status what fails. */
async function repeat(act, milliseconds, status) {
  for (; ;) {
    if (!document.hidden) await act().catch((error) => tell(status, problem(error), true));
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
  }
}

for (const id of Object.keys(parts)) {
  at(`${id}-before`).onclick = () => turn(id, -NODES_SHOWN);
  at(`${id}-after`).onclick = () => turn(id, NODES_SHOWN);
}
at("runs-more").onclick = () => { partsOfRuns += 1; askRuns().catch((error) => tell("runs-status", problem(error), true)); };
for (const part of document.querySelectorAll("table")) part.setAttribute("role", "table");
follow("v1/events", "the hub", showNews);
repeat(askLatest, LATEST_MS, "health");
repeat(askRuns, RUNS_MS, "runs-status");
