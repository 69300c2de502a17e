// The observer's page in a real browser while a load runs. SHOTS=1 also takes pictures, into
// SHOTS_DIR where that is set.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { WebSocket } from "ws";

import { Application, refusal, startAsking } from "../support/application.mjs";
import { counts, launchBrowser, newWindow, reads, WAIT } from "../support/browser.mjs";
import { startServer, BIN_DIR, ROOT } from "../support/server.mjs";
import { eventually, within } from "../support/wait.mjs";

const DESK = { viewport: { width: 1280, height: 900 }, locale: "en-GB" };
const PHONE = { viewport: { width: 400, height: 800 }, isMobile: true, hasTouch: true };
const SHOTS_DIR = process.env.SHOTS_DIR ?? path.join(ROOT, "docs/img");
const TOKEN = "a-token-for-this-test";
const HOSTILE = "rooms:<img src=x onerror=\"window.broken=1\"></script>\u001b[2J\u202eevil\n";

/** Many rooms of some users each, one with all, and messages all the time. */
const SCENARIO = (port) => `
name = "observed"
seed = 1
max_users = 1200

[target]
url = "ws://127.0.0.1:${port}"

[[phase]]
name = "arrive"
duration = "3s"
rate = 400

[[phase]]
name = "stay"
duration = "10min"
rate = 0

[[session]]
name = "listener"
weight = 94
protocol = "phoenix"
heartbeat = "30s"
steps = [
  { connect = "/socket/websocket" },
  { join = "rooms:lobby", payload = { user = "{{user_id}}" } },
  { join = "rooms:table-{{random_number 1 90}}", payload = { user = "{{user_id}}" } },
  { receive = "10min" },
]

[[session]]
name = "talker"
weight = 6
protocol = "phoenix"
heartbeat = "30s"
steps = [
  { connect = "/socket/websocket" },
  { set = "room", value = "rooms:table-{{random_number 1 9}}" },
  { join = "{{room}}", payload = { user = "{{user_id}}" } },
  { loop = 1200, every = "500ms", steps = [
    { push = "new:msg", payload = { user = "talker", body = "hello" } },
  ] },
]
`;

let browser;
let folder;
before(async () => {
  folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-observer-"));
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  if (folder) rmSync(folder, { recursive: true });
});

/** The clients of these tests send no heartbeats, however long a test takes. */
async function observed(t, args = [], env = {}) {
  const usual = ["--shards", "4", "--idle-timeout", "off"];
  const server = await startServer("serve", { args: [...usual, ...args], env });
  t.after(() => server.kill());
  return server;
}

/** 1,200 users in 90 rooms and a lobby, some of whom talk; ends with the test. */
async function load(t, server) {
  const file = path.join(folder, "observed.toml");
  writeFileSync(file, SCENARIO(server.port));
  const args = ["load", file, "--dashboard", "off", "--quiet", "--out", path.join(folder, "out"),
    "--overwrite"];
  const stdio = ["ignore", "ignore", "inherit"];
  const child = spawn(path.join(BIN_DIR, "simurgh"), args, { stdio });
  t.after(() => child.kill("SIGKILL"));
}

/** A client of V2 that has joined a topic. */
async function member(t, server, topic) {
  const socket = new WebSocket(`${server.wsUrl}/socket/websocket?vsn=2.0.0`);
  t.after(() => socket.terminate());
  await within(new Promise((resolve, reject) => {
    socket.once("open", resolve);
    socket.once("error", reject);
  }), "connection");
  const replied = within(new Promise((resolve) => { socket.once("message", resolve); }), "reply");
  socket.send(JSON.stringify(["1", "1", topic, "phx_join", { user: "eve" }]));
  assert.match(String(await replied), /"ok"/);
  return socket;
}

async function open(t, server, options = DESK) {
  const { page, seen } = await newWindow(t, browser, options);
  await page.goto(`${server.url}/observer`);
  return { page, seen };
}

async function live(page) {
  await page.locator('[data-testid="state"][data-state="running"]').waitFor(WAIT);
}

async function tab(page, name) {
  await page.getByTestId(`tab-${name}`).click();
}

const rows = (page, id) => page.getByTestId(`table-${id}`).locator("tbody tr");

async function picture(page, name, height = DESK.viewport.height) {
  if (!process.env.SHOTS) return;
  mkdirSync(SHOTS_DIR, { recursive: true });
  const clip = { x: 0, y: 0, width: DESK.viewport.width, height };
  await page.screenshot({ path: path.join(SHOTS_DIR, `${name}.png`), clip });
}

test("all views show a server under load", async (t) => {
  const args = ["--outbound-bytes-max", "64MiB", "--slow-after", "10min"];
  const server = await observed(t, args, { SIMURGH_API_TOKEN: TOKEN });
  await load(t, server);
  const slow = await member(t, server, "rooms:slow");
  slow.pause();
  for (let n = 0; n < 8; n += 1) {
    const answer = await fetch(`${server.url}/api/broadcast`, {
      method: "POST",
      headers: { authorization: `Bearer ${TOKEN}` },
      body: JSON.stringify({ topic: "rooms:slow", event: "x", payload: { x: "x".repeat(2e6) } }),
    });
    assert.equal(answer.status, 202);
  }
  const { page, seen } = await open(t, server);
  await page.getByTestId("token").fill(TOKEN);
  await page.getByTestId("token").press("Enter");
  await live(page);
  const users = page.getByTestId("card-connections").locator("strong");
  await reads(users, /^1.201$/);
  const out = page.getByTestId("card-messages_out").locator("strong");
  await out.filter({ hasNotText: /^0/ }).waitFor(WAIT);
  for (const id of ["connections", "messages", "bytes", "cpu", "turns", "backlog", "memory"]) {
    // Five minutes are as wide as the chart: a line needs some seconds to be one.
    const lines = page.getByTestId(`chart-${id}`).locator("path.line");
    await eventually(async () => {
      const lengths = await lines.evaluateAll((all) => all.map((line) => line.getTotalLength()));
      assert.ok(lengths.some((length) => length > 5), `${id}: ${lengths}`);
    });
  }
  await rows(page, "memory").nth(6).waitFor(WAIT);
  if (process.env.SHOTS) await page.waitForTimeout(25_000);
  await picture(page, "observer-overview");

  await tab(page, "shards");
  await counts(rows(page, "shards"), 4);

  await tab(page, "topics");
  // Users are connected before they have joined.
  await reads(rows(page, "topics").first(), /^rooms:lobby1.?\d\d\d/);
  await page.getByRole("button", { name: "Deliveries/s" }).click();
  await reads(rows(page, "topics").first(), /^rooms:table-\d/);
  await picture(page, "observer-topics");
  await page.getByTestId("topic-search").fill("table-7");
  await counts(rows(page, "topics"), 11);
  await page.getByRole("button", { name: "rooms:table-77" }).click();
  await page.getByTestId("members").waitFor(WAIT);
  await rows(page, "members").nth(1).waitFor(WAIT);

  await tab(page, "connections");
  await page.getByRole("button", { name: "Queued" }).click();
  await reads(rows(page, "connections").first(), /rooms:slow.*MB/);
  await picture(page, "observer-connections", 320);
  await page.getByRole("button", { name: "Messages/s" }).click();
  await rows(page, "connections").nth(20).waitFor(WAIT);
  await tab(page, "errors");
  await rows(page, "errors").nth(15).waitFor(WAIT);
  const refusals = seen.complaints.filter((text) => !text.includes("401"));
  assert.deepEqual(refusals, []);
  const own = new URL(server.url).host;
  assert.deepEqual(seen.requests.filter((url) => new URL(url).host !== own), []);
});

test("a wrong token shows nothing, and a connection is closed only after a question", async (t) => {
  const server = await observed(t, [], { SIMURGH_API_TOKEN: TOKEN });
  const socket = await member(t, server, "rooms:lobby");
  const closed = new Promise((resolve) => { socket.once("close", (code) => resolve(code)); });
  const { page } = await open(t, server);
  await reads(page.getByTestId("refused"), /token is missing/);
  await page.getByTestId("token").fill("wrong");
  await page.getByTestId("token").press("Enter");
  await page.getByText("the API token is wrong").waitFor(WAIT);
  assert.equal(await page.getByTestId("tab-topics").count(), 0);
  await page.getByTestId("token").fill(TOKEN);
  await page.getByTestId("token").press("Enter");
  await live(page);
  await tab(page, "connections");
  await page.getByRole("button", { name: "Channels", exact: true }).click();
  await page.getByTestId("disconnect").first().click();
  await page.getByText("Keep it").click();
  assert.equal(socket.readyState, WebSocket.OPEN);
  await page.getByTestId("disconnect").first().click();
  await page.getByTestId("disconnect-confirm").click();
  assert.equal(await within(closed, "close"), 1001);
});

test("connections are oldest first, and a topic on several shards counts once", async (t) => {
  const server = await observed(t);
  for (let n = 0; n < 12; n += 1) await member(t, server, "rooms:lobby");
  const { page } = await open(t, server);
  await live(page);
  await tab(page, "connections");
  await rows(page, "connections").nth(11).waitFor(WAIT);
  const age = page.getByTestId("table-connections").locator('[aria-sort="descending"]');
  await reads(age, "Age");
  await tab(page, "topics");
  await page.getByTestId("topics-note").getByText(/^1 topics/).waitFor(WAIT);
  await page.getByRole("button", { name: "rooms:lobby" }).click();
  await rows(page, "members").nth(11).waitFor(WAIT);
  const box = page.getByTestId("table-members");
  assert.ok(await box.evaluate((it) => it.scrollWidth <= it.clientWidth), "no column is cut");
  const [head, close, disabled] = await Promise.all([
    box.locator("thead button").first(), page.getByRole("button", { name: "Close", exact: true }),
    box.getByTestId("disconnect").first(),
  ].map((it) => it.evaluate((node) => {
    const { borderTopStyle, opacity } = getComputedStyle(node);
    return { borderTopStyle, opacity: Number(opacity) };
  })));
  assert.equal(head.borderTopStyle, "none", "heads of columns are no boxes");
  assert.deepEqual(close, { borderTopStyle: "solid", opacity: 1 });
  assert.ok(disabled.opacity < 0.6 && disabled.borderTopStyle === "dashed");
});

test("declared channels are listed at /, for viewers of the observer", async (t) => {
  const file = path.join(folder, "own.toml");
  writeFileSync(file, '[[channel]]\ntopic = "games:<b>*"\n[[channel.event]]\nname = "move"\n');
  const server = await observed(t, ["--config", file]);
  const { page, seen } = await newWindow(t, browser, DESK);
  await page.goto(server.url);
  const text = await page.locator("main").textContent();
  assert.match(text, /games:<b>\*move/);
  assert.ok(text.includes(`${server.wsUrl}/socket/websocket`), text);
  await page.getByRole("link", { name: "Observer" }).click();
  await live(page);
  assert.deepEqual(seen.complaints, []);
  const hidden = await fetch(server.url, { headers: { "x-forwarded-for": "192.0.2.1" } });
  assert.ok(!(await hidden.text()).includes("games"));
  // With a token the page asks for it in the observer, and then shows the rest.
  const guarded = await observed(t, ["--config", file], { SIMURGH_API_TOKEN: TOKEN });
  await page.goto(guarded.url);
  assert.ok(!(await page.locator("main").textContent()).includes("games"));
  await page.getByRole("link", { name: "observer" }).click();
  await page.getByTestId("token").fill(TOKEN);
  await page.getByTestId("token").press("Enter");
  await live(page);
  await page.goto(guarded.url);
  await page.getByText("games:<b>*").waitFor(WAIT);
});

test("names that would break out of a page stay text", async (t) => {
  const server = await observed(t);
  await member(t, server, HOSTILE);
  const { page, seen } = await open(t, server);
  await live(page);
  await tab(page, "topics");
  const name = page.locator('[data-testid="table-topics"] button.link').first();
  await name.waitFor(WAIT);
  const text = await name.textContent();
  assert.ok(text.startsWith("rooms:<img src=x onerror="), text);
  assert.ok(text.includes("\\u001b[2J\\u202eevil\\u000a"), text);
  await name.click();
  await page.getByTestId("members").waitFor(WAIT);
  await counts(rows(page, "members"), 1);
  assert.ok(await rows(page, "members").getByTestId("disconnect").isDisabled(), "without a token");
  await rows(page, "members").locator("button.link").first().click();
  await page.getByTestId("connection").waitFor(WAIT);
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.equal(await page.locator("img").count(), 0);
  assert.deepEqual(seen.complaints, []);
});

test("histories are listed by bytes, and a topic shows its positions", async (t) => {
  const file = path.join(folder, "kept.toml");
  writeFileSync(file, '[[channel]]\ntopic = "kept:*"\nhistory = { count = 3 }\n');
  const server = await observed(t, ["--config", file], { SIMURGH_API_TOKEN: TOKEN });
  const publish = async (topic, count) => {
    const messages = Array.from({ length: count }, (_, n) => (
      { topic, event: "said", payload: { n, text: "x".repeat(100) } }
    ));
    const answer = await fetch(`${server.url}/api/broadcast`, {
      method: "POST", headers: { authorization: `Bearer ${TOKEN}` },
      body: JSON.stringify({ messages }),
    });
    assert.equal(answer.status, 202);
    return (await answer.json()).positions;
  };
  await publish("kept:small", 1);
  const positions = await publish("kept:large", 5);
  const { page, seen } = await open(t, server);
  await page.getByTestId("token").fill(TOKEN);
  await page.getByTestId("token").press("Enter");
  await live(page);
  await tab(page, "topics");
  await page.getByRole("button", { name: "History", exact: true }).click();
  await reads(rows(page, "topics").first(), /^kept:large0.*\d\sB$/);
  await reads(rows(page, "topics").nth(1), /^kept:small0.*\d\sB$/);
  await page.getByRole("button", { name: "kept:large" }).click();
  await page.getByTestId("kept").waitFor(WAIT);
  const facts = await page.getByTestId("kept").textContent();
  assert.match(facts, /History3 broadcasts, /);
  const [epoch] = positions[0].split(".");
  const wanted = `Epoch${epoch}Last position${positions[4]}Oldest position${positions[1]}`;
  assert.ok(facts.includes(wanted), facts);
  assert.ok(facts.endsWith("Removed beforeoverwritten"), facts);
  const complaints = seen.complaints.filter((text) => !text.includes("401"));
  assert.deepEqual(complaints, []);
});

test("the page shows that it lost the server, and reconnects", async (t) => {
  const server = await observed(t);
  const { page } = await open(t, server);
  await live(page);
  await server.kill();
  await page.getByTestId("lost").waitFor(WAIT);
  const next = await server.restarted();
  t.after(() => next.kill());
  await page.getByTestId("lost").waitFor({ state: "hidden", ...WAIT });
  await live(page);
});

test("a phone's width needs no sideways scrolling", async (t) => {
  const server = await observed(t);
  const { page } = await open(t, server, PHONE);
  await live(page);
  for (const name of ["overview", "shards", "topics", "connections", "errors"]) {
    await tab(page, name);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), name);
  }
});

test("page of hooks shows their state, questions by outcome, and notices", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = ({ params }) => (params.refused ? [403, {}] : { user: "ann" });
  const channel = '[[channel]]\ntopic = "rooms:*"\n';
  const server = await startAsking(t, app, channel, {
    hook: 'questions = ["connect"]\nnotices = ["user.connected", "user.disconnected"]',
  });
  const { page, seen } = await newWindow(t, browser, DESK);
  const url = `${server.wsUrl}/socket/websocket?vsn=2.0.0`;
  const socket = new WebSocket(url);
  t.after(() => socket.terminate());
  await once(socket, "open");
  await refusal(server, {}, "&refused=1");
  await page.goto(`${server.url}/observer/`);
  await page.getByTestId("tab-hooks").click();
  await reads(page.getByTestId("table-hooks").locator("tbody td").nth(1), /^closed$/);
  const connect = page.getByTestId("table-questions").locator("tbody tr").first();
  await reads(connect, /^appconnect110000/);
  // A reset for each partition, and the user; one stay.
  await reads(page.getByTestId("table-notices").locator("tbody tr").first(), /^app1700001$/);
  assert.equal(await page.getByTestId("tab-cluster").isVisible(), false);
  assert.deepEqual(seen.complaints, []);
});
