// permessage-deflate with npm's ws and with Chromium, both as they come: PROTOCOL rows 138 and 139.

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";

import WebSocket from "ws";

import { launchBrowser, newWindow } from "../support/browser.mjs";
import { CURRENT, answer } from "../support/clients.mjs";
import { startProcess } from "../support/server.mjs";

const LONG = Array.from({ length: 500 }, (_, n) => `word ${n % 50}`).join(" ");

let server;
before(async () => { server = await startProcess("conformance"); });
after(async () => { await server?.kill(); });

/** Compressed messages that the server has received and sent. */
async function counts() {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const sum = (name) => text.split("\n").filter((line) => line.startsWith(`${name}{`))
    .reduce((all, line) => all + Number(line.split(" ").at(-1)), 0);
  return [sum("simurgh_inflated_messages_total"), sum("simurgh_deflated_messages_total")];
}

test("ws gets back what it sends, text and binary, short, long and empty", async () => {
  const socket = new WebSocket(`${server.wsUrl}/echo`, { perMessageDeflate: { threshold: 0 } });
  await once(socket, "open");
  assert.equal(socket.extensions, "permessage-deflate");
  const before = await counts();
  for (const data of ["", "short", LONG, Buffer.from(LONG), LONG.repeat(100), Buffer.alloc(0)]) {
    socket.send(data);
    const [back, isBinary] = await once(socket, "message");
    assert.equal(isBinary, Buffer.isBuffer(data));
    assert.ok(Buffer.from(data).equals(back), `${data.length} bytes`);
  }
  const [inflated, deflated] = await counts();
  assert.ok(inflated - before[0] >= 4, `${inflated} inflated`);
  assert.equal(deflated - before[1], 2, "the long text and the long binary message");
  socket.close();
});

test("the official client needs no setting: long messages are compressed", async (t) => {
  const user = await CURRENT.open(t, `${server.wsUrl}/socket`);
  const { channel } = await user.join("test:deflate-js");
  const inbox = user.listen(channel, "news");
  assert.deepEqual(await answer(channel.push("echo", { text: LONG })), { text: LONG });
  channel.push("bcast", { text: LONG });
  assert.deepEqual((await inbox.next("broadcast")).payload, { text: LONG });
});

test("Chromium gets back what it sends", async (t) => {
  const browser = await launchBrowser();
  t.after(() => browser.close());
  const { page } = await newWindow(t, browser);
  // For an origin of this machine.
  await page.goto(`${server.url}/metrics`);
  const before = await counts();
  const [extensions, back] = await page.evaluate(async ([url, text]) => {
    const socket = new WebSocket(url);
    await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
    const message = new Promise((resolve) => { socket.onmessage = ({ data }) => resolve(data); });
    socket.send(text);
    return [socket.extensions, await message];
  }, [`${server.wsUrl}/echo`, LONG]);
  assert.match(extensions, /^permessage-deflate/);
  assert.equal(back, LONG);
  const [inflated, deflated] = await counts();
  assert.deepEqual([inflated - before[0], deflated - before[1]], [1, 1]);
});
