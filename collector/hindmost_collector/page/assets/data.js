"use strict";

// Where the page's data comes from: the collector that serves it, or the file that it is in.

const MISSING = -32768;
const UNIT = 16384;

function bytes(text) {
  return Uint8Array.from(atob(text), one => one.charCodeAt(0));
}

// Means of some steps: shares of the step by name, an array over ranks each; NaN is not measured.
function decoded(means) {
  if (!means) return null;
  const whole = new Int16Array(bytes(means.shares).buffer);
  const count = whole.length / Math.max(means.names.length, 1);
  const shares = {};
  means.names.forEach((name, at) => {
    shares[name] = Float64Array.from(whole.subarray(at * count, (at + 1) * count), one => (one === MISSING ? NaN : one / UNIT));
  });
  return { first: means.first, last: means.last, steps: means.steps, stepMs: means.step_ms, shares };
}

function stepsOf(found) {
  if (!found) return null;
  const heat = found.heat && { ...found.heat, cells: bytes(found.heat.cells) };
  return { ...found, heat, whole: decoded(found.whole), chosen: decoded(found.chosen) };
}

class Collector {
  constructor() {
    this.live = true;
    this.silent = 0;
  }

  // Call with the job's state each second; with null where the collector does not answer.
  watch(job, told) {
    clearTimeout(this.polling);
    if (this.events) this.events.close();
    const address = "?job=" + encodeURIComponent(job || "");
    const events = this.events = new EventSource("api/events" + address);
    events.onmessage = event => told(JSON.parse(event.data), false);
    events.addEventListener("bye", event => {
      events.close();
      told(JSON.parse(event.data), true);
      this.polling = setTimeout(() => this.watch(job, told), 5000);
    });
    events.onerror = () => {
      told(null, false);
      if (events.readyState === EventSource.CLOSED) this.poll(job, address, told);
    };
  }

  poll(job, address, told) {
    fetch("api/state" + address).then(answer => answer.json()).then(state => told(state, false), () => told(null, false));
    this.polling = setTimeout(() => this.poll(job, address, told), 5000);
  }

  async get(of, job, query = {}) {
    const asked = new URLSearchParams({ of, job: job || "", ...query });
    const answer = await fetch("api/live?" + asked);
    return answer.ok ? answer.json() : null;
  }

  async steps(job, range, by) {
    return stepsOf(await this.get("steps", job, { by, ...(range ? { steps: range.join("-") } : {}) }));
  }

  async jobs() {
    return (await fetch("api/jobs")).json();
  }
}

class File {
  constructor(data) {
    this.data = data;
    this.live = false;
    this.cube = data.cube && { ...data.cube, shares: decoded(data.cube).shares };
  }

  watch(_, told) {
    told({ ...this.data.state, revisions: [1, 1, 1] }, false);
  }

  async get(of, _, query = {}) {
    const { report, ranks, communication, machines, stacks, gauges, sections } = this.data;
    if (of === "report") return { report, ranks };
    if (of === "communication") return communication || null;
    if (of === "machines") return machines || null;
    if (of === "sections") return sections || null;
    if (of !== "rank" || !this.data.steps) return null;
    const steps = this.data.steps;
    const at = steps.ranks.indexOf(Number(query.rank));
    const peers = steps.ranks.map((_, other) => other).filter(other => other !== at && steps.role[other] === steps.role[at]);
    const compared = (gauges || []).map(one => ({
      name: one.name, unit: one.unit, value: at < 0 ? null : one.values[at], peers: median(peers.map(other => one.values[other])),
    }));
    return { rank: Number(query.rank), gauges: compared, stack: (stacks || {})[query.rank] || null };
  }

  async steps(_, range, by) {
    if (!this.data.steps) return null;
    const heat = by === "stage" && this.data.by_stage ? this.data.by_stage : this.data.steps.heat;
    const found = stepsOf({ ...this.data.steps, heat, by });
    if (range && this.cube) found.chosen = this.means(range) || found.whole;
    return found;
  }

  // The means of the columns within the range, else of those that hold some of its steps.
  means([from, to]) {
    const { first, last, ns, count, shares } = this.cube;
    const until = at => (first[at + 1] ?? last + 1) - 1, places = first.map((_, at) => at);
    const within = places.filter(at => first[at] >= from && until(at) <= (to ?? last));
    const held = within.length ? within : places.filter(at => first[at] <= (to ?? last) && until(at) >= from);
    if (!held.length) return null;
    const ranks = this.data.steps.ranks.length;
    const found = {};
    for (const [name, values] of Object.entries(shares)) {
      const weight = name === "last" ? count : ns;
      found[name] = Float64Array.from({ length: ranks }, (_, rank) => {
        let total = 0, base = 0;
        for (const at of held) {
          const value = values[rank * first.length + at];
          if (!Number.isNaN(value)) { total += value * weight[at]; base += weight[at]; }
        }
        return base ? total / base : NaN;
      });
    }
    const time = held.reduce((sum, at) => sum + ns[at], 0), steps = held.reduce((sum, at) => sum + count[at], 0);
    return { first: first[held[0]], last: until(held.at(-1)), steps, stepMs: time / steps / 1e6, shares: found };
  }

  async jobs() {
    return [];
  }
}

function median(values) {
  const known = [...values].filter(one => one != null && !Number.isNaN(one)).sort((one, other) => one - other);
  if (!known.length) return null;
  const half = known.length >> 1;
  return known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
}
