// nginx as a process of its own, in the foreground, on a free port.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";

const NGINX = process.env.NGINX
  ?? ["nginx", "/usr/sbin/nginx"].find((file) => !spawnSync(file, ["-v"]).error);
const START_TRIES = 5;

/** A port that was free a moment ago. nginx does not support port 0, so starts are retried. */
async function freePort() {
  const server = net.createServer();
  const port = await new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => resolve(server.address().port));
  });
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function answers(port, child) {
  for (let tries = 0; tries < 100 && child.exitCode === null; tries += 1) {
    const open = await new Promise((resolve) => {
      const socket = net.connect(port, "127.0.0.1");
      socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
      socket.once("connect", () => socket.destroy());
    });
    if (open) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
}

/**
 * A file with replaced texts, each of which must occur in it, and with nginx's own files in `dir`.
 */
export function configured(file, dir, replaced) {
  const temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    .map((name) => `    ${name}_temp_path ${dir}/${name};`).join("\n");
  const always = [
    ["worker_rlimit_nofile 200000;", ""],
    ["worker_connections 100000;", "worker_connections 512;"],
    ["http {", `http {\n    access_log ${dir}/access.log;\n${temp}`],
  ];
  return [...replaced, ...always].reduce((text, [from, to]) => {
    assert.ok(text.includes(from), `${file} still says "${from}"`);
    return text.replace(from, to);
  }, readFileSync(file, "utf8"));
}

/** Starts nginx with the result of `configure` for a directory and a port; resolves to its port. */
export async function startNginx(t, configure) {
  assert.ok(NGINX, "nginx is missing: `cargo xtask test` installs it");
  const dir = mkdtempSync(path.join(tmpdir(), "simurgh-nginx-"));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  for (let tries = 0; tries < START_TRIES; tries += 1) {
    const port = await freePort();
    const config = path.join(dir, "nginx.conf");
    writeFileSync(config, configure(dir, port));
    // nginx is one process in the foreground, ended by its pid.
    const globals = `daemon off; master_process off; pid ${dir}/nginx.pid;`;
    const args = ["-p", dir, "-c", config, "-e", `${dir}/error.log`, "-g", globals];
    const child = spawn(NGINX, args, { stdio: "ignore" });
    const exited = new Promise((resolve) => child.once("exit", resolve));
    const end = () => child.kill("SIGKILL");
    process.once("exit", end);
    if (await answers(port, child)) {
      t.after(async () => {
        end();
        await exited;
      });
      return port;
    }
    end();
    const log = readFileSync(`${dir}/error.log`, "utf8");
    assert.match(log, /Address already in use/, `nginx does not start: ${log}`);
  }
  throw new Error(`no port for nginx in ${START_TRIES} tries`);
}
