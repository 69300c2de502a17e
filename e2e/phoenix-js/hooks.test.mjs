// An application decides over HTTP who connects, joins and publishes (docs/BACKENDS.md): order of
// deciders, answers by status, what an answer grants, failures. Frameworks have tests of their own.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import WebSocket from "ws";

import { Application, browser, refusal, startAsking } from "../support/application.mjs";
import { Refused, answer } from "../support/clients.mjs";
import { eventually, pause, until } from "../support/wait.mjs";

const CONNECT = 'questions = ["connect"]';
const ROOMS = `
[[channel]]
topic = "rooms:*"
deny = ["rooms:denied"]
join_hook = "app"
members_max = 2
presence = { key = "$token.sub" }
[[channel.event]]
name = "say"
broadcast = "all"
hook = "app"
reply = { declared = true }
[[channel.event]]
name = "plain"
broadcast = "all"
payload = { user = "$token.sub", role = "$assigns.role", said = "$body" }
reply = {}
`;

/** No channel serves the topics of `subscribe`. */
const UNSERVED = { allow_unserved: true };

const ANN = { cookie: "theme=dark; session=ann", "x-tenant": "acme", "user-agent": "test" };

const refused = async (promise) => {
  try {
    await promise;
  } catch (error) {
    if (error instanceof Refused) return error.response;
    throw error;
  }
  throw new Error("it was not refused");
};

const signedIn = ({ headers }) => {
  const user = /session=(\w+)/.exec(headers.cookie ?? "")?.[1];
  return user ? { user, claims: { staff: user === "ann" } } : [401, { reason: "please log in" }];
};

test("connect question carries the listed cookies and headers, and its answer is the identity",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = signedIn;
    const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
    const ann = await browser(t, server, ANN, { params: { device: "phone" } });
    const [question] = app.of("connect");
    assert.equal(question.headers.cookie, "session=ann");
    assert.equal(question.headers["x-tenant"], "acme");
    assert.notEqual(question.headers["user-agent"], "test");
    assert.equal(question.headers["x-requested-with"], "XMLHttpRequest");
    assert.equal(question.params.device, "phone");
    assert.equal(question.transport, "websocket");
    assert.match(question.connection, /^[\w-]{24}$/);
    const { channel } = await ann.join("rooms:a", { user: "eve" });
    const [join] = app.of("join");
    assert.deepEqual([join.user, join.id, join.topic], ["ann", "user_socket:ann", "rooms:a"]);
    assert.deepEqual([join.claims, join.params], [{ staff: true, sub: "ann" }, { user: "eve" }]);
    assert.equal(join.connection, question.connection);
    const heard = ann.listen(channel, "plain");
    await answer(channel.push("plain", { body: "hi", user: "eve" }));
    const { payload } = await heard.next("plain");
    assert.deepEqual(payload, { user: "ann", role: null, said: "hi" });
  });

test("status of an answer decides about a connect", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
  const login = await refusal(server);
  assert.deepEqual([login.status, login.body], [403, "please log in\n"]);
  for (const [status, expected] of [
    [401, 403], [403, 403], [302, 403], [303, 403], [301, 503], [400, 503], [404, 503], [419, 503],
    [422, 503], [500, 503],
  ]) {
    app.answers.connect = () => [status, {}];
    const got = await refusal(server, { "x-tenant": `status-${status}` });
    assert.equal(got.status, expected, `for ${status}`);
    if (expected === 503) assert.equal(got.headers["retry-after"], "1");
  }
  for (const garbage of ["<html>", "[]", '{"user": {}}', '{"claims": 7}', '{"topics": "rooms:*"}',
    '{"cache_for": "long"}', `{"x": "${"x".repeat(70_000)}"}`]) {
    app.answers.connect = () => garbage;
    const got = await refusal(server, { "x-tenant": garbage.slice(0, 20).replace(/[^\w]/g, "_") });
    assert.equal(got.status, 503, garbage.slice(0, 40));
  }
});

test("deciders of a join: deny, then the connect's topics, then the question, then members_max",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = (question) => ({ ...signedIn(question), topics: ["rooms:free"] });
    app.answers.join = ({ topic }) => (
      topic === "rooms:private" ? [403, { reason: "private", since: 1 }] : {});
    const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
    const ann = await browser(t, server, ANN);
    assert.deepEqual(await refused(ann.join("rooms:denied")), { reason: "unauthorized" });
    await ann.join("rooms:free");
    assert.equal(app.of("join").length, 0);
    assert.deepEqual(await refused(ann.join("rooms:private")), { reason: "private", since: 1 });
    await ann.join("rooms:small");
    const bob = await browser(t, server, { cookie: "session=bob" });
    const eve = await browser(t, server, { cookie: "session=eve" });
    await bob.join("rooms:small");
    assert.deepEqual(await refused(eve.join("rooms:small")), { reason: "full" });
  });

test("rule of the channel decides without a question, unless it is always asked", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  app.answers.join = () => ({ reply: { asked: true } });
  const channel = (topic, more) => `
[[channel]]
topic = "${topic}:*"
join = "claims.staff"
join_hook = "app"
${more}`;
  const channels = channel("rule", "") + channel("always", 'join_question = "always"');
  const server = await startAsking(t, app, channels, { hook: CONNECT });
  const ann = await browser(t, server, ANN);
  assert.deepEqual((await ann.join("rule:a")).response, {});
  assert.equal(app.of("join").length, 0);
  assert.deepEqual((await ann.join("always:a")).response, { asked: true });
  const bob = await browser(t, server, { cookie: "session=bob" });
  assert.deepEqual((await bob.join("rule:a")).response, { asked: true });
});

test("answer to a join grants a reply, assigns, events and a presence", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  app.answers.join = () => ({
    reply: { title: "Seven" }, assigns: { role: "owner" }, publish: ["plain"],
    presence: { key: "boss", meta: { color: "red" } }, subscribe: ["news"],
  });
  const server = await startAsking(t, app, ROOMS, {
    hook: CONNECT, env: { SIMURGH_API_TOKEN: "secret" },
  });
  const ann = await browser(t, server, ANN);
  const channel = ann.socket.channel("rooms:7", {});
  const heard = ann.listen(channel, "plain", "presence_state", "flash");
  assert.deepEqual(await answer(channel.join()), { title: "Seven" });
  const { payload: present } = await heard.next("state", ({ event }) => event === "presence_state");
  assert.equal(present.boss.metas[0].color, "red");
  await answer(channel.push("plain", {}));
  const { payload } = await heard.next("plain", ({ event }) => event === "plain");
  assert.equal(payload.role, "owner");
  assert.deepEqual(await refused(answer(channel.push("say", {}))), { reason: "unauthorized" });
  assert.equal(app.of("message").length, 0, "refused before the question");
  const published = await fetch(`${server.url}/api/broadcast`, {
    method: "POST",
    headers: { authorization: "Bearer secret" },
    body: JSON.stringify({ topic: "news", event: "flash", payload: { n: 1 }, ...UNSERVED }),
  });
  assert.equal(published.status, 202);
  assert.deepEqual((await heard.next("flash", ({ event }) => event === "flash")).payload, { n: 1 });
});

test("answer to a message rewrites it, publishes more before its reply, or keeps it back",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = signedIn;
    app.answers.join = () => ({ assigns: { role: "owner" } });
    const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
    const ann = await browser(t, server, ANN);
    const { channel } = await ann.join("rooms:a");
    const order = [];
    for (const event of ["note", "say", "said"]) {
      channel.on(event, (payload) => order.push([event, payload]));
    }
    app.answers.message = ({ user, payload, assigns }) => ({
      payload: { from: user, body: payload.body.slice(0, 2), role: assigns.role },
      messages: [{ topic: "rooms:a", event: "note", payload: { n: 1 } }],
      reply: { id: 7 },
    });
    const reply = await answer(channel.push("say", { body: "hello", from: "eve" }));
    order.push(["reply", reply]);
    assert.deepEqual(order, [
      ["note", { n: 1 }], ["say", { from: "ann", body: "he", role: "owner" }], ["reply", { id: 7 }],
    ]);
    order.length = 0;
    app.answers.message = () => ({ event: "said", payload: { x: 1 } });
    assert.deepEqual(await answer(channel.push("say", { body: "" })), { declared: true });
    assert.deepEqual(order, [["said", { x: 1 }]]);
    order.length = 0;
    app.answers.message = () => ({ broadcast: false, reply: { quiet: true }, status: "error" });
    assert.deepEqual(await refused(answer(channel.push("say", {}))), { quiet: true });
    app.answers.message = () => [403, { reason: "rude" }];
    assert.deepEqual(await refused(answer(channel.push("say", {}))), { reason: "rude" });
    await answer(channel.push("plain", {}));
    assert.deepEqual(order, []);
    // A binary payload is asked about as base64, if the channel takes it at all.
    assert.equal((await refused(answer(channel.push("say", new ArrayBuffer(3))))).reason,
      "wrong_payload");
  });

test("messages of a channel wait for each other's answers, other channels go on", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
  const ann = await browser(t, server, ANN);
  const { channel: slow } = await ann.join("rooms:slow");
  const { channel: other } = await ann.join("rooms:other");
  let release;
  const held = new Promise((resolve) => { release = resolve; });
  app.answers.message = async ({ topic, payload }) => {
    if (topic === "rooms:slow" && payload.n === 0) await held;
    return {};
  };
  const heard = [];
  slow.on("say", ({ n }) => heard.push(n));
  const pushed = [0, 1, 2].map((n) => answer(slow.push("say", { n })));
  await until(() => app.of("message").length === 1, "the first question");
  await answer(other.push("say", { n: 9 }));
  assert.deepEqual(app.of("message").map((it) => it.payload.n), [0, 9]);
  assert.deepEqual(heard, []);
  release();
  await Promise.all(pushed);
  assert.deepEqual(heard, [0, 1, 2]);
});

test("cached answers admit a reconnect without a question, and refusals are cached for 5 s",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = (question) => {
      const answered = signedIn(question);
      return Array.isArray(answered) ? answered : { ...answered, cache_for: 60 };
    };
    app.answers.join = () => ({ cache_for: 60, assigns: { role: "owner" } });
    const server = await startAsking(t, app, ROOMS, {
      hook: CONNECT, env: { SIMURGH_API_TOKEN: "secret" },
    });
    const disconnect = async (body) => {
      const done = await fetch(`${server.url}/api/disconnect`, {
        method: "POST", headers: { authorization: "Bearer secret" }, body: JSON.stringify(body),
      });
      return (await done.json()).closed;
    };
    for (let n = 0; n < 3; n += 1) {
      const ann = await browser(t, server, ANN);
      await ann.join("rooms:a", { n: 1 });
      ann.close();
    }
    assert.deepEqual([app.of("connect").length, app.of("join").length], [1, 1]);
    const ann = await browser(t, server, { ...ANN, cookie: "session=ann; theme=light" });
    await ann.join("rooms:a", { n: 2 });
    assert.deepEqual([app.of("connect").length, app.of("join").length], [1, 2]);
    for (let n = 0; n < 3; n += 1) assert.equal((await refusal(server)).status, 403);
    assert.equal(app.of("connect").length, 2);
    assert.equal(await disconnect({ user: "ann", keep_grants: true }), 1);
    (await browser(t, server, ANN)).close();
    assert.equal(app.of("connect").length, 2, "the grant was kept");
    await disconnect({ user: "ann" });
    (await browser(t, server, ANN)).close();
    assert.equal(app.of("connect").length, 3, "the grant is void");
  });

test("cached answers are of one forwarded identity, one tenant, and any trace", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = ({ headers }) => (headers["x-forwarded-user"]
    ? { user: headers["x-forwarded-user"], cache_for: 60 } : [401, {}]);
  app.answers.join = ({ headers }) => (headers["x-tenant"] === "acme"
    ? { cache_for: 60, reply: { secret: "acme" } } : [403, { reason: "other tenant" }]);
  const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
  const as = (user, tenant) => ({ "x-forwarded-user": user, "x-tenant": tenant });
  const ann = await browser(t, server, as("ann", "acme"), { params: { traceparent: "00-1-1-01" } });
  assert.deepEqual((await ann.join("rooms:a")).response, { secret: "acme" });
  await browser(t, server, as("ann", "acme"), { params: { traceparent: "00-2-2-01" } });
  assert.equal(app.of("connect").length, 1, "a trace is no part of the key");
  const bob = await browser(t, server, as("bob", "acme"));
  await bob.join("rooms:a");
  assert.deepEqual(app.of("join").map(({ user }) => user), ["ann", "bob"]);
  assert.equal((await refusal(server, { "x-tenant": "acme" })).status, 403);
  const other = await browser(t, server, as("ann", "evil"));
  assert.deepEqual(await refused(other.join("rooms:a")), { reason: "other tenant" });
});

test("member that may publish nothing asks nothing", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  app.answers.join = () => ({ publish: false });
  const quiet = `
[[channel]]
topic = "quiet:*"
join_hook = "app"
[[channel.event]]
name = "count"
hook = "app"
`;
  const server = await startAsking(t, app, quiet, { hook: CONNECT });
  const ann = await browser(t, server, ANN);
  const { channel } = await ann.join("quiet:a");
  assert.deepEqual(await refused(answer(channel.push("count", {}))), { reason: "unauthorized" });
  assert.equal(app.of("message").length, 0);
});

test("application that is down: unavailable, or as if it were not asked, and back by itself",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = signedIn;
    const strict = await startAsking(t, app, ROOMS, { hook: CONNECT });
    const lenient = await startAsking(t, app, ROOMS, { hook: `${CONNECT}\non_failure = "allow"` });
    app.answers.join = () => [500, {}];
    app.answers.message = () => [500, {}];
    const one = await browser(t, strict, ANN);
    const why = await refused(one.join("rooms:a"));
    assert.equal(why.reason, "unavailable");
    assert.ok(why.retry_after_ms > 0);
    const other = await browser(t, lenient, ANN);
    const { channel } = await other.join("rooms:a");
    assert.deepEqual(await answer(channel.push("say", { n: 1 })), { declared: true });
    app.stop();
    assert.equal((await refused(one.join("rooms:c"))).reason, "unavailable");
    const gone = await refusal(strict, { "x-tenant": "gone" });
    assert.deepEqual([gone.status, gone.headers["retry-after"]], [503, "1"]);
    const late = await browser(t, lenient, { "x-tenant": "gone" });
    await late.join("rooms:d");
  });

test("message that the application accepted is published although its client has left",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = signedIn;
    const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
    const ann = await browser(t, server, ANN);
    const bob = await browser(t, server, { cookie: "session=bob" });
    const { channel } = await ann.join("rooms:a");
    const heard = bob.listen((await bob.join("rooms:a")).channel, "say", "note");
    let release;
    const held = new Promise((resolve) => { release = resolve; });
    app.answers.message = async ({ payload }) => {
      await held;
      return { payload: { ...payload, seen: true },
        messages: [{ topic: "rooms:a", event: "note", payload: { n: 1 } }] };
    };
    for (const [n, end] of [[1, () => answer(channel.leave())], [2, () => ann.close()]]) {
      const of = n === 1 ? channel : (await ann.join("rooms:a")).channel;
      of.push("say", { n });
      await until(() => app.of("message").length === n, "the question");
      await end();
    }
    release();
    for (const n of [1, 2]) {
      const { payload } = await heard.next("say", (it) => it.event === "say" && it.payload.n === n);
      assert.deepEqual(payload, { n, seen: true });
    }
  });

test("question whose client has left is not sent", async (t) => {
  const app = await Application.start(t);
  let release;
  const held = new Promise((resolve) => { release = resolve; });
  app.answers.connect = async (question) => {
    if (question.headers["x-tenant"] === "first") await held;
    return signedIn(question);
  };
  const server = await startAsking(t, app, ROOMS, {
    hook: `${CONNECT}\nload = { concurrency = 1 }\ntimeout = { answer = "50s", total = "99s" }`,
    top: 'decision_timeout = "200s"\n',
    env: { SIMURGH_API_TOKEN: "secret" },
  });
  const waiting = async () => {
    const scrape = await fetch(`${server.url}/metrics`, {
      headers: { authorization: "Bearer secret" },
    });
    return Number(/^simurgh_hook_waiting\{.*\} (\d+)$/m.exec(await scrape.text())?.[1]);
  };
  const first = browser(t, server, { ...ANN, "x-tenant": "first" });
  await until(() => app.of("connect").length === 1, "the first question");
  const url = `${server.wsUrl}/socket/websocket?vsn=2.0.0`;
  const gone = new WebSocket(url, { headers: { cookie: "session=gone" } });
  gone.on("error", () => {});
  await eventually(async () => assert.equal(await waiting(), 1));
  gone.terminate();
  await eventually(async () => assert.equal(await waiting(), 0));
  release();
  const ann = await first;
  await ann.join("rooms:a");
  assert.equal(app.of("connect").length, 1);
});

test("message of an answer is kept once with the same id", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  const history = `${ROOMS}
[[channel]]
topic = "log:*"
history = { count = 10 }
`;
  const server = await startAsking(t, app, history, {
    hook: CONNECT, env: { SIMURGH_API_TOKEN: "secret" },
  });
  const ann = await browser(t, server, ANN);
  const { channel } = await ann.join("rooms:a");
  for (const [n, id] of [[1, "a"], [2, "a"], [3, "b"], [4, "x".repeat(129)]]) {
    app.answers.message = () => ({
      messages: [{ topic: "log:1", event: "note", payload: { n }, id }], broadcast: false,
    });
    await answer(channel.push("say", {}));
  }
  const page = await fetch(`${server.url}/api/history?topic=log:1`, {
    headers: { authorization: "Bearer secret" },
  });
  const { messages } = await page.json();
  assert.deepEqual(messages.map(({ payload }) => payload.n), [1, 3]);
});

test("answer with a status 4xx never allows", async (t) => {
  const app = await Application.start(t);
  const server = await startAsking(t, app, ROOMS, { hook: `${CONNECT}\non_failure = "allow"` });
  app.answers.connect = () => [404, {}];
  assert.equal((await refusal(server, { "x-tenant": "wrong" })).status, 503);
  app.answers.connect = signedIn;
  const ann = await browser(t, server, ANN);
  app.answers.join = () => [400, {}];
  // This channel joins again later, and must not replace the other.
  assert.equal((await refused(ann.join("rooms:b"))).reason, "unavailable");
  app.answers.join = () => [500, {}];
  const { channel } = await ann.join("rooms:a");
  app.answers.message = () => [422, {}];
  for (let n = 0; n < 25; n += 1) {
    const why = await refused(answer(channel.push("say", { n })));
    assert.equal(why.reason, "unavailable");
  }
  app.answers.message = () => ({});
  await answer(channel.push("say", {}));
});

test("token decides alone; an optional one leaves other clients to the hook", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = signedIn;
  const token = `
[token]
kind = "jwt"
connect = "optional"
key_env = "KEY"
algorithms = "HS256"
`;
  const server = await startAsking(t, app, token + ROOMS, {
    hook: CONNECT, env: { KEY: "a secret of thirty-two bytes or more" },
  });
  const wrong = await refusal(server, ANN, "&token=x");
  assert.equal(wrong.status, 403);
  assert.equal(app.of("connect").length, 0);
  const ann = await browser(t, server, ANN);
  await ann.join("rooms:a");
  assert.equal(app.of("join")[0].user, "ann");
});

test("grant that ends closes its socket with 3000", async (t) => {
  const app = await Application.start(t);
  app.answers.connect = (question) => ({ ...signedIn(question), expires_in: 1 });
  const server = await startAsking(t, app, ROOMS, { hook: CONNECT });
  const ann = await browser(t, server, ANN);
  const closed = new Promise((resolve) => ann.socket.onClose(resolve));
  const { code } = await closed;
  assert.equal(code, 3000);
  await pause(0);
});

test("refresh is asked before a grant ends: it goes on, ends, or waits for the application (B26)",
  async (t) => {
    const app = await Application.start(t);
    app.answers.connect = (question) => {
      const user = /session=(\w+)/.exec(question.headers.cookie)[1];
      return { user, claims: { staff: true }, expires_in: 3, stale_for: user === "eve" ? 60 : 0 };
    };
    let failed = 0;
    app.answers.refresh = ({ user }) => {
      if (user === "bob") return [403, {}];
      if (user === "eve" && failed++ === 0) return [500, {}];
      return { claims: { staff: false }, expires_in: 600 };
    };
    const channels = `${ROOMS}[[channel]]\ntopic = "staff"\njoin = "claims.staff = true"\n`;
    const hook = 'questions = ["connect", "refresh"]';
    const server = await startAsking(t, app, channels, { hook });
    const open = (user) => {
      const headers = { cookie: `session=${user}` };
      const socket = new WebSocket(`${server.wsUrl}/socket/websocket?vsn=2.0.0`, { headers });
      const closed = once(socket, "close").then(([code]) => code);
      t.after(() => socket.terminate());
      return { socket, closed };
    };
    const [ann, bob, eve] = ["ann", "bob", "eve"].map(open);
    const ask = async (socket, topic, event) => {
      const message = once(socket, "message");
      socket.send(JSON.stringify(["1", "1", topic, event, {}]));
      return JSON.parse((await message)[0])[4].status;
    };
    await once(ann.socket, "open");
    assert.equal(await ask(ann.socket, "staff", "phx_join"), "ok");
    assert.equal(await bob.closed, 3000);
    await until(() => app.of("refresh").filter(({ user }) => user === "eve").length === 2, "eve");
    const [question] = app.of("refresh").filter(({ user }) => user === "ann");
    assert.deepEqual([question.id, question.claims.staff], ["user_socket:ann", true]);
    const connect = app.of("connect").find(({ headers }) => headers.cookie === "session=ann");
    assert.equal(question.connection, connect.connection);
    assert.ok(question.expires_at > Date.now() / 1000 - 60);
    // Long after the first grant's end; its claims hold for new joins.
    assert.equal(await ask(eve.socket, "rooms:a", "phx_join"), "ok");
    assert.equal(await ask(ann.socket, "rooms:a", "phx_join"), "ok");
    assert.equal(await ask(ann.socket, "staff", "phx_join"), "error");
  });

test("answers to a connect, a join and a refresh name the socket's limits (B22)", async (t) => {
  const app = await Application.start(t);
  const named = { ann: "few", eve: "none" };
  app.answers.connect = (question) => {
    const { user } = signedIn(question);
    return { user, limits: named[user], expires_in: user === "dan" ? 3 : 600 };
  };
  app.answers.join = ({ topic }) => ({ limits: topic === "rooms:few" ? "few" : undefined });
  app.answers.refresh = () => ({ limits: "few", expires_in: 600 });
  const limits = `
[limits]
joins = "100/s"
[limits.few]
messages = { rate = "3/h", burst = 3 }
`;
  const hook = 'questions = ["connect", "refresh"]';
  const server = await startAsking(t, app, ROOMS + limits, { hook });
  const join = async (user, topic) => {
    const client = await browser(t, server, { cookie: `session=${user}` });
    return (await client.join(topic)).channel;
  };
  const says = async (channel, count) => {
    const said = [];
    for (let n = 0; n < count; n += 1) {
      const why = await answer(channel.push("plain", {})).then(() => null, (it) => it.response);
      said.push(why?.reason ?? "ok");
    }
    return said;
  };
  const dan = await join("dan", "rooms:d");
  assert.deepEqual(await says(await join("ann", "rooms:a"), 3), ["ok", "ok", "rate_limited"]);
  assert.deepEqual(await says(await join("bob", "rooms:b"), 3), ["ok", "ok", "ok"]);
  assert.ok((await says(await join("bob", "rooms:few"), 9)).includes("rate_limited"));
  assert.equal((await refusal(server, { cookie: "session=eve" })).status, 503);
  while (!(await says(dan, 9)).includes("rate_limited")) {
    await pause(50);
  }
  assert.equal(app.of("refresh").length, 1);
});
