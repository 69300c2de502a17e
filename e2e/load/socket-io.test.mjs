// `simurgh load` against real Socket.IO and Engine.IO servers, whose pings are text frames: users
// with a rule or a heartbeat stay connected, and users without one are closed by the server.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { Server } from "socket.io";

import { BIN_DIR } from "../support/server.mjs";

const USERS = 20;
const PING_MS = 1_000;
const STAY_MS = 5_000;

const http = createServer();
const io = new Server(http, { pingInterval: PING_MS, pingTimeout: PING_MS, allowEIO3: true });
const closed = [];
io.on("connection", (socket) => {
  socket.on("say", (text, answer) => answer(text));
  socket.on("disconnect", (reason) => closed.push(reason));
});

let dir;
before(async () => {
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
  dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-socket-io-"));
});
after(async () => {
  await io.close();
  await rm(dir, { recursive: true });
});

/** Runs users of Engine.IO `version` with these keys of a session; resolves to their report. */
async function load(name, version, keys, steps = "") {
  closed.length = 0;
  const file = path.join(dir, `${name}.toml`);
  const out = path.join(dir, name);
  await writeFile(
    file,
    `[target]
url = "ws://127.0.0.1:${http.address().port}"
[[phase]]
duration = "500ms"
rate = ${2 * USERS}
[[session]]
${keys}
steps = [
  { connect = "/socket.io/?EIO=${version}&transport=websocket" },
  { wait = { regex = '^0\\{"sid"' } },
${version === 4 ? '  { send = "40" },' : ""}
  { wait = { regex = "^40" } },
${steps}
  { receive = "${STAY_MS}ms" },
  { close = true },
]
`,
  );
  const args = ["load", file, "--out", out, "--dashboard", "off", "--quiet"];
  await promisify(execFile)(path.join(BIN_DIR, "simurgh"), args);
  return JSON.parse(await readFile(path.join(out, "report.json"), "utf8"));
}

const count = (report, name) => report.counts[name] ?? 0;

/** Nobody was closed, and the server knows of no time-out. */
function allStayed(report) {
  assert.equal(count(report, "users_finished"), USERS, JSON.stringify(report.counts));
  assert.equal(report.errors_total, 0, JSON.stringify(report.errors));
  assert.deepEqual(closed.filter((reason) => reason === "ping timeout"), []);
}

test("users with an answering rule stay connected to Socket.IO", async () => {
  const rule = 'answer = [{ when = "2", send = "3" }]';
  const say = `  { loop = 4, every = "1s", counter = "i", steps = [
    { send = '42{{i}}["say","{{user_id}}"]', reply = { regex = '^43{{i}}\\["{{user_id}}"' } },
  ] },`;
  const report = await load("rule", 4, rule, say);
  allStayed(report);
  assert.ok(count(report, "answers") >= USERS * 4, JSON.stringify(report.counts));
  assert.equal(count(report, "frames_out_text"), USERS * 5 + count(report, "answers"));
});

test("Socket.IO closes users without a rule", async () => {
  const report = await load("no-rule", 4, "");
  assert.equal(closed.filter((reason) => reason === "ping timeout").length, USERS);
  assert.equal(count(report, "answers"), 0);
  assert.equal(report.errors_total, USERS, JSON.stringify(report.errors));
});

test("users with a heartbeat stay connected to Engine.IO 3", async () => {
  const report = await load("heartbeat", 3, `heartbeat = { every = "${PING_MS}ms", send = "2" }`);
  allStayed(report);
  assert.ok(count(report, "heartbeats") >= USERS * 4, JSON.stringify(report.counts));
});

test("Engine.IO 3 closes users without a heartbeat", async () => {
  const report = await load("no-heartbeat", 3, "");
  assert.equal(closed.filter((reason) => reason === "ping timeout").length, USERS);
  assert.equal(report.errors_total, USERS, JSON.stringify(report.errors));
});
