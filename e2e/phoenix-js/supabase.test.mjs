// Supabase's own client against `simurgh serve` with the configuration of docs/SUPABASE.md, in both
// of its serializers. V2 broadcasts are the binary kinds 3 and 4.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { RealtimeClient } from "@supabase/realtime-js";
import WebSocket from "ws";

import { startServer } from "../support/server.mjs";
import { Inbox, within } from "../support/wait.mjs";

const API_TOKEN = "the-token-of-the-back-end";
const SECRET = "a secret of the tests, with more than 32 bytes";
const OPEN = '[[channel]]\nkind = "supabase"\n';
const GUARDED = `
[token]
kind = "jwt"
key_file = "key"
algorithms = "HS256"

[[channel]]
kind = "supabase"
topic = "realtime:own-*"
join = "realtime:own-{sub}"

[[channel]]
kind = "supabase"
`;

let directory;
let open;
let guarded;

async function serve(name, text) {
  const file = path.join(directory, `${name}.toml`);
  await writeFile(file, text.replace('"key"', JSON.stringify(path.join(directory, "key"))));
  return await startServer("serve", {
    args: ["--config", file],
    env: { SIMURGH_API_TOKEN: API_TOKEN },
  });
}

before(async () => {
  directory = await mkdtemp(path.join(tmpdir(), "simurgh-supabase-"));
  await writeFile(path.join(directory, "key"), SECRET);
  open = await serve("open", OPEN);
  guarded = await serve("guarded", GUARDED);
});
after(async () => {
  await open?.kill();
  await guarded?.kill();
  if (directory) await rm(directory, { recursive: true });
});

/** A JSON Web Token, good for some seconds. */
function jwt(claims, seconds = 600) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const exp = Math.floor(Date.now() / 1000) + seconds;
  const signed = `${part({ alg: "HS256", typ: "JWT" })}.${part({ exp, ...claims })}`;
  return `${signed}.${createHmac("sha256", SECRET).update(signed).digest("base64url")}`;
}

/** A client, and the kinds of the binary frames it sent and heard. */
function client(t, server, vsn, { path: at = "/realtime/v1", apikey = "anon", ...more } = {}) {
  const kinds = [];
  class Recording extends WebSocket {
    constructor(...args) {
      super(...args);
      this.on("message", (data, binary) => {
        if (binary) kinds.push(["heard", new Uint8Array(data)[0]]);
      });
    }

    send(data, ...rest) {
      if (typeof data !== "string") kinds.push(["sent", new Uint8Array(data)[0]]);
      super.send(data, ...rest);
    }
  }
  const made = new RealtimeClient(`${server.wsUrl}${at}`, {
    params: { apikey }, vsn, transport: Recording, ...more,
  });
  t.after(async () => {
    await made.removeAllChannels();
    await made.disconnect();
  });
  return Object.assign(made, { kinds });
}

/** Subscribes and resolves to the inbox of states, once `wanted` has come. */
async function subscribed(channel, wanted = "SUBSCRIBED") {
  const states = new Inbox();
  channel.subscribe((state, error) => states.put({ state, error }));
  const found = await states.next(`${wanted} of ${channel.topic}`, ({ state }) => state === wanted);
  return { states, error: found.error };
}

/** An inbox of a channel's broadcasts. */
function broadcasts(channel, event = "*") {
  const inbox = new Inbox();
  channel.on("broadcast", { event }, inbox.put);
  return inbox;
}

let topics = 0;
const unique = (name) => `${name}-${process.pid}-${++topics}`;

for (const [name, vsn] of [["V1", "1.0.0"], ["V2", "2.0.0"]]) {
  describe(name, () => {
    for (const at of ["/realtime/v1", "/socket"]) {
      test(`broadcasts reach the others at ${at}, and the sender if requested`, async (t) => {
        const topic = unique("room");
        const [ann, bob] = [client(t, open, vsn, { path: at }), client(t, open, vsn, { path: at })];
        const own = ann.channel(topic, { config: { broadcast: { self: true, ack: true } } });
        const other = bob.channel(topic, { config: { broadcast: { ack: true } } });
        const [hers, his] = [broadcasts(own, "cursor"), broadcasts(other, "cursor")];
        await subscribed(own);
        await subscribed(other);
        const message = { type: "broadcast", event: "cursor", payload: { x: 1, s: "ü" } };
        assert.equal(await own.send(message), "ok", "the acknowledgement");
        for (const inbox of [hers, his]) {
          assert.deepEqual(await inbox.next("broadcast"), message);
        }
        assert.equal(await other.send({ ...message, payload: { x: 2 } }), "ok");
        assert.deepEqual((await hers.next("broadcast")).payload, { x: 2 });
        assert.deepEqual(his.rest, [], "without self the sender does not hear itself");
        if (name === "V2") {
          assert.deepEqual(ann.kinds, [["sent", 3], ["heard", 4], ["heard", 4]]);
        } else {
          assert.deepEqual(ann.kinds, []);
        }
      });
    }

    test("presence shows tracked, updated and left members, also to a newcomer", async (t) => {
      const topic = unique("presence");
      const config = { presence: { key: "ann", enabled: true } };
      const ann = client(t, open, vsn).channel(topic, { config });
      const heard = new Inbox();
      for (const event of ["join", "leave"]) ann.on("presence", { event }, heard.put);
      await subscribed(ann);
      assert.equal(await ann.track({ at: "home" }), "ok");
      await heard.next("own join", ({ event, key }) => event === "join" && key === "ann");

      const user = client(t, open, vsn);
      const bob = user.channel(topic, { config: { presence: { key: "__proto__" } } });
      const syncs = new Inbox();
      bob.on("presence", { event: "sync" }, () => syncs.put(bob.presenceState()));
      await subscribed(bob);
      const state = await syncs.next("state", (state) => state.ann?.length === 1);
      assert.equal(state.ann[0].at, "home");
      assert.equal(await ann.track({ at: "work" }), "ok");
      await syncs.next("update", (state) => state.ann?.[0].at === "work");

      assert.equal(await bob.track({ at: "sea" }), "ok");
      const of = (wanted) => ({ event, key }) => event === wanted && key !== "ann";
      const joined = await heard.next("join", of("join"));
      assert.equal(joined.key, "__proto__");
      await user.removeChannel(bob);
      const left = await heard.next("leave", of("leave"));
      assert.equal(left.leftPresences[0].at, "sea");
      assert.equal(await ann.untrack(), "ok");
    });

    test("an empty presence key becomes a UUID", async (t) => {
      const channel = client(t, open, vsn).channel(unique("uuid"));
      const joins = new Inbox();
      channel.on("presence", { event: "join" }, joins.put);
      await subscribed(channel);
      await channel.track({});
      const { key } = await joins.next("join");
      assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    });

    test("postgres_changes get ids, and a back end can send them", async (t) => {
      const topic = unique("changes");
      const channel = client(t, open, vsn).channel(topic);
      const [systems, changes] = [new Inbox(), new Inbox()];
      channel.on("system", {}, systems.put);
      const wanted = { event: "INSERT", schema: "public", table: "notes", filter: "id=gt.5" };
      channel.on("postgres_changes", { event: "*", schema: "public", table: "other" }, () => {});
      channel.on("postgres_changes", wanted, changes.put);
      await subscribed(channel);
      const system = await systems.next("system message");
      const { extension, status } = system;
      assert.deepEqual([extension, status, system.channel], ["postgres_changes", "ok", topic]);

      const { id } = channel.bindings.postgres_changes[1];
      const columns = [{ name: "id", type: "int8" }];
      const data = {
        type: "INSERT", schema: "public", table: "notes", columns, record: { id: 7 },
        commit_timestamp: "2026-01-01T00:00:00Z", errors: null,
      };
      const payload = { ids: [id], data };
      const body = { topic: `realtime:${topic}`, event: "postgres_changes", payload };
      assert.equal((await post(open, "/api/broadcast", body)).status, 202);
      const change = await changes.next("change");
      assert.deepEqual([change.eventType, change.new], ["INSERT", { id: 7 }]);
    });

    test("broadcasts over HTTP reach members", async (t) => {
      const topic = unique("http");
      const key = { apikey: API_TOKEN, accessToken: async () => API_TOKEN };
      for (const at of ["/realtime/v1", "/socket"]) {
        const channel = client(t, open, vsn).channel(topic);
        const inbox = broadcasts(channel);
        await subscribed(channel);
        const backend = client(t, open, vsn, { ...key, path: at });
        await backend.setAuth();
        const sent = await backend.channel(topic).httpSend("news", { n: 1 });
        assert.deepEqual(sent, { success: true });
        assert.deepEqual((await inbox.next("broadcast")).payload, { n: 1 });
        const messages = [{ topic, event: "more", payload: { n: 2 }, private: false }];
        const where = at === "/socket" ? "/api/broadcast" : "/realtime/v1/api/broadcast";
        assert.equal((await post(open, where, { messages })).status, 202);
        assert.deepEqual(await inbox.next("broadcast"), {
          type: "broadcast", event: "more", payload: { n: 2 },
        });
        await channel.unsubscribe();
      }
    });

    test("a topic without a name is refused", async (t) => {
      const { error } = await subscribed(client(t, open, vsn).channel(""), "CHANNEL_ERROR");
      assert.match(error.message, /TopicNameRequired/);
    });

    test("private topics need a token that allows them", async (t) => {
      const config = { private: true };
      const apikey = jwt({ role: "anon" });
      const ann = client(t, guarded, vsn, { apikey });
      await ann.setAuth(jwt({ sub: "ann" }));
      const own = ann.channel("own-ann", { config });
      const { states } = await subscribed(own);
      for (const [topic, config, code] of [
        ["own-bob", { private: true }, /Unauthorized/],
        ["own-ann", {}, /PrivateOnly/],
        ["open-to-all", { private: true }, /Unauthorized/],
      ]) {
        const other = client(t, guarded, vsn, { apikey });
        await other.setAuth(jwt({ sub: "ann" }));
        const { error } = await subscribed(other.channel(topic, { config }), "CHANNEL_ERROR");
        assert.match(error.message, code, topic);
      }
      // Without a token of a user the socket's own counts, which has no subject.
      const anon = client(t, guarded, vsn, { apikey });
      const { error } = await subscribed(anon.channel("own-ann", { config }), "CHANNEL_ERROR");
      assert.match(error.message, /Unauthorized/);
      await subscribed(anon.channel("lobby"));

      // A fresh token of the same user goes on; another's ends the channel, which says why.
      const systems = new Inbox();
      own.on("system", {}, systems.put);
      await ann.setAuth(jwt({ sub: "ann", fresh: true }));
      assert.equal(await own.send({ type: "broadcast", event: "e", payload: {} }), "ok");
      await ann.setAuth(jwt({ sub: "bob" }));
      assert.match((await systems.next("system message")).message, /do not have permissions/);
      await states.next("CLOSED", ({ state }) => state === "CLOSED");
    });

    test("a channel ends with its token", async (t) => {
      const ann = client(t, guarded, vsn, { apikey: jwt({ role: "anon" }) });
      await ann.setAuth(jwt({ sub: "ann" }, -3));
      const own = ann.channel("own-ann", { config: { private: true } });
      const systems = new Inbox();
      own.on("system", {}, systems.put);
      const { states } = await subscribed(own);
      const { status, message } = await systems.next("system message");
      assert.deepEqual([status, message], ["error", "Token has expired"]);
      await states.next("CLOSED", ({ state }) => state === "CLOSED");
    });
  });
}

test("V1 and V2 clients receive each other's messages, and V2 clients raw bytes", async (t) => {
  const topic = unique("mixed");
  const channels = ["1.0.0", "2.0.0", "2.0.0"].map((vsn) => client(t, open, vsn).channel(topic));
  const inboxes = channels.map((channel) => broadcasts(channel));
  for (const channel of channels) await subscribed(channel);
  const [v1, v2] = channels;
  await v2.send({ type: "broadcast", event: "e", payload: { from: 2 } });
  for (const inbox of [inboxes[0], inboxes[2]]) {
    const expected = { type: "broadcast", event: "e", payload: { from: 2 } };
    assert.deepEqual(await inbox.next("broadcast"), expected);
  }
  const raw = Uint8Array.of(0, 1, 255).buffer;
  await v2.send({ type: "broadcast", event: "raw", payload: raw });
  const { event, payload } = await inboxes[2].next("bytes");
  assert.deepEqual([event, [...new Uint8Array(payload)]], ["raw", [0, 1, 255]]);
  await v1.send({ type: "broadcast", event: "e", payload: { from: 1 } });
  for (const inbox of inboxes.slice(1)) {
    assert.deepEqual((await inbox.next("broadcast")).payload, { from: 1 });
  }
  assert.deepEqual(inboxes[0].rest, [], "V1 has no bytes");
});

async function post(server, path, body) {
  return await within(fetch(`${server.url}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${API_TOKEN}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  }), `answer of ${path}`);
}
