// The npm package simurgh-resume: what is in it, that it can be imported, that its types are right.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { ROOT } from "../support/server.mjs";

const run = promisify(execFile);
const require = createRequire(import.meta.url);
const PACKAGE = path.join(ROOT, "clients/js");
const E2E = path.join(ROOT, "e2e");

/** A directory in which the packed package is installed, as npm would. */
let dir;
let packed;
before(async () => {
  dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-resume-"));
  const args = ["pack", "--json", "--pack-destination", dir];
  [packed] = JSON.parse((await run("npm", args, { cwd: PACKAGE })).stdout);
  const to = path.join(dir, "node_modules/simurgh-resume");
  await mkdir(to, { recursive: true });
  const archive = path.join(dir, packed.filename);
  await run("tar", ["-xzf", archive, "-C", to, "--strip-components=1"]);
});
after(async () => { await rm(dir, { recursive: true }); });

test("it has its files and no others, and the project's licences and version", async () => {
  assert.deepEqual(packed.files.map((file) => file.path).sort(), [
    "LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json", "simurgh-resume.d.ts",
    "simurgh-resume.js",
  ]);
  for (const file of ["LICENSE-APACHE", "LICENSE-MIT"]) {
    const [own, project] = [path.join(PACKAGE, file), path.join(ROOT, file)];
    assert.equal(await readFile(own, "utf8"), await readFile(project, "utf8"), file);
  }
  const manifest = JSON.parse(await readFile(path.join(PACKAGE, "package.json"), "utf8"));
  const workspace = await readFile(path.join(ROOT, "Cargo.toml"), "utf8");
  for (const key of ["version", "license"]) {
    const [, expected] = new RegExp(`^${key} = "(.*)"$`, "m").exec(workspace);
    assert.equal(manifest[key], expected, key);
  }
  // Nothing runs when it is installed, and it brings nothing along.
  assert.equal(manifest.scripts, undefined);
  assert.equal(manifest.dependencies, undefined);
  const lines = (await readFile(path.join(PACKAGE, "simurgh-resume.js"), "utf8")).split("\n");
  assert.ok(lines.length - 1 <= 40, `${lines.length - 1} lines`);
});

test("it is imported by its name", async () => {
  const file = path.join(dir, "use.mjs");
  await writeFile(file, `
    import { resumable } from "simurgh-resume";
    const socket = { channel: (topic, params) => ({ topic, params, onMessage: () => 1 }) };
    const channel = resumable(socket, "rooms:tea", { user: 1 }, { since: "a00000.7" });
    console.log(JSON.stringify([channel.topic, channel.params, channel.position()]));
  `);
  const { stdout } = await run(process.execPath, [file]);
  const params = { user: 1, simurgh: { since: "a00000.7" } };
  assert.deepEqual(JSON.parse(stdout), ["rooms:tea", params, "a00000.7"]);
});

test("its types allow what it takes, and nothing else", async () => {
  const use = path.join(dir, "use.ts");
  await writeFile(use, await readFile(path.join(E2E, "types/use.ts"), "utf8"));
  const options = {
    compilerOptions: {
      strict: true, noEmit: true, module: "nodenext", target: "es2022", lib: ["es2022", "dom"],
      types: [], paths: { phoenix: [path.join(E2E, "node_modules/@types/phoenix/index.d.ts")] },
    },
    files: ["use.ts"],
  };
  await writeFile(path.join(dir, "tsconfig.json"), JSON.stringify(options));
  const tsc = require.resolve("typescript/bin/tsc");
  const { stdout } = await run(process.execPath, [tsc, "-p", dir]).catch((error) => error);
  assert.equal(stdout, "");
});
