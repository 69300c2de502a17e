// The dropped-connections test in short, with the official clients (bench/README.md has the long
// one): many are cut off repeatedly, by resets and in silence, and receive every message once and
// in order. Without a history they do not, and the missing messages are counted.

import assert from "node:assert/strict";
import { after, before } from "node:test";

import { Tally, runDrops } from "../support/drops.mjs";
import { startKeeper, test, upTo } from "../support/history.mjs";

const SEED = Number(process.env.SEED ?? Date.now() % 100_000);
const EACH = 20;

let server;
before(async () => { server = await startKeeper(); });
after(async () => { await server?.end(); });

const PLAN = {
  each: EACH, topics: 3, perSecond: 10, cuts: 3, everyMs: 4_000, forMs: 1_000, reconnectMs: 500,
  heartbeatMs: 1_000, seed: SEED,
};

function show(t, { versions, all }) {
  for (const counted of [...versions, all]) t.diagnostic(JSON.stringify(counted));
}

test("clients receive everything despite cuts with history, and not without", async (t) => {
  t.diagnostic(`SEED=${SEED}`);
  const [kept, lost] = await Promise.all([
    runDrops(t, server, { ...PLAN, kind: "kept" }),
    runDrops(t, server, { ...PLAN, kind: "none" }),
  ]);
  show(t, kept);
  show(t, lost);
  for (const counted of kept.versions) {
    assert.equal(counted.delivered, counted.expected, counted.version);
    assert.deepEqual([counted.missing, counted.double, counted.out_of_order], [0, 0, 0]);
    assert.deepEqual(counted.gaps, {});
    assert.ok(counted.replayed > 0, `${counted.version} was given nothing that it had missed`);
  }
  for (const counted of lost.versions) {
    assert.ok(counted.missing > EACH * PLAN.cuts, `${counted.missing} missing`);
    assert.equal(counted.delivered + counted.missing, counted.expected);
    assert.deepEqual([counted.double, counted.out_of_order, counted.replayed], [0, 0, 0]);
    // On a slow machine clients also give up connections by themselves, and are away for longer.
    const { absences, joins } = counted;
    const isCalm = absences > 0.9 * EACH * PLAN.cuts && joins === EACH + absences;
    if (isCalm) assert.equal(counted.missing_while_connected, 0);
    else t.diagnostic(`${counted.version}: ${absences} absences, ${joins} joins`);
  }
  for (const { all, answers, spoken } of [kept, lost]) {
    assert.deepEqual(answers, { ok: spoken });
    assert.deepEqual(all.cuts, { reset: 3 * EACH * 1.5, silence: 3 * EACH * 1.5 });
    assert.equal(all.never_back, 0);
  }
});

test("lost, double and reordered messages are counted", async (t) => {
  const faults = ["lose", "double", "swap", "lose", "double", "lose"];
  const plan = { ...PLAN, kind: "usual", cuts: 1, everyMs: 1_000, forMs: 300, faults };
  const { all, ...rest } = await runDrops(t, server, plan);
  show(t, { all, ...rest });
  assert.deepEqual([all.missing, all.double, all.out_of_order], [3, 2, 1]);
  assert.equal(all.delivered, all.expected - 3);
  assert.equal(all.missing_while_connected, 3);
});

test("a tally counts missing, double and reordered messages", () => {
  const tally = new Tally();
  for (const n of [0, 1, 1, 4, 3, 4, 6]) tally.put(n);
  assert.deepEqual([tally.double, tally.outOfOrder], [2, 1]);
  assert.equal(tally.heardOf(upTo(7)), 5);
  assert.deepEqual(tally.missing(upTo(7)), [2, 5, 7]);
  assert.deepEqual([tally.heardOf([1, 2]), tally.missing([1, 2])], [1, [2]]);
});
