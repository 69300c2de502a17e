// Cached answers of an application on several nodes (docs/BACKENDS.md): official clients that
// reconnect to another node ask nothing again.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";

import { Application, browser } from "../support/application.mjs";
import { NO_BROKER } from "../support/broker.mjs";
import { startCluster } from "../support/cluster.mjs";
import { eventually, until } from "../support/wait.mjs";

const CLIENTS = 18;

async function metric(node, name) {
  const text = await (await fetch(`${node.url}/metrics`)).text();
  return new RegExp(`^${name}\\{.*\\} (\\d+)$`, "m").exec(text)?.[1];
}

test("clients that reconnect to another node ask nothing", { skip: NO_BROKER }, async (t) => {
  const app = await Application.start(t);
  app.answers.connect = ({ headers }) => ({ user: headers.cookie.slice(8), cache_for: 600 });
  app.answers.join = ({ user }) => ({ reply: { user }, cache_for: 600 });
  const directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-grants-"));
  t.after(() => rm(directory, { recursive: true }));
  const file = path.join(directory, "simurgh.toml");
  await writeFile(file, `
[[hook]]
name = "app"
url = "${app.url}"
questions = ["connect"]
forward = { cookies = ["session"] }
[[channel]]
topic = "rooms:*"
join_hook = "app"
`);
  const cluster = await startCluster("serve", 2, { args: ["--config", file] });
  t.after(() => cluster.kill());
  const [one, two] = cluster.nodes;
  cluster.balancer.ports = [one.port];
  const clients = await Promise.all(Array.from({ length: CLIENTS }, async (_, n) => {
    const client = await browser(t, cluster, { cookie: `session=user${n}` });
    const { channel } = await client.join("rooms:lobby");
    return { client, channel };
  }));
  assert.equal(app.questions.length, 2 * CLIENTS);
  await eventually(async () => {
    const bytes = await metric(one, "simurgh_hook_cache_bytes");
    assert.equal(await metric(two, "simurgh_hook_cache_bytes"), bytes);
  });

  cluster.balancer.ports = [two.port];
  for (const { client } of clients) client.frames.sockets.at(-1).terminate();
  await until(() => clients.every(({ client, channel }) => {
    return client.frames.sockets.length > 1 && channel.state === "joined";
  }), "all clients back");
  assert.equal(app.questions.length, 2 * CLIENTS);
});
