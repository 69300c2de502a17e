// A node of the last release beside one of this build, for the promise of docs/COMPATIBILITY.md.
// E2E_LAST_RELEASE names the binary of the last release. Without it both nodes are of this
// build: then the test shows only that a rolling restart keeps what it must.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";

import jwt from "jsonwebtoken";

import { Balancer } from "../support/balancer.mjs";
import { Broker, NO_KEEPER } from "../support/broker.mjs";
import { CURRENT, answer } from "../support/clients.mjs";
import { are } from "../support/cluster.mjs";
import { Listener, upTo } from "../support/history.mjs";
import { BIN_DIR, startCommand } from "../support/server.mjs";
import { eventually } from "../support/wait.mjs";

const NEW = path.join(BIN_DIR, "simurgh");
const OLD = process.env.E2E_LAST_RELEASE || NEW;
const TOPIC = "rooms:upgrade";
const SECRETS = {
  SIMURGH_API_TOKEN: "a-token-of-the-upgrade", TOKEN_KEY: "k".repeat(64), SHARED: "s".repeat(64),
};

const settings = (name, broker) => `
drain_time = "1s"
[token]
kind = "jwt"
algorithms = "HS256"
key_env = "TOKEN_KEY"
[cluster]
engine = "nats"
servers = ["${broker.url}"]
name = "${name}"
required = "20s"
secret_env = "SHARED"
[[channel]]
topic = "rooms:*"
wait_for_interest = true
presence = { key = "$token.sub" }
history = true
[[channel.event]]
name = "msg"
broadcast = "all"
reply = {}
`;

/** A node that can be replaced behind one address, and the client of one user there. */
class Place {
  static async start(t, binary, name, broker, user) {
    const place = new Place();
    place.user = user;
    place.directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-upgrade-"));
    place.file = path.join(place.directory, "simurgh.toml");
    await writeFile(place.file, settings(name, broker));
    place.front = await Balancer.open();
    await place.run(binary);
    t.after(async () => {
      await place.node.kill();
      place.front.close();
      await rm(place.directory, { recursive: true });
    });
    return place;
  }

  async run(binary) {
    const args = ["serve", "--config", this.file, "--listen", "127.0.0.1:0"];
    this.node = await startCommand(binary, args, { env: SECRETS });
    this.front.ports = [this.node.port];
    await are([this.node], "up");
  }

  async join(t) {
    const authToken = jwt.sign({ sub: this.user }, SECRETS.TOKEN_KEY, { expiresIn: "1h" });
    const url = `ws://127.0.0.1:${this.front.port}/socket`;
    this.client = await CURRENT.open(t, url, { authToken });
    this.listener = await Listener.join(this.client, TOPIC);
    this.notes = this.client.listen(this.listener.channel, "note");
  }

  say(n) {
    return answer(this.listener.channel.push("msg", { n }), `reply to ${n}`);
  }

  /** An answer of this node's API. */
  async api(route, body) {
    const headers = { authorization: `Bearer ${SECRETS.SIMURGH_API_TOKEN}` };
    const method = body ? "POST" : "GET";
    const request = { method, headers, body: body && JSON.stringify(body) };
    return await (await fetch(`${this.node.url}/api/${route}`, request)).json();
  }
}

/** Both nodes know of each other's messages, members, histories, pushes and lists. */
async function agree(places, said) {
  for (const place of places) {
    const n = said.length;
    said.push(n);
    await place.say(n);
    for (const { listener } of places) {
      assert.deepEqual(await listener.numbersTo(n), said);
      assert.deepEqual(listener.gaps, []);
    }
  }
  for (const [index, place] of places.entries()) {
    const other = places[1 - index];
    await eventually(async () => {
      const { presences } = await place.api(`presence?topic=${TOPIC}`);
      assert.deepEqual(Object.keys(presences).sort(), ["ada", "bob"]);
    });
    const { messages } = await place.api(`history?topic=${TOPIC}`);
    assert.deepEqual(messages.map(({ payload }) => payload.n), said);
    const push = { user: other.user, topic: TOPIC, event: "note", payload: { from: place.user } };
    const { confirmed, missing } = await place.api("push", push);
    assert.deepEqual([confirmed.length, missing], [1, []]);
    const note = await other.notes.next(`note of ${place.user}`);
    assert.deepEqual(note.payload, { from: place.user });
    const { ada, bob } = await place.api("users/online", { users: ["ada", "bob"] });
    assert.deepEqual([ada?.connections, bob?.connections], [1, 1]);
  }
}

test("nodes of two versions work together, upgraded and rolled back one by one", {
  skip: NO_KEEPER,
}, async (t) => {
  const broker = await Broker.start({ keeps: true });
  t.after(() => broker.remove());
  const first = await Place.start(t, OLD, "node-1", broker, "ada");
  const second = await Place.start(t, OLD, "node-2", broker, "bob");
  const places = [first, second];
  for (const place of places) await place.join(t);
  const said = [];
  await agree(places, said);
  for (const [place, binary] of [[second, NEW], [first, NEW], [second, OLD]]) {
    const other = places.find((it) => it !== place);
    await place.node.stop();
    const n = said.length;
    said.push(n);
    await other.say(n);
    await place.run(binary);
    assert.deepEqual(await place.listener.numbersTo(n), upTo(n));
    await eventually(async () => assert.equal((await place.api("counts")).connections, 2));
    await agree(places, said);
  }
  const { confirmed, missing } = await first.api("block", { user: "bob" });
  assert.deepEqual([confirmed.length, missing], [1, []]);
  await eventually(async () => assert.equal((await second.api("counts")).connections, 1));
});
