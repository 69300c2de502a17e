// The tables of a run. Every text comes from a scenario, a server or a host and is set as text,
// never as markup. Shared by the live page and the report.
"use strict";

const Names = (() => {
  const METRICS = {
    connect: "Connect", upgrade: "Upgrade", join: "Join reply", push: "Push reply",
    leave: "Leave reply", heartbeat: "Heartbeat reply", message: "Message reply",
    http: "HTTP answer", delivery: "Broadcast delivery", first_receiver: "First receiver",
    last_receiver: "Last receiver", arrival_lag: "Arrival lag", step_lag: "Step lag",
    stamp_error: "Stamp error", session: "Session",
  };
  const ENDINGS = {
    finished: "Finished", duration: "Finished", stopped: "Stopped", aborted: "Aborted",
    failed: "Failed",
  };
  const WARNINGS = {
    cpu_bound: "Generator CPU-bound", server_refused: "Connections refused",
    arrivals_late: "Arrivals late", steps_late: "Steps late", generator_late: "Generator late",
    unfinished: "Unfinished run", other: "Note",
  };

  /** `broadcasts_complete` as `Broadcasts complete`. */
  function plain(name) {
    const words = name.replaceAll("_", " ");
    return words.charAt(0).toUpperCase() + words.slice(1);
  }

  function metric(name) {
    if (Object.hasOwn(METRICS, name)) return METRICS[name];
    return name.startsWith("tr_") ? name.slice(3) : plain(name);
  }

  return {
    metric,
    plain,
    ending: (name) => ENDINGS[name] ?? plain(name),
    warning: (code) => WARNINGS[code] ?? plain(code),
  };
})();

const Cells = {
  number: (value) => el("td", { className: "number" }, Format.whole(value)),
  as: (kind, value) => el("td", { className: "number" }, Format.as(kind, value)),
  text: (text) => el("td", {}, text),
  name: (label, code = null) => el("th", { attributes: { scope: "row" } }, label,
    code === null ? null : el("code", { className: "code-name" }, code)),
  /** A share with a bar behind it. */
  bar: (part, text) => {
    const fill = el("i", { className: "bar-fill" });
    fill.style.width = `${Math.min(Math.max(part, 0), 1) * 100}%`;
    return el("td", { className: "bar" }, el("span", { className: "bar-box" }, fill),
      el("span", { className: "bar-text" }, text));
  },
};

/** Each: `id`, `title`, `note`, `heads` (a `*` marks numbers), and `rows(view)` made of cells. */
const TABLES = [
  {
    id: "thresholds",
    title: "Thresholds",
    heads: ["Figure", "Threshold", "*Measured", "Result"],
    rows: ({ verdicts, ending }) => verdicts.map((verdict) => [
      el("th", { attributes: { scope: "row" } }, el("code", {}, verdict.figure)),
      Cells.text(verdict.condition),
      el("td", { className: "number" }, measured(verdict)),
      el("td", {}, el("span", {
        className: `pill ${verdict.passed ? "good" : ending ? "bad" : "wait"}`,
      }, verdict.passed ? "passed" : ending ? "failed" : "not yet")),
    ]),
  },
  {
    id: "latency",
    title: "Latency",
    note: "Measured from the scheduled time, so that a stalled server shows.",
    heads: ["Metric", "*Count", "*Min", "*Mean", "*p50", "*p90", "*p95", "*p99", "*p99.9",
      "*p99.99", "*p99.999", "*Max"],
    rows: ({ metrics }) => metrics.map((row) => [
      Cells.name(Names.metric(row.name), row.name),
      Cells.number(row.count),
      ...["min", "mean", "p50", "p90", "p95", "p99", "p99_9", "p99_99", "p99_999", "max"].map(
        (key) => Cells.as("us", row[key]),
      ),
    ]),
    columns: (view) => !view.metrics.some((row) => "p99_999" in row) && ["*p99.999"],
  },
  {
    id: "phases",
    title: "Phases",
    heads: ["Phase", "*Starts", "*Lasts", "*Planned", "*Started", "*Finished", "*Aborted",
      "*Running", "*Errors"],
    rows: ({ phases, at_s: at, ending }) => phases.map((row) => [
      phaseName(row, ending ? null : at),
      Cells.as("seconds", row.starts_s),
      Cells.as("seconds", row.duration_s),
      el("td", { className: "number" }, planned(row)),
      Cells.number(row.started),
      Cells.number(row.finished),
      Cells.number(row.aborted),
      Cells.number(row.running),
      errorCell(row.errors),
    ]),
  },
  {
    id: "sessions",
    title: "Sessions",
    heads: ["Session", "*Started", "*Finished", "*Aborted", "*Running"],
    rows: ({ sessions }) => (sessions.length < 2 ? [] : sessions.map((row) => [
      Cells.name(row.name),
      Cells.number(row.started), Cells.number(row.finished), Cells.number(row.aborted),
      Cells.number(row.running),
    ])),
  },
  {
    id: "servers",
    title: "Servers",
    note: "Losses and errors of users on this server; those that left went to the next.",
    heads: ["Server", "*Users", "*Connected", "*Peak", "*Connections", "*Refused", "*Lost",
      "*Dropped", "*Reconnected", "*Left", "*Errors", "*CPU time"],
    rows: ({ servers = [] }) => (servers.length < 2 && !asked(servers) ? [] : servers.map((row) => [
      Cells.name(row.name),
      Cells.number(row.users), Cells.number(row.connected), Cells.number(row.connected_peak),
      Cells.number(row.connects), errorCell(row.refused), errorCell(row.lost),
      Cells.number(row.cut), Cells.number(row.reconnects), Cells.number(row.left),
      errorCell(row.errors),
      Cells.as("seconds", row.cpu_us / 1e6),
    ])),
    columns: ({ servers = [] }) => !asked(servers) && ["*CPU time"],
  },
  {
    id: "workers",
    title: "Workers",
    note: "A worker near 100 % of its core measures itself, not the server.",
    heads: ["Worker", "CPU now", "*CPU peak", "*CPU time", "*Users", "*Connected", "*Peak",
      "*Started", "*Frames in", "*Frames out", "*Errors"],
    rows: ({ workers }) => workers.map((row) => [
      el("th", { attributes: { scope: "row" } }, `${row.host} `,
        el("span", { className: "dim" }, `#${row.thread}`),
        row.lost ? el("span", { className: "pill bad" }, "lost") : null),
      Cells.bar(row.cpu_percent / 100, Format.as("percent", row.cpu_percent)),
      Cells.as("percent", row.cpu_percent_max),
      Cells.as("seconds", row.cpu_s),
      Cells.number(row.users), Cells.number(row.connected), Cells.number(row.connected_peak),
      Cells.number(row.started), Cells.number(row.frames_in), Cells.number(row.frames_out),
      errorCell(row.errors),
    ]),
  },
  {
    id: "errors",
    title: "Errors",
    heads: ["Kind", "*Count", "Share", "Phases", "Messages"],
    empty: "No errors.",
    rows: ({ errors, errors_total: total }) => errors.map((row) => [
      Cells.name(Names.plain(row.kind), row.kind),
      Cells.number(row.count),
      Cells.bar(row.count / total, Format.as("share", row.count / total)),
      el("td", { className: "said" }, Object.entries(row.phases)
        .map(([phase, n]) => `${phase}: ${Format.whole(n)}`).join(", ")),
      el("td", { className: "said" }, examples(row.examples)),
    ]),
  },
  {
    id: "deliveries",
    title: "Deliveries",
    note: "Broadcasts that users should receive, and received; without users that still run.",
    heads: ["Deliveries", "*Count", "*Of expected"],
    rows: ({ counts }) => deliveries(counts),
  },
  {
    id: "broadcasts",
    title: "Slowest broadcasts",
    heads: ["Publisher", "*Number", "*Receivers", "*First receiver", "*Last receiver"],
    rows: ({ broadcasts }) => broadcasts.slice(0, 10).map((row) => [
      Cells.name(`user ${row.publisher}`),
      Cells.number(row.seq),
      Cells.number(row.receivers),
      Cells.as("us", row.first_us),
      Cells.as("us", row.last_us),
    ]),
  },
  {
    id: "statuses",
    title: "HTTP answers",
    heads: ["Status", "*Answers"],
    rows: ({ statuses }) => statuses.map((row) => [
      Cells.name(String(row.status)), Cells.number(row.count),
    ]),
  },
  {
    id: "counters",
    title: "All counters",
    folded: true,
    heads: ["Counter", "*Total", "*Per second"],
    rows: ({ counts, at_s: at }) => Object.entries(counts).map(([name, count]) => [
      Cells.name(Names.plain(name), name), Cells.number(count),
      Cells.as("rate", at > 0 ? count / at : null),
    ]),
  },
];

/** Whether the servers' CPU time was measured. */
function asked(servers) {
  return servers.some((row) => row.cpu_us > 0);
}

/** Expected and received broadcasts, if they were counted, and reported gaps. */
function deliveries(counts) {
  const expected = counts.deliveries_expected ?? 0;
  const followed = [
    ["Expected", "deliveries_expected"], ["Delivered", "deliveries_once"],
    ["Missing", "deliveries_missing"], ["Duplicate", "deliveries_duplicate"],
    ["Out of order", "deliveries_out_of_order"],
  ].filter(() => expected > 0);
  const gaps = Object.keys(counts).filter((name) => name.startsWith("gaps_"));
  const row = (label, name, share) => [
    Cells.name(label, name), Cells.number(counts[name] ?? 0), Cells.as("share", share),
  ];
  return [
    ...followed.map(([label, name]) => row(label, name, (counts[name] ?? 0) / expected)),
    ...gaps.map((name) => row(`Gaps: ${name.slice(5).replaceAll("_", " ")}`, name, null)),
  ];
}

const UNITS = { microseconds: "us", count: "count", per_second: "rate", share: "share" };

function measured({ measured: value, unit }) {
  if (!Format.isNumber(value)) return "no value";
  const text = Format.as(UNITS[unit] ?? "count", value);
  return unit === "per_second" ? `${text}/s` : text;
}

function errorCell(count) {
  return el("td", { className: count > 0 ? "number wrong" : "number" }, Format.whole(count));
}

function phaseName(row, at) {
  const now = at !== null && at >= row.starts_s && at < row.starts_s + row.duration_s;
  return el("th", { attributes: { scope: "row" } }, row.name,
    now ? el("span", { className: "pill now" }, "now") : null);
}

/** What a phase plans, in words. */
function planned(row) {
  const rate = (value) => `${Format.as("rate", value)}/s`;
  const between = (from, to, text) => (from === to ? text(from) : `${text(from)} → ${text(to)}`);
  if (row.users_from || row.users_to) {
    return between(row.users_from, row.users_to, (users) => `${Format.whole(users)} at a time`);
  }
  return row.duration_s > 0 ? between(row.rate_from, row.rate_to, rate) : "at given times";
}

function examples(texts) {
  if (!texts.length) return "";
  if (texts.length === 1) return texts[0];
  return el("details", {}, el("summary", {}, texts[0]),
    el("ul", {}, ...texts.slice(1).map((text) => el("li", {}, text))));
}

/** One of `TABLES` on the page; drawn again only when its data changed. */
class Table {
  constructor(spec) {
    this.spec = spec;
    this.body = el("tbody");
    this.head = el("tr");
    const table = el("table", {}, el("thead", {}, this.head), this.body);
    const box = el("div", {
      className: "scroll", tabIndex: 0, attributes: { role: "region", "aria-label": spec.title },
    }, table);
    const heading = el("h2", {}, spec.title);
    const note = spec.note ? el("p", { className: "note" }, spec.note) : null;
    this.empty = el("p", { className: "note", hidden: true }, spec.empty ?? "");
    const children = spec.folded
      ? [el("details", {}, el("summary", {}, heading), box)]
      : [el("header", {}, heading, note), this.empty, box];
    this.box = box;
    this.node = el("section", {
      className: "panel table", hidden: true, dataset: { testid: `table-${spec.id}` },
    }, ...children);
  }

  update(view) {
    const rows = this.spec.rows(view);
    const left = this.spec.columns?.(view) || [];
    const heads = this.spec.heads.filter((head) => !left.includes(head));
    const skip = this.spec.heads.map((head, i) => (left.includes(head) ? i : -1));
    const cells = rows.map((row) => row.filter((_, i) => !skip.includes(i)));
    const fresh = cells.map((row) => el("tr", {}, ...row));
    const text = fresh.map((row) => row.outerHTML).join("");
    this.node.hidden = rows.length === 0 && !this.spec.empty;
    this.empty.hidden = rows.length > 0;
    this.box.hidden = rows.length === 0;
    if (text === this.text) return;
    this.text = text;
    this.head.replaceChildren(...heads.map((head) => el("th", {
      className: head.startsWith("*") ? "number" : "", attributes: { scope: "col" },
    }, head.replace("*", ""))));
    // Open details stay open.
    const open = [...this.body.querySelectorAll("details")].map((details) => details.open);
    this.body.replaceChildren(...fresh);
    this.body.querySelectorAll("details").forEach((details, i) => { details.open = open[i]; });
  }
}
