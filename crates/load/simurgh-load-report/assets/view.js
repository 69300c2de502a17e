// A run on a page: head, progress, warnings, figures, charts, tables. The live page gives it a new
// view each second, the report gives it one. Needs format.js, chart.js and tables.js.
"use strict";

/** The first of these metrics that exists is the headline. */
const HEADLINES = ["delivery", "join", "push", "message", "http", "upgrade", "connect"];
/** Users live for minutes; beside answers their times would be a line at the top. */
const LAST_CHOICES = ["session", "arrival_lag", "step_lag", "stamp_error"];

const PERCENTILE_LINES = [
  { key: "max", label: "max", colour: "c8" },
  { key: "p99_9", label: "p99.9", colour: "c5" },
  { key: "p99", label: "p99", colour: "c2" },
  { key: "p90", label: "p90", colour: "c3" },
  { key: "p50", label: "p50", colour: "c1" },
];
const KIND_COLOURS = ["c4", "c2", "c5", "c3", "c7", "c6", "c8"];

const CHARTS = [
  {
    id: "users", title: "Simultaneous users", unit: "", kind: "count", height: 250, named: true,
    wide: true,
    series: [
      { key: "users", label: "users", colour: "c1", area: true },
      { key: "connected", label: "connected", colour: "c2" },
    ],
  },
  {
    id: "arrivals", title: "Arrivals", unit: "users per second", kind: "rate",
    series: [
      { key: "arrivals", label: "started", colour: "c1", area: true },
      { key: "asked", label: "planned", colour: "c2", dashed: true },
    ],
  },
  {
    id: "requests", title: "Requests", unit: "per second", kind: "rate",
    series: [
      { key: "requests", label: "requests", colour: "c3", area: true },
      { key: "connects", label: "connects", colour: "c2" },
    ],
  },
  {
    id: "latency", title: "Latency", unit: "", kind: "us", height: 250, log: true, wide: true,
    series: PERCENTILE_LINES,
  },
  {
    id: "frames", title: "Frames", unit: "per second", kind: "rate",
    series: [
      { key: "frames_in", label: "in", colour: "c1", area: true },
      { key: "frames_out", label: "out", colour: "c2" },
    ],
  },
  {
    id: "bytes", title: "Traffic", unit: "bytes per second", kind: "bytes",
    series: [
      { key: "bytes_in", label: "in", colour: "c1", area: true },
      { key: "bytes_out", label: "out", colour: "c2" },
    ],
  },
  {
    id: "errors", title: "Errors", unit: "per second, by kind", kind: "rate", stacked: true,
    series: [{ key: "errors", label: "errors", colour: "c4" }],
  },
  {
    id: "cpu", title: "CPU", unit: "percent of one core", kind: "percent",
    series: [{ key: "cpu", label: "generator", colour: "c1", area: true }],
  },
];

/** The last point of a run may be a moment with what was still on its way: it has no rates. */
const SPAN_S_MIN = 0.5;

/** JSON of a view. Characters that turn the direction of text would turn ours round names too. */
function parseView(json) {
  return JSON.parse(json.replace(/[\u202a-\u202e\u2066-\u2069]/g, ""));
}

/** What the charts draw, from the columns of a view. */
function chartData(view, metric) {
  const { columns, metrics, errors = {} } = view.series;
  const t = columns.t_s ?? [];
  const spans = columns.span_s ?? [];
  const per = (n, i) => (spans[i] >= SPAN_S_MIN ? n / spans[i] : null);
  const rate = (name) => (columns[name] ?? []).map(per);
  const rates = (...names) => Object.fromEntries(names.map((name) => [name, rate(name)]));
  const asked = columns.due?.some((n) => n > 0) ? rate("due") : t.map((at) => askedAt(view, at));
  const kinds = Object.entries(errors).map(([kind, counts]) => [
    kind, spans.map((_, i) => per(counts[i] ?? 0, i)),
  ]);
  const seconds = rate("cpu_s");
  return {
    users: {
      t, values: { users: columns.users ?? [], connected: columns.connected ?? [],
        target: atTimes(t, view.target, "connections") },
    },
    arrivals: { t, values: { asked, ...rates("arrivals") } },
    requests: { t, values: rates("requests", "connects") },
    latency: { t, values: metrics[metric] ?? {} },
    frames: { t, values: rates("frames_in", "frames_out") },
    bytes: { t, values: rates("bytes_in", "bytes_out") },
    errors: { t, values: kinds.length ? Object.fromEntries(kinds) : rates("errors") },
    cpu: {
      t, values: { cpu: seconds.map((share) => share && share * 100),
        target: atTimes(t, view.target, "cpu_percent") },
    },
  };
}

/** Users per second that the phases plan at a time; `null` if none. */
function askedAt({ phases }, at) {
  const phase = phases.find((row) => at > row.starts_s && at <= row.starts_s + row.duration_s);
  if (!phase || !(phase.rate_from || phase.rate_to)) return null;
  const part = (at - phase.starts_s) / phase.duration_s;
  return phase.rate_from + (phase.rate_to - phase.rate_from) * part;
}

/** The server's own figures at the times of our points: the newest that is not too old. */
function atTimes(t, target, name) {
  if (!target) return [];
  const { t_s: times, [name]: values } = target.columns;
  let at = 0;
  return t.map((second) => {
    while (at + 1 < times.length && times[at + 1] <= second + 0.5) at += 1;
    const old = !times.length || Math.abs(times[at] - second) > 2.5;
    return old ? null : values[at];
  });
}

function headline(view) {
  const names = view.metrics.filter((row) => row.count > 0).map((row) => row.name);
  return HEADLINES.find((name) => names.includes(name))
    ?? names.find((name) => name.startsWith("tr_")) ?? names[0] ?? null;
}

/** A figure in large print. */
class Card {
  constructor(id, label) {
    this.value = el("strong");
    this.note = el("span", { className: "card-note" });
    this.label = el("span", { className: "card-label" }, label);
    this.node = el("div", { className: "card", dataset: { testid: `card-${id}` } },
      this.label, this.value, this.note);
  }

  set(value, note = "", tone = "") {
    this.value.textContent = value;
    this.note.textContent = note;
    this.node.dataset.tone = tone;
  }
}

/** The page of one run. */
class RunPage {
  constructor(root, view, { live }) {
    this.live = live;
    this.timeline = new Timeline();
    this.timeline.idle = live ? "last" : "none";
    this.metric = null;
    this.chosen = false;
    this.#build(root);
    this.update(view);
  }

  #build(root) {
    this.state = el("span", { className: "state", dataset: { testid: "state" } });
    this.title = el("h1");
    this.facts = el("p", { className: "facts" });
    this.controls = el("div", { className: "controls" });
    this.clock = el("span", { className: "clock", dataset: { testid: "clock" } });
    this.progress = el("div", { className: "progress" });
    this.notices = el("div", { className: "notices", attributes: { "aria-live": "polite" } });
    this.cards = {};
    this.cardBox = el("section", { className: "cards", attributes: { "aria-label": "Figures" } });
    for (const [id, label] of CARDS) {
      this.cards[id] = new Card(id, label);
      this.cardBox.append(this.cards[id].node);
    }
    this.charts = Object.fromEntries(CHARTS.map((spec) => {
      const chart = new Chart(this.timeline, { ...spec });
      if (spec.wide) chart.node.classList.add("wide");
      return [spec.id, chart];
    }));
    this.#latencyTools();
    this.tables = TABLES.map((spec) => new Table(spec));
    const chartNodes = Object.values(this.charts).map((chart) => chart.node);
    root.replaceChildren(
      el("header", { className: "top" },
        el("div", { className: "top-row" }, logo(),
          el("div", { className: "titles" },
            el("div", { className: "title-line" }, this.title, this.state), this.facts),
          this.controls),
        el("div", { className: "progress-row" }, this.progress, this.clock)),
      el("main", {}, this.notices, this.cardBox, this.#toolbar(),
        el("section", { className: "charts", attributes: { "aria-label": "Charts" } },
          ...chartNodes),
        ...this.tables.map((table) => table.node)),
    );
    this.main = root.querySelector("main");
  }

  #toolbar() {
    const choices = this.live ? [["All", null], ["5 min", 300], ["1 min", 60]]
      : [["Whole run", null]];
    const buttons = choices.map(([label, seconds]) => el("button", {
      type: "button",
      onclick: () => {
        this.timeline.followLast(seconds);
        press(seconds);
      },
    }, label));
    const press = (wanted) => choices.forEach(([, seconds], i) => {
      buttons[i].setAttribute("aria-pressed", String(!this.timeline.zoom && seconds === wanted));
    });
    const segments = el("div", {
      className: "segments", hidden: !this.live,
      attributes: { role: "group", "aria-label": "Time range" },
    }, ...buttons);
    this.timeline.onzoom = () => {
      press(this.timeline.follow);
      segments.hidden = !this.live && !this.timeline.zoom;
    };
    press(null);
    return el("div", { className: "toolbar" },
      el("h2", {}, "Over time"),
      el("span", { className: "note" }, "Drag to zoom, double-click to reset."),
      segments);
  }

  #latencyTools() {
    this.select = el("select", {
      dataset: { testid: "metric" }, attributes: { "aria-label": "Metric" },
      onchange: () => {
        this.metric = this.select.value;
        this.chosen = true;
        this.#drawCharts();
      },
    });
    const chart = this.charts.latency;
    const log = el("input", {
      type: "checkbox", checked: chart.log,
      onchange: () => {
        chart.log = log.checked;
        chart.draw();
      },
    });
    chart.tools.append(el("label", { className: "check" }, log, "log scale"), this.select);
  }

  /** Shows a view, whole or newer than the last. */
  update(view) {
    this.view = view;
    this.#head();
    this.#progress();
    this.#notices();
    for (const [id, , fill] of CARDS) {
      const shown = fill(view, this.cards[id]);
      this.cards[id].node.hidden = shown === false;
    }
    this.#metrics();
    this.#drawCharts();
    for (const table of this.tables) table.update(view);
  }

  #head() {
    const { scenario, targets, hosts, started_unix_ms: started, seed, version } = this.view;
    this.title.textContent = scenario;
    const when = new Date(started).toLocaleString(undefined, {
      dateStyle: "medium", timeStyle: "medium",
    });
    const others = hosts.length > 1 ? [`${hosts.length} hosts`] : [];
    const facts = [targets.join(", "), when, `seed ${seed}`, ...others, `simurgh ${version}`];
    this.facts.replaceChildren(...facts.map((fact) => el("span", {}, fact)));
    const [state, label] = runState(this.view, this.live);
    this.state.textContent = label;
    this.state.dataset.state = state;
    document.title = `${this.live ? `${label} · ` : ""}${scenario} · simurgh load`;
    document.documentElement.dataset.state = state;
  }

  /** Phases side by side, filled as far as the run has come. */
  #progress() {
    const { at_s: at, plan, phases, ending } = this.view;
    const planned = phases.reduce((end, row) => Math.max(end, row.starts_s + row.duration_s), 0);
    const whole = plan?.duration_s ?? planned;
    const cut = whole > 0 ? Math.min(whole, Math.max(planned, 1)) : 0;
    const parts = phases.filter((row) => row.duration_s > 0 && row.starts_s < cut).map((row) => ({
      name: row.name, from: row.starts_s, to: Math.min(row.starts_s + row.duration_s, cut),
    }));
    if (whole > cut) parts.push({ name: "", from: cut, to: whole });
    this.progress.replaceChildren(...parts.map(({ name, from, to }) => {
      const fill = el("i");
      const share = ending ? at : Math.min(at, to);
      fill.style.width = `${Math.min(Math.max((share - from) / (to - from), 0), 1) * 100}%`;
      const part = el("span", { className: "phase", title: name }, fill, el("em", {}, name));
      part.style.flexGrow = String(to - from);
      return part;
    }));
    const rest = whole > at && !ending ? `, ${Format.clock(whole - at)} to go` : "";
    this.clock.textContent = `${Format.clock(at)}${rest}`;
    this.timeline.marks = phases.filter((row) => row.duration_s > 0)
      .map((row) => ({ at: row.starts_s, label: row.name }));
  }

  #notices() {
    const { warnings, trustworthy, passed, ending, verdicts } = this.view;
    const notices = [];
    if (ending && passed !== null && passed !== undefined) {
      const failed = verdicts.filter((verdict) => !verdict.passed).map((verdict) => (
        `${verdict.figure}: ${measured(verdict)}, threshold ${verdict.condition}`
      ));
      const all = verdicts.length === 1 ? "The threshold is met." : "All thresholds are met.";
      notices.push(["passed", passed ? "good" : "bad", passed ? "Passed" : "Failed",
        passed ? all : `${failed.join("; ")}.`]);
    }
    if (!trustworthy) {
      notices.push(["trust", "bad", "Do not trust these times",
        warnings.some(({ text }) => text.includes("another program used this machine"))
          ? "Other programs kept this machine busy: the times contain its delays."
          : "The load generator did not keep up: the times contain its delays."]);
    }
    // A hundred workers may have the same warning: the first is shown for all.
    const byCode = new Map();
    for (const { code, text } of warnings) byCode.set(code, [...(byCode.get(code) ?? []), text]);
    for (const [code, texts] of byCode) notices.push([code, "warn", Names.warning(code), ...texts]);
    const key = JSON.stringify(notices);
    if (key === this.noticeKey) return;
    this.noticeKey = key;
    this.notices.replaceChildren(...notices.map(([code, tone, name, text, ...more]) => el("div", {
      className: `notice ${tone}`, dataset: { testid: `notice-${code}` },
    }, el("strong", {}, name), el("span", {}, text, more.length ? el("details", {},
      el("summary", {}, `and ${more.length} more`),
      el("ul", {}, ...more.map((line) => el("li", {}, line)))) : null))));
  }

  #metrics() {
    const present = this.view.metrics.map((row) => row.name);
    const rank = (name) => (LAST_CHOICES.includes(name) ? 1 : 0);
    const names = present.sort((a, b) => rank(a) - rank(b));
    if (!this.chosen || !names.includes(this.metric)) this.metric = headline(this.view);
    const key = names.join("\n");
    if (key !== this.metricKey) {
      this.metricKey = key;
      this.select.replaceChildren(...names.map((name) => (
        el("option", { value: name }, Names.metric(name))
      )));
    }
    this.select.value = this.metric ?? "";
  }

  #drawCharts() {
    const data = chartData(this.view, this.metric);
    const { t } = data.users;
    this.timeline.end = t.length ? t[t.length - 1] : 0;
    if (this.view.target) {
      const line = { key: "target", label: "server", colour: "c3", dashed: true };
      for (const id of ["users", "cpu"]) {
        const own = CHARTS.find((spec) => spec.id === id).series;
        const label = id === "users" ? "server's connections" : "server";
        this.charts[id].setSeries([...own, { ...line, label }]);
      }
    }
    const kinds = Object.keys(data.errors.values);
    this.charts.errors.setSeries(kinds.map((key, i) => ({
      key, label: Names.plain(key).toLowerCase(), colour: KIND_COLOURS[i % KIND_COLOURS.length],
    })));
    for (const [id, chart] of Object.entries(this.charts)) chart.set(data[id]);
  }
}

/** `[state, text]` for the pill in the head. */
function runState({ ending, control }, live) {
  if (ending) return [ending === "failed" || ending === "aborted" ? "bad" : "over",
    Names.ending(ending)];
  if (!live) return ["bad", "Unfinished"];
  if (control?.stopping) return ["stopping", "Stopping"];
  return control?.paused ? ["paused", "Paused"] : ["running", "Running"];
}

/** Rate of a column in the last point that has rates. */
function rateNow({ series: { columns } }, name) {
  const spans = columns.span_s ?? [];
  const last = spans.findLastIndex((span) => span >= SPAN_S_MIN);
  return last >= 0 ? (columns[name]?.[last] ?? 0) / spans[last] : null;
}

/** Id, label, and what fills it; `false` hides it. */
const CARDS = [
  ["users", "Users", (view, card) => (view.ending
    ? card.set(Format.as("count", view.users_peak), "peak")
    : card.set(Format.as("count", view.users), `peak ${Format.as("count", view.users_peak)}`))],
  ["connected", "Connected", (view, card) => (view.ending
    ? card.set(Format.as("count", view.connected_peak), "peak")
    : card.set(Format.as("count", view.connected),
      `peak ${Format.as("count", view.connected_peak)}`))],
  ["arrivals", "Arrivals", (view, card) => fillRate(view, card, "arrivals", "users_started")],
  ["requests", "Requests", (view, card) => fillRate(view, card, "requests", "requests")],
  ["frames", "Frames in", (view, card) => {
    const { frames_in_text: text = 0, frames_in_binary: binary = 0 } = view.counts;
    return fillRate(view, card, "frames_in", null, text + binary);
  }],
  ["latency", "Latency p99", (view, card) => {
    const name = headline(view);
    const row = view.metrics.find((metric) => metric.name === name);
    card.set(Format.as("us", row?.p99), row ? Names.metric(name).toLowerCase() : "no times yet");
  }],
  ["errors", "Errors", (view, card) => {
    const most = view.errors[0];
    card.set(Format.as("count", view.errors_total),
      most ? `mostly ${Names.plain(most.kind).toLowerCase()}` : "none", most ? "bad" : "good");
  }],
  ["cpu", "Generator", (view, card) => {
    const now = rateNow(view, "cpu_s");
    card.set(view.ending ? Format.as("seconds", view.cpu_s) : Format.as("percent", now * 100),
      view.ending ? "of CPU time" : "of a core", view.trustworthy ? "" : "bad");
  }],
  ["target", "Server", (view, card) => {
    if (!view.target) return false;
    const { connections = [], cpu_percent: cpu = [] } = view.target.columns;
    const pick = (values) => (view.ending ? Math.max(...values) : values.at(-1));
    const what = view.ending ? "peak" : "of a core";
    return card.set(Format.as("percent", pick(cpu)),
      `${what}, ${Format.as("count", pick(connections))} connections`);
  }],
];

function fillRate(view, card, column, count, total = view.counts[count] ?? 0) {
  const mean = view.at_s > 0 ? total / view.at_s : 0;
  if (view.ending) card.set(Format.as("count", total), `mean ${Format.as("rate", mean)}/s`);
  else {
    card.set(`${Format.as("rate", rateNow(view, column))}/s`,
      `${Format.as("count", total)} total`);
  }
}

function logo() {
  const svg = Svg("svg", { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" });
  svg.append(
    Svg("path", { d: "M16 29C11 22 11 12 16 2c5 10 5 20 0 27z" }),
    Svg("path", { d: "M14.6 29.4C7.4 25 3.4 18 2.6 8.6 10.4 13.6 14.4 20.6 14.6 29.4z" }),
    Svg("path", { d: "M17.4 29.4C24.6 25 28.6 18 29.4 8.6 21.6 13.6 17.6 20.6 17.4 29.4z" }),
  );
  return svg;
}
