// Shared parts of the history tests: a server with histories, clients that resume, and a proxy that
// cuts connections at random bytes.

import { mkdtemp, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { test as nodeTest } from "node:test";

import { resumable } from "../../clients/js/simurgh-resume.js";
import { answer } from "./clients.mjs";
import { NO_KEEPER } from "./broker.mjs";
import { NODES, startServer } from "./server.mjs";
import { Inbox, within } from "./wait.mjs";

const EVENTS = `
other_events = "crash"
payload_shape = "any"
[[channel.event]]
name = "msg"
broadcast = "all"
reply = {}
[[channel.event]]
name = "echo"
reply = "$payload"
[[channel.event]]
name = "tell"
broadcast = "others"
reply = {}
`;

/**
 * Channels by their history: enough for every test, the usual, three messages, five at
 * the first join, one second, none. In
 * `any` members may send all events.
 */
const SETTINGS = `
longpoll = "10s"
[[channel]]
topic = "kept:*"
history = { count = 5000, age = "10m", bytes = "16MiB" }
${EVENTS}
[[channel]]
topic = "usual:*"
history = true
${EVENTS}
[[channel]]
topic = "three:*"
history = { count = 3 }
${EVENTS}
[[channel]]
topic = "shown:*"
history = { on_join = 5 }
${EVENTS}
[[channel]]
topic = "second:*"
history = { age = "1s" }
${EVENTS}
[[channel]]
topic = "none:*"
${EVENTS}
[[channel]]
topic = "any:*"
history = true
[[channel.event]]
name = "*"
broadcast = "all"
reply = {}
`;

/** The reason to skip tests of histories on these nodes; false if they run. */
export const NO_KEPT = NODES > 1 && NO_KEEPER;

/** A test of histories. */
export const test = (name, ...rest) => (
  nodeTest(name, ...NO_KEPT ? [{ skip: NO_KEPT }] : rest));

/** The API token, which reads histories. */
const API_TOKEN = "what-tests-of-histories-may-ask";

/**
 * `simurgh serve` with these channels; `end` stops it and removes its file. On several nodes
 * (server.mjs, or `nodes` of them with their own broker) the broker stores the messages, without a
 * file. Resolves to nothing if histories are not possible.
 */
export async function startKeeper({ nodes = 1 } = {}) {
  if (NO_KEPT) return undefined;
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-history-"));
  const file = path.join(dir, "simurgh.toml");
  const isCluster = nodes > 1 || NODES > 1;
  const save = isCluster ? "" : `history_save = ${JSON.stringify(path.join(dir, "history"))}\n`;
  await writeFile(file, `${save}drain_time = "1s"\n${SETTINGS}`);
  const options = { args: ["--config", file], env: { SIMURGH_API_TOKEN: API_TOKEN } };
  let server;
  if (nodes > 1) {
    const { startCluster } = await import("./cluster.mjs");
    server = await startCluster("serve", nodes, { ...options, ownBroker: true });
  } else {
    server = await startServer("serve", options);
  }
  server.end = async () => {
    await server.kill();
    await rm(dir, { recursive: true });
  };
  return server;
}

/** The stored payloads of a topic on a server (or node), by its API. */
export async function keptOf({ url }, topic) {
  const kept = [];
  let since = "";
  for (;;) {
    const query = new URLSearchParams({ topic, limit: 1_000, ...(since && { since }) });
    const response = await fetch(`${url}/api/history?${query}`, {
      headers: { authorization: `Bearer ${API_TOKEN}` },
    });
    if (response.status !== 200) throw new Error(`${response.status} ${await response.text()}`);
    const { recovered, messages } = await response.json();
    if (!recovered) throw new Error(`not all of ${topic} is known`);
    if (messages.length === 0) return kept;
    kept.push(...messages.map(({ payload }) => payload));
    since = messages.at(-1).position;
  }
}

/** A joined, resumable channel, with everything that its handlers and `onGap` received. */
export class Listener {
  constructor(user, topic, options = {}, params = {}) {
    this.heard = [];
    this.gaps = [];
    this.resumed = new Inbox();
    const onGap = (gap) => this.gaps.push(gap);
    this.channel = resumable(user.socket, topic, params, { ...options, onGap });
    this.channel.on("msg", (payload) => this.#put(payload));
    this.channel.on("tell", (payload) => this.#put(payload));
    this.channel.on("simurgh:resumed", this.resumed.put);
  }

  static async join(user, topic, options, params) {
    const listener = new Listener(user, topic, options, params);
    await answer(listener.channel.join(), `join of ${topic}`);
    return listener;
  }

  #waiting = () => {};

  /** Binary as `{n, binary: true}`: its first four bytes are the number. */
  #put(payload) {
    this.heard.push(payload instanceof ArrayBuffer
      ? { n: new DataView(payload).getUint32(0), binary: true } : payload);
    this.#waiting();
  }

  /** The received numbers, once `last` is among them. */
  async numbersTo(last, ms) {
    const has = () => this.heard.some(({ n }) => n === last);
    const heard = new Promise((resolve) => {
      this.#waiting = () => { if (has()) resolve(); };
      this.#waiting();
    });
    await within(heard, `message ${last} after ${this.heard.length} messages`, ms);
    return this.heard.map(({ n }) => n);
  }
}

/** 0, 1, … up to `last`. */
export const upTo = (last) => Array.from({ length: last + 1 }, (_, n) => n);

/** A client that sends on `topic` and ignores what it receives. */
export async function speaker(t, client, server, topic) {
  const user = await client.open(t, `${server.wsUrl}/socket`);
  const { channel } = await user.join(topic);
  return {
    user,
    channel,
    say: (payload, event = "msg") => answer(channel.push(event, payload), "reply to a message"),
  };
}

/** As the client's binary messages in these tests: a number of four bytes. */
export function binary(n) {
  const bytes = new ArrayBuffer(4);
  new DataView(bytes).setUint32(0, n);
  return bytes;
}

/** Random numbers that are the same for a seed (mulberry32). */
export function random(seed) {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

/**
 * A proxy before the server. While `cutting`, it cuts every connection after some bytes from the
 * server, also in the middle of frames: half of them by a reset, which loses data in transit, half
 * by an end of the stream. `cuts` counts them.
 */
export async function cuttingProxy(t, server, seed, { bytesMin, bytesMax }) {
  const below = random(seed);
  const sockets = new Set();
  const state = { cutting: false, cuts: 0 };
  const proxy = net.createServer((client) => {
    const upstream = net.connect(server.port, "127.0.0.1");
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    let left = bytesMin + below(bytesMax - bytesMin);
    client.pipe(upstream);
    upstream.on("data", (data) => {
      if (!state.cutting || data.length < left) {
        if (state.cutting) left -= data.length;
        client.write(data);
        return;
      }
      state.cuts += 1;
      upstream.removeAllListeners("data");
      upstream.destroy();
      client.write(data.subarray(0, left));
      if (below(2) === 0) client.end();
      else client.resetAndDestroy();
    });
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    proxy.close();
  });
  state.wsUrl = `ws://127.0.0.1:${proxy.address().port}`;
  return state;
}
