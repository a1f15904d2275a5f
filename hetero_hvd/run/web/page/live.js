"use strict";
// The page of a run: what it does now, what became of it so far, and orders to it.
const SVG = "http://www.w3.org/2000/svg";
const PLOTS_MS = 3000, ADVICE_MS = 60000, CLOCK_MS = 500;
const STALL_SECONDS = 10, STALL_INTERVALS = 10; // longer than so many usual intervals is told
let state = null;
let heardAt = 0; // when the state came, by our clock, which may be another than the driver's
let usualSeconds = 0; // between two exchanges

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const seconds = (value) => (value == null ? "–" : `${(value * 1e3).toFixed(0)} ms`);
const memory = (value) => (value == null ? "–" : `${(value / 2 ** 20).toFixed(0)} MiB`);
const figure = (value) => (value == null ? "no number" : short(value, 4));

function duration(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 60) return `${Math.floor(value)} s`;
  const minutes = Math.floor(value / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.floor(value % 60)} s`;
}

/* The driver's clock, as far as we know it. */
const now = () => state.now_unix_seconds + (performance.now() - heardAt) / 1e3;

/* Names and their values, changed in place: whoever selects text there keeps it. */
function facts(id, found) {
  const list = at(id);
  for (const item of [...list.children]) if (!(item.dataset.name in found)) item.remove();
  for (const [index, [name, value]] of Object.entries(found).entries()) {
    let item = [...list.children].find((one) => one.dataset.name === name);
    if (!item) {
      item = list.insertBefore(make("div", ""), list.children[index] ?? null);
      item.dataset.name = name;
      item.append(make("dt", name), make("dd", ""));
    }
    const dd = item.lastChild;
    if (dd.textContent !== String(value)) dd.textContent = value;
  }
}

const ending = () => (state?.state === "ended" ? `The run has ended: ${state.ending}` : "");

// Progress, once more with each tick of our clock

function showProgress() {
  if (!state) return;
  const { quality, stepped_at_unix_seconds: stepped, started_at_unix_seconds: started, ended_at_unix_seconds: ended } = state;
  const isOver = ending() !== "";
  const found = { state: state.ending || state.state, step: state.step < 0 ? "–" : state.step };
  const done = quality.total_steps ? Math.min(1, (state.step + 1) / quality.total_steps) : null;
  if (done != null) found.step = `${state.step} of ${quality.total_steps}`;
  if (state.epoch != null) found.epoch = state.epoch;
  if (done != null) found.done = `${(100 * done).toFixed(done < 0.1 ? 1 : 0)} %`;
  if (started != null) found.elapsed = duration(Math.max(0, (ended ?? now()) - started));
  if (quality.remaining_seconds != null && !isOver) found["time left"] = duration(quality.remaining_seconds);
  const silent = stepped == null ? null : Math.max(0, now() - stepped);
  if (silent != null && !isOver) found["last step"] = `${duration(silent)} ago`;
  if (state.loss != null) found.loss = state.loss.toPrecision(4);
  found["samples/s"] = number(state.samples_per_second);
  facts("progress-facts", found);
  at("progress").hidden = done == null;
  if (done != null) at("progress").value = done;
  const isStalled = silent != null && state.state === "training" && silent > Math.max(STALL_SECONDS, STALL_INTERVALS * usualSeconds);
  at("stall").hidden = !isStalled || state.severities.includes("bad"); // the verdict says more
  if (isStalled) at("stall").textContent = `No step for ${duration(silent)}.`;
  const percentDone = done == null ? "" : ` ${Math.floor(100 * done)} %`;
  document.title = `${state.name || state.run_id || "hetero-hvd"}${percentDone}: ${isStalled ? "stalled" : state.state}`;
  tell("news", isStalled ? "The run takes no steps any more." : ending() || (state.state === "training" ? "The run is training." : ""));
}

// Workers: their rows are changed in place, as they change all the time

const rows = new Map();
const GONE = ["drained", "ended", "finished", "quarantined"]; // who cannot be let go any more

function bar(parts) {
  const svg = shape("svg", { class: "bar", viewBox: "0 0 100 16", preserveAspectRatio: "none", role: "img" });
  for (const part of parts) svg.append(shape("rect", { fill: part.colour, y: 0, height: 16 }));
  return svg;
}

function showBar(svg, parts, worker, longest) {
  let x = 0;
  parts.forEach((part, index) => {
    const width = (100 * (worker.phases[part.name] || 0)) / longest;
    svg.children[index].setAttribute("x", x);
    svg.children[index].setAttribute("width", width);
    x += width;
  });
  const words = parts.map((part) => `${part.words} ${seconds(worker.phases[part.name])}`).join(", ");
  if (svg.ariaLabel !== words) svg.ariaLabel = words;
}

function newRow(name) {
  const svg = bar(state.parts);
  const tr = row("workers", [name, "", "", svg, "", "", "", "", "", "", button("Drain", name, (event) => drain(name, event.target))]);
  const found = { tr, svg, cells: [...tr.cells] };
  rows.set(name, found);
  return found;
}

function showWorkers() {
  const { parts, workers } = state;
  const sum = (worker) => parts.reduce((total, part) => total + (worker.phases[part.name] || 0), 0);
  const longest = Math.max(1e-9, ...workers.map(sum));
  workers.forEach((worker, index) => {
    const { tr, svg, cells } = rows.get(worker.name) ?? newRow(worker.name);
    if (at("workers").children[index] !== tr) at("workers").insertBefore(tr, at("workers").children[index] ?? null);
    tr.className = worker.slow_since_step == null ? "" : "slow";
    const told = [
      worker.name, worker.slow_since_step == null ? worker.state : `${worker.state}, slow (${worker.slow_cause ?? "unknown"})`,
      number(worker.share), null, seconds(worker.step_seconds), seconds(worker.lateness_seconds), number(worker.speed_ratio, 2),
      memory(worker.memory_bytes), percent(worker.device_utilization_ratio), String(worker.restarts), null,
    ];
    told.forEach((words, cell) => {
      if (words == null || cells[cell].textContent === words) return;
      cells[cell].textContent = words;
      cells[cell].classList.toggle("none", words === "–");
    });
    showBar(svg, parts, worker, longest);
    cells.at(-1).firstChild.hidden = GONE.includes(worker.state);
  });
}

function legend(part) {
  const item = make("span", "");
  const square = shape("svg", { viewBox: "0 0 1 1", "aria-hidden": true });
  square.append(shape("rect", { fill: part.colour, width: 1, height: 1 }));
  item.append(square, part.words);
  return item;
}

function machine(node, what, use, one, heldBack, usedBy) {
  return row("nodes", [
    node, what, percent(use), room(one.memory_used_bytes, one.memory_total_bytes), number(one.temperature_celsius),
    number(one.power_watts), heldBack.join(", ") || "–", usedBy.join("; ") || "–",
  ], heldBack.length ? "slow" : "");
}

const machines = (node) => [
  machine(node.name, "CPU", node.cpu_use_ratio, node, [], []),
  ...node.devices.map((gpu) =>
    machine(node.name, `GPU ${gpu.index} ${gpu.name}`, gpu.use_ratio, gpu, gpu.held_back, gpu.used_by)),
];

function achieved(quality) {
  const found = {};
  if (quality.learning_rates.length) found["learning rate"] = quality.learning_rates.map(figure).join(" ");
  for (const [name, value] of Object.entries(quality.evaluation)) found[`${name}, step ${quality.evaluated_step}`] = figure(value);
  for (const [name, value] of Object.entries(quality.logged)) found[name] = figure(value);
  if (quality.checkpoint_step != null) found.checkpoint = `step ${quality.checkpoint_step}`;
  if (quality.best_checkpoint_step != null) found["best checkpoint"] = `step ${quality.best_checkpoint_step}`;
  return found;
}

function show(told) {
  const before = state?.stepped_at_unix_seconds;
  state = told;
  heardAt = performance.now();
  const passed = (state.stepped_at_unix_seconds ?? 0) - (before ?? Infinity);
  if (passed > 0) usualSeconds = usualSeconds ? 0.8 * usualSeconds + 0.2 * passed : passed;
  at("run").textContent = [state.name, state.run_id].filter(Boolean).join(" · ");
  showProgress();
  put("verdict", [state.verdict, state.severities], () => state.verdict.map((sentence, index) => make("p", sentence, state.severities[index] ?? "info")));
  facts("quality", achieved(state.quality));
  put("legend", state.parts, () => state.parts.map(legend));
  showWorkers();
  at("machines").hidden = !state.nodes.length;
  put("nodes", state.nodes, () => state.nodes.flatMap(machines));
  put("events", state.events, () => state.events.slice().reverse().map(([time, words]) =>
    make("li", `${new Date(time * 1000).toLocaleTimeString()}  ${words}`)));
}

// What is asked for

const ask = async (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return answered(await fetch(`${path}?${new URLSearchParams(given)}`, { headers: bearer(readToken()) }));
};

const beside = new Set(); // folders of runs that are in the plots, too

const board = new PlotBoard(at("plots"), async (wanted) => {
  try {
    const view = await ask("plots", { ...wanted, with: [...beside].join("/") });
    tell("plots-status", view.left_out.join(" ") || (view.workers.length || view.plots.some((plot) => plot.steps.length) ? "" : "No step has been measured yet."));
    return view;
  } catch (error) {
    if (!ending()) tell("plots-status", problem(error), true);
    return board.view ?? { workers: [], first_step: null, last_step: null, first_unix_seconds: null, last_unix_seconds: null, plots: [], marks: [] };
  }
});

async function showAdvice() {
  const lines = await ask("advice");
  put("advice", lines, () => lines.map((line) => make("li", line)));
  at("advice").hidden = !lines.length;
}

function linked(run) {
  const url = run.url && URL.canParse(run.url) ? new URL(run.url) : null;
  if (run.is_this) return "this one";
  if (!url || !["http:", "https:"].includes(url.protocol)) return make("code", `hetero-hvd report ${run.folder}`);
  const link = make("a", "its page");
  link.href = url.href; // without our token: whoever can write there has written the address
  link.dataset.key = `run ${run.folder}`;
  return link;
}

function overlay({ folder, label, is_this }) {
  if (is_this) return "–";
  const box = Object.assign(make("input", ""), { type: "checkbox", ariaLabel: `Overlay ${label}`, checked: beside.has(folder) });
  box.onchange = () => {
    beside[box.checked ? "add" : "delete"](folder);
    board.axis.value = "step";
    board.look();
  };
  return box;
}

async function showRuns() {
  try {
    const runs = await ask("runs");
    put("runs", runs, () => runs.map((run) => row("runs", [
      run.label, overlay(run), run.is_running ? "running" : "not running", when(run.started_at_unix_seconds), linked(run),
    ])));
    tell("runs-status", runs.length ? "" : "This run keeps no records.");
  } catch (error) {
    tell("runs-status", problem(error), true);
  }
}

// Orders: each shows the token that stands in its field now; it is kept nowhere else.

async function order(path, body, by) {
  by.after(at("order-status")); // one for all, so that it is read once
  tell("order-status", "…");
  try {
    const headers = { "Content-Type": "application/json", ...bearer(at("token").value) };
    tell("order-status", (await answered(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }))).done);
  } catch (error) {
    tell("order-status", problem(error), true);
    if (error.status === 401) at("token").focus();
  }
}

function drain(worker, by) {
  if (confirm(`Let ${worker} go? The others train on with its samples.`)) order("drain", { target: worker }, by);
}

at("trace").onclick = (event) => order("trace", { steps: at("trace-steps").valueAsNumber }, event.target);
at("stop").onclick = (event) => { if (confirm("Stop the whole run?")) order("stop", {}, event.target); };

/* Do it again and again while somebody looks. */
async function repeat(act, milliseconds) {
  for (; ;) {
    const began = performance.now();
    if (!document.hidden) await act().catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, Math.max(milliseconds, 20 * (performance.now() - began))));
  }
}

at("runs-beside").ontoggle = () => at("runs-beside").open && showRuns();
for (const table of document.querySelectorAll("table")) table.role = "table";
for (const th of document.querySelectorAll("th")) th.scope = "col";
setInterval(showProgress, CLOCK_MS);
follow("events", "the driver", show, ending);
repeat(() => board.draw(), PLOTS_MS);
repeat(showAdvice, ADVICE_MS);
