// The engine of a cluster: a real nats-server on a port of its own, which can be killed, frozen and
// started again, with what it has stored or without. `cargo xtask engine` installs it and says
// where.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

import { pause, within } from "./wait.mjs";

const PROGRAM = process.env.SIMURGH_NATS_SERVER;

/** The first version whose streams do what histories need. */
const KEEPS_SINCE = [2, 11];

/** Why tests that need one are skipped; false if there is one. */
export const NO_ENGINE = !PROGRAM && "SIMURGH_NATS_SERVER is not set: see `cargo xtask engine`";

/** Why tests of histories that it keeps are skipped; false if it can keep them. */
export const NO_KEEPER = NO_ENGINE || tooOld();

function tooOld() {
  const said = execFileSync(PROGRAM, ["--version"], { encoding: "utf8" }).trim();
  const [major, minor] = /v(\d+)\.(\d+)/.exec(said).slice(1).map(Number);
  const isEnough = major > KEEPS_SINCE[0] || (major === KEEPS_SINCE[0] && minor >= KEEPS_SINCE[1]);
  return !isEnough && `${said} keeps no histories: that takes ${KEEPS_SINCE.join(".")}`;
}

const running = new Set();
process.on("exit", () => {
  for (const engine of running) engine.remove();
});

export class Engine {
  #child;
  #ended;
  #directory = mkdtempSync(path.join(tmpdir(), "simurgh-engine-"));
  #options;
  port = 0;

  /**
   * Resolves when clients may connect. Its port is a free one, whatever `args` say. With `keeps` it
   * has a store of its own, which it finds again when it is restarted.
   */
  static async start(options = {}) {
    if (NO_ENGINE) throw new Error(NO_ENGINE);
    const engine = new Engine();
    engine.#options = options;
    running.add(engine);
    await engine.#run("-1");
    return engine;
  }

  /** `nats://127.0.0.1:PORT` */
  get url() {
    return `nats://127.0.0.1:${this.port}`;
  }

  /** As a crash would. */
  async kill() {
    this.#child.kill("SIGKILL");
    await this.#ended;
  }

  /** On the same port, after it was killed; with `loses` nothing is left of what it had stored. */
  async restart({ loses = false } = {}) {
    if (loses) rmSync(this.#store, { recursive: true, force: true });
    await this.#run(String(this.port));
  }

  /** Says nothing and takes nothing, until `thaw`. */
  freeze() {
    this.#child.kill("SIGSTOP");
  }

  thaw() {
    this.#child.kill("SIGCONT");
  }

  /** Ends it, and removes what it kept. */
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
    const failed = this.#ended.then((why) => {
      if (!this.port) throw new Error(`${PROGRAM} ended: ${why}`);
    });
    // It does not keep a test's process alive: what ends that ends it.
    child.unref();
    this.port = await within(Promise.race([this.#told(), failed]), "port of the engine");
  }

  #portsFiles() {
    return readdirSync(this.#directory).filter((file) => file.endsWith(".ports"));
  }

  /** The port as it tells it, once it listens. */
  async #told() {
    for (;;) {
      const [file] = this.#portsFiles();
      try {
        const { nats } = JSON.parse(readFileSync(path.join(this.#directory, file), "utf8"));
        return Number(new URL(nats[0]).port);
      } catch {
        // Not there yet, or half written.
        await pause(10);
      }
    }
  }
}
