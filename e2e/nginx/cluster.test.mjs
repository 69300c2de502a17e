// The services of packaging/cluster as plain processes: each service's own command with its own
// file, in which only hosts, ports and paths are replaced.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { CURRENT, answer } from "../support/clients.mjs";
import { Broker, NO_KEEPER } from "../support/broker.mjs";
import { configured, startNginx } from "../support/nginx.mjs";
import { BIN_DIR, ROOT, startCommand } from "../support/server.mjs";
import { pause, within } from "../support/wait.mjs";

const DIRECTORY = path.join(ROOT, "packaging/cluster");
const NODES = ["node-1", "node-2", "node-3"];
const SECRETS = {
  NATS_PASSWORD: "rosebud",
  SIMURGH_SECRET: "what all nodes share".repeat(4),
  SIMURGH_API_TOKEN: "a-token-of-no-importance",
};

const file = (name) => readFileSync(path.join(DIRECTORY, name), "utf8");

/** The commands of compose.yaml by service, with what they inherit. */
function commands() {
  const services = {};
  const anchors = {};
  let name;
  for (const line of file("compose.yaml").split("\n")) {
    const service = /^ {2}([\w-]+):(?: &(\w+))?$/.exec(line);
    if (line === "volumes:") break;
    if (service) {
      name = service[1];
      services[name] = {};
      if (service[2]) anchors[service[2]] = services[name];
    }
    const inherited = /^ {4}<<: \*(\w+)$/.exec(line);
    if (inherited) Object.assign(services[name], anchors[inherited[1]]);
    const value = /^ {4}(\w+): (\[.*\]|\S+)$/.exec(line);
    if (value) {
      const [, key, text] = value;
      services[name][key] = text.startsWith("[") ? JSON.parse(text) : text;
    }
  }
  return services;
}

/** What systemd would start, without the path of the program. */
function execStart(unit) {
  const [, line] = /^ExecStart=(.+)$/m.exec(unit);
  return line.split(" ");
}

function replaced(text, pairs) {
  return pairs.reduce((all, [from, to]) => {
    assert.ok(all.includes(from), `it still says "${from}"`);
    return all.replace(from, to);
  }, text);
}

const printed = (args) => new Promise((resolve, reject) => {
  const stdio = ["ignore", "pipe", "inherit"];
  const child = spawn(path.join(BIN_DIR, "simurgh"), args, { stdio });
  let text = "";
  child.stdout.setEncoding("utf8").on("data", (chunk) => { text += chunk; });
  child.once("error", reject).once("close", () => resolve(text));
});

/** Broker and nodes by these arguments, in which paths of their machines are mapped. */
async function start(t, brokerArgs, nodeArgs) {
  const directory = mkdtempSync(path.join(tmpdir(), "simurgh-packaged-"));
  t.after(() => rmSync(directory, { recursive: true }));
  const conf = path.join(directory, "nats.conf");
  // Only the port is a flag's: the file's own stays as it is.
  writeFileSync(conf, file("nats.conf"));
  const map = (args, from, to) => {
    assert.ok(args.includes(from), `${args.join(" ")} has ${from}`);
    return args.map((it) => it === from ? to : it);
  };
  const store = brokerArgs[brokerArgs.indexOf("-sd") + 1];
  const args = map(map(brokerArgs, "/etc/nats/nats.conf", conf), store, path.join(directory, "js"));
  const broker = await Broker.start({ args, env: SECRETS });
  t.after(() => broker.remove());
  const nodes = await Promise.all(NODES.map(async (name) => {
    const config = path.join(directory, `${name}.toml`);
    // One host has one name.
    writeFileSync(config, replaced(file("simurgh.toml"), [
      ["nats://nats:4222", broker.url],
      ['engine = "nats"', `engine = "nats"\nname = "${name}"`],
    ]));
    const args = map(nodeArgs, "/etc/simurgh/simurgh.toml", config)
      .map((it) => it.replace(/^0\.0\.0\.0:\d+$/, "127.0.0.1:0"));
    const listens = args.includes("--listen") ? [] : ["--listen", "127.0.0.1:0"];
    const node = await startCommand("simurgh", [...args, ...listens], { env: SECRETS });
    t.after(() => node.kill());
    return node;
  }));
  for (const node of nodes) {
    await within((async () => {
      for (;;) {
        const response = await fetch(`${node.url}/api/disconnect`, {
          method: "POST",
          headers: { authorization: `Bearer ${SECRETS.SIMURGH_API_TOKEN}` },
          body: '{"id":"nobody"}',
        });
        if ((await response.json()).confirmed?.length === NODES.length - 1) return;
        await pause(20);
      }
    })(), "two other nodes");
  }
  return { broker, nodes };
}

/** A member by way of each of these addresses; what one says all hear. */
async function chats(t, urls) {
  const joins = [];
  for (const [n, url] of urls.entries()) {
    const user = await CURRENT.open(t, `${url}/socket`);
    const { channel } = await user.join("rooms:lobby", { presence: `user-${n}` });
    joins.push({ channel, inbox: user.listen(channel, "new:msg") });
  }
  for (const [n, { channel }] of joins.entries()) {
    const message = { body: `from ${n}` };
    assert.deepEqual(await answer(channel.push("new:msg", message)), { msg: message.body });
    for (const { inbox } of joins) {
      assert.deepEqual((await inbox.next(`message ${n}`)).payload, message);
    }
  }
}

test("compose.yaml starts a broker, three nodes and a balancer that uses each in turn", {
  skip: NO_KEEPER,
}, async (t) => {
  const services = commands();
  assert.deepEqual(Object.keys(services), ["nats", ...NODES, "balancer"]);
  for (const name of NODES) {
    assert.deepEqual(services[name].command, services["node-1"].command);
    assert.equal(services[name].hostname, name);
    assert.deepEqual(services[name].environment, Object.keys(SECRETS));
  }
  const { nodes } = await start(t, services.nats.command, services["node-1"].command);
  const port = await startNginx(t, (directory, own) => configured(
    path.join(DIRECTORY, "nginx.conf"), directory, [
      ["listen 4000;", `listen 127.0.0.1:${own};`],
      ...NODES.map((name, n) => [`server ${name}:4000 `, `server 127.0.0.1:${nodes[n].port} `]),
    ]));
  assert.deepEqual(services.balancer.ports, ["4000:4000"]);
  const way = `ws://127.0.0.1:${port}`;
  await chats(t, [way, way, way]);
  for (const node of nodes) {
    const health = await (await fetch(`${node.url}/healthz`)).text();
    assert.equal(health, "ok\n");
  }
});

test("both systemd units start by their commands", { skip: NO_KEEPER }, async (t) => {
  const [nats, ...natsArgs] = execStart(file("nats-server.service"));
  assert.equal(path.basename(nats), "nats-server");
  const unit = readFileSync(path.join(ROOT, "packaging/simurgh.service"), "utf8");
  const [simurgh, ...nodeArgs] = execStart(unit);
  assert.equal(path.basename(simurgh), "simurgh");
  const { nodes } = await start(t, natsArgs, nodeArgs);
  await chats(t, nodes.map((node) => node.wsUrl));
});

test("nats.conf grants the permissions that `simurgh` prints", async () => {
  const permissions = await printed(["config", "--nats-permissions"]);
  const lines = permissions.trim().split("\n").map((line) => line.trim());
  const own = file("nats.conf").split("\n").map((line) => line.trim());
  for (const line of lines) assert.ok(own.includes(line), line);
});
