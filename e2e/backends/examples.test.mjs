// The examples of Django and Express in Chromium: a page whose users are those of the application.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { EXAMPLES_SERVED, missing, serveExample } from "../support/backends.mjs";
import { launchBrowser, newWindow, WAIT } from "../support/browser.mjs";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const noBrowser = missing(CHROMIUM, "Chromium");

let browser;
before(async () => {
  if (!noBrowser) browser = await launchBrowser();
});
after(async () => { await browser?.close(); });

for (const example of EXAMPLES_SERVED) {
  const skip = noBrowser || missing(example.program, example.needs);

  const knows = `page of the ${example.name} example knows its users by their sessions`;
  test(knows, { skip }, async (t) => {
    const url = await serveExample(t, example);
    const { page: guest } = await newWindow(t, browser);
    await guest.goto(url);
    await shows(guest, "The server refused the connection");

    const { page: ada } = await logIn(t, url, "ada");
    const { page: bob } = await logIn(t, url, "bob");
    await say(ada, "Hello Bob");
    await shows(bob, "ada: Hello Bob");
    await say(bob, "Hello Ada");
    await shows(ada, "bob: Hello Ada");

    await bob.locator("#forge").click();
    await shows(bob, "Refused: you are bob");
    await bob.locator("#staff").click();
    await shows(bob, "Join refused: staff only");
    await ada.locator("#staff").click();
    await shows(ada, "You are in rooms:staff.");
    assert.equal(await ada.getByText("This is not me").count(), 0);
  });

  test(`logout in the ${example.name} example closes other tabs`, { skip }, async (t) => {
    const url = await serveExample(t, example);
    const { page: first, context } = await logIn(t, url, "ada");
    const second = await context.newPage();
    await second.goto(url);
    await shows(second, "You are in rooms:lobby.");
    await first.locator("#logout").click();
    await first.getByRole("button", { name: "Log in" }).waitFor(WAIT);
    await shows(second, "The server refused the connection");
    await shows(first, "The server refused the connection");
  });
}

async function logIn(t, url, name) {
  const { page } = await newWindow(t, browser);
  await page.goto(url);
  await page.locator("[name=name], [name=username]").fill(name);
  const password = page.locator("[name=password]");
  if (await password.count() > 0) await password.fill("demo");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.locator("#user").getByText(name).waitFor(WAIT);
  await shows(page, "You are in rooms:lobby.");
  return { page, context: page.context() };
}

async function say(page, text) {
  await page.locator("#write [name=body]").fill(text);
  await page.getByRole("button", { name: "Send" }).click();
}

async function shows(page, text) {
  await page.locator("#log").getByText(text).first().waitFor(WAIT);
}
