// `simurgh load` with the protocols of other servers, against those servers: users subscribe, one
// publishes stamped messages, and each delivery is counted exactly. A refused subscription is an
// error with its reason.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { GraphQLNonNull, GraphQLObjectType, GraphQLSchema, GraphQLString } from "graphql";
import { useServer } from "graphql-ws/use/ws";
import { Server } from "socket.io";
import { WebSocketServer } from "ws";

import { startPusher } from "../migration/pusher-server.mjs";
import { missing } from "../support/backends.mjs";
import { E2E } from "../support/package.mjs";
import { BIN_DIR, startCommand } from "../support/server.mjs";

const USERS = 200;
const MESSAGES = 20;

/**
 * Runs listeners, a talker and a refused user; resolves to the report. `join` and `push` are the
 * keys of these steps; the payload of a push has `{{stamp}}`.
 */
async function load(t, port, { protocol, connect, join, push, leave, refused, keys = "" }) {
  const dir = await mkdtemp(path.join(os.tmpdir(), `simurgh-${protocol}-`));
  t.after(() => rm(dir, { recursive: true, force: true }));
  const session = (name, weight, steps) => `
[[session]]
name = "${name}"
weight = ${weight}
protocol = "${protocol}"
${keys}
steps = [{ connect = ${connect} }, ${steps}, { close = true }]
`;
  const file = path.join(dir, "scenario.toml");
  await writeFile(file, `follow_stamps = "exact"
appointment = [{ at = "2s", session = "talker" }, { at = "1s", session = "refused" }]
[target]
url = "ws://127.0.0.1:${port}"
[[phase]]
duration = "500ms"
rate = ${2 * USERS}
${session("listener", 1, `{ join = ${join} }, { receive = "7s" }, { leave = ${leave} }`)}
${session("talker", 0, `{ join = ${join} }, { think = "200ms" },
  { loop = ${MESSAGES}, every = "40ms", steps = [{ push = ${push} }] }, { receive = "3s" }`)}
${session("refused", 0, `{ join = ${refused} }, { receive = "1s" }`)}
`);
  const args = ["load", file, "--out", path.join(dir, "out"), "--dashboard", "off", "--quiet"];
  await promisify(execFile)(path.join(BIN_DIR, "simurgh"), args);
  return JSON.parse(await readFile(path.join(dir, "out/report.json"), "utf8"));
}

/** Each listener received each message once, and the only error is that of the refused user. */
function allDelivered({ counts, errors }, kind, reason, isOrdered = true) {
  const count = (name) => counts[name] ?? 0;
  const shown = JSON.stringify({ counts, errors });
  assert.equal(count("users_started"), USERS + 2, shown);
  assert.equal(count("joins"), USERS + 2, shown);
  assert.equal(count("pushes"), MESSAGES, shown);
  assert.equal(count("deliveries_expected"), USERS * MESSAGES, shown);
  assert.equal(count("deliveries_once"), USERS * MESSAGES, shown);
  const none = ["missing", "duplicate", "unexpected", ...(isOrdered ? ["out_of_order"] : [])];
  for (const name of none) {
    assert.equal(count(`deliveries_${name}`), 0, `${name}: ${shown}`);
  }
  assert.deepEqual(errors.map((error) => [error.kind, error.count]), [[kind, 1]], shown);
  assert.match(JSON.stringify(errors), reason);
}

async function listen(t, server) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  return server.address().port;
}

test("Socket.IO 4: each message is delivered and acknowledged", async (t) => {
  const server = http.createServer();
  const io = new Server(server, { pingInterval: 1_000, pingTimeout: 2_000 });
  io.on("connection", (socket) => {
    socket.on("say", (message, answer) => {
      socket.broadcast.emit("say", message);
      answer({ stored: true });
    });
  });
  io.of("/private").use((_, next) => next(new Error("not invited")));
  const port = await listen(t, server);
  t.after(() => io.close());
  const report = await load(t, port, {
    protocol: "socket.io",
    connect: `"/socket.io/", capture = { sid = "sid" }`,
    join: `"/"`,
    push: `"say", payload = { body = "{{stamp}}" }, check = '"stored":true'`,
    leave: `"/", reply = false`,
    refused: `"/private"`,
  });
  allDelivered(report, "join_refused", /not invited/);
  assert.equal(report.counts.replies_ok, MESSAGES);
  assert.ok(report.counts.pings_in >= USERS * 4, JSON.stringify(report.counts));
  // A user who is just closing answers none.
  const unanswered = report.counts.pings_in - report.counts.answers;
  assert.ok(unanswered >= 0 && unanswered <= USERS, `${unanswered} unanswered`);
});

const SOCKUDO = process.env.E2E_SOCKUDO;
const noSockudo = !SOCKUDO && "E2E_SOCKUDO is not set: it names a Sockudo 5";
test("Pusher's protocol: each client event is delivered", { skip: noSockudo }, async (t) => {
  const port = await freePort();
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-sockudo-"));
  t.after(() => rm(dir, { recursive: true, force: true }));
  const server = await startCommand(SOCKUDO, [], {
    cwd: dir,
    ready: /http server listening/,
    env: {
      HOST: "127.0.0.1", PORT: `${port}`, METRICS_ENABLED: "false", RATE_LIMITER_ENABLED: "false",
      SOCKUDO_DEFAULT_APP_ID: "app", SOCKUDO_DEFAULT_APP_KEY: "app-key",
      SOCKUDO_DEFAULT_APP_SECRET: "app-secret", SOCKUDO_ENABLE_CLIENT_MESSAGES: "true",
      SOCKUDO_DEFAULT_APP_MAX_CONNECTIONS: "1000",
      SOCKUDO_DEFAULT_APP_MAX_CLIENT_EVENTS_PER_SECOND: "1000",
    },
  });
  // A stop takes 10 s.
  t.after(() => server.kill());
  await allPusher(t, port);
});

/** Private channels, signed by the users themselves. */
async function allPusher(t, port) {
  const signed = (topic) => `"${topic}", payload = { auth = 'app-key:\
{{hmac_sha256 "app-secret" "{{socket_id}}:${topic}"}}' }`;
  const report = await load(t, port, {
    protocol: "pusher",
    keys: `heartbeat = "2s"`,
    connect: `"/app/app-key", capture = { socket_id = "socket_id" }`,
    join: signed("private-room"),
    push: `"client-say", payload = { body = "{{stamp}}" }, reply = false`,
    leave: `"private-room", reply = false`,
    refused: `"private-other", payload = { auth = "app-key:wrong" }`,
  });
  allDelivered(report, "join_refused", /auth|signature/i);
  assert.ok(report.counts.heartbeats >= USERS * 2, JSON.stringify(report.counts));
}

test("Pusher's protocol as the guide's server speaks it", async (t) => {
  await allPusher(t, await startPusher(t));
});

const noPuma = missing("/usr/bin/puma", "Debian's puma");
test("Action Cable: each broadcast is delivered", { skip: noPuma }, async (t) => {
  const application = path.join(E2E, "load/cable.ru");
  const options = ["--bind", "tcp://127.0.0.1:0", "--threads", "4:4", application];
  const ready = /Listening on http:\/\/127\.0\.0\.1:(\d+)/;
  const server = await startCommand("/usr/bin/puma", options, { ready });
  t.after(() => server.stop());
  const room = (name) => `'{"channel":"ChatChannel","room":"${name}"}'`;
  const report = await load(t, server.port, {
    protocol: "actioncable",
    connect: `"/cable"`,
    join: room("1"),
    push: `"say", payload = { body = "{{stamp}}" }, reply = false`,
    leave: `${room("1")}, reply = false`,
    refused: room("private"),
  });
  // Its async adapter delivers with up to ten threads.
  allDelivered(report, "join_refused", /rejected/, false);
  assert.ok(report.counts.pings_in >= USERS, JSON.stringify(report.counts));
});

const CENTRIFUGO = process.env.E2E_CENTRIFUGO;
const noCentrifugo = !CENTRIFUGO && "E2E_CENTRIFUGO is not set: it names a Centrifugo 6";
test("Centrifugo 6: each publication is delivered", { skip: noCentrifugo }, async (t) => {
  const port = await freePort();
  const token = (user) => {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
    const text = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub: user })}`;
    return `${text}.${createHmac("sha256", "secret").update(text).digest("base64url")}`;
  };
  const allowed = { allow_publish_for_subscriber: true, allow_subscribe_for_client: true };
  const config = {
    http_server: { address: "127.0.0.1", port: `${port}` },
    client: { token: { hmac_secret_key: "secret" }, ping_interval: "1s", pong_timeout: "900ms" },
    channel: { without_namespace: allowed, namespaces: [{ name: "closed" }] },
  };
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-centrifugo-"));
  t.after(() => rm(dir, { recursive: true, force: true }));
  await writeFile(path.join(dir, "config.json"), JSON.stringify(config));
  const options = { cwd: dir, ready: /serving websocket/ };
  const server = await startCommand(CENTRIFUGO, ["--config", "config.json"], options);
  t.after(() => server.stop());
  const report = await load(t, port, {
    protocol: "centrifuge",
    connect: `"/connection/websocket", payload = { token = "${token("ann")}" }`,
    join: `"lobby"`,
    push: `"say", payload = { body = "{{stamp}}" }`,
    leave: `"lobby"`,
    refused: `"closed:1"`,
  });
  allDelivered(report, "join_refused", /permission denied/);
  assert.ok(report.counts.pings_in >= USERS, JSON.stringify(report.counts));
  assert.equal(report.counts.answers, report.counts.pings_in);
});

test("graphql-ws: each result of a subscription is delivered", async (t) => {
  const waiting = new Set();
  const text = { type: new GraphQLNonNull(GraphQLString) };
  async function* said() {
    const queue = [];
    const subscriber = { queue, wake() {} };
    waiting.add(subscriber);
    try {
      for (;;) {
        while (queue.length > 0) yield { said: queue.shift() };
        await new Promise((resolve) => { subscriber.wake = resolve; });
      }
    } finally {
      waiting.delete(subscriber);
    }
  }
  const say = (_, { body }) => {
    for (const subscriber of waiting) {
      subscriber.queue.push(body);
      subscriber.wake();
    }
    return body;
  };
  const schema = new GraphQLSchema({
    query: new GraphQLObjectType({ name: "Query", fields: { a: text } }),
    mutation: new GraphQLObjectType({
      name: "Mutation", fields: { say: { ...text, args: { body: text }, resolve: say } },
    }),
    subscription: new GraphQLObjectType({
      name: "Subscription", fields: { said: { ...text, subscribe: said } },
    }),
  });
  const server = http.createServer();
  const port = await listen(t, server);
  const sockets = new WebSocketServer({ server, path: "/graphql" });
  const onConnect = ({ connectionParams }) => connectionParams?.token === "ann";
  useServer({ schema, onConnect }, sockets);
  const report = await load(t, port, {
    protocol: "graphql-ws",
    keys: `heartbeat = "2s"`,
    connect: `"/graphql", payload = { token = "ann" }`,
    join: `"lobby", payload = { query = "subscription { said }" }, reply = false`,
    push: `"say", payload = { query = 'mutation { say(body: "{{stamp}}") }' }`,
    leave: `"lobby", reply = false`,
    refused: `"other", payload = { query = "subscription { unknown }" }, reply = false`,
  });
  allDelivered(report, "channel_closed", /Cannot query field/);
  assert.equal(report.counts.replies_ok, MESSAGES);
  assert.ok(report.counts.heartbeats >= USERS * 2, JSON.stringify(report.counts));
});

async function freePort() {
  const server = http.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await promisify(server.close.bind(server))();
  return port;
}
