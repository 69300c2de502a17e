// Applications of real web frameworks that answer Simurgh's questions, each on a port of its own.

import { existsSync } from "node:fs";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";

import WebSocket from "ws";

import { Balancer } from "./balancer.mjs";
import { ROOT, startCommand, startProcess } from "./server.mjs";
import { within } from "./wait.mjs";

/** The Python with the packages of backends/requirements.txt; `cargo xtask test` makes it. */
export const PYTHON = process.env.E2E_PYTHON;
export const IN_CI = !["", "0", "false", undefined].includes(process.env.CI);
/** From the tests of the official libraries. */
export const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const APPLICATIONS = path.join(ROOT, "e2e/backends");
const EXAMPLES = path.join(ROOT, "examples/any_language");

/** Each with its session cookie, and the command that serves it on a port. */
export const FRAMEWORKS = [
  {
    name: "Django",
    cookie: "sessionid",
    program: PYTHON,
    needs: "Django and gunicorn",
    arguments: (port) => [
      "-B", "-m", "gunicorn", "--bind", `127.0.0.1:${port}`, "--threads", "4",
      "--no-control-socket", "app:application",
    ],
    ready: /Listening at: http:\/\/127\.0\.0\.1:(\d+)/,
    // The same status as a refusal.
    csrf: { status: 403, log: /status 403.*exempt the hook's path from CSRF checks/ },
  },
  {
    name: "Express",
    cookie: "connect.sid",
    program: process.execPath,
    needs: "Node",
    arguments: () => ["app.mjs"],
    ready: /listening on http:\/\/127\.0\.0\.1:(\d+)/,
  },
  {
    name: "Rails",
    cookie: "_app_session",
    program: "/usr/bin/rackup",
    needs: "Debian's ruby-rails",
    arguments: (port) => ["--server", "webrick", "--host", "127.0.0.1", "--port", `${port}`],
    ready: /WEBrick::HTTPServer#start: pid=\d+ port=(\d+)/,
    csrf: { status: 503, log: /status 422/ },
  },
];

/** Why tests with a program are left out, or `false`. CI can install everything. */
export function missing(program, needs) {
  const isThere = program !== undefined && existsSync(program);
  return !isThere && !IN_CI && `${needs} is not installed`;
}

/** A directory that goes after the test or suite. */
async function temporary(t) {
  const directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-backends-"));
  t.after(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

/** A running application of one of the frameworks. */
export class Backend {
  #directory;
  #process;

  static async start(t, framework) {
    const backend = new Backend();
    backend.framework = framework;
    backend.#directory = await temporary(t);
    await backend.#launch(0);
    t.after(() => backend.#process.stop("SIGINT"));
    return backend;
  }

  async #launch(port) {
    const { name, program, ready } = this.framework;
    this.#process = await startCommand(program, this.framework.arguments(port), {
      cwd: path.join(APPLICATIONS, name.toLowerCase()),
      env: { HOOK_SECRET: SECRET, APP_DIRECTORY: this.#directory, PORT: `${port}` },
      ready,
    });
  }

  get url() {
    return this.#process.url;
  }

  /** Starts a session, and resolves to the cookies that a browser would send. */
  async login(name) {
    const response = await fetch(`${this.url}/login/${name}`);
    if (!response.ok) throw new Error(`no login: ${response.status}\n${this.#process.output}`);
    return response.headers.getSetCookie().map((cookie) => cookie.split(";")[0]).join("; ");
  }

  /** How many questions of each kind it has answered since its start. */
  async seen() {
    const counts = await (await fetch(`${this.url}/seen`)).json();
    return { connect: 0, join: 0, message: 0, ...counts };
  }

  async stop() {
    await this.#process.stop("SIGINT");
  }

  /** On the same port; it has forgotten its counts, and maybe its sessions. */
  async startAgain() {
    await this.#launch(this.#process.port);
  }
}

/** `simurgh serve` with these settings. */
export async function serveWith(t, settings, env = {}) {
  const file = path.join(await temporary(t), "simurgh.toml");
  await writeFile(file, settings);
  const server = await startProcess("serve", { args: ["--config", file], env });
  t.after(() => server.kill());
  return server;
}

/** The applications of examples/any_language, and how each is served on any free port. */
export const EXAMPLES_SERVED = [
  {
    name: "Django",
    program: PYTHON,
    needs: "Django",
    arguments: ["-B", "-u", "app.py", "127.0.0.1:0"],
    ready: /Starting development server at http:\/\/127\.0\.0\.1:(\d+)/,
  },
  {
    name: "Express",
    program: path.join(EXAMPLES, "express/node_modules/express"),
    needs: "Express",
    arguments: ["app.mjs"],
    ready: /Open http:\/\/127\.0\.0\.1:(\d+)/,
  },
];

/**
 * One of them with Simurgh and its own settings: the address of its page. Each has to know the
 * other's address, so Simurgh's is one that exists before both.
 */
export async function serveExample(t, { name, program, arguments: args, ready }) {
  const directory = path.join(EXAMPLES, name.toLowerCase());
  const front = await Balancer.open();
  t.after(() => front.close());
  const scripts = await temporary(t);
  await cp(path.join(EXAMPLES, "public/room.js"), path.join(scripts, "room.js"));
  const client = path.join(ROOT, "examples/chat/static/phoenix.min.js");
  await cp(client, path.join(scripts, "phoenix.min.js"));
  const env = {
    DATABASE: path.join(scripts, "db.sqlite3"),
    HOOK_SECRET: SECRET,
    PORT: "0",
    SIMURGH_API_TOKEN: "the-token-of-the-application",
    REALTIME_URL: `http://127.0.0.1:${front.port}`,
  };
  const runs = name === "Express" ? process.execPath : program;
  const application = await startCommand(runs, args, { cwd: directory, env, ready });
  t.after(() => application.stop("SIGINT"));
  const settings = await readFile(path.join(directory, "simurgh.toml"), "utf8");
  const server = await serveWith(t, settings
    .replace("http://127.0.0.1:3000", application.url)
    .replace('"../public"', JSON.stringify(scripts)), env);
  front.ports = [server.port];
  return application.url;
}

/** A refused upgrade: its status, headers and body. */
export async function refusal(server, headers = {}) {
  const socket = new WebSocket(`${server.wsUrl}/socket/websocket?vsn=2.0.0`, { headers });
  const response = await within(new Promise((resolve, reject) => {
    socket.once("unexpected-response", (_request, response) => resolve(response));
    socket.once("open", () => {
      socket.terminate();
      reject(new Error("the connect was accepted"));
    });
    socket.once("error", reject);
  }), "refused upgrade");
  let body = "";
  for await (const chunk of response.setEncoding("utf8")) body += chunk;
  return { status: response.statusCode, headers: response.headers, body: body.trim() };
}
