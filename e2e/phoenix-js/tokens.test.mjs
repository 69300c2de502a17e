// The official client on a server that requires tokens: it calls its functions for fresh ones by
// itself after the end of a socket, a session or a channel. Tokens are made here with HMAC.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import WebSocket from "ws";

import { CURRENT, Refused, answer } from "../support/clients.mjs";
import { startProcess, startServer } from "../support/server.mjs";
import { Inbox, eventually, within } from "../support/wait.mjs";

const { LongPoll } = createRequire(import.meta.url)("phoenix");

const SECRET = "a secret of thirty-two bytes or more";
const SETTINGS = `
longpoll = "10s"

[token]
kind = "jwt"
connect = "optional"
key_file = "secret"
algorithms = "HS256"
leeway = "0s"
on_expiry = "renew"

[[channel]]
topic = "own:*"
join = "own:{sub}"
join_token = "ticket"
other_events = "ignore"

[[channel.event]]
name = "ask"
reply = "$payload"
`;

let server;
let dir;
before(async () => {
  dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-tokens-"));
  const secret = path.join(dir, "secret");
  const config = path.join(dir, "simurgh.toml");
  await writeFile(secret, SECRET);
  await writeFile(config, SETTINGS.replace('"secret"', JSON.stringify(secret)));
  server = await startServer("serve", { args: ["--config", config] });
});
after(async () => {
  await server?.kill();
  await rm(dir, { recursive: true });
});

const encode = (bytes) => Buffer.from(bytes).toString("base64url");

/** Of `sub`, good for so many seconds at least, and for less than one more. */
function sign(sub, seconds, kid) {
  const exp = Math.ceil(Date.now() / 1000) + seconds;
  const parts = [{ alg: "HS256", typ: "JWT", kid }, { sub, exp }];
  const signed = parts.map((part) => encode(JSON.stringify(part))).join(".");
  return `${signed}.${encode(createHmac("sha256", SECRET).update(signed).digest())}`;
}

/**
 * A function that gives a token that is soon over first, and lasting ones then. The first has to
 * last until a slow machine has connected and joined with it.
 */
function tokens(sub) {
  let given = 0;
  const fresh = () => sign(sub, given++ === 0 ? 4 : 60);
  return { fresh, given: () => given };
}

const url = () => `${server.wsUrl}/socket`;

/** Joins, waits until the channel is joined a second time, and asks something there. */
async function rejoins(user, topic, payload) {
  const channel = user.socket.channel(topic, payload);
  const joins = new Inbox();
  channel.join().receive("ok", () => joins.put("joined"));
  await joins.next("first join");
  await joins.next("second join");
  assert.deepEqual(await answer(channel.push("ask", { n: 1 })), { n: 1 });
}

for (const [name, options] of [
  ["authToken", (fresh) => ({ authToken: fresh })],
  ["the param `token`", (fresh) => ({ params: () => ({ token: fresh() }) })],
  ["authToken over LongPoll", (fresh) => ({ authToken: fresh, transport: LongPoll })],
  ["the param `token` over LongPoll",
    (fresh) => ({ params: () => ({ token: fresh() }), transport: LongPoll })],
]) {
  test(`a socket reconnects with a fresh token: ${name}`, async (t) => {
    const { fresh, given } = tokens("ann");
    const user = await CURRENT.open(t, url(), options(fresh));
    const closes = new Inbox();
    user.socket.onClose(closes.put);
    await rejoins(user, "own:ann", {});
    const { code } = await closes.next("a close");
    assert.equal(code, options(fresh).transport ? 3410 : 3000);
    assert.ok(given() >= 2, `${given()} tokens were asked for`);
  });
}

test("a channel joins again with a fresh token of its own", async (t) => {
  const { fresh, given } = tokens("room");
  const user = await CURRENT.open(t, url());
  let closes = 0;
  user.socket.onClose(() => { closes += 1; });
  await rejoins(user, "own:room", () => ({ ticket: fresh() }));
  assert.equal(given(), 2);
  assert.equal(closes, 0, "the socket stays");
});

test("a renewed socket is not closed, and another's token renews nothing", async (t) => {
  const user = await CURRENT.open(t, url(), { authToken: sign("ann", 5) });
  let closes = 0;
  user.socket.onClose(() => { closes += 1; });
  const { channel } = await user.join("own:ann");
  const renew = (token) => answer(channel.push("access_token", { access_token: token }));
  await assert.rejects(renew(sign("bob", 60)), (error) =>
    error instanceof Refused && error.response.reason === "wrong_subject");
  assert.deepEqual(await renew(sign("ann", 60)), {});
  // The first token's time, what a sweep takes, and a second more.
  await new Promise((resolve) => setTimeout(resolve, 8_500));
  assert.deepEqual(await answer(channel.push("ask", { n: 2 })), { n: 2 });
  assert.equal(closes, 0);
});

test("a client without a valid token is refused", async (t) => {
  const user = CURRENT.socket(url(), { authToken: sign("ann", -60) });
  t.after(() => user.close());
  const error = new Promise((resolve) => user.socket.onError(resolve));
  user.socket.connect();
  await within(error, "a refusal");
  assert.equal(user.socket.isConnected(), false);
  const anybody = await CURRENT.open(t, url());
  const channel = anybody.socket.channel("own:ann", { ticket: "rubbish" });
  await assert.rejects(answer(channel.join()), (error) =>
    error instanceof Refused && error.response.reason === "invalid");
  channel.rejoinTimer.reset();
});

test("keys at a URL are read at the start, and again for an unknown key", async (t) => {
  let answered = [500, ""];
  let reads = 0;
  const issuer = http.createServer((_, response) => {
    reads += 1;
    response.writeHead(answered[0]);
    response.end(answered[1]);
  });
  issuer.listen(0, "127.0.0.1");
  await once(issuer, "listening");
  t.after(() => issuer.close());
  const publish = (...kids) => {
    const keys = kids.map((kid) => ({ kty: "oct", alg: "HS256", kid, k: encode(SECRET) }));
    answered = [200, JSON.stringify({ keys })];
  };
  const config = path.join(dir, "url.toml");
  const place = `jwks_url = "http://127.0.0.1:${issuer.address().port}/keys.json"`;
  await writeFile(config, SETTINGS.replace('key_file = "secret"', place));
  const reading = await startProcess("serve", { args: ["--config", config] });
  t.after(() => reading.kill());
  const status = async (kid) => {
    const token = sign("ann", 60, kid);
    const socket = new WebSocket(`${reading.wsUrl}/socket/websocket?vsn=2.0.0&token=${token}`);
    const opened = once(socket, "open").then(() => 101);
    const refused = once(socket, "unexpected-response").then(([, { statusCode }]) => statusCode);
    socket.on("error", () => {});
    const found = await Promise.race([opened, refused]);
    socket.terminate();
    return found;
  };
  assert.equal(await status("old"), 503);
  publish("old");
  await eventually(async () => assert.equal(await status("old"), 101));
  publish("old", "new");
  await eventually(async () => assert.equal(await status("new"), 101));
  // A set that cannot be read keeps the old keys.
  answered = [200, "<html>"];
  const before = reads;
  await eventually(async () => {
    assert.equal(await status("newer"), 403);
    assert.ok(reads > before);
  });
  assert.equal(await status("new"), 101);
});
