// Two browsers on two nodes, in the chat with a history in the broker: no message is missing after
// a killed node or a killed broker. If the broker lost the history, the page shows it.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Balancer } from "../support/balancer.mjs";
import { launchBrowser, newWindow, WAIT } from "../support/browser.mjs";
import { connected, enter, hears, say } from "../support/chat.mjs";
import { are, startCluster } from "../support/cluster.mjs";
import { NO_KEEPER } from "../support/broker.mjs";

let browsers = [];
before(async () => {
  browsers = await Promise.all([launchBrowser(), launchBrowser()]);
});
after(async () => { await Promise.all(browsers.map((browser) => browser.close())); });

const shown = (page) => page.getByTestId("message-body").allTextContents();
const gaps = (page) => page.getByTestId("gap").count();
/** The lines of the conversation, without the notes about arrivals. */
const linesOf = (page) => page.locator("#entries > li").evaluateAll((all) => (
  all.map((line) => line.dataset.testid).filter((kind) => kind !== "entered")));
const offline = (page) => (
  page.locator('[data-testid="connection"]:not([data-state="connected"])').waitFor(WAIT));
/** Until the server has answered what this window said. */
const answered = (page) => page.locator(".message.sending").waitFor({ state: "detached", ...WAIT });

/** A window whose way leads to one node, and to another one when `way.ports` is set. */
async function window(t, browser, node, name) {
  const way = await Balancer.open();
  t.after(() => way.close());
  way.ports = [node.port];
  const { page } = await newWindow(t, browser);
  await enter(page, `http://127.0.0.1:${way.port}`, "lobby", name);
  return { page, way };
}

/** Three nodes with a broker of their own, Ada's window on the first and Bob's on the second. */
async function adaAndBob(t) {
  const cluster = await startCluster("serve", 3, { ownBroker: true });
  t.after(() => cluster.kill());
  const ada = await window(t, browsers[0], cluster.nodes[0], "Ada");
  const bob = await window(t, browsers[1], cluster.nodes[1], "Bob");
  await ada.page.getByTestId("entered").getByText("Bob").waitFor(WAIT);
  const both = [ada.page, bob.page];
  const talk = async (from, ...texts) => {
    for (const text of texts) {
      await say(from.page, text);
      for (const page of both) await hears(page, text);
    }
  };
  await talk(ada, "from one node");
  await talk(bob, "and from the other");
  return { ...cluster, nodes: cluster.nodes, broker: cluster.broker, ada, bob, both, talk };
}

test("a window whose node is killed moves to another one and misses nothing", {
  skip: NO_KEEPER,
}, async (t) => {
  const { nodes, ada, bob, both, talk } = await adaAndBob(t);
  ada.way.ports = [];
  await nodes[0].kill();
  await offline(ada.page);
  const missed = ["one", "two", "three"];
  for (const text of missed) await say(bob.page, text);
  await hears(bob.page, "three");
  await answered(bob.page);
  assert.deepEqual(await shown(ada.page), ["from one node", "and from the other"]);
  ada.way.ports = [nodes[2].port];
  await connected(ada.page);
  await hears(ada.page, "three");
  await talk(ada, "back on another node");
  const all = ["from one node", "and from the other", ...missed, "back on another node"];
  for (const page of both) {
    assert.deepEqual(await shown(page), all);
    assert.equal(await gaps(page), 0);
  }
});

test("messages wait while the broker is away, and arrive when it is back", {
  skip: NO_KEEPER,
}, async (t) => {
  const { nodes, broker, ada, bob, both, talk } = await adaAndBob(t);
  await broker.kill();
  await are(nodes, "away");
  await say(ada.page, "is anybody there?");
  await ada.page.locator(".message.sending").getByText("is anybody there?").waitFor(WAIT);
  assert.equal((await shown(bob.page)).length, 2, "some would have heard it, and others not");
  // The other's connection ends meanwhile, and another node is where it comes to.
  bob.way.ports = [];
  await nodes[1].kill();
  await offline(bob.page);
  await broker.restart();
  bob.way.ports = [nodes[2].port];
  await connected(bob.page);
  await answered(ada.page);
  for (const page of both) await hears(page, "is anybody there?");
  await talk(bob, "yes, again");
  for (const page of both) {
    const all = ["from one node", "and from the other", "is anybody there?", "yes, again"];
    assert.deepEqual(await shown(page), all);
    assert.equal(await gaps(page), 0);
    assert.equal(await page.locator(".message.failed").count(), 0);
  }
});

test("a message that the broker does not confirm fails and is not delivered", {
  skip: NO_KEEPER,
}, async (t) => {
  const { nodes, broker, ada, both, talk } = await adaAndBob(t);
  await broker.kill();
  await are(nodes, "away");
  await say(ada.page, "too late");
  const failed = ada.page.locator(".message.failed").getByText("too late");
  await failed.waitFor(WAIT);
  await broker.restart();
  await are(nodes, "up");
  await talk(ada, "in time");
  const [mine, theirs] = await Promise.all(both.map(shown));
  assert.deepEqual(theirs, ["from one node", "and from the other", "in time"]);
  assert.deepEqual(mine.filter((text) => text !== "too late"), theirs);
  for (const page of both) assert.equal(await gaps(page), 0);
});

test("the page shows that messages may be missing if the broker lost its history", {
  skip: NO_KEEPER,
}, async (t) => {
  const { nodes, broker, ada, bob, both, talk } = await adaAndBob(t);
  // One window is away while it happens, the other one is not.
  ada.way.ports = [];
  await nodes[0].kill();
  await offline(ada.page);
  await say(bob.page, "never to be heard by Ada");
  await hears(bob.page, "never to be heard by Ada");
  await answered(bob.page);
  await broker.kill();
  await broker.restart({ loses: true });
  await are(nodes.slice(1), "up");
  ada.way.ports = [nodes[2].port];
  await connected(ada.page);
  for (const page of both) await page.getByTestId("gap").waitFor(WAIT);
  await talk(bob, "after the loss");
  await talk(ada, "and an answer");
  const before = { [0]: 2, [1]: 3 };
  for (const [n, page] of both.entries()) {
    const messages = Array(before[n]).fill("message");
    assert.deepEqual(await linesOf(page), [...messages, "gap", "message", "message"]);
  }
});
