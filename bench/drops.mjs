// Rows `drops` and `drops-nodes` of `simurgh-bench history`: the dropped-connections test with the
// official clients, with history and without; with `--nodes 3` on so many nodes, of which one is
// killed, as is the broker, that of SIMURGH_NATS_SERVER. Prints its figures as one line of JSON.
// The server is that of E2E_BIN_DIR; the packages are those of e2e.

import { runDrops } from "../e2e/support/drops.mjs";
import { startKeeper } from "../e2e/support/history.mjs";

const LONG = {
  each: 200, topics: 10, perSecond: 10, cuts: 6, everyMs: 10_000, forMs: 2_000, reconnectMs: 1_000,
  heartbeatMs: 1_000,
};
/** To see whether it works. */
const SHORT = { ...LONG, each: 20, cuts: 1 };
/** A join may be held for two seconds for want of the broker, and a heartbeat behind it. */
const ON_NODES = { kind: "kept", keepsAll: true, heartbeatMs: 1_500 };

const [short, seed] = [process.argv.includes("--short"), Number(process.env.SEED ?? 1)];
const at = process.argv.indexOf("--nodes");
const nodes = at < 0 ? 1 : Number(process.argv[at + 1]);
const PLAN = { ...(short ? SHORT : LONG), seed };
/** A node after a third of the cuts, the broker after two. */
const third = Math.round(PLAN.cuts * PLAN.everyMs / 3);
const KILLS = { nodeAtMs: third, brokerAtMs: 2 * third };

/** What was counted as figures by name, those of each version as well. */
function figures(row, { versions, all, ...rest }) {
  const found = {};
  const put = (name, value) => { found[`${row}_${name}`] = value; };
  const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
  for (const { version, gaps, cuts, ...counts } of [all, ...versions]) {
    const of = version === "all" ? "" : `${/\d\S*/.exec(version)[0]}_`;
    for (const [name, value] of Object.entries(counts)) put(`${of}${name}`, value);
    put(`${of}gaps`, sum(gaps));
    put(`${of}cuts_by_reset`, cuts.reset);
    put(`${of}cuts_in_silence`, cuts.silence);
  }
  put("spoken", rest.spoken);
  put("not_ok", rest.spoken - rest.answers.ok);
  put("unkept", rest.unkept);
  put("ok_and_not_kept", rest.ok_and_not_kept);
  for (const [name, value] of Object.entries(rest.returns ?? {})) put(`returns_${name}`, value);
  for (const [name, value] of Object.entries(rest.event_loop_ms)) {
    put(`event_loop_${name}_ms`, value);
  }
  return found;
}

/** One run on a server of its own. */
async function run(plan) {
  const ends = [];
  const server = await startKeeper({ nodes });
  try {
    return await runDrops({ after: (end) => ends.push(end) }, server, { ...PLAN, ...plan });
  } finally {
    for (const end of ends) end();
    await server.end();
  }
}

if (nodes > 1) {
  const kept = await run({ ...ON_NODES, kills: KILLS });
  console.log(JSON.stringify(figures("drops_nodes", kept)));
} else {
  const kept = await run({ kind: "usual" });
  const lost = await run({ kind: "none" });
  console.log(JSON.stringify({ ...figures("drops", kept), ...figures("drops_without", lost) }));
}
process.exit(0);
