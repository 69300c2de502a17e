// The nodes of the Helm chart are restarted one after the other: no client is refused, and none
// loses a message in topics with a history.

import assert from "node:assert/strict";
import { test } from "node:test";

import { NO_KEEPER } from "../support/broker.mjs";
import { runRolling } from "../support/rolling.mjs";

for (const maxSurge of [1, 0]) {
  test(`three nodes of the chart restart in turn, maxSurge ${maxSurge}`, {
    skip: NO_KEEPER,
  }, async (t) => {
    const values = { drainSeconds: 2, preStopSeconds: 2, minReadySeconds: 1 };
    const { rows, published, ...counts } = await runRolling(t, {
      values, proxiesMs: 500, maxSurge, runs: 1,
      clients: 280, official: 20, topics: 10, everyMs: 100, isListed: true,
    });
    for (const row of rows) {
      const { code, isLate, kinds, not_back } = row;
      assert.deepEqual({ code, isLate, kinds, not_back },
        { code: 0, isLate: false, kinds: [], not_back: 0 }, JSON.stringify(row));
      assert.ok(row.moves > 0, JSON.stringify(row));
    }
    const { failures, repeated, untold, gap_reasons } = counts;
    assert.deepEqual({ failures, repeated, untold }, { failures: 0, repeated: 0, untold: 0 });
    // On a busy machine the broker may take longer than a join waits for it.
    assert.deepEqual(gap_reasons.filter((reason) => reason !== "unavailable"), []);
    assert.ok(published > 0);
  });
}
