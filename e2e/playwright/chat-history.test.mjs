// The chat page and what is said while it is away: a lost network, a reload, too long an absence.

import assert from "node:assert/strict";
import net from "node:net";
import { after, before, test } from "node:test";

import { launchBrowser, newWindow, WAIT } from "../support/browser.mjs";
import { connected, enter, hears, say } from "../support/chat.mjs";
import { CURRENT, answer } from "../support/clients.mjs";
import { startServer } from "../support/server.mjs";
import { pause } from "../support/wait.mjs";

/** Messages that the built-in chat keeps of a room. */
const KEPT = 100;

let browser;
before(async () => { browser = await launchBrowser(); });
after(async () => { await browser?.close(); });

/** A way to the server that can be lost: connections end, and no new ones come about. */
async function network(t, server) {
  const sockets = new Set();
  let isUp = true;
  const proxy = net.createServer((client) => {
    if (!isUp) return client.resetAndDestroy();
    const upstream = net.connect(server.port, "127.0.0.1");
    for (const [socket, other] of [[client, upstream], [upstream, client]]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        other.destroy();
      });
      socket.pipe(other);
    }
  });
  const lose = () => {
    isUp = false;
    for (const socket of sockets) socket.destroy();
  };
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => { lose(); proxy.close(); });
  return {
    url: `http://127.0.0.1:${proxy.address().port}`, lose, restore: () => { isUp = true; },
  };
}

/** Ada's window, whose network can be lost, and Bob, who needs none. */
async function adaAndBob(t) {
  const server = await startServer("serve");
  t.after(() => server.kill());
  const way = await network(t, server);
  const { page, seen } = await newWindow(t, browser);
  await enter(page, way.url, "lobby", "Ada");
  const bob = await CURRENT.open(t, `${server.wsUrl}/socket`);
  const { channel } = await bob.join("rooms:lobby", { user: "Bob" });
  const bobSays = async (...bodies) => {
    for (const body of bodies) await answer(channel.push("new:msg", { user: "Bob", body }));
  };
  return { server, way, page, seen, bobSays };
}

const shown = (page) => page.getByTestId("message-body").allTextContents();
const gaps = (page) => page.getByTestId("gap").count();

for (const noticed of [true, false]) {
  const how = noticed ? "and the browser notices" : "and the browser does not notice";
  test(`what is said while the network is gone is there when it is back, ${how}`, async (t) => {
    const { way, page, bobSays } = await adaAndBob(t);
    await bobSays("before");
    await hears(page, "before");
    if (noticed) await page.context().setOffline(true);
    way.lose();
    const away = page.locator('[data-testid="connection"]:not([data-state="connected"])');
    await away.waitFor(WAIT);
    const missed = ["one", "two", "three", "four"];
    await bobSays(...missed);
    assert.deepEqual(await shown(page), ["before"]);
    await say(page, "from afar");
    way.restore();
    if (noticed) await page.context().setOffline(false);
    await connected(page);
    await hears(page, "four");
    await page.locator(".message.mine:not(.sending):not(.failed)").waitFor(WAIT);
    await bobSays("after");
    await hears(page, "after");
    assert.deepEqual(await shown(page), ["before", "from afar", ...missed, "after"]);
    assert.equal(await gaps(page), 0);
  });
}

test("through many cuts no message is missing and none is double", async (t) => {
  const { way, page, bobSays } = await adaAndBob(t);
  const said = [];
  for (let n = 0; n < 10; n += 1) {
    const burst = Array.from({ length: 8 }, (_, m) => `message ${n}.${m}`);
    said.push(...burst);
    const talk = bobSays(...burst);
    if (n % 2) await hears(page, burst[2]);
    way.lose();
    await talk;
    way.restore();
    await connected(page);
  }
  await hears(page, said.at(-1));
  assert.deepEqual(await shown(page), said);
  assert.equal(await gaps(page), 0);
});

test("a reload goes on where the window was", async (t) => {
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
  assert.deepEqual(await shown(page), ["one", "two", "three"]);
  await page.reload();
  await connected(page);
  await bobSays("four");
  await hears(page, "four");
  assert.deepEqual(await shown(page), ["four"]);
  assert.equal(await gaps(page), 0);
  // Another window is somebody who hears from now on.
  const other = await page.context().newPage();
  await enter(other, new URL(url).origin, "lobby", "Ada too");
  await bobSays("five");
  await hears(other, "five");
  assert.deepEqual(await shown(other), ["five"]);
  assert.deepEqual(seen.complaints, []);
});

test("a position that somebody has tampered with is no hindrance", async (t) => {
  const { page, bobSays } = await adaAndBob(t);
  for (const stored of ["null", "{", "[]", '{"id":7,"positions":7}', '{"id":"x","positions":[1]}',
    '{"positions":{"rooms:lobby":"nowhere"}}', '{"positions":{"rooms:lobby":{}}}']) {
    // Written after the page's own last word.
    await page.evaluate((text) => {
      const write = () => sessionStorage.setItem("simurgh.heard", text);
      window.addEventListener("pagehide", write);
      document.addEventListener("visibilitychange", write);
    }, stored);
    await page.reload();
    await connected(page);
    await bobSays(stored);
    await hears(page, stored);
  }
});

test("who was away for too much is told, and given what is left", async (t) => {
  const { way, page, bobSays } = await adaAndBob(t);
  await bobSays("before");
  await hears(page, "before");
  way.lose();
  const said = Array.from({ length: KEPT + 5 }, (_, n) => `message ${n}`);
  await bobSays(...said);
  way.restore();
  await connected(page);
  await hears(page, said.at(-1));
  assert.deepEqual(await shown(page), ["before", ...said.slice(-KEPT)]);
  assert.equal(await gaps(page), 1);
  const lines = await page.locator("#entries > li").evaluateAll((all) =>
    all.map((line) => line.dataset.testid).filter((kind) => kind !== "entered"));
  assert.equal(lines.lastIndexOf("gap"), lines.length - 1 - KEPT, "ahead of what is left");
  const text = "Some messages may be missing here: they are not kept any more.";
  assert.equal(await page.getByTestId("gap").textContent(), text);
});

test("another name amidst a conversation costs no message", async (t) => {
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
