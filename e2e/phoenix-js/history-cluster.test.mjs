// Histories on several nodes: those in the broker survive all nodes, and clients get a gap if the
// broker loses them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { CURRENT, FIRST, MIDDLE } from "../support/clients.mjs";
import { are } from "../support/cluster.mjs";
import { NO_KEEPER } from "../support/broker.mjs";
import { Listener, speaker, startKeeper, upTo } from "../support/history.mjs";

/** Of three nodes, with a broker that nobody else needs. */
async function start(t) {
  const server = await startKeeper({ nodes: 3 });
  t.after(() => server.end());
  return server;
}

for (const client of [CURRENT, MIDDLE, FIRST]) {
  test(`${client.name} misses nothing if all nodes are killed and started again`, {
    skip: NO_KEEPER,
  }, async (t) => {
    const server = await start(t);
    const topic = "kept:all-nodes";
    const { say } = await speaker(t, CURRENT, server, topic);
    const user = await client.open(t, `${server.wsUrl}/socket`);
    const listener = await Listener.join(user, topic);
    for (const n of upTo(4)) await say({ n });
    assert.deepEqual(await listener.numbersTo(4), upTo(4));
    user.frames.sockets.at(-1).terminate();
    for (const n of [5, 6, 7]) await say({ n });
    await server.stop("SIGKILL");
    const next = await server.restarted();
    t.after(() => next.kill());
    assert.deepEqual(await listener.numbersTo(7), upTo(7));
    assert.deepEqual(listener.gaps, []);
  });

  test(`${client.name} gets a gap if the broker has lost its history, and continues`, {
    skip: NO_KEEPER,
  }, async (t) => {
    const server = await start(t);
    const topic = "kept:lost";
    const { say } = await speaker(t, CURRENT, server, topic);
    const user = await client.open(t, `${server.wsUrl}/socket`);
    const listener = await Listener.join(user, topic);
    await say({ n: 0 });
    await listener.numbersTo(0);
    await server.broker.kill();
    await server.broker.restart({ loses: true });
    await are(server.nodes, "up");
    await say({ n: 1 });
    assert.deepEqual(await listener.numbersTo(1), [0, 1]);
    assert.deepEqual(listener.gaps, [{ recovered: false, reason: "epoch" }]);
    // The new positions are good, on another node, too.
    user.frames.sockets.at(-1).terminate();
    await say({ n: 2 });
    assert.deepEqual(await listener.numbersTo(2), [0, 1, 2]);
    assert.equal(listener.gaps.length, 1);
  });
}
