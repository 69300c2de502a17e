// A back end in a few lines of Node, whose answers a test chooses: it keeps every question.

import { once } from "node:events";
import http from "node:http";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";

import WebSocket from "ws";

import { CURRENT } from "./clients.mjs";
import { startProcess } from "./server.mjs";

/** Answers questions by `answers[kind](question)`: a status, or an object, or both in a list. */
export class Application {
  questions = [];
  answers = {};

  static async start(t) {
    const it = new Application();
    it.server = http.createServer((request, response) => it.#handle(request, response));
    it.server.listen(0, "127.0.0.1");
    await once(it.server, "listening");
    t.after(() => it.stop());
    return it;
  }

  get url() {
    return `http://127.0.0.1:${this.server.address().port}/app`;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }

  async #handle(request, response) {
    const chunks = await request.toArray();
    const kind = request.url.split("/").at(-1);
    const body = JSON.parse(Buffer.concat(chunks).toString());
    const question = { kind, headers: request.headers, ...body.data };
    this.questions.push(question);
    const answered = [await this.answers[kind]?.(question) ?? {}].flat();
    const status = answered.find((it) => typeof it === "number") ?? 200;
    const answer = answered.find((it) => typeof it !== "number") ?? {};
    response.writeHead(status, { "content-type": "application/json" });
    response.end(typeof answer === "string" ? answer : JSON.stringify(answer));
  }

  /** The questions of a kind so far. */
  of(kind) {
    return this.questions.filter((question) => question.kind === kind);
  }
}

/** A server that asks this application; `channels` are its tables, `hook` more keys. */
export async function startAsking(t, application, channels, { hook = "", top = "", env } = {}) {
  const dir = await mkdtemp(path.join(os.tmpdir(), "simurgh-hooks-"));
  const file = path.join(dir, "simurgh.toml");
  await writeFile(file, `${top}
[[hook]]
name = "app"
url = "${application.url}"
forward = { cookies = ["session"], headers = ["x-tenant", "x-forwarded-user"] }
${hook}
${channels}`);
  const server = await startProcess("serve", { args: ["--config", file], env });
  t.after(async () => {
    await server.kill();
    await rm(dir, { recursive: true });
  });
  return server;
}

/** A connected official client whose upgrade has these headers. */
export async function browser(t, server, headers = {}, options = {}) {
  return await CURRENT.open(t, `${server.wsUrl}/socket`, { headers, ...options });
}

/** The answer to an upgrade that is refused: status, headers and body. */
export async function refusal(server, headers = {}, query = "") {
  const url = `${server.wsUrl}/socket/websocket?vsn=2.0.0${query}`;
  const socket = new WebSocket(url, { headers });
  const [, response] = await Promise.race([
    once(socket, "unexpected-response"),
    once(socket, "open").then(() => { throw new Error("the client was admitted"); }),
  ]);
  const body = Buffer.concat(await response.toArray()).toString();
  return { status: response.statusCode, headers: response.headers, body };
}
