// Binary payloads with the current client (V2): push, reply, server push, broadcast.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { CURRENT, answer } from "../support/clients.mjs";
import { startServer } from "../support/server.mjs";

let server;
before(async () => { server = await startServer("conformance"); });
after(async () => { await server?.kill(); });

const bytes = (...values) => Uint8Array.from(values).buffer;
const plain = (buffer) => [...new Uint8Array(buffer)];
const open = (t) => CURRENT.open(t, `${server.wsUrl}/socket`);

test("a binary push gets a binary reply with the same bytes", async (t) => {
  const user = await open(t);
  const { channel } = await user.join("test:bin");
  assert.deepEqual(plain(await answer(channel.push("bin", bytes(0, 1, 255, 10)))), [0, 1, 255, 10]);
});

test("empty and very long binary payloads return unchanged", async (t) => {
  const user = await open(t);
  const { channel } = await user.join("test:sizes");
  assert.deepEqual(plain(await answer(channel.push("bin", bytes()))), []);
  const large = Uint8Array.from({ length: 200_000 }, (_, n) => (n * 31) % 256);
  const back = new Uint8Array(await answer(channel.push("bin", large.buffer)));
  assert.ok(Buffer.from(back).equals(Buffer.from(large)), "200,000 bytes intact");
});

test("the server pushes binary", async (t) => {
  const user = await open(t);
  const { channel } = await user.join("test:push");
  const inbox = user.listen(channel, "bin_pushed");
  channel.push("bin_push", bytes(7, 8));
  assert.deepEqual(plain((await inbox.next("binary push")).payload), [7, 8]);
});

test("a binary broadcast reaches every member, between text messages and in order", async (t) => {
  const [alice, bob] = [await open(t), await open(t)];
  const { channel: a } = await alice.join("test:mixed");
  const { channel: b } = await bob.join("test:mixed");
  const inboxes = [alice.listen(a, "news", "bin_news"), bob.listen(b, "news", "bin_news")];
  a.push("bcast", { n: 1 });
  a.push("bin_bcast", bytes(2));
  a.push("bcast", { n: 3 });
  for (const inbox of inboxes) {
    assert.deepEqual((await inbox.next("text")).payload, { n: 1 });
    assert.deepEqual(plain((await inbox.next("binary")).payload), [2]);
    assert.deepEqual((await inbox.next("text")).payload, { n: 3 });
  }
});
