// The npm package simurgh-resume as projects use it: packed, and installed from the archive.

import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { promisify } from "node:util";

import { ROOT } from "./server.mjs";

export const run = promisify(execFile);
export const PACKAGE = path.join(ROOT, "clients/js");
export const E2E = path.join(ROOT, "e2e");

/** A project with the package and the official client in its node_modules, until `end`. */
export async function install() {
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-resume-"));
  const pack = ["pack", "--json", "--pack-destination", dir];
  const [packed] = JSON.parse((await run("npm", pack, { cwd: PACKAGE })).stdout);
  await writeFile(path.join(dir, "package.json"), JSON.stringify({ private: true }));
  // Nothing is fetched: its only dependency is the client that is already here.
  const phoenix = path.join(E2E, "node_modules/phoenix");
  const install = ["install", "--offline", "--no-audit", "--no-fund", packed.filename, phoenix];
  await run("npm", install, { cwd: dir });
  return { dir, packed, end: () => rm(dir, { recursive: true }) };
}
