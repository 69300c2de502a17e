// Many clients that behave as phoenix.js does, in a process of their own (crowd.mjs): they
// reconnect at its pace, and join with their position.

import net from "node:net";
import { performance } from "node:perf_hooks";

/** phoenix.js' default waits before an attempt. */
const PACE_MS = [10, 50, 100, 150, 200, 250, 500, 1_000, 2_000];
const POSITION = /^[a-z][0-9a-z]{5}\.\d+(-\d+)?$/;
const HEARTBEAT_MS = 30_000;
const PATH = "/socket/websocket?vsn=2.0.0";
/** Clients that connect for the first time at once. */
const CONNECTING_MAX = 100;

/** What a client notices after it has lost a connection to `place`, in ms since 1970. */
class Move {
  from = now();
  to = null;
  failures = [];
  missing = 0;
  repeated = 0;
  /** Messages that it had missed, and received by its history. */
  resumed = 0;
  gaps = [];

  constructor(place) {
    this.place = place;
  }
}

/** One of these servers: its port, and how moves from it are counted. */
export function choose({ ports, name }) {
  const port = ports[Math.floor(Math.random() * ports.length)];
  return { port, place: String(name ?? port) };
}

/** All moves of a client in one topic, whose messages are numbered without a gap. */
export class Log {
  moves = [new Move("start")];
  /** Of the connection, while there is one. */
  place = null;
  /** The last received number. */
  last = null;

  /** Returns the port to connect to. */
  choose(servers) {
    const { port, place } = choose(servers);
    this.place = place;
    return port;
  }

  lost() {
    if (this.isBack) this.moves.push(new Move(this.place));
    this.place = null;
  }

  back() {
    this.#now.to ??= now();
  }

  failed(why) {
    this.#now.failures.push(why);
  }

  gap(reason) {
    this.#now.gaps.push(reason);
  }

  resumed(count) {
    this.#now.resumed += count;
  }

  message(n) {
    const before = this.last ?? n - 1;
    if (n <= before) this.#now.repeated += 1;
    else [this.#now.missing, this.last] = [this.#now.missing + n - before - 1, n];
  }

  get isBack() {
    return this.#now.to !== null;
  }

  get #now() {
    return this.moves.at(-1);
  }
}

/** The moves of all clients by the place that they left. */
export function summary(logs) {
  const rows = {};
  for (const move of logs.flatMap(({ moves }) => moves)) {
    const row = rows[move.place] ??= {
      away: [], backAt: 0, notBack: 0, failures: [], missing: 0, untold: 0, repeated: 0,
      resumed: 0, gaps: [],
    };
    if (move.to === null) row.notBack += 1;
    else row.away.push(Math.round(move.to - move.from));
    row.backAt = Math.max(row.backAt, move.to);
    row.failures.push(...move.failures);
    row.gaps.push(...move.gaps);
    row.missing += move.missing;
    if (move.gaps.length === 0) row.untold += move.missing;
    row.repeated += move.repeated;
    row.resumed += move.resumed;
  }
  return rows;
}

/** Whether all clients have left a place, and are back elsewhere. */
export const haveLeft = (logs, place) => (
  logs.every((log) => log.isBack && log.place !== place));

/** How many messages before this one clients have not received at the end. */
export const behind = (logs, last) => (
  logs.reduce((total, log) => total + Math.max(0, last - (log.last ?? -1)), 0));

export const now = () => performance.timeOrigin + performance.now();

/**
 * A WebSocket with as little work as possible: `ws` takes 0.4 ms for a handshake, and thousands of
 * clients reconnect within seconds. Takes short texts and a close, as this server sends them.
 */
class Connection {
  #socket;
  #rest = Buffer.alloc(0);
  #isOpen = false;
  #isClosing = false;

  constructor({ port, localAddress }, on) {
    this.on = on;
    const host = "127.0.0.1";
    this.#socket = net.connect({ port, host, localAddress, noDelay: true }, () => {
      this.#socket.write(`GET ${PATH} HTTP/1.1\r\nhost: ${host}:${port}\r\n`
        + "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        + "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    });
    this.#socket.on("data", (data) => this.#take(data));
    this.#socket.on("error", (error) => on.failed(error.code ?? error.message));
    this.#socket.on("close", on.closed);
  }

  #take(data) {
    let all = this.#rest.length > 0 ? Buffer.concat([this.#rest, data]) : data;
    if (!this.#isOpen) {
      const end = all.indexOf("\r\n\r\n");
      if (end >= 0) {
        const status = all.toString("latin1", 9, 12);
        if (status !== "101") this.on.failed(status);
        [this.#isOpen, all] = [true, all.subarray(end + 4)];
        this.on.opened();
      }
    }
    while (this.#isOpen && all.length >= 2) {
      const [first, short] = all;
      const start = short === 126 ? 4 : 2;
      if (all.length < start) break;
      const end = start + (short === 126 ? all.readUInt16BE(2) : short);
      if (short === 127) this.on.failed("a frame is too long");
      if (all.length < end) break;
      if (first === 0x81) this.on.message(all.toString("utf8", start, end));
      else if (first === 0x88) {
        // The server closes the connection then, and would reset it if more came.
        this.#write(0x88, all.subarray(start, start + 2));
        this.#isClosing = true;
      }
      all = all.subarray(end);
    }
    this.#rest = all;
  }

  send(text) {
    if (this.#isOpen && !this.#isClosing) this.#write(0x81, Buffer.from(text));
  }

  /** A mask of zeros leaves the payload as it is. */
  #write(first, payload) {
    const head = payload.length < 126 ? [first, 0x80 | payload.length]
      : [first, 0x80 | 126, payload.length >> 8, payload.length & 255];
    this.#socket.write(Buffer.concat([Buffer.from([...head, 0, 0, 0, 0]), payload]));
  }
}

let servers;

class Client {
  log = new Log();
  since = null;
  tries = 0;

  constructor(topic, presence, localAddress) {
    Object.assign(this, { topic, presence, localAddress });
  }

  connect() {
    const { log, localAddress } = this;
    this.connection = new Connection({ port: log.choose(servers), localAddress }, {
      opened: () => {
        const params = { presence: this.presence, simurgh: { since: this.since } };
        this.connection.send(JSON.stringify(["1", "1", this.topic, "phx_join", params]));
      },
      message: (text) => this.#take(JSON.parse(text)),
      failed: (why) => log.failed(why),
      closed: () => {
        log.lost();
        this.tries += 1;
        setTimeout(() => this.connect(), PACE_MS[Math.min(this.tries, PACE_MS.length) - 1]);
      },
    });
    return new Promise((resolve) => { this.joined = resolve; });
  }

  #take([, ref, topic, event, payload]) {
    if (topic !== this.topic) return;
    if (event === "msg") this.log.message(payload.n);
    if (event === "phx_reply" && payload.status !== "ok") this.log.failed(payload.response.reason);
    else if (event === "phx_reply") {
      this.tries = 0;
      this.log.back();
      this.joined();
    } else if (POSITION.test(ref)) this.since = ref;
    if (event === "simurgh:resumed") this.log.resumed(payload.count);
    if (payload.recovered === false) this.log.gap(payload.reason);
  }

  beat() {
    this.connection.send(JSON.stringify([null, "hb", "phoenix", "heartbeat", {}]));
  }
}

let clients = [];
let logs = [];

async function connect({ topics, count, isListed }) {
  // More addresses have more ports.
  clients = Array.from({ length: count }, (_, n) => {
    const presence = isListed ? `${process.pid}-${n}` : undefined;
    return new Client(topics[n % topics.length], presence, `127.0.0.${2 + n % 8}`);
  });
  logs = clients.map(({ log }) => log);
  let next = 0;
  const turns = Array.from({ length: CONNECTING_MAX }, async () => {
    while (next < count) await clients[next++].connect();
  });
  await Promise.all(turns);
  const each = HEARTBEAT_MS / count;
  let at = 0;
  let due = now();
  setInterval(() => {
    for (; due < now(); due += each) clients[at++ % count].beat();
  }, 100);
}

const HANDLERS = {
  connect,
  use: (given) => { servers = given; },
  haveLeft: (place) => haveLeft(logs, place),
  behind: (last) => behind(logs, last),
  summary: () => summary(logs),
};

if (process.send) {
  process.on("message", async ({ id, name, options }) => {
    process.send({ id, result: await HANDLERS[name](options) });
  });
}
