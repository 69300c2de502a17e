// The official clients as tests use them: the current one (V2) and 1.2.1 (V1, from 2016, which
// knows neither Node nor a WebSocket of its own); where versions between matter, 1.4.17 (V2, before
// there was binary). All get `ws` as transport, through a subclass that keeps every frame, so a
// test can also hold the bytes against the specification.

import { createRequire } from "node:module";

import WebSocket from "ws";

import { Inbox, within } from "./wait.mjs";

const require = createRequire(import.meta.url);
const current = require("phoenix");
const middle = require("phoenix-1.4.17");
const first = require("phoenix-1.2.1");

/** Short reconnect and rejoin times; the clients' defaults take seconds. */
const CURRENT_PACE = { reconnectAfterMs: () => 50, rejoinAfterMs: () => 50 };

/**
 * 1.2.1 repeats a join at the second of these paces until it has a reply. In V1 it cannot know that
 * a phx_close is for an earlier one of these joins, so a reply has enough time to arrive. (A join
 * may wait two seconds for a broker.) The first one finds the socket connected again.
 */
const FIRST_PACE = {
  reconnectAfterMs: () => 50,
  rejoinAfterMs: (tries) => (tries > 1 ? 2_500 : 300),
};

function recorder(options) {
  const frames = { sent: [], received: [], sockets: [] };
  class Recording extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols?.length ? protocols : undefined, options);
      frames.sockets.push(this);
      this.on("message", (data, binary) => {
        frames.received.push(binary ? data : JSON.parse(data.toString()));
      });
    }

    send(data, ...rest) {
      frames.sent.push(typeof data === "string" ? JSON.parse(data) : Buffer.from(data));
      super.send(data, ...rest);
    }
  }
  return { Recording, frames };
}

/** One of the clients; `open` gives a connected `User`. */
class Client {
  constructor(name, library, version, pace) {
    this.name = name;
    this.library = library;
    this.version = version;
    this.pace = pace;
  }

  /**
   * `headers` are those that a browser adds to the upgrade by itself, such as cookies; `ca` is a
   * certificate to trust.
   */
  socket(url, { headers = {}, ca, ...options } = {}) {
    const { Recording, frames } = recorder({ headers, ca });
    const all = { ...this.pace, transport: Recording, ...options };
    const socket = new this.library.Socket(url, all);
    // It has no such option: its channels take their pace from the socket.
    if (this.library === first) socket.reconnectAfterMs = all.rejoinAfterMs;
    return new User(this, socket, frames);
  }

  async open(t, url, options) {
    const user = this.socket(url, options);
    t.after(() => user.close());
    const opened = new Promise((resolve) => user.socket.onOpen(resolve));
    user.socket.connect();
    await within(opened, `open socket at ${url}`);
    return user;
  }
}

/** A connected client in a test. */
class User {
  constructor(client, socket, frames) {
    this.client = client;
    this.socket = socket;
    this.frames = frames;
  }

  /** Joins and resolves to `{channel, response}`; a refusal rejects with its payload. */
  async join(topic, payload = {}) {
    const channel = this.socket.channel(topic, payload);
    return { channel, response: await answer(channel.join(), `join of ${topic}`) };
  }

  /** An inbox for events of a channel; each value is `{event, payload}`. */
  listen(channel, ...events) {
    const inbox = new Inbox();
    for (const event of events) {
      channel.on(event, (payload) => inbox.put({ event, payload }));
    }
    return inbox;
  }

  close() {
    this.socket.disconnect();
    // Clients leave timers running after a disconnect; 1.2.1 even sends heartbeats.
    clearInterval(this.socket.heartbeatTimer);
    clearTimeout(this.socket.heartbeatTimeoutTimer);
    this.socket.reconnectTimer.reset();
    for (const channel of this.socket.channels) channel.rejoinTimer.reset();
    for (const socket of this.frames.sockets) socket.terminate();
  }
}

/** The payload of a refusal. */
export class Refused extends Error {
  constructor(status, response) {
    super(`${status}: ${JSON.stringify(response)}`);
    this.status = status;
    this.response = response;
  }
}

/** Resolves to the response of an `ok` reply and rejects on every other outcome. */
export async function answer(push, what = "reply", statuses = ["error"]) {
  return await within(new Promise((resolve, reject) => {
    push.receive("ok", resolve);
    push.receive("timeout", () => reject(new Error(`the client gave up on the ${what}`)));
    for (const status of statuses) {
      push.receive(status, (response) => reject(new Refused(status, response)));
    }
  }), what);
}

export const CURRENT = new Client("phoenix 1.8 (V2)", current, 2, CURRENT_PACE);
export const FIRST = new Client("phoenix 1.2.1 (V1)", first, 1, FIRST_PACE);
export const MIDDLE = new Client("phoenix 1.4.17 (V2)", middle, 2, CURRENT_PACE);
export const CLIENTS = [CURRENT, FIRST];
