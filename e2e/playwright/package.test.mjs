// The npm package simurgh-resume in a browser, as a module that a page imports by its name, with
// the code that its README gives for a reload.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { after, before, test } from "node:test";

import { launchBrowser, newWindow, WAIT } from "../support/browser.mjs";
import { CURRENT } from "../support/clients.mjs";
import { speaker, startKeeper } from "../support/history.mjs";
import { Network } from "../support/network.mjs";
import { PACKAGE, install } from "../support/package.mjs";
import { htmlOf, serveFiles } from "../support/site.mjs";

let browser;
let project;
before(async () => { [browser, project] = await Promise.all([launchBrowser(), install()]); });
after(async () => {
  await browser?.close();
  await project?.end();
});

/** The code of a section of the package's README. */
async function readme(section) {
  const text = await readFile(path.join(PACKAGE, "README.md"), "utf8");
  const [, code] = new RegExp(`## ${section}\\n[^]*?\`\`\`js\\n([^]*?)\`\`\``).exec(text);
  return code;
}

/** The page, which shows the messages on `kept:page` of the socket at `url`. */
async function pageOf(url) {
  const imports = { phoenix: "./phoenix.mjs", "simurgh-resume": "./simurgh-resume.js" };
  const code = (await readme("After a reload")).replace("rooms:lobby", "kept:page");
  return htmlOf(`<ul></ul>
    <script type="importmap">${JSON.stringify({ imports })}</script>
    <script type="module">
      import { Socket } from "phoenix";
      import { resumable } from "simurgh-resume";
      const socket = new Socket("${url}", { reconnectAfterMs: () => 50 });
      socket.connect();
      ${code}
      room.on("msg", ({ n }) => {
        document.querySelector("ul").append(document.createElement("li"));
        document.querySelector("li:last-child").textContent = n;
      });
      room.join().receive("ok", () => { document.body.dataset.joined = "yes"; });
    </script>`);
}

/** The files of the site: the page and what it imports. */
async function filesOf(html) {
  const installed = (file) => readFile(path.join(project.dir, "node_modules", file));
  return {
    "/": html,
    "/phoenix.mjs": await installed("phoenix/priv/static/phoenix.mjs"),
    "/simurgh-resume.js": await installed("simurgh-resume/simurgh-resume.js"),
  };
}

test("a page imports it, and receives all despite a lost network and a reload", async (t) => {
  const server = await startKeeper();
  t.after(() => server.end());
  const way = await Network.open(server.port);
  t.after(() => way.close());
  const url = await serveFiles(t, await filesOf(await pageOf(`ws://${way.address}/socket`)));
  const { page, seen } = await newWindow(t, browser);
  const joined = () => (
    page.locator("body[data-joined]").waitFor({ state: "attached", ...WAIT }));
  const hears = (n) => page.locator("li", { hasText: new RegExp(`^${n}$`) }).waitFor(WAIT);
  const shown = () => page.locator("li").allTextContents();
  const { say } = await speaker(t, CURRENT, server, "kept:page");
  await page.goto(url);
  await joined();
  await say({ n: 0 });
  await hears(0);
  assert.deepEqual(seen.complaints, []);
  way.lose("reset");
  for (const n of [1, 2, 3]) await say({ n });
  assert.deepEqual(await shown(), ["0"]);
  way.restore();
  await hears(3);
  assert.deepEqual(await shown(), ["0", "1", "2", "3"]);
  await page.goto("about:blank");
  for (const n of [4, 5]) await say({ n });
  await page.goto(url);
  await joined();
  await say({ n: 6 });
  await hears(6);
  assert.deepEqual(await shown(), ["4", "5", "6"]);
});
