// Runs what a guide of docs/migration shows, as its reader would: the files of a section, and its
// shell commands in their order.

import { execFile } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, mkdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";

import { E2E, PACKAGE } from "./package.mjs";
import { BIN_DIR, ROOT } from "./server.mjs";
import { WAIT_MS_MAX } from "./wait.mjs";

const GUIDES = path.join(ROOT, "docs/migration");

/** What the commands need beside their own text. It ends all that they have started. */
const PREAMBLE = `set -eu
trap 'jobs -p | xargs --no-run-if-empty kill -9' EXIT
soon() { for _ in $(seq 600); do "$@" 2>/dev/null && return; sleep 0.05; done; exit 9; }
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }
`;

/** A background client ends by itself; its output comes last. */
const END = '\n[ -z "${client-}" ] || { wait "$client"; cat client.out; }\n';

/** A section of a guide: its code blocks, as `{ language, text }`. */
export async function section(guide, heading) {
  const text = await readFile(path.join(GUIDES, `${guide}.md`), "utf8");
  const [, part] = new RegExp(`^## ${heading}\\n([^]*?)(?=^## )`, "m").exec(text);
  const blocks = [...part.matchAll(/^```(\w+)\n([^]*?)^```/gm)];
  return blocks.map(([, language, code]) => ({ language, text: code }));
}

export const textOf = (blocks, language) => blocks
  .filter((block) => block.language === language).map(({ text }) => text).join("");

/** The files among the blocks by name: those whose first line is a comment with it. */
export function filesOf(blocks) {
  const files = {};
  for (const { language, text } of blocks) {
    const [, name] = /^(?:\/\/|#) (\S+\.\w+)\n/.exec(text) ?? [];
    if (name) files[name] = text;
    // JSON has no comments.
    if (language === "json") files["config.json"] = text;
  }
  return files;
}

/**
 * A free port that the system gives to no connection: one that tries to connect to such a port
 * before a server listens there may connect to itself.
 */
async function freePort() {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    const listener = net.createServer().listen(port);
    try {
      await once(listener, "listening");
    } catch {
      continue;
    }
    listener.close();
    await once(listener, "close");
    return port;
  }
}

/** Installs `name@version` by a link to the package that is already here. */
async function install(directory, wanted) {
  const [, name, range = ""] = /^(.+?)(?:@([\d.]+))?$/.exec(wanted);
  const source = name === "simurgh-resume" ? PACKAGE : path.join(E2E, "node_modules", name);
  const { version } = JSON.parse(await readFile(path.join(source, "package.json"), "utf8"));
  if (!version.startsWith(range)) throw new Error(`${name}: ${version} is here, not ${range}`);
  const target = path.join(directory, "node_modules", name);
  await mkdir(path.dirname(target), { recursive: true });
  if (!existsSync(target)) await symlink(source, target);
}

/** The commands with waits: for a server in the background, and for a client that has joined. */
function withWaits(script, ports) {
  return script.replace(/^(simurgh|node server|centrifugo|node client)(.*) &$/gm, (line, what) => (
    what === "node client"
      ? `${line.slice(0, -2)} > client.out & client=$!\nsoon grep -q subscribed client.out`
      : `${line}\nsoon listens ${ports[what]}`));
}

/**
 * Runs the commands with these files in a directory of their own; resolves to their output. The
 * guide's ports are replaced by free ones, those of `taken` by the given ones.
 */
export async function runCommands(t, script, files, { taken = {}, bin = [] } = {}) {
  const directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-guide-"));
  t.after(() => rm(directory, { recursive: true, force: true }));
  const [p3000, p4000, p8000] = [await freePort(), await freePort(), await freePort()];
  const ports = { 3000: p3000, 4000: p4000, 8000: p8000, ...taken };
  const here = (text) => text.replace(/\b(3000|4000|8000|8080)\b/g, (port) => ports[port] ?? port);
  for (const [name, text] of Object.entries(files)) {
    await writeFile(path.join(directory, name), here(text));
  }
  for (const [, packages] of script.matchAll(/^npm install (.*)$/gm)) {
    for (const wanted of packages.split(" ")) await install(directory, wanted);
  }
  const commands = here(script.replace(/^npm install .*\n/gm, ""));
  const byProgram = {
    simurgh: ports[4000], "node server": ports[3000], centrifugo: ports[8000],
  };
  const env = {
    ...process.env,
    PATH: [BIN_DIR, ...bin, process.env.PATH].join(":"),
    // Node 20 has the WebSocket that Node 22 has by default.
    NODE_OPTIONS: "--experimental-websocket",
    SIMURGH_LISTEN: `["127.0.0.1:${ports[4000]}"]`,
    CENTRIFUGO_HTTP_SERVER_PORT: `${ports[8000]}`,
  };
  return await new Promise((resolve, reject) => {
    const text = PREAMBLE + withWaits(commands, byProgram) + END;
    const options = { cwd: directory, env, timeout: 2 * WAIT_MS_MAX };
    execFile("bash", ["-c", text], options, (error, stdout, stderr) => {
      if (error) reject(new Error(`${error.message}\n${stdout}\n${stderr}`));
      else resolve(stdout);
    });
  });
}

/** Throws unless the output has these lines, in this order. */
export function hasLines(output, expected) {
  let rest = `${output}\n`;
  for (const line of expected.trim().split("\n")) {
    const at = rest.indexOf(`${line}\n`);
    if (at < 0) throw new Error(`no line "${line}" in order in:\n${output}`);
    rest = rest.slice(at + line.length + 1);
  }
}
