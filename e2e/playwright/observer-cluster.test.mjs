// The observer's page of a cluster: three servers on a real broker, observed through one of them.
// SHOTS=1 also takes the picture, into SHOTS_DIR where that is set.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { WebSocket } from "ws";

import { counts, launchBrowser, newWindow, reads, WAIT } from "../support/browser.mjs";
import { Broker, NO_BROKER } from "../support/broker.mjs";
import { startServer, ROOT } from "../support/server.mjs";
import { eventually, within } from "../support/wait.mjs";

const DESK = { viewport: { width: 1280, height: 900 }, locale: "en-GB" };
const PHONE = { viewport: { width: 400, height: 800 }, isMobile: true, hasTouch: true };
const SHOTS_DIR = process.env.SHOTS_DIR ?? path.join(ROOT, "docs/img");
const HOSTILE = "<img src=x onerror='window.broken=1'>\u001b[2J\u202e";
const skip = NO_BROKER;

let browser;
let folder;
before(async () => {
  folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-observer-cluster-"));
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  if (folder) rmSync(folder, { recursive: true });
});

async function broker(t) {
  const broker = await Broker.start();
  t.after(() => broker.remove());
  return broker;
}

/** A node of this name. The clients of these tests send no heartbeats. */
async function node(t, { url }, name) {
  const file = path.join(mkdtempSync(path.join(folder, "node-")), "simurgh.toml");
  writeFileSync(file, `idle_timeout = "off"
[cluster]
engine = "nats"
name = ${JSON.stringify(name)}
servers = [${JSON.stringify(url)}]
required = "20s"
[[channel]]
topic = "room:*"
presence = { key = "$user", meta = {} }
[[channel.event]]
name = "say"
broadcast = "all"
`);
  const args = ["--config", file, "--shards", "2"];
  const server = await startServer("serve", { args });
  t.after(() => server.kill());
  return server;
}

/** A client of V2 that has joined a topic. */
async function member(t, server, topic, payload = {}) {
  const socket = new WebSocket(`${server.wsUrl}/socket/websocket?vsn=2.0.0`);
  t.after(() => socket.terminate());
  await within(new Promise((resolve, reject) => {
    socket.once("open", resolve);
    socket.once("error", reject);
  }), "connection");
  const replied = within(new Promise((resolve) => { socket.once("message", resolve); }), "reply");
  socket.send(JSON.stringify(["1", "1", topic, "phx_join", payload]));
  assert.match(String(await replied), /"ok"/);
  return socket;
}

async function open(t, server, view, options = DESK) {
  const { page, seen } = await newWindow(t, browser, options);
  await page.goto(`${server.url}/observer/#${view}`);
  await page.locator('[data-testid="state"][data-state="running"]').waitFor(WAIT);
  return { page, seen };
}

const row = (page, id, name) => (
  page.getByTestId(`table-${id}`).locator("tbody tr").filter({ hasText: name }));

test("one page shows all nodes, and where the members of a topic are", { skip }, async (t) => {
  const nats = await broker(t);
  const nodes = await Promise.all(["amber", "birch", "cedar"].map((name) => node(t, nats, name)));
  const clients = [];
  for (const [at, count] of [[0, 3], [1, 5], [2, 2]]) {
    for (let n = 0; n < count; n += 1) {
      clients.push(await member(t, nodes[at], "room:lobby", { user: `user-${at}-${n}` }));
    }
  }
  const talk = setInterval(() => {
    clients[0].send(JSON.stringify(["1", "2", "room:lobby", "say", { text: "hello" }]));
  }, 50);
  t.after(() => clearInterval(talk));
  const { page, seen } = await open(t, nodes[2], "cluster");
  await page.getByTestId("card-cluster-sockets").locator("strong").getByText(/^10$/).waitFor(WAIT);
  await reads(page.getByTestId("card-link").locator("strong"), "up");
  await counts(page.getByTestId("table-nodes").locator("tbody tr"), 3);
  // A node that misses a query is shown by its last heartbeat until the next query.
  await row(page, "nodes", /^amberalive33/).waitFor(WAIT);
  await row(page, "nodes", /^birchalive55/).waitFor(WAIT);
  await row(page, "nodes", /^cedar \(this one\)alive22/).waitFor(WAIT);
  await row(page, "lives", /^birch.*ms/).waitFor(WAIT);
  await reads(page.getByTestId("cluster-link"), /Broker.*nats:\/\/127\.0\.0\.1:\d+, NATS \d/);
  if (process.env.SHOTS) {
    mkdirSync(SHOTS_DIR, { recursive: true });
    await page.waitForTimeout(6_000);
    await page.screenshot({ path: path.join(SHOTS_DIR, "observer-cluster.png") });
  }

  await page.getByTestId("tab-topics").click();
  // A click queries the nodes; a node that does not answer in time is named.
  const wanted = "On all nodes 10: cedar (this one) 2, amber 3, birch 5";
  await eventually(async () => {
    await page.getByRole("button", { name: "room:lobby" }).click();
    await page.waitForTimeout(500);
    assert.equal(await page.getByTestId("places").textContent(), wanted);
  });

  // A stopped node disappears; a killed one stays until it is known to be gone.
  await page.getByTestId("tab-cluster").click();
  await nodes[1].stop();
  await row(page, "nodes", "birch").waitFor({ state: "detached", ...WAIT });
  await nodes[0].kill();
  await row(page, "nodes", "amber").getByText("–").first().waitFor(WAIT);
  await reads(page.locator("header .note", { hasText: "answer" }), /1 did not answer/);
  // Without the broker the page shows the reason, and the last known figures.
  await nats.kill();
  await page.getByTestId("cluster-notices").getByText("No link", { exact: true }).waitFor(WAIT);
  await counts(row(page, "nodes", "amber"), 1);
  assert.deepEqual(seen.complaints, []);
  const own = new URL(nodes[2].url).host;
  assert.deepEqual(seen.requests.filter((url) => new URL(url).host !== own), []);
});

test("names of nodes stay text, and a duplicate name is reported", { skip }, async (t) => {
  const nats = await broker(t);
  const server = await node(t, nats, "one");
  await Promise.all([node(t, nats, HOSTILE), node(t, nats, HOSTILE)]);
  const { page, seen } = await open(t, server, "cluster");
  const names = page.getByTestId("table-nodes").locator("td.name");
  await names.nth(2).waitFor(WAIT);
  for (const name of (await names.allTextContents()).filter((text) => !text.startsWith("one"))) {
    assert.equal(name, "<img src=x onerror='window.broken=1'>\\u001b[2J\\u202e");
  }
  await page.getByTestId("cluster-notices").getByText("Two nodes have one name").waitFor(WAIT);
  await reads(page.getByTestId("cluster-notices"), /\\u001b\[2J\\u202e: [\w-]{11}, [\w-]{11}$/);
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.equal(await page.locator("img").count(), 0);
  assert.deepEqual(seen.complaints, []);
});

test("a single server has no cluster tab", async (t) => {
  const server = await startServer("serve");
  t.after(() => server.kill());
  const { page, seen } = await open(t, server, "cluster");
  assert.equal(await page.getByTestId("tab-cluster").isVisible(), false);
  assert.equal(await page.getByTestId("card-uptime").isVisible(), true, "the overview instead");
  assert.deepEqual(seen.complaints, []);
});

test("a phone's width needs no sideways scrolling", { skip }, async (t) => {
  const server = await node(t, await broker(t), "a-node-with-a-name-that-is-rather-long");
  const { page } = await open(t, server, "cluster", PHONE);
  await page.getByTestId("table-nodes").locator("tbody tr").waitFor(WAIT);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});
