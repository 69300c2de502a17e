// The documentation site as mdBook builds it: its links, and its search, schemes and versions in a
// browser. SHOTS=1 also takes a picture in each scheme, into docs/img.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { missing } from "../support/backends.mjs";
import { launchBrowser, newWindow, reads, WAIT } from "../support/browser.mjs";
import { run } from "../support/package.mjs";
import { ROOT } from "../support/server.mjs";
import { serveFolder } from "../support/site.mjs";

const REPOSITORY = "https://example.org/simurgh";

/** The names of all Markdown files of docs, such as `migration/PHOENIX.md`. */
async function documents() {
  const names = await readdir(path.join(ROOT, "docs"), { recursive: true });
  return names.filter((name) => name.endsWith(".md") && name !== "SUMMARY.md");
}

test("the table of contents names every document", async () => {
  const summary = await readFile(path.join(ROOT, "docs/SUMMARY.md"), "utf8");
  const named = [...summary.matchAll(/\]\(([^)]*)\)/g)].map(([, name]) => name);
  assert.deepEqual((await documents()).filter((name) => !named.includes(name)), []);
});

describe("the site", { skip: missing(process.env.MDBOOK, "mdBook") }, () => {
  let out;
  let browser;
  before(async () => {
    out = await mkdtemp(path.join(os.tmpdir(), "simurgh-site-test-"));
    for (const version of ["0.1.0", "0.0.9", "main"]) {
      const args = ["--out", out, "--version", version, "--repository", REPOSITORY];
      await run(process.execPath, [path.join(ROOT, "site/build.mjs"), ...args]);
    }
    // A page that the older version does not have.
    await rm(path.join(out, "0.0.9/COMPATIBILITY.html"));
    browser = await launchBrowser();
  });
  after(async () => {
    await browser?.close();
    await rm(out, { recursive: true });
  });

  test("every link leads to a page and a heading that exist", async () => {
    const site = path.join(out, "0.1.0");
    const names = (await readdir(site, { recursive: true })).filter((it) => it.endsWith(".html"));
    const pages = new Map();
    for (const name of names) pages.set(name, await readFile(path.join(site, name), "utf8"));
    assert.ok(pages.size >= (await documents()).length + 5, `${pages.size} pages`);
    const broken = [];
    let checked = 0;
    for (const [name, text] of pages) {
      const outsideOfCode = text.replace(/<code[^]*?<\/code>/g, "");
      for (const [, link] of outsideOfCode.matchAll(/ (?:href|src)="([^"]*)"/g)) {
        if (isBroken(site, pages, name, link)) broken.push(`${name}: ${link}`);
        checked += 1;
      }
    }
    assert.ok(checked > 1_000, `${checked} links`);
    assert.deepEqual(broken, []);
  });

  test("it is searched, in the reader's colours, without another server", async (t) => {
    const origin = await serveFolder(t, out);
    for (const [colorScheme, theme] of [["light", "light"], ["dark", "navy"]]) {
      const { page, seen } = await newWindow(t, browser, { colorScheme });
      await page.goto(`${origin}/`);
      await page.waitForURL(`${origin}/0.1.0/`, WAIT);
      await reads(page.locator("main h1").first(), "Simurgh");
      assert.match(await page.locator("html").getAttribute("class"), new RegExp(`\\b${theme}\\b`));
      await page.keyboard.press("s");
      await page.locator("#mdbook-searchbar").pressSequentially("rolling restarts");
      await page.locator("#mdbook-searchresults a[href*='CLUSTER.html']").first().click();
      await page.waitForURL(/CLUSTER\.html.*#rolling-restarts/, WAIT);
      assert.deepEqual(seen.complaints, []);
      assert.deepEqual(seen.requests.filter((url) => !url.startsWith(origin)), []);
    }
  });

  test("a reader changes the version, and stays on the page if that version has it", async (t) => {
    const origin = await serveFolder(t, out);
    const { page } = await newWindow(t, browser);
    const list = page.getByLabel("Version");
    await page.goto(`${origin}/0.1.0/migration/PHOENIX.html`);
    await list.waitFor(WAIT);
    assert.deepEqual(await list.locator("option").allTextContents(), ["0.1.0", "0.0.9", "main"]);
    assert.equal(await list.inputValue(), "0.1.0");
    await list.selectOption("0.0.9");
    await page.waitForURL(`${origin}/0.0.9/migration/PHOENIX.html`, WAIT);
    assert.equal(await list.inputValue(), "0.0.9");
    await page.goto(`${origin}/0.1.0/COMPATIBILITY.html`);
    await list.selectOption("0.0.9");
    await page.waitForURL(`${origin}/0.0.9/`, WAIT);
  });

  if (process.env.SHOTS) test("the pictures for the documents", takePictures);

  async function takePictures(t) {
    const origin = await serveFolder(t, out);
    for (const colorScheme of ["light", "dark"]) {
      const viewport = { width: 1160, height: 640 };
      const { page } = await newWindow(t, browser, { viewport, colorScheme });
      await page.goto(`${origin}/0.1.0/GETTING-STARTED.html`);
      await page.getByLabel("Version").waitFor(WAIT);
      await page.screenshot({ path: path.join(ROOT, `docs/img/site-${colorScheme}.png`) });
    }
  }
});

/** Whether a link of a page leads nowhere. Those to the repository name a file of the work tree. */
function isBroken(site, pages, page, link) {
  if (link.startsWith(`${REPOSITORY}/`)) {
    const [, file] = /\/(?:blob|tree)\/v0\.1\.0\/([^#]*)/.exec(link) ?? [];
    return file === undefined || !existsSync(path.join(ROOT, file));
  }
  if (/^[a-z]+:/.test(link)) return false;
  const [name, anchor] = link.split("#").map(decodeURIComponent);
  let target = name === "" ? page : path.posix.join(path.posix.dirname(page), name);
  if (target.endsWith("/") || target === ".") target = path.posix.join(target, "index.html");
  const text = pages.get(target);
  if (text === undefined) return !existsSync(path.join(site, target));
  return Boolean(anchor) && !text.includes(` id="${anchor}"`);
}
