"use strict";
// A plot, drawn by uPlot, of all pages. A null ends a line. All of it is there as text, too.
const HEIGHT = 240, COLOURS = 8;
const DASHES = { reset: [], fault: [], stall: [4, 3], straggler: [8, 3], plan: [], phase: [2, 3] };
const FOOT_PIXELS = 10; // of marks that are many
const NEAR_PIXELS = 14; // nearer to each other they are one, with their number
const TIP_LINES = 10;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const short = (value, digits = 3) =>
  value == null ? "–" : digits > 3 ? String(Number(value.toPrecision(digits))) : Math.abs(value) >= 1e5 ? compact.format(value) : Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));

/* So many digits, of 6 at most, that values which differ are told apart. */
const apart = (values) =>
  [3, 4, 5].find((digits) => new Set(values.map((value) => short(value, digits))).size === new Set(values).size) ?? 6;

/* An exponential mean over the points, 0 <= weight < 1, from the first one on; gaps stay. */
function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, known] = [0, 0];
  return values.map((value) => {
    if (value == null) return null;
    sum = weight * sum + (1 - weight) * value;
    known = weight * known + (1 - weight);
    return sum / known;
  });
}

/* Each line on those below it, the highest first. */
function stacked(lines, isHidden) {
  const sums = lines.length ? lines[0].values.map(() => 0) : [];
  return lines.map((line) => {
    const isShown = !isHidden(line.label);
    return line.values.map((value, i) => {
      if (value == null) return null;
      if (isShown) sums[i] += value;
      return sums[i];
    });
  }).reverse();
}

class TimePlot {
  /* In the element; `look(from, to)` is called when another part is wanted, with nothing for all.
     isAlone: it has tools and a list of marks of its own. */
  constructor(element, look, isAlone = true) {
    this.look = look;
    this.hidden = new Set();
    this.caption = make("figcaption", "");
    this.tools = rangeTools(look, () => this.told && [this.told.from, this.told.to]);
    this.canvas = make("div", "", "canvas");
    this.canvas.role = "img";
    this.canvas.tabIndex = 0;
    this.canvas.onkeydown = (event) => this.walk(event);
    this.tip = make("div", "", "tip");
    this.tip.hidden = true;
    this.said = make("p", "", "unseen");
    this.said.role = "status";
    this.legend = make("div", "", "legend");
    this.key = make("p", "", "key");
    this.marks = make("ol", "", "marks");
    this.marks.tabIndex = 0;
    this.marks.ariaLabel = "what happened";
    element.classList.add("plot");
    const own = isAlone ? [this.tools] : [];
    element.replaceChildren(this.caption, ...own, this.canvas, this.legend, this.key, ...(isAlone ? [this.marks] : []), this.said);
    this.resizes = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
    this.resizes.observe(this.canvas);
    this.ending = new AbortController();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.labels = null;
      if (this.told) this.show(this.told);
    }, { signal: this.ending.signal });
  }

  /* It is shown no more. */
  end() {
    this.ending.abort();
    this.resizes.disconnect();
    this.plot?.destroy();
  }

  /* Width in pixels, which is also how many intervals are worth asking for. */
  size() {
    return { width: Math.max(200, Math.floor(this.canvas.clientWidth)), height: HEIGHT };
  }

  /* title, unit; from, to: seconds, or steps; times: of the points; lines: [{label, values, colour}] as long
     as the times; shaded: [[from, to]]; shadedWords; marks: [{at, kind, text, count}].
     Further: isStep: steps, not seconds; isStacked; isFree: zero need not be in it; isLog; smoothing: 0 to 1. */
  show(told) {
    this.told = { shaded: [], shadedWords: "", ...told };
    this.caption.textContent = [told.title, told.unit].filter(Boolean).join(", ");
    this.canvas.ariaLabel = this.words(told);
    const inside = told.marks.filter((mark) => mark.at >= told.from && mark.at <= told.to);
    this.marks.replaceChildren(...inside.map((mark) => markItem(mark, told.isStep)));
    this.marks.hidden = !inside.length;
    this.key.replaceChildren(make("i", ""), this.told.shadedWords);
    this.key.hidden = !this.told.shaded.length;
    const labels = JSON.stringify([told.lines.map((line) => [line.label, line.colour]), told.isStep, told.isLog, told.isStacked]);
    if (this.plot && labels === this.labels) return this.plot.setData(this.data()); // who has the focus keeps it
    this.labels = labels;
    this.buttons = told.lines.map((line, index) => this.button(line.label, index));
    this.legend.replaceChildren(...this.buttons.map(([button]) => button));
    this.legend.hidden = told.lines.length === 1 && told.lines[0].label === told.title; // which says all
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(told), this.data(), this.canvas);
    this.plot.over.append(this.tip);
  }

  data() {
    const { times, lines, isStacked, isLog, smoothing } = this.told;
    if (isStacked) return [times, ...stacked(lines, (label) => this.hidden.has(label))];
    const positive = (values) => (isLog ? values.map((value) => (value > 0 ? value : null)) : values);
    return [times, ...lines.map((line) => smoothed(positive(line.values), smoothing))];
  }

  /* Which of uPlot's series a line is. */
  place(index) {
    return this.told.isStacked ? this.told.lines.length - index : index + 1;
  }

  words({ title, unit, from, to, lines, isStep }) {
    const values = lines.flatMap((line) => line.values).filter((value) => value != null);
    const range = values.length
      ? `from ${short(values.reduce((a, b) => Math.min(a, b)))} to ${short(values.reduce((a, b) => Math.max(a, b)))} ${unit}`
      : "nothing is known";
    const who = lines.map((line) => line.label).filter((label) => label !== title).join(", ");
    const over = isStep ? `steps ${Math.round(from)} to ${Math.round(to)}` : `${when(from)} to ${when(to)}`;
    return `${title}${who ? ` of ${who}` : lines.length ? "" : " of no device"}, ${over}: ${range}`;
  }

  button(label, index) {
    const button = make("button", "");
    const value = make("span", "");
    button.append(this.swatch(index), label, value);
    const show = () => { button.ariaPressed = !this.hidden.has(label); };
    show();
    button.onclick = () => {
      if (!this.hidden.delete(label)) this.hidden.add(label);
      show();
      this.plot.setSeries(this.place(index), { show: !this.hidden.has(label) });
      if (this.told.isStacked) this.plot.setData(this.data());
    };
    return [button, value];
  }

  colour(index) {
    return this.told.lines[index]?.colour || css(`--series-${(index % COLOURS) + 1}`);
  }

  /* A square that looks as the line does: from the ninth on they are dashed. */
  swatch(index) {
    const colour = this.colour(index);
    const found = make("i", "");
    const isDashed = index >= COLOURS && !this.told.isStacked;
    found.style.background = isDashed ? `repeating-linear-gradient(90deg, ${colour} 0 3px, transparent 0 5px)` : colour;
    return found;
  }

  options({ lines, isStep, isLog, isStacked, isFree }) {
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    const series = lines.map((line, index) => ({
      label: line.label,
      show: !this.hidden.has(line.label),
      stroke: this.colour(index),
      fill: isStacked ? this.colour(index) : undefined,
      width: isStacked ? 0 : lines.length > COLOURS ? 1 : 1.5,
      dash: isStacked || index < COLOURS ? [] : [6, 3],
      points: { show: false, size: 4, fill: this.colour(index), filter: (plot, at) => alone(plot.data[at]) },
    }));
    const withZero = (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1];
    const y = isLog ? { distr: 3, range: (_, low, high) => (high > 0 ? [low, high * 1.1] : [0.1, 1]) } : isFree ? {} : { range: withZero };
    return {
      ...this.size(),
      legend: { show: false },
      scales: { x: { time: !isStep, range: () => [this.told.from, this.told.to] }, y },
      axes: [
        { ...axis, size: 34, ...(isStep ? { values: (_, splits) => splits.map((step) => (Number.isInteger(step) ? step.toLocaleString("en") : "")) } : {}) },
        { ...axis, size: (_, words) => Math.max(52, 20 + 7 * Math.max(...(words ?? [""]).map((text) => text.length))), values: (_, splits) => splits.map((value) => (value == null ? "" : short(value))) },
      ],
      series: [{}, ...(isStacked ? series.reverse() : series)],
      cursor: {
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => this.look() },
      },
      hooks: {
        drawClear: [(plot) => this.shade(plot)],
        draw: [(plot) => this.rule(plot)],
        ready: [(plot) => plot.over.addEventListener("mouseleave", () => { this.tip.hidden = true; })],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width > 3) this.look(...within(plot.posToVal(left, "x"), plot.posToVal(left + width, "x")));
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

  /* What happened: a line across the plot; of a plan, which is often, a tick at its foot. */
  rule(plot) {
    const { left, top, width, height } = plot.bbox;
    const { ctx } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio * 1.5;
    for (const { x, kind, count } of this.places(plot)) {
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = ctx.fillStyle = css(kind in DASHES ? `--${kind}` : "--quiet");
      ctx.setLineDash((DASHES[kind] ?? []).map((length) => length * devicePixelRatio));
      const begin = kind === "plan" ? top + height - FOOT_PIXELS * devicePixelRatio : top;
      ctx.beginPath();
      ctx.moveTo(x, begin);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      if (count < 2) continue;
      ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = "center";
      ctx.fillText(`${count}`, x, begin - 2 * devicePixelRatio);
    }
    ctx.restore();
  }

  /* Where marks are, in pixels; plans near to each other are one. */
  places(plot) {
    const found = [];
    for (const { at, kind, count = 1 } of this.told.marks) {
      const x = plot.valToPos(at, "x", true);
      const last = found.findLast((one) => one.kind === kind);
      if (kind === "plan" && last && x - last.x < NEAR_PIXELS * devicePixelRatio) last.count += count;
      else found.push({ x, kind, count: kind === "plan" ? count : 1 });
    }
    return found;
  }

  /* By the arrow keys from point to point; what is there is said. */
  walk(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.plot || !this.told.times.length) return;
    event.preventDefault();
    const { times } = this.told;
    const here = this.plot.cursor.idx;
    let index = here == null ? (by > 0 ? 0 : times.length - 1) : here + by;
    while (here != null && times[index] === times[here]) index += by; // the other extreme of one step
    index = Math.max(0, Math.min(times.length - 1, index));
    const left = this.plot.valToPos(times[index], "x");
    this.plot.setCursor({ left, top: 10 });
    this.said.textContent = this.tip.innerText;
  }

  point(plot) {
    const index = plot.cursor.idx;
    const { lines, times, unit, marks, isStep, isStacked, smoothing } = this.told;
    const raw = (line) => (isStacked ? lines[line].values[index] : plot.data[line + 1][index]);
    const values = lines.map((_, line) => raw(line)).filter((value) => value != null);
    const digits = isStacked ? 3 : apart(values);
    this.buttons.forEach(([, value], line) => {
      value.textContent = index == null ? "" : ` ${short(raw(line), digits)}`;
    });
    this.tip.hidden = index == null || plot.cursor.left < 0;
    if (this.tip.hidden) return;
    const shown = lines.map((line, at) => [line.label, raw(at), at]).filter(([label, value]) => value != null && !this.hidden.has(label));
    if (!isStacked) shown.sort((a, b) => b[1] - a[1]);
    const near = marks.filter(({ at }) => Math.abs(plot.valToPos(at, "x") - plot.cursor.left) < NEAR_PIXELS / 2).slice(0, 3);
    const here = plot.posToVal(plot.cursor.top, "y");
    const far = ([, value]) => Math.abs(value - here);
    const nearest = isStacked || shown.length < 2 ? null : shown.reduce((a, b) => (far(b) < far(a) ? b : a));
    const line = (one) => {
      const [label, value, at] = one;
      const found = make("div", `${label} ${short(value, digits)} ${unit}${smoothing && !isStacked ? " (smoothed)" : ""}`, one === nearest ? "nearest" : "");
      found.prepend(this.swatch(at));
      return found;
    };
    this.tip.replaceChildren(
      make("div", isStep ? `step ${times[index].toLocaleString("en")}` : when(times[index])),
      ...shown.slice(0, TIP_LINES).map(line),
      ...(shown.length > TIP_LINES ? [make("div", `and ${shown.length - TIP_LINES} more`)] : []),
      ...near.map(({ text }) => make("div", text)),
    );
    const isRight = plot.cursor.left > plot.over.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : `${plot.cursor.left + 12}px`;
    this.tip.style.right = isRight ? `${plot.over.clientWidth - plot.cursor.left + 12}px` : "auto";
  }
}

/* The nearest range, in steps or seconds, that can be asked for. */
function within(from, to) {
  const width = Math.min(Math.max(to - from, 1e-3), 1e11);
  const begin = Math.min(Math.max(from, 0), 1e11 - width);
  return [begin, begin + width];
}

/* Buttons that go through a range; see TimePlot. */
function rangeTools(look, shown) {
  const tools = make("div", "", "tools");
  for (const [words, act] of [
    ["Earlier", (from, width) => [from - width / 2, from + width / 2]],
    ["Later", (from, width) => [from + width / 2, from + width * 1.5]],
    ["Closer", (from, width) => [from + width / 4, from + width * 0.75]],
    ["Wider", (from, width) => [from - width / 2, from + width * 1.5]],
    ["All", null],
  ]) {
    const button = tools.appendChild(make("button", words));
    button.onclick = () => {
      const range = shown();
      if (range) look(...(act ? within(...act(range[0], range[1] - range[0])) : []));
    };
  }
  return tools;
}

/* What happened, as an item of a list. */
function markItem({ at, kind, text, count = 1 }, isStep = false) {
  const item = make("li", "", kind in DASHES && kind);
  item.append(isStep ? "" : when(at), " ", make("b", count > 1 ? `${count} x ${kind}` : kind), " ", text);
  return item;
}

/* Indexes of values with none on either side: no line shows them. */
function alone(values) {
  return values.flatMap((value, i) => (value != null && values[i - 1] == null && values[i + 1] == null ? [i] : []));
}
