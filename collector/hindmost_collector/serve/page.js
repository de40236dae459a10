"use strict";

const ABSENT = "–";
const ROWS = 256;
const FINE = new Set(["balanced", "insufficient_data"]);
const CALM = { OK: "fine", UNSURE: "unsure" };
const COLOURED = new Set([
  "input", "h2d", "forward", "backward", "optimizer", "sync",
  "self_cpu", "self_blocked", "self_runqueue", "checkpoint", "gc", "wait",
]);

const find = id => document.getElementById(id);

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function milliseconds(value) {
  if (value == null) return ABSENT;
  if (value >= 1000) return (value / 1000).toFixed(2) + " s";
  return value.toFixed(value < 10 ? 2 : 1) + " ms";
}

function percent(value) {
  return value == null ? ABSENT : (value * 100).toFixed(value < 0.1 ? 1 : 0) + " %";
}

// A sentence with its commands as code.
function sentence(text) {
  const line = make("p");
  line.append(...text.split("`").map((part, at) => (at % 2 ? make("code", part) : part)));
  return line;
}

function labelled(label, text) {
  const line = sentence(text);
  line.prepend(make("b", label + " "));
  return line;
}

// Trouble that is not over: a verdict with an end was closed.
function acts(verdict) {
  return !FINE.has(verdict.kind) && verdict.until_step == null;
}

// One line a fact: what the text report says, with the rest of the evidence behind a fold.
function verdictCard(verdict) {
  const card = make("div", null, "card verdict " + (CALM[verdict.head] || ""));
  const title = make("h2");
  title.append(make("b", verdict.head), " " + verdict.what);
  if (verdict.sure) title.append(" ", make("small", verdict.sure));
  card.append(title);
  if (verdict.cost) card.append(labelled("Cost", verdict.cost));
  for (const reason of verdict.why.slice(0, 1)) card.append(labelled("Why", reason));
  for (const advice of verdict.do) card.append(labelled("Do", advice));
  const more = [...verdict.why.slice(1), ...(verdict.where ? ["Where: " + verdict.where] : [])];
  if (more.length) card.append(fold("More evidence", more, verdict.head + verdict.what));
  return card;
}

// Folds that a reader opened stay open when the page is drawn again.
const open = new Set();

function fold(title, sentences, name) {
  const box = make("details");
  box.open = open.has(name);
  box.ontoggle = () => { if (box.open) open.add(name); else open.delete(name); };
  box.append(make("summary", title), ...sentences.map(sentence));
  return box;
}

function showFacts(report) {
  const job = report.job || {};
  const step = job.step_ms || {};
  const whatIf = report.what_if || {};
  const facts = [
    ["step, median", milliseconds(step.p50)],
    ["step, p99", milliseconds(step.p99)],
    ["step with all ranks equal", milliseconds(whatIf.ideal_step_ms)],
    ["ranks", job.world_size ?? ABSENT],
    ["nodes", job.nodes ?? ABSENT],
    ["steps in view", job.steps ?? ABSENT],
  ];
  find("facts").replaceChildren(...facts.map(([name, value]) => {
    const box = make("div");
    box.append(make("span", name), make("strong", value));
    return box;
  }));
  find("facts").hidden = false;
}

const COLUMNS = [
  { name: "rank", key: "rank", show: row => row.rank },
  { name: "node", key: "node", show: row => row.node || ABSENT, left: true },
  { name: "step", key: "step_ms", show: row => milliseconds(row.step_ms) },
  { name: "where a step goes", left: true },
  { name: "wait", key: "wait_ms", show: row => milliseconds(row.wait_ms) },
  { name: "caused wait", key: "caused_wait_ms", show: row => milliseconds(row.caused_wait_ms) },
  { name: "last to arrive", key: "share_last", show: row => percent(row.share_last) },
];
const NAMES = {
  wait: "wait for later ranks", self_cpu: "CPU time", self_blocked: "off CPU", self_runqueue: "CPU queue",
  h2d: "copy to GPU", gpu_forward: "GPU forward", gpu_backward: "GPU backward", gpu_optimizer: "GPU optimizer",
};
let order = { key: "caused_wait_ms", down: true };
let latest = null;

function colour(phase) {
  return "var(--" + (COLOURED.has(phase) ? phase.replace("_", "-") : "other") + ")";
}

// What is a property of a step or a part of another phase has no place of its own in it.
const AMOUNTS = new Set(["cpu", "runqueue", "negotiation"]);

function parts(row) {
  const phases = Object.entries(row.phases_ms || {}).filter(([name, value]) => value > 0 && !AMOUNTS.has(name));
  if (row.wait_ms > 0 && !phases.some(([name]) => name === "sync")) phases.push(["wait", row.wait_ms]);
  return phases;
}

function bar(row, longest) {
  const box = make("div", null, "bar");
  for (const [phase, value] of parts(row)) {
    const piece = make("i");
    piece.style.width = (100 * value) / longest + "%";
    piece.style.background = colour(phase);
    piece.title = (NAMES[phase] || phase) + " " + milliseconds(value);
    box.append(piece);
  }
  return box;
}

function heading(column) {
  const arrow = column.key && order.key === column.key ? (order.down ? " ↓" : " ↑") : "";
  const cell = make("th", column.name + arrow, column.left ? "left" : "");
  if (column.key) {
    cell.onclick = () => {
      order = { key: column.key, down: order.key === column.key ? !order.down : true };
      showTable(latest);
    };
  }
  return cell;
}

function rankRow(row, bad, longest) {
  const line = make("tr", null, bad.has(row.rank) ? "bad" : "");
  for (const column of COLUMNS) {
    const cell = make("td", column.show ? column.show(row) : null, column.left ? "left" : "");
    if (!column.show) cell.append(bar(row, longest));
    line.append(cell);
  }
  return line;
}

function sorted(ranks) {
  const value = row => row[order.key] ?? -1;
  return [...ranks].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b) return one.rank - other.rank;
    return (a < b ? -1 : 1) * (order.down ? -1 : 1);
  });
}

function legend(shown, all) {
  const used = new Set(shown.flatMap(row => parts(row).map(([phase]) => phase)));
  const entries = [...used].map(phase => {
    const entry = make("span");
    const mark = make("i");
    mark.style.background = colour(phase);
    entry.append(mark, NAMES[phase] || phase.replace("_", " "));
    return entry;
  });
  if (all > shown.length) entries.push(make("span", "the first " + shown.length + " of " + all + " ranks"));
  return entries;
}

function showTable(report) {
  const troubled = (report.verdicts || []).filter(acts);
  const bad = new Set(troubled.flatMap(verdict => verdict.ranks || []));
  const ranks = report.ranks || [];
  const shown = sorted(ranks).slice(0, ROWS);
  const length = row => parts(row).reduce((sum, [, value]) => sum + value, 0);
  const longest = Math.max(1e-9, ...ranks.map(length));
  find("head").replaceChildren(...COLUMNS.map(heading));
  find("rows").replaceChildren(...shown.map(row => rankRow(row, bad, longest)));
  find("key").replaceChildren(...legend(shown, ranks.length));
  find("table").hidden = !ranks.length;
}

function show(report) {
  latest = report;
  const job = report.job || {};
  const troubled = (report.verdicts || []).some(acts);
  document.title = (troubled ? "● " : "") + "hindmost · " + (job.id || "");
  find("job").textContent = [job.id, job.command].filter(Boolean).join(" · ");
  find("verdicts").replaceChildren(...report.rendered.slice(0, 5).map(verdictCard));
  const ended = [job.ended && "Ended: " + job.ended, job.to_do].filter(Boolean);
  const bound = report.bound ? ["Bound by " + report.bound] : [];
  const overlap = report.overlap ? [report.overlap] : [];
  find("notes").replaceChildren(...[...overlap, ...ended, ...bound, ...(report.notes || [])].map(sentence));
  find("alarm").hidden = !report.recording;
  find("alarm").textContent = report.recording ? "Recording stopped: " + report.recording : "";
  showFacts(report);
  showTable(report);
}

let known = "";

async function listJobs() {
  const jobs = await (await fetch("api/jobs")).json();
  const names = jobs.map(job => job.id);
  if (names.join("\n") === known) return;
  known = names.join("\n");
  const select = find("jobs");
  const chosen = select.value;
  select.replaceChildren(...names.map(name => new Option(name)));
  if (names.includes(chosen)) select.value = chosen;
  select.hidden = names.length < 2;
}

async function refresh() {
  const live = find("live");
  try {
    await listJobs();
    const name = find("jobs").value;
    const answer = await fetch("api/report" + (name ? "?job=" + encodeURIComponent(name) : ""));
    if (answer.ok) show(await answer.json());
    live.className = "";
    live.textContent = answer.ok ? "live" : "waiting for steps";
  } catch {
    live.className = "off";
    live.textContent = "the collector does not answer";
  }
}

async function watch() {
  await refresh();
  setTimeout(watch, document.hidden ? 10000 : 2000);
}

find("jobs").onchange = refresh;
watch();
