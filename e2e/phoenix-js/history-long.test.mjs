// More messages were missed than one part may have: they arrive in parts, before new messages.

import assert from "node:assert/strict";
import { after, before } from "node:test";

import { CURRENT, FIRST, MIDDLE } from "../support/clients.mjs";
import { Listener, speaker, startKeeper, test, upTo } from "../support/history.mjs";

const MISSED = 900;
const NEW = 200;

let server;
before(async () => { server = await startKeeper(); });
after(async () => { await server?.end(); });

for (const client of [CURRENT, MIDDLE, FIRST]) {
  test(`${client.name} receives ${MISSED} missed messages, and those sent meanwhile`, async (t) => {
    const topic = `kept:long-${client.name}`;
    const { say } = await speaker(t, CURRENT, server, topic);
    const open = () => client.open(t, `${server.wsUrl}/socket`);
    const early = await Listener.join(await open(), topic);
    await early.resumed.next("where it stands");
    const since = early.channel.position();
    const filler = "x".repeat(300);
    for (let n = 0; n < MISSED; n += 100) {
      await Promise.all(upTo(99).map((m) => say({ n: n + m, filler })));
    }
    const user = await open();
    const late = new Listener(user, topic, { since });
    late.channel.join();
    const talk = Promise.all(upTo(NEW - 1).map((m) => say({ n: MISSED + m })));
    const last = MISSED + NEW - 1;
    assert.deepEqual(await late.numbersTo(last), upTo(last));
    assert.deepEqual(await early.numbersTo(last), upTo(last));
    const { recovered, count } = await late.resumed.next("where it stands");
    assert.ok(recovered && count >= MISSED, `${count}`);
    await talk;
    assert.deepEqual([...early.gaps, ...late.gaps], []);
  });
}
