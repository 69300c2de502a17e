// Actions of users on the chat page.

import assert from "node:assert/strict";

import { WAIT } from "./browser.mjs";

/** Opens the page of the server at `url` on `room`, and enters as `name`. */
export async function enter(page, url, room, name) {
  await page.goto(`${url}/#${encodeURIComponent(room)}`);
  await page.getByTestId("name-input").fill(name);
  await page.getByTestId("name-submit").click();
  await connected(page);
}

export async function connected(page) {
  await page.locator('[data-testid="connection"][data-state="connected"]').waitFor(WAIT);
  await page.locator('[data-testid="room-link"][aria-current][data-state="joined"]')
    .waitFor({ state: "attached", ...WAIT });
}

export async function say(page, text) {
  await page.getByTestId("composer-input").fill(text);
  await page.getByTestId("composer-input").press("Enter");
}

export async function hears(page, text) {
  const body = page.getByTestId("message-body").getByText(text, { exact: true });
  await body.waitFor(WAIT);
  assert.equal(await body.count(), 1, `"${text}" is there once`);
}
