// Debian's Chromium, started the one way all tests of pages start it.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";

import { chromium } from "playwright-core";

import { eventually, WAIT_MS_MAX } from "./wait.mjs";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** The time limit of anything on a page. */
export const WAIT = { timeout: WAIT_MS_MAX };

/** A browser without a window, which fetches nothing by itself; the caller closes it. */
export function launchBrowser() {
  assert.ok(existsSync(CHROMIUM), `${CHROMIUM} is missing: \`cargo xtask test\` installs it`);
  return chromium.launch({
    executablePath: CHROMIUM,
    timeout: 60_000,
    args: [
      "--no-sandbox", "--disable-quic", "--disable-background-networking", "--no-first-run",
      "--disable-component-update", "--disable-sync", "--disable-gpu", "--disable-dev-shm-usage",
    ],
  });
}

/** A separate, empty window, closed after the test; its requests and complaints are recorded. */
export async function newWindow(t, browser, options = {}) {
  const context = await browser.newContext(options);
  t.after(() => context.close());
  context.setDefaultTimeout(WAIT.timeout);
  const page = await context.newPage();
  const seen = { requests: [], complaints: [] };
  page.on("request", (request) => seen.requests.push(request.url()));
  page.on("pageerror", (error) => seen.complaints.push(error.message));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) seen.complaints.push(message.text());
  });
  return { page, seen };
}

/** Waits until there are `count` elements. */
export async function counts(locator, count) {
  await eventually(async () => assert.equal(await locator.count(), count, String(locator)));
}

/** Waits until the text of the element is or matches this. */
export async function reads(locator, wanted) {
  await eventually(async () => {
    const text = await locator.textContent(WAIT);
    if (wanted instanceof RegExp) assert.match(text, wanted, `${locator} has "${text}"`);
    else assert.equal(text, wanted, `${locator} has "${text}"`);
  });
}
