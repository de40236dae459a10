"use strict";

// The heat map rank × step on a canvas, and the line of step times below it; both choose steps.

const GUTTER = 62;
const RIGHT = 18; // half of the last label
const RAMPS = {
  light: ["#edf1f5", "#fbe3b0", "#f3a64a", "#d9541e", "#a3160f", "#560709"],
  dark: ["#1f2935", "#4a3520", "#96541b", "#e08a2b", "#ffc56b", "#fff4d6"],
};

function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function ramp() {
  const stops = RAMPS[isDark() ? "dark" : "light"].map(one => [1, 3, 5].map(at => parseInt(one.slice(at, at + 2), 16)));
  const colours = new Uint8ClampedArray(256 * 4);
  for (let level = 1; level < 256; level++) {
    const place = ((level - 1) / 254) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    for (let part = 0; part < 3; part++) {
      colours[level * 4 + part] = stops[low][part] + (stops[low + 1][part] - stops[low][part]) * (place - low);
    }
    colours[level * 4 + 3] = 255;
  }
  return colours;
}

class Heat {
  constructor(box, onChoose, onPick) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.tip = document.getElementById("tip");
    this.brush = document.getElementById("brush");
    this.onChoose = onChoose;
    this.onPick = onPick;
    this.steps = null;
    this.canvas.onpointerdown = event => this.begin(event);
    this.canvas.onpointermove = event => this.move(event);
    this.canvas.onpointerleave = () => { this.tip.hidden = true; };
    new ResizeObserver(() => this.draw()).observe(box);
  }

  show(steps, marks) {
    this.steps = steps;
    this.marks = marks;
    this.draw();
  }

  get width() {
    return Math.max(this.box.clientWidth - GUTTER - RIGHT, 10);
  }

  get firstStep() {
    return this.steps.columns.first[0];
  }

  get span() {
    return this.steps.columns.last + 1 - this.firstStep;
  }

  x(step) {
    return GUTTER + (this.width * (step - this.firstStep)) / this.span;
  }

  stepAt(x) {
    const step = this.firstStep + Math.floor(((x - GUTTER) / this.width) * this.span);
    return Math.min(Math.max(step, this.firstStep), this.steps.columns.last);
  }

  // The place of a step's column; -1 where it is missing.
  columnOf(step) {
    const { first, last } = this.steps.columns;
    let low = 0, high = first.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (first[middle] <= step) low = middle; else high = middle - 1;
    }
    return step < first[low] || step > last || step >= first[low] + this.wide(low) ? -1 : low;
  }

  // Steps that a column stands for.
  wide(at) {
    const { first, last } = this.steps.columns;
    if (this.known !== this.steps) {
      this.known = this.steps;
      const gaps = first.slice(1).map((one, place) => one - first[place]);
      this.usual = gaps.length ? Math.min(...gaps) : last + 1 - first[0];
    }
    return Math.min(this.usual, (first[at + 1] ?? last + 1) - first[at]);
  }

  draw() {
    const heat = this.steps && this.steps.heat;
    if (!heat) return;
    const ratio = devicePixelRatio || 1, cell = Math.min(Math.max(300 / heat.rows, 1), 18);
    this.top = 12;
    this.high = Math.max(Math.round(cell * heat.rows), 24);
    const height = this.top + this.high + 4;
    this.canvas.style.height = height + "px";
    this.canvas.width = this.box.clientWidth * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = false;
    this.cells(pen, heat);
    this.sides(pen, heat);
    this.showRange(this.range);
  }

  cells(pen, heat) {
    const { first, checkpoint } = this.steps.columns, count = first.length;
    const colours = ramp(), picture = new ImageData(count, heat.rows);
    for (let at = 0; at < heat.cells.length; at++) picture.data.set(colours.subarray(heat.cells[at] * 4, heat.cells[at] * 4 + 4), at * 4);
    const source = document.createElement("canvas");
    source.width = count;
    source.height = heat.rows;
    source.getContext("2d").putImageData(picture, 0, 0);
    const thin = this.high / heat.rows < 3 ? [...this.named()].slice(0, 32) : [];
    for (let at = 0; at < count; at++) {
      const left = this.x(first[at]), right = this.x(first[at] + this.wide(at));
      pen.drawImage(source, at, 0, 1, heat.rows, left, this.top, right - left + 0.4, this.high);
      for (const row of thin) pen.drawImage(source, at, row, 1, 1, left, this.top + (row + 0.5) * this.high / heat.rows - 1.5, right - left + 0.4, 3);
    }
    pen.fillStyle = style("--soft");
    for (const at of checkpoint) pen.fillRect(this.x(first[at]), 5, Math.max(this.x(first[at] + this.wide(at)) - this.x(first[at]), 2), 4);
    pen.strokeStyle = style("--info");
    pen.lineWidth = 1.5;
    for (const since of this.marks.onsets) {
      if (since <= this.firstStep || since > this.steps.columns.last) continue;
      const x = Math.round(this.x(since)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 2);
      pen.lineTo(x, this.top + this.high);
      pen.stroke();
      pen.fillStyle = style("--info");
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x + 6, 3);
      pen.lineTo(x, 6);
      pen.fill();
    }
  }

  // Rows of named ranks.
  named() {
    const { order, per_row: per } = this.steps.heat, found = new Set();
    order.forEach((rank, at) => { if (this.marks.bad.has(rank)) found.add(Math.floor(at / per)); });
    return found;
  }

  // Names of rows, and a mark at those of named ranks.
  sides(pen, heat) {
    const row = this.high / heat.rows;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.font = "11px system-ui, sans-serif";
    const every = Math.max(Math.ceil(14 / row), 1), bad = this.named();
    const labels = [];
    let label = null; // of named ranks: one for those of which each would cover the next one's
    for (let at = 0; at < heat.rows; at++) {
      const y = this.top + (at + 0.5) * row, named = bad.has(at);
      if (named) {
        pen.fillStyle = style("--warn");
        pen.fillRect(GUTTER - 5, y - Math.max(row, 3) / 2, 4, Math.max(row, 3));
      }
      const near = [...bad].some(other => other !== at && Math.abs(other - at) * row < 13);
      if (!named && (at % every || near)) continue;
      if (!named) { this.write(pen, (heat.per_row === 1 ? "rank " : "") + this.name(at), y, "--soft"); continue; }
      if (!label || y - label.y >= 12) labels.push(label = { names: [], y });
      label.names.push(this.name(at, true));
    }
    for (const { names, y } of labels) this.write(pen, "rank " + names.slice(0, 3).join(", ") + (names.length > 3 ? "…" : ""), y, "--warn");
  }

  write(pen, text, y, colour) {
    pen.fillStyle = style(colour);
    pen.fillText(text, GUTTER - 9, Math.max(y, 6), GUTTER - 10);
  }

  name(row, named = false) {
    const { order, per_row: per } = this.steps.heat, ranks = order.slice(row * per, (row + 1) * per);
    if (per === 1) return String(ranks[0]);
    const bad = ranks.filter(rank => this.marks.bad.has(rank));
    return named && bad.length ? bad.slice(0, 3).join(", ") : ranks[0] + "–" + ranks.at(-1);
  }

  showRange(range) {
    this.range = range;
    this.brush.hidden = !range || !this.steps;
    if (this.brush.hidden) return;
    const left = Math.max(this.x(range[0]), GUTTER), right = Math.min(this.x((range[1] ?? this.steps.columns.last) + 1), GUTTER + this.width);
    this.brush.style.left = left + "px";
    this.brush.style.width = Math.max(right - left, 2) + "px";
  }

  begin(event) {
    if (!this.steps || event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    const from = this.stepAt(event.offsetX), began = event.offsetX;
    const range = to => [Math.min(from, to), Math.max(from, to)];
    const move = after => this.showRange(range(this.stepAt(after.offsetX)));
    const end = after => {
      this.canvas.removeEventListener("pointermove", move);
      if (Math.abs(after.offsetX - began) > 3) this.onChoose(range(this.stepAt(after.offsetX)));
      else this.onPick(this.rankAt(after.offsetY));
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
  }

  rowAt(y) {
    return Math.min(Math.max(Math.floor(((y - this.top) / this.high) * this.steps.heat.rows), 0), this.steps.heat.rows - 1);
  }

  rankAt(y) {
    const { order, per_row: per } = this.steps.heat, row = this.rowAt(y), ranks = order.slice(row * per, (row + 1) * per);
    return ranks.find(rank => this.marks.bad.has(rank)) ?? ranks[0];
  }

  move(event) {
    if (!this.steps || !this.steps.heat || event.offsetX < GUTTER) { this.tip.hidden = true; return; }
    const step = this.stepAt(event.offsetX), column = this.columnOf(step), row = this.rowAt(event.offsetY);
    const { cells, top_ms: top, per_row: per } = this.steps.heat, first = this.steps.columns.first;
    const level = column < 0 ? 0 : cells[row * first.length + column];
    const late = level === 0 ? "not measured" : level === 1 ? "not late" : milliseconds(((level - 1) / 254) ** 2 * top) + (level === 255 ? " late or more" : " late");
    const wide = column < 0 ? 1 : this.wide(column);
    const when = wide > 1 ? "steps " + first[column] + "–" + (first[column] + wide - 1) : "step " + step;
    this.tip.textContent = (per > 1 ? "ranks " : "rank ") + this.name(row) + ", " + when + ": " + late;
    this.tip.hidden = false;
    const room = this.box.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = Math.min(event.offsetX + 12, room) + "px";
    this.tip.style.top = event.offsetY + 14 + "px";
  }
}

class StepLine {
  constructor(box, onChoose) {
    this.box = box;
    this.onChoose = onChoose;
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(box);
  }

  size() {
    return { width: Math.max(this.box.clientWidth, 50), height: 124 };
  }

  again() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    if (this.given) this.show(...this.given);
  }

  show(columns, ideal, intervals) {
    this.given = [columns, ideal, intervals];
    this.intervals = intervals;
    const known = ideal == null ? null : ideal;
    const data = [columns.first, columns.p99_ms, columns.step_ms, columns.first.map(() => known)];
    if (this.plot) { this.plot.setData(data); return; }
    this.plot = new uPlot(this.options(), data, this.box);
  }

  options() {
    const soft = style("--soft"), grid = { stroke: style("--line"), width: 1 };
    const axis = { stroke: soft, grid, ticks: grid, font: "11px system-ui, sans-serif" };
    return {
      ...this.size(), padding: [6, RIGHT, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
      scales: { x: { time: false, range: () => this.reach() }, y: { range: () => [0, this.highest()] } },
      axes: [{ ...axis, size: 26 }, { ...axis, size: GUTTER, values: (_, ticks) => ticks.map(one => milliseconds(one)), space: 24 }],
      series: [
        {},
        { stroke: style("--sync"), width: 1, points: { show: false } },
        { stroke: style("--forward"), width: 1.5, points: { show: false } },
        { stroke: style("--ok"), width: 1.2, dash: [6, 4], points: { show: false } },
      ],
      hooks: { drawClear: [plot => this.bands(plot)], setSelect: [plot => this.selected(plot)] },
    };
  }

  reach() {
    const { first, last } = this.given[0];
    return [first[0], last + 1];
  }

  // Rare long steps do not make a flat line of the others.
  highest() {
    const sorted = [...this.given[0].p99_ms].sort((one, other) => one - other), usual = sorted[Math.floor(0.9 * (sorted.length - 1))];
    return Math.min(sorted.at(-1), 2.5 * usual) * 1.08 || 1;
  }

  bands(plot) {
    const { left, top, width, height } = plot.bbox, last = this.given[0].last;
    for (const { since, until, colour } of this.intervals) {
      const from = Math.max(plot.valToPos(since, "x", true), left);
      const to = Math.min(plot.valToPos((until ?? last) + 1, "x", true), left + width);
      if (to <= from) continue;
      plot.ctx.save();
      plot.ctx.globalAlpha = 0.07;
      plot.ctx.fillStyle = style(colour);
      plot.ctx.fillRect(from, top, to - from, height);
      plot.ctx.restore();
    }
  }

  selected(plot) {
    if (plot.select.width < 3) return;
    const step = x => Math.floor(plot.posToVal(x, "x"));
    const range = [step(plot.select.left), step(plot.select.left + plot.select.width)];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.onChoose(range);
  }
}
