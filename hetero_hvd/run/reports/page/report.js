"use strict";
// The report of a run: what it was, what it found; all of it stands in this file.
const run = JSON.parse(at("data").textContent);

/* Lines of text as a list; nothing at all where there is none. */
function list(id, lines) {
  at(id).append(...lines.map((line) => make("li", line)));
  if (!lines.length) (at(id).closest("section[aria-labelledby]") ?? at(id)).hidden = true;
}

function group([title, pairs]) {
  const section = make("section", "");
  const values = make("dl", "");
  values.append(...pairs.map(([name, value]) => {
    const both = make("div", "");
    both.append(make("dt", name), make("dd", value));
    return both;
  }));
  section.append(make("h3", title), values);
  return section;
}

const speed = run.samples_per_second == null ? "speed not measured" : `${short(run.samples_per_second)} samples/s`;
document.title = at("title").textContent = `${[run.name, run.run_id].filter(Boolean).join(" · ")}: ${run.state}, ${speed}`;
at("verdict").append(...run.verdict.map(({ words, severity }) => make("p", words, severity)));
list("advice", run.advice.map((line) => `Advice: ${line}`));
list("achieved", run.achieved);
list("spent", run.spent);
at("marks").append(...run.plots.marks.map((mark) => markItem({ at: mark.at_unix_seconds, kind: mark.kind, text: mark.words, count: mark.count })));
at("phases").closest("table").tHead.rows[0].append(...run.phases.heads.map((head) => Object.assign(make("th", head, "n"), { scope: "col" })));
at("phases").append(...run.phases.rows.map(([worker, values]) => row("phases", [worker, ...values.map((value) => number(value, 2))])));
at("about").append(...Object.entries(run.about).map(group));
for (const table of document.querySelectorAll("table")) table.setAttribute("role", "table");
const board = new PlotBoard(at("plots"), async () => run.plots);
board.draw();
