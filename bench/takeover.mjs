// A server with many clients is taken over by a new process, again and again: what its clients
// notice. Prints a table. The server is that of E2E_BIN_DIR; the packages are those of e2e.
// `node bench/takeover.mjs [--clients 20000] [--official 100] [--runs 20] [--drain-ms 10000]`

import { runTakeovers } from "../e2e/support/takeover.mjs";
import { flag, run } from "./plan.mjs";

const plan = {
  clients: flag("clients", 20_000), official: flag("official", 100), runs: flag("runs", 20),
  drainMs: flag("drain-ms", 10_000), topics: 20, everyMs: flag("every-ms", 1_000),
};
const AWAY_MS_MAX = 1_500;
const AWAY_MEDIAN_MS_MAX = 300;
const BACK_MS_MAX = plan.drainMs + 1_000;

console.log(`${plan.clients} clients and ${plan.official} of phoenix.js, `
  + `drain_time ${plan.drainMs} ms\n`);
console.log("| run | failed connections | new process listens after | all back after | "
  + "away, median | away, longest | |\n|---|---|---|---|---|---|---|");
let reached = 0;
const report = (row) => {
  const isReached = row.failures === 0 && row.not_back === 0 && row.code === 0
    && row.back_ms <= BACK_MS_MAX && row.away_max_ms <= AWAY_MS_MAX
    && row.away_median_ms <= AWAY_MEDIAN_MS_MAX;
  reached += Number(isReached);
  const failures = row.failures === 0 ? "0" : `${row.failures} (${row.kinds.join(", ")})`;
  console.log(`| ${row.run} | ${failures} | ${row.start_ms} ms | ${row.back_ms} ms | `
    + `${row.away_median_ms} ms | ${row.away_max_ms} ms | ${isReached ? "yes" : "NO"} |`);
};
await run(async (t) => {
  const { published, missing, repeated, gaps, gap_reasons } =
    await runTakeovers(t, { ...plan, report });
  console.log(`\n${reached} of ${plan.runs} runs within the limits; ${published} published, `
    + `${missing} missing, ${repeated} repeated, ${gaps} gaps ${gap_reasons.join(", ")}`);
  return reached === plan.runs && missing + repeated + gaps === 0;
});
