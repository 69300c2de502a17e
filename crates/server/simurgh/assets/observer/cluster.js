// The view of a cluster: its nodes, the link between them, and what this node receives and drops.
// Names and reasons come from other machines: they are set as text, and made visible.
"use strict";

/** A node's name, with a mark for this one. */
function nodeName(row) {
  return visible(row.name || row.id) + (row.is_here ? " (this one)" : "");
}

function milliseconds(value) {
  return Format.isNumber(value) ? Format.as("us", value * 1000) : "–";
}

/** A clock's difference, with its sign. */
function offsetText(value) {
  if (!Format.isNumber(value)) return "–";
  if (value === 0) return "0";
  return `${value < 0 ? "−" : "+"}${milliseconds(Math.abs(value))}`;
}

class Cluster {
  /** Figures that are summed over all nodes. */
  static SUMS = ["channels", "messages_in_per_s", "messages_out_per_s", "cpu_cores",
    "resident_bytes"];

  constructor() {
    this.cards = el("div", { className: "cards" });
    this.values = new Map();
    this.notices = el("div", { className: "notices", dataset: { testid: "cluster-notices" } });
    this.note = el("span", { className: "note" });
    this.figures = this.#figures();
    this.nodes = this.#nodes();
    this.link = el("dl", { className: "facts-list", dataset: { testid: "cluster-link" } });
    this.hears = el("dl", { className: "facts-list", dataset: { testid: "cluster-hears" } });
    this.dropped = Cluster.#counts("dropped", "Reason", "Nothing.");
    this.worst = Cluster.#counts("buckets", "Bucket", "None.");
    const first = panel("Figures of all nodes", null, this.figures.node);
    first.querySelector("header").append(this.note);
    this.node = el("div", { className: "view" }, this.notices, this.cards, first,
      panel("Nodes", "as this node receives their heartbeats", this.nodes.node),
      panel("Link to the broker", null, this.link),
      panel("Subscriptions and queues", null, this.hears),
      panel("Dropped", "not sent or not delivered to a shard since the start, named as in /metrics",
        this.dropped.node),
      panel("Unwanted", "buckets of topics with most messages that have no subscriber here",
        this.worst.node));
  }

  /** The list to ask for. */
  get list() {
    return { list: "cluster" };
  }

  #figures() {
    const figure = (key, label, kind, options = {}) => ({ key, label, kind, ...options });
    return new SortTable("nodes", {
      rowKey: (row) => row.id,
      columns: [
        { key: "name", label: "Node", className: "name", text: nodeName },
        { key: "state", label: "State", hot: (row) => row.state !== "alive" },
        figure("sockets", "Sockets", "count"),
        figure("channels", "Memberships", "count"),
        figure("messages_in_per_s", "In/s", "rate"),
        figure("messages_out_per_s", "Out/s", "rate"),
        figure("presences_local", "Presences", "count"),
        figure("presences_remote", "Remote", "count"),
        figure("kept_messages", "History", "count"),
        figure("resident_bytes", "Memory", "bytes"),
        figure("cpu_cores", "CPU", "share"),
        figure("errors_per_s", "Errors/s", "rate", { hot: (row) => row.errors_per_s > 0 }),
        figure("uptime_s", "Up for", "seconds"),
      ],
    });
  }

  #nodes() {
    return new SortTable("lives", {
      rowKey: (row) => row.id,
      columns: [
        { key: "name", label: "Node", className: "name", text: nodeName },
        { key: "id", label: "Id" },
        { key: "version", label: "Version" },
        { key: "state", label: "State", hot: (row) => row.state !== "alive" },
        {
          key: "heard_ms", label: "Last heartbeat", kind: "count",
          text: (row) => (row.is_here ? "–" : milliseconds(row.heard_ms)),
        },
        {
          key: "rtt_ms", label: "Round trip", kind: "count",
          text: (row) => milliseconds(row.rtt_ms),
        },
        {
          key: "delay_ms", label: "Delay", kind: "count",
          text: (row) => milliseconds(row.delay_ms),
        },
        {
          key: "clock_offset_ms", label: "Clock", kind: "count",
          text: (row) => offsetText(row.clock_offset_ms),
        },
      ],
    });
  }

  static #counts(id, label, empty) {
    return new SortTable(id, {
      rowKey: (row) => row.name,
      columns: [{ key: "name", label }, { key: "total", label: "Count", kind: "count" }],
      sort: { key: "total", falling: true },
      empty,
    });
  }

  update({ lists }) {
    const { cluster } = lists;
    if (!cluster) return;
    const rows = cluster.nodes.map(({ figures, ...row }) => ({ ...figures, ...row,
      sockets: figures?.sockets ?? row.sockets, answered: Boolean(figures) }));
    const silent = rows.filter((row) => !row.answered).length;
    this.note.textContent = silent ? `${silent} did not answer` : "all have answered";
    this.figures.set(rows);
    this.nodes.set(rows);
    this.#cards(cluster, rows);
    this.#notices(cluster);
    this.#facts(cluster);
    this.dropped.set(cluster.dropped.filter((row) => row.total > 0));
    this.worst.set(cluster.worst_buckets);
  }

  #cards({ link, more_nodes }, rows) {
    const sum = (key) => rows.reduce((all, row) => all + (row[key] ?? 0), 0);
    const [channels, messagesIn, messagesOut, cpu, memory] = Cluster.SUMS.map(sum);
    const count = rows.length + more_nodes;
    const others = rows.filter((row) => row.state === "alive").length;
    this.#card("link", "Link", visible(link.state), `for ${Format.span(link.for_s)}`,
      link.state === "up" ? "good" : "bad");
    this.#card("nodes", "Nodes", Format.whole(count), `${Format.whole(others)} alive`);
    this.#card("cluster-sockets", "Sockets", Format.as("count", sum("sockets")), "on all nodes");
    this.#card("cluster-channels", "Memberships", Format.as("count", channels), "on all nodes");
    this.#card("cluster-in", "Messages in", `${Format.as("rate", messagesIn)}/s`, "on all nodes");
    this.#card("cluster-out", "Messages out", `${Format.as("rate", messagesOut)}/s`,
      "on all nodes");
    this.#card("cluster-cpu", "CPU", Format.as("share", cpu), "of a core");
    this.#card("cluster-memory", "Memory", Format.as("bytes", memory), "on all nodes");
  }

  #card(id, label, value, note, tone = "") {
    let card = this.values.get(id);
    if (!card) {
      card = { value: el("strong"), note: el("span", { className: "card-note" }) };
      card.node = el("div", { className: "card", dataset: { testid: `card-${id}` } },
        el("span", { className: "card-label" }, label), card.value, card.note);
      this.values.set(id, card);
      this.cards.append(card.node);
    }
    card.value.textContent = value;
    card.note.textContent = note;
    card.node.dataset.tone = tone;
  }

  /** Problems that an operator has to solve. */
  #notices({ link, nodes }) {
    const said = [];
    const say = (kind, title, text) => said.push(el("div", { className: `notice ${kind}` },
      el("strong", {}, title), el("span", {}, text)));
    if (link.why) say("bad", "No link", visible(link.why));
    const names = new Set(nodes.filter((row) => row.has_namesake).map((row) => row.name));
    for (const name of names) {
      const ids = nodes.filter((row) => row.name === name).map((row) => row.id);
      say("warn", "Two nodes have one name", `${visible(name)}: ${ids.map(visible).join(", ")}`);
    }
    for (const row of nodes.filter(({ differing }) => differing.length)) {
      say("warn", `${visible(row.name)} has other settings`, row.differing.map(visible).join(", "));
    }
    for (const row of nodes.filter(({ state }) => state === "incompatible")) {
      say("bad", `${visible(row.name)} is incompatible`,
        `version ${visible(row.version)} and this one have no common message format`);
    }
    const texts = (all) => all.map((node) => node.textContent).join("\n");
    if (texts(said) !== texts([...this.notices.children])) this.notices.replaceChildren(...said);
  }

  #facts({ link, interests, outbox, unwanted, refused, resyncs, histories }) {
    const fill = (list, facts) => list.replaceChildren(
      ...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
    const all = refused.reduce((sum, row) => sum + row.total, 0);
    fill(this.link, [
      ["State", `${visible(link.state)} for ${Format.span(link.for_s)}`],
      ["Reason", link.why ? visible(link.why) : "–"],
      ["Broker", link.engine ? visible(link.engine) : "–"],
      ["Round trip", milliseconds(link.rtt_ms)],
      ["Reconnects", Format.whole(link.reconnects)],
      ["Possible losses", Format.whole(link.lost)],
      ["Presence resyncs", `${Format.whole(resyncs)} topics`],
    ]);
    fill(this.hears, [
      ["Topics", `${Format.whole(interests.topics)} with members here`],
      ["Subscribed one by one", `${Format.whole(interests.exact)} subscriptions of `
        + Format.whole(interests.exact_max)],
      ["Subscribed by bucket", `${Format.whole(interests.whole)} subscriptions, `
        + `${Format.whole(interests.whole_buckets)} of 4096 buckets`],
      ["Waiting for the broker", `${Format.as("bytes", outbox.bytes)} of `
        + Format.as("bytes", outbox.bytes_max)],
      ["Not confirmed", `${Format.whole(outbox.under_way)} envelopes`],
      ["Received, no subscriber", `${Format.whole(unwanted)} envelopes`],
      ["Received, not understood", `${Format.whole(all)} envelopes`],
      ...historyFacts(histories),
    ]);
  }
}

/** Histories that the broker stores; nothing if no channel has one. */
function historyFacts(histories) {
  if (!histories) return [];
  const { kept, topics, waiting_bytes: bytes, stored, not_stored: failed } = histories;
  const { holes_filled: filled, gaps } = histories;
  return [
    ["Histories", kept ? visible(kept) : "–"],
    ["Histories followed", `${Format.whole(topics)} topics`],
    ["Stored by this node", `${Format.whole(stored)} broadcasts, ${Format.whole(failed)} `
      + `unconfirmed, ${Format.as("bytes", bytes)} wait`],
    ["Missed of other nodes", `${Format.whole(filled)} fetched, ${Format.whole(gaps)} lost`],
  ];
}

/** The nodes with members of a topic, as a text; empty without a cluster. */
function placesText(nodes) {
  if (!nodes) return "";
  const known = nodes.filter(({ members }) => members !== null && members !== 0);
  const unknown = nodes.filter(({ members }) => members === null);
  const all = known.reduce((sum, { members }) => sum + members, 0);
  const on = known.map((node) => `${nodeName(node)} ${Format.whole(node.members)}`).join(", ");
  const missing = unknown.length ? `; no answer from ${unknown.map(nodeName).join(", ")}` : "";
  return `On all nodes ${Format.whole(all)}${on ? `: ${on}` : ""}${missing}`;
}
