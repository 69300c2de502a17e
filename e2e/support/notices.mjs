// A back end that keeps a table of stays by the notices it gets, and users whose stays are known.
// The tests compare both.

import { createHmac } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";

import WebSocket from "ws";

import { startProcess } from "./server.mjs";
import { pause, until, within } from "./wait.mjs";

export const KEY = "what signs the tokens of the users of this test";
const CLUSTER_SECRET = "what the nodes of this test share ".repeat(2);
export const API_TOKEN = "what-the-back-end-may-ask";

/** A back end that accepts notices, and applies each once by its id. */
export class BackEnd {
  /** By the id of a notice: how often it came, and the notice. */
  notices = new Map();
  /** By stay: `{kind, topic, user}` while it is open. */
  open = new Map();
  /** Notices that contradict earlier ones. */
  wrong = [];
  resets = 0;
  requests = 0;
  /** The status for the next requests; `0` accepts no connection. */
  status = 204;
  /** In the order of their first arrival: `{at, type}`. */
  arrivals = [];

  static async start() {
    const backEnd = new BackEnd();
    backEnd.server = createServer((request, response) => {
      const chunks = [];
      request.on("data", (chunk) => chunks.push(chunk));
      request.on("end", () => {
        backEnd.requests += 1;
        if (backEnd.status < 300) backEnd.#take(JSON.parse(Buffer.concat(chunks)));
        response.writeHead(backEnd.status).end();
      });
    });
    backEnd.server.listen(0, "127.0.0.1");
    await once(backEnd.server, "listening");
    return backEnd;
  }

  get url() {
    return `http://127.0.0.1:${this.server.address().port}`;
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }

  #take({ data: { notices } }) {
    for (const notice of notices) {
      const { id, type, n, partition, log, data } = notice;
      const known = this.notices.get(id);
      if (known) {
        known.count += 1;
        const same = JSON.stringify(known.notice) === JSON.stringify(notice);
        if (!same) this.wrong.push({ why: "one id, two meanings", notice, known: known.notice });
        continue;
      }
      this.notices.set(id, { count: 1, notice });
      this.arrivals.push({ at: Date.now(), type, n, partition, log, data });
      if (type === "log.reset") {
        this.resets += 1;
      } else if (id.endsWith("-1")) {
        this.open.set(data.stay, { type, topic: data.topic, user: data.user });
      } else if (!this.open.delete(data.stay)) {
        this.wrong.push({ why: "an end without a start", notice });
      }
    }
  }

  count(type, from = 0) {
    return this.arrivals.filter((it) => it.type === type && it.at >= from).length;
  }

  /** The open stays, as sorted texts; a key must not have two. */
  get table() {
    const rows = [...this.open.values()];
    return rows.map(({ type, topic, user }) => `${type} ${topic ?? ""} ${user ?? ""}`).sort();
  }

  get repeated() {
    return [...this.notices.values()].reduce((sum, { count }) => sum + count - 1, 0);
  }
}

const base64 = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

function token(user) {
  const text = `${base64({ alg: "HS256", typ: "JWT" })}.${base64({ sub: user, exp: 4e9 })}`;
  return `${text}.${createHmac("sha256", KEY).update(text).digest("base64url")}`;
}

/** A user in one topic, with a socket as simple as one can be. */
export class User {
  constructor(name, topic) {
    Object.assign(this, { name, topic, token: token(name) });
  }

  /** Joins; resolves when the server has let it in. */
  async join(port) {
    const url = `ws://127.0.0.1:${port}/socket/websocket?vsn=2.0.0&token=${this.token}`;
    const socket = new WebSocket(url, { perMessageDeflate: false });
    this.socket = socket;
    socket.on("error", () => {});
    await within(once(socket, "open"), `connection of ${this.name}`, 60_000);
    socket.send(JSON.stringify(["1", "1", this.topic, "phx_join", {}]));
    const [reply] = await within(once(socket, "message"), `join of ${this.name}`, 60_000);
    const [, , , event, { status }] = JSON.parse(reply);
    if (event !== "phx_reply" || status !== "ok") throw new Error(`${this.name}: ${reply}`);
    this.beat ??= setInterval(() => {
      if (this.socket.readyState === WebSocket.OPEN) {
        this.socket.send('[null,"2","phoenix","heartbeat",{}]');
      }
    }, 25_000 + Math.random() * 5_000).unref();
  }

  /** Vanishes without a close frame. */
  cut() {
    this.socket.terminate();
  }

  leave() {
    this.socket.close(1000);
  }
}

/** Has all join, some at a time. */
export async function joinAll(users, portOf, atOnce = 200) {
  const left = [...users.entries()].reverse();
  const worker = async () => {
    while (left.length > 0) {
      const [index, user] = left.pop();
      await user.join(portOf(user, index));
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
}

/** Nodes of a cluster, or one server with its log in `state_dir`. */
export class Nodes {
  nodes = [];

  static async start(t, options) {
    const { count, backEnd, broker, prefix, settings = "", hook = "", users, without } = options;
    const directory = await mkdtemp(path.join(tmpdir(), "simurgh-notices-"));
    const all = new Nodes();
    t.after(async () => {
      await Promise.all(all.nodes.map((node) => node.kill()));
      await rm(directory, { recursive: true });
    });
    backEnd.nodes = all;
    Object.assign(all, { directory, backEnd, broker, prefix, settings, hook, users, without });
    for (let index = 0; index < count; index += 1) await all.run(index);
    return all;
  }

  /** Starts a node, or starts it again after its end, at the same port. */
  async run(index, args = []) {
    const file = path.join(this.directory, `${index}.toml`);
    const cluster = this.broker && `
[cluster]
engine = "nats"
servers = ["${this.broker.url}"]
prefix = "${this.prefix}"
name = "n${index}"
required = "20s"
presence_down = "6s"
secret_env = "CLUSTER_SECRET"`;
    await writeFile(file, `
${this.broker ? "" : `state_dir = "${this.directory}"`}
max_connections = ${(this.users ?? 1_000) + 1_000}
${this.settings}
[token]
kind = "jwt"
key_env = "TOKEN_KEY"
algorithms = ["HS256"]
[[channel]]
topic = "rooms:*"
${this.without === index ? "" : `[[hook]]
name = "app"
url = "${this.backEnd.url}"
notices = ["member.joined", "member.left", "topic.occupied", "topic.vacated"]
${this.hook}`}
${cluster ?? ""}
`);
    const env = { TOKEN_KEY: KEY, CLUSTER_SECRET, SIMURGH_API_TOKEN: API_TOKEN };
    const port = this.nodes[index]?.port ?? 0;
    this.nodes[index] =
      await startProcess("serve", { port, args: ["--config", file, ...args], env });
    return this.nodes[index];
  }

  async get(pathAndQuery, index = 0) {
    const headers = { authorization: `Bearer ${API_TOKEN}` };
    const response = await fetch(`${this.nodes[index].url}/api/${pathAndQuery}`, { headers });
    const body = await response.json();
    if (!response.ok) throw new Error(JSON.stringify(body));
    return body;
  }

  async post(pathOf, body, index = 0) {
    const headers = { authorization: `Bearer ${API_TOKEN}`, "content-type": "application/json" };
    const options = { method: "POST", headers, body: JSON.stringify(body) };
    return await (await fetch(`${this.nodes[index].url}/api/${pathOf}`, options)).json();
  }
}

/** What the table must have. */
export function expected(users) {
  const rows = new Set();
  for (const { name, topic } of users) {
    rows.add(`member.joined ${topic} ${name}`);
    rows.add(`topic.occupied ${topic} `);
  }
  return [...rows].sort();
}

/** The difference of two sorted lists, for messages; "" if there is none. */
export function difference(wanted, found) {
  const [some, other] = [new Set(wanted), new Set(found)];
  const missing = wanted.filter((row) => !other.has(row));
  const extra = found.filter((row) => !some.has(row));
  const twice = found.filter((row, at) => found[at - 1] === row);
  const counts = [["missing", missing], ["extra", extra], ["twice", twice]];
  const shown = counts.filter(([, rows]) => rows.length > 0);
  return shown.map(([name, rows]) => `${rows.length} ${name}: ${rows.slice(0, 3)}`).join("; ");
}

/** Resolves when the table is as wanted; rejects with the difference after `ms`. */
export async function agrees(backEnd, users, ms = 60_000) {
  const wanted = expected(users);
  try {
    await until(() => backEnd.table.length === wanted.length
      && difference(wanted, backEnd.table) === "", "the table", ms);
  } catch (error) {
    const output = backEnd.nodes.nodes.map((node) => node.output.slice(-2_000)).join("\n");
    throw new Error(`${error.message}: ${difference(wanted, backEnd.table)}\n${output}`);
  }
}

/**
 * `runs` times, one of three nodes is killed: `members` users are on it, in `topics` topics, and
 * three of ten return elsewhere. Others, on the other nodes, are in some of the topics, too.
 * Returns a row for each run.
 */
export async function killNodes(t, { broker, members, topics, runs, report, downMs = 6_000 }) {
  const backEnd = await BackEnd.start();
  t.after(() => backEnd.close());
  const prefix = `notices-${process.pid}-${members}`;
  const nodes = await Nodes.start(t, { count: 3, backEnd, broker, prefix, users: members * 2 });
  const portOf = (index) => () => nodes.nodes[index].port;
  // Returning users are in the first three fifths of the topics, half of each topic's.
  const home = Array.from({ length: members }, (_, n) => new User(`u${n}`, `rooms:${n % topics}`));
  const returns = ({ topic, name }) =>
    Number(topic.slice(6)) < topics * 0.6 && Math.floor(Number(name.slice(1)) / topics) % 2 === 0;
  const others = Array.from({ length: Math.floor(topics / 5) }, (_, n) =>
    new User(`other${n}`, `rooms:${n}`));
  const rows = [];
  t.after(() => { for (const user of [...home, ...others]) clearInterval(user.beat); });
  for (let run = 1; run <= runs; run += 1) {
    const victim = (run - 1) % 3;
    const [next, third] = [(victim + 1) % 3, (victim + 2) % 3];
    for (const user of [...home, ...others]) user.socket?.close(1000);
    await agrees(backEnd, []);
    await joinAll(home, portOf(victim));
    await joinAll(others, portOf(third));
    await agrees(backEnd, [...home, ...others]);
    await pause(1_000);
    const back = home.filter(returns);
    const gone = home.filter((user) => !returns(user));
    const { repeated, resets, wrong: { length: wrong } } = backEnd;
    const before = { repeated, wrong, resets };
    const coordinated = await metric(nodes.nodes[victim], "simurgh_lifecycle_partitions");
    const killedAt = Date.now();
    await nodes.nodes[victim].kill();
    await joinAll(back, portOf(next));
    const returnedAt = Date.now();
    const staying = [...back, ...others];
    await agrees(backEnd, staying).catch((error) => { rows.error = error.message; });
    const ends = backEnd.arrivals.filter(({ at }) => at >= killedAt);
    const lastMs = Math.max(0, ...ends.map(({ at }) => at - killedAt));
    // Nothing may follow.
    await pause(3_000);
    const after = backEnd.arrivals.filter(({ at }) => at >= killedAt);
    const count = (type) => after.filter((it) => it.type === type).length;
    const occupied = new Set(staying.map(({ topic }) => topic));
    const due = {
      left: gone.length,
      vacated: new Set(gone.map(({ topic }) => topic).filter((it) => !occupied.has(it))).size,
    };
    const returned = new Set(back.map(({ name }) => name));
    const row = {
      run, coordinated,
      left: count("member.left"), vacated: count("topic.vacated"), due,
      ofReturned: after.filter(({ data }) => returned.has(data.user)).length,
      others: after.length - count("member.left") - count("topic.vacated"),
      repeated: backEnd.repeated - before.repeated,
      wrong: backEnd.wrong.length - before.wrong,
      resets: backEnd.resets - before.resets,
      returnMs: returnedAt - killedAt, lastMs,
      difference: difference(expected(staying), backEnd.table),
    };
    row.isRight = row.left === due.left && row.vacated === due.vacated && row.ofReturned === 0
      && row.others === 0 && row.wrong === 0 && row.resets === 0 && row.difference === ""
      && lastMs <= downMs + 5_000;
    rows.push(row);
    report?.(row);
    await nodes.run(victim);
  }
  return { rows, backEnd };
}

/**
 * Each of many users is away for `awayMs`, all within `overMs`. Returns how long the longest was
 * away, and how many notices came of it.
 */
export async function cutAll(t, { count, topics, awayMs, overMs }) {
  const backEnd = await BackEnd.start();
  t.after(() => backEnd.close());
  const nodes = await Nodes.start(t, { count: 1, backEnd, users: count });
  const [{ port }] = nodes.nodes;
  const users = Array.from({ length: count }, (_, n) => new User(`u${n}`, `rooms:${n % topics}`));
  t.after(() => { for (const user of users) clearInterval(user.beat); });
  await joinAll(users, () => port);
  await agrees(backEnd, users);
  await pause(1_000);
  const before = backEnd.arrivals.length;
  let longestMs = 0;
  await Promise.all(users.map(async (user, n) => {
    await pause(n / count * overMs);
    const begun = Date.now();
    user.cut();
    await pause(awayMs);
    await user.join(port);
    longestMs = Math.max(longestMs, Date.now() - begun);
  }));
  await pause(10_000);
  return { longestMs, notices: backEnd.arrivals.length - before };
}

/**
 * `count` sockets with `topics` topics each leave at once. Returns how many ends were decided and
 * delivered, in how long, and the server's CPU time of that, in microseconds for each.
 */
export async function rate(t, { count, topics }) {
  const backEnd = await BackEnd.start();
  t.after(() => backEnd.close());
  const hook = 'leave_grace = "5s"\ndelivery = { batch = 1000 }';
  const nodes = await Nodes.start(t, { count: 1, backEnd, hook, users: count });
  const [server] = nodes.nodes;
  const users = Array.from({ length: count }, (_, n) => new User(`u${n}`, "rooms:0"));
  t.after(() => { for (const user of users) clearInterval(user.beat); });
  await joinAll(users, () => server.port, 50);
  for (const user of users) {
    for (let n = 1; n < topics; n += 1) {
      user.socket.send(JSON.stringify([`${n}`, `${n}`, `rooms:${n}`, "phx_join", {}]));
    }
    if (Number(user.name.slice(1)) % 20 === 0) await pause(20);
  }
  const ends = count * topics;
  await until(() => backEnd.count("member.joined") === ends, "joins", 120_000);
  await pause(2_000);
  for (const user of users) user.socket.terminate();
  await pause(2_500);
  const cpu = async () => {
    const text = await readFile(`/proc/${server.child.pid}/stat`, "utf8");
    const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return (Number(fields[11]) + Number(fields[12])) * 10_000;
  };
  const cpuBefore = await cpu();
  const left = () => backEnd.arrivals.filter(({ type }) => type === "member.left");
  await until(() => backEnd.open.size === 0, "ends", 120_000);
  const cpuUs = await cpu() - cpuBefore;
  const at = left().map((it) => it.at);
  const seconds = (Math.max(...at.slice(-1)) - at[0]) / 1_000;
  const all = ends + topics;
  const [perSecond, { wrong }] = [all / seconds, backEnd];
  return { notices: all, seconds, perSecond, cpuUs: cpuUs / all, wrong };
}

/** The value of a metric without labels. */
export async function metric({ url }, name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(new RegExp(`^${name} (.*)$`, "m").exec(text)?.[1]);
}
