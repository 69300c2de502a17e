// The unmodified official clients, old and new, against the conformance application.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { CLIENTS, CURRENT, FIRST, Refused, answer } from "../support/clients.mjs";
import { startServer } from "../support/server.mjs";
import { until, within } from "../support/wait.mjs";

let server;
before(async () => { server = await startServer("conformance"); });
after(async () => { await server?.kill(); });

const url = () => `${server.wsUrl}/socket`;
const refused = (status, response) => (error) => {
  assert.ok(error instanceof Refused, error);
  assert.deepEqual([error.status, error.response], [status, response]);
  return true;
};

for (const client of CLIENTS) {
  describe(client.name, () => {
    test("joins, with an empty response and with one", async (t) => {
      const user = await client.open(t, url());
      assert.deepEqual((await user.join("test:a")).response, {});
      const { response } = await user.join("test:reply", { a: [1, "é", null] });
      assert.deepEqual(response, { got: { a: [1, "é", null] } });
    });

    test("gets the reason why it may not join", async (t) => {
      const user = await client.open(t, url());
      await assert.rejects(user.join("test:error", { reason: "full" }),
        refused("error", { reason: "full" }));
      await assert.rejects(user.join("test:crash"),
        refused("error", { reason: "join crashed" }));
      await assert.rejects(user.join("nowhere"),
        refused("error", { reason: "unmatched topic" }));
      await assert.rejects(user.join("rooms:private1", { user: "a" }),
        refused("error", { reason: "unauthorized" }));
    });

    test("pushes and gets replies of every status", async (t) => {
      const user = await client.open(t, url());
      const { channel } = await user.join("test:replies");
      const deep = { list: [1, 2.5, -3e10, true, null] };
      const payload = { text: "\"quoted\" \\ ☃ 🦜", deep };
      assert.deepEqual(await answer(channel.push("echo", payload)), payload);
      await assert.rejects(answer(channel.push("fail", { reason: "no" })),
        refused("error", { reason: "no" }));
      await assert.rejects(answer(channel.push("custom_status", {}), "reply", ["weird"]),
        refused("weird", { a: 1 }));
      assert.deepEqual(await answer(channel.push("status_only", {})), {});
    });

    test("gets a late reply after the replies to later pushes", async (t) => {
      const user = await client.open(t, url());
      const { channel } = await user.join("test:late");
      const order = [];
      const late = answer(channel.push("async", { n: 1 })).then((r) => order.push(r.n));
      const quick = answer(channel.push("echo", { n: 2 })).then((r) => order.push(r.n));
      await Promise.all([late, quick]);
      assert.deepEqual(order, [2, 1]);
    });

    test("keeps the order of pushes before the reply to the join", async (t) => {
      const user = await client.open(t, url());
      const channel = user.socket.channel("test:early", {});
      const joined = answer(channel.join(), "join");
      const echoes = Array.from({ length: 20 }, (_, n) => answer(channel.push("echo", { n })));
      await joined;
      assert.deepEqual((await Promise.all(echoes)).map(({ n }) => n), [...Array(20).keys()]);
      const payload = (frame) => client.version === 2 ? frame[4] : frame.payload;
      const arrived = user.frames.received.map(payload)
        .filter(({ response }) => response?.n !== undefined);
      assert.deepEqual(arrived.map(({ response }) => response.n), [...Array(20).keys()]);
    });

    test("receives pushes and broadcasts, including its own", async (t) => {
      const [alice, bob] = [await client.open(t, url()), await client.open(t, url())];
      const { channel: a } = await alice.join("test:news");
      const { channel: b } = await bob.join("test:news");
      const toAlice = alice.listen(a, "news", "pushed");
      const toBob = bob.listen(b, "news", "pushed");

      a.push("push_me", { only: "alice" });
      const pushed = await toAlice.next("push");
      assert.deepEqual(pushed, { event: "pushed", payload: { only: "alice" } });
      a.push("bcast", { n: 1 });
      for (const inbox of [toAlice, toBob]) {
        assert.deepEqual(await inbox.next("broadcast"), { event: "news", payload: { n: 1 } });
      }
      await answer(a.push("bcast_from", { n: 2 }));
      assert.deepEqual((await toBob.next("broadcast_from")).payload, { n: 2 });
      // A second broadcast to all: nothing of the first may have come to its sender in between.
      a.push("bcast", { n: 3 });
      for (const inbox of [toAlice, toBob]) {
        assert.deepEqual((await inbox.next("broadcast")).payload, { n: 3 });
        assert.deepEqual(inbox.rest, []);
      }
    });

    test("leaves, and receives nothing any more", async (t) => {
      const [alice, bob] = [await client.open(t, url()), await client.open(t, url())];
      const { channel: a } = await alice.join("test:leave");
      const { channel: b } = await bob.join("test:leave");
      const toAlice = alice.listen(a, "news");
      const toBob = bob.listen(b, "news");
      const closed = new Promise((resolve) => a.onClose(resolve));
      a.leave();
      await within(closed, "phx_close");
      // The old client calls itself closed before the server knows; a reply settles the order.
      await alice.join("test:other");
      b.push("bcast", { n: 1 });
      await toBob.next("broadcast");
      const { channel: other } = await alice.join("test:reply");
      await answer(other.push("echo", {}));
      assert.deepEqual(toAlice.rest, []);
    });

    test("learns that the server ended its channel", async (t) => {
      const user = await client.open(t, url());
      const { channel } = await user.join("test:stop");
      const closed = new Promise((resolve) => channel.onClose(resolve));
      channel.push("stop", {});
      await within(closed, "phx_close");
      assert.equal(channel.state, "closed");
    });

    test("rejoins by itself after phx_error, while its other channel continues", async (t) => {
      const user = await client.open(t, url());
      const { channel } = await user.join("test:crashing");
      const { channel: other } = await user.join("test:calm");
      const errored = new Promise((resolve) => channel.onError(resolve));
      const rejoined = new Promise((resolve) => channel.joinPush.receive("ok", resolve));
      channel.push("crash", {});
      await within(errored, "phx_error");
      assert.deepEqual(await answer(other.push("echo", { still: "here" })), { still: "here" });
      await within(rejoined, "second join");
      assert.deepEqual(await answer(channel.push("echo", { back: true })), { back: true });
      assert.equal(user.frames.sockets.length, 1, "the socket itself stayed open");
    });

    test("gets replies to its heartbeats", async (t) => {
      const user = await client.open(t, url());
      const isReply = (frame) => client.version === 2
        ? frame[2] === "phoenix" && frame[3] === "phx_reply"
        : frame.topic === "phoenix" && frame.event === "phx_reply";
      const replies = () => user.frames.received.filter(isReply).length;
      for (const n of [1, 2, 3]) {
        user.socket.sendHeartbeat();
        await until(() => replies() === n, `answer to heartbeat ${n}`);
      }
      assert.equal(user.frames.sockets.length, 1, "no reconnect was needed");
    });

    test("is refused when it connects", async (t) => {
      const user = client.socket(url(), { params: { reject: true } });
      t.after(() => user.close());
      let opened = false;
      user.socket.onOpen(() => { opened = true; });
      const failed = new Promise((resolve) => user.socket.onError(resolve));
      user.socket.connect();
      await within(failed, "socket error");
      assert.equal(opened, false);
    });

    test("passes its params to connect", async (t) => {
      const user = await client.open(t, url(), { params: { user_id: 7, tag: "a b&c=ü" } });
      const { channel } = await user.join("test:params");
      const { user_id: id, params, transport } = await answer(channel.push("whoami", {}));
      assert.equal(String(id), "7");
      assert.equal(params.tag, "a b&c=ü");
      assert.equal(params.vsn, client.version === 2 ? "2.0.0" : "1.0.0");
      assert.equal(transport, "websocket");
    });
  });
}

test("V2: a reply carries the refs of its push, a broadcast carries none", async (t) => {
  const user = await CURRENT.open(t, url());
  const { channel } = await user.join("test:refs");
  const inbox = user.listen(channel, "news", "pushed");
  await answer(channel.push("echo", {}));
  const [joinRef, ref] = user.frames.sent.at(-1);
  assert.equal(typeof ref, "string");
  const replies = user.frames.received.filter((frame) => frame[3] === "phx_reply");
  assert.deepEqual(replies.at(-1).slice(0, 2), [joinRef, ref]);
  assert.deepEqual(replies[0].slice(0, 2), [joinRef, joinRef]);
  channel.push("push_me", {});
  await inbox.next("push");
  channel.push("bcast", {});
  await inbox.next("broadcast");
  const find = (event) => user.frames.received.find((frame) => frame[3] === event);
  assert.deepEqual(find("pushed").slice(0, 2), [joinRef, null]);
  assert.deepEqual(find("news").slice(0, 2), [null, null]);
});

test("V1: every message from the server has exactly its four keys", async (t) => {
  const user = await FIRST.open(t, url());
  const { channel } = await user.join("test:keys");
  const inbox = user.listen(channel, "news", "pushed");
  channel.push("push_me", {});
  await inbox.next("push");
  channel.push("bcast", {});
  await inbox.next("broadcast");
  assert.ok(user.frames.received.length >= 3);
  for (const frame of user.frames.received) {
    assert.deepEqual(Object.keys(frame).sort(), ["event", "payload", "ref", "topic"]);
  }
});

test("the oldest and the newest client receive each other's messages", async (t) => {
  const old = await FIRST.open(t, url());
  const young = await CURRENT.open(t, url());
  const { channel: a } = await old.join("test:ages");
  const { channel: b } = await young.join("test:ages");
  const toOld = old.listen(a, "news");
  const toYoung = young.listen(b, "news");
  a.push("bcast", { from: "old" });
  b.push("bcast", { from: "young" });
  for (const inbox of [toOld, toYoung]) {
    const heard = [await inbox.next("broadcast"), await inbox.next("broadcast")];
    assert.deepEqual(heard.map(({ payload }) => payload.from).sort(), ["old", "young"]);
  }
});

test("the current client's auth token reaches connect", async (t) => {
  // Its base64 is `fj5+Pj4+dG9rZW4`: `+` and no padding, where the two alphabets differ.
  const token = "~>~>>>token";
  const user = await CURRENT.open(t, url(), { authToken: token });
  assert.equal(user.frames.sockets[0].protocol, "phoenix");
  const { channel } = await user.join("test:auth");
  assert.equal((await answer(channel.push("whoami", {}))).auth, token);
});

test("a second channel for a topic replaces the first", async (t) => {
  const user = await CURRENT.open(t, url());
  const { channel: one } = await user.join("test:twice");
  const closed = new Promise((resolve) => one.onClose(resolve));
  const { channel: two } = await user.join("test:twice");
  await within(closed, "end of the first channel");
  const inbox = user.listen(two, "news");
  two.push("bcast", { n: 1 });
  assert.deepEqual((await inbox.next("broadcast")).payload, { n: 1 });
  await answer(two.push("echo", {}));
  assert.deepEqual(inbox.rest, [], "one member, one delivery");
});
