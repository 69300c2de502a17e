// The dashboard and the report of `simurgh load` in a real browser, fed by a made-up run. SHOTS=1
// also takes pictures, into SHOTS_DIR where that is set; of a real run, where SHOTS_LIVE is the
// address of its dashboard and SHOTS_REPORT the path of a report.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { counts, launchBrowser, newWindow, reads, WAIT } from "../support/browser.mjs";
import { startServer, BIN_DIR, ROOT } from "../support/server.mjs";
import { eventually, within } from "../support/wait.mjs";

const DESK = { viewport: { width: 1280, height: 860 }, locale: "en-GB" };
const PHONE = { viewport: { width: 400, height: 800 }, isMobile: true, hasTouch: true };
const SHOTS_DIR = process.env.SHOTS_DIR ?? path.join(ROOT, "docs/img");
const CHARTS = [
  "users", "arrivals", "requests", "latency", "frames", "bytes", "errors", "cpu",
];

let browser;
let folder;
before(async () => {
  folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-load-"));
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  if (folder) rmSync(folder, { recursive: true });
});

async function dashboard(t, ...args) {
  const server = await startServer("dashboard", { args });
  t.after(() => server.kill());
  return server;
}

/** Writes a report and resolves to its path. */
async function report(...args) {
  const run = path.join(folder, args.join("") || "plain");
  const binary = path.join(BIN_DIR, "examples/dashboard_demo");
  const child = spawn(binary, ["--report", run, ...args], { stdio: "ignore" });
  const ended = new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", resolve);
  });
  assert.equal(await within(ended, "report"), 0);
  return path.join(run, "report.html");
}

/** A window at an address; what it asks for and complains of is kept. */
async function open(t, url, options = DESK) {
  const { page, seen } = await newWindow(t, browser, options);
  await page.goto(url);
  await page.getByTestId("chart-users").locator("path.line").first().waitFor(WAIT);
  return { page, seen };
}

/** Each chart has a line that goes somewhere, axes with units, and a legend. */
async function allDrawn(page) {
  for (const id of CHARTS) {
    const chart = page.getByTestId(`chart-${id}`);
    await eventually(async () => {
      const lines = await chart.locator("path.line").evaluateAll((paths) => (
        paths.map((line) => line.getTotalLength())
      ));
      assert.ok(lines.some((length) => length > 100), `${id}: ${lines}`);
      assert.ok(await chart.locator("text.axis").count() >= 4, `${id} has axes`);
      assert.ok(await chart.locator(".key").count() >= 1, `${id} has a legend`);
    });
  }
}

const fits = (page) => page.evaluate(() => (
  document.documentElement.scrollWidth <= innerWidth
));

async function state(page, wanted) {
  await page.locator(`[data-testid="state"][data-state="${wanted}"]`).waitFor(WAIT);
}

test("the live page draws all charts and updates without a reload", async (t) => {
  const server = await dashboard(t, "--second-ms", "200", "--history", "100");
  const { page, seen } = await open(t, server.url);
  await state(page, "running");
  await allDrawn(page);
  const clock = page.getByTestId("clock");
  const first = await clock.textContent();
  await eventually(async () => assert.notEqual(await clock.textContent(), first));
  for (const id of ["thresholds", "latency", "phases", "workers", "errors"]) {
    const row = page.getByTestId(`table-${id}`).locator("tbody tr").first();
    await row.waitFor({ state: "attached", ...WAIT });
  }
  assert.deepEqual(seen.complaints, []);
  const own = new URL(server.url).host;
  assert.deepEqual(seen.requests.filter((url) => new URL(url).host !== own), []);
});

test("the buttons control the run, and stop asks first", async (t) => {
  const server = await dashboard(t, "--second-ms", "100", "--history", "10");
  const { page, seen } = await open(t, server.url);
  await page.getByTestId("pause").click();
  await state(page, "paused");
  await page.locator('[data-testid="card-arrivals"] strong', { hasText: /^0\/s/ }).waitFor(WAIT);
  await page.getByTestId("pause").click();
  await state(page, "running");
  await page.getByTestId("faster").click();
  await eventually(async () => (
    assert.equal(await page.getByTestId("rate").inputValue(), "1.25")));
  await page.getByTestId("stop").click();
  await page.getByText("Keep running").click();
  await state(page, "running");
  await page.getByTestId("stop").click();
  await page.getByTestId("stop-confirm").click();
  await state(page, "over");
  await reads(page.getByTestId("state"), "Stopped");
  await page.locator(".controls").waitFor({ state: "hidden", ...WAIT });
  assert.ok(await page.getByTestId("lost").isHidden(), "the end is no lost connection");
  assert.deepEqual(seen.complaints, []);
});

test("the page shows that it lost the run, and reconnects", async (t) => {
  const server = await dashboard(t, "--history", "30");
  const { page } = await open(t, server.url);
  await server.kill();
  await page.getByTestId("lost").waitFor(WAIT);
  const next = await server.restarted();
  t.after(() => next.kill());
  await page.getByTestId("lost").waitFor({ state: "hidden", ...WAIT });
  await state(page, "running");
});

test("pointer and keyboard show values in all charts at once", async (t) => {
  const { page, seen } = await open(t, `file://${await report()}`);
  const chart = page.getByTestId("chart-users");
  const plot = chart.locator(".plot");
  await plot.focus();
  await plot.press("Home");
  await plot.press("ArrowRight");
  const value = () => plot.getAttribute("aria-valuetext");
  await eventually(async () => assert.match(await value(), /^0:0\d: users/));
  const first = await value();
  await plot.press("End");
  await eventually(async () => assert.notEqual(await value(), first));
  await chart.locator(".tip").waitFor(WAIT);
  await counts(page.locator(".plot .cursor"), CHARTS.length);
  await plot.press("Escape");
  await chart.locator(".tip").waitFor({ state: "hidden", ...WAIT });

  const box = await plot.boundingBox();
  await page.mouse.move(box.x + box.width * 0.4, box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 50);
  await page.mouse.up();
  const whole = page.getByRole("button", { name: "Whole run" });
  await whole.waitFor(WAIT);
  const zero = chart.locator("text.axis", { hasText: /^0:00$/ });
  await counts(zero, 0);
  await whole.click();
  await counts(zero, 1);

  await chart.locator(".key", { hasText: "connected" }).click();
  await counts(chart.locator("path.line"), 1);
  await page.getByTestId("metric").selectOption("join");
  await allDrawn(page);
  assert.deepEqual(seen.complaints, []);
});

test("the report is one file that fetches nothing", async (t) => {
  const file = await report("--overload");
  const { page, seen } = await open(t, `file://${file}`);
  await allDrawn(page);
  await state(page, "over");
  await reads(page.getByTestId("notice-passed"), /errors: 217/);
  await page.getByTestId("notice-trust").waitFor(WAIT);
  await reads(page.getByTestId("notice-cpu_bound"), /Use more workers/);
  const heads = await page.getByTestId("table-latency").locator("thead th").allTextContents();
  assert.deepEqual(heads.slice(4), ["p50", "p90", "p95", "p99", "p99.9", "p99.99", "p99.999",
    "Max"]);
  await page.getByTestId("scenario").locator("summary").click();
  await reads(page.getByTestId("scenario").locator("pre"), /\[\[phase\]\]/);
  assert.deepEqual(seen.complaints, []);
  assert.deepEqual(seen.requests, [`file://${file}`]);
});

test("names that would break out of a page stay text", async (t) => {
  const server = await dashboard(t, "--hostile", "--history", "100");
  for (const url of [server.url, `file://${await report("--hostile")}`]) {
    const { page, seen } = await open(t, url);
    await reads(page.locator("h1"), /<\/script><script>/);
    assert.equal(await page.evaluate(() => window.broken), undefined);
    assert.equal(await page.locator("img").count(), 0);
    await allDrawn(page);
    assert.deepEqual(seen.complaints, []);
    await page.setViewportSize(PHONE.viewport);
    assert.ok(await fits(page), url);
  }
});

test("a phone's width needs no sideways scrolling", async (t) => {
  const server = await dashboard(t, "--history", "100");
  for (const url of [server.url, `file://${await report()}`]) {
    const { page } = await open(t, url, PHONE);
    assert.ok(await fits(page), url);
    await allDrawn(page);
  }
});

async function takePictures(t) {
  mkdirSync(SHOTS_DIR, { recursive: true });
  const live = process.env.SHOTS_LIVE ?? (await dashboard(t, "--history", "118")).url;
  const file = path.resolve(process.env.SHOTS_REPORT ?? await report());
  for (const [name, url] of [["dashboard", live], ["report", `file://${file}`]]) {
    const { page } = await open(t, url);
    await page.screenshot({ path: path.join(SHOTS_DIR, `load-${name}.png`) });
  }
}

if (process.env.SHOTS) test("the pictures for the docs", takePictures);
