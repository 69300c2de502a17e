// Two browsers on two nodes: each has the page of its own node, and they chat, also while the
// broker is killed and started again. There is no history here (see cluster-history.test.mjs).

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { counts, launchBrowser, newWindow, WAIT } from "../support/browser.mjs";
import { connected, enter, hears, say } from "../support/chat.mjs";
import { are, chat, startCluster } from "../support/cluster.mjs";
import { NO_BROKER } from "../support/broker.mjs";

let browsers = [];
before(async () => {
  browsers = await Promise.all([launchBrowser(), launchBrowser()]);
});
after(async () => { await Promise.all(browsers.map((browser) => browser.close())); });

const present = (page, count) =>
  page.getByTestId("present-count").getByText(`${count} here`).waitFor(WAIT);

/** Arguments of a server with the chat, of which nothing is kept. */
async function withoutHistory(t) {
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-chat-"));
  t.after(() => rm(dir, { recursive: true }));
  const file = path.join(dir, "simurgh.toml");
  await writeFile(file, (await chat()).replace(/^history = .*$/m, ""));
  return ["--config", file];
}

test("two browsers on two nodes chat while the broker is down and when it is back", {
  skip: NO_BROKER,
}, async (t) => {
  const cluster = await startCluster("serve", 2, { args: await withoutHistory(t) });
  t.after(() => cluster.kill());
  const { broker, nodes } = cluster;
  const windows = await Promise.all(browsers.map((browser) => newWindow(t, browser)));
  const [ada, bob] = windows.map(({ page }) => page);
  const sockets = [];
  for (const page of [ada, bob]) page.on("websocket", (socket) => sockets.push(socket));
  await enter(ada, nodes[0].url, "lobby", "Ada");
  await enter(bob, nodes[1].url, "lobby", "Bob");
  await ada.getByTestId("entered").getByText("Bob").waitFor(WAIT);
  for (const page of [ada, bob]) await present(page, 2);

  await say(ada, "from one node");
  await say(bob, "and from the other");
  for (const page of [ada, bob]) {
    await hears(page, "from one node");
    await hears(page, "and from the other");
  }

  await broker.kill();
  await are(nodes, "away");
  // Each goes on alone, and nobody has left.
  await say(ada, "is anybody there?");
  await hears(ada, "is anybody there?");
  await say(bob, "not that I know");
  await hears(bob, "not that I know");
  for (const page of [ada, bob]) await present(page, 2);

  await broker.restart();
  await are(nodes, "up");
  await say(bob, "hello again");
  await say(ada, "there you are");
  for (const page of [ada, bob]) {
    await hears(page, "hello again");
    await hears(page, "there you are");
    await present(page, 2);
    await connected(page);
    await counts(page.locator(".message.sending, .message.failed"), 0);
  }
  assert.equal(sockets.length, 2, "no connection of a client broke");
  for (const { seen } of windows) assert.deepEqual(seen.complaints, []);
});
