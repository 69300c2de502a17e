// The chat page in a real browser: two windows, a killed and restarted server, a phone. SHOTS=1
// also writes the picture for the README.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { counts, launchBrowser, newWindow, reads, WAIT } from "../support/browser.mjs";
import { connected, enter, hears, say } from "../support/chat.mjs";
import { CURRENT } from "../support/clients.mjs";
import { ROOT, startServer } from "../support/server.mjs";
import { eventually, pause } from "../support/wait.mjs";

const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true };
const SHOT = path.join(ROOT, "docs/img/chat.png");

let browser;
before(async () => {
  browser = await launchBrowser();
});
after(async () => { await browser?.close(); });

async function serve(t) {
  const server = await startServer("serve");
  t.after(() => server.kill());
  return server;
}

/** A window of its own browser profile, on `room`, under `name`; `before` has it empty. */
async function openWindow(t, server, name, { room = "lobby", before, ...options } = {}) {
  const { page, seen } = await newWindow(t, browser, options);
  page.on("websocket", (socket) => seen.requests.push(socket.url()));
  await before?.(page);
  await enter(page, server.url, room, name);
  return { page, seen };
}

test("two windows chat, and see each other enter", async (t) => {
  const server = await serve(t);
  const { page: ada, seen } = await openWindow(t, server, "Ada");
  const { page: bob } = await openWindow(t, server, "Bob <i>");
  await ada.getByTestId("entered").getByText("Bob <i>").waitFor(WAIT);

  await say(ada, "Hello, <b>Bob</b> & all");
  await hears(bob, "Hello, <b>Bob</b> & all");
  await say(bob, "Hello back");
  await hears(ada, "Hello back");
  await hears(ada, "Hello, <b>Bob</b> & all");
  await counts(ada.locator(".message.sending, .message.failed"), 0);
  assert.equal(await bob.locator("#log b, #log i").count(), 0, "markup stays text");
  assert.deepEqual(seen.complaints, []);
});

/** Waits until a window shows these names as present, itself first, and their number. */
async function seesPresent(page, names) {
  const shown = () => page.locator("#present .avatar")
    .evaluateAll((all) => all.map((face) => face.dataset.name));
  await eventually(async () => assert.deepEqual(await shown(), names));
  await reads(page.getByTestId("present-count"), `${names.length} here`);
}

test("a room lists its members as they join, leave and change their names", async (t) => {
  const server = await serve(t);
  const { page: ada, seen } = await openWindow(t, server, "Ada");
  await seesPresent(ada, ["Ada"]);
  const { page: bob } = await openWindow(t, server, "Bob <i>");
  await seesPresent(ada, ["Ada", "Bob <i>"]);
  await seesPresent(bob, ["Bob <i>", "Ada"]);
  assert.equal(await bob.locator("#present i").count(), 0, "markup stays text");
  // A second window of the same name is the same person.
  const { page: phone } = await openWindow(t, server, "Ada", PHONE);
  await seesPresent(phone, ["Ada", "Bob <i>"]);
  await phone.getByTestId("present-count").waitFor(WAIT);
  await phone.close();
  await bob.getByTestId("me").click();
  await bob.getByTestId("name-input").fill("__proto__");
  await bob.getByTestId("name-submit").click();
  await seesPresent(ada, ["Ada", "__proto__"]);
  await seesPresent(bob, ["__proto__", "Ada"]);
  // Another room has its own.
  await ada.getByTestId("room-input").fill("tea");
  await ada.getByTestId("room-input").press("Enter");
  await seesPresent(ada, ["Ada"]);
  await ada.locator('[data-testid="room-link"][data-room="lobby"]').click();
  await seesPresent(ada, ["Ada", "__proto__"]);
  await bob.close();
  await seesPresent(ada, ["Ada"]);
  assert.deepEqual(seen.complaints, []);
});

test("a room with too many for a list shows their number, and the list again", async (t) => {
  const server = await startServer("serve", {
    args: ["--presence-list-max", "3", "--presence-summary-interval", "200ms",
      "--presence-sample", "2"],
  });
  t.after(() => server.kill());
  const { page: ada } = await openWindow(t, server, "Ada");
  const others = [];
  for (let n = 1; n < 6; n += 1) others.push(await present(t, server, `other${n}`));
  const count = (n) => ada.getByTestId("present-count").getByText(`${n} here`, { exact: true });
  await count(6).waitFor(WAIT);
  await counts(ada.locator("#present .avatar"), 2);
  others.slice(2).forEach((user) => user.close());
  await seesPresent(ada, ["Ada", "other1", "other2"]);
});

/** Somebody without a window. */
async function present(t, server, name) {
  const user = await CURRENT.open(t, `${server.wsUrl}/socket`);
  await user.join("rooms:lobby", { user: name, presence: name });
  return user;
}

/** A proxy before the server that passes requests on and ends whatever wants to be upgraded. */
async function proxyWithoutWebSockets(t, server) {
  const { hostname, port } = new URL(server.url);
  const proxy = http.createServer((request, response) => {
    const { method, url: path, headers } = request;
    const onward = http.request({ hostname, port, method, path, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  });
  proxy.upgrades = 0;
  proxy.on("upgrade", (_request, socket) => {
    proxy.upgrades += 1;
    socket.destroy();
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => { proxy.closeAllConnections(); proxy.close(); });
  return { proxy, url: `http://127.0.0.1:${proxy.address().port}` };
}

test("users can chat behind a proxy without WebSockets", async (t) => {
  const server = await serve(t);
  const { proxy, url } = await proxyWithoutWebSockets(t, server);
  const { page: ada } = await openWindow(t, { url }, "Ada");
  assert.ok(proxy.upgrades > 0, "a WebSocket was tried first");
  const { page: bob, seen } = await openWindow(t, server, "Bob");
  await seesPresent(ada, ["Ada", "Bob"]);
  await say(bob, "by WebSocket");
  await hears(ada, "by WebSocket");
  await say(ada, "by long polling");
  await hears(bob, "by long polling");
  // Others may hear it before its sender has the answer to its poll.
  await ada.locator(".message.sending, .message.failed").first().waitFor({ state: "detached" });
  assert.ok(seen.requests.some((it) => it.startsWith("ws:")));
});

test("both windows reconnect by themselves when the server returns", async (t) => {
  const server = await serve(t);
  const { page: ada } = await openWindow(t, server, "Ada");
  const { page: bob } = await openWindow(t, server, "Bob");
  await say(ada, "before");
  await hears(bob, "before");

  await server.kill();
  for (const page of [ada, bob]) {
    await page.locator('[data-testid="connection"][data-state="reconnecting"]').waitFor(WAIT);
    await page.getByTestId("notice").waitFor(WAIT);
  }
  await say(ada, "while away");
  const next = await server.restarted();
  t.after(() => next.kill());
  for (const page of [ada, bob]) {
    await connected(page);
    await page.getByTestId("notice").waitFor({ state: "hidden", ...WAIT });
  }
  await seesPresent(ada, ["Ada", "Bob"]);
  await say(bob, "after");
  await hears(ada, "after");
  await hears(bob, "after");
  await counts(ada.getByTestId("message-body").getByText("while away"), 1);
});

test("rooms can be joined and switched, count unread messages and have addresses", async (t) => {
  const server = await serve(t);
  const { page: ada } = await openWindow(t, server, "Ada");
  const { page: bob } = await openWindow(t, server, "Bob", { room: "tea & cake" });
  await ada.getByTestId("room-input").fill("#tea-&-cake");
  await ada.getByTestId("room-input").press("Enter");
  await connected(ada);
  await reads(ada.getByTestId("room-title"), "#tea-&-cake");
  await eventually(() => assert.equal(new URL(ada.url()).hash, "#tea-%26-cake"));
  await say(ada, "only here");
  await hears(bob, "only here");

  await ada.locator('[data-testid="room-link"][data-room="lobby"]').click();
  await ada.getByTestId("empty").waitFor(WAIT);
  assert.equal(await ada.getByTestId("message").count(), 0, "the lobby heard nothing");
  await say(bob, "are you gone?");
  const link = ada.locator('[data-testid="room-link"][data-room="tea-&-cake"]');
  await link.locator(".badge").getByText("1").waitFor(WAIT);
  await link.click();
  await hears(ada, "only here");
  await hears(ada, "are you gone?");
});

test("users with the same name are distinguished, also when they arrive", async (t) => {
  const server = await serve(t);
  const { page: ada } = await openWindow(t, server, "Ada");
  await ada.getByTestId("entered").getByText("You entered").waitFor(WAIT);
  const { page: second } = await openWindow(t, server, "Ada");
  await ada.getByTestId("entered").getByText("You and Another Ada entered").waitFor(WAIT);
  const { page: third } = await openWindow(t, server, "Ada");
  await say(second, "from the second");
  await say(third, "from the third");
  await hears(ada, "from the second");
  await hears(ada, "from the third");
  await eventually(async () => {
    const names = await ada.getByTestId("message-user").allTextContents();
    assert.equal(new Set(names).size, 2, `${names}`);
    for (const name of names) assert.match(name, /^Ada #[0-9a-f]{4}$/);
  });
});

test("the page shows that the server requires a token, and stops trying", async (t) => {
  const folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-token-"));
  t.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(path.join(folder, "secret"), "a secret of at least 32 characters, for a test");
  const file = path.join(folder, "simurgh.toml");
  const key = JSON.stringify(path.join(folder, "secret"));
  writeFileSync(file, `[token]\nkind = "jwt"\nalgorithms = "HS256"\nkey_file = ${key}\n`);
  const server = await startServer("serve", { args: ["--config", file] });
  t.after(() => server.kill());
  const { page } = await newWindow(t, browser);
  await page.goto(server.url);
  await page.getByTestId("name-input").fill("Ada");
  await page.getByTestId("name-submit").click();
  await page.getByTestId("notice").getByText("This server requires a token").waitFor(WAIT);
  const sockets = [];
  page.on("websocket", (socket) => sockets.push(socket));
  await pause(4000);
  assert.equal(sockets.length, 0, "it does not try again by itself");
  const state = page.getByTestId("connection");
  assert.equal(await state.getAttribute("data-state"), "refused");
});

test("the page asks for a name once and remembers it", async (t) => {
  const server = await serve(t);
  const { page } = await openWindow(t, server, "Ada");
  await page.reload();
  await connected(page);
  await reads(page.getByTestId("me-name"), "Ada");
  await page.getByTestId("me").click();
  await page.getByTestId("name-input").fill("Countess");
  await page.getByTestId("name-submit").click();
  await say(page, "same person");
  const other = await page.context().newPage();
  await other.goto(server.url);
  const name = other.getByTestId("name-input");
  await eventually(async () => assert.equal(await name.inputValue(), "Countess"));
});

test("a room that refuses shows the reason, and the others continue", async (t) => {
  const server = await serve(t);
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  // The chat of `serve` refuses nobody, so the answer to this one join is put in on the way.
  await page.routeWebSocket(/\/socket\/websocket/, (socket) => {
    const upstream = socket.connectToServer();
    socket.onMessage((text) => {
      const [joinRef, ref, topic, event] = JSON.parse(text);
      if (event !== "phx_join" || topic !== "rooms:vault") return upstream.send(text);
      const refusal = { status: "error", response: { reason: "unauthorized" } };
      socket.send(JSON.stringify([joinRef, ref, topic, "phx_reply", refusal]));
    });
  });
  await page.goto(`${server.url}/#vault`);
  await page.getByTestId("name-input").fill("Ada");
  await page.getByTestId("name-submit").click();
  const words = "You cannot join #vault: unauthorized.";
  await page.getByTestId("notice").getByText(words).waitFor(WAIT);
  await page.locator('[data-testid="composer-input"]:disabled').waitFor(WAIT);
  await page.locator('[data-testid="room-link"][data-room="lobby"]').click();
  await connected(page);
  await page.getByTestId("notice").waitFor({ state: "hidden", ...WAIT });
  await say(page, "still here");
  await hears(page, "still here");
});

test("a phone's width needs no sideways scrolling", async (t) => {
  const server = await serve(t);
  const { page } = await openWindow(t, server, "A name of thirty-two letters, ah", PHONE);
  const { page: bob } = await openWindow(t, server, "Bob");
  await say(bob, "x".repeat(300));
  await say(bob, "https://example.com/a/very/long/path/without/any/break/in/it/whatsoever/at/all");
  await say(page, "short");
  await hears(bob, "short");
  await page.getByTestId("message").nth(2).waitFor(WAIT);
  const fits = () => page.evaluate(() => {
    const log = document.getElementById("log");
    return document.documentElement.scrollWidth <= innerWidth && log.scrollWidth <= log.clientWidth;
  });
  assert.ok(await fits());
  await page.getByTestId("menu-button").click();
  await page.getByTestId("room-input").fill("a-room-with-a-name-as-long-as-the-page-allows-it");
  await page.getByTestId("room-add").click();
  await connected(page);
  assert.ok(await fits());
  await page.getByTestId("composer-input").waitFor(WAIT);
});

test("the page fetches nothing from other hosts", async (t) => {
  const server = await serve(t);
  const { page, seen } = await openWindow(t, server, "Ada");
  await say(page, "http://example.com/picture.png");
  await hears(page, "http://example.com/picture.png");
  assert.ok(seen.requests.some((url) => url.startsWith(`${server.wsUrl}/socket/websocket`)));
  const foreign = seen.requests.filter((url) => new URL(url).host !== new URL(server.url).host);
  assert.deepEqual(foreign, []);
  assert.deepEqual(seen.complaints, []);
});

/** Payloads of messages, and what is to be read of each; undefined: nothing. */
const ODD = [
  [null], [7], [[1]], ["text"], [true], [{}], [{ body: null }], [{ body: "", user: "x" }],
  [{ user: "nobody" }], [{ body: 8 }, "8"], [{ body: false }, "false"], [{ body: ["a"] }, '["a"]'],
  [{ body: "no user", user: null }, "no user"],
  [{ body: "odd user", user: { toString: null, valueOf: null } }, "odd user"],
  [{ body: { toString: 1 } }, '{"toString":1}'],
  [{ body: "lone \ud800", user: "\udfff" }, "lone \ufffd"],
  [{ body: "y".repeat(100_000), user: "z".repeat(100_000) }, `${"y".repeat(16_384)}…`],
];

test("the page continues after any malformed message", async (t) => {
  const server = await serve(t);
  let toPage;
  const { page, seen } = await openWindow(t, server, "Ada", {
    before: (page) => page.routeWebSocket(/\/socket\/websocket/, (socket) => {
      socket.connectToServer();
      toPage = socket;
    }),
  });
  const pushed = (event, payload) => JSON.stringify([null, null, "rooms:lobby", event, payload]);
  for (const [payload] of ODD) {
    for (const event of ["new:msg", "user:entered", "phx_reply", "other"]) {
      toPage.send(pushed(event, payload));
    }
  }
  const lists = [null, 7, [1], "text", { a: null }, { a: {} }, { a: { metas: 1 } },
    { a: { metas: [null] } }];
  for (const list of lists) {
    toPage.send(pushed("presence_state", list));
    toPage.send(pushed("presence_diff", list));
    toPage.send(pushed("presence_diff", { joins: list, leaves: {} }));
    toPage.send(pushed("presence_summary", { count: list, keys: list, sample: list }));
  }
  for (const event of ["new:msg", "user:entered"]) {
    const topic = "rooms:lobby";
    const lengths = String.fromCharCode(2, topic.length, event.length);
    toPage.send(Buffer.from(`${lengths}${topic}${event}\u0000{}`, "latin1"));
  }
  await say(page, "still here");
  await hears(page, "still here");
  const bodies = await page.getByTestId("message-body").allTextContents();
  const expected = ODD.map(([, text]) => text).filter((text) => text !== undefined);
  assert.deepEqual(bodies.map((text) => text.toWellFormed()), [...expected, "still here"]);
  await page.locator(".message.mine:not(.sending):not(.failed)").waitFor(WAIT);
  assert.deepEqual(seen.complaints, []);
});

async function takePicture(t) {
  const server = await serve(t);
  const size = { viewport: { width: 1280, height: 760 }, locale: "en-GB" };
  const { page: ada } = await openWindow(t, server, "Ada Lovelace", size);
  const { page: grace } = await openWindow(t, server, "Grace Hopper", { room: "compilers" });
  await grace.getByTestId("room-input").fill("lobby");
  await grace.getByTestId("room-input").press("Enter");
  await connected(grace);
  const { page: lin } = await openWindow(t, server, "Lin");
  await ada.getByTestId("room-input").fill("compilers");
  await ada.getByTestId("room-input").press("Enter");
  await connected(ada);
  await ada.locator('[data-testid="room-link"][data-room="lobby"]').click();
  await connected(ada);
  const lines = [
    [grace, "Morning! Does anybody hear me?"],
    [ada, "Loud and clear."],
    [grace, "I pulled the plug of the server, and here I am again."],
    [lin, "Same here. I did not even have to reload."],
    [ada, "Then the phone next."],
  ];
  for (const [page, text] of lines) {
    await say(page, text);
    await hears(ada, text);
  }
  await grace.locator('[data-testid="room-link"][data-room="compilers"]').click();
  await connected(grace);
  await say(grace, "Over here, when you have a minute.");
  await ada.locator(".badge").getByText("1").waitFor(WAIT);
  mkdirSync(path.dirname(SHOT), { recursive: true });
  await ada.screenshot({ path: SHOT });
}

if (process.env.SHOTS) test("the picture for the README", takePicture);
