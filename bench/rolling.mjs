// Three nodes with the Helm chart's configuration are restarted one after the other, again and
// again: what their clients notice. Prints a table. The server is that of E2E_BIN_DIR, the broker
// that of SIMURGH_NATS_SERVER; the packages are those of e2e.
// `node bench/rolling.mjs [--clients 20000] [--official 100] [--runs 3] [--topics 20]
// [--every-ms 1000] [--max-surge 1]`

import { runRolling } from "../e2e/support/rolling.mjs";
import { flag, run } from "./plan.mjs";

const plan = {
  clients: flag("clients", 20_000), official: flag("official", 100), runs: flag("runs", 3),
  topics: flag("topics", 20), everyMs: flag("every-ms", 1_000), maxSurge: flag("max-surge", 1),
  values: {}, proxiesMs: 2_000,
};

console.log(`${plan.clients} clients and ${plan.official} of phoenix.js in ${plan.topics} topics, `
  + `maxSurge ${plan.maxSurge}\n`);
console.log("| run | node | its clients | failed connections | received by resuming | "
  + "lost, repeated, gaps | away, median | away, longest | ended after |\n"
  + "|---|---|---|---|---|---|---|---|---|");
let faults = 0;
const report = (row) => {
  const counts = [row.missing, row.repeated, row.gaps.length];
  faults += row.not_back + Number(row.code !== 0) + Number(row.isLate);
  const failures = row.failures === 0 ? "0" : `${row.failures} (${row.kinds.join(", ")})`;
  console.log(`| ${row.run} | ${row.name} | ${row.moves} | ${failures} | ${row.resumed} | `
    + `${counts.join(", ")} | ${row.away_median_ms} ms | ${row.away_max_ms} ms | `
    + `${row.end_ms} ms |`);
};
await run(async (t) => {
  const { published, failures, kinds, missing, repeated, gaps, gap_reasons } =
    await runRolling(t, { ...plan, report });
  console.log(`\n${published} published, ${failures} connections failed ${kinds.join(", ")}, `
    + `${missing} messages missing, ${repeated} repeated, ${gaps} gaps ${gap_reasons.join(", ")}`);
  return faults + failures + missing + repeated + gaps === 0;
});
