// The example of docs/BACKENDS.md: seconds online per user, and a producer for each room with
// members, although the server and the application are killed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import test from "node:test";

import { PYTHON, SECRET, missing } from "../support/backends.mjs";
import { Balancer } from "../support/balancer.mjs";
import { API_TOKEN, KEY, User } from "../support/notices.mjs";
import { ROOT, startCommand, startProcess } from "../support/server.mjs";
import { eventually } from "../support/wait.mjs";

const EXAMPLE = path.join(ROOT, "examples/any_language/notices");
const python = PYTHON ?? "/usr/bin/python3";
const skip = missing(python, "Python");
/** Times are cut to milliseconds, at both ends. */
const CUT_S = 0.01;

class Example {
  static async start(t) {
    const directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-notices-"));
    const front = await Balancer.open();
    const example = Object.assign(new Example(), { directory, front });
    t.after(async () => {
      await example.server?.kill();
      await example.app?.kill();
      front.close();
      await rm(directory, { recursive: true });
    });
    await mkdir(path.join(directory, "state"));
    await example.startApp(0);
    await example.startServer(0);
    return example;
  }

  env = { HOOK_SECRET: SECRET, SIMURGH_API_TOKEN: API_TOKEN, TOKEN_KEY: KEY };

  async startApp(port) {
    const env = {
      ...this.env, DATABASE: path.join(this.directory, "db"), PORT: `${port}`,
      SIMURGH_URL: `http://127.0.0.1:${this.front.port}`,
    };
    const ready = /listening on http:\/\/127\.0\.0\.1:(\d+)/;
    this.app = await startCommand(python, ["-B", path.join(EXAMPLE, "app.py")], { env, ready });
  }

  async startServer(port) {
    const file = path.join(this.directory, "simurgh.toml");
    const settings = (await readFile(path.join(EXAMPLE, "simurgh.toml"), "utf8"))
      .replace("http://127.0.0.1:3000", this.app.url)
      .replace('"state"', JSON.stringify(path.join(this.directory, "state")))
      .replace("secret_env", 'leave_grace = "500ms"\nsecret_env');
    await writeFile(file, `drain_time = "500ms"\n${settings}`);
    this.server = await startProcess("serve", { port, args: ["--config", file], env: this.env });
    this.front.ports = [this.server.port];
  }

  async status() {
    return await (await fetch(this.app.url)).json();
  }

  async producersAre(topics) {
    await eventually(async () => assert.deepEqual((await this.status()).producers, topics), 60_000);
  }

  /** The user's seconds are at least those from `joined` to `left`, and at most those until now. */
  async hasSeconds({ name, before, joined }, left) {
    await eventually(async () => assert.ok((await this.status()).online[name] > 0), 60_000);
    const seconds = (await this.status()).online[name];
    const [least, most] = [(left - joined) / 1_000, (Date.now() - before) / 1_000];
    assert.ok(seconds > least - CUT_S, `${name}: ${seconds} s, at least ${least}`);
    assert.ok(seconds < most + CUT_S, `${name}: ${seconds} s, at most ${most}`);
  }

  async join(name, topic) {
    const user = new User(name, topic);
    user.before = Date.now();
    await user.join(this.server.port);
    user.joined = Date.now();
    return user;
  }
}

test("B42, B50: seconds online and producers are right although both sides are killed", {
  skip, timeout: 180_000,
}, async (t) => {
  const example = await Example.start(t);
  const ann = await example.join("ann", "rooms:1");
  const bob = await example.join("bob", "rooms:1");
  const cy = await example.join("cy", "rooms:2");
  await example.producersAre(["rooms:1", "rooms:2"]);
  const times = [];
  ann.socket.on("message", (text) => {
    const [, , topic, event] = JSON.parse(text);
    if (event === "time") times.push(topic);
  });
  const cyLeft = Date.now();
  cy.leave();
  await example.producersAre(["rooms:1"]);
  await example.hasSeconds(cy, cyLeft);
  await eventually(async () => assert.ok(times.length > 0), 60_000);
  assert.ok(times.every((topic) => topic === "rooms:1"));

  const killed = Date.now();
  await example.server.kill();
  await example.app.kill();
  await example.startApp(example.app.port);
  assert.deepEqual((await example.status()).producers, ["rooms:1"]);
  await example.startServer(example.server.port);
  await ann.join(example.server.port);
  await example.hasSeconds(bob, killed);
  const { online, producers } = await example.status();
  assert.equal(online.ann, undefined, "she has returned in time");
  assert.deepEqual(producers, ["rooms:1"]);

  const annLeft = Date.now();
  ann.leave();
  await example.producersAre([]);
  await example.hasSeconds(ann, annLeft);
});

test("code of docs/BACKENDS.md is that of the example", async () => {
  const page = readFileSync(path.join(ROOT, "docs/BACKENDS.md"), "utf8");
  const [, code] = /```python\n(.*?)```/s.exec(page);
  assert.ok((await readFile(path.join(EXAMPLE, "app.py"), "utf8")).includes(code));
});
