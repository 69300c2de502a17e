// A connection breaks at each byte that the server sends to a client that resumes: in the reply to
// its join, before `simurgh:resumed`, in missed messages, between the position of a binary message
// and its frame, and in live messages.

import assert from "node:assert/strict";
import net from "node:net";
import { after, before } from "node:test";

import { CURRENT, FIRST } from "../support/clients.mjs";
import { Listener, binary, speaker, startKeeper, test } from "../support/history.mjs";
import { until } from "../support/wait.mjs";

/** Clients at a time. */
const AT_ONCE = 24;

let server;
before(async () => { server = await startKeeper(); });
after(async () => { await server?.end(); });

/**
 * A proxy that cuts its first connection when the server has said `bytes` on it, behind the head
 * of its answer: with an end of the stream or, `rough`, so that what was on its way is lost.
 * `said` is how much that was.
 */
async function cutAt(bytes, rough) {
  const state = { said: 0, connections: 0, isCut: false };
  const sockets = new Set();
  const proxy = net.createServer((client) => {
    const upstream = net.connect(server.port, "127.0.0.1");
    const isFirst = state.connections === 0;
    state.connections += 1;
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    client.pipe(upstream);
    let head = Buffer.alloc(0);
    upstream.on("data", (data) => {
      if (!isFirst) return void client.write(data);
      let rest = data;
      if (head) {
        head = Buffer.concat([head, data]);
        const end = head.indexOf("\r\n\r\n");
        if (end < 0) return;
        client.write(head.subarray(0, end + 4));
        rest = head.subarray(end + 4);
        head = null;
      }
      const left = bytes - state.said;
      state.said += rest.length;
      if (rest.length < left) return void client.write(rest);
      state.isCut = true;
      upstream.removeAllListeners("data");
      upstream.destroy();
      client.write(rest.subarray(0, left));
      if (rough) client.resetAndDestroy();
      else client.end();
    });
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  state.url = `ws://127.0.0.1:${proxy.address().port}/socket`;
  state.end = () => {
    for (const socket of sockets) socket.destroy();
    proxy.close();
  };
  return state;
}

/** One client whose connection breaks there; resolves with how much it was told until then. */
async function breaksAt(t, client, talker, topic, bytes) {
  const { channel } = await talker.user.join(topic, { simurgh: {} });
  const say = async (payload) => {
    await new Promise((resolve, reject) => {
      channel.push("msg", payload).receive("ok", resolve).receive("error", reject);
    });
  };
  const first = await new Promise((resolve) => {
    channel.onMessage = (event, payload, ref) => {
      if (event === "msg" && payload.n === 0) resolve(ref);
      return payload;
    };
    channel.push("msg", { n: 0 });
  });
  // V1 has no form for bytes.
  const bytesOf = client === FIRST ? (n) => ({ n }) : binary;
  for (const payload of [{ n: 1 }, bytesOf(2), { n: 3 }]) await say(payload);
  const proxy = await cutAt(bytes, bytes % 2 === 1);
  let user;
  try {
    user = await client.open(t, proxy.url);
    const listener = new Listener(user, topic, { since: first });
    listener.channel.join();
    await until(() => proxy.isCut || listener.heard.length >= 3, `cut at ${bytes}`);
    await say(bytesOf(4));
    await say({ n: 5 });
    const numbers = await listener.numbersTo(5);
    assert.deepEqual(numbers, [1, 2, 3, 4, 5], `cut at ${bytes}`);
    assert.deepEqual(listener.gaps, [], `cut at ${bytes}`);
    if (proxy.isCut) await until(() => proxy.connections > 1, "another connection");
    return proxy;
  } finally {
    user?.close();
    proxy.end();
    channel.leave();
  }
}

for (const client of [CURRENT, FIRST]) {
  test(`${client.name} loses and doubles nothing wherever its connection breaks`, async (t) => {
    const talker = await speaker(t, CURRENT, server, `kept:${client.name}`);
    let topics = 0;
    // All as long as each other, so that each byte is the same of all.
    const topicOf = () => `kept:${client.name}:cut${String(topics += 1).padStart(5, "0")}`;
    const whole = await breaksAt(t, client, talker, topicOf(), Infinity);
    const { said } = whole;
    assert.ok(!whole.isCut && said > 300, `${said} bytes`);
    let cuts = 0;
    let next = 0;
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
      while (next < said) {
        const bytes = next += 1;
        const proxy = await breaksAt(t, client, talker, topicOf(), bytes);
        cuts += Number(proxy.isCut);
      }
    }));
    t.diagnostic(`${cuts} cuts in ${said} bytes`);
    assert.equal(cuts, said);
  });
}
