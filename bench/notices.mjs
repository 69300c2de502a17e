// One of three nodes is killed, again and again: what a back end is told of its users. Prints a
// table. The server is that of E2E_BIN_DIR, the broker that of SIMURGH_NATS_SERVER.
// `node bench/notices.mjs [--members 10000] [--topics 500] [--runs 20]`
// `node bench/notices.mjs --cut 18000`: each of so many clients is away for three seconds.
// `node bench/notices.mjs --rate 1000`: so many clients leave 100 topics each, at once.

import { Broker } from "../e2e/support/broker.mjs";
import { cutAll, killNodes, rate } from "../e2e/support/notices.mjs";

const flag = (name, otherwise) => {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? otherwise : Number(process.argv[at + 1]);
};
const [members, topics] = [flag("members", 10_000), flag("topics", 500)];
const plan = { members, topics, runs: flag("runs", 20) };
const ends = [];
const t = { after: (end) => ends.unshift(end) };
const other = async () => {
  if (flag("cut", 0) > 0) {
    return await cutAll(t, { count: flag("cut", 0), topics: 500, awayMs: 3_000, overMs: 30_000 });
  }
  return await rate(t, { count: flag("rate", 0), topics: 100 });
};
if (flag("cut", 0) > 0 || flag("rate", 0) > 0) {
  try {
    console.log(await other());
  } finally {
    for (const end of ends) await end();
  }
  process.exit();
}
process.on("SIGINT", () => process.exit(130));
const broker = await Broker.start({ keeps: true });
ends.push(() => broker.remove());
console.log("| run | partitions of the killed node | `member.left` (due) | `topic.vacated` (due) | "
  + "of users who returned | other notices | sent again | last after | |\n"
  + "|---|---|---|---|---|---|---|---|---|");
const report = (row) => {
  const rest = row.others + row.wrong + row.resets;
  console.log(`| ${row.run} | ${row.coordinated} | ${row.left} (${row.due.left}) | `
    + `${row.vacated} (${row.due.vacated}) | ${row.ofReturned} | ${rest} | ${row.repeated} | `
    + `${(row.lastMs / 1_000).toFixed(1)} s | ${row.isRight ? "yes" : `NO ${row.difference}`} |`);
};
try {
  const { rows, backEnd } = await killNodes(t, { ...plan, broker, report });
  const right = rows.filter(({ isRight }) => isRight).length;
  console.log(`\n${right} of ${rows.length} runs right; ${backEnd.notices.size} notices, `
    + `${backEnd.repeated} sent again, ${backEnd.wrong.length} contradictions`);
  process.exitCode = right === rows.length && backEnd.wrong.length === 0 ? 0 : 1;
} finally {
  for (const end of ends) await end();
}
process.exit();
