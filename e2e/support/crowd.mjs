// Clients that receive numbered messages while servers come and go: many that behave as phoenix.js
// does, and some that are phoenix.js, with its own times. Counts what they notice: failed
// connections, how long they were away, lost and repeated messages.

import { fork } from "node:child_process";
import { fileURLToPath } from "node:url";

import WebSocket from "ws";

import { resumable } from "../../clients/js/simurgh-resume.js";
import { CURRENT, answer } from "./clients.mjs";
import { Log, behind, choose, haveLeft, now, summary } from "./crowd-clients.mjs";
import { pause, within } from "./wait.mjs";

/** The publishers' token of the API: name and value of an environment variable. */
export const TOKEN = ["SIMURGH_API_TOKEN", "what-the-publishers-may-ask"];
const CLIENTS_OF_A_PROCESS = 10_000;
const PROGRAM = fileURLToPath(new URL("crowd-clients.mjs", import.meta.url));
/** For all clients to connect; only a failure takes so long. */
const CONNECTED_MS_MAX = 300_000;
/** For the last messages to arrive. */
const SETTLE_MS_MAX = 30_000;

/** A process with clients. */
class Process {
  #answers = new Map();
  #next = 0;

  constructor() {
    this.child = fork(PROGRAM);
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
  log = new Log();

  constructor(crowd, topic, presence) {
    const { log } = this;
    class Transport extends WebSocket {
      constructor(url, protocols) {
        const chosen = new URL(url);
        chosen.port = log.choose(crowd.servers);
        super(chosen, protocols?.length ? protocols : undefined);
        this.on("error", (error) => log.failed(error.code ?? error.message));
      }
    }
    this.socket = new CURRENT.library.Socket("ws://127.0.0.1/socket", { transport: Transport });
    this.socket.onClose(() => log.lost());
    const onGap = ({ reason }) => log.gap(reason);
    this.channel = resumable(this.socket, topic, { presence }, { onGap });
    this.channel.on("simurgh:resumed", ({ count }) => log.resumed(count));
    this.channel.on("msg", ({ n }) => log.message(n));
    this.socket.connect();
    this.joined = answer(this.channel.join().receive("ok", () => log.back()), topic);
  }
}

/** Publishes numbered messages on a topic; each is repeated until the server has stored it. */
class Publisher {
  count = 0;
  /** Pairs of the place of a server, and why it did not store a message. */
  failures = [];
  #isOver = false;

  constructor(crowd, topic, everyMs) {
    this.done = this.#run(crowd, topic, everyMs);
  }

  async #run(crowd, topic, everyMs) {
    while (!this.#isOver) {
      const message = {
        topic, event: "msg", payload: { n: this.count }, id: `${topic}-${this.count}`,
      };
      const { port, place } = choose(crowd.servers);
      const url = `http://127.0.0.1:${port}/api/broadcast`;
      const headers = { authorization: `Bearer ${TOKEN[1]}`, "content-type": "application/json" };
      const body = JSON.stringify({ messages: [message] });
      const status = await fetch(url, { method: "POST", headers, body }).then(
        async (response) => (await response.text(), response.status),
        (error) => error.cause?.code ?? error.message,
      );
      if (status === 202) this.count += 1;
      else this.failures.push([place, `publish: ${status}`]);
      await pause(everyMs);
    }
  }

  async end() {
    this.#isOver = true;
    await this.done;
  }
}

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;

/** All clients and publishers. */
export class Crowd {
  #processes = [];
  #officials = [];
  #publishers = [];
  servers;

  /**
   * `clients` and `official` ones in so many `topics`, each with a message every `everyMs`, and
   * with `isListed` in its presence. `servers` as for `use`.
   */
  static async connect(t, { clients, official, topics, everyMs, isListed }, servers) {
    const crowd = new Crowd();
    const names = Array.from({ length: topics }, (_, n) => `rooms:${n}`);
    for (let left = clients; left > 0; left -= CLIENTS_OF_A_PROCESS) {
      const process = new Process();
      t.after(() => process.child.kill());
      crowd.#processes.push(process);
    }
    crowd.use(servers);
    for (const [n, process] of crowd.#processes.entries()) {
      const count = Math.min(clients - n * CLIENTS_OF_A_PROCESS, CLIENTS_OF_A_PROCESS);
      const connected = process.ask("connect", { topics: names, count, isListed });
      await within(connected, "clients", CONNECTED_MS_MAX);
    }
    crowd.#officials = Array.from({ length: official },
      (_, n) => new Official(crowd, names[n % topics], isListed ? `official-${n}` : undefined));
    t.after(() => { for (const { socket } of crowd.#officials) socket.disconnect(); });
    await Promise.all(crowd.#officials.map(({ joined }) => joined));
    crowd.#publishers = names.map((topic) => new Publisher(crowd, topic, everyMs));
    return crowd;
  }

  /**
   * From now on clients connect to any of these `ports`. Their moves are counted under `name`, by
   * default the port that they leave.
   */
  use(servers) {
    this.servers = servers;
    this.#ask("use", servers);
  }

  /** Resolves to whether, within this time, no client is at a place, and all are back. */
  async haveLeft(place, ms) {
    const logs = this.#officials.map(({ log }) => log);
    for (const end = now() + ms; now() < end; await pause(100)) {
      if (!haveLeft(logs, place)) continue;
      if ((await this.#ask("haveLeft", place)).every((it) => it)) return true;
    }
    return false;
  }

  /**
   * What clients noticed, by the place that they left, as a table's rows: `moves`, `failures` and
   * their `kinds`, messages that they missed and then received (`resumed`), lost ones (`untold`:
   * without a reported gap), repeated ones, and gaps, until they left the next place, how long they
   * were away, and when the last was back, in ms since 1970.
   */
  async rows() {
    const all = [...await this.#ask("summary"), summary(this.#officials.map(({ log }) => log))];
    const unpublished = this.#publishers.flatMap((publisher) => publisher.failures);
    const places = [...all.flatMap((rows) => Object.keys(rows)), ...unpublished.map(([at]) => at)];
    return Object.fromEntries([...new Set(places)].map((place) => {
      const rows = all.flatMap((it) => it[place] ?? []);
      const away = rows.flatMap((row) => row.away);
      const sum = (of) => rows.reduce((total, row) => total + of(row), 0);
      const failures = [
        ...rows.flatMap((row) => row.failures),
        ...unpublished.filter(([at]) => at === place).map(([, why]) => why),
      ];
      return [place, {
        moves: away.length,
        not_back: sum(({ notBack }) => notBack),
        failures: failures.length,
        kinds: [...new Set(failures.map(String))],
        missing: sum(({ missing }) => missing),
        untold: sum(({ untold }) => untold),
        repeated: sum(({ repeated }) => repeated),
        resumed: sum(({ resumed }) => resumed),
        gaps: rows.flatMap(({ gaps }) => gaps),
        back_at: Math.max(...rows.map(({ backAt }) => backAt)),
        away_median_ms: median(away),
        away_max_ms: away.reduce((most, it) => Math.max(most, it), 0),
      }];
    }));
  }

  /**
   * Ends the publishers, and waits until clients have received all messages. Resolves to how many
   * were published, and the sums over all moves.
   */
  async end() {
    await Promise.all(this.#publishers.map((publisher) => publisher.end()));
    // A client joins some time after the first message, and gets all after that.
    const last = Math.min(...this.#publishers.map(({ count }) => count)) - 1;
    const logs = this.#officials.map(({ log }) => log);
    let lacking = Infinity;
    for (const end = now() + SETTLE_MS_MAX; lacking > 0 && now() < end; await pause(100)) {
      const counts = [...await this.#ask("behind", last), behind(logs, last)];
      lacking = counts.reduce((total, count) => total + count, 0);
    }
    const rows = Object.values(await this.rows());
    const sum = (of) => rows.reduce((total, row) => total + of(row), 0);
    return {
      published: this.#publishers.reduce((total, { count }) => total + count, 0),
      failures: sum((row) => row.failures),
      kinds: [...new Set(rows.flatMap((row) => row.kinds))],
      missing: lacking + sum((row) => row.missing),
      untold: lacking + sum((row) => row.untold),
      repeated: sum((row) => row.repeated),
      gaps: sum((row) => row.gaps.length),
      gap_reasons: [...new Set(rows.flatMap((row) => row.gaps))],
    };
  }

  #ask(name, options) {
    return Promise.all(this.#processes.map((process) => process.ask(name, options)));
  }
}
