// The part of Pusher's protocol that the guide's "before" needs: no Pusher server installs from the
// registries that the tests may use. It tests that guide's code is right for the real clients.

import { createHmac } from "node:crypto";
import { once } from "node:events";
import http from "node:http";

import { WebSocketServer } from "ws";

const SECRET = "app-secret";

/** Its port. Once a client event came, it publishes the back end's message. */
export async function startPusher(t) {
  const server = http.createServer(async (request, response) => {
    const body = Buffer.concat(await request.toArray()).toString();
    const { socket_id: id, channel_name: channel } = Object.fromEntries(new URLSearchParams(body));
    response.end(JSON.stringify({ auth: signature(id, channel) }));
  });
  const sockets = new WebSocketServer({ server });
  const subscribers = new Set();
  let last = 0;
  sockets.on("connection", (socket) => {
    const id = `1.${last += 1}`;
    socket.on("close", () => subscribers.delete(socket));
    const send = (to, event, data, channel) => (
      to.send(JSON.stringify({ event, channel, data: JSON.stringify(data) })));
    send(socket, "pusher:connection_established", { socket_id: id, activity_timeout: 120 });
    socket.on("message", (text) => {
      const { event, data, channel } = JSON.parse(text);
      if (event === "pusher:subscribe" && data.auth === signature(id, data.channel)) {
        subscribers.add(socket);
        send(socket, "pusher_internal:subscription_succeeded", {}, data.channel);
      } else if (event === "pusher:subscribe") {
        const error = { type: "AuthError", error: "invalid signature", status: 401 };
        send(socket, "pusher:subscription_error", error, data.channel);
      } else if (event === "pusher:ping") {
        send(socket, "pusher:pong", {});
      } else if (event.startsWith("client-")) {
        for (const other of subscribers) if (other !== socket) send(other, event, data, channel);
        const payload = { user: "system", body: "Good morning" };
        for (const each of subscribers) send(each, "message", payload, channel);
      }
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    for (const socket of sockets.clients) socket.terminate();
    server.close();
  });
  return server.address().port;
}

function signature(id, channel) {
  return `app-key:${createHmac("sha256", SECRET).update(`${id}:${channel}`).digest("hex")}`;
}
