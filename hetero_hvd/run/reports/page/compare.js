"use strict";
// Several runs side by side: their lines in each plot, what was tried, what they found.
const runs = JSON.parse(at("data").textContent);
document.title = at("title").textContent = runs.labels.map((label, index) => `${label}: ${runs.states[index]}`).join(" · ");
at("rows").closest("table").tHead.rows[0].append(...runs.labels.map((label) => Object.assign(make("th", label), { scope: "col" })));
at("rows").append(...runs.rows.map(([what, values]) => row("rows", [what, ...runs.labels.map((_, index) => values[index] ?? "–")])));
at("verdicts").append(...runs.labels.flatMap((label, index) => [make("h3", label), ...runs.verdicts[index].map(({ words, severity }) => make("p", words, severity))]));
for (const table of document.querySelectorAll("table")) table.setAttribute("role", "table");
const board = new PlotBoard(at("plots"), async () => runs.plots);
board.axis.parentElement.hidden = board.span.parentElement.hidden = true; // a step is another time in each run
board.draw();
