// A running server is taken over again and again, under clients that receive numbered messages
// (crowd.mjs).

import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import pathOf from "node:path";

import { now } from "./crowd-clients.mjs";
import { Crowd, TOKEN } from "./crowd.mjs";
import { startProcess } from "./server.mjs";
import { within } from "./wait.mjs";

/** For the clients to return, beyond `drainMs`; only a failure takes so long. */
const BACK_MS_MAX = 30_000;

/** The server's settings in a file, with which every process starts. */
async function settings({ drainMs, clients }) {
  const directory = await mkdtemp(pathOf.join(os.tmpdir(), "simurgh-takeover-"));
  const file = pathOf.join(directory, "simurgh.toml");
  await writeFile(file, `
drain_time = "${drainMs}ms"
max_connections = ${clients + 10_000}
[[channel]]
topic = "rooms:*"
history = { count = 1000 }
`);
  return { directory, file };
}

/**
 * `runs` take-overs. Returns a row for each: what clients noticed (`Crowd.rows`), the ms until the
 * later server listened (`start_ms`), and from then to the last client's return (`back_ms`). And
 * what all clients missed in all runs.
 */
export async function runTakeovers(t, plan) {
  const { clients, official, drainMs, runs, report } = plan;
  const { directory, file } = await settings({ drainMs, clients });
  t.after(() => rm(directory, { recursive: true }));
  const options = { args: ["--config", file], env: Object.fromEntries([TOKEN]) };
  let server = await startProcess("serve", options);
  t.after(() => server.kill());
  const { port } = server;
  const place = (run) => `process ${run}`;
  const crowd = await Crowd.connect(t, plan, { ports: [port], name: place(0) });
  const rows = [];
  for (let run = 1; run <= runs; run += 1) {
    const earlier = server;
    crowd.use({ ports: [port], name: place(run) });
    const begun = now();
    const later = { ...options, port, args: [...options.args, "--take-over"] };
    server = await startProcess("serve", later);
    const listens = now();
    await crowd.haveLeft(place(run - 1), drainMs + BACK_MS_MAX);
    const { code } = await within(earlier.ended, "end of the earlier server");
    const { back_at: backAt, moves, ...noticed } = (await crowd.rows())[place(run - 1)];
    const row = {
      run, code, ...noticed,
      not_back: clients + official - moves,
      start_ms: Math.round(listens - begun),
      back_ms: Math.round(backAt - listens),
    };
    rows.push(row);
    report?.(row);
  }
  return { rows, ...await crowd.end() };
}
