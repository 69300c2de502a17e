// `simurgh load --remote-write` sends its figures to a real Prometheus while it runs.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { missing } from "../support/backends.mjs";
import { BIN_DIR, startCommand, startProcess } from "../support/server.mjs";
import { eventually } from "../support/wait.mjs";

const PROMETHEUS = "/usr/bin/prometheus";
const skip = missing(PROMETHEUS, "Debian's prometheus");

test("Prometheus has the figures of each second", { skip }, async (t) => {
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-remote-write-"));
  t.after(() => rm(dir, { recursive: true, force: true }));
  await writeFile(path.join(dir, "prometheus.yml"), "{}");
  const prometheus = await startCommand(PROMETHEUS, [
    "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=info",
    "--web.listen-address=127.0.0.1:0", "--web.enable-remote-write-receiver",
  ], { cwd: dir, ready: /Listening on.* address=127\.0\.0\.1:(\d+)/ });
  t.after(() => prometheus.stop());
  const server = await startProcess("serve");
  t.after(() => server.stop());
  const file = path.join(dir, "scenario.toml");
  await writeFile(file, `name = "chat \\"1\\""
target = { url = "${server.wsUrl}" }
phase = { duration = "2s", rate = 10 }
session = [{ protocol = "phoenix", steps = [
  { connect = "/socket/websocket" }, { join = "rooms:lobby" }, { receive = "2s" },
] }]
`);
  await promisify(execFile)(path.join(BIN_DIR, "simurgh"), [
    "load", file, "--out", path.join(dir, "out"), "--dashboard", "off", "--quiet",
    "--remote-write", `${prometheus.url}/api/v1/write`,
  ]);
  const query = async (text) => {
    const answer = await fetch(`${prometheus.url}/api/v1/query?query=${encodeURIComponent(text)}`);
    return (await answer.json()).data.result;
  };
  await eventually(async () => {
    const [joins] = await query("simurgh_load_joins_ok_total");
    assert.equal(joins?.value[1], "20");
    assert.equal(joins.metric.scenario, 'chat "1"');
    const [seconds] = await query("count_over_time(simurgh_load_users[1m])");
    assert.ok(Number(seconds?.value[1]) >= 4, JSON.stringify(seconds));
    const times = 'simurgh_load_time_seconds{metric="join",quantile="1"}';
    const [slowest] = await query(`max_over_time(${times}[1m])`);
    assert.ok(Number(slowest?.value[1]) > 0, JSON.stringify(slowest));
  });
});
