// Several nodes as one server: processes of their own, joined by a real engine, behind a balancer
// that gives each connection to the next. To a test it is what one process is (server.mjs), so the
// same tests run on both.

import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";

import { Balancer } from "./balancer.mjs";
import { Engine, NO_KEEPER } from "./engine.mjs";
import { ROOT, startProcess } from "./server.mjs";
import { pause, within } from "./wait.mjs";

/** What nodes share, so that each serves the long polls of all: a variable of their environment. */
const SECRET = ["SIMURGH_E2E_SECRET", "what all nodes of the tests share".repeat(4)];

/** The chat that is served without a file, which has long polling where that has not. */
export async function chat() {
  const file = path.join(ROOT, "crates/tools/simurgh-cli/src/chat.toml");
  return `longpoll = "10s"\n${await readFile(file, "utf8")}`;
}

/** Made by the first that needs it; clusters of one test file are told apart by their prefixes. */
let engine;
let clusters = 0;

/**
 * Starts `count` nodes of `name` and resolves when they know each other. With `ownEngine` they have
 * one for themselves, which ends with them: of the others nobody notices what becomes of it.
 */
export async function startCluster(name, count, options = {}) {
  const { port = 0, args = [], env = {}, ownEngine = false } = options;
  const start = () => Engine.start({ keeps: !NO_KEEPER });
  clusters += 1;
  const joined = {
    engine: await (ownEngine ? start() : engine ??= start()), prefix: `e2e-${clusters}`, ownEngine,
  };
  const cluster = new Cluster(name, count, { args, env }, joined);
  await cluster.start(port);
  return cluster;
}

/** What makes a process a node, by the name of its command. */
const JOINS = {
  /** `[cluster]` behind what the test's own file says. */
  async serve(args, node, { engine: { url }, prefix }, directory) {
    const at = args.indexOf("--config");
    const own = at < 0 ? await chat() : await readFile(args[at + 1], "utf8");
    const rest = at < 0 ? args : args.toSpliced(at, 2);
    const file = path.join(directory, `${node}.toml`);
    const table = {
      engine: "nats", servers: [url], prefix, name: node, required: "20s", secret_env: SECRET[0],
    };
    const lines = Object.entries(table).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
    // Who has joined hears everything that is said from then on.
    const channels = own.replace(/^\[\[channel\]\]$/gm, "$&\nwait_for_interest = true");
    await writeFile(file, `${channels}\n[cluster]\n${lines.join("\n")}\n`);
    return ["--config", file, ...rest];
  },
  async conformance(args, node, { engine: { url }, prefix }) {
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

  /** What joins them. */
  get engine() {
    return this.#joined.engine;
  }

  /** What gives each connection to one of them. */
  get balancer() {
    return this.#balancer;
  }

  /** What the processes printed last, for a message about a failure. */
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

  /** Ends all; resolves to `{code, signal}`, of one that ended otherwise if there is one. */
  async stop(signal = "SIGTERM") {
    const ends = await Promise.all(this.nodes.map((node) => node.stop(signal)));
    this.#balancer?.close();
    this.#balancer = undefined;
    return ends.find(({ code, signal: by }) => code !== 0 || by !== null) ?? ends[0];
  }

  async kill() {
    const end = await this.stop("SIGKILL");
    if (this.#joined.ownEngine) this.engine.remove();
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

/** Resolves when a node has heard of so many others. */
async function knows(node, others) {
  const line = `simurgh_cluster_nodes{state="alive"} ${others}\n`;
  await within((async () => {
    while (!(await (await fetch(`${node.url}/metrics`)).text()).includes(line)) await pause(10);
  })(), `${others} other nodes`);
}

/** Resolves when all nodes say this of the engine. */
export async function are(nodes, state) {
  const health = async ({ url }) => {
    const text = await (await fetch(`${url}/healthz`)).text();
    return text === "ok\n" ? "up" : JSON.parse(text).cluster;
  };
  await within((async () => {
    while ((await Promise.all(nodes.map(health))).some((it) => it !== state)) await pause(20);
  })(), state, 30_000);
}
