// The guides of docs/migration: their code runs as shown and prints what they say, against the
// server of before and against Simurgh. Phoenix does not install from the registries that the tests
// may use, so that guide's Elixir does not run, and neither does PHP.

import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm, symlink } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";

import Echo from "laravel-echo";
import WebSocket from "ws";

import { serveWith } from "../support/backends.mjs";
import { filesOf, hasLines, runCommands, section, textOf } from "../support/guide.mjs";
import { E2E } from "../support/package.mjs";
import { ROOT } from "../support/server.mjs";
import { eventually } from "../support/wait.mjs";
import { startPusher } from "./pusher-server.mjs";

/** It takes 4 minutes to build: `go install github.com/centrifugal/centrifugo/v6@v6.9.1`. */
const CENTRIFUGO = process.env.E2E_CENTRIFUGO;
const ADAPTER = path.join(ROOT, "clients/pusher/pusher.mjs");

/** Runs a section as it is, and compares its output with the guide's. */
async function follow(t, guide, heading, options) {
  const blocks = await section(guide, heading);
  const output = await runCommands(t, textOf(blocks, "sh"), filesOf(blocks), options);
  hasLines(output, textOf(blocks, "text"));
  return output;
}

test("PHOENIX: the client works unchanged, with the application's tokens", async (t) => {
  await follow(t, "PHOENIX", "After");
});

test("SOCKET-IO: before", async (t) => {
  await follow(t, "SOCKET-IO", "Before");
});

test("SOCKET-IO: after", async (t) => {
  await follow(t, "SOCKET-IO", "After");
});

const skip = !CENTRIFUGO && "E2E_CENTRIFUGO is not set: it names a Centrifugo 6";
test("CENTRIFUGO: before", { skip }, async (t) => {
  await follow(t, "CENTRIFUGO", "Before", { bin: [path.dirname(CENTRIFUGO ?? "")] });
});

test("CENTRIFUGO: after", async (t) => {
  await follow(t, "CENTRIFUGO", "After");
});

test("PUSHER: before", async (t) => {
  const blocks = await section("PUSHER", "Before");
  const install = "npm install laravel-echo@2 pusher-js@8\n";
  const taken = { 8080: await startPusher(t) };
  const output = await runCommands(t, `${install}node client.mjs`, filesOf(blocks), { taken });
  hasLines(output, textOf(blocks, "text"));
});

test("PUSHER: after, with two changed lines", async (t) => {
  const before = await section("PUSHER", "Before");
  const after = await section("PUSHER", "After");
  const [newImport, newConnect] = textOf(after, "js").trim().split("\n");
  const client = filesOf(before)["client.mjs"]
    .replace('import Pusher from "pusher-js";', newImport)
    .replace(/^const connect = [^]*?\}\);$/m, newConnect);
  const files = {
    ...filesOf(after), "client.mjs": client, "pusher.mjs": await readFile(ADAPTER, "utf8"),
  };
  const output = await runCommands(t, textOf(after, "sh"), files);
  hasLines(output, textOf(before, "text"));
});

test("PUSHER: Echo's presence channels and refusals work by the adapter", async (t) => {
  const Pusher = await adapter(t);
  const server = await serveWith(t, `
[[channel]]
topic = "presence-rooms.*"
deny = ["presence-rooms.secret"]
presence = { key = "$subtopic" }
[[channel]]
topic = "presence-users.*"
presence = { meta = { name = "Ada" } }
`);
  const echo = () => {
    const client = new Pusher(`${server.wsUrl}/socket`, { transport: WebSocket });
    t.after(() => client.disconnect());
    return new Echo({ broadcaster: "pusher", client });
  };
  const seen = [];
  const [first, second] = [echo(), echo()];
  first.join("users.all")
    .here((members) => seen.push(["here", members.map(({ name }) => name)]))
    .joining(({ name }) => seen.push(["joining", name]))
    .leaving(({ name }) => seen.push(["leaving", name]));
  await eventually(() => assert.deepEqual(seen, [["here", ["Ada"]]]));
  second.join("users.all");
  await eventually(() => assert.deepEqual(seen.at(-1), ["joining", "Ada"]));
  second.leave("users.all");
  await eventually(() => assert.deepEqual(seen.at(-1), ["leaving", "Ada"]));
  assert.equal(seen.length, 3);
  first.join("rooms.secret").error(({ reason }) => seen.push(["error", reason]));
  await eventually(() => assert.deepEqual(seen.at(-1), ["error", "unauthorized"]));
});

/** The adapter, as a module of a project that has the Phoenix client. */
async function adapter(t) {
  const directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-adapter-"));
  t.after(() => rm(directory, { recursive: true }));
  await symlink(path.join(E2E, "node_modules"), path.join(directory, "node_modules"));
  await cp(ADAPTER, path.join(directory, "pusher.mjs"));
  return (await import(path.join(directory, "pusher.mjs"))).default;
}
