// Histories on the wire: a client that does not opt in sees no difference, and what opting in adds;
// and over long polling.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, before } from "node:test";

import WebSocket from "ws";

import { CURRENT, Refused, answer } from "../support/clients.mjs";
import {
  Listener, binary, cuttingProxy, speaker, startKeeper, test, upTo,
} from "../support/history.mjs";
import { NODES } from "../support/server.mjs";
import { Inbox, until, within } from "../support/wait.mjs";

const { LongPoll, Socket } = createRequire(import.meta.url)("phoenix");
const SEED = Number(process.env.SEED ?? Date.now() % 100_000);

let server;
before(async () => { server = await startKeeper(); });
after(async () => { await server?.end(); });

/**
 * What two nodes say of a topic without history has no common order, and comes when it comes:
 * whoever is compared is on the same one.
 */
const node = () => server.nodes?.[0] ?? server;

/** A socket without a client: what comes is kept as it came. */
class Raw {
  static async open(t, vsn) {
    const raw = new Raw();
    raw.vsn = vsn;
    raw.all = [];
    raw.inbox = new Inbox();
    raw.socket = new WebSocket(`${node().wsUrl}/socket/websocket?vsn=${vsn}`);
    t.after(() => raw.socket.terminate());
    raw.socket.on("message", (data, isBinary) => {
      const bytes = Buffer.from(data);
      raw.all.push(`${isBinary ? "binary" : "text"} ${bytes.toString("latin1")}`);
      raw.inbox.put(isBinary ? bytes : JSON.parse(bytes.toString()));
    });
    await within(new Promise((resolve) => raw.socket.on("open", resolve)), "open socket");
    return raw;
  }

  send(join_ref, ref, topic, event, payload) {
    this.socket.send(JSON.stringify(this.vsn === "1.0.0"
      ? { topic, event, payload, ref, join_ref }
      : [join_ref, ref, topic, event, payload]));
  }

  /** Resolves when the message with this ref is answered. */
  async reply(ref) {
    return await this.inbox.next(`reply to ${ref}`, (it) => it.ref === ref || it[1] === ref);
  }
}

/** V2's binary push with a payload of bytes. */
function binaryPush(joinRef, ref, topic, event, payload) {
  const parts = [joinRef, ref, topic, event].map((part) => Buffer.from(part));
  return Buffer.concat([Buffer.from([0, ...parts.map((it) => it.length)]), ...parts, payload]);
}

/** All frames that a client that does not opt in gets in a life with everything in it. */
async function lifeOn(t, topic, vsn, others) {
  const [raw, other] = [await Raw.open(t, vsn), await Raw.open(t, "2.0.0")];
  raw.send("1", "1", topic, "phx_join", { user: "ada" });
  await raw.reply("1");
  other.send("1", "1", topic, "phx_join", others);
  await other.reply("1");
  other.send("1", "2", topic, "msg", { text: "\"hi\" ☃", list: [1, null, { a: {} }] });
  other.send("1", "3", topic, "tell", { n: 2 });
  await other.reply("3");
  raw.send("1", "2", topic, "msg", { n: 3 });
  raw.send("1", "3", topic, "tell", { n: 4 });
  await raw.reply("3");
  if (vsn === "2.0.0") other.socket.send(binaryPush("1", "4", topic, "msg", Buffer.from([0, 255])));
  other.send("1", "5", topic, "echo", { n: 5 });
  await other.reply("5");
  // Joined again in its place, left, and joined after that: old messages are not for it.
  raw.send("4", "4", topic, "phx_join", {});
  await raw.reply("4");
  raw.send("4", "5", topic, "phx_leave", {});
  await raw.reply("5");
  other.send("1", "6", topic, "msg", { n: 6 });
  await other.reply("6");
  raw.send("6", "6", topic, "phx_join", { simurg: { since: null } });
  await raw.reply("6");
  other.send("1", "7", topic, "msg", { n: 7 });
  await other.reply("7");
  raw.send("6", "7", topic, "no such event", {});
  await raw.inbox.next("phx_error", (it) => (it.event ?? it[3]) === "phx_error");
  raw.send(null, "8", "phoenix", "heartbeat", {});
  await raw.reply("8");
  return raw.all.map((frame) => frame.replaceAll(topic, "TOPIC"));
}

for (const vsn of ["1.0.0", "2.0.0"]) {
  for (const [who, others] of [["none", {}], ["the others", { simurgh: { id: "the-other" } }]]) {
    test(`V${vsn[0]}: byte for byte as without history when ${who} opt in`, async (t) => {
      const kept = await lifeOn(t, `kept:${vsn}${who}`, vsn, others);
      const plain = await lifeOn(t, `none:${vsn}${who}`, vsn, others);
      assert.ok(plain.length > 10, `${plain.length} frames`);
      assert.deepEqual(kept, plain);
    });
  }
}

test("opting in changes nothing in a channel without history", async (t) => {
  const frames = [];
  for (const payload of [{}, { simurgh: { since: null, id: "somebody" } }]) {
    const raw = await Raw.open(t, "2.0.0");
    const topic = `none:opted${frames.length}`;
    raw.send("1", "1", topic, "phx_join", payload);
    raw.send("1", "2", topic, "msg", { n: 1 });
    await raw.reply("2");
    raw.send(null, "3", "phoenix", "heartbeat", {});
    await raw.reply("3");
    frames.push(raw.all.map((frame) => frame.replaceAll(topic, "TOPIC")));
  }
  assert.deepEqual(frames[1], frames[0]);
});

/**
 * Positions are of one epoch, and each is behind the one before: on one node the next number, on
 * several a later one, or a later message of the same number.
 */
function assertFollow(positions) {
  const parsed = positions.map((position) => {
    const [, epoch, seq, item] = /^([a-z][0-9a-z]{5})\.(\d+)(?:-(\d+))?$/.exec(position);
    return { epoch, place: Number(seq) + Number(item ?? 0) / 1e4, isWhole: item === undefined };
  });
  const what = positions.join(" ");
  for (const [n, { epoch, place, isWhole }] of parsed.slice(1).entries()) {
    const before = parsed[n];
    assert.equal(epoch, before.epoch, what);
    assert.ok(place > before.place, what);
    if (NODES === 1) assert.ok(isWhole && place === before.place + 1, what);
  }
}

test("opting in adds a ref, and a frame before binary messages", async (t) => {
  const topic = "kept:opted";
  const [plain, opted] = [await Raw.open(t, "2.0.0"), await Raw.open(t, "2.0.0")];
  plain.send("1", "1", topic, "phx_join", {});
  opted.send("1", "1", topic, "phx_join", { simurgh: {} });
  for (const raw of [plain, opted]) await raw.reply("1");
  plain.send("1", "2", topic, "msg", { n: 1 });
  plain.socket.send(binaryPush("1", "3", topic, "msg", Buffer.from([7])));
  plain.send("1", "4", topic, "msg", { n: 3 });
  await opted.inbox.next("the last", (it) => it[4]?.n === 3);
  await plain.reply("4");
  const [reply, resumed, ...rest] = opted.all;
  assert.equal(reply, plain.all[0]);
  const positions = opted.all.map((frame) => /^text \[[^,]+,"([a-z][^"]+)"/.exec(frame)?.[1])
    .filter(Boolean);
  assert.equal(positions.length, 4);
  const at = (n) => positions[n];
  assertFollow(positions);
  assert.equal(resumed,
    `text ["1","${at(0)}","${topic}","simurgh:resumed",{"recovered":true,"count":0}]`);
  const heard = plain.all.slice(1).filter((frame) => !frame.includes("phx_reply"));
  assert.equal(heard.length, 3);
  assert.deepEqual(rest, [
    heard[0].replace("[null,null,", `[null,"${at(1)}",`),
    `text [null,"${at(2)}","${topic}","simurgh:next",{}]`,
    heard[1],
    heard[2].replace("[null,null,", `[null,"${at(3)}",`),
  ]);
});

test("a member cannot send the server's history events", async (t) => {
  const { say } = await speaker(t, CURRENT, server, "any:forged");
  const socket = await CURRENT.open(t, `${server.wsUrl}/socket`);
  const listener = await Listener.join(socket, "any:forged");
  for (const event of ["simurgh:gap", "simurgh:resumed", "simurgh:next", "simurgh:at"]) {
    const forged = say({ recovered: false, reason: "lost" }, event);
    await assert.rejects(forged, Refused, event);
  }
  // Nothing of it is on its way.
  await answer(listener.channel.push("anything", {}));
  assert.deepEqual(listener.gaps, []);
});

/** The current client over long polling at `url`. */
async function poller(t, url) {
  const socket = new Socket(`${url}/socket`, {
    transport: LongPoll, reconnectAfterMs: () => 50, rejoinAfterMs: () => 50,
  });
  t.after(() => {
    socket.disconnect();
    socket.reconnectTimer.reset();
    for (const channel of socket.channels) channel.rejoinTimer.reset();
  });
  const opened = new Promise((resolve) => socket.onOpen(resolve));
  socket.connect();
  await within(opened, "open session");
  return { socket };
}

test("long polling loses and doubles nothing if polls are cut", async (t) => {
  t.diagnostic(`SEED=${SEED}`);
  const topic = "kept:polled";
  const { say } = await speaker(t, CURRENT, server, topic);
  const proxy = await cuttingProxy(t, server, SEED, { bytesMin: 500, bytesMax: 6_000 });
  const user = await poller(t, proxy.wsUrl);
  const listener = await Listener.join(user, topic);
  proxy.cutting = true;
  const total = 600;
  for (let n = 0; n < total; n += 20) {
    await Promise.all(upTo(19).map((m) => say({ n: n + m })));
    await until(() => n - listener.heard.length < 40, "the listener to come along");
  }
  await until(() => listener.heard.length > total - 20, "the listener at the end");
  proxy.cutting = false;
  await say({ n: total });
  assert.deepEqual(await listener.numbersTo(total), upTo(total));
  assert.ok(proxy.cuts > 4, `${proxy.cuts} cuts`);
  assert.deepEqual(listener.gaps, []);
});

test("long-poll and WebSocket clients receive each other's messages alike", async (t) => {
  const topic = "kept:both";
  const open = () => CURRENT.open(t, `${server.wsUrl}/socket`);
  const [polling, user] = [await poller(t, server.wsUrl), await open()];
  const a = await Listener.join(polling, topic);
  const b = await Listener.join(user, topic);
  for (const n of upTo(9)) await answer((n % 2 ? a : b).channel.push("msg", { n }));
  assert.deepEqual(await a.numbersTo(9), upTo(9));
  assert.deepEqual(await b.numbersTo(9), upTo(9));
  assert.equal(a.channel.position(), b.channel.position());
  // From one transport to the other, as where a network lets no WebSocket through.
  const since = a.channel.position();
  polling.socket.disconnect();
  for (const n of [10, 11]) await answer(b.channel.push("msg", { n }));
  const next = await Listener.join(await open(), topic, { since });
  assert.deepEqual(await next.numbersTo(11), [10, 11]);
});
