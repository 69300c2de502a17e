// The views: overview, shards, topics, connections, errors. Each is made once and then updated.
"use strict";

const LONG_TURN_US = 2000;

/** A connection's columns; `onpick` shows one alone, `onclose` disconnects it. */
function connectionColumns({ onpick, onclose, mayClose }) {
  return [
    {
      key: "id", label: "Connection", className: "id",
      button: (shown) => el("button", {
        type: "button", className: "link", title: "Show this connection",
        onclick: () => onpick(shown.row.id),
      }, shown.row.id),
    },
    { key: "peer", label: "Address" },
    { key: "path", label: "Path", text: (row) => visible(`${row.path} ${row.wire}`.trim()) },
    { key: "state", label: "State" },
    { key: "channels", label: "Channels", kind: "count", order: "channels" },
    { key: "topics", label: "Topics", className: "several", text: topicsText },
    { key: "age_s", label: "Age", kind: "seconds", order: "age", text: ageText },
    { key: "quiet_s", label: "Quiet for", kind: "seconds" },
    { key: "messages_per_s", label: "Messages/s", kind: "rate", order: "rate" },
    { key: "limited", label: "Over limit", text: limitText, hot: (row) => row.limited > 0 },
    {
      key: "queued_bytes", label: "Queued", kind: "bytes", order: "queue",
      hot: (row) => row.queued_bytes > 0,
    },
    {
      key: "close", label: "Action", button: (shown) => el("button", {
        type: "button", disabled: !mayClose(), dataset: { testid: "disconnect" },
        title: mayClose() ? "Close this connection with 1001"
          : "To disconnect clients here, set api_token on the server",
        onclick: () => onclose(shown.row),
      }, "Disconnect"),
    },
  ];
}

function topicsText(row) {
  const more = row.channels > row.topics.length ? ` +${row.channels - row.topics.length}` : "";
  return row.topics.map(visible).join(", ") + more;
}

function limitText(row) {
  return row.limit ? `${row.limit} ×${Format.whole(row.limited)}` : "";
}

function ageText(row) {
  return (row.age_is_more ? "> " : "") + Format.span(row.age_s);
}

class Overview {
  static CHARTS = [
    {
      id: "connections", title: "Connections", unit: "now", kind: "count",
      series: [["connections", "connections"], ["channels", "channels"]],
    },
    {
      id: "messages", title: "Messages", unit: "per second", kind: "rate",
      series: [["messages_in_per_s", "from clients"], ["messages_out_per_s", "to clients"]],
    },
    {
      id: "bytes", title: "Traffic", unit: "bytes per second", kind: "bytes",
      series: [["bytes_in_per_s", "in"], ["bytes_out_per_s", "out"]],
    },
    {
      id: "cpu", title: "CPU", unit: "cores", kind: "rate",
      series: [["cpu_cores", "process"]],
    },
    {
      id: "turns", title: "Turns of the shards", unit: "duration", kind: "us", log: true,
      series: [["turn_p50_us", "p50"], ["turn_p99_us", "p99"]],
    },
    {
      id: "backlog", title: "Waiting", unit: "bytes", kind: "bytes",
      series: [["mailbox_bytes", "between shards"], ["queued_bytes", "for slow clients"]],
    },
    {
      id: "memory", title: "Memory", unit: "resident", kind: "bytes",
      series: [["resident_bytes", "process"]],
    },
    {
      id: "errors", title: "Errors", unit: "per second", kind: "rate",
      series: [["errors_per_s", "all kinds"], ["limited_per_s", "over a limit"]],
    },
  ];

  static MEMORY = [
    ["connection_records", "Connection records"],
    ["tables", "Memberships and topics"],
    ["outbound_queues", "Outbound queues"],
    ["half_received", "Half-received messages"],
    ["kept", "History"],
    ["rest", "Allocator, application, code"],
  ];

  constructor() {
    this.timeline = new Timeline();
    this.timeline.follow = 300;
    this.cards = el("div", { className: "cards" });
    this.values = new Map();
    this.charts = Overview.CHARTS.map(({ series, ...spec }) => new Chart(this.timeline, {
      ...spec,
      height: 150,
      series: series.map(([key, label], at) => ({ key, label, colour: `c${at + 1}` })),
    }));
    this.memory = el("tbody");
    this.node = el("div", { className: "view" }, this.cards,
      el("h2", { className: "unseen" }, "Charts"),
      el("div", { className: "charts" }, ...this.charts.map((chart) => chart.node)),
      panel("Memory", "of the process, and of the kernel for its sockets",
        el("div", { className: "scroll", dataset: { testid: "table-memory" } },
          el("table", {}, this.memory))));
  }

  update({ overview, points }) {
    const { now } = overview;
    const limit = overview.max_connections;
    this.#card("uptime", "Up for", Format.span(overview.uptime_s), `version ${overview.version}`);
    this.#card("connections", "Connections", Format.as("count", now.connections),
      limit ? `of ${Format.whole(limit)}` : `${Format.as("rate", now.accepted_per_s)} new/s`);
    this.#card("channels", "Channels", Format.as("count", now.channels),
      // A topic with members on several shards counts on each.
      overview.shards.length === 1 ? `in ${Format.as("count", now.topics)} topics`
        : `${Format.digits(now.channels / Math.max(now.connections, 1))} each`);
    this.#card("messages_in", "Messages in", `${Format.as("rate", now.messages_in_per_s)}/s`,
      `${Format.as("bytes", now.bytes_in_per_s)}/s`);
    this.#card("messages_out", "Messages out", `${Format.as("rate", now.messages_out_per_s)}/s`,
      `${Format.as("bytes", now.bytes_out_per_s)}/s`);
    this.#card("cpu", "CPU", `${Format.digits(now.cpu_cores * 100)} %`, "of a core");
    this.#card("memory", "Memory", Format.as("bytes", now.resident_bytes),
      now.connections ? `${Format.as("bytes", now.resident_bytes / now.connections)} each` : "");
    this.#card("turns", "Turns p99", Format.as("us", now.turn_p99_us),
      `p50 ${Format.as("us", now.turn_p50_us)}`);
    this.#card("errors", "Errors", `${Format.as("rate", now.errors_per_s)}/s`,
      `${Format.as("rate", now.limited_per_s)}/s over a limit`);
    if (overview.tls) this.#tls(overview.tls);
    this.#memory(overview.memory);
    const t = points.map((point) => point.at_unix_s - Overview.#midnight);
    this.timeline.end = t.at(-1) ?? 1;
    for (const chart of this.charts) {
      const keys = chart.spec.series.map(({ key }) => key);
      const values = keys.map((key) => [key, points.map((point) => point[key])]);
      chart.set({ t, values: Object.fromEntries(values) });
    }
  }

  /** So that charts bear the time of day. */
  static #midnight = new Date().setHours(0, 0, 0, 0) / 1000;

  #card(id, label, value, note) {
    let card = this.values.get(id);
    if (!card) {
      card = { value: el("strong"), note: el("span", { className: "card-note" }) };
      this.values.set(id, card);
      this.cards.append(el("div", { className: "card", dataset: { testid: `card-${id}` } },
        el("span", { className: "card-label" }, label), card.value, card.note));
    }
    card.value.textContent = value;
    card.note.textContent = note;
  }

  #tls(tls) {
    const [old, all, failed, refused] = ["handshakes_1_2", "handshakes", "failed", "refused"]
      .map((key) => tls[key]);
    this.#card("tls", "TLS handshakes", `${Format.whole(tls.under_way)} under way`,
      `TLS 1.3: ${Format.whole(all - old)}, 1.2: ${Format.whole(old)}, `
      + `failed: ${Format.whole(failed)}, refused: ${Format.whole(refused)}`);
    const left = tls.expires_in_s;
    this.#card("certificate", "Certificate", left < 0 ? "expired" : `${Format.span(left)} left`,
      visible(tls.certificate));
  }

  #memory(memory) {
    const row = (label, bytes, part, note = "") => el("tr", {}, Cell.head(label),
      Cell.bar(part), el("td", { className: "number" }, Format.as("bytes", bytes)),
      el("td", { className: "dim" }, note));
    const all = Math.max(memory.resident, 1);
    this.memory.replaceChildren(
      ...Overview.MEMORY.map(([key, label]) => row(label, memory[key], memory[key] / all)),
      row("Resident, total", memory.resident, 1),
      row("Sockets in the kernel", memory.kernel_sockets, memory.kernel_sockets / all,
        "estimated, 4.1 kB each; outside the process"),
      row("TCP buffers of this host", memory.kernel_buffers, memory.kernel_buffers / all,
        "all processes"));
  }
}

const Cell = {
  head: (label) => el("th", { attributes: { scope: "row" } }, label),
  bar: (part) => {
    const fill = el("i", { className: "bar-fill" });
    fill.style.width = `${Math.min(Math.max(part, 0), 1) * 100}%`;
    return el("td", { className: "bar" }, el("span", { className: "bar-box" }, fill));
  },
};

class Shards {
  constructor() {
    const long = (key) => (row) => row[key] > LONG_TURN_US;
    this.table = new SortTable("shards", {
      rowKey: (row) => row.shard,
      columns: [
        {
          key: "shard", label: "Shard", kind: "count",
          text: (row) => `${row.shard}${row.ended ? " (ended)" : ""}`,
        },
        { key: "connections", label: "Connections", kind: "count" },
        { key: "channels", label: "Channels", kind: "count" },
        { key: "topics", label: "Topics", kind: "count" },
        { key: "mailbox_mails", label: "Waiting mails", kind: "count" },
        { key: "mailbox_bytes", label: "Waiting bytes", kind: "bytes" },
        { key: "fanout_topics", label: "Fan-outs", kind: "count" },
        { key: "queued_bytes", label: "Slow clients", kind: "bytes" },
        { key: "messages_in_per_s", label: "In/s", kind: "rate" },
        { key: "messages_out_per_s", label: "Out/s", kind: "rate" },
        { key: "cpu_cores", label: "CPU", kind: "share" },
        { key: "turns_per_s", label: "Turns/s", kind: "rate" },
        { key: "turn_p50_us", label: "p50", kind: "us", hot: long("turn_p50_us") },
        { key: "turn_p99_us", label: "p99", kind: "us", hot: long("turn_p99_us") },
        { key: "turn_max_us", label: "Longest", kind: "us" },
        { key: "turn_cpu_max_us", label: "Longest CPU", kind: "us" },
      ],
    });
    this.node = el("div", { className: "view" }, panel("Shards",
      "p50 and p99 are turns of the last second, longest is since the start", this.table.node));
  }

  update({ overview }) {
    this.table.set(overview.shards);
  }
}

class Hooks {
  constructor() {
    const bad = (key) => (row) => row[key] > 0;
    this.hooks = new SortTable("hooks", {
      rowKey: (row) => row.name,
      columns: [
        { key: "name", label: "Hook", className: "name" },
        { key: "breaker", label: "Breaker", hot: (row) => row.breaker !== "closed" },
        { key: "in_flight", label: "In flight", kind: "count" },
        { key: "limit", label: "At most", kind: "count" },
        { key: "waiting", label: "Waiting", kind: "count" },
        { key: "shared_total", label: "Shared answers", kind: "count" },
        { key: "clock_difference_seconds", label: "Clock ahead, s" },
      ],
    });
    this.questions = new SortTable("questions", {
      rowKey: (row) => `${row.hook} ${row.question}`,
      columns: [
        { key: "hook", label: "Hook", className: "name" },
        { key: "question", label: "Question" },
        { key: "allowed", label: "Allowed", kind: "count" },
        { key: "refused", label: "Refused", kind: "count" },
        { key: "failed", label: "Failed", kind: "count", hot: bad("failed") },
        { key: "timeout", label: "Timeout", kind: "count", hot: bad("timeout") },
        { key: "overloaded", label: "Queue full", kind: "count", hot: bad("overloaded") },
        { key: "open", label: "Not sent", kind: "count", hot: bad("open") },
        { key: "stale", label: "Stale answer", kind: "count" },
        { key: "cache_hits", label: "Cached answer", kind: "count" },
        { key: "mean_us", label: "Mean time", kind: "us" },
      ],
    });
    this.notices = new SortTable("notices", {
      rowKey: (row) => row.hook,
      columns: [
        { key: "hook", label: "Hook", className: "name" },
        { key: "accepted", label: "Accepted", kind: "count" },
        { key: "waiting", label: "Waiting", kind: "count" },
        { key: "oldest_seconds", label: "Oldest, s", hot: (row) => row.oldest_seconds >= 60 },
        { key: "again", label: "Not accepted", kind: "count", hot: bad("again") },
        { key: "dead", label: "Dead letters", kind: "count", hot: bad("dead") },
        { key: "stays", label: "Open stays", kind: "count" },
      ],
    });
    this.noticesPanel = panel("Notices",
      "since the start, of the partitions that this node decides about", this.notices.node);
    this.node = el("div", { className: "view" },
      panel("Hooks", "applications over HTTP", this.hooks.node),
      panel("Questions", "since the start, named as in /metrics", this.questions.node),
      this.noticesPanel);
  }

  update({ overview }) {
    const hooks = overview.hooks ?? [];
    this.hooks.set(hooks);
    this.questions.set(hooks.flatMap(({ name, questions }) => (
      questions.map((row) => ({ hook: name, ...row })))));
    const rows = hooks.filter(({ notices }) => notices);
    this.noticesPanel.hidden = rows.length === 0;
    this.notices.set(rows.map(({ name, notices }) => ({ hook: name, ...notices })));
  }
}

class Errors {
  constructor() {
    this.table = new SortTable("errors", {
      rowKey: (row) => row.kind,
      sort: { key: "total", falling: true },
      columns: [
        { key: "kind", label: "Kind", className: "name" },
        {
          key: "last_minute", label: "Last minute", kind: "count",
          hot: (row) => row.last_minute > 0,
        },
        { key: "total", label: "Since the start", kind: "count" },
        { key: "about", label: "Meaning" },
      ],
    });
    this.node = el("div", { className: "view" },
      panel("Errors by kind", "named as in /metrics", this.table.node));
  }

  update({ overview }) {
    this.table.set(overview.errors);
  }
}

const ROWS_MAX = 50;

/** How many rows there are, and how often the list is made. */
function listNote(list, what) {
  const pace = list.next_in_s > 1.5 ? `, updated every ${Format.span(list.next_in_s)}` : "";
  const of = list.rows.length < list.total ? `${list.rows.length} of ` : "";
  const first = list.rows.length < ROWS_MAX || of === "" ? "" : "the first ";
  return `${first}${of}${Format.whole(list.total)} ${what}${pace}`;
}

class Topics {
  constructor(live) {
    this.live = live;
    this.by = "members";
    this.search = el("input", {
      type: "search", placeholder: "part of a topic's name", dataset: { testid: "topic-search" },
      attributes: { "aria-label": "Search topics" }, oninput: () => this.#soon(),
    });
    this.note = el("span", { className: "note", dataset: { testid: "topics-note" } });
    this.table = new SortTable("topics", {
      rowKey: (row) => row.topic,
      onorder: (by) => { this.by = by; live.listen(); },
      empty: "No topics to show.",
      columns: [
        {
          key: "topic", label: "Topic", className: "name",
          button: (shown) => el("button", {
            type: "button", className: "link", disabled: Boolean(shown.row.cut),
            title: shown.row.cut ? "The name is too long for a search" : "Show the members",
            onclick: () => this.pick(shown.row.topic),
          }, visible(shown.row.topic) + (shown.row.cut ? "…" : "")),
        },
        { key: "members", label: "Members", kind: "count", order: "members" },
        { key: "deliveries_per_s", label: "Deliveries/s", kind: "rate", order: "deliveries" },
        {
          key: "kept", label: "History", kind: "bytes", order: "kept",
          text: (row) => (row.kept ? Format.as("bytes", row.kept.bytes) : "–"),
        },
      ],
    });
    this.members = new MembersPanel(live);
    const head = panel("Topics", null,
      el("div", { className: "ask" }, this.search), this.table.node);
    head.querySelector("header").append(this.note);
    this.node = el("div", { className: "view" }, this.members.node, head);
  }

  /** The list to ask for. */
  get list() {
    return { list: "topics", by: this.by, search: this.search.value };
  }

  #soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.live.listen(), 250);
  }

  pick(topic) {
    this.members.show(topic);
  }

  update({ lists }) {
    const { topics } = lists;
    if (!topics) return;
    this.table.setOrder(this.by);
    this.table.set(topics.rows);
    this.note.textContent = listNote(topics, "topics");
  }
}

/** The history of a topic, as the children of a list. */
function keptFacts(kept) {
  if (!kept) return [];
  const facts = [
    ["History", `${Format.whole(kept.messages)} broadcasts, ${Format.as("bytes", kept.bytes)}`],
    ["Epoch", visible(kept.epoch)],
    ["Last position", visible(kept.head)],
    ["Oldest position", visible(kept.floor)],
    ["Removed before", kept.lost ? visible(kept.lost) : "nothing"],
  ];
  return facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);
}

/** The members of a topic. */
class MembersPanel {
  constructor(live) {
    this.live = live;
    this.title = el("h2");
    this.note = el("span", { className: "note" });
    this.table = new SortTable("members", {
      rowKey: (row) => row.id,
      columns: connectionColumns({
        onpick: (id) => live.go("connections", id),
        onclose: (row) => live.disconnect(row),
        mayClose: () => live.mayDisconnect(),
      }),
      empty: "The topic has no members.",
    });
    this.kept = el("dl", { className: "facts-list", dataset: { testid: "kept" } });
    this.places = el("p", { className: "empty", dataset: { testid: "places" } });
    this.node = el("section", {
      className: "panel members", hidden: true, dataset: { testid: "members" },
    }, el("header", {}, this.title, this.note, el("button", {
      type: "button", onclick: () => { this.node.hidden = true; },
    }, "Close")), this.places, this.kept, this.table.node);
  }

  async show(topic) {
    const answer = await this.live.ask(`api/members?${new URLSearchParams({ topic })}`);
    if (!answer) return;
    this.title.textContent = visible(topic);
    this.note.textContent = answer.rows.length < answer.total
      ? `${answer.rows.length} of ${Format.whole(answer.total)} members`
      : `${Format.whole(answer.total)} members`;
    this.places.textContent = placesText(answer.nodes);
    this.places.hidden = !answer.nodes;
    this.kept.hidden = !answer.kept;
    this.kept.replaceChildren(...keptFacts(answer.kept));
    this.table.set(answer.rows);
    this.node.hidden = false;
    this.node.scrollIntoView({ block: "nearest" });
  }
}

class Connections {
  constructor(live) {
    this.live = live;
    this.by = "age";
    this.peer = "";
    this.search = el("input", {
      type: "search", placeholder: "connection, address, address:port, socket id",
      dataset: { testid: "connection-search" }, attributes: { "aria-label": "Look up" },
    });
    this.note = el("span", { className: "note" });
    const actions = {
      onpick: (id) => this.pick(id),
      onclose: (row) => live.disconnect(row),
      mayClose: () => live.mayDisconnect(),
    };
    this.table = new SortTable("connections", {
      rowKey: (row) => row.id,
      onorder: (by) => { this.by = by; live.listen(); },
      empty: "No connections to show.",
      columns: connectionColumns(actions),
    });
    this.one = el("div");
    this.found = new MembersPanel(live);
    const form = el("form", {
      className: "ask", onsubmit: (event) => { event.preventDefault(); this.#look(); },
    }, this.search, el("button", { type: "submit" }, "Look up"));
    const head = panel("Connections", null, form, this.table.node);
    head.querySelector("header").append(this.note);
    this.node = el("div", { className: "view" }, this.one, this.found.node, head);
  }

  get list() {
    return { list: "connections", by: this.by, peer: this.peer };
  }

  /** By what it looks like: a connection's id, an address, else the id of a socket. */
  #look() {
    const text = this.search.value.trim();
    const isAddress = /^[0-9.]+(:\d+)?$/.test(text) || /^[[\]0-9a-fA-F:.]+$/.test(text);
    const isId = /^\d+\.\d+\.\d+$/.test(text);
    const before = this.peer;
    this.peer = isAddress && !isId && text.length > 2 ? text : "";
    if (this.peer !== before) this.live.listen();
    if (isId) this.pick(text);
    else if (text && !this.peer) this.found.show(text);
  }

  async pick(id) {
    const row = await this.live.ask(`api/connection?${new URLSearchParams({ id })}`);
    if (!row) return;
    const facts = [
      ["Address", row.peer ?? "none"],
      ["Path", visible(row.path)],
      ["Protocol", row.wire],
      ["State", row.state],
      ["Socket id", row.socket_id === null ? "none" : visible(row.socket_id)],
      ["Age", ageText(row)],
      ["Quiet for", Format.span(row.quiet_s)],
      ["Queued", Format.as("bytes", row.queued_bytes)],
      ["Over limit", limitText(row) || "none"],
      ["Channels", Format.whole(row.channels)],
      ["Topics", topicsText(row)],
    ];
    const close = el("button", {
      type: "button", disabled: !this.live.mayDisconnect(),
      onclick: () => this.live.disconnect(row),
    }, "Disconnect");
    const list = facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);
    const shown = panel(`Connection ${row.id}`, null,
      el("dl", { className: "facts-list", dataset: { testid: "connection" } }, ...list),
      el("div", { className: "ask" }, close, el("button", {
        type: "button", onclick: () => this.one.replaceChildren(),
      }, "Close this panel")));
    this.one.replaceChildren(shown);
    shown.scrollIntoView({ block: "nearest" });
  }

  update({ lists }) {
    const { connections } = lists;
    if (!connections) return;
    this.table.setOrder(this.by);
    this.table.set(connections.rows);
    this.note.textContent = listNote(connections, this.peer ? `from ${this.peer}` : "connections");
  }
}
