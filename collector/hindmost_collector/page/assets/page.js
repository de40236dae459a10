"use strict";

const ABSENT = "–";
const SEVERITY = { HUNG: "bad", DESYNC: "bad", OK: "ok", UNSURE: "unsure", "LIMITED BY": "info" };
const FINE = new Set(["balanced", "insufficient_data"]), STOPS = new Set(["hang", "desync"]);
const STATES = {
  running: "running", hung: "hung", ended: "ended", lost: "contact lost", starting: "starting", waiting: "waiting for a job",
  unknown: "no such job", unreachable: "collector does not answer",
};
const NAMES = {
  wait: "wait for later ranks", transfer: "transfer", self: "computing", self_cpu: "CPU time", self_blocked: "off CPU",
  self_runqueue: "CPU queue", h2d: "copy to GPU", issue: "launching", device_wait: "wait for GPU", device_copy: "copy call",
  sync: "sync", other: "other", idle: "GPU idle",
};
const ROW = 40, AHEAD = 8;
const OLD_VERDICT_S = 15;

const find = id => document.getElementById(id);

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function known(value) {
  return value != null && !Number.isNaN(value);
}

function milliseconds(value) {
  if (!known(value)) return ABSENT;
  const size = Math.abs(value), sign = value < 0 && size >= 0.00005 ? "−" : "";
  if (size >= 1000) return sign + (size / 1000).toFixed(2) + " s";
  if (size >= 100) return sign + size.toFixed(0) + " ms";
  if (size < 0.1 && size >= 0.00005) return sign + (size * 1000).toFixed(size < 0.01 ? 1 : 0) + " µs";
  return sign + (size < 0.005 ? "0" : size.toFixed(size >= 9.995 ? 1 : 2)) + " ms";
}

function percent(value) {
  return known(value) ? (value * 100).toFixed(value >= 0.0005 && value < 0.0995 ? 1 : 0) + " %" : ABSENT;
}

function number(value) {
  if (!known(value)) return ABSENT;
  const size = Math.abs(value);
  return value.toLocaleString("en", size < 1 ? { maximumFractionDigits: 3 } : size < 1000 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 });
}

function seconds(value) {
  if (!known(value)) return ABSENT;
  if (value < 60) return Math.round(value) + " s";
  return value < 3600 ? Math.round(value / 60) + " min" : (value / 3600).toFixed(1) + " h";
}

function scaled(value, base, units) {
  if (!known(value)) return ABSENT;
  let at = 0;
  while (Math.abs(value) >= base && at < units.length - 1) { value /= base; at++; }
  return value.toFixed(at && Math.abs(value) < 100 ? 1 : 0) + " " + units[at];
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
const UNITS = {
  ratio: percent, number, "/s": value => (known(value) ? number(value) + "/s" : ABSENT),
  hertz: value => scaled(value, 1000, ["Hz", "kHz", "MHz", "GHz"]), watts: value => (known(value) ? value.toFixed(0) + " W" : ABSENT),
  bytes: value => scaled(value, 1024, BYTES), "bytes/s": value => (known(value) ? scaled(value, 1024, BYTES) + "/s" : ABSENT),
  celsius: value => (known(value) ? value.toFixed(0) + " °C" : ABSENT),
};

// A sentence with its commands as code, which can be copied; a single word is typed as fast.
function sentence(text, copies = false) {
  const line = make("p");
  text.split("`").forEach((part, at) => {
    line.append(at % 2 ? make("code", part) : part);
    if (at % 2 && copies && part.includes(" ")) line.append(copyButton(part));
  });
  return line;
}

function labelled(label, text, copies) {
  const line = sentence(text, copies);
  line.prepend(make("b", label + " "));
  return line;
}

function copyButton(text) {
  const button = make("button", "copy", "copy");
  button.type = "button";
  button.setAttribute("aria-label", "copy " + text);
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = document.body.appendChild(make("textarea", text));
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
  return button;
}

const held = find("data");
const source = held ? new File(JSON.parse(held.textContent)) : new Collector();
const view = { job: null, range: null, automatic: true, by: "node", rank: null, tab: "ranks", sort: "caused", down: true, difference: false };
const now = { state: null, report: null, ranks: null, steps: null, revisions: [-1, -1, -1], over: false };

// The address says what is shown: job, rank, steps, order, tab.
function readAddress() {
  const asked = new URLSearchParams(location.search || location.hash.slice(1));
  view.job = asked.get("job");
  view.rank = /^\d+$/.test(asked.get("rank") || "") ? Number(asked.get("rank")) : null;
  view.by = asked.get("by") === "stage" ? "stage" : "node";
  view.tab = TABS[asked.get("tab")] ? asked.get("tab") : "ranks";
  const steps = /^(\d+)(?:-(\d+)?)?$/.exec(asked.get("steps") || "");
  if (steps) view.range = [Number(steps[1]), steps[2] != null ? Number(steps[2]) : asked.get("steps").includes("-") ? null : Number(steps[1])];
  view.automatic = !asked.get("steps");
}

function writeAddress() {
  const asked = new URLSearchParams();
  if (view.job) asked.set("job", view.job);
  if (view.rank != null) asked.set("rank", view.rank);
  if (!view.automatic) asked.set("steps", view.range ? view.range[0] + "-" + (view.range[1] ?? "") : "all");
  if (view.by !== "node") asked.set("by", view.by);
  if (view.tab !== "ranks") asked.set("tab", view.tab);
  const text = asked.toString();
  history.replaceState(null, "", location.pathname + (source.live ? (text ? "?" + text : "") : text ? "#" + text : ""));
}

// The present: the state and its figures.

function told(state, over) {
  if (state) {
    now.state = state;
    now.over = over;
    now.heard = Date.now();
    if (!view.job && state.job) view.job = state.job;
  }
  showState(state ? state.state : now.state && now.state.state === "ended" ? "ended" : "unreachable");
  if (state && (!now.report || overtaken(now.report))) showVerdicts();
  const waits = find("verdicts").querySelector(".bad .cost");
  if (waits && state && state.waited) setText(waits, state.waited);
  if (state && state.revisions) refresh(state.revisions);
}

function showState(which) {
  const state = now.state || {};
  const pill = find("state");
  setText(pill, STATES[which] || which);
  pill.className = "pill " + which;
  const gone = which === "unreachable" || which === "lost";
  document.body.classList.toggle("stale", gone);
  setText(find("job"), find("jobs").hidden ? state.job || "" : "");
  setText(find("command"), state.command || "");
  find("command").title = state.command || "";
  const age = known(state.age_s) ? state.age_s + (which === "unreachable" ? (Date.now() - now.heard) / 1000 : 0) : null;
  const ranks = known(state.ranks) && state.world_size > state.ranks ? state.ranks + " of " + number(state.world_size) : number(state.world_size);
  const mean = now.steps && now.steps.whole ? now.steps.whole.stepMs : null;
  const facts = [
    ["step", source.live ? (state.step >= 0 ? number(state.step) : ABSENT) : null, ""],
    ["", source.live ? null : number(state.steps), "steps"],
    ["", milliseconds(mean), "mean step"],
    ["now", known(state.steps_s) ? number(state.steps_s) : source.live && which === "running" ? ABSENT : null, "steps/s"],
    ["", known(state.work_s) ? number(state.work_s) : null, "items/s"],
    ["", known(state.world_size) ? ranks : null, (state.world_size === 1 ? "rank" : "ranks") + (!known(state.nodes) ? "" : state.nodes === 1 ? ", 1 node" : ", " + number(state.nodes) + " nodes")],
    ["verdict", which === "running" && state.judged_s >= OLD_VERDICT_S ? seconds(state.judged_s) : null, "old"],
    ["data", known(age) && which !== "ended" ? seconds(age) : null, "old"],
  ].filter(([, value]) => value != null);
  const list = find("facts");
  while (list.children.length > facts.length) list.lastChild.remove();
  facts.forEach((texts, at) => {
    const entry = list.children[at] || list.appendChild(make("li"));
    if (!entry.firstChild) entry.append(make("span"), " ", make("b"), " ", make("span"));
    texts.forEach((text, place) => setText(entry.children[place], text));
  });
  const job = (now.report && now.report.job) || {};
  const alarms = [
    state.recording && "Recording stopped: " + state.recording,
    which === "lost" && "Contact lost: " + state.why + ". What is below was so before.",
    which === "unreachable" && "The collector does not answer. What is below is " + seconds(age) + " old.",
    which === "ended" && state.why && "The job has ended: " + state.why + (/[.!?…]$/.test(state.why) ? "" : "."),
    which === "ended" && job.to_do && "Do: " + job.to_do + ".",
    which === "ended" && now.over && "The collector has stopped; this page keeps what it had.",
    which === "unknown" && "No such job runs here: " + view.job,
    (which === "running" || which === "starting" || which === "hung") && state.why && state.why[0].toUpperCase() + state.why.slice(1) + ".",
  ].filter(Boolean);
  const alarm = find("alarm");
  alarm.hidden = !alarms.length;
  alarm.classList.toggle("mild", !state.recording);
  const said = alarms.join(" ");
  if (alarm.said !== said) alarm.replaceChildren(...sentence(alarm.said = said).childNodes);
}

// What changed is fetched: no more often than each second, and what is large less often.

let busy = false, after = 0;

async function refresh(revisions) {
  const changed = revisions.map((one, at) => one !== now.revisions[at]);
  if (busy || Date.now() < after || (document.hidden && source.live) || !changed.some(Boolean)) return;
  busy = true;
  try {
    if (changed[2]) await listJobs();
    if (changed[0]) await fetchReport();
    if (changed[0] || changed[1]) await fetchSteps();
    now.revisions = revisions;
    if (view.rank != null) await showDrawer();
  } finally {
    busy = false;
    after = Date.now() + Math.max(900, (now.steps ? now.steps.ranks.length : 0) * 2.5);
  }
}

async function fetchReport() {
  const found = await source.get("report", view.job);
  now.report = found && found.report;
  now.ranks = found && found.ranks;
  if (view.automatic) view.range = faulty();
  showVerdicts();
}

async function fetchSteps() {
  const range = view.range;
  const found = await source.steps(view.job, range, view.by);
  if (range === view.range) now.steps = found;
  showMap();
  showTable();
  if (now.state) showState((find("state").className.split(" ")[1]) || "running");
}

// The steps that the first verdict is about, which of a running job still holds; null where that is all of them, or the job stopped.
function faulty() {
  const first = troubled()[0];
  const begun = now.steps ? now.steps.columns.first[0] : 0;
  const last = now.steps ? now.steps.columns.last : Infinity;
  if (!first || STOPS.has(first.kind) || !first.since_step || first.since_step <= begun + 1 || first.since_step > last) return null;
  return [first.since_step, first.until_step ?? null];
}

function troubled() {
  const found = ((now.report && now.report.verdicts) || []).filter(one => !FINE.has(one.kind));
  return source.live ? found.filter(one => one.until_step == null) : found;
}

function badRanks() {
  return new Set(troubled().flatMap(one => one.ranks || []));
}

// Verdicts.

const opened = new Set();
let spoken = null;

function severity(rendered) {
  const failed = rendered.head === "OK" && now.report && now.report.job.to_do; // how it ended is the news
  return failed ? "unsure" : SEVERITY[rendered.head] || "";
}

// The first verdict in full, the others as a line with the rest behind a fold.
function verdictCard(one, place = 0) {
  const card = make("article", null, "card verdict " + severity(one));
  const title = make("h2");
  title.append(make("b", one.head), make("span", one.what));
  if (one.sure) title.append(make("small", one.sure));
  const [cost, ...rest] = (one.cost || "").split("; ");
  if (cost) title.append(make("span", STOPS.has(one.kind) ? cost : "costs " + cost, "cost"));
  card.append(title);
  const first = [...one.why.slice(0, 1).map(text => labelled("Why", text)), ...one.do.slice(0, 1).map(text => labelled("Do", text, true))];
  const more = [
    ...rest.filter(Boolean).map(text => labelled("Cost", text)), ...one.why.slice(1).map(text => sentence(text)),
    ...(one.where ? [labelled("Where", one.where)] : []), ...one.do.slice(1).map(text => sentence(text, true)),
  ];
  const folded = place ? [...first, ...more] : more;
  if (!place) card.append(...first);
  if (folded.length) card.append(fold(place ? "why, and what to do" : "details", folded, one.head + one.what));
  return card;
}

function fold(title, lines, name) {
  const box = make("details");
  box.open = opened.has(name);
  box.ontoggle = () => { if (box.open) opened.add(name); else opened.delete(name); };
  box.append(make("summary", title), ...lines);
  return box;
}

let drawn = "";

// Of a job that has made its first steps since the report is nothing to say yet.
function overtaken(report) {
  return source.live && report && report.job.steps === 0 && now.state && now.state.step >= 0;
}

function showVerdicts() {
  const report = overtaken(now.report) ? null : now.report;
  const text = JSON.stringify(report ? [report.rendered, report.notes, report.overlap, report.job, report.bound, report.settings, report.waste] : [now.state && now.state.judged_s == null]);
  if (text === drawn) return;
  drawn = text;
  const shown = report ? report.rendered : [];
  const cards = shown.slice(0, 3).map(verdictCard);
  if (shown.length > 3) cards.push(fold(shown.length - 3 + " more verdicts", shown.slice(3).map(verdictCard), "more verdicts"));
  if (!report) cards.push(emptyCard());
  if (report && report.overlap) cards.push(make("p", report.overlap, "soft"));
  const limit = report && report.bound ? [labelled("LIMITED BY", report.bound, true)] : [];
  if (limit.length && report.bound_do) limit.push(labelled("Do", report.bound_do, true));
  cards.splice(report && report.bound_first ? 0 : cards.length, 0, ...limit);
  if (report) cards.push(...(report.settings || []).map(one => labelled("TRY", one, true)));
  find("verdicts").replaceChildren(...cards);
  const after = [...find("verdicts").querySelectorAll("p > b")].filter(one => one.textContent === "Do ");
  after.slice(report && report.job.to_do ? 0 : 1).forEach(one => setText(one, "Then "));
  const said = shown.map(one => one.head + " " + one.what).join(". ");
  if (report && spoken !== null && said !== spoken) setText(find("spoken"), said);
  if (report) spoken = said;
  document.title = (troubled().length ? "● " : "") + "hindmost · " + ((report && report.job.id) || "");
  const notes = find("notes");
  notes.replaceChildren();
  if (!report) return;
  if (source.live) notes.append(sentence("in a terminal: `hindmost top " + location.host + "`", true));
  if (report.waste && report.waste.length) notes.append(fold("where ranks lose time", report.waste.map(one => sentence(one)), "waste"));
  if (report.notes && report.notes.length) notes.append(fold(report.notes.length + (report.notes.length === 1 ? " note" : " notes"), report.notes.map(one => sentence(one)), "notes"));
}

function emptyCard() {
  const card = make("article", null, "card verdict unsure");
  const title = make("h2");
  const none = overtaken(now.report) || (now.state && now.state.judged_s == null);
  const what = none ? "it comes after a few steps" : now.state ? "reading the verdict" : "no answer from the collector yet";
  title.append(make("b", none ? "NO VERDICT YET" : "…"), make("span", what));
  card.append(title);
  return card;
}

// The map of delays, and the line of step times.

let heat, line;

function showMap() {
  const steps = now.steps;
  find("map").hidden = !steps;
  if (!steps) return;
  const verdicts = (now.report && now.report.verdicts) || [];
  const onsets = verdicts.filter(one => !FINE.has(one.kind) && one.since_step != null).map(one => one.since_step);
  find("heat").hidden = find("scale").hidden = find("by").parentElement.hidden = !steps.heat;
  setText(find("map-title"), steps.heat ? "Delay against peers" : "Step time");
  if (steps.heat) {
    heat.show(steps, { bad: badRanks(), onsets });
    const colours = RAMPS[isDark() ? "dark" : "light"];
    const bar = make("i");
    bar.style.background = "linear-gradient(90deg," + colours.join(",") + ")";
    find("scale").replaceChildren("on time", bar, milliseconds(steps.heat.top_ms) + " late or more");
  }
  heat.showRange(view.range);
  const whatIf = (now.report && now.report.what_if) || {};
  const intervals = verdicts.filter(one => !FINE.has(one.kind) && one.since_step != null).map(one => ({
    since: one.since_step, until: one.until_step, colour: STOPS.has(one.kind) ? "--bad" : "--warn",
  }));
  line.show(steps.columns, whatIf.ideal_step_ms, intervals);
  const entries = [["--forward", "median step"]];
  if (steps.columns.p99_ms.some((one, at) => one > steps.columns.step_ms[at])) entries.push(["--sync", "slowest 1 %"]);
  if (known(whatIf.ideal_step_ms)) entries.push(["--ok", "ideal, no rank ever late: " + milliseconds(whatIf.ideal_step_ms)]);
  if (intervals.some(one => one.since <= steps.columns.last)) entries.push(["--warn", "verdict holds"]);
  if (steps.columns.checkpoint.length) entries.push(["--soft", "checkpoint"]);
  find("legend").replaceChildren(...entries.map(([colour, text]) => keyEntry(text, colour)));
  setText(find("map-text"), mapText());
  const [from, to] = view.range || [];
  if (document.activeElement !== find("from")) find("from").value = from ?? steps.columns.first[0];
  if (document.activeElement !== find("to")) find("to").value = to ?? steps.columns.last;
  find("onset").hidden = !faulty();
  find("by").disabled = new Set(steps.role).size < 2;
}

function mapText() {
  const bad = [...badRanks()];
  return bad.length ? "latest: rank " + bad.slice(0, 8).join(", ") : "no rank is named";
}

function keyEntry(text, colour, className) {
  const entry = make("span"), mark = make("i", null, className);
  if (!className) mark.style.background = "var(" + colour + ")";
  entry.append(mark, text);
  return entry;
}

function choose(range, automatic = false) {
  view.range = range;
  view.automatic = automatic;
  writeAddress();
  heat.showRange(range);
  fetchSteps();
}

// The table of ranks: only the rows that are in view are elements, each that of its rank.

const COLUMNS = [
  { key: "rank", name: "rank" },
  { key: "node", name: "node", left: true },
  { key: null, name: "where a step goes", left: true },
  { key: "delay", name: "delay", about: "how much later than its peers a rank is with its own work, a step" },
  { key: "wait", name: "mean wait", about: "for ranks that arrive later, a step" },
  { key: "caused", name: "caused wait", about: "how long the others wait for this rank, a step; a fix saves what its verdict costs" },
  { key: "last", name: "last to arrive", about: "in that share of collectives" },
];
const OLD = { wait: "wait_ms", caused: "caused_wait_ms", last: "share_last" };
let order = [], rowOf = new Map(), pending = null, drawnRows = [0, 0];

function partName(name) {
  return NAMES[name] || name.replace("_", " ");
}

function rankList() {
  return now.steps ? now.steps.ranks : (now.ranks && now.ranks.rank) || [];
}

function shown() {
  return now.steps ? now.steps.chosen || now.steps.whole : null;
}

function nodeOf(rank) {
  if (!now.ranks) return null;
  if (now.places !== now.ranks) {
    now.places = now.ranks;
    now.placeOf = new Map(now.ranks.rank.map((one, at) => [one, at]));
  }
  return now.ranks.node[now.placeOf.get(rank)];
}

function value(key, at, means = shown()) {
  if (key === "rank") return rankList()[at];
  if (key === "node") return nodeOf(rankList()[at]) || "";
  if (!means) return now.ranks && OLD[key] ? now.ranks[OLD[key]][at] : null;
  const share = means.shares[key] ? means.shares[key][at] : NaN;
  return key === "last" ? share : share * means.stepMs;
}

function matches(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return () => true;
  const ranges = wanted.split(/[\s,]+/).map(one => /^(\d+)(?:-(\d+))?$/.exec(one)).filter(Boolean);
  return at => {
    const rank = rankList()[at];
    if (ranges.length) return ranges.some(one => rank >= Number(one[1]) && rank <= Number(one[2] ?? one[1]));
    return String(nodeOf(rank) || "").toLowerCase().includes(wanted);
  };
}

function sortRows() {
  const bad = badRanks(), ranks = rankList(), fits = matches(find("filter").value);
  const first = at => (view.sort === "caused" && bad.has(ranks[at]) ? 0 : 1);
  const found = ranks.map((_, at) => at).filter(fits);
  const keys = found.map(at => value(view.sort, at));
  const places = found.map((_, place) => place).sort((one, other) => {
    const [a, b] = [found[one], found[other]];
    if (first(a) !== first(b)) return first(a) - first(b);
    const [x, y] = [keys[one], keys[other]];
    if (known(x) !== known(y)) return known(x) ? -1 : 1;
    if (known(x) && x !== y) return (x < y ? -1 : 1) * (view.down ? -1 : 1);
    return ranks[a] - ranks[b];
  });
  order = places.map(place => found[place]);
}

// Rows stay where they are while a reader points at them.
function showTable(again = false) {
  const box = find("scroll");
  const reading = box.querySelector("tbody:hover") || box.querySelector("tbody :focus");
  if (again || !reading || order.length === 0 || order.some(at => at >= rankList().length)) sortRows();
  showHead();
  document.body.classList.toggle("onenode", !now.ranks || new Set(now.ranks.node).size < 2);
  fill();
  showKey();
  const means = shown(), whole = now.steps && now.steps.whole;
  const of = means && now.steps.chosen && whole.steps !== means.steps;
  setText(find("which"), !means ? "medians of the report: no steps are known" :
    "means of steps " + means.first + " to " + means.last + (of ? "; small: of all steps" : "") + "; text reports have medians");
}

// Whether any rank is known to have a GPU.
function onGpus() {
  const means = shown();
  return Boolean((now.ranks && now.ranks.gpu.some(Boolean)) || (means && lanesOf(means).gpu.length));
}

function showHead() {
  const head = find("head");
  if (!head.children.length) {
    head.append(...COLUMNS.map(column => {
      const cell = make("th", column.key ? null : column.name, column.left ? "left" : "");
      cell.scope = "col";
      if (!column.key) return cell;
      const button = cell.appendChild(make("button", column.name));
      button.title = column.about || "";
      button.type = "button";
      button.onclick = () => sortBy(column.key);
      return cell;
    }));
  }
  const gpus = onGpus();
  setText(head.children[2], COLUMNS[2].name + (gpus ? ": host above, GPU below" : ""));
  find("tab-gpus").hidden = !gpus && view.tab !== "gpus";
  COLUMNS.forEach((column, at) => {
    const cell = head.children[at];
    if (column.key === view.sort) cell.setAttribute("aria-sort", view.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

function sortBy(key) {
  view.down = view.sort === key ? !view.down : key !== "rank" && key !== "node";
  view.sort = key;
  showTable(true);
}

// The first row that can be seen, and the one after the last: of a box that is this high at most.
function inSight(box) {
  const first = Math.floor(box.scrollTop / ROW);
  return [first, Math.min(first + Math.ceil(640 / ROW) + 1, order.length)];
}

// Layout costs as much for one new row as for several: they are made some at a time, before they are in sight.
function scrolled() {
  pending = null;
  const [first, end] = inSight(find("scroll"));
  if (first < drawnRows[0] || end > drawnRows[1]) fill();
}

function fill() {
  const box = find("scroll"), body = find("rows");
  const [seen, end] = inSight(box), ahead = seen < drawnRows[1] && end > drawnRows[0] ? AHEAD : 1;
  const first = Math.max(seen - ahead, 0), stop = Math.min(end + ahead, order.length);
  drawnRows = [first, stop];
  if (!body.children.length) body.append(make("tr"), make("tr"));
  const [above, below] = [body.firstChild, body.lastChild];
  above.style.height = first * ROW + "px";
  below.style.height = (order.length - stop) * ROW + "px";
  body.parentNode.setAttribute("aria-rowcount", order.length + 1);
  const wanted = order.slice(first, stop), ranks = rankList(), left = new Map(rowOf), focused = document.activeElement;
  rowOf = new Map();
  for (const at of wanted) {
    if (left.has(ranks[at])) { rowOf.set(ranks[at], left.get(ranks[at])); left.delete(ranks[at]); }
  }
  const spare = [...left.values()].filter(row => !row.contains(focused)), bad = badRanks();
  let before = above;
  wanted.forEach((at, place) => {
    const rank = ranks[at], row = rowOf.get(rank) || spare.pop() || makeRow();
    rowOf.set(rank, row);
    updateRow(row, at, bad);
    row.setAttribute("aria-rowindex", first + place + 2);
    if (before.nextSibling !== row) before.after(row);
    before = row;
  });
  const kept = new Set(rowOf.values());
  for (const row of left.values()) if (!kept.has(row)) row.remove();
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}

function makeRow() {
  const row = make("tr", null, "rank");
  for (const column of COLUMNS) row.append(make("td", null, column.left ? "left" : ""));
  row.firstChild.appendChild(make("button", null, "rank")).type = "button";
  row.onclick = () => openRank(row.rank);
  const lanes = row.children[2].appendChild(make("div", null, "lanes"));
  lanes.append(make("div", null, "lane"), make("div", null, "lane"));
  for (const at of [3, 4, 5, 6]) row.children[at].append(make("span"), make("small"));
  return row;
}

function updateRow(row, at, bad) {
  const rank = rankList()[at], cells = row.children, means = shown(), whole = now.steps && now.steps.whole;
  row.className = "rank" + (bad.has(rank) ? " bad" : "") + (rank === view.rank ? " chosen" : "");
  if (row.rank === rank && row.means === means && row.places === now.ranks && row.difference === view.difference) return;
  Object.assign(row, { rank, means, places: now.ranks, difference: view.difference });
  const button = cells[0].firstChild;
  setText(button, String(rank));
  button.setAttribute("aria-label", "rank " + rank);
  setText(cells[1], nodeOf(rank) || ABSENT);
  drawLanes(cells[2].firstChild, at, means);
  ["delay", "wait", "caused", "last"].forEach((key, place) => {
    const write = key === "last" ? percent : milliseconds, cell = cells[3 + place];
    setText(cell.firstChild, write(value(key, at)));
    setText(cell.lastChild, means && now.steps.chosen && whole.steps !== means.steps ? write(value(key, at, whole)) : "");
  });
}

// Lanes.

function lanesOf(means) {
  if (means.lanes) return means.lanes;
  means.lanes = { host: [], gpu: [] };
  for (const name of Object.keys(means.shares)) {
    const [lane, part] = name.split(":");
    if (part) means.lanes[lane].push([part, means.shares[name]]);
  }
  return means.lanes;
}

function peers(means) {
  if (means.peers) return means.peers;
  const groups = new Map();
  now.steps.role.forEach((role, at) => groups.set(role, [...(groups.get(role) || []), at]));
  means.peers = {};
  for (const [name, values] of Object.entries(means.shares)) {
    const of = new Map([...groups].map(([role, places]) => [role, median(places.map(at => values[at]))]));
    means.peers[name] = now.steps.role.map(role => of.get(role));
  }
  return means.peers;
}

function colour(part) {
  return "var(--" + part.replace("_", "-") + ")";
}

function drawLanes(box, at, means) {
  ["host", "gpu"].forEach((which, place) => {
    const lane = box.children[place];
    const parts = means ? lanesOf(means)[which] : [];
    lane.hidden = !parts.length;
    if (!parts.length) return;
    const missing = parts.every(([, values]) => Number.isNaN(values[at]));
    lane.classList.toggle("missing", missing);
    lane.classList.toggle("apart", view.difference && !missing);
    if (missing) { lane.replaceChildren((which === "gpu" ? "GPU" : "host") + " not measured"); return; }
    if (lane.firstChild && lane.firstChild.nodeType === Node.TEXT_NODE) lane.replaceChildren();
    if (view.difference) drawDifference(lane, which, parts, at, means); else drawParts(lane, which, parts, at, means);
  });
}

function piece(lane, place) {
  return lane.children[place] || lane.appendChild(make("i"));
}

function drawParts(lane, which, parts, at, means) {
  let place = 0;
  for (const [part, values] of parts) {
    if (!(values[at] > 0.0005)) continue;
    const one = piece(lane, place++);
    one.className = part === "idle" ? "idle" : "";
    one.style.cssText = "width:" + (values[at] * 100).toFixed(2) + "%;" + (part === "idle" ? "" : "background:" + colour(part));
    one.says = () => (which === "gpu" ? "GPU: " : "host: ") + partName(part) + " " + milliseconds(values[at] * means.stepMs) + " (" + percent(values[at]) + ")";
  }
  while (lane.children.length > place) lane.lastChild.remove();
}

// To the right what a rank takes longer for than its peers' median, to the left what it takes less for.
function drawDifference(lane, which, parts, at, means) {
  const typical = peers(means);
  let place = 0, right = 50, left = 50;
  for (const [part, values] of parts) {
    const more = (values[at] - typical[which + ":" + part][at]) * 50;
    if (!(Math.abs(more) > 0.1)) continue;
    const one = piece(lane, place++), width = Math.abs(more);
    if (more < 0) left -= width;
    one.className = part === "idle" ? "idle" : "";
    one.style.cssText = "left:" + (more > 0 ? right : left).toFixed(2) + "%;width:" + width.toFixed(2) + "%;" + (part === "idle" ? "" : "background:" + colour(part));
    if (more > 0) right += width;
    const times = (values[at] - typical[which + ":" + part][at]) * means.stepMs;
    one.says = () => partName(part) + (times > 0 ? " +" : " −") + milliseconds(Math.abs(times)) + " against peers";
  }
  const zero = piece(lane, place++);
  zero.className = "zero";
  zero.style.cssText = "";
  while (lane.children.length > place) lane.lastChild.remove();
}

function showKey() {
  const means = shown();
  if (!means) { find("key").replaceChildren(); return; }
  const lanes = lanesOf(means), used = new Map();
  for (const [part, values] of [...lanes.host, ...lanes.gpu]) {
    if (values.some(one => one > 0.004)) used.set(part, true);
  }
  find("key").replaceChildren(...[...used.keys()].map(part => keyEntry(partName(part), "--" + part.replace("_", "-"), part === "idle" ? "idle" : "")));
  if (!lanes.gpu.length && onGpus()) find("key").append(make("span", "GPU lane: not measured"));
}

// The drawer: one rank compared with its peers.

async function openRank(rank, focus = true) {
  view.rank = rank;
  writeAddress();
  await showDrawer();
  if (focus) find("drawer").focus({ preventScroll: true });
  fill();
}

function closeDrawer() {
  const row = rowOf.get(view.rank);
  view.rank = null;
  writeAddress();
  find("drawer").hidden = true;
  document.body.classList.remove("drawn");
  fill();
  if (row) row.querySelector("button").focus();
}

async function showDrawer() {
  const rank = view.rank, box = find("drawer");
  const found = await source.get("rank", view.job, { rank });
  if (rank !== view.rank) return;
  const at = rankList().indexOf(rank), means = shown();
  const bar = make("div", null, "bar"), close = make("button", "close");
  close.type = "button";
  close.onclick = closeDrawer;
  bar.append(make("h2", "rank " + rank), close);
  const parts = [bar];
  const place = now.ranks ? now.ranks.rank.indexOf(rank) : -1;
  const where = place < 0 ? [] : [now.ranks.node[place], now.ranks.gpu[place]].filter(Boolean);
  parts.push(make("p", at < 0 ? "This rank is not known here." : where.join(", ") || "where it runs is not known", "soft"));
  if (at >= 0 && means) {
    const table = comparison();
    for (const lane of ["host", "gpu"]) {
      for (const [part, values] of lanesOf(means)[lane]) {
        const [mine, others] = [values[at] * means.stepMs, peers(means)[lane + ":" + part][at] * means.stepMs];
        if (mine > 0.002 * means.stepMs || others > 0.002 * means.stepMs) table.append(compared((lane === "gpu" ? "GPU: " : "host: ") + partName(part).replace("GPU ", ""), mine, others, milliseconds, part));
      }
    }
    parts.push(make("h2", "the mean step, " + milliseconds(means.stepMs)), table);
    parts.push(make("p", "Means; the line Why has medians. " + (onGpus() ? "A phase of the host has its waits for the GPU in it; Why has its work alone."
      : "Waits and transfers are not counted in the phase that they are in."), "soft"));
    if (lanesOf(means).gpu.length) parts.push(make("p", lanesOf(means).gpu.some(([part]) => part === "transfer") ?
      "GPU: transfers that overlap with computing count as computing." : "GPU: a phase has its collectives in it.", "soft"));
  }
  const gauges = (found && found.gauges) || [];
  parts.push(make("h2", onGpus() ? "what its process, node and GPU did" : "what its process and node did"));
  if (gauges.length) {
    const table = comparison();
    for (const one of gauges.filter(one => one.value || one.peers)) table.append(compared(one.name, one.value, one.peers, UNITS[one.unit]));
    parts.push(table);
  } else {
    parts.push(make("p", source.live ? "not measured, or not yet: figures come with the next full evaluation" : "not measured", "soft"));
  }
  parts.push(make("h2", "last stack"));
  parts.push(found && found.stack ? make("pre", found.stack) : make("p", "none was taken", "soft"));
  const inside = box.contains(document.activeElement), top = box.scrollTop;
  box.replaceChildren(...parts);
  box.hidden = false;
  document.body.classList.add("drawn");
  box.scrollTop = top;
  if (inside) box.focus({ preventScroll: true });
}

function comparison() {
  const table = make("table"), head = make("tr");
  for (const [at, name] of ["", "this rank", "peers", "more"].entries()) head.append(make("th", name, at ? "" : "left"));
  table.append(head);
  return table;
}

function compared(name, mine, others, write, part) {
  const row = make("tr"), title = make("td", null, "left");
  if (part) { const mark = make("i"); mark.style.cssText = "display:inline-block;width:9px;height:9px;margin-right:6px;background:" + colour(part); title.append(mark); }
  title.append(name);
  const more = known(mine) && known(others) ? mine - others : null, none = known(more) && write(Math.abs(more)) === write(0);
  const shown = !known(more) ? ABSENT : none ? write(0) : (more > 0 ? "+" : "−") + write(Math.abs(more));
  row.append(title, make("td", write(mine)), make("td", write(others)), make("td", shown));
  return row;
}

// Tabs.

const TABS = {
  ranks: { name: "Ranks" },
  communication: { name: "Communication", show: showCommunication },
  nodes: { name: "Nodes", show: () => showMachines("nodes") },
  gpus: { name: "GPUs", show: () => showMachines("gpus") },
  run: { name: "Run", show: showSections },
  verdicts: { name: "Verdicts", show: showHistory },
  jobs: { name: "Jobs", show: showJobs },
};

function makeTabs() {
  const box = find("tabs");
  for (const [key, tab] of Object.entries(TABS)) {
    if ((key === "jobs" && !source.live) || (key === "run" && source.live)) continue;
    const button = box.appendChild(make("button", tab.name));
    Object.assign(button, { type: "button", id: "tab-" + key });
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", "panel");
    button.onclick = () => openTab(key);
  }
  box.onkeydown = event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...box.children], at = all.findIndex(one => one.getAttribute("aria-selected") === "true");
    const next = all[(at + step + all.length) % all.length];
    next.click();
    next.focus();
  };
}

function openTab(key) {
  view.tab = key;
  writeAddress();
  for (const button of find("tabs").children) {
    const chosen = button.id === "tab-" + key;
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  find("panel").setAttribute("aria-labelledby", "tab-" + key);
  find("ranks").hidden = key !== "ranks";
  find("other").hidden = key === "ranks";
  if (key === "ranks") { fill(); return; }
  find("other").replaceChildren(make("p", "…", "soft"));
  TABS[key].show();
}

function plainTable(titles, rows, empty) {
  find("other").replaceChildren(rows.length ? tableOf(titles, rows, TABS[view.tab].name) : make("p", empty, "soft"));
}

function tableOf(titles, rows, label) {
  const scroll = make("div", null, "scroll"), table = make("table"), head = make("tr");
  scroll.tabIndex = 0;
  scroll.setAttribute("aria-label", label);
  for (const [name, className] of titles) {
    const cell = make("th", name, className);
    cell.scope = "col";
    head.append(cell);
  }
  const body = make("tbody");
  for (const row of rows) {
    const line = body.appendChild(make("tr"));
    row.forEach((cell, at) => {
      const made = make("td", null, titles[at][1]);
      made.append(cell);
      line.append(made);
    });
  }
  const top = make("thead");
  top.append(head);
  table.append(top, body);
  scroll.append(table);
  return scroll;
}

async function showSections() {
  const found = (await source.get("sections", view.job)) || [];
  if (view.tab !== "run") return;
  const parts = [];
  let title = "";
  for (const one of found) {
    if (one.title !== title) parts.push(make("h2", title = one.title));
    parts.push(make("p", one.about, "soft"));
    parts.push(tableOf(one.columns.map(column => [column.name, column.text ? "left wrap" : ""]), one.rows, one.title));
    if (one.left_out) parts.push(make("p", number(one.left_out) + " more rows: hindmost report " + now.report.path + " --format csv", "soft"));
  }
  find("other").replaceChildren(...(parts.length ? parts : [make("p", "The recording of this report was not at hand.", "soft")]));
}

function sizes(one) {
  if (one.bytes == null) return ABSENT;
  return (one.least == null || one.least === one.bytes ? "" : UNITS.bytes(one.least) + "–") + UNITS.bytes(one.bytes);
}

async function showCommunication() {
  const found = (await source.get("communication", view.job)) || [];
  if (view.tab !== "communication") return;
  const rows = found.map(one => [
    one.operation, sizes(one), one.group + (one.group === 1 ? " rank" : " ranks") + (one.groups > 1 ? ", " + one.groups + " groups" : ""),
    number(one.calls), milliseconds(one.wait_ms), milliseconds(one.transfer_ms), UNITS["bytes/s"](one.bandwidth), UNITS["bytes/s"](one.bus_bandwidth),
  ]);
  plainTable([["operation", "left"], ["size"], ["group"], ["calls"], ["wait, a call"], ["transfer, a call"], ["bandwidth"], ["bus bandwidth"]], rows, "No communication was recorded.");
}

function ranksText(ranks) {
  if (!ranks.length) return ABSENT;
  const ordered = [...ranks].sort((one, other) => one - other);
  if (ordered.length > 2 && ordered.at(-1) - ordered[0] === ordered.length - 1) return ordered[0] + "–" + ordered.at(-1);
  return ordered.slice(0, 8).join(", ") + (ordered.length > 8 ? ", …" : "");
}

async function showMachines(which) {
  const all = await source.get("machines", view.job);
  if (view.tab !== which) return;
  const found = all && all[which];
  const gpus = which === "gpus", means = shown(), rows = [];
  const sum = (ranks, key) => {
    if (!means) return null;
    const values = ranks.map(rank => now.steps.ranks.indexOf(rank)).filter(at => at >= 0).map(at => value(key, at)).filter(known);
    return values.length ? Math.max(...values) : null;
  };
  (found ? found.node : []).forEach((node, at) => rows.push([
    node, ...(gpus ? [found.gpu[at]] : []), ranksText(found.ranks[at]), ...found.columns.map(column => UNITS[column.unit](column.values[at])),
    milliseconds(sum(found.ranks[at], "delay")), milliseconds(sum(found.ranks[at], "caused")),
  ]));
  const titles = [["node", "left"], ...(gpus ? [["GPU", "left"]] : []), ["ranks", "left"], ...(found ? found.columns.map(one => [one.name]) : []), ["worst delay"], ["worst caused wait"]];
  plainTable(titles, rows, gpus ? "No GPU was seen." : "No node is known.");
}

function said(verdict) {
  const ranks = (verdict.ranks || []).length ? "rank " + ranksText(verdict.ranks) : "";
  return [verdict.kind.replace("_", " "), ranks, verdict.cause && verdict.cause !== "unknown" ? verdict.cause.replace("_", " ") : ""].filter(Boolean).join(", ");
}

async function showHistory() {
  const events = source.live ? (await source.get("verdicts", view.job)) || [] : null;
  if (view.tab !== "verdicts") return;
  const steps = one => (one.since_step == null ? ABSENT : one.since_step + "–" + (one.until_step ?? ""));
  if (events) {
    const rows = [...events].reverse().map(one => [new Date(one.time_ns / 1e6).toLocaleTimeString(), one.event, said(one.verdict), steps(one.verdict), milliseconds(one.verdict.cost_ms_per_step), percent(one.verdict.cost_ratio)]);
    plainTable([["time", "left"], ["", "left"], ["verdict", "left"], ["steps"], ["costs a step"], ["of it"]], rows, "No verdict has opened yet.");
    return;
  }
  const rows = ((now.report && now.report.verdicts) || []).map(one => [said(one), steps(one), milliseconds(one.cost_ms_per_step), percent(one.cost_ratio)]);
  plainTable([["verdict", "left"], ["steps"], ["costs a step"], ["of it"]], rows, "No verdict.");
}

async function showJobs() {
  const jobs = await source.jobs();
  if (view.tab !== "jobs") return;
  const rows = jobs.map(job => {
    const link = make("a", job.id);
    link.href = job.state === "stored" ? "report?job=" + encodeURIComponent(job.id) : "?job=" + encodeURIComponent(job.id);
    const verdict = job.kind ? said({ kind: job.kind, ranks: job.ranks }) : ABSENT;
    return [link, job.command || ABSENT, STATES[job.state] || job.state, verdict, percent(job.cost_ratio), job.world_size == null ? ABSENT : number(job.world_size), job.started_s ? new Date(job.started_s * 1000).toLocaleString() : ABSENT];
  });
  plainTable([["job", "left"], ["command", "left wrap"], ["state", "left"], ["verdict", "left"], ["cost"], ["ranks"], ["started"]], rows, "No job is known.");
}

async function listJobs() {
  const jobs = (await source.jobs()).filter(job => job.state !== "stored"), select = find("jobs");
  const names = jobs.map(job => job.id);
  if (names.join("\n") !== [...select.options].map(one => one.value).join("\n")) select.replaceChildren(...names.map(name => new Option(name)));
  if (view.job) select.value = view.job;
  select.hidden = names.length < 2 || !names.includes(view.job);
}

// Keys.

const KEYS = [["/", "filter ranks"], ["j  k", "next, previous rank"], ["Enter", "open the rank"], ["s", "sort by the next column"], ["a", "all steps"], ["Esc", "close"], ["?", "these keys"]];

function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (!find("drawer").hidden) closeDrawer(); else if (typing) event.target.blur();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { "/": () => { openTab("ranks"); find("filter").focus(); }, j: () => move(1), k: () => move(-1), s: nextSort, a: () => choose(null), "?": showKeys }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function move(by) {
  if (!order.length) return;
  const ranks = rankList(), inside = document.activeElement.closest && document.activeElement.closest("tr.rank");
  const focused = inside && [...rowOf].find(([, row]) => row === inside);
  const at = focused ? order.findIndex(one => ranks[one] === focused[0]) : by > 0 ? -1 : 0;
  const next = Math.min(Math.max(at + by, 0), order.length - 1), box = find("scroll");
  if (next * ROW < box.scrollTop) box.scrollTop = next * ROW;
  if ((next + 2) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (next + 2) * ROW - box.clientHeight;
  fill();
  const row = rowOf.get(ranks[order[next]]);
  if (row) row.querySelector("button").focus({ preventScroll: true });
}

function nextSort() {
  const keys = COLUMNS.map(column => column.key).filter(Boolean);
  view.sort = keys[(keys.indexOf(view.sort) + 1) % keys.length];
  view.down = view.sort !== "rank" && view.sort !== "node";
  showTable(true);
}

function showKeys() {
  const box = find("keys");
  if (box.open) { box.close(); return; }
  const table = make("table");
  for (const [key, text] of KEYS) {
    const row = table.appendChild(make("tr")), cell = row.appendChild(make("td"));
    cell.append(make("kbd", key));
    row.append(make("td", text));
  }
  const close = make("button", "close");
  close.type = "button";
  close.onclick = () => box.close();
  box.replaceChildren(table, close);
  box.showModal();
}

function stepsTyped() {
  const [from, to] = [find("from").value, find("to").value].map(text => (/^\d+$/.test(text.trim()) ? Number(text) : null));
  if (from == null) choose(null); else choose([from, to != null && to >= from ? to : null]);
}

function start() {
  readAddress();
  makeTabs();
  heat = new Heat(find("heat"), choose, openRank);
  line = new StepLine(find("line"), choose);
  find("by").value = view.by;
  find("by").onchange = () => { view.by = find("by").value; writeAddress(); fetchSteps(); };
  find("from").onchange = find("to").onchange = stepsTyped;
  find("all").onclick = () => choose(null);
  find("onset").onclick = () => choose(faulty(), true);
  find("filter").oninput = () => { find("scroll").scrollTop = 0; showTable(true); };
  find("difference").onchange = event => { view.difference = event.target.checked; showTable(); };
  find("help").onclick = showKeys;
  find("jobs").onchange = () => {
    Object.assign(view, { job: find("jobs").value, rank: null, range: null, automatic: true });
    now.revisions = [-1, -1, -1];
    now.steps = null;
    find("drawer").hidden = true;
    document.body.classList.remove("drawn");
    writeAddress();
    source.watch(view.job, told);
  };
  find("scroll").addEventListener("scroll", () => {
    if (pending) return;
    pending = requestAnimationFrame(scrolled);
  }, { passive: true });
  find("rows").addEventListener("mouseover", event => { if (event.target.says) event.target.title = event.target.says(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { showMap(); line.again(); });
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && now.state && now.state.revisions) refresh(now.state.revisions); });
  openTab(view.tab);
  showVerdicts();
  source.watch(view.job, told);
}

start();
