"use strict";
// All plots of a run side by side: one range, one axis, one scale for all of them.
const RANGES = [["all of the run", 0], ["the last 5 minutes", 300], ["the last 30 minutes", 1800], ["the last 2 hours", 7200], ["the last day", 86400]];
const FEW_WORKERS = 3; // so many have their phases beside each other

class PlotBoard {
  /* In the element; `ask({axis, from, to, points, worker})` promises a PlotsView, see core/view/run_plots.py. */
  constructor(element, ask) {
    this.ask = ask;
    this.range = null; // [from, to] in the axis's unit; null: all, or the last seconds
    this.plots = new Map();
    this.number = 0;
    element.classList.add("board");
    this.bar = make("div", "", "bar");
    this.axis = this.choice("Over", [["steps", "step"], ["time", "time"]]);
    this.span = this.choice("Show", RANGES);
    this.worker = this.choice("Phases of", []);
    this.worker.parentElement.hidden = true;
    this.log = this.field("Log scale", "checkbox", {});
    this.smoothing = this.field("Smoothing", "range", { min: 0, max: 0.98, step: 0.02, value: 0 });
    this.axis.onchange = () => {
      this.span.value = 0;
      this.look();
    };
    this.span.onchange = () => {
      if (Number(this.span.value)) this.axis.value = "time";
      this.look();
    };
    this.worker.onchange = () => this.draw();
    this.log.onchange = this.smoothing.oninput = () => this.view && this.show(this.view);
    this.bar.append(rangeTools((from, to) => this.look(from, to), () => this.view && this.shown(this.view)));
    this.grid = make("div", "", "grid");
    element.replaceChildren(this.bar, this.grid);
  }

  labelled(words, control) {
    const label = make("label", `${words} `);
    label.append(control);
    this.bar.append(label);
    return control;
  }

  choice(words, choices) {
    const select = make("select", "");
    select.append(...choices.map(([name, value]) => new Option(name, value)));
    return this.labelled(words, select);
  }

  field(words, type, about) {
    return this.labelled(words, Object.assign(make("input", ""), { type, ...about }));
  }

  look(from, to) {
    this.range = from == null ? null : [from, to];
    if (from != null) this.span.value = 0;
    return this.draw();
  }

  /* Ask for what is looked at, and show it, unless something else is asked for meanwhile. */
  async draw() {
    const number = ++this.number;
    const last = Number(this.span.value) && this.view?.last_unix_seconds;
    const [from, to] = this.range ?? (last ? [last - Number(this.span.value), null] : [null, null]);
    const first = this.plots.values().next().value;
    const points = first ? first.size().width : Math.min(1000, innerWidth);
    const view = await this.ask({ axis: this.axis.value, from, to, points, worker: this.worker.parentElement.hidden ? null : this.worker.value });
    if (number === this.number) this.show(view);
  }

  /* From where to where. */
  shown(view) {
    const [first, last] = this.axis.value === "step" ? [view.first_step, view.last_step] : [view.first_unix_seconds, view.last_unix_seconds];
    if (this.range) return this.range;
    const seconds = Number(this.span.value);
    const begin = seconds ? last - seconds : (first ?? 0);
    return [begin, Math.max(last ?? 0, begin + 1)];
  }

  show(view) {
    this.view = view;
    const isStep = this.axis.value === "step";
    const [from, to] = this.shown(view);
    const marks = view.marks.map((mark) => ({ at: isStep ? mark.step : mark.at_unix_seconds, kind: mark.kind, text: mark.words, count: mark.count }));
    this.chooseWorker(view.workers);
    const plots = view.plots.filter(({ key }) => view.workers.length <= FEW_WORKERS || !key.startsWith("phases ") || key === `phases ${this.worker.value}`);
    const keys = new Set(plots.map(({ key }) => key));
    for (const [key, plot] of this.plots) {
      if (keys.has(key)) continue;
      plot.end();
      plot.element.remove();
      this.plots.delete(key);
    }
    plots.forEach((told, index) => {
      const plot = this.plots.get(told.key) ?? this.add(told.key);
      if (this.grid.children[index] !== plot.element) this.grid.insertBefore(plot.element, this.grid.children[index] ?? null);
      plot.show({
        title: told.title, unit: told.unit, from, to, isStep, marks, lines: told.lines,
        times: isStep ? told.steps : told.at_unix_seconds, isStacked: told.is_stacked, isFree: !told.has_zero,
        isLog: this.log.checked && !told.is_stacked, smoothing: told.is_stacked ? 0 : Number(this.smoothing.value),
      });
    });
  }

  add(key) {
    const element = this.grid.appendChild(make("figure", ""));
    const plot = new TimePlot(element, (from, to) => this.look(from, to), false);
    plot.element = element;
    this.plots.set(key, plot);
    return plot;
  }

  chooseWorker(workers) {
    this.worker.parentElement.hidden = workers.length <= FEW_WORKERS;
    if (JSON.stringify(workers) === this.workers) return;
    this.workers = JSON.stringify(workers);
    const chosen = this.worker.value;
    this.worker.replaceChildren(...workers.map((name) => new Option(name, name)));
    this.worker.value = workers.includes(chosen) ? chosen : (workers[0] ?? "");
  }
}
