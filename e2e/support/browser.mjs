// Debian's Chromium, started the one way all tests of pages start it.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";

import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** The time limit of anything on a page. */
export const WAIT = { timeout: 15_000 };

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
