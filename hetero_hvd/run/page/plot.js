"use strict";
// A plot over time, drawn by uPlot: lines with gaps, shaded times, marks; to be used by all pages.
// A null ends a line. What it shows is also there as text: a sentence, the values, the list of marks.
const HEIGHT = 240, COLOURS = 8;
const DASHES = { reset: [], plan: [6, 4], phase: [2, 3] };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const moment = (seconds) => new Date(seconds * 1000).toLocaleString();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const short = (value) =>
  value == null ? "–" : Math.abs(value) >= 1e5 ? compact.format(value) : Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));

class TimePlot {
  /* In the element; `look(from, to)` is called when another time is wanted, with nothing for all. */
  constructor(element, look) {
    this.look = look;
    this.hidden = new Set();
    this.caption = document.createElement("figcaption");
    this.tools = document.createElement("div");
    this.tools.className = "tools";
    for (const [words, act] of [
      ["Earlier", (from, width) => [from - width / 2, from + width / 2]],
      ["Later", (from, width) => [from + width / 2, from + width * 1.5]],
      ["Closer", (from, width) => [from + width / 4, from + width * 0.75]],
      ["Wider", (from, width) => [from - width / 2, from + width * 1.5]],
      ["All", () => []],
    ]) {
      const button = this.tools.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = words;
      button.onclick = () => this.told && look(...act(this.told.from, this.told.to - this.told.from));
    }
    this.canvas = document.createElement("div");
    this.canvas.className = "canvas";
    this.canvas.setAttribute("role", "img");
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    this.key = document.createElement("p");
    this.key.className = "key";
    this.marks = document.createElement("ol");
    this.marks.className = "marks";
    this.marks.tabIndex = 0;
    this.marks.setAttribute("aria-label", "what happened");
    element.classList.add("plot");
    element.replaceChildren(this.caption, this.tools, this.canvas, this.legend, this.key, this.marks);
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.labels = null;
      if (this.told) this.show(this.told);
    });
  }

  /* Width in pixels, which is also how many intervals are worth asking for. */
  size() {
    return { width: Math.max(200, Math.floor(this.canvas.clientWidth)), height: HEIGHT };
  }

  /* title, unit; from, to: seconds; times; lines: [{label, values}] as long as the times;
     shaded: [[from, to]]; shadedWords; marks: [{at, kind, text}]. */
  show(told) {
    this.told = told;
    this.caption.textContent = `${told.title}, ${told.unit}`;
    this.canvas.setAttribute("aria-label", this.words(told));
    const inside = told.marks.filter((mark) => mark.at >= told.from && mark.at <= told.to);
    this.marks.replaceChildren(...inside.map((mark) => this.mark(mark)));
    this.marks.hidden = !inside.length;
    this.key.replaceChildren(document.createElement("i"), told.shadedWords);
    this.key.hidden = !told.shaded.length;
    const labels = JSON.stringify(told.lines.map((line) => line.label));
    const data = [told.times, ...told.lines.map((line) => line.values)];
    if (this.plot && labels === this.labels) return this.plot.setData(data); // who has the focus keeps it
    this.labels = labels;
    this.buttons = told.lines.map((line, index) => this.button(line.label, index));
    this.legend.replaceChildren(...this.buttons.map(([button]) => button));
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(told.lines), data, this.canvas);
  }

  words({ title, unit, from, to, lines }) {
    const values = lines.flatMap((line) => line.values).filter((value) => value != null);
    const range = values.length
      ? `from ${short(values.reduce((a, b) => Math.min(a, b)))} to ${short(values.reduce((a, b) => Math.max(a, b)))} ${unit}`
      : "nothing is known";
    return `${title} of ${lines.map((line) => line.label).join(", ") || "no device"}, ${moment(from)} to ${moment(to)}: ${range}`;
  }

  button(label, index) {
    const button = document.createElement("button");
    button.type = "button";
    const colour = document.createElement("i");
    colour.style.background = this.colour(index);
    const value = document.createElement("span");
    button.append(colour, label, value);
    const show = () => button.setAttribute("aria-pressed", String(!this.hidden.has(label)));
    show();
    button.onclick = () => {
      if (!this.hidden.delete(label)) this.hidden.add(label);
      show();
      this.plot.setSeries(index + 1, { show: !this.hidden.has(label) });
    };
    return [button, value];
  }

  mark({ at, kind, text }) {
    const item = document.createElement("li");
    item.className = kind in DASHES ? kind : "";
    const bold = document.createElement("b");
    bold.textContent = kind;
    item.append(moment(at), " ", bold, " ", text);
    return item;
  }

  colour(index) {
    return css(`--series-${(index % COLOURS) + 1}`);
  }

  options(lines) {
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    return {
      ...this.size(),
      legend: { show: false },
      scales: {
        x: { time: true, range: () => [this.told.from, this.told.to] },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1] },
      },
      axes: [axis, { ...axis, size: 52, values: (_, splits) => splits.map(short) }],
      series: [{}, ...lines.map((line, index) => ({
        label: line.label,
        show: !this.hidden.has(line.label),
        stroke: this.colour(index),
        width: 1,
        dash: index < COLOURS ? [] : [6, 3],
        points: { show: false, size: 3, fill: this.colour(index), filter: () => alone(this.told.lines[index].values) },
      }))],
      cursor: {
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => this.look() },
      },
      hooks: {
        drawClear: [(plot) => this.shade(plot)],
        draw: [(plot) => this.rule(plot)],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width > 3) this.look(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        }],
      },
    };
  }

  shade(plot) {
    const { left, top, width, height } = plot.bbox;
    plot.ctx.fillStyle = css("--silent");
    for (const [from, to] of this.told.shaded) {
      const [begin, end] = [from, to].map((at) => Math.min(left + width, Math.max(left, plot.valToPos(at, "x", true))));
      plot.ctx.fillRect(begin, top, Math.max(end - begin, 0), height);
    }
  }

  rule(plot) {
    const { left, top, width, height } = plot.bbox;
    plot.ctx.save();
    plot.ctx.lineWidth = devicePixelRatio * 1.5;
    for (const { at, kind } of this.told.marks) {
      const x = plot.valToPos(at, "x", true);
      if (x < left || x > left + width) continue;
      plot.ctx.strokeStyle = css(kind in DASHES ? `--${kind}` : "--quiet");
      plot.ctx.setLineDash((DASHES[kind] ?? []).map((length) => length * devicePixelRatio));
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, top);
      plot.ctx.lineTo(x, top + height);
      plot.ctx.stroke();
    }
    plot.ctx.restore();
  }

  point(plot) {
    const index = plot.cursor.idx;
    this.buttons.forEach(([, value], line) => {
      value.textContent = index == null ? "" : ` ${short(plot.data[line + 1][index])} ${this.told.unit}`;
    });
  }
}

/* Indexes of values with none on either side: no line shows them. */
function alone(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value != null && values[i - 1] == null && values[i + 1] == null) found.push(i);
  });
  return found;
}
