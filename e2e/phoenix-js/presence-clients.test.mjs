// The official clients' own Presence, of several members over real sockets: the final list of each
// of them, and its callbacks, agree with the list that a back end gets.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

import { CURRENT, FIRST, answer } from "../support/clients.mjs";
import { NODES, startServer } from "../support/server.mjs";
import { pause, within } from "../support/wait.mjs";

const require = createRequire(import.meta.url);
const TOKEN = "presence-clients";
const SEED = 20_26;
const STEPS = 60;
const PEOPLE = ["ann", "bob", "é", "7", ""];
/** phoenix 1.2 keeps presences in plain objects, in which these are there already. */
const PEOPLE_NOW = [...PEOPLE, "__proto__", "constructor"];

let server;
before(async () => {
  server = await startServer("conformance", { args: ["--shards", "3", "--api-token", TOKEN] });
});
after(async () => { await server?.kill(); });

async function ask(topic) {
  const response = await fetch(`${server.url}/api/presence?topic=${encodeURIComponent(topic)}`, {
    headers: { authorization: `Bearer ${TOKEN}` },
  });
  assert.equal(response.status, 200);
  return await response.json();
}

/** Refs by key, sorted: what can be compared of lists that were made in another order. */
function refs(list) {
  const entries = Object.entries(list)
    .map(([key, { metas }]) => [key, metas.map((meta) => meta.phx_ref).sort()]);
  return entries.sort(([a], [b]) => (a < b ? -1 : 1));
}

/** What callbacks have said came and did not go; a ref comes once and goes once. */
class Told {
  #here = new Map();
  syncs = 0;

  joined = (key, before, { metas }) => {
    // Both clients hand over those that were there before, too.
    const known = new Set(before?.metas.map((meta) => meta.phx_ref));
    for (const { phx_ref: ref } of metas) {
      if (known.has(ref)) continue;
      assert.ok(!this.#here.has(ref), `${key} came twice under ${ref}`);
      this.#here.set(ref, key);
    }
  };

  left = (key, _, { metas }) => {
    for (const { phx_ref: ref } of metas) {
      // What left before the list was made is in a diff that waited for it.
      if (this.#here.has(ref)) assert.equal(this.#here.get(ref), key);
      this.#here.delete(ref);
    }
  };

  get refs() {
    const list = Object.create(null);
    for (const [ref, key] of this.#here) (list[key] ??= { metas: [] }).metas.push({ phx_ref: ref });
    return refs(list);
  }
}

/** A member with the class of phoenix 1.8. */
async function currentMember(t, topic, name) {
  const user = await CURRENT.open(t, `${server.wsUrl}/socket`);
  const channel = user.socket.channel(topic, { user: name });
  const presence = new (require("phoenix").Presence)(channel);
  const told = new Told();
  presence.onJoin(told.joined);
  presence.onLeave(told.left);
  presence.onSync(() => { told.syncs += 1; });
  await answer(channel.join(), `join of ${topic}`);
  return { user, channel, told, list: () => presence.state };
}

/** A member with the functions of phoenix 1.2, used as its documentation shows. */
async function firstMember(t, topic, name) {
  const { Presence } = require("phoenix-1.2.1");
  const user = await FIRST.open(t, `${server.wsUrl}/socket`);
  const channel = user.socket.channel(topic, { user: name });
  const told = new Told();
  let state = Object.create(null);
  channel.on("presence_state", (whole) => {
    state = Presence.syncState(state, whole, told.joined, told.left);
    told.syncs += 1;
  });
  channel.on("presence_diff", (diff) => {
    // It has no queue: a diff ahead of the list is in the list.
    if (told.syncs > 0) state = Presence.syncDiff(state, diff, told.joined, told.left);
    told.syncs += told.syncs > 0;
  });
  await answer(channel.join(), `join of ${topic}`);
  return { user, channel, told, list: () => state };
}

/** Reproducible choices: mulberry32. */
function chooser(seed) {
  let a = seed;
  return (n) => {
    a = (a + 0x6d2b79f5) | 0;
    let x = Math.imul(a ^ (a >>> 15), 1 | a);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) % n;
  };
}

/**
 * Waits until a member has what the server has, and `holds` of it; fails with both. A reply says
 * that the member's own shard has done it: the one that keeps the list may still be at it.
 */
async function agrees(topic, member, what, holds = () => true) {
  let [server_, own] = [];
  const same = async () => {
    for (;;) {
      [server_, own] = [refs((await ask(topic)).presences), refs(member.list())];
      if (JSON.stringify(server_) === JSON.stringify(own) && holds(member.list())) return;
      await pause(20);
    }
  };
  await within(same(), what).catch((error) => {
    assert.deepEqual(own, server_, `${what}: ${error.message}`);
    throw error;
  });
}

async function leave(member) {
  await answer(member.channel.leave(), "leave");
}

for (const [name, join, people] of [
  ["1.8", currentMember, PEOPLE_NOW],
  ["1.2", firstMember, PEOPLE],
]) {
  test(`phoenix ${name}: lists and callbacks agree with GET /api/presence`, async (t) => {
    const topic = `presence:history-${name}`;
    const choose = chooser(SEED);
    const members = [];
    for (let step = 0; step < STEPS; step += 1) {
      const act = members.length < 3 ? 0 : choose(5);
      const member = members[choose(Math.max(1, members.length))];
      if (act <= 1) {
        members.push(await join(t, topic, people[choose(people.length)]));
      } else if (act === 2) {
        await answer(member.channel.push("status", { status: step }), "status");
      } else {
        members.splice(members.indexOf(member), 1);
        if (act === 3) await leave(member);
        else member.user.frames.sockets.at(-1).terminate();
        if (act === 4) member.user.close();
      }
      // So that there are many diffs, of which each has a part.
      if (step % 6 === 5) await agrees(topic, members.at(-1), `the list after step ${step}`);
    }
    assert.ok(members.length > 2, "somebody is left");
    const isAll = (list) =>
      Object.values(list).flatMap(({ metas }) => metas).length === members.length;
    for (const member of members) {
      await agrees(topic, member, "the server's list", isAll);
      assert.deepEqual(member.told.refs, refs(member.list()), "what callbacks said");
      assert.ok(member.told.syncs > 0);
    }
    const { entries, keys, presences } = await ask(topic);
    assert.equal(entries, members.length);
    assert.equal(keys, Object.keys(presences).length);
    // The metas themselves, not just their refs; what an entry replaced is told to those alone who
    // were told of it, and nodes tell at times of their own.
    const told = (meta) => (NODES > 1 ? { ...meta, phx_ref_prev: null } : meta);
    const sorted = (list) => Object.entries(list).map(([key, { metas }]) =>
      [key, metas.map(told).sort((a, b) => (a.phx_ref < b.phx_ref ? -1 : 1))]).sort();
    for (const member of members) assert.deepEqual(sorted(member.list()), sorted(presences));
  });
}

test("both clients see each other join, change and leave", async (t) => {
  const topic = "presence:both";
  const now = await currentMember(t, topic, "now");
  const then = await firstMember(t, topic, "then");
  await answer(now.channel.push("status", { status: "busy" }), "status");
  for (const member of [now, then]) {
    await agrees(topic, member, "both", (list) => list.now?.metas[0].status === "busy");
  }
  assert.equal(now.list().then.metas.length, 1);
  await leave(now);
  await agrees(topic, then, "one left", (list) => !("now" in list));
  assert.deepEqual(Object.keys(then.list()), ["then"]);
});

test("after a lost connection the list is that of the new one", async (t) => {
  const topic = "presence:again";
  const ann = await currentMember(t, topic, "ann");
  const bob = await currentMember(t, topic, "bob");
  await agrees(topic, bob, "both are there", (list) => "ann" in list && "bob" in list);
  const before = refs(bob.list());
  const joined = new Promise((resolve) => ann.channel.on("presence_state", resolve));
  ann.user.frames.sockets.at(-1).terminate();
  await within(joined, "list after the rejoin");
  for (const member of [ann, bob]) {
    await agrees(topic, member, "both are there again", (list) =>
      JSON.stringify(refs(list)[0]) !== JSON.stringify(before[0]) && list.ann?.metas.length === 1);
    assert.deepEqual(member.told.refs, refs(member.list()));
  }
  const after_ = refs(bob.list());
  assert.deepEqual(after_.map(([key]) => key), ["ann", "bob"]);
  assert.notDeepEqual(after_[0], before[0], "ann has another ref");
  assert.deepEqual(after_[1], before[1], "bob has the same");
});

test("the list needs the token, and covers one topic", async () => {
  const get = async (query, headers = {}) =>
    (await fetch(`${server.url}/api/presence${query}`, { headers })).status;
  const bearer = { authorization: `Bearer ${TOKEN}` };
  assert.equal(await get("?topic=a"), 401);
  assert.equal(await get("?topic=a", { authorization: "Bearer other" }), 401);
  assert.equal(await get("", bearer), 400);
  assert.equal(await get("?topic=a&more=b", bearer), 400);
  assert.equal(await get("?topic=a", bearer), 200);
});
