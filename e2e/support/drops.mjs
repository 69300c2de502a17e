// The dropped-connections test with the official clients: all of them receive the messages of some
// topics, and each is cut off repeatedly. Messages are counted in the handlers of the channels, as
// an application receives them. On several nodes a client reconnects to another node, and a node
// and the broker may be killed meanwhile.

import { monitorEventLoopDelay } from "node:perf_hooks";

import WebSocket from "ws";

import { CURRENT, FIRST, MIDDLE, answer } from "./clients.mjs";
import { Listener, keptOf, random, speaker } from "./history.mjs";
import { Network } from "./network.mjs";
import { pause, until } from "./wait.mjs";

export const VERSIONS = [CURRENT, MIDDLE, FIRST];

/** Time for all clients to return after the cuts, and to receive the rest. */
const BACK_MS_MAX = 30_000;
/** The longest wait for the reply to a message. */
const ANSWER_MS_MAX = 12_000;
/** Clients that connect and join at the same time. */
const JOINING_MAX = 20;
/** 1.2.1 is connected again before it joins for the first time (clients.mjs). */
const FIRST_RECONNECT_MS = 200;
/** How long before a cut a message that it loses may have been sent. */
const ON_ITS_WAY_MS = 1_000;

/** The messages that one client received, numbered from 0. */
export class Tally {
  #heard = new Set();
  #highest = -1;
  double = 0;
  outOfOrder = 0;

  put(n) {
    if (this.#heard.has(n)) this.double += 1;
    else if (n < this.#highest) this.outOfOrder += 1;
    this.#heard.add(n);
    this.#highest = Math.max(this.#highest, n);
  }

  /** How many of these numbers it received. */
  heardOf(numbers) {
    return numbers.filter((n) => this.#heard.has(n)).length;
  }

  get highest() {
    return this.#highest;
  }

  /** Those of these numbers that it did not receive. */
  missing(numbers) {
    return numbers.filter((n) => !this.#heard.has(n));
  }
}

/**
 * A planted fault, to check that it is counted: the first message from `from` on is lost, arrives
 * twice, or swaps with the next.
 */
class Fault {
  #held = null;
  #isOver = false;

  constructor(kind) {
    this.kind = kind;
    this.from = Infinity;
  }

  pass(data, emit) {
    const n = Number(/"n":(\d+)/.exec(data)?.[1] ?? -1);
    if (this.#isOver || n < this.from) return emit(data);
    if (this.kind === "swap" && this.#held === null) {
      this.#held = data;
      return undefined;
    }
    this.#isOver = true;
    if (this.kind === "lose") return undefined;
    emit(data);
    return emit(this.#held ?? data);
  }
}

/**
 * A WebSocket for a client. Its limits bound how long a client stays on a silent network, as a
 * browser does while a connection opens or closes. 1.2.1 does not notice missing heartbeat replies,
 * so its transport closes after as much silence as its heartbeats allow.
 */
function transport(version, heartbeatMs, fault) {
  return class extends WebSocket {
    #heardAt = performance.now();
    #watch = null;

    constructor(url) {
      // Twice as long, as for a missing reply to a heartbeat.
      super(url, { handshakeTimeout: 2 * heartbeatMs, closeTimeout: heartbeatMs });
      if (version !== FIRST) return;
      this.#watch = setInterval(() => {
        if (performance.now() - this.#heardAt > 2 * heartbeatMs) this.terminate();
      }, heartbeatMs / 4);
      this.on("close", () => clearInterval(this.#watch));
    }

    emit(event, ...rest) {
      this.#heardAt = performance.now();
      if (event !== "message" || !fault) return super.emit(event, ...rest);
      return fault.pass(rest[0], (data) => super.emit(event, data, ...rest.slice(1)));
    }
  };
}

/** A client with its own network. */
class Member {
  tally = new Tally();
  /** Pairs of times: when it was cut off, and when it was back. */
  absences = [];
  cuts = { reset: 0, silence: 0 };
  joins = 0;
  replayed = 0;

  constructor(version, network, { plan, below, fault }) {
    this.version = version;
    this.network = network;
    this.user = version.socket(`ws://${network.address}/socket`, {
      transport: transport(version, plan.heartbeatMs, fault),
      heartbeatIntervalMs: plan.heartbeatMs,
      reconnectAfterMs: () => below(version === FIRST ? FIRST_RECONNECT_MS : plan.reconnectMs),
      ...version !== FIRST && { rejoinAfterMs: () => plan.reconnectMs },
    });
  }

  async join(topic) {
    this.user.socket.connect();
    this.listener = new Listener(this.user, topic);
    const { channel } = this.listener;
    channel.on("msg", ({ n }) => this.tally.put(n));
    channel.on("simurgh:resumed", ({ count }) => { this.replayed += count; });
    const join = channel.join();
    // 1.2.1 keeps waiting for a reply that was lost with its connection, and meanwhile gives no
    // join a ref.
    if (this.version === FIRST) channel.onError(() => join.cancelTimeout());
    join.receive("ok", () => {
      this.joins += 1;
      const [last] = this.absences.slice(-1);
      if (last && last[1] === null) last[1] = performance.now();
    });
    await answer(join, `join of ${topic}`);
  }

  cut(how) {
    this.cuts[how] += 1;
    const [last] = this.absences.slice(-1);
    if (!last || last[1] !== null) this.absences.push([performance.now(), null]);
    this.network.lose(how);
  }

  /** Whether it was away when this was sent, or so soon after that the message was in transit. */
  wasAwayAt(time) {
    return this.absences.some(([from, to]) => (
      time > from - ON_ITS_WAY_MS && time < (to ?? Infinity)));
  }

  close() {
    this.user.close();
    this.network.close();
  }
}

/** Sends messages on a topic at a fixed rate, even if this process was delayed. */
class Talk {
  /** When each message was sent. */
  said = [];
  /** The outcome of each: "ok", the reason of a refusal, or "no answer". */
  answers = [];
  /** The numbers that every client must receive, and those that no client may, after `settle`. */
  owed = [];
  unkept = [];
  /** Answered with "ok", but not stored. */
  broken = [];
  #isOver = false;

  constructor(topic, channel, perSecond) {
    this.topic = topic;
    this.channel = channel;
    this.perSecond = perSecond;
  }

  async run() {
    const start = performance.now();
    while (!this.#isOver) {
      const due = (performance.now() - start) / 1_000 * this.perSecond;
      while (this.said.length < due) this.#say();
      await pause(Math.max(1, 1_000 / this.perSecond / 5));
    }
  }

  end() {
    this.#isOver = true;
  }

  /** Call once every message has its reply; `kept` has the server's messages, if it stores all. */
  async settle(kept) {
    const isAnswered = () => !this.said.some((_, n) => this.answers[n] === undefined);
    await until(isAnswered, `answers on ${this.topic}`, ANSWER_MS_MAX);
    const isOk = (n) => this.answers[n] === "ok";
    const has = kept && new Set((await kept(this.topic)).map(({ n }) => n));
    const all = [...this.said.keys()];
    // An unconfirmed message may have been stored: then every client must receive it.
    this.owed = all.filter((n) => isOk(n) || has?.has(n));
    this.unkept = all.filter((n) => !isOk(n) && !has?.has(n));
    this.broken = all.filter((n) => isOk(n) && has && !has.has(n));
  }

  #say() {
    const n = this.said.length;
    const push = this.channel.push("msg", { n, body: "x".repeat(40) });
    this.said.push(performance.now());
    const is = (answer) => { this.answers[n] ??= answer; };
    push.receive("ok", () => is("ok"));
    push.receive("error", ({ reason }) => is(reason));
    push.receive("timeout", () => is("no answer"));
  }
}

/** Cuts one client every `everyMs` for `forMs`, by turns with a reset and in silence. */
async function cutting(member, index, plan, below) {
  await pause(below(plan.everyMs));
  for (let cut = 0; cut < plan.cuts; cut += 1) {
    member.cut((index + cut) % 2 ? "silence" : "reset");
    await pause(plan.forMs);
    member.network.restore();
    await pause(plan.everyMs - plan.forMs);
  }
}

/** Kills one of the nodes, if requested, and then the broker, which is started again. */
async function killing({ nodes, broker }, { nodeAtMs, brokerAtMs, brokerAwayMs = 0 }) {
  if (nodeAtMs !== undefined) {
    await pause(nodeAtMs);
    await nodes.at(-1).kill();
  }
  await pause(brokerAtMs - (nodeAtMs ?? 0));
  await broker.kill();
  await pause(brokerAwayMs);
  await broker.restart();
}

/**
 * Runs it. `plan`: `each` clients of every version in `topics` topics of that `kind`, with
 * `perSecond` messages; `cuts` of each client, one every `everyMs` at a phase of its own, for
 * `forMs`; heartbeats every `heartbeatMs`; reconnecting after up to `reconnectMs`; `faults` to
 * plant: "lose", "double", "swap"; `kills` in a cluster: of a node at `nodeAtMs`, of the broker at
 * `brokerAtMs`, for `brokerAwayMs`. With `keepsAll` the server stores all messages until the end,
 * and its history is read. Resolves to the counts.
 */
export async function runDrops(t, server, plan) {
  const below = random(plan.seed);
  const faults = (plan.faults ?? []).map((kind) => new Fault(kind));
  const ways = await Promise.all(VERSIONS.flatMap((version) => (
    Array.from({ length: plan.each }, async () => [version, await Network.open(server.port)]))));
  const members = ways.map(([version, way], index) => {
    // Members with faults, one each, are of all versions.
    const fault = faults.find((_, nth) => index === Math.floor(nth / faults.length * ways.length));
    return new Member(version, way, { plan, below, fault });
  });
  t.after(() => { for (const member of members) member.close(); });
  // Neighbours are on different nodes, and each topic has members on all.
  const place = (index) => Math.floor(index / plan.topics) % plan.topics;
  const topicOf = (index) => `${plan.kind}:drops-${place(index)}`;
  const waiting = [...members.entries()];
  await Promise.all(Array.from({ length: JOINING_MAX }, async () => {
    for (let next = waiting.pop(); next; next = waiting.pop()) {
      await next[1].join(topicOf(next[0]));
    }
  }));
  const talks = [];
  for (let index = 0; index < plan.topics; index += 1) {
    const topic = `${plan.kind}:drops-${index}`;
    const { channel } = await speaker(t, CURRENT, server, topic);
    talks.push(new Talk(topic, channel, plan.perSecond));
  }
  const lag = monitorEventLoopDelay();
  lag.enable();
  const spoken = Promise.all(talks.map((talk) => talk.run()));
  await Promise.all([
    ...members.map((member, index) => cutting(member, index, plan, below)),
    plan.kills && killing(server, plan.kills),
  ]);
  const talkOf = (index) => talks[place(index)];
  await everybodyBack(members, talkOf, faults);
  for (const talk of talks) talk.end();
  await spoken;
  const kept = plan.keepsAll && ((topic) => keptOf(server, topic));
  await Promise.all(talks.map((talk) => talk.settle(kept)));
  const hasAll = (member, index) => member.tally.highest >= (talkOf(index).owed.at(-1) ?? -1);
  await until(() => members.every(hasAll), "the last word", BACK_MS_MAX).catch(() => {});
  lag.disable();
  return report(members, talkOf, talks, lag, server);
}

/**
 * Waits until every client receives new messages, and then those with faults; the counts show it if
 * one does not.
 */
async function everybodyBack(members, talkOf, faults) {
  const said = () => Math.max(...members.map((_, index) => talkOf(index).said.length));
  const heard = (last) => until(
    () => members.every(({ tally }) => tally.highest > last), "everybody", BACK_MS_MAX,
  ).catch(() => {});
  await heard(said());
  for (const fault of faults) fault.from = said() + 1;
  await heard(said() + 3);
}

function report(members, talkOf, talks, lag, { balancer }) {
  const versions = VERSIONS.map((version) => {
    const own = [...members.entries()].filter(([, member]) => member.version === version);
    return { version: version.name, ...counts(own, talkOf) };
  });
  const ms = (ns) => Math.round(ns / 1e4) / 100;
  return {
    versions,
    all: { version: "all", ...counts([...members.entries()], talkOf) },
    spoken: talks.reduce((sum, talk) => sum + talk.said.length, 0),
    answers: countedBy(talks.flatMap(({ answers }) => answers)),
    unkept: talks.reduce((sum, { unkept }) => sum + unkept.length, 0),
    ok_and_not_kept: talks.reduce((sum, { broken }) => sum + broken.length, 0),
    ...balancer && { returns: balancer.returns },
    event_loop_ms: { p50: ms(lag.percentile(50)), p99: ms(lag.percentile(99)), max: ms(lag.max) },
  };
}

/** How often each of them is there. */
function countedBy(words) {
  const counts = {};
  for (const word of words) counts[word] = (counts[word] ?? 0) + 1;
  return counts;
}

/** Sums over members, which come with their index. */
function counts(members, talkOf) {
  const sum = (of) => members.reduce((total, [index, it]) => total + of(it, talkOf(index)), 0);
  const gaps = countedBy(members.flatMap(([, { listener }]) => (
    listener.gaps.map(({ reason }) => reason))));
  const expected = sum((_, talk) => talk.owed.length);
  const delivered = sum((it, talk) => it.tally.heardOf(talk.owed));
  const absences = members.flatMap(([, member]) => member.absences);
  const over = absences.filter(([, to]) => to !== null).map(([from, to]) => to - from);
  return {
    clients: members.length,
    expected,
    delivered,
    delivered_percent: 100 * delivered / expected,
    missing: sum((it, talk) => it.tally.missing(talk.owed).length),
    missing_while_connected: sum((it, talk) => it.tally.missing(talk.owed)
      .filter((n) => !it.wasAwayAt(talk.said[n])).length),
    // Only of clients without a reported gap.
    missing_untold: sum((it, talk) => (
      it.listener.gaps.length ? 0 : it.tally.missing(talk.owed).length)),
    double_untold: sum((it) => (it.listener.gaps.length ? 0 : it.tally.double)),
    unkept_and_heard: sum((it, talk) => it.tally.heardOf(talk.unkept)),
    double: sum((it) => it.tally.double),
    out_of_order: sum((it) => it.tally.outOfOrder),
    gaps,
    cuts: { reset: sum((it) => it.cuts.reset), silence: sum((it) => it.cuts.silence) },
    joins: sum((it) => it.joins),
    replayed: sum((it) => it.replayed),
    absences: absences.length,
    never_back: absences.length - over.length,
    absence_ms_max: Math.round(Math.max(0, ...over)),
  };
}
