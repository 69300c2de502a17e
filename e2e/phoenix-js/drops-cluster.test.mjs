// The dropped-connections test on three nodes, in short, with the official clients
// (bench/README.md has the long one): whoever is cut off comes back to another node, one node is
// killed meanwhile, and the engine is killed and started again.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { runDrops } from "../support/drops.mjs";
import { NO_KEEPER } from "../support/engine.mjs";
import { startKeeper } from "../support/history.mjs";

const SEED = Number(process.env.SEED ?? Date.now() % 100_000);
const EACH = 20;

let server;
before(async () => {
  if (!NO_KEEPER) server = await startKeeper({ nodes: 3 });
});
after(async () => { await server?.end(); });

const PLAN = {
  kind: "kept", keepsAll: true, each: EACH, topics: 3, perSecond: 10, everyMs: 5_000,
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

test("while the engine is away for long nothing is missing or double but where that is told", {
  skip: NO_KEEPER,
}, async (t) => {
  const kills = { engineAtMs: 4_000, engineAwayMs: 12_000 };
  const plan = { kind: "kept:long", cuts: 4, heartbeatMs: 2_500, kills };
  const { all, answers, spoken } = await run(t, plan);
  assert.ok(all.gaps.unavailable > 0, JSON.stringify(all.gaps));
  const failed = (answers.unconfirmed ?? 0) + (answers["not stored"] ?? 0);
  assert.ok(failed > 0, JSON.stringify(answers));
  assert.ok(answers.ok > 0.4 * spoken, JSON.stringify(answers));
});

test("through cuts, the death of a node and that of the engine everybody hears everything", {
  skip: NO_KEEPER,
}, async (t) => {
  const kills = { nodeAtMs: 5_000, engineAtMs: 10_000 };
  const { versions, answers, spoken } = await run(t, { cuts: 4, kills });
  for (const counted of versions) {
    assert.equal(counted.delivered, counted.expected, counted.version);
    assert.deepEqual([counted.missing, counted.double, counted.out_of_order], [0, 0, 0]);
    assert.deepEqual(counted.gaps, {});
  }
  // What was on its way to the node that died has no answer; all else was kept.
  assert.equal(answers.ok + (answers["no answer"] ?? 0), spoken);
  assert.ok(answers.ok > 0.95 * spoken, JSON.stringify(answers));
});
