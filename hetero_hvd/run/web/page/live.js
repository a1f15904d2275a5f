"use strict";
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const seconds = (value) => (value == null ? "–" : `${(value * 1e3).toFixed(0)} ms`);
const memory = (value) => (value == null ? "–" : `${(value / 2 ** 20).toFixed(0)} MiB`);

function bar(parts, worker, longest) {
  const svg = shape("svg", { class: "bar", viewBox: "0 0 100 16", preserveAspectRatio: "none" });
  let x = 0;
  for (const part of parts) {
    const width = (100 * (worker.phases[part.name] || 0)) / longest;
    const rect = shape("rect", { fill: part.colour, x, y: 0, width, height: 16 });
    const title = shape("title", {});
    title.textContent = `${part.words} ${seconds(worker.phases[part.name])}`;
    rect.append(title);
    svg.append(rect);
    x += width;
  }
  return svg;
}

function row(parts, worker, longest) {
  const tr = make("tr", "", worker.slow_since_step == null ? "" : "slow");
  const phases = make("td", "", "bar");
  phases.append(bar(parts, worker, longest));
  tr.append(
    make("td", worker.name), make("td", worker.state), make("td", number(worker.share), "n"), phases,
    make("td", seconds(worker.step_seconds), "n"),
    make("td", seconds(worker.lateness_seconds), "n"), make("td", number(worker.speed_ratio, 2), "n"),
    make("td", memory(worker.memory_bytes), "n"),
    make("td", percent(worker.device_utilization_ratio), "n"), make("td", worker.restarts, "n"),
  );
  return tr;
}

function machine(node, what, use, one, heldBack, usedBy) {
  const tr = make("tr", "", heldBack.length ? "slow" : "");
  tr.append(
    make("td", node), make("td", what), make("td", percent(use), "n"),
    make("td", room(one.memory_used_bytes, one.memory_total_bytes), "n"),
    make("td", number(one.temperature_celsius), "n"), make("td", number(one.power_watts), "n"),
    make("td", heldBack.join(", ")), make("td", usedBy.join("; ")),
  );
  return tr;
}

const machines = (node) => [
  machine(node.name, "CPU", node.cpu_use_ratio, node, [], []),
  ...node.devices.map((gpu) =>
    machine(node.name, `GPU ${gpu.index} ${gpu.name}`, gpu.use_ratio, gpu, gpu.held_back, gpu.used_by)),
];

function plot(points) {
  const top = Math.max(1, ...points.map((point) => point[1]));
  const [first, last] = points.length ? [points[0][0], points[points.length - 1][0]] : [0, 0];
  const x = (time) => (800 * (time - first)) / Math.max(1e-9, last - first);
  const line = points.map(([time, speed]) => `${x(time)},${155 - (150 * speed) / top}`).join(" ");
  const attributes = { points: line, fill: "none", stroke: "#2563eb", "stroke-width": 2 };
  at("plot").replaceChildren(shape("polyline", attributes));
  at("scale").textContent = `top: ${number(top)} samples/s; the last ${number(last - first)} s`;
}

function legend(part) {
  const item = make("span", "");
  const square = shape("svg", { viewBox: "0 0 1 1" });
  square.append(shape("rect", { fill: part.colour, width: 1, height: 1 }));
  item.append(square, part.words);
  return item;
}

function pair([name, value]) {
  const both = make("div", "");
  both.append(make("dt", name), make("dd", value));
  return both;
}

const figure = (value) => (value == null ? "no number" : String(Number(value.toPrecision(4))));

function achieved(quality) {
  const found = {};
  if (quality.learning_rates.length) found["learning rate"] = quality.learning_rates.map(figure).join(" ");
  if (quality.remaining_seconds != null) found["time left"] = `${(quality.remaining_seconds / 60).toFixed(1)} min`;
  for (const [name, value] of Object.entries(quality.evaluation)) found[`${name}, step ${quality.evaluated_step}`] = figure(value);
  for (const [name, value] of Object.entries(quality.logged)) found[name] = figure(value);
  if (quality.checkpoint_step != null) found.checkpoint = `step ${quality.checkpoint_step}`;
  if (quality.best_checkpoint_step != null) found["best checkpoint"] = `step ${quality.best_checkpoint_step}`;
  return found;
}

function show(state) {
  at("run").textContent = state.run_id;
  at("verdict").replaceChildren(...state.verdict.map((sentence) => make("p", sentence)));
  const facts = {
    state: state.state, step: state.step < 0 ? "–" : state.step, epoch: state.epoch ?? "–",
    loss: state.loss == null ? "–" : state.loss.toPrecision(4),
    "samples/s": number(state.samples_per_second),
  };
  at("facts").replaceChildren(...Object.entries(facts).map(pair));
  at("quality").replaceChildren(...Object.entries(achieved(state.quality)).map(pair));
  at("legend").replaceChildren(...state.parts.map(legend));
  const sum = (worker) => state.parts.reduce((total, part) => total + (worker.phases[part.name] || 0), 0);
  const longest = Math.max(1e-9, ...state.workers.map(sum));
  at("workers").replaceChildren(...state.workers.map((worker) => row(state.parts, worker, longest)));
  at("machines").hidden = !state.nodes.length;
  at("nodes").replaceChildren(...state.nodes.flatMap(machines));
  plot(state.throughput);
  at("events").replaceChildren(...state.events.slice().reverse().map(([time, words]) =>
    make("li", `${new Date(time * 1000).toLocaleTimeString()}  ${words}`)));
}

follow("events", "the driver", show);
