// The way of one client to the server, which can be lost.

import net from "node:net";

/** A proxy. `lose` and `restore` are about the connections that come as well as those there are. */
export class Network {
  #listener;
  #links = new Set();
  #lost = null;

  /** Before the server on this port of this host, until `close`. */
  static async open(port) {
    const network = new Network();
    network.#listener = net.createServer((client) => network.#accept(client, port));
    await new Promise((resolve) => network.#listener.listen(0, "127.0.0.1", resolve));
    return network;
  }

  /** `127.0.0.1:PORT` */
  get address() {
    return `127.0.0.1:${this.#listener.address().port}`;
  }

  /**
   * "reset" ends all connections, and whoever connects is turned away. With "silence" nothing is
   * said any more to either side and no connection ends, for ever: as where a router has forgotten
   * them. What is connected meanwhile is accepted and never hears a word either.
   */
  lose(how) {
    this.#lost = how;
    for (const link of this.#links) {
      if (how === "silence") link.mute();
      else if (!link.isMute) link.reset();
    }
  }

  /** From now on new connections lead to the server again. */
  restore() {
    this.#lost = null;
  }

  close() {
    for (const link of this.#links) link.reset();
    this.#listener.close();
  }

  #accept(client, port) {
    const forget = () => this.#links.delete(link);
    const link = new Link(client, this.#lost === null ? port : null, forget);
    this.#links.add(link);
    if (this.#lost === "reset") link.reset();
  }
}

/** A connection of the client, and the one to the server that belongs to it. */
class Link {
  #sockets;
  isMute = false;

  constructor(client, port, ended) {
    this.#sockets = [client];
    if (port === null) client.pause();
    else this.#sockets.push(net.connect(port, "127.0.0.1"));
    for (const [index, socket] of this.#sockets.entries()) {
      socket.setNoDelay(true);
      socket.on("error", () => {});
      socket.on("close", () => {
        if (this.isMute) return;
        ended();
        for (const other of this.#sockets) other.destroy();
      });
      if (port !== null) socket.pipe(this.#sockets[1 - index]);
    }
  }

  mute() {
    this.isMute = true;
    for (const socket of this.#sockets) socket.unpipe().pause();
  }

  reset() {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }
}
