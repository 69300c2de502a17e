// The server stops and starts again on the same port: the clients reconnect by themselves.

import assert from "node:assert/strict";
import { test } from "node:test";

import { CLIENTS, CURRENT, answer } from "../support/clients.mjs";
import { NO_KEPT } from "../support/history.mjs";
import { startServer } from "../support/server.mjs";
import { Inbox, within } from "../support/wait.mjs";

/** Ends `server` by `signal`, starts it again, and waits until every channel has joined anew. */
async function restart(t, server, signal, channels) {
  const rejoined = channels.map((channel) => {
    const joins = new Inbox();
    channel.joinPush.receive("ok", () => joins.put("joined"));
    return joins;
  });
  const end = await server.stop(signal);
  // The first join, of which the hook tells at once, and joins of a server about to end, do not
  // count.
  for (const joins of rejoined) joins.clear();
  const next = await server.restarted();
  t.after(() => next.kill());
  for (const joins of rejoined) await joins.next("rejoin");
  return { end, next };
}

for (const client of CLIENTS) {
  test(`${client.name} rejoins all its channels after a crash`, async (t) => {
    const server = await startServer("conformance");
    t.after(() => server.kill());
    const users = [];
    for (const _ of [1, 2]) users.push(await client.open(t, `${server.wsUrl}/socket`));
    const [a, b] = [await users[0].join("test:again"), await users[1].join("test:again")];
    const other = await users[0].join("exact");
    const inbox = users[1].listen(b.channel, "news");
    await restart(t, server, "SIGKILL", [a.channel, b.channel, other.channel]);

    assert.deepEqual(await answer(other.channel.push("echo", { n: 1 })), { n: 1 });
    a.channel.push("bcast", { n: 2 });
    assert.deepEqual((await inbox.next("broadcast")).payload, { n: 2 });
    await answer(b.channel.push("echo", {}));
    assert.deepEqual(inbox.rest, [], "joined once, delivered once");
  });

  for (const signal of ["SIGKILL", "SIGTERM"]) {
    test(`${client.name} chats on \`simurgh serve\` before and after ${signal}`, {
      skip: NO_KEPT,
    }, async (t) => {
      const server = await startServer("serve");
      t.after(() => server.kill());
      const ada = await client.open(t, `${server.wsUrl}/socket`);
      const bob = await client.open(t, `${server.wsUrl}/socket`);
      const a = await ada.join("rooms:lobby", { user: "ada" });
      const entered = ada.listen(a.channel, "user:entered");
      const b = await bob.join("rooms:lobby", { user: "bob" });
      await entered.next("bob's arrival", ({ payload }) => payload.user === "bob");
      const inbox = ada.listen(a.channel, "new:msg");
      const say = (body) => answer(b.channel.push("new:msg", { user: "bob", body }));

      assert.deepEqual(await say("hello"), { msg: "hello" });
      assert.deepEqual((await inbox.next("message")).payload, { user: "bob", body: "hello" });
      const { end } = await restart(t, server, signal, [a.channel, b.channel]);
      if (signal === "SIGTERM") assert.deepEqual(end, { code: 0, signal: null });
      assert.deepEqual(await say("again"), { msg: "again" });
      assert.deepEqual((await inbox.next("message")).payload, { user: "bob", body: "again" });
    });
  }
}

test("a drained server closes with 1012, and the client reconnects", async (t) => {
  const server = await startServer("serve");
  t.after(() => server.kill());
  const user = await CURRENT.open(t, `${server.wsUrl}/socket`);
  const closed = new Promise((resolve) => user.socket.onClose(resolve));
  await server.stop("SIGTERM");
  assert.equal((await within(closed, "close")).code, 1012);
});
