// Debian's Chromium, started the one way all tests of pages start it.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";

import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** How long anything on a page may take. */
export const WAIT = { timeout: 15_000 };

/** A browser without a window, that fetches nothing by itself; whoever asks for it closes it. */
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
