// Many clients that behave as phoenix.js does, in a process of their own (takeover.mjs): they
// reconnect at its pace, and join with their position. The parent sends {connect}, {cut} before
// each take-over and {report} after it.

import net from "node:net";
import { performance } from "node:perf_hooks";

/** phoenix.js' default waits before an attempt. */
const PACE_MS = [10, 50, 100, 150, 200, 250, 500, 1_000, 2_000];
const POSITION = /^[a-z][0-9a-z]{5}\.\d+(-\d+)?$/;
const HEARTBEAT_MS = 30_000;
/** Clients that connect for the first time at once. */
const CONNECTING_MAX = 100;

/** The messages of one topic that a client received, numbered without a gap from any number. */
export class Numbers {
  last = null;
  missing = 0;
  repeated = 0;

  put(n) {
    if (this.last !== null && n <= this.last) this.repeated += 1;
    else {
      if (this.last !== null) this.missing += n - this.last - 1;
      this.last = n;
    }
  }
}

/** When connections were lost, and when they were back, in ms since 1970. */
export class Absence {
  from = null;
  to = null;

  begin() {
    if (this.from === null || this.to !== null) [this.from, this.to] = [now(), null];
  }

  end() {
    if (this.from !== null) this.to ??= now();
  }

  get isOver() {
    return this.to !== null;
  }
}

export const now = () => performance.timeOrigin + performance.now();

/**
 * A WebSocket with as little work as possible: `ws` takes 0.4 ms for a handshake, and thousands of
 * clients reconnect within seconds. Takes short texts and a close, as this server sends them.
 */
class Connection {
  #socket;
  #rest = Buffer.alloc(0);
  #isOpen = false;

  constructor({ port, path, localAddress }, on) {
    this.on = on;
    const host = "127.0.0.1";
    this.#socket = net.connect({ port, host, localAddress, noDelay: true }, () => {
      this.#socket.write(`GET ${path} HTTP/1.1\r\nhost: ${host}:${port}\r\n`
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
      // Its own close frame, after which the server closes the connection.
      else if (first === 0x88) this.#write(0x88, all.subarray(start, start + 2));
      all = all.subarray(end);
    }
    this.#rest = all;
  }

  send(text) {
    if (this.#isOpen) this.#write(0x81, Buffer.from(text));
  }

  /** A mask of zeros leaves the payload as it is. */
  #write(first, payload) {
    const head = payload.length < 126 ? [first, 0x80 | payload.length]
      : [first, 0x80 | 126, payload.length >> 8, payload.length & 255];
    this.#socket.write(Buffer.concat([Buffer.from([...head, 0, 0, 0, 0]), payload]));
  }
}

class Client {
  numbers = new Numbers();
  absence = new Absence();
  failures = [];
  gaps = [];
  since = null;
  tries = 0;

  constructor(to, topic) {
    Object.assign(this, { to, topic });
  }

  connect() {
    this.connection = new Connection(this.to, {
      opened: () => {
        const params = { simurgh: { since: this.since } };
        this.connection.send(JSON.stringify(["1", "1", this.topic, "phx_join", params]));
      },
      message: (text) => this.#take(JSON.parse(text)),
      failed: (why) => this.failures.push(why),
      closed: () => {
        this.absence.begin();
        this.tries += 1;
        setTimeout(() => this.connect(), PACE_MS[Math.min(this.tries, PACE_MS.length) - 1]);
      },
    });
    return new Promise((resolve) => { this.joined = resolve; });
  }

  #take([, ref, topic, event, payload]) {
    if (topic !== this.topic) return;
    if (event === "msg") this.numbers.put(payload.n);
    if (event === "phx_reply" && payload.status !== "ok") this.failures.push(payload.response);
    else if (event === "phx_reply") {
      this.tries = 0;
      this.absence.end();
      this.joined();
    } else if (POSITION.test(ref)) this.since = ref;
    if (payload.recovered === false) this.gaps.push(payload.reason);
  }

  beat() {
    this.connection.send(JSON.stringify([null, "hb", "phoenix", "heartbeat", {}]));
  }
}

let clients = [];

async function connect({ port, path, topics, count }) {
  // More addresses have more ports.
  clients = Array.from({ length: count }, (_, n) => new Client(
    { port, path, localAddress: `127.0.0.${2 + n % 8}` }, topics[n % topics.length],
  ));
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
  cut: () => {
    for (const client of clients) [client.absence, client.failures] = [new Absence(), []];
  },
  report: () => clients.map(({ absence, failures, numbers, gaps }) => ({
    from: absence.from, to: absence.to, failures, gaps,
    last: numbers.last, missing: numbers.missing, repeated: numbers.repeated,
  })),
  isBack: () => clients.every(({ absence }) => absence.isOver),
};

if (process.send) {
  process.on("message", async ({ id, name, options }) => {
    process.send({ id, result: await HANDLERS[name](options) });
  });
}
