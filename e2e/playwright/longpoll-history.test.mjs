// Histories over long polling in a browser, with the clients' own XMLHttpRequest. A browser that
// loses a connection before the first byte of the response repeats the poll without notice to its
// page. So only the server can notice that a response was lost.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import net from "node:net";
import path from "node:path";
import { after, before } from "node:test";

import { launchBrowser, newWindow } from "../support/browser.mjs";
import { CURRENT } from "../support/clients.mjs";
import { random, speaker, startKeeper, test, upTo } from "../support/history.mjs";
import { E2E, PACKAGE } from "../support/package.mjs";
import { htmlOf, serveFiles } from "../support/site.mjs";
import { pause } from "../support/wait.mjs";

const SEED = Number(process.env.SEED ?? Date.now() % 100_000);
const LOST_MIN = 5;
/** Those whose LongPoll takes messages as texts, as Phoenix sends them since 1.4. */
const VERSIONS = { 1.8: "phoenix", 1.4: "phoenix-1.4.17" };

let browser;
let server;
before(async () => { [browser, server] = await Promise.all([launchBrowser(), startKeeper()]); });
after(async () => {
  await browser?.close();
  await server?.end();
});

/**
 * A proxy that now and then, while `isLosing`, resets a connection with an answer to a poll on it:
 * of half of those the browser gets some bytes, of the others none. `lost` counts both.
 */
async function losingProxy(t, port) {
  const below = random(SEED);
  const state = { isLosing: false, lost: 0 };
  const sockets = new Set();
  const proxy = net.createServer((client) => {
    const upstream = net.connect(port, "127.0.0.1");
    let polls = false;
    client.on("data", (data) => {
      polls = /^GET .*[?&]token=/.test(data.toString("latin1"));
      upstream.write(data);
    });
    upstream.on("data", (data) => {
      if (!state.isLosing || !polls || below(4) > 0) {
        client.write(data);
        return;
      }
      state.lost += 1;
      const bytes = below(2) * below(data.length);
      const reset = () => client.resetAndDestroy();
      if (bytes > 0) client.write(data.subarray(0, bytes), () => setTimeout(reset, 5));
      else reset();
      upstream.destroy();
    });
    for (const [socket, other] of [[client, upstream], [upstream, client]]) {
      sockets.add(socket);
      socket.on("error", () => {});
      if (socket === client) socket.on("close", () => other.destroy());
    }
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    proxy.close();
  });
  state.url = `ws://127.0.0.1:${proxy.address().port}/socket`;
  return state;
}

/** A page that listens on `topic`, with a client of this package. */
async function listener(t, url, name, topic) {
  const file = name === "phoenix" ? "phoenix.cjs.js" : "phoenix.js";
  const client = await readFile(path.join(E2E, "node_modules", name, "priv/static", file), "utf8");
  return await serveFiles(t, {
    "/": htmlOf(`<script src="/phoenix.js"></script>
      <script type="module" src="/page.js"></script>`),
    // All are modules of Node's kind, the one way or the other.
    "/phoenix.js": `window.Phoenix = {}; {
      const exports = window.Phoenix; const module = { exports };
      ${client}
      window.Phoenix = module.exports;
    }`,
    "/simurgh-resume.js": await readFile(path.join(PACKAGE, "simurgh-resume.js")),
    "/page.js": `
      import { resumable } from "./simurgh-resume.js";
      const { LongPoll, Socket } = window.Phoenix;
      const pace = { reconnectAfterMs: () => 50, rejoinAfterMs: () => 50 };
      const socket = new Socket("${url}", { transport: LongPoll, ...pace });
      socket.connect();
      [window.heard, window.gaps, window.joins] = [[], [], 0];
      const onGap = (gap) => window.gaps.push(gap);
      const room = resumable(socket, "${topic}", {}, { onGap });
      room.on("msg", ({ n }) => window.heard.push(n));
      room.join().receive("ok", () => { window.joins += 1; });
    `,
  });
}

for (const [version, name] of Object.entries(VERSIONS)) {
  test(`phoenix ${version} receives everything if responses to polls are lost`, async (t) => {
    t.diagnostic(`SEED=${SEED}`);
    const topic = `kept:polled-${version}`;
    const proxy = await losingProxy(t, server.port);
    const { page } = await newWindow(t, browser);
    await page.goto(`${await listener(t, proxy.url, name, topic)}/`);
    await page.waitForFunction(() => window.joins === 1);
    const { say } = await speaker(t, CURRENT, server, topic);
    proxy.isLosing = true;
    let last = 0;
    for (; last < 150 || (proxy.lost < LOST_MIN && last < 900); last += 1) {
      await say({ n: last });
      await pause(20);
    }
    proxy.isLosing = false;
    await say({ n: last });
    await page.waitForFunction((n) => window.heard.includes(n), last);
    const { heard, gaps, joins } = await page.evaluate(() => (
      { heard: window.heard, gaps: window.gaps, joins: window.joins }));
    t.diagnostic(`${proxy.lost} answers lost, ${joins} joins`);
    assert.deepEqual(heard, upTo(last));
    assert.deepEqual(gaps, []);
    assert.ok(proxy.lost >= LOST_MIN, `${proxy.lost} lost`);
  });
}
