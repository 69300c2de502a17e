// The dropped-connections test on three nodes, in short, with the official clients (bench/README.md
// has the long one): a client that is cut off reconnects to another node, one node is killed
// meanwhile, and the broker is killed and started again.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { runDrops } from "../support/drops.mjs";
import { NO_KEEPER } from "../support/broker.mjs";
import { startKeeper } from "../support/history.mjs";

const SEED = Number(process.env.SEED ?? Date.now() % 100_000);
const EACH = 20;

let server;
before(async () => {
  if (!NO_KEEPER) server = await startKeeper({ nodes: 3 });
});
after(async () => { await server?.end(); });

const PLAN = {
  kind: "kept", keepsAll: true, each: EACH, topics: 3, perSecond: 10,
  // No answer to a heartbeat comes before that to a join, which is held for two seconds at most.
  forMs: 1_000, reconnectMs: 500, heartbeatMs: 1_100, seed: SEED,
};

async function run(t, plan) {
  t.diagnostic(`SEED=${SEED}`);
  const { versions, all, ...rest } = await runDrops(t, server, { ...PLAN, ...plan });
  for (const counted of [...versions, all]) t.diagnostic(JSON.stringify(counted));
  t.diagnostic(JSON.stringify(rest));
  for (const counted of versions) {
    assert.deepEqual([counted.missing_untold, counted.double_untold], [0, 0], counted.version);
    assert.ok(counted.replayed > 0, `${counted.version} was given nothing that it had missed`);
  }
  assert.deepEqual([rest.ok_and_not_kept, all.unkept_and_heard], [0, 0]);
  assert.equal(all.never_back, 0);
  assert.equal(rest.returns.again, 0, "every connection led to another node than the one before");
  assert.ok(rest.returns.elsewhere >= all.absences, JSON.stringify(rest.returns));
  return { versions, all, ...rest };
}

test("a long outage of the broker loses or doubles messages only with a reported gap", {
  skip: NO_KEEPER,
}, async (t) => {
  const kills = { brokerAtMs: 4_000, brokerAwayMs: 12_000 };
  const plan = { kind: "kept:long", cuts: 3, everyMs: 8_000, heartbeatMs: 2_500, kills };
  const { all, answers, spoken } = await run(t, plan);
  assert.ok(all.gaps.unavailable > 0, JSON.stringify(all.gaps));
  const failed = (answers.unconfirmed ?? 0) + (answers["not stored"] ?? 0);
  assert.ok(failed > 0, JSON.stringify(answers));
  assert.ok(answers.ok > 0.4 * spoken, JSON.stringify(answers));
});

test("every client receives everything despite cuts, a killed node and a killed broker", {
  skip: NO_KEEPER,
}, async (t) => {
  const kills = { nodeAtMs: 7_000, brokerAtMs: 14_000 };
  const { versions, answers, spoken } = await run(t, { cuts: 3, everyMs: 7_000, kills });
  for (const counted of versions) {
    assert.equal(counted.delivered, counted.expected, counted.version);
    assert.deepEqual([counted.missing, counted.double, counted.out_of_order], [0, 0, 0]);
    assert.deepEqual(counted.gaps, {});
  }
  // What was on its way to the node that died has no answer; all else was kept.
  assert.equal(answers.ok + (answers["no answer"] ?? 0), spoken);
  assert.ok(answers.ok > 0.95 * spoken, JSON.stringify(answers));
});
