// A nats-server of its own, ended by pid whatever happens.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import path from "node:path";

import { ROOT } from "./server.mjs";

const PROGRAMS = [process.env.SIMURGH_NATS_SERVER, path.join(ROOT, "target/engine/nats-server"),
  "/usr/sbin/nats-server"];
const START_MS_MAX = 20_000;
const LOOK_MS = 20;

const running = new Set();
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** Why there is none, if there is none. */
export function noEngine() {
  const program = PROGRAMS.find((it) => it && existsSync(it));
  return program ? false : "there is no nats-server: see `cargo xtask engine`";
}

/** Starts one in an empty folder, on a free port; `{url, kill}`. */
export async function startEngine(folder) {
  const program = PROGRAMS.find((it) => it && existsSync(it));
  const args = ["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", "."];
  const child = spawn(program, args, { cwd: folder, stdio: "ignore" });
  running.add(child);
  child.once("exit", () => running.delete(child));
  const until = Date.now() + START_MS_MAX;
  while (true) {
    const url = ports(folder);
    if (url) return { url, kill: () => child.kill("SIGKILL") };
    assert.ok(Date.now() < until && child.exitCode === null, "the engine does not start");
    await new Promise((resolve) => { setTimeout(resolve, LOOK_MS); });
  }
}

/** What it wrote of its ports; nothing while it writes. */
function ports(folder) {
  const file = readdirSync(folder).find((name) => name.endsWith(".ports"));
  if (!file) return null;
  try {
    return JSON.parse(readFileSync(path.join(folder, file), "utf8")).nats[0];
  } catch {
    return null;
  }
}
