// The npm package simurgh-resume: what is in it, that Node imports it, that its types are right.
// (In a browser: playwright/package.test.mjs.)

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, test } from "node:test";

import { CURRENT } from "../support/clients.mjs";
import { speaker, startKeeper } from "../support/history.mjs";
import { E2E, PACKAGE, install, run } from "../support/package.mjs";
import { ROOT } from "../support/server.mjs";

const require = createRequire(import.meta.url);

let project;
before(async () => { project = await install(); });
after(async () => { await project?.end(); });

test("the package has exactly its files, and the project's licences and version", async () => {
  assert.deepEqual(project.packed.files.map((file) => file.path).sort(), [
    "LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json", "simurgh-resume.cjs",
    "simurgh-resume.d.cts", "simurgh-resume.d.ts", "simurgh-resume.js",
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

/** Runs a script of the project that has the package; what it prints last, as JSON. */
async function runScript(name, text, ...args) {
  const file = path.join(project.dir, name);
  await writeFile(file, text);
  const { stdout } = await run(process.execPath, [file, ...args], { timeout: 20_000 });
  return JSON.parse(stdout.trim().split("\n").at(-1));
}

/** Joins, is cut off when it has heard `a`, and ends when it has heard `c`. */
const USE = `
  import { createRequire } from "node:module";
  import { Socket } from "phoenix";
  import { resumable } from "simurgh-resume";
  const WebSocket = createRequire(process.argv[3])("ws");
  const transport = WebSocket;
  const pace = { reconnectAfterMs: () => 50, rejoinAfterMs: () => 50 };
  const socket = new Socket(process.argv[2], { transport, ...pace });
  socket.connect();
  const heard = [];
  const room = resumable(socket, "kept:packed", {}, { onGap: (gap) => heard.push(gap) });
  room.on("msg", ({ text }) => {
    heard.push(text);
    if (text === "a") socket.conn.terminate();
    if (text !== "c") return;
    console.log(JSON.stringify({ heard, position: room.position() }));
    process.exit(0);
  });
  room.join().receive("ok", () => { if (heard.length === 0) room.push("msg", { text: "a" }); });
`;

test("Node imports it by its name, and it resumes", async (t) => {
  const server = await startKeeper();
  t.after(() => server.end());
  const args = [`${server.wsUrl}/socket`, path.join(E2E, "package.json")];
  // Somebody else answers when the script has ended its connection.
  const { channel, say } = await speaker(t, CURRENT, server, "kept:packed");
  channel.on("msg", ({ text }) => {
    if (text === "a") for (const next of ["b", "c"]) say({ text: next });
  });
  const { heard, position } = await runScript("use.mjs", USE, ...args);
  assert.deepEqual(heard, ["a", "b", "c"]);
  assert.match(position, /^[a-z][0-9a-z]{5}\.\d+$/);
});

test("CommonJS gets the same exports by require() and by import()", async () => {
  const print = "({ resumable }) => console.log(JSON.stringify(typeof resumable))";
  const imported = await runScript("use.cjs", `import("simurgh-resume").then(${print})`);
  assert.equal(imported, "function");
  assert.equal(await runScript("old.cjs", `(${print})(require("simurgh-resume"))`), "function");
  const read = (name) => readFile(path.join(PACKAGE, name), "utf8");
  const code = (text) => text.slice(text.indexOf("// No message lost"))
    .replace("exports.resumable = function", "export function");
  assert.equal(code(await read("simurgh-resume.cjs")), await read("simurgh-resume.js"));
  assert.equal(await read("simurgh-resume.d.cts"), await read("simurgh-resume.d.ts"));
});

test("the types allow exactly the valid arguments, in both kinds of modules", async () => {
  const use = await readFile(path.join(E2E, "types/use.ts"), "utf8");
  for (const name of ["use.mts", "use.cts"]) await writeFile(path.join(project.dir, name), use);
  const options = {
    compilerOptions: {
      strict: true, noEmit: true, module: "nodenext", target: "es2022", lib: ["es2022", "dom"],
      types: [], paths: { phoenix: [path.join(E2E, "node_modules/@types/phoenix/index.d.ts")] },
    },
    files: ["use.mts", "use.cts"],
  };
  await writeFile(path.join(project.dir, "tsconfig.json"), JSON.stringify(options));
  const tsc = require.resolve("typescript/bin/tsc");
  const { stdout } = await run(process.execPath, [tsc, "-p", project.dir]).catch((error) => error);
  assert.equal(stdout, "");
});
