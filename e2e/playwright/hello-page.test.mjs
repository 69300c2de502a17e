// The rendered page in a real browser: its style and picture load, its policy holds, and its form
// leads back to it with a message that is shown once.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { launchBrowser, newWindow, reads } from "../support/browser.mjs";
import { startServer } from "../support/server.mjs";

let browser;
before(async () => { browser = await launchBrowser(); });
after(async () => { await browser?.close(); });

/** The page in a window of its own, with what it asked for and complained of. */
async function openPage(t) {
  const server = await startServer("hello_page");
  t.after(() => server.kill());
  const { page, seen } = await newWindow(t, browser);
  const statuses = new Map();
  page.on("response", (answer) => {
    statuses.set(new URL(answer.url()).pathname, answer.status());
  });
  await page.goto(server.url, { waitUntil: "networkidle" });
  return { page, seen, statuses };
}

test("the page loads its style and picture, and nothing that its policy forbids", async (t) => {
  const { page, seen, statuses } = await openPage(t);
  assert.equal(await page.title(), "Hello · Simurgh");
  for (const path of ["/", "/page.css", "/favicon.svg"]) {
    assert.equal(statuses.get(path), 200, path);
  }
  assert.equal(await page.locator(".navigation").evaluate((it) => getComputedStyle(it).display),
    "flex", "the style is applied");
  assert.deepEqual(seen.complaints, []);
});

test("the form greets once, and scripts cannot read its session", async (t) => {
  const { page, seen } = await openPage(t);
  assert.equal(await page.evaluate(() => document.cookie), "");
  const [cookie] = await page.context().cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === "Lax", JSON.stringify(cookie));
  await page.getByLabel("Your name").fill("Ada & \"Grace\"");
  await page.getByRole("button", { name: "Say hello" }).click();
  const flash = page.getByRole("status");
  await reads(flash, "Hello, Ada & \"Grace\"!");
  await page.reload();
  assert.equal(await flash.count(), 0, "shown once");
  assert.deepEqual(seen.complaints, []);
});
