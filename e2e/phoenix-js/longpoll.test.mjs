// The official client's LongPoll, and its fallback from WebSocket to it, unmodified.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import net from "node:net";
import { after, before, describe, test } from "node:test";

import WebSocket from "ws";

import { Refused, answer } from "../support/clients.mjs";
import { startServer } from "../support/server.mjs";
import { Inbox, within } from "../support/wait.mjs";

const { LongPoll, Socket } = createRequire(import.meta.url)("phoenix");

let server;
before(async () => { server = await startServer("conformance"); });
after(async () => { await server?.kill(); });

const PACE = { reconnectAfterMs: () => 50, rejoinAfterMs: () => 50 };

/** A socket that is closed after the test; not yet connected. */
function socketOf(t, path, options = {}) {
  const socket = new Socket(`${server.wsUrl}${path}`, { ...PACE, transport: LongPoll, ...options });
  t.after(() => {
    socket.disconnect();
    socket.reconnectTimer.reset();
    for (const channel of socket.channels) channel.rejoinTimer.reset();
  });
  return socket;
}

async function open(t, path = "/socket", options = {}) {
  const socket = socketOf(t, path, options);
  const opened = new Promise((resolve) => socket.onOpen(resolve));
  socket.connect();
  await within(opened, `open socket at ${path}`);
  return socket;
}

async function join(socket, topic, payload = {}) {
  const channel = socket.channel(topic, payload);
  await answer(channel.join(), `join of ${topic}`);
  return channel;
}

describe("phoenix 1.8 over LongPoll", () => {
  test("joins, pushes and is refused", async (t) => {
    const socket = await open(t);
    const channel = await join(socket, "test:poll");
    const payload = { text: "\"quoted\" \\ ☃ 🦜", list: [1, null] };
    assert.deepEqual(await answer(channel.push("echo", payload)), payload);
    const who = await answer(channel.push("whoami", {}));
    assert.equal(who.transport, "longpoll");
    const refused = socket.channel("test:error", { reason: "full" });
    await assert.rejects(answer(refused.join()), (error) =>
      error instanceof Refused && error.response.reason === "full");
    refused.rejoinTimer.reset();
  });

  test("receives broadcasts of others, in order", async (t) => {
    const [alice, bob] = [await open(t), await open(t)];
    const heard = new Inbox();
    (await join(alice, "test:order")).on("news", (payload) => heard.put(payload.n));
    const channel = await join(bob, "test:order");
    for (let n = 0; n < 250; n++) channel.push("bcast", { n });
    for (let n = 0; n < 250; n++) assert.equal(await heard.next(`broadcast ${n}`), n);
  });

  test("pushes binary and text", async (t) => {
    const socket = await open(t);
    const channel = await join(socket, "test:binary");
    channel.push("noreply", new Uint8Array([0, 255, 7]).buffer);
    assert.deepEqual(await answer(channel.push("echo", { n: 1 })), { n: 1 });
  });

  test("passes its auth token to connect", async (t) => {
    const socket = await open(t, "/socket", { authToken: "s3cret" });
    const channel = await join(socket, "test:auth");
    assert.equal((await answer(channel.push("whoami", {}))).auth, "s3cret");
  });

  test("does not return if it is refused", async (t) => {
    const socket = socketOf(t, "/socket", { params: { reject: "true" } });
    const closed = new Promise((resolve) => socket.onClose(resolve));
    socket.connect();
    assert.equal((await within(closed, "a close")).code, 1008);
  });

  test("survives many poll windows without a message", async (t) => {
    const socket = await open(t, "/short");
    const channel = await join(socket, "test:quiet");
    let closes = 0;
    socket.onClose(() => { closes += 1; });
    await new Promise((resolve) => setTimeout(resolve, 5_000));
    assert.deepEqual(await answer(channel.push("echo", { n: 1 })), { n: 1 });
    assert.equal(closes, 0);
  });

  test("reconnects and rejoins after its session ended", async (t) => {
    const socket = await open(t, "/socket", { params: { user_id: "poll-7" } });
    const channel = await join(socket, "test:back");
    const again = new Promise((resolve) => socket.onOpen(resolve));
    const other = await join(await open(t), "test:other");
    other.push("disconnect_me", { id: "user_sockets:poll-7" });
    await within(again, "a second session");
    assert.deepEqual(await answer(channel.push("echo", { n: 2 })), { n: 2 });
  });
});

describe("phoenix 1.8 falls back to LongPoll", () => {
  test("if no WebSocket gets through", async (t) => {
    // A proxy that lets no upgrade through, as some in offices do.
    const proxy = net.createServer((client) => {
      const upstream = net.connect(server.port, "127.0.0.1");
      client.on("error", () => upstream.destroy());
      upstream.on("error", () => client.destroy());
      client.once("data", (head) => {
        if (/upgrade: *websocket/i.test(head.toString("latin1"))) {
          client.end("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
          return upstream.destroy();
        }
        upstream.write(head);
        client.pipe(upstream).pipe(client);
      });
    });
    await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    t.after(() => proxy.close());
    const stored = new Map();
    const socket = new Socket(`ws://127.0.0.1:${proxy.address().port}/socket`, {
      ...PACE,
      transport: WebSocket,
      longPollFallbackMs: 2_000,
      sessionStorage: {
        getItem: (key) => stored.get(key) ?? null,
        setItem: (key, value) => { stored.set(key, value); },
      },
    });
    t.after(() => { socket.disconnect(); socket.reconnectTimer.reset(); });
    socket.connect();
    const channel = await join(socket, "test:fallback");
    assert.equal((await answer(channel.push("whoami", {}))).transport, "longpoll");
    assert.deepEqual([...stored], [["phx:fallback:LongPoll", "true"]]);
  });

  test("but not if one does", async (t) => {
    const socket = socketOf(t, "/socket", { transport: WebSocket, longPollFallbackMs: 30_000 });
    socket.connect();
    const channel = await join(socket, "test:primary");
    assert.equal((await answer(channel.push("whoami", {}))).transport, "websocket");
  });
});
