"use strict";
const run = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#2563eb", "#059669", "#d97706", "#7c3aed", "#dc2626", "#0891b2", "#be185d", "#65a30d"];
const W = 900, H = 210, LEFT = 62, RIGHT = 12, TOP = 8, BOTTOM = 22;
const SPACE = "http://www.w3.org/2000/svg";
const ends = [run.steps, ...run.curves.map((curve) => curve.steps)].filter((steps) => steps.length);
const everything = [Math.min(...ends.map((steps) => steps[0])), Math.max(...ends.map((steps) => steps.at(-1)))]
  .map((step, i) => (Number.isFinite(step) ? step : i));
let view = everything;
const hidden = new Set();
const plots = [];

function make(name, text) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return element;
}
function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
function short(value) {
  return value === null || value === undefined ? "not measured"
    : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}
const tip = document.body.appendChild(make("div"));
tip.id = "tip";
tip.hidden = true;

/* One plot: series are {name, values}; stacked ones are added up; steps are those of the values. */
function plot(title, unit, series, stacked, steps = run.steps) {
  const box = document.getElementById("plots").appendChild(make("section"));
  box.append(make("h2", `${title}, ${unit}`));
  const svg = draw(box, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  const legend = box.appendChild(make("p"));
  legend.className = "legend";
  series.forEach((one, index) => {
    one.colour = run.colours[one.name] ?? COLOURS[index % COLOURS.length];
    if (series.length < 2) return;
    const button = legend.appendChild(make("button"));
    const colour = button.appendChild(make("i"));
    colour.style.background = one.colour;
    button.append(one.name);
    button.setAttribute("aria-pressed", "true");
    button.onclick = () => {
      const key = `${title}/${one.name}`;
      if (!hidden.delete(key)) hidden.add(key);
      button.setAttribute("aria-pressed", String(!hidden.has(key)));
      render(me);
    };
  });
  const me = { title, unit, series, stacked, steps, svg };
  plots.push(me);
  listen(me);
  render(me);
}

function scale(me) {
  const inside = me.steps.map((step, i) => i).filter((i) => me.steps[i] >= view[0] && me.steps[i] <= view[1]);
  const shown = me.series.filter((one) => !hidden.has(`${me.title}/${one.name}`));
  const height = (i) => me.stacked
    ? shown.reduce((sum, one) => sum + (one.values[i] ?? 0), 0)
    : Math.max(0, ...shown.map((one) => one.values[i] ?? 0));
  const low = me.stacked ? 0 : Math.min(0, ...inside.flatMap((i) => shown.map((one) => one.values[i] ?? 0))) * 1.05;
  const top = inside.reduce((most, i) => Math.max(most, height(i)), 0) * 1.05 || (low ? 0 : 1);
  const width = view[1] - view[0] || 1;
  return {
    inside, shown, low, top,
    x: (step) => LEFT + (step - view[0]) / width * (W - LEFT - RIGHT),
    y: (value) => H - BOTTOM - (value - low) / (top - low) * (H - TOP - BOTTOM),
    step: (x) => view[0] + (x - LEFT) / (W - LEFT - RIGHT) * width,
  };
}

function render(me) {
  const { svg, steps } = me, { inside, shown, low, top, x, y } = scale(me);
  svg.replaceChildren();
  for (let part = 0; part <= 4; part++) {
    const value = low + (top - low) * part / 4, step = view[0] + (view[1] - view[0]) * part / 4;
    draw(svg, "line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) });
    draw(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value));
    draw(svg, "text", { x: x(step), y: H - 6, "text-anchor": ["start", "middle", "middle", "middle", "end"][part] }, `step ${Math.round(step)}`);
  }
  let below = steps.map(() => 0);
  for (const one of shown) {
    const base = below;
    const line = (of) => of.map((i) => `${x(me.steps[i]).toFixed(1)},${y((me.stacked ? base[i] : 0) + (one.values[i] ?? 0)).toFixed(1)}`);
    const known = inside.filter((i) => me.stacked || one.values[i] !== null);
    if (!known.length) continue;
    if (me.stacked) {
      const floor = [...known].reverse().map((i) => `${x(me.steps[i]).toFixed(1)},${y(base[i]).toFixed(1)}`);
      draw(svg, "polygon", { points: [...line(known), ...floor].join(" "), fill: one.colour, opacity: .8 });
      below = below.map((value, i) => value + (one.values[i] ?? 0));
    } else if (known.length === 1) {
      const at = known[0];
      draw(svg, "circle", { cx: x(steps[at]), cy: y(one.values[at] ?? 0), r: 3, fill: one.colour });
    } else {
      draw(svg, "polyline", { points: line(known).join(" "), fill: "none", stroke: one.colour, "stroke-width": 1.8 });
    }
  }
  for (const mark of run.marks) {
    if (mark.step < view[0] || mark.step > view[1]) continue;
    const line = draw(svg, "line", { class: `mark ${mark.kind}`, x1: x(mark.step), x2: x(mark.step), y1: TOP, y2: H - BOTTOM });
    draw(line, "title", {}, mark.words);
  }
  draw(svg, "line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM });
}

function listen(me) {
  const at = (event) => {
    const box = me.svg.getBoundingClientRect();
    return (event.clientX - box.left) / box.width * W;
  };
  let start = null, frame = null, cursor = null;
  me.svg.onpointerdown = (event) => { start = at(event); };
  me.svg.onpointermove = (event) => {
    const { inside, shown, x, step } = scale(me);
    if (!inside.length) return;
    const here = step(at(event));
    const i = inside.reduce((best, j) => Math.abs(me.steps[j] - here) < Math.abs(me.steps[best] - here) ? j : best);
    cursor?.remove();
    cursor = draw(me.svg, "line", { class: "cursor", x1: x(me.steps[i]), x2: x(me.steps[i]), y1: TOP, y2: H - BOTTOM });
    frame?.remove();
    if (start !== null) {
      const [a, b] = [start, at(event)].sort((p, q) => p - q);
      frame = draw(me.svg, "rect", { class: "zoom", x: a, width: b - a, y: TOP, height: H - TOP - BOTTOM });
    }
    tip.textContent = [`step ${me.steps[i]}`, ...shown.map((one) => `${one.name}: ${short(one.values[i])} ${me.unit}`)].join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  };
  me.svg.onpointerup = (event) => {
    const { step } = scale(me);
    const chosen = [step(start ?? 0), step(at(event))].sort((p, q) => p - q);
    const wide = start !== null && Math.abs(at(event) - start) > 8;
    start = null;
    if (wide) show(chosen);
  };
  me.svg.onpointerleave = () => { tip.hidden = true; cursor?.remove(); frame?.remove(); start = null; };
  me.svg.ondblclick = () => show(everything);
}
function show(range) { view = range; plots.forEach(render); }

document.title = document.getElementById("title").textContent =
  `${run.run_id}: ${run.state}, ${short(run.samples_per_second)} samples/s`;
const advised = run.advice.map((sentence) => `Advice: ${sentence}`);
document.getElementById("verdict").append(...[...run.verdict, ...advised].map((sentence) => make("p", sentence)));
document.getElementById("spent").append(...run.spent.map((line) => make("p", line)));
document.getElementById("achieved").append(...run.achieved.map((sentence) => make("p", sentence)));
plot("Throughput", "samples/s", [{ name: "all workers", values: run.throughput }], false);
const logged = run.curves.find((curve) => curve.kind === "loss"); // of the whole run, if there is one
plot("Loss", "mean over the batch", [{ name: "loss", values: (logged ?? { values: run.loss }).values }], false, (logged ?? run).steps);
for (const curve of run.curves.filter((one) => one !== logged)) {
  plot(curve.name, curve.kind, [{ name: curve.name, values: curve.values }], false, curve.steps);
}
const workers = Object.keys(run.shares);
plot("Shares", "samples per step", workers.map((name) => ({ name, values: run.shares[name] })), true);
for (const name of workers) {
  const phases = Object.entries(run.phases[name]);
  plot(`Phases of ${name}`, "ms per step", phases.map(([phase, values]) => (
    { name: phase.replace("_", " "), values: values.map((v) => v === null ? null : v * 1e3) })), true);
}
document.getElementById("marks").append(...run.marks.map((mark) => make("li", mark.words)));
