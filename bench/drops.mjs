// Row `drops` of `simurgh-bench history`: the dropped-connections test with the official clients,
// with history and without. Prints its figures as one line of JSON. The server is that of
// SIMURGH_BIN_DIR; the packages are those of e2e.

import { runDrops } from "../e2e/support/drops.mjs";
import { startKeeper } from "../e2e/support/history.mjs";

const LONG = {
  each: 200, topics: 10, perSecond: 10, cuts: 6, everyMs: 10_000, forMs: 2_000, reconnectMs: 1_000,
  heartbeatMs: 1_000,
};
/** To see whether it works. */
const SHORT = { ...LONG, each: 20, cuts: 1 };

const [short, seed] = [process.argv.includes("--short"), Number(process.env.SEED ?? 1)];

/** What was counted as figures by name, those of each version as well. */
function figures(way, { versions, all, ...rest }) {
  const found = {};
  const put = (name, value) => { found[`drops${way}_${name}`] = value; };
  const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
  for (const { version, gaps, cuts, ...counts } of [all, ...versions]) {
    const of = version === "all" ? "" : `${/\d\S*/.exec(version)[0]}_`;
    for (const [name, value] of Object.entries(counts)) put(`${of}${name}`, value);
    put(`${of}gaps`, sum(gaps));
    put(`${of}cuts_by_reset`, cuts.reset);
    put(`${of}cuts_in_silence`, cuts.silence);
  }
  put("spoken", rest.spoken);
  put("refused", rest.refused);
  for (const [name, value] of Object.entries(rest.event_loop_ms)) {
    put(`event_loop_${name}_ms`, value);
  }
  return found;
}

/** One run on a server of its own. */
async function run(kind) {
  const ends = [];
  const server = await startKeeper();
  try {
    const plan = { ...(short ? SHORT : LONG), kind, seed };
    return await runDrops({ after: (end) => ends.push(end) }, server, plan);
  } finally {
    for (const end of ends) end();
    await server.end();
  }
}

const kept = await run("usual");
const lost = await run("none");
console.log(JSON.stringify({ ...figures("", kept), ...figures("_without", lost) }));
process.exit(0);
