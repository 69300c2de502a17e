// axe-core finds no violation on any page, in the light and the dark scheme.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { Broker, NO_BROKER } from "../support/broker.mjs";
import { launchBrowser, newWindow, WAIT } from "../support/browser.mjs";
import { enter, hears, say } from "../support/chat.mjs";
import { BIN_DIR, startProcess } from "../support/server.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let browser;
before(async () => { browser = await launchBrowser(); });
after(async () => { await browser?.close(); });

/** Each scheme, in a window of its own. */
async function inBothSchemes(t, look) {
  for (const colorScheme of ["light", "dark"]) {
    const { page } = await newWindow(t, browser, {
      viewport: { width: 1280, height: 900 }, colorScheme, reducedMotion: "reduce",
    });
    await look(page, async (what) => {
      await page.evaluate(AXE);
      const { violations } = await page.evaluate(() => window.axe.run());
      const found = violations.map(({ id, nodes }) => (
        `${id}: ${nodes.map((node) => node.target.join(" ")).join(", ")}`));
      assert.deepEqual(found, [], `${what}, ${colorScheme}`);
    }, colorScheme);
  }
}

/** The path of a file with this text, until the end of the test. */
function settings(t, text) {
  const folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-axe-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, "simurgh.toml");
  writeFileSync(file, text);
  return file;
}

test("the chat page has no violation", async (t) => {
  const server = await startProcess("serve");
  t.after(() => server.kill());
  await inBothSchemes(t, async (page, check, room) => {
    await page.goto(`${server.url}/#${room}`);
    await page.getByTestId("name-input").waitFor(WAIT);
    await check("the question for a name");
    await enter(page, server.url, room, "Ada");
    const { page: bob } = await newWindow(t, browser);
    await enter(bob, server.url, room, "Ada");
    await say(bob, "good morning");
    await hears(page, "good morning");
    await say(page, "hello");
    await hears(bob, "hello");
    await check("a room");
    await bob.close();
  });
});

test("the views of the observer have no violation", async (t) => {
  const server = await startProcess("serve", { args: ["--shards", "2"] });
  t.after(() => server.kill());
  const { page: ada } = await newWindow(t, browser);
  await enter(ada, server.url, "tea", "Ada");
  await inBothSchemes(t, async (page, check) => {
    await page.goto(`${server.url}/observer/`);
    for (const view of ["overview", "shards", "topics", "connections", "errors"]) {
      await page.getByTestId(`tab-${view}`).click();
      await page.waitForTimeout(1200);
      if (view === "topics" || view === "connections") {
        await page.getByTestId(`table-${view}`).locator("button.link").first().click();
        await page.locator("dl.facts-list:visible").first().waitFor(WAIT);
      }
      await check(view);
    }
  });
});

test("the page of declared channels has no violation", async (t) => {
  const file = settings(t, `[[channel]]
topic = "games:*"
presence = { key = "$user" }
[[channel.event]]
name = "move"
broadcast = "others"
`);
  const server = await startProcess("serve", { args: ["--config", file] });
  t.after(() => server.kill());
  await inBothSchemes(t, async (page, check) => {
    await page.goto(server.url);
    await page.getByText("games:*").first().waitFor(WAIT);
    await check("the declared channels");
  });
});

test("the cluster view has no violation", { skip: NO_BROKER }, async (t) => {
  const broker = await Broker.start();
  t.after(() => broker.remove());
  const nodes = ["amber", "birch"].map(async (name) => {
    const file = settings(t, `[cluster]\nengine = "nats"\nname = "${name}"\n`
      + `servers = ["${broker.url}"]\nrequired = "20s"\n`);
    const node = await startProcess("serve", { args: ["--config", file] });
    t.after(() => node.kill());
    return node;
  });
  const [node] = await Promise.all(nodes);
  await inBothSchemes(t, async (page, check) => {
    await page.goto(`${node.url}/observer/#cluster`);
    await page.getByTestId("table-nodes").getByText("birch").waitFor(WAIT);
    await check("the cluster");
  });
});

test("dashboard and report have no violation", async (t) => {
  const folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-axe-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const binary = path.join(BIN_DIR, "examples/dashboard_demo");
  const run = path.join(folder, "run");
  const made = spawnSync(binary, ["--report", run, "--overload"], { timeout: 30_000 });
  assert.equal(made.status, 0);
  const server = await startProcess("dashboard", { args: ["--history", "100"] });
  t.after(() => server.kill());
  for (const url of [server.url, `file://${path.join(run, "report.html")}`]) {
    await inBothSchemes(t, async (page, check) => {
      await page.goto(url);
      await page.getByTestId("chart-users").locator("path.line").first().waitFor(WAIT);
      await check(url);
    });
  }
});
