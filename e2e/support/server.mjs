// Starts one of the built binaries on its own port and always ends it by pid. The binary prints
// `listening on http://127.0.0.1:PORT` when it is ready, so nothing here sleeps.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const BIN_DIR = process.env.E2E_BIN_DIR ?? path.join(ROOT, "target/debug");

const START_MS_MAX = 60_000;
const STOP_MS_MAX = 30_000;
const OUTPUT_BYTES_MAX = 64 * 1024;

const running = new Set();
// A test file that throws must not leave a server behind; `exit` handlers must be synchronous.
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** Command lines by the name a test uses. All print the same line when they are ready. */
const COMMANDS = {
  serve: (listen) => ["simurgh", ["serve", "--listen", listen]],
  conformance: (listen) => ["conformance", ["--listen", listen]],
  hello_page: (listen) => ["hello_page", ["--listen", listen]],
  dashboard: (listen) => ["examples/dashboard_demo", ["--port", listen.split(":")[1]]],
};

/** The line that each of them prints when it is ready. */
const READY = /^listening on http:\/\/127\.0\.0\.1:(\d+)\s*$/m;

/** With more than one, a server under test is this many nodes behind a balancer (cluster.mjs). */
export const NODES = Number(process.env.E2E_NODES ?? 1);

/**
 * Starts one of `COMMANDS` and resolves when it listens.
 * `port` 0 takes any free one; `args` are added at the end.
 */
export async function startServer(name, options = {}) {
  if (NODES <= 1) return await startProcess(name, options);
  const { startCluster } = await import("./cluster.mjs");
  return await startCluster(name, NODES, options);
}

/** The same, and always one process. */
export async function startProcess(name, { port = 0, args = [], env = {} } = {}) {
  const [binary, baseArgs] = COMMANDS[name](`127.0.0.1:${port}`);
  const server = await startCommand(binary, [...baseArgs, ...args], { env });
  return Object.assign(server, { name, options: { args, env } });
}

/**
 * A built program, or another one by its path, with exactly these arguments. `ready` finds the port
 * in its output.
 */
export async function startCommand(binary, args, { env = {}, cwd, ready = READY } = {}) {
  const file = path.resolve(BIN_DIR, binary);
  if (!existsSync(file)) {
    const build = "`cargo build --bins --examples`";
    throw new Error(`${file} is not built: run ${build} or set E2E_BIN_DIR`);
  }
  const child = spawn(file, args, {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, ...env },
    cwd,
  });
  running.add(child);
  const server = new Server(binary, child);
  try {
    server.port = await server.listening(ready);
  } catch (error) {
    await server.kill();
    throw error;
  }
  return server;
}

class Server {
  #output = "";
  #exited;

  constructor(name, child) {
    this.name = name;
    this.child = child;
    this.port = 0;
    const keep = (chunk) => {
      this.#output = (this.#output + chunk).slice(-OUTPUT_BYTES_MAX);
    };
    child.stdout.setEncoding("utf8").on("data", keep);
    child.stderr.setEncoding("utf8").on("data", keep);
    this.#exited = new Promise((resolve) => {
      child.once("error", (error) => {
        keep(`\n${error.message}`);
        running.delete(child);
        resolve({ code: null, signal: null });
      });
      child.once("exit", (code, signal) => {
        running.delete(child);
        resolve({ code, signal });
      });
    });
  }

  /** `http://127.0.0.1:PORT` */
  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  /** `ws://127.0.0.1:PORT` */
  get wsUrl() {
    return `ws://127.0.0.1:${this.port}`;
  }

  /** The last output of the process, for failure messages. */
  get output() {
    return this.#output;
  }

  /** Resolves to the port once the process listens. */
  async listening(ready) {
    const deadline = AbortSignal.timeout(START_MS_MAX);
    return await new Promise((resolve, reject) => {
      const look = () => {
        const found = ready.exec(this.#output);
        if (found) resolve(Number(found[1]));
      };
      const fail = (what) => {
        reject(new Error(`${this.name} ${what}; it printed:\n${this.#output}`));
      };
      this.child.stdout.on("data", look);
      this.child.stderr.on("data", look);
      this.#exited.then(({ code, signal }) => fail(`ended early (${signal ?? code})`));
      deadline.addEventListener("abort", () => fail(`is not ready after ${START_MS_MAX} ms`));
    });
  }

  /** Sends `signal` and resolves to `{code, signal}`; a process that ignores it is killed. */
  async stop(signal = "SIGTERM") {
    this.child.kill(signal);
    const timer = setTimeout(() => this.child.kill("SIGKILL"), STOP_MS_MAX);
    const end = await this.#exited;
    clearTimeout(timer);
    return end;
  }

  /** Resolves to `{code, signal}` when it has ended by itself. */
  get ended() {
    return this.#exited;
  }

  /** Kills it, like a crash: no close frame, no drain. */
  async kill() {
    return await this.stop("SIGKILL");
  }

  /** The same command on the same port, after this process has ended. */
  async restarted() {
    return await startProcess(this.name, { ...this.options, port: this.port });
  }
}
