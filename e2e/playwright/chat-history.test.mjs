// The chat page and messages sent while it is away: a lost network, a reload, too long an absence.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { after, before } from "node:test";

import { launchBrowser, newWindow, WAIT } from "../support/browser.mjs";
import { connected, enter, hears, say } from "../support/chat.mjs";
import { CURRENT, answer } from "../support/clients.mjs";
import { test } from "../support/history.mjs";
import { Network } from "../support/network.mjs";
import { NODES, startServer } from "../support/server.mjs";
import { pause } from "../support/wait.mjs";

/** Messages that the built-in chat keeps of a room. */
const KEPT = 100;
/** How long a network stays lost, beside what the test takes: AWAY_MS=120000 for two minutes. */
const AWAY_MS = Number(process.env.AWAY_MS ?? 0);

let browser;
before(async () => { browser = await launchBrowser(); });
after(async () => { await browser?.close(); });

/** Ada's window, whose network can fail, and Bob's, whose network cannot. */
async function adaAndBob(t, args = []) {
  const server = await startServer("serve", { args });
  t.after(() => server.kill());
  const way = await Network.open(server.port);
  t.after(() => way.close());
  const { page, seen } = await newWindow(t, browser);
  await enter(page, `http://${way.address}`, "lobby", "Ada");
  const bob = await CURRENT.open(t, `${server.wsUrl}/socket`);
  const { channel } = await bob.join("rooms:lobby", { user: "Bob" });
  const bobSays = async (...bodies) => {
    for (const body of bodies) await answer(channel.push("new:msg", { user: "Bob", body }));
  };
  return { server, way, page, seen, bobSays };
}

const shown = (page) => page.getByTestId("message-body").allTextContents();
/** The lines of the conversation, without the notes about arrivals. */
const linesOf = (page) => page.locator("#entries > li").evaluateAll((all) => (
  all.map((line) => line.dataset.testid).filter((kind) => kind !== "entered")));
const gaps = (page) => page.getByTestId("gap").count();

/** Until the page says so. */
const saysOffline = (page) => (
  page.locator('[data-testid="connection"][data-state="offline"]').waitFor(WAIT));

for (const [how, name] of [["reset", "ends"], ["silence", "falls silent"]]) {
  test(`messages sent while the network is gone appear when it is back: it ${name}`, async (t) => {
    const { way, page, bobSays } = await adaAndBob(t);
    await bobSays("before");
    await hears(page, "before");
    await page.context().setOffline(true);
    way.lose(how);
    await saysOffline(page);
    const missed = ["one", "two", "three", "four"];
    await bobSays(...missed);
    await pause(AWAY_MS);
    assert.deepEqual(await shown(page), ["before"]);
    await say(page, "from afar");
    way.restore({ resets: true });
    await page.context().setOffline(false);
    await connected(page);
    await hears(page, "four");
    await page.locator(".message.mine:not(.sending):not(.failed)").waitFor(WAIT);
    await bobSays("after");
    await hears(page, "after");
    assert.deepEqual(await shown(page), ["before", "from afar", ...missed, "after"]);
    assert.equal(await gaps(page), 0);
  });
}

test("a silently lost network loses no message", async (t) => {
  const { way, page, bobSays } = await adaAndBob(t);
  await page.clock.install();
  await page.reload();
  await connected(page);
  await bobSays("before");
  await hears(page, "before");
  way.lose("silence");
  await bobSays("one", "two");
  // A heartbeat, and as long again until its answer is given up.
  await page.clock.runFor(61_000);
  await page.locator('[data-testid="connection"]:not([data-state="connected"])').waitFor(WAIT);
  await say(page, "from afar");
  await bobSays("three");
  assert.deepEqual(await shown(page), ["before", "from afar"]);
  way.restore({ resets: true });
  await connected(page);
  await hears(page, "three");
  await page.locator(".message.mine:not(.sending):not(.failed)").waitFor(WAIT);
  assert.deepEqual(await shown(page), ["before", "from afar", "one", "two", "three"]);
  assert.equal(await gaps(page), 0);
});

/**
 * A server that keeps its histories over a planned restart, as a broker does by itself; with the
 * arguments it starts with.
 */
async function keepingHistory(t) {
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-chat-"));
  t.after(() => rm(dir, { recursive: true }));
  const file = path.join(dir, "simurgh.toml");
  const save = NODES > 1 ? "" : `history_save = ${JSON.stringify(path.join(dir, "history"))}\n`;
  await writeFile(file, `${save}drain_time = "1s"\n`);
  return ["--config", file];
}

test("a planned restart loses no message, also in a window that was away", async (t) => {
  const { server, way, page, bobSays } = await adaAndBob(t, await keepingHistory(t));
  const eve = await page.context().newPage();
  await enter(eve, `http://127.0.0.1:${server.port}`, "lobby", "Eve");
  await bobSays("before");
  for (const window of [page, eve]) await hears(window, "before");
  way.lose("reset");
  const missed = ["one", "two", "three"];
  await bobSays(...missed);
  await hears(eve, "three");
  assert.deepEqual(await shown(page), ["before"]);
  const { code } = await server.stop("SIGTERM");
  assert.equal(code, 0);
  await say(page, "while there is no server");
  const next = await server.restarted();
  t.after(() => next.kill());
  way.restore();
  await bobSays("after");
  for (const window of [page, eve]) {
    await connected(window);
    await hears(window, "after");
    assert.equal(await gaps(window), 0);
  }
  const words = (await shown(page)).filter((body) => body !== "while there is no server");
  assert.deepEqual(words, ["before", ...missed, "after"]);
  await hears(eve, "while there is no server");
  await eve.reload();
  await connected(eve);
  await bobSays("last");
  await hears(eve, "last");
  assert.equal(await gaps(eve), 0);
});

/** What it keeps it loses by itself: see cluster-history.test.mjs. */
const LOSES = { skip: NODES > 1 && "the broker keeps all when all nodes crash" };

test("after a crash the page shows that messages may be missing, before new ones", LOSES, async (
  t,
) => {
  const { server, way, page, bobSays } = await adaAndBob(t);
  await bobSays("before");
  await hears(page, "before");
  way.lose("reset");
  await bobSays("never to be heard");
  await server.kill();
  const next = await server.restarted();
  t.after(() => next.kill());
  way.restore();
  await connected(page);
  await bobSays("after");
  await hears(page, "after");
  assert.deepEqual(await shown(page), ["before", "after"]);
  assert.deepEqual(await linesOf(page), ["message", "gap", "message"]);
});

test("through many cuts no message is missing and none is double", async (t) => {
  const { way, page, bobSays } = await adaAndBob(t);
  const said = [];
  for (let n = 0; n < 10; n += 1) {
    const burst = Array.from({ length: 8 }, (_, m) => `message ${n}.${m}`);
    said.push(...burst);
    const talk = bobSays(...burst);
    if (n % 2) await hears(page, burst[2]);
    way.lose("reset");
    await talk;
    way.restore();
    await connected(page);
  }
  await hears(page, said.at(-1));
  assert.deepEqual(await shown(page), said);
  assert.equal(await gaps(page), 0);
});

test("a new window and a reloaded one show the last messages", async (t) => {
  const { page, seen, bobSays } = await adaAndBob(t);
  await bobSays("heard already");
  await hears(page, "heard already");
  const url = page.url();
  await page.goto("about:blank");
  await bobSays("one", "two");
  await page.goto(url);
  await connected(page);
  await hears(page, "two");
  await bobSays("three");
  await hears(page, "three");
  assert.deepEqual(await shown(page), ["heard already", "one", "two", "three"]);
  await say(page, "mine");
  await page.locator(".message.mine:not(.sending):not(.failed)").waitFor(WAIT);
  await page.reload();
  await connected(page);
  await bobSays("four");
  await hears(page, "four");
  const all = ["heard already", "one", "two", "three", "mine", "four"];
  assert.deepEqual(await shown(page), all);
  assert.deepEqual(await page.locator(".message.mine").allTextContents(), ["AYoumine"]);
  assert.equal(await page.locator("time").count(), 1, "stored messages have no time");
  assert.equal(await gaps(page), 0);
  const other = await page.context().newPage();
  await enter(other, new URL(url).origin, "lobby", "Ada too");
  await bobSays("five");
  await hears(other, "five");
  assert.deepEqual(await shown(other), [...all, "five"]);
  assert.equal(await gaps(other), 0);
  assert.deepEqual(seen.complaints, []);
});

test("an altered window id is replaced", async (t) => {
  const { page, bobSays } = await adaAndBob(t);
  for (const stored of ["null", "{", "7", "x".repeat(1000)]) {
    // Written after the page's own last word.
    await page.evaluate((text) => {
      const write = () => sessionStorage.setItem("simurgh.window", text);
      window.addEventListener("pagehide", write);
      document.addEventListener("visibilitychange", write);
    }, stored);
    await page.reload();
    await connected(page);
    await bobSays(stored);
    await hears(page, stored);
  }
});

test("a client that missed too much sees a gap and the remaining messages", async (t) => {
  const { way, page, bobSays } = await adaAndBob(t);
  await bobSays("before");
  await hears(page, "before");
  way.lose("reset");
  const said = Array.from({ length: KEPT + 5 }, (_, n) => `message ${n}`);
  await bobSays(...said);
  way.restore();
  await connected(page);
  await hears(page, said.at(-1));
  assert.deepEqual(await shown(page), ["before", ...said.slice(-KEPT)]);
  assert.equal(await gaps(page), 1);
  const lines = await linesOf(page);
  assert.equal(lines.lastIndexOf("gap"), lines.length - 1 - KEPT, "ahead of what is left");
  const text = "Some messages are missing here. The server no longer has them.";
  assert.equal(await page.getByTestId("gap").textContent(), text);
});

test("changing the name during a conversation loses no message", async (t) => {
  const { page, bobSays } = await adaAndBob(t);
  const said = [];
  let isOver = false;
  const talk = (async () => {
    // The page shows 400 at most.
    while (!isOver && said.length < 390) {
      said.push(`message ${said.length}`);
      await bobSays(said.at(-1));
      await pause(20);
    }
  })();
  for (const name of ["Countess", "Ada King", "Lovelace"]) {
    await page.getByTestId("me").click();
    await page.getByTestId("name-input").fill(name);
    await page.getByTestId("name-submit").click();
    await connected(page);
  }
  isOver = true;
  await talk;
  await hears(page, said.at(-1));
  assert.deepEqual(await shown(page), said);
  assert.equal(await gaps(page), 0);
});
