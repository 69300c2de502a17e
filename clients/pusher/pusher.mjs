// The parts of the pusher-js API that Laravel Echo uses, over the official Phoenix client. Copy
// this file into your project; docs/migration/PUSHER.md shows how to use it.

import { Presence, Socket } from "phoenix";

export default class Pusher {
  channels = { channels: {} };
  connection = { state: "connecting", bind() {}, unbind() {} };

  /** `options` are those of the Phoenix client, such as `{ authToken: () => freshToken() }`. */
  constructor(url, options) {
    this.socket = new Socket(url, options);
    this.socket.onOpen(() => { this.connection.state = "connected"; });
    this.socket.onClose(() => { this.connection.state = "connecting"; });
    this.socket.connect();
  }

  subscribe(name) {
    return (this.channels.channels[name] ??= new Subscription(this.socket, name));
  }

  unsubscribe(name) {
    this.channels.channels[name]?.channel.leave();
    delete this.channels.channels[name];
  }

  disconnect() {
    this.socket.disconnect();
  }
}

class Subscription {
  #handlers = [];
  /** Of a presence channel, by id; undefined before the first list. */
  #members;

  constructor(socket, name) {
    this.channel = socket.channel(name);
    // The Phoenix client calls it for every event of the channel.
    this.channel.onMessage = (event, payload) => {
      this.#emit(event, payload);
      return payload;
    };
    const isPresence = name.startsWith("presence-");
    if (isPresence) {
      const presence = new Presence(this.channel);
      const info = (id, { metas: [meta] }) => ({ id, ...meta });
      presence.onSync(() => this.#sync(presence.list(info)));
    }
    this.channel.join()
      .receive("ok", () => isPresence || this.#emit("pusher:subscription_succeeded"))
      .receive("error", (error) => this.#emit("pusher:subscription_error", error));
  }

  bind(event, handler) {
    this.#handlers.push({ event, handler });
    return this;
  }

  unbind(event, handler) {
    const isMeant = (it) => it.event === event && (!handler || it.handler === handler);
    this.#handlers = this.#handlers.filter((it) => !isMeant(it));
    return this;
  }

  trigger(event, data) {
    this.channel.push(event, data);
    return true;
  }

  #sync(list) {
    const members = Object.fromEntries(list.map((info) => [info.id, info]));
    const before = this.#members;
    this.#members = members;
    if (!before) {
      this.#emit("pusher:subscription_succeeded", { members });
      return;
    }
    const tell = (event, some, others) => Object.values(some)
      .filter(({ id }) => !others[id])
      .forEach((info) => this.#emit(event, { id: info.id, info }));
    tell("pusher:member_added", members, before);
    tell("pusher:member_removed", before, members);
  }

  #emit(event, data) {
    for (const it of this.#handlers) if (it.event === event) it.handler(data);
  }
}
