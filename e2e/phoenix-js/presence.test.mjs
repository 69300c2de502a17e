// The official client's own Presence on thousands of histories that a presence table made (Rust:
// crates/core/simurgh-presence/examples/presence_histories.rs): the list that a client computes is
// the server's list.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import path from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { Presence } from "phoenix";

import { BIN_DIR } from "../support/server.mjs";

const HISTORIES = 3000;
const SEED = 20_26;

/** Metas by phx_ref: what was thought to be gone and is not may stand elsewhere. */
function sorted(list) {
  const metas = (it) => [...it.metas].sort((a, b) => (a.phx_ref < b.phx_ref ? -1 : 1));
  return Object.entries(list).map(([key, it]) => [key, { ...it, metas: metas(it) }]).sort();
}

/** What a client has at the end; each state is one more join of it. */
function heard(events, seen) {
  let state = Object.create(null);
  for (const { state: whole, diff } of events) {
    if (whole) {
      state = Presence.syncState(state, whole);
      continue;
    }
    const refs = (all) => Object.values(all).flatMap(({ metas }) => metas.map((m) => m.phx_ref));
    const left = new Set(refs(diff.leaves));
    assert.ok(refs(diff.joins).every((ref) => !left.has(ref)), "a ref in joins and leaves");
    seen.diffs += 1;
    state = Presence.syncDiff(state, diff);
  }
  return state;
}

test("a client's list equals the server's after any events", { timeout: 300_000 }, async () => {
  const program = path.join(BIN_DIR, "examples/presence_histories");
  const child = spawn(program, [HISTORIES, SEED], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve, reject) => {
    child.once("error", reject).once("close", resolve);
  });
  const seen = { histories: 0, diffs: 0, ordered: 0, keys: new Set() };
  for await (const line of createInterface({ input: child.stdout })) {
    const { events, list, ordered } = JSON.parse(line);
    const state = heard(events, seen);
    assert.deepEqual(sorted(state), sorted(list), line);
    if (ordered) {
      for (const [key, { metas }] of Object.entries(list)) {
        assert.deepEqual(state[key].metas, metas, line);
      }
    }
    seen.histories += 1;
    seen.ordered += ordered;
    Object.keys(list).forEach((key) => seen.keys.add(key));
  }
  assert.equal(await ended, 0);
  assert.equal(seen.histories, HISTORIES);
  assert.ok(seen.diffs > HISTORIES && seen.ordered > HISTORIES / 4, JSON.stringify(seen));
  for (const key of ["", "__proto__", "constructor", "é"]) assert.ok(seen.keys.has(key), key);
});
