// The broker of a cluster: a real nats-server on its own port, which can be killed, frozen and
// started again, with or without its stored data. `cargo xtask engine` installs it and prints its
// path.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

import { pause, within, WAIT_MS_MAX } from "./wait.mjs";

const PROGRAM = process.env.SIMURGH_NATS_SERVER;

/** The first version whose streams support histories. */
const KEEPS_SINCE = [2, 11];

/** The reason to skip tests that need a broker; false if there is one. */
export const NO_BROKER = !PROGRAM && "SIMURGH_NATS_SERVER is not set: see `cargo xtask engine`";

/** The reason to skip tests of histories in the broker; false if it can store them. */
export const NO_KEEPER = NO_BROKER || tooOld();

function tooOld() {
  const said = execFileSync(PROGRAM, ["--version"], { encoding: "utf8" }).trim();
  const [major, minor] = /v(\d+)\.(\d+)/.exec(said).slice(1).map(Number);
  const isEnough = major > KEEPS_SINCE[0] || (major === KEEPS_SINCE[0] && minor >= KEEPS_SINCE[1]);
  return !isEnough && `${said} keeps no histories: that takes ${KEEPS_SINCE.join(".")}`;
}

const running = new Set();
process.on("exit", () => {
  for (const broker of running) broker.remove();
});

export class Broker {
  #child;
  #ended;
  #directory = mkdtempSync(path.join(tmpdir(), "simurgh-broker-"));
  #options;
  port = 0;

  /**
   * Resolves when clients may connect. It always listens on a free port. With `keeps` it has its
   * own store, which it uses again after a restart.
   */
  static async start(options = {}) {
    if (NO_BROKER) throw new Error(NO_BROKER);
    const broker = new Broker();
    broker.#options = options;
    running.add(broker);
    await broker.#run("-1");
    return broker;
  }

  /** `nats://127.0.0.1:PORT` */
  get url() {
    return `nats://127.0.0.1:${this.port}`;
  }

  /** Kills it, like a crash. */
  async kill() {
    this.#child.kill("SIGKILL");
    await this.#ended;
  }

  /** Starts it on the same port after it was killed; with `loses`, without its stored data. */
  async restart({ loses = false } = {}) {
    if (loses) rmSync(this.#store, { recursive: true, force: true });
    const { port } = this;
    // A connection of another program may have the port for a while.
    for (const end = Date.now() + WAIT_MS_MAX; ;) {
      try {
        return await this.#run(String(port));
      } catch (error) {
        if (Date.now() > end) throw error;
      }
      await pause(250);
    }
  }

  /** Suspends it until `thaw`. */
  freeze() {
    this.#child.kill("SIGSTOP");
  }

  thaw() {
    this.#child.kill("SIGCONT");
  }

  /** Ends it, and removes its data. */
  remove() {
    this.#child?.kill("SIGKILL");
    running.delete(this);
    rmSync(this.#directory, { recursive: true, force: true });
  }

  get #store() {
    return path.join(this.#directory, "store");
  }

  async #run(port) {
    const directory = this.#directory;
    for (const file of this.#portsFiles()) rmSync(path.join(directory, file));
    const { args = [], env = {}, keeps = false } = this.#options;
    const own = ["-a", "127.0.0.1", "-p", port, "--ports_file_dir", directory];
    if (keeps) own.push("-js", "-sd", this.#store);
    const child = spawn(PROGRAM, [...args, ...own], {
      cwd: directory, stdio: "ignore", env: { ...process.env, ...env },
    });
    this.#child = child;
    this.#ended = new Promise((resolve) => {
      child.once("exit", resolve).once("error", resolve);
    });
    let listens = false;
    const failed = this.#ended.then((why) => {
      if (!listens) throw new Error(`${PROGRAM} ended: ${why}`);
    });
    // It does not keep the test's process alive, and ends with it.
    child.unref();
    this.port = await within(Promise.race([this.#told(), failed]), "port of the broker");
    listens = true;
  }

  #portsFiles() {
    return readdirSync(this.#directory).filter((file) => file.endsWith(".ports"));
  }

  /** The port from its ports file, once it listens. */
  async #told() {
    for (;;) {
      const [file] = this.#portsFiles();
      try {
        const { nats } = JSON.parse(readFileSync(path.join(this.#directory, file), "utf8"));
        return Number(new URL(nats[0]).port);
      } catch {
        // The file is missing, or incomplete.
        await pause(10);
      }
    }
  }
}
