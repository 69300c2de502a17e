// Several nodes as one server: processes, connected by a real broker, behind a balancer that uses
// them in turn. It has the interface of one process (server.mjs), so the same tests run on both.

import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";

import { Balancer } from "./balancer.mjs";
import { Broker, NO_KEEPER } from "./broker.mjs";
import { ROOT, startProcess } from "./server.mjs";
import { pause, within } from "./wait.mjs";

/**
 * The secret that nodes share, so that each serves the long polls of all: name and value of an
 * environment variable.
 */
const SECRET = ["E2E_SECRET", "what all nodes of the tests share".repeat(4)];

/** The built-in chat as a settings file, with long polling. */
export async function chat() {
  const file = path.join(ROOT, "crates/tools/simurgh-cli/src/chat.toml");
  return `longpoll = "10s"\n${await readFile(file, "utf8")}`;
}

/** Made by the first cluster that needs it; prefixes separate the clusters of one test file. */
let broker;
let clusters = 0;

/**
 * Starts `count` nodes of `name` and resolves when they know each other. With `ownBroker` they have
 * their own broker, which ends with them. All others share one.
 */
export async function startCluster(name, count, options = {}) {
  const { port = 0, args = [], env = {}, ownBroker = false } = options;
  const start = () => Broker.start({ keeps: !NO_KEEPER });
  clusters += 1;
  const joined = {
    broker: await (ownBroker ? start() : broker ??= start()), prefix: `e2e-${clusters}`, ownBroker,
  };
  const cluster = new Cluster(name, count, { args, env }, joined);
  await cluster.start(port);
  return cluster;
}

/** Arguments that make a process a node, by the name of its command. */
const JOINS = {
  /** Appends `[cluster]` to the test's own settings file. */
  async serve(args, node, { broker: { url }, prefix }, directory) {
    const at = args.indexOf("--config");
    const own = at < 0 ? await chat() : await readFile(args[at + 1], "utf8");
    const rest = at < 0 ? args : args.toSpliced(at, 2);
    const file = path.join(directory, `${node}.toml`);
    const table = {
      engine: "nats", servers: [url], prefix, name: node, required: "20s", secret_env: SECRET[0],
    };
    const lines = Object.entries(table).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
    // A joined client receives every message from then on.
    const channels = own.replace(/^\[\[channel\]\]$/gm, "$&\nwait_for_interest = true");
    await writeFile(file, `${channels}\n[cluster]\n${lines.join("\n")}\n`);
    return ["--config", file, ...rest];
  },
  async conformance(args, node, { broker: { url }, prefix }) {
    return ["--nats", url, "--prefix", prefix, "--name", node, "--secret", SECRET[1], ...args];
  },
};

class Cluster {
  #count;
  #joined;
  #balancer;
  nodes = [];
  port = 0;

  constructor(name, count, options, joined) {
    this.name = name;
    this.options = options;
    this.#count = count;
    this.#joined = joined;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  get wsUrl() {
    return `ws://127.0.0.1:${this.port}`;
  }

  /** The broker between the nodes. */
  get broker() {
    return this.#joined.broker;
  }

  /** The balancer in front of the nodes. */
  get balancer() {
    return this.#balancer;
  }

  /** The last output of the processes, for failure messages. */
  get output() {
    return this.nodes.map((node) => node.output).join("\n");
  }

  async start(port) {
    const directory = await mkdtemp(path.join(tmpdir(), "simurgh-cluster-"));
    try {
      const names = Array.from({ length: this.#count }, (_, n) => `node-${n + 1}`);
      const starts = await Promise.allSettled(names.map((node) => this.#node(node, directory)));
      this.nodes = starts.flatMap(({ value }) => value ?? []);
      const failed = starts.find(({ reason }) => reason);
      if (failed) throw failed.reason;
      await Promise.all(this.nodes.map((node) => knows(node, this.#count - 1)));
      this.#balancer = await Balancer.open(port);
    } catch (error) {
      await this.kill();
      throw error;
    } finally {
      await rm(directory, { recursive: true });
    }
    this.#balancer.ports = this.nodes.map((node) => node.port);
    this.port = this.#balancer.port;
  }

  /** Ends all; resolves to `{code, signal}`, of a failed node if there is one. */
  async stop(signal = "SIGTERM") {
    const ends = await Promise.all(this.nodes.map((node) => node.stop(signal)));
    this.#balancer?.close();
    this.#balancer = undefined;
    return ends.find(({ code, signal: by }) => code !== 0 || by !== null) ?? ends[0];
  }

  async kill() {
    const end = await this.stop("SIGKILL");
    if (this.#joined.ownBroker) this.broker.remove();
    return end;
  }

  /** The same nodes behind the same port, after all have ended. */
  async restarted() {
    const next = new Cluster(this.name, this.#count, this.options, this.#joined);
    await next.start(this.port);
    return next;
  }

  async #node(node, directory) {
    const { args, env } = this.options;
    const own = await JOINS[this.name](args, node, this.#joined, directory);
    return await startProcess(this.name, { args: own, env: { [SECRET[0]]: SECRET[1], ...env } });
  }
}

/** Resolves when a node knows this number of other nodes. */
async function knows(node, others) {
  const line = `simurgh_cluster_nodes{state="alive"} ${others}\n`;
  await within((async () => {
    while (!(await (await fetch(`${node.url}/metrics`)).text()).includes(line)) await pause(10);
  })(), `${others} other nodes`);
}

/** Resolves when all nodes report this state of the broker. */
export async function are(nodes, state) {
  const health = async ({ url }) => {
    const text = await (await fetch(`${url}/healthz`)).text();
    return text === "ok\n" ? "up" : JSON.parse(text).cluster;
  };
  await within((async () => {
    while ((await Promise.all(nodes.map(health))).some((it) => it !== state)) await pause(20);
  })(), state, 30_000);
}
