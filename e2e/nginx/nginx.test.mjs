// The nginx.conf of this directory, with other ports and paths only, in front of `simurgh serve`. A
// tee between the two counts connections, to check that requests share a kept-alive connection.

import assert from "node:assert/strict";
import net from "node:net";
import path from "node:path";
import { test } from "node:test";

import { CURRENT, FIRST, answer } from "../support/clients.mjs";
import { configured, startNginx } from "../support/nginx.mjs";
import { ROOT, startServer } from "../support/server.mjs";
import { within } from "../support/wait.mjs";

const EXAMPLE = path.join(ROOT, "e2e/nginx/nginx.conf");
const listen = (server) => new Promise((resolve) => {
  server.listen(0, "127.0.0.1", () => resolve(server.address().port));
});

/** Passes bytes between nginx and the server, and counts connections. */
async function startTee(t, port) {
  const tee = { connections: 0 };
  const server = net.createServer((down) => {
    tee.connections += 1;
    const up = net.connect(port, "127.0.0.1");
    for (const [from, to] of [[down, up], [up, down]]) {
      from.on("error", () => to.destroy());
      from.pipe(to);
    }
  });
  tee.port = await listen(server);
  t.after(() => server.close());
  return tee;
}

/** Starts nginx with the example, its two addresses replaced, and resolves to its port. */
async function startExample(t, upstream) {
  return await startNginx(t, (dir, port) => configured(EXAMPLE, dir, [
    ["listen 80;", `listen 127.0.0.1:${port};`],
    ["server 127.0.0.1:4000;", `server 127.0.0.1:${upstream};`],
  ]));
}

async function behindNginx(t) {
  const server = await startServer("serve");
  t.after(() => server.kill());
  const tee = await startTee(t, server.port);
  const port = await startExample(t, tee.port);
  return { tee, http: `http://127.0.0.1:${port}`, ws: `ws://127.0.0.1:${port}/socket` };
}

test("the page and the socket work through nginx", async (t) => {
  const { http, ws } = await behindNginx(t);
  const page = await fetch(http);
  assert.equal(page.status, 200);
  assert.match(await page.text(), /phoenix\.min\.js/);
  const users = [await CURRENT.open(t, ws), await FIRST.open(t, ws)];
  const joins = [];
  for (const user of users) joins.push(await user.join("rooms:lobby", { user: user.client.name }));
  const inbox = users[1].listen(joins[1].channel, "new:msg");
  const message = { user: "a", body: "through the proxy" };
  assert.deepEqual(await answer(joins[0].channel.push("new:msg", message)), { msg: message.body });
  assert.deepEqual((await inbox.next("broadcast")).payload, message);
});

test("an upgrade can be a later request of a kept-alive connection", async (t) => {
  const { tee, http, ws } = await behindNginx(t);
  for (let n = 0; n < 3; n += 1) {
    const page = await within(fetch(`${http}/healthz`), "health");
    assert.equal(page.status, 200);
    await page.text();
  }
  assert.equal(tee.connections, 1, "nginx keeps its connection to the server");
  const user = await CURRENT.open(t, ws);
  assert.equal(tee.connections, 1, "the upgrade took the kept-alive connection");
  const { channel } = await user.join("rooms:lobby", { user: "ada" });
  const { msg } = await answer(channel.push("new:msg", { user: "ada", body: "hello" }));
  assert.equal(msg, "hello");
});

/** Sends `bytes` and resolves to the statuses of all answers until the other side closes. */
function statuses(port, bytes) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, "127.0.0.1", () => socket.end(bytes));
    const chunks = [];
    socket.setTimeout(10_000, () => socket.destroy(new Error("no end")));
    socket.on("data", (chunk) => chunks.push(chunk));
    socket.on("error", reject);
    socket.on("close", () => {
      const text = Buffer.concat(chunks).toString("latin1");
      resolve([...text.matchAll(/^HTTP\/1\.1 (\d+)/gm)].map((match) => Number(match[1])));
    });
  });
}

// What nginx lets through of a request that could be read in two ways must be one request to the
// server as well: the answers on nginx's kept-alive connection still belong to their requests.
test("nginx passes no requests that are hidden in others", async (t) => {
  const { tee, http } = await behindNginx(t);
  const port = Number(new URL(http).port);
  const hidden = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
  const line = "POST /api/broadcast HTTP/1.1\r\nhost: a\r\n";
  const post = (headers, body) => `${line}${headers}\r\n\r\n${body}`;
  for (const bytes of [
    post("content-length: 4\r\ntransfer-encoding: chunked", `0\r\n\r\n${hidden}`),
    post("transfer-encoding: chunked\r\ncontent-length: 4", `0\r\n\r\n${hidden}`),
    post("transfer-encoding: xchunked\r\ncontent-length: 0", hidden),
    post("transfer-encoding: chunked", `0\n\n${hidden}`),
    post(`content-length: ${hidden.length}`, hidden),
    post("transfer-encoding: chunked", `5;x="\r\nhello\r\n0\r\n\r\n`),
  ]) {
    const got = await statuses(port, bytes);
    assert.ok(got.length <= 2, `${JSON.stringify(bytes)}: ${got}`);
    assert.ok(!got.includes(200), `${JSON.stringify(bytes)}: ${got}`);
    const page = await within(fetch(`${http}/healthz`), "health");
    assert.equal(page.status, 200, "an answer belongs to its own request");
    assert.equal(await page.text(), "ok\n");
  }
  assert.ok(tee.connections >= 1);
});
