// Notices: what a back end is told of users who come and go, also if a node is killed. The contract
// is in docs/BACKENDS.md.

import assert from "node:assert/strict";
import test from "node:test";

import { Broker, NO_KEEPER } from "../support/broker.mjs";
import {
  API_TOKEN, BackEnd, Nodes, User, agrees, joinAll, killNodes,
} from "../support/notices.mjs";
import { eventually, pause, until } from "../support/wait.mjs";

const crowd = (count) => (
  Array.from({ length: count }, (_, n) => new User(`u${n}`, `rooms:${n % 7}`)));

async function alone(t, options = {}) {
  const backEnd = await BackEnd.start();
  t.after(() => backEnd.close());
  const nodes = await Nodes.start(t, { count: 1, backEnd, ...options });
  const [server] = nodes.nodes;
  return { backEnd, nodes, server };
}

test("B49: a killed node's users have left, those who return elsewhere have not", {
  skip: NO_KEEPER, timeout: 300_000,
}, async (t) => {
  const broker = await Broker.start({ keeps: true });
  t.after(() => broker.remove());
  const plan = { broker, members: 300, topics: 15, runs: 3, downMs: 30_000 };
  const { rows, backEnd } = await killNodes(t, plan);
  for (const row of rows) assert.ok(row.isRight, JSON.stringify(row));
  assert.deepEqual(backEnd.wrong, []);
});

test("B46: a node without notices takes no part in them", {
  skip: NO_KEEPER, timeout: 300_000,
}, async (t) => {
  const broker = await Broker.start({ keeps: true });
  t.after(() => broker.remove());
  const backEnd = await BackEnd.start();
  t.after(() => backEnd.close());
  const prefix = `notices-without-${process.pid}`;
  const nodes = await Nodes.start(t, { count: 3, backEnd, broker, prefix, without: 2 });
  const users = crowd(60);
  await joinAll(users, (_, n) => nodes.nodes[n % 2].port);
  await agrees(backEnd, users);
  for (const user of users) user.leave();
  await agrees(backEnd, []);
  assert.deepEqual(backEnd.wrong, []);
});

test("B50: a killed server with state_dir loses no notice", async (t) => {
  const { backEnd, nodes, server } = await alone(t);
  const users = crowd(70);
  await joinAll(users, () => server.port);
  await agrees(backEnd, users);
  const resets = backEnd.resets;
  await server.kill();
  const { port } = await nodes.run(0);
  const back = users.slice(0, 20);
  await joinAll(back, () => port);
  await agrees(backEnd, back);
  assert.deepEqual(backEnd.wrong, []);
  assert.equal(backEnd.resets, resets);
  const reasons = backEnd.arrivals.filter(({ type }) => type === "member.left");
  assert.ok(reasons.every(({ data }) => data.reason === "restart"));
});

test("B52: users who return after a restart or a take-over have not left", async (t) => {
  const { backEnd, nodes, server } = await alone(t, { settings: 'drain_time = "500ms"' });
  const users = crowd(30);
  await joinAll(users, () => server.port);
  await agrees(backEnd, users);
  const begun = Date.now();
  await server.stop();
  await nodes.run(0);
  await joinAll(users, () => nodes.nodes[0].port);
  const earlier = nodes.nodes[0];
  await nodes.run(0, ["--take-over"]);
  await earlier.ended;
  await joinAll(users, () => nodes.nodes[0].port);
  await pause(7_000);
  assert.equal(backEnd.count("member.left", begun), 0);
  for (const user of users) user.leave();
  await agrees(backEnd, []);
  assert.equal(backEnd.count("member.left", begun), 30);
  assert.deepEqual(backEnd.wrong, []);
});

test("B55, B56: a hook that was down gets all; what it refuses can be sent again", async (t) => {
  const hook = 'delivery = { retry_for = "3s" }\nleave_grace = "500ms"';
  const { backEnd, nodes, server } = await alone(t, { hook });
  await until(() => backEnd.resets === 16, "resets");
  backEnd.status = 503;
  const users = crowd(14);
  await joinAll(users, () => server.port);
  const status = async () => (await nodes.get("notices")).hooks.app;
  await eventually(async () => assert.ok((await status()).waiting > 0));
  await eventually(async () => assert.equal((await status()).dead, 21));
  backEnd.status = 204;
  const { dead } = await nodes.get("notices/dead?hook=app");
  assert.equal(dead.length, 21);
  assert.equal(dead[0].status, 503);
  const ids = dead.map(({ notice }) => notice.id);
  const { found } = await nodes.post("notices/replay", { hook: "app", ids });
  assert.equal(found, 21);
  await nodes.post("notices/resume", { hook: "app" });
  await agrees(backEnd, users);
  await eventually(async () => {
    assert.deepEqual((await nodes.get("notices/dead?hook=app")).dead, []);
  });
  const { stays } = await nodes.get(`stays?topic=${encodeURIComponent("rooms:3")}`);
  assert.deepEqual(stays.map(({ kind, user }) => [kind, user]).sort(),
    [["member", "u10"], ["member", "u3"], ["topic", undefined]]);
  await assert.rejects(nodes.get("notices/dead?hook=other"), /does not exist/);
  assert.ok(API_TOKEN);
});
