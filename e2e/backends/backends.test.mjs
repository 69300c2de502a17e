// Real applications of Django, Express and Rails decide who connects, joins and publishes
// (docs/BACKENDS.md). They verify each question: Django and Express with the official libraries of
// Standard Webhooks, Rails by the specification. The client is the official one, unmodified.

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { Webhook } from "standardwebhooks";

import {
  Backend, FRAMEWORKS, IN_CI, SECRET, missing, refusal, serveWith,
} from "../support/backends.mjs";
import { CURRENT, Refused, answer } from "../support/clients.mjs";
import { ROOT } from "../support/server.mjs";
import { until } from "../support/wait.mjs";

const PAGE = readFileSync(path.join(ROOT, "docs/BACKENDS.md"), "utf8");
const METRICS = readFileSync(path.join(ROOT, "docs/METRICS.md"), "utf8");
const OTHER_SECRET = "whsec_c2ltdXJnaC1uZXctc2VjcmV0LTMyLWJ5dGVzLWxvbmc=";
/** The breaker tries again after pauses that double; they begin before the application is back. */
const REOPEN_MS_MAX = 60_000;

const settings = (url, cookie) => `
[[hook]]
name = "app"
url = "${url}"
questions = ["connect"]
forward = { cookies = ["${cookie}"] }
secret_env = "HOOK_SECRET"

[[channel]]
topic = "rooms:*"
join_hook = "app"
announce_join = "entered"
announce_payload = { user = "$token.sub", role = "$assigns.role" }

[[channel.event]]
name = "new:msg"
hook = "app"
broadcast = "all"
reply = {}
`;

/** What the client gets in place of a decision. */
const isUnavailable = ({ response }) => {
  assert.equal(response.reason, "unavailable");
  assert.ok(response.retry_after_ms > 0, JSON.stringify(response));
  return true;
};

for (const framework of FRAMEWORKS) {
  const skip = missing(framework.program, framework.needs);
  describe(framework.name, { skip }, () => suite(framework));
}

test("in CI no framework is missing", { skip: !IN_CI && "not in CI" }, () => {
  for (const { program, needs } of FRAMEWORKS) assert.ok(existsSync(program ?? ""), needs);
});

test("settings in docs/BACKENDS.md start a server", async (t) => {
  const [, block] = /```toml\n(.*?)```/s.exec(PAGE);
  await serveWith(t, block, { HOOK_SECRET: SECRET });
});

test("signatures in docs/BACKENDS.md are those of the official library", () => {
  const rows = [...PAGE.matchAll(/^\| `(whsec_.*?)` \| `(.*?)`, (\d+), `(.*?)` \| `(.*?)` \|$/gm)];
  assert.equal(rows.length, 2);
  for (const [, secret, id, seconds, body, signature] of rows) {
    assert.equal(new Webhook(secret).sign(id, new Date(seconds * 1000), body), signature);
  }
});

function suite(framework) {
  let backend;
  let server;
  const url = () => `${server.wsUrl}/socket`;
  const ends = [];
  before(async () => {
    const atEnd = { after: (end) => ends.unshift(end) };
    backend = await Backend.start(atEnd, framework);
    const text = settings(`${backend.url}/simurgh`, framework.cookie);
    server = await serveWith(atEnd, text, { HOOK_SECRET: SECRET });
  });
  after(async () => { for (const end of ends) await end(); });

  async function connect(t, name, options = {}) {
    const headers = { cookie: await backend.login(name) };
    return await CURRENT.open(t, url(), { headers, ...options });
  }

  async function enter(t, name, topic = "rooms:lobby") {
    const user = await connect(t, name);
    const { channel, response } = await user.join(topic);
    const events = user.listen(channel, "new:msg", "notice", "entered");
    return { user, channel, response, events };
  }

  test("session names the user, whatever the client claims", async (t) => {
    const ada = await enter(t, "ada");
    const bob = await enter(t, "bob");
    const { payload: entered } = await ada.events.next("announcement", ({ payload }) => {
      return payload.user === "bob";
    });
    assert.deepEqual(entered, { user: "bob", role: "guest" });

    const reply = await answer(bob.channel.push("new:msg", { from: "ada", body: "hello" }));
    assert.deepEqual(reply, { stored: 1 });
    const { payload } = await ada.events.next("message", ({ event }) => event === "new:msg");
    assert.deepEqual(payload, { from: "bob", role: "guest", body: "hello" });
  });

  test("connect without a session is refused with the reason", async () => {
    const { status, body } = await refusal(server);
    assert.deepEqual({ status, body }, { status: 403, body: "please log in" });
    const other = await refusal(server, { cookie: `${framework.cookie}=forged; theme=dark` });
    assert.deepEqual([other.status, other.body], [403, "please log in"]);
  });

  test("join is refused with the reason, or allowed with a reply", async (t) => {
    const user = await connect(t, "ada");
    const refused = user.join("rooms:private");
    await assert.rejects(refused, ({ response }) => response.reason === "private");
    const { response } = await user.join("rooms:7");
    assert.deepEqual(response, { title: "rooms:7" });
  });

  test("message is refused, only answered, or published with another before it", async (t) => {
    const { user, channel, events } = await enter(t, "ada", "rooms:answers");
    const push = (body) => answer(channel.push("new:msg", { body }));
    await assert.rejects(push("rude"), (error) => {
      return error instanceof Refused && error.response.reason === "be polite";
    });
    assert.deepEqual(await push("quiet"), { only: "you" });
    const before = user.frames.received.length;
    assert.deepEqual(await push("twice"), { stored: 1 });
    const order = user.frames.received.slice(before).map(([, , , event]) => event);
    assert.deepEqual(order, ["notice", "new:msg", "phx_reply"]);
    const published = events.rest.filter(({ event }) => event !== "entered");
    const all = published.map(({ event, payload }) => [event, payload.from]);
    assert.deepEqual(all, [["notice", "the application"], ["new:msg", "ada"]]);
  });

  test("reconnect within cache_for asks nothing", async (t) => {
    const user = await connect(t, "ada", { params: { cache: "1" } });
    await user.join("rooms:lobby");
    const { connect: asked } = await backend.seen();
    let opened = 0;
    user.socket.onOpen(() => { opened += 1; });
    for (const round of [1, 2, 3]) {
      user.frames.sockets.at(-1).terminate();
      await until(() => opened === round, `reconnect ${round}`);
    }
    assert.equal((await backend.seen()).connect, asked);
  });

  test("application that is down makes questions unavailable until it is back", async (t) => {
    const { user, channel } = await enter(t, "ada");
    const push = () => answer(channel.push("new:msg", { body: "anybody there?" }));
    await backend.stop();
    const { status, headers } = await refusal(server, { cookie: `${framework.cookie}=any` });
    assert.deepEqual([status, headers["retry-after"]], [503, "1"]);
    await assert.rejects(push(), isUnavailable);
    await assert.rejects(user.join("rooms:8"), isUnavailable);
    await backend.startAgain();

    // The refused channel joins by itself, as the client repeats joins.
    const rejoined = user.socket.channels.find(({ topic }) => topic === "rooms:8");
    await until(() => rejoined.state === "joined", "join by the client itself", REOPEN_MS_MAX);
    assert.deepEqual(await push(), { stored: 1 });
    await enter(t, "bob");
  });

  test("metrics of hooks are those of docs/METRICS.md", async () => {
    const text = await (await fetch(`${server.url}/metrics`)).text();
    const names = [...text.matchAll(/^# TYPE simurgh_hook_(\w+) /gm)].map(([, name]) => name);
    const [, section] = /## Back ends\n(.*?)\n## /s.exec(METRICS);
    const rows = [...section.matchAll(/^\| (.*?) \| (?:counter|gauge|histogram)/gm)];
    const listed = rows.flatMap(([, cell]) => cell.split(/[,;] /));
    assert.deepEqual(listed.sort(), names.sort());
    assert.match(text, /^simurgh_hook_questions_total\{.*outcome="refused"\} [1-9]/m);
  });

  test("question with another secret is refused by the application", async (t) => {
    const text = settings(`${backend.url}/simurgh`, framework.cookie);
    const stranger = await serveWith(t, text, { HOOK_SECRET: OTHER_SECRET });
    const asked = await backend.seen();
    const { status } = await refusal(stranger, { cookie: await backend.login("ada") });
    assert.equal(status, 503);
    assert.deepEqual(await backend.seen(), asked);
    await until(() => /status 400/.test(stranger.output), "log line with the status");
  });

  test("unsigned question is refused by the application", async () => {
    const body = JSON.stringify({ type: "question.connect", data: { params: {} } });
    const cookie = await backend.login("ada");
    const headers = { "content-type": "application/json", cookie };
    const send = { method: "POST", body, headers };
    assert.equal((await fetch(`${backend.url}/simurgh/connect`, send)).status, 400);
  });

  test("CSRF protection that is left on is named in the log", {
    skip: !framework.csrf && "the framework has none",
  }, async (t) => {
    const text = settings(`${backend.url}/protected`, framework.cookie);
    const wrong = await serveWith(t, text, { HOOK_SECRET: SECRET });
    const { status } = await refusal(wrong, { cookie: await backend.login("ada") });
    assert.equal(status, framework.csrf.status);
    await until(() => framework.csrf.log.test(wrong.output), "log line that names the cause");
  });
}
