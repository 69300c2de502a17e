// No message lost: histories and the official clients with clients/js/simurgh-resume.js.

import assert from "node:assert/strict";
import { after, before, describe } from "node:test";

import { CURRENT, FIRST, MIDDLE, Refused, answer } from "../support/clients.mjs";
import {
  Listener, binary, cuttingProxy, random, speaker, startKeeper, test, upTo,
} from "../support/history.mjs";
import { NODES } from "../support/server.mjs";
import { pause, until } from "../support/wait.mjs";

const VERSIONS = [CURRENT, MIDDLE, FIRST];
const SEED = Number(process.env.SEED ?? Date.now() % 100_000);

let server;
before(async () => { server = await startKeeper(); });
after(async () => { await server?.end(); });

const open = (t, client) => client.open(t, `${server.wsUrl}/socket`);

/** Ends all connections of a user like a lost network: nothing more is sent. */
const cut = (user) => user.frames.sockets.at(-1).terminate();

/** Proves that nothing is under way: what the server said before this answer has been heard. */
const settled = (listener) => answer(listener.channel.push("echo", {}), "echo");

/** How often the server has closed a channel of this topic. */
const closes = ({ frames }, topic) => frames.received.filter((frame) => (
  (frame.event ?? frame[3]) === "phx_close" && (frame.topic ?? frame[2]) === topic)).length;

/** Ten times in the middle of a burst, after `between`, and has to hear all of them once. */
async function leavesAndJoins(t, client, between) {
  const topic = topicOf();
  const { say } = await speaker(t, CURRENT, server, topic);
  const user = await open(t, client);
  let listener = await Listener.join(user, topic);
  const heard = [];
  let said = 0;
  for (let round = 0; round < 10; round += 1) {
    const burst = upTo(29).map((n) => say({ n: said + n }));
    said += 30;
    await listener.numbersTo(said - 20);
    // To the client a channel is closed as soon as it leaves, and hears nothing more.
    listener.channel.leave();
    await between(() => closes(user, topic) === round + 1);
    heard.push(...listener.heard);
    listener = await Listener.join(user, topic, { since: listener.channel.position() });
    await Promise.all(burst);
  }
  await say({ n: said });
  await listener.numbersTo(said);
  heard.push(...listener.heard);
  assert.deepEqual(heard.map(({ n }) => n), upTo(said));
  assert.equal(user.frames.sockets.length, 1, "one connection");
}

let topics = 0;
const topicOf = (kind = "kept") => `${kind}:${topics += 1}`;

for (const client of VERSIONS) {
  describe(client.name, () => {
    test("receives a long talk through cuts at any message, once and in order", async (t) => {
      t.diagnostic(`SEED=${SEED}`);
      const [below, topic] = [random(SEED), topicOf()];
      const { say } = await speaker(t, CURRENT, server, topic);
      const user = await open(t, client);
      const listener = await Listener.join(user, topic);
      let cuts = 0;
      let left = 3;
      listener.channel.on("msg", () => {
        left -= 1;
        if (left > 0) return;
        left = 1 + below(15);
        cuts += 1;
        cut(user);
      });
      for (let n = 0; n < 300; n += 1) await say({ n });
      assert.deepEqual(await listener.numbersTo(299), upTo(299));
      assert.ok(cuts > 10, `${cuts} cuts`);
      assert.deepEqual(listener.gaps, []);
    });

    test("receives bursts that are cut in the middle of frames", async (t) => {
      t.diagnostic(`SEED=${SEED}`);
      const topic = topicOf();
      const talker = await speaker(t, CURRENT, server, topic);
      const proxy = await cuttingProxy(t, server, SEED, { bytesMin: 400, bytesMax: 6_000 });
      const user = await client.open(t, `${proxy.wsUrl}/socket`);
      const listener = await Listener.join(user, topic);
      proxy.cutting = true;
      // Only the current client knows binary.
      const payloadOf = (n) => (client === CURRENT && n % 3 === 1 ? binary(n) : { n });
      const total = 600;
      for (let n = 0; n < total; n += 50) {
        await Promise.all(upTo(49).map((m) => talker.say(payloadOf(n + m))));
        await until(() => n - listener.heard.length < 100, "the listener to come along");
      }
      await until(() => listener.heard.length > total - 50, "the listener at the end");
      proxy.cutting = false;
      await talker.say({ n: total });
      assert.deepEqual(await listener.numbersTo(total), upTo(total));
      assert.ok(proxy.cuts > 4, `${proxy.cuts} cuts`);
      const inBinary = listener.heard.filter((it) => it.binary).length;
      assert.equal(inBinary, client === CURRENT ? total / 3 : 0);
      assert.deepEqual(listener.gaps, []);
    });

    test("is shown the newest messages when it joins for the first time", async (t) => {
      const topic = topicOf("shown");
      const { say } = await speaker(t, CURRENT, server, topic);
      for (let n = 0; n < 10; n += 1) await say({ n });
      const user = await open(t, client);
      const listener = await Listener.join(user, topic);
      assert.deepEqual(await listener.numbersTo(9), [5, 6, 7, 8, 9]);
      cut(user);
      for (let n = 10; n < 20; n += 1) await say({ n });
      assert.deepEqual(await listener.numbersTo(19), [5, ...upTo(13).map((n) => n + 6)]);
      assert.deepEqual(listener.gaps, []);
    });

    test("receives nothing twice after its channel crashed during a burst", async (t) => {
      const topic = topicOf();
      const { say } = await speaker(t, CURRENT, server, topic);
      const user = await open(t, client);
      const listener = await Listener.join(user, topic);
      let joins = 0;
      listener.channel.on("simurgh:resumed", () => { joins += 1; });
      listener.channel.on("msg", ({ n }) => {
        if (n % 80 === 20) listener.channel.push("an event that nobody declared", {});
      });
      for (let n = 0; n < 400; n += 20) {
        await Promise.all(upTo(19).map((m) => say({ n: n + m })));
        await pause(20);
      }
      assert.deepEqual(await listener.numbersTo(399), upTo(399));
      assert.ok(joins > 1, `${joins} rejoins`);
      assert.equal(user.frames.sockets.length, 1, "one connection");
      assert.deepEqual(listener.gaps, []);
    });

    if (client.version === 2) {
      // In V1 the phx_close of the first would close the second as well.
      test("receives nothing twice if it joins before the reply to its leave", async (t) => {
        await leavesAndJoins(t, client, async () => {});
      });
    }

    // The connection has been sent more than the client heard before it left.
    test("receives everything if it joins after the reply to its leave", async (t) => {
      await leavesAndJoins(t, client, (isClosed) => until(isClosed, "reply to its leave"));
    });

    test("knows its position before its first message", async (t) => {
      const topic = topicOf();
      const { say } = await speaker(t, CURRENT, server, topic);
      await say({ n: -1 });
      const user = await open(t, client);
      const listener = await Listener.join(user, topic);
      assert.deepEqual(await listener.resumed.next("resumed"), { recovered: true, count: 0 });
      const since = listener.channel.position();
      assert.match(since, /^[a-z][0-9a-z]{5}\.\d+/);
      user.close();
      for (const n of upTo(4)) await say({ n });
      const again = await Listener.join(await open(t, client), topic, { since });
      assert.deepEqual(await again.resumed.next("resumed"), { recovered: true, count: 5 });
      assert.deepEqual(await again.numbersTo(4), upTo(4));
      assert.deepEqual(listener.heard, [], "from now on, at first");
    });

    test("resumes after a reload from the position that the page stored", async (t) => {
      const topic = topicOf();
      const { say } = await speaker(t, CURRENT, server, topic);
      const id = "window-of-ada";
      const page = await open(t, client);
      const first = await Listener.join(page, topic, { id }, { user: "ada" });
      await first.channel.push("tell", { n: "own" });
      for (const n of upTo(9)) await say({ n });
      await first.numbersTo(9);
      const stored = JSON.stringify({ id, since: first.channel.position() });
      page.close();
      for (const n of [10, 11]) await say({ n });
      const reloaded = await open(t, client);
      const params = client === FIRST ? { user: "ada" } : () => ({ user: "ada" });
      const next = await Listener.join(reloaded, topic, JSON.parse(stored), params);
      await say({ n: 12 });
      await next.numbersTo(12);
      assert.deepEqual(next.heard, [{ n: 10 }, { n: 11 }, { n: 12 }]);
      const [join] = reloaded.frames.sent.flatMap((it) => it.payload ?? it[4]);
      assert.equal(join.user, "ada", "its own parameters are there, too");
    });

    test("does not receive its broadcast_from, and others do, also after a cut", async (t) => {
      const topic = topicOf();
      const [sender, other, nobody] = await Promise.all([1, 2, 3].map(() => open(t, client)));
      const mine = await Listener.join(sender, topic, { id: "the-sender" });
      const theirs = await Listener.join(other, topic, { id: "the-other" });
      const nameless = await Listener.join(nobody, topic);
      const since = nameless.channel.position();
      nobody.close();
      for (const n of upTo(4)) await answer(mine.channel.push("tell", { n }));
      cut(sender);
      cut(other);
      await pause(20);
      const { say } = await speaker(t, CURRENT, server, topic);
      for (const n of [5, 6]) await say({ n }, "tell");
      assert.deepEqual(await mine.numbersTo(6), [5, 6]);
      assert.deepEqual(await theirs.numbersTo(6), upTo(6));
      // As after a reload, of which the server knows nothing but the id.
      for (const id of ["the-sender", "the-other"]) {
        const fresh = await Listener.join(await open(t, client), topic, { id, since });
        assert.deepEqual(await fresh.numbersTo(6), id === "the-sender" ? [5, 6] : upTo(6));
      }
      assert.deepEqual([...mine.gaps, ...theirs.gaps], []);
    });

    test("is refused if its resume fields are malformed", async (t) => {
      const user = await open(t, client);
      const wrong = [
        null, 1, "text", [], { since: 1 }, { since: {} }, { since: ["a00000.1"] },
        { id: "short" }, { id: "x".repeat(65) }, { id: 12345678 }, { partial: "yes" },
      ];
      for (const simurgh of wrong) {
        const channel = user.socket.channel(topicOf(), { simurgh });
        const refused = (error) => error instanceof Refused
          && error.response.reason === "bad resume";
        await assert.rejects(answer(channel.join()), refused, JSON.stringify(simurgh));
        channel.rejoinTimer.reset();
        channel.leave();
      }
    });

    test("gets a gap if its position belongs to another topic", async (t) => {
      const topic = topicOf();
      const { say } = await speaker(t, CURRENT, server, topic);
      const user = await open(t, client);
      const listener = await Listener.join(user, topic);
      for (const n of upTo(2)) await say({ n });
      await listener.numbersTo(2);
      const [epoch, seq] = listener.channel.position().split(".");
      const elsewhere = topicOf();
      const far = await Listener.join(user, elsewhere);
      const talker = await speaker(t, CURRENT, server, elsewhere);
      // Each home has its own count: only a position behind the topic's own is known to be foreign.
      const place = (listener) => Number.parseInt(listener.channel.position().split(".")[1], 10);
      for (let n = 0; n <= 20 || (n < 5_000 && place(far) <= Number.parseInt(seq, 10)); n += 1) {
        await talker.say({ n });
        await far.numbersTo(n);
      }
      const otherEpoch = `${epoch[0] === "a" ? "b" : "a"}${epoch.slice(1)}.${seq}`;
      const odd = [
        far.channel.position(), otherEpoch, `${epoch}.${Number(seq) + 1_000}`,
        `${epoch}.18446744073709551615`, `${epoch}.${"9".repeat(40)}`, "", "0", ".", epoch,
        `${epoch}.`, `${epoch}.-1`, ` ${epoch}.${seq}`, "é".repeat(100), "\u0000", "null",
        "x".repeat(20_000),
      ];
      for (const since of odd) {
        const again = await Listener.join(await open(t, client), topic, { since });
        const resumed = await again.resumed.next("resumed");
        const what = since.slice(0, 40);
        assert.deepEqual(resumed, { recovered: false, reason: "epoch", count: 3 }, what);
        assert.deepEqual(await again.numbersTo(2), upTo(2), what);
        assert.deepEqual(again.gaps, [resumed], what);
      }
    });

    for (const partial of [undefined, true, false]) {
      const rest = partial === false ? "nothing" : "the rest";
      test(`gets a gap for overwritten messages and ${rest} (partial ${partial})`, async (t) => {
        const topic = topicOf("three");
        const { say } = await speaker(t, CURRENT, server, topic);
        const user = await open(t, client);
        const since = (await Listener.join(user, topic)).channel.position();
        user.close();
        for (const n of upTo(2)) await say({ n });
        const before = await Listener.join(await open(t, client), topic, { since, partial });
        assert.deepEqual(await before.resumed.next("resumed"), { recovered: true, count: 3 });
        await say({ n: 3 });
        const later = await Listener.join(await open(t, client), topic, { since, partial });
        await say({ n: 4 });
        const kept = partial === false ? [] : [1, 2, 3];
        const gap = { recovered: false, reason: "overwritten", count: kept.length };
        assert.deepEqual(await later.resumed.next("resumed"), gap);
        assert.deepEqual(await later.numbersTo(4), [...kept, 4]);
        assert.deepEqual(await before.numbersTo(4), upTo(4));
        assert.deepEqual([before.gaps, later.gaps], [[], [gap]]);
      });

      test(`gets a gap for expired messages and ${rest} (partial ${partial})`, async (t) => {
        const kept = partial === false ? [] : [3];
        const gap = { recovered: false, reason: "expired", count: kept.length };
        let tookMs;
        do {
          const topic = topicOf("second");
          const { say } = await speaker(t, CURRENT, server, topic);
          const user = await open(t, client);
          const since = (await Listener.join(user, topic)).channel.position();
          user.close();
          for (const n of upTo(2)) await say({ n });
          await pause(1_500);
          const begun = performance.now();
          await say({ n: 3 });
          const later = await Listener.join(await open(t, client), topic, { since, partial });
          const resumed = await later.resumed.next("resumed");
          tookMs = performance.now() - begun;
          // On a slow machine the fourth may have expired, too: then again.
          if (tookMs > 900) continue;
          assert.deepEqual(resumed, gap);
          await say({ n: 4 });
          assert.deepEqual(await later.numbersTo(4), [...kept, 4]);
          assert.deepEqual(later.gaps, [gap]);
        } while (tookMs > 900);
      });
    }

    test("loses nothing with the three lines that replace the helper", async (t) => {
      const topic = topicOf();
      const { say } = await speaker(t, CURRENT, server, topic);
      const user = await open(t, client);
      const { socket } = user;
      // As in clients/js/README.md.
      const params = { simurgh: { since: null } };
      const room = socket.channel(topic, params);
      room.onMessage = (event, payload, ref) => {
        if (/^[a-z]\w+\.\d/.test(ref)) params.simurgh.since = ref;
        return payload;
      };
      const heard = [];
      const last = new Promise((resolve) => {
        room.on("msg", ({ n }) => {
          heard.push(n);
          if (n % 7 === 3) cut(user);
          if (n === 99) resolve();
        });
      });
      await answer(room.join());
      for (const n of upTo(99)) await say({ n });
      await last;
      assert.deepEqual(heard, upTo(99));
    });
  });
}

/** There the broker keeps it, and loses it by itself: see history-cluster.test.mjs. */
const LOSES = { skip: NODES > 1 && "a restart of all nodes loses nothing" };

for (const client of VERSIONS) {
  const name = `${client.name} gets a gap if a restart has lost the history, and continues`;
  test(name, LOSES, async (t) => {
    const own = await startKeeper();
    t.after(() => own.end());
    const topic = topicOf();
    const user = await client.open(t, `${own.wsUrl}/socket`);
    const listener = await Listener.join(user, topic);
    assert.equal((await listener.resumed.next("resumed")).recovered, true);
    await answer(listener.channel.push("msg", { n: 0 }));
    await own.kill();
    const next = await own.restarted();
    t.after(() => next.kill());
    const gap = { recovered: false, reason: "epoch", count: 0 };
    assert.deepEqual(await listener.resumed.next("resumed"), gap);
    await answer(listener.channel.push("msg", { n: 1 }));
    assert.deepEqual(await listener.numbersTo(1), [0, 1]);
    assert.deepEqual(listener.gaps, [gap]);
    cut(user);
    const fine = { recovered: true, count: 0 };
    assert.deepEqual(await listener.resumed.next("resumed"), fine, "the new epoch is good");
    await settled(listener);
    assert.deepEqual(listener.heard.map(({ n }) => n), [0, 1]);
  });

  test(`${client.name} misses nothing during a planned restart`, async (t) => {
    const own = await startKeeper();
    t.after(() => own.end());
    const topic = topicOf();
    const { say } = await speaker(t, CURRENT, own, topic);
    const user = await client.open(t, `${own.wsUrl}/socket`);
    const listener = await Listener.join(user, topic);
    for (const n of upTo(9)) await say({ n });
    assert.deepEqual(await listener.numbersTo(9), upTo(9));
    cut(user);
    // What the client is away for is kept in the file, or by the broker of several nodes.
    for (const n of upTo(19).slice(10)) await say({ n });
    await own.stop("SIGTERM");
    const next = await own.restarted();
    t.after(() => next.kill());
    assert.deepEqual(await listener.numbersTo(19), upTo(19));
    await answer(listener.channel.push("msg", { n: 20 }));
    assert.deepEqual(await listener.numbersTo(20), upTo(20));
    assert.deepEqual(listener.gaps, []);
  });
}
