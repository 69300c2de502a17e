// A new server process takes over from the running one: its clients reconnect at once, and lose no
// message in topics with a history.

import assert from "node:assert/strict";
import { test } from "node:test";

import { NODES } from "../support/server.mjs";
import { runTakeovers } from "../support/takeover.mjs";

const skip = NODES > 1 ? "a process takes over on one machine" : false;

test("servers take over in turn, and no client loses a message", { skip }, async (t) => {
  const plan = { clients: 200, official: 20, topics: 4, everyMs: 20, drainMs: 1_000, runs: 3 };
  const { rows, published, ...counts } = await runTakeovers(t, plan);
  for (const row of rows) {
    assert.deepEqual([row.code, row.kinds, row.not_back], [0, [], 0], JSON.stringify(row));
  }
  assert.deepEqual(counts,
    { failures: 0, kinds: [], missing: 0, untold: 0, repeated: 0, gaps: 0, gap_reasons: [] });
  assert.ok(published > 0);
});
