// A running server is taken over again and again, under clients that receive numbered messages:
// many that behave as phoenix.js does, and some that are phoenix.js, with its own times. Counts
// what they notice: refused connections, how long they were away, and lost messages.

import { fork } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import pathOf from "node:path";
import { fileURLToPath } from "node:url";

import WebSocket from "ws";

import { resumable } from "../../clients/js/simurgh-resume.js";
import { CURRENT, answer } from "./clients.mjs";
import { startProcess } from "./server.mjs";
import { Absence, Numbers, now } from "./takeover-clients.mjs";
import { pause, within } from "./wait.mjs";

const TOKEN = "what-the-publishers-may-ask";
const CLIENTS_OF_A_PROCESS = 10_000;
const CLIENTS = fileURLToPath(new URL("takeover-clients.mjs", import.meta.url));
/** For the clients to return, beyond `drainMs`; only a failure takes so long. */
const BACK_MS_MAX = 30_000;
/** For the last messages to arrive. */
const SETTLE_MS_MAX = 30_000;

/** A process with clients. */
class Crowd {
  #answers = new Map();
  #next = 0;

  constructor() {
    this.child = fork(CLIENTS);
    this.child.on("message", ({ id, result }) => this.#answers.get(id)(result));
  }

  ask(name, options) {
    const id = this.#next++;
    this.child.send({ id, name, options });
    return new Promise((resolve) => this.#answers.set(id, resolve));
  }
}

/** phoenix.js with its default times. */
class Official {
  numbers = new Numbers();
  absence = new Absence();
  failures = [];
  gaps = [];

  constructor(wsUrl, topic) {
    const { failures } = this;
    class Transport extends WebSocket {
      constructor(url, protocols) {
        super(url, protocols?.length ? protocols : undefined);
        this.on("error", (error) => failures.push(error.code ?? error.message));
      }
    }
    this.socket = new CURRENT.library.Socket(`${wsUrl}/socket`, { transport: Transport });
    this.socket.onClose(() => this.absence.begin());
    const onGap = ({ reason }) => this.gaps.push(reason);
    this.channel = resumable(this.socket, topic, {}, { onGap });
    this.channel.on("msg", ({ n }) => this.numbers.put(n));
    this.socket.connect();
    this.joined = answer(this.channel.join().receive("ok", () => this.absence.end()), topic);
  }
}

/** Publishes numbered messages on a topic; each is repeated until the server has stored it. */
class Publisher {
  count = 0;
  #isOver = false;

  constructor(url, topic, everyMs) {
    this.done = this.#run(url, topic, everyMs);
  }

  async #run(url, topic, everyMs) {
    while (!this.#isOver) {
      const id = `${topic}-${this.count}`;
      const message = { topic, event: "msg", payload: { n: this.count }, id };
      const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
      const body = JSON.stringify({ messages: [message] });
      const status = await fetch(`${url}/api/broadcast`, { method: "POST", headers, body }).then(
        async (response) => (await response.text(), response.status),
        (error) => error.cause?.code ?? error.message,
      );
      if (status === 202) this.count += 1;
      else this.failures.push(status);
      await pause(everyMs);
    }
  }

  failures = [];

  async end() {
    this.#isOver = true;
    await this.done;
  }
}

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;

/** The server's settings in a file, with which every process starts. */
async function settings({ drainMs, clients }) {
  const directory = await mkdtemp(pathOf.join(os.tmpdir(), "simurgh-takeover-"));
  const file = pathOf.join(directory, "simurgh.toml");
  await writeFile(file, `
drain_time = "${drainMs}ms"
max_connections = ${clients + 10_000}
[[channel]]
topic = "rooms:*"
history = { count = 1000 }
`);
  return { directory, file };
}

/**
 * `runs` take-overs. Returns a row for each: connections that failed (`failures`, by clients and
 * publishers), the ms from the later server's start to the last client's return (`back`), and the
 * longest and the median time that a client was away. And what all clients missed in all runs.
 */
export async function runTakeovers(t, plan) {
  const { clients, official, topics, everyMs, drainMs, runs, report } = plan;
  const { directory, file } = await settings({ drainMs, clients });
  t.after(() => rm(directory, { recursive: true }));
  const options = { args: ["--config", file], env: { SIMURGH_API_TOKEN: TOKEN } };
  let server = await startProcess("serve", options);
  t.after(() => server.kill());
  const { url, wsUrl, port } = server;
  const names = Array.from({ length: topics }, (_, n) => `rooms:${n}`);
  const crowds = [];
  for (let left = clients; left > 0; left -= CLIENTS_OF_A_PROCESS) {
    const crowd = new Crowd();
    t.after(() => crowd.child.kill());
    const count = Math.min(left, CLIENTS_OF_A_PROCESS);
    const path = "/socket/websocket?vsn=2.0.0";
    await within(crowd.ask("connect", { port, path, topics: names, count }), "clients", 300_000);
    crowds.push(crowd);
  }
  const officials = Array.from({ length: official },
    (_, n) => new Official(wsUrl, names[n % topics]));
  t.after(() => { for (const { socket } of officials) socket.disconnect(); });
  await Promise.all(officials.map(({ joined }) => joined));
  const publishers = names.map((topic) => new Publisher(url, topic, everyMs));

  /** What all clients report. */
  const all = async () => {
    const reports = (await Promise.all(crowds.map((crowd) => crowd.ask("report")))).flat();
    const own = officials.map(({ absence, failures, numbers, gaps }) => ({
      from: absence.from, to: absence.to, failures, gaps, ...numbers,
    }));
    return [...reports, ...own];
  };

  const rows = [];
  for (let run = 1; run <= runs; run += 1) {
    for (const it of officials) [it.absence, it.failures.length] = [new Absence(), 0];
    for (const it of publishers) it.failures = [];
    await Promise.all(crowds.map((crowd) => crowd.ask("cut")));
    const earlier = server;
    const begun = now();
    const later = { ...options, port, args: [...options.args, "--take-over"] };
    server = await startProcess("serve", later);
    const listens = now();
    const isBack = async () => officials.every(({ absence }) => absence.isOver)
      && (await Promise.all(crowds.map((crowd) => crowd.ask("isBack")))).every((it) => it);
    const end = now() + drainMs + BACK_MS_MAX;
    while (now() < end && !await isBack()) await pause(100);
    const { code } = await within(earlier.ended, "end of the earlier server");
    const reports = await all();
    const away = reports.filter(({ to }) => to !== null).map(({ from, to }) => to - from);
    const failures = [...reports, ...publishers].flatMap((it) => it.failures);
    const row = {
      run, code, failures: failures.length, kinds: [...new Set(failures.map(String))],
      not_back: reports.length - away.length,
      start_ms: Math.round(listens - begun),
      back_ms: Math.round(Math.max(...reports.map(({ to }) => to ?? Infinity)) - listens),
      away_median_ms: Math.round(median(away)),
      away_max_ms: Math.round(away.reduce((most, it) => Math.max(most, it), 0)),
    };
    rows.push(row);
    report?.(row);
  }
  await Promise.all(publishers.map((publisher) => publisher.end()));
  // A client joins some time after the first message, and gets all after that.
  const last = Math.min(...publishers.map(({ count }) => count)) - 1;
  const settled = async () => (await all()).every((it) => (it.last ?? -1) >= last);
  for (const end = now() + SETTLE_MS_MAX; now() < end && !await settled();) await pause(100);
  const reports = await all();
  const sum = (of) => reports.reduce((total, it) => total + of(it), 0);
  return {
    rows,
    published: publishers.reduce((total, { count }) => total + count, 0),
    missing: sum((it) => it.missing + Math.max(0, last - (it.last ?? -1))),
    repeated: sum(({ repeated }) => repeated),
    gaps: sum(({ gaps }) => gaps.length),
    gap_reasons: [...new Set(reports.flatMap(({ gaps }) => gaps))],
  };
}
