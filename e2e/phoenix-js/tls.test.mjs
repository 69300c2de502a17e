// TLS with the clients that people have: curl, OpenSSL, Python, Node, the official client and
// Chromium, against both record layers.

import assert from "node:assert/strict";
import { execFile, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import tls from "node:tls";
import { promisify } from "node:util";

import { launchBrowser, newWindow } from "../support/browser.mjs";
import { enter, hears, say } from "../support/chat.mjs";
import { answer, CLIENTS, CURRENT } from "../support/clients.mjs";
import { startProcess } from "../support/server.mjs";
import { eventually, until, within } from "../support/wait.mjs";

const LAYERS = ["simurgh", "rustls"];
const VERSIONS = ["TLSv1.3", "TLSv1.2"];
const run = promisify(execFile);

let dir;
before(() => { dir = mkdtempSync(path.join(os.tmpdir(), "simurgh-tls-")); });
after(() => { rmSync(dir, { recursive: true, force: true }); });

/** Writes a certificate that is its own authority; returns it. */
function certify(name) {
  const [certificate, key] = files(name);
  execFileSync("openssl", [
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc",
    "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
    "-keyout", key, "-out", certificate,
  ], { stdio: "ignore" });
  return readFileSync(certificate);
}

const files = (name) => [path.join(dir, `${name}.pem`), path.join(dir, `${name}-key.pem`)];

/** A server with TLS, its certificate, and where it listens with TLS. */
async function serve(t, layer) {
  const ca = certify(layer);
  const [certificate, key] = files(layer);
  const env = {
    SIMURGH_TLS__LISTEN: "127.0.0.1:0",
    SIMURGH_TLS__CERTIFICATE: certificate,
    SIMURGH_TLS__KEY: key,
    SIMURGH_TLS__RECORD_LAYER: layer,
  };
  const server = await startProcess("serve", { env });
  t.after(() => server.kill());
  const line = /^listening on https:\/\/127\.0\.0\.1:(\d+)$/m;
  await until(() => line.test(server.output), "an address with TLS");
  return { server, ca, port: Number(line.exec(server.output)[1]), certificate };
}

/** A masked text frame (RFC 6455, section 5.2) of less than 126 bytes. */
function frame(text) {
  const [mask, payload] = [randomBytes(4), Buffer.from(text)];
  assert.ok(payload.length < 126);
  const masked = payload.map((byte, at) => byte ^ mask[at % 4]);
  return Buffer.concat([Buffer.from([0x81, 0x80 | payload.length]), mask, masked]);
}

const HEARTBEAT = '[null,"7","phoenix","heartbeat",{}]';
const UPGRADE = "GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: localhost\r\n"
  + "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
  + "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

for (const layer of LAYERS) {
  test(`curl gets the page, with the record layer ${layer}`, async (t) => {
    const { port, certificate } = await serve(t, layer);
    for (const flags of [["--tlsv1.3"], ["--tls-max", "1.2"]]) {
      const all = ["--silent", "--show-error", "--cacert", certificate, ...flags];
      const { stdout } = await run("curl", [...all, `https://127.0.0.1:${port}/`]);
      assert.match(stdout, /<title>.*Simurgh/s);
    }
  });

  test(`OpenSSL changes its key in the middle, with the record layer ${layer}`, async (t) => {
    const { port, certificate } = await serve(t, layer);
    const client = spawn("openssl", [
      "s_client", "-connect", `127.0.0.1:${port}`, "-CAfile", certificate, "-verify_return_error",
    ]);
    t.after(() => client.kill("SIGKILL"));
    let output = "";
    const keep = (data) => { output += data.toString("latin1"); };
    client.stdout.on("data", keep);
    client.stderr.on("data", keep);
    const shows = (text) => until(() => output.includes(text), text).catch((error) => {
      throw new Error(`${error.message}; OpenSSL printed:\n${output}`);
    });
    await shows("Verify return code: 0 (ok)");
    client.stdin.write(UPGRADE);
    await shows("101 Switching Protocols");
    // K asks the server for a new key, too; k does not.
    for (const command of ["K", "k"]) {
      output = "";
      client.stdin.write(`${command}\n`);
      await shows("KEYUPDATE");
      client.stdin.write(frame(HEARTBEAT));
      await shows('"phx_reply"');
    }
  });

  test(`Python sends single bytes and ends cleanly, with the record layer ${layer}`, async (t) => {
    const { port, certificate } = await serve(t, layer);
    const script = `
import socket, ssl, sys
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context = ssl.create_default_context(cafile=sys.argv[2])
    context.minimum_version = context.maximum_version = version
    client = context.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[1]))),
                                 server_hostname="localhost")
    client.settimeout(30)
    for byte in ${JSON.stringify(UPGRADE)}.encode():
        client.sendall(bytes([byte]))
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 101 "), head
    client.sendall(bytes.fromhex(sys.argv[3]))
    reply = client.recv(1000)
    assert b"phx_reply" in reply, reply
    client.sendall(bytes.fromhex("88820000000003e8"))
    assert client.recv(1000) == bytes.fromhex("880203e8")
    client.unwrap()
`;
    const heartbeat = frame(HEARTBEAT).toString("hex");
    await run("python3", ["-c", script, String(port), certificate, heartbeat]);
  });

  for (const client of CLIENTS) {
    test(`${client.name} chats over wss, with the record layer ${layer}`, async (t) => {
      const { port, ca } = await serve(t, layer);
      const long = "long ".repeat(10_000);
      const [ada, bob] = await Promise.all(["Ada", "Bob"].map(async (user) => {
        const opened = await client.open(t, `wss://127.0.0.1:${port}/socket`, { ca });
        const { channel } = await opened.join("rooms:tls", { user });
        return { channel, inbox: opened.listen(channel, "new:msg") };
      }));
      for (const body of ["hello", long]) {
        await answer(ada.channel.push("new:msg", { body }));
        for (const { inbox } of [ada, bob]) {
          assert.equal((await inbox.next("message")).payload.body, body);
        }
      }
    });
  }

  test(`Chromium chats over wss, with the record layer ${layer}`, async (t) => {
    const { port } = await serve(t, layer);
    const browser = await launchBrowser();
    t.after(() => browser.close());
    const sockets = [];
    const pages = [];
    for (const name of ["Ada", "Bob"]) {
      const { page } = await newWindow(t, browser, { ignoreHTTPSErrors: true });
      page.on("websocket", (socket) => sockets.push(socket.url()));
      await enter(page, `https://127.0.0.1:${port}`, "lobby", name);
      pages.push(page);
    }
    await say(pages[0], "Hello over TLS");
    await hears(pages[1], "Hello over TLS");
    assert.ok(sockets.length >= 2 && sockets.every((url) => url.startsWith("wss://")), sockets);
  });
}

/** The fingerprint of the certificate that a new connection gets. */
async function fingerprint(port) {
  const options = { port, host: "127.0.0.1", rejectUnauthorized: false };
  const socket = tls.connect(options);
  const opened = new Promise((resolve, reject) => {
    socket.once("secureConnect", resolve);
    socket.once("error", reject);
  });
  await within(opened, "a handshake");
  const found = socket.getPeerCertificate().fingerprint256;
  socket.destroy();
  return found;
}

test("a certificate is renewed under 1,000 chatting clients: none is disturbed", async (t) => {
  const [count, room, messages] = [1_000, 10, 20];
  const { server, port, ca } = await serve(t, "simurgh");
  const received = Array.from({ length: count }, () => []);
  let closed = 0;
  const channels = [];
  for (let at = 0; at < count; at += 50) {
    channels.push(...await Promise.all(Array.from({ length: 50 }, async (_, more) => {
      const user = await CURRENT.open(t, `wss://127.0.0.1:${port}/socket`, { ca });
      const number = at + more;
      const topic = `rooms:${Math.floor(number / room)}`;
      const { channel } = await user.join(topic, { user: `user ${number}` });
      channel.on("new:msg", ({ body }) => received[number].push(body));
      user.socket.onClose(() => { closed += 1; });
      return channel;
    })));
  }
  const seen = new Set([await fingerprint(port)]);
  for (let round = 0; round < messages; round += 1) {
    const replies = channels.map((channel, at) => at % room === round % room
      ? answer(channel.push("new:msg", { body: `${Math.floor(at / room)}-${round}` })) : undefined);
    if (round % 5 === 2) {
      certify("simurgh");
      const known = seen.size;
      server.child.kill("SIGHUP");
      await eventually(async () => {
        assert.equal(seen.add(await fingerprint(port)).size, known + 1);
      });
    }
    await Promise.all(replies);
  }
  const expected = (at) =>
    Array.from({ length: messages }, (_, n) => `${Math.floor(at / room)}-${n}`);
  await until(() => received.every((bodies) => bodies.length >= messages), "all messages");
  received.forEach((bodies, at) => assert.deepEqual(bodies, expected(at)));
  assert.deepEqual([closed, seen.size], [0, 5]);
});
