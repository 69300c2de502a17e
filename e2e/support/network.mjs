// The network between one client and the server, which can fail.

import net from "node:net";

/** The number of networks so far: each has its own address, by which a balancer recognizes it. */
let networks = 0;

/** A proxy. `lose` and `restore` apply to existing and new connections. */
export class Network {
  #listener;
  #port;
  #from;
  #links = new Set();
  #lost = null;

  /** Forwards to the server on this port of this host, until `close`. */
  static async open(port) {
    const network = new Network();
    network.#port = port;
    networks += 1;
    network.#from = `127.79.${networks >> 8}.${networks & 255}`;
    network.#listener = net.createServer((client) => network.#accept(client));
    await new Promise((resolve) => network.#listener.listen(0, "127.0.0.1", resolve));
    return network;
  }

  /** `127.0.0.1:PORT` */
  get address() {
    return `127.0.0.1:${this.#listener.address().port}`;
  }

  /**
   * "reset" ends all connections and refuses new ones. With "silence" neither side receives
   * anything and no connection ends, as if a router had lost them. New connections wait for
   * `restore`, as TCP would retry until then.
   */
  lose(how) {
    this.#lost = how;
    for (const link of this.#links) {
      if (how === "silence") link.mute();
      else link.reset();
    }
  }

  /**
   * From now on new connections reach the server again. With `resets`, silent connections are reset
   * as soon as the client sends something, as by a router that has lost them.
   */
  restore({ resets = false } = {}) {
    this.#lost = null;
    for (const link of this.#links) {
      link.connect(this.#port, this.#from);
      if (resets) link.resetAtNextWord();
    }
  }

  close() {
    for (const link of this.#links) link.destroy();
    this.#listener.close();
  }

  #accept(client) {
    if (this.#lost === "reset") return client.resetAndDestroy();
    const link = new Link(client, () => this.#links.delete(link));
    this.#links.add(link);
    if (this.#lost === null) link.connect(this.#port, this.#from);
    return undefined;
  }
}

/** A connection of the client, and the one to the server that belongs to it. */
class Link {
  #sockets = [];
  #isMute = false;
  #ended;

  constructor(client, ended) {
    this.#ended = ended;
    this.#add(client.pause());
  }

  /** Connects to the server, unless it is connected or lost. */
  connect(port, localAddress) {
    if (this.#sockets.length > 1 || this.#isMute) return;
    const [client] = this.#sockets;
    const server = net.connect({ port, host: "127.0.0.1", localAddress });
    this.#add(server);
    client.pipe(server).pipe(client);
  }

  mute() {
    if (this.#sockets.length < 2) return;
    this.#isMute = true;
    for (const socket of this.#sockets) socket.unpipe().pause();
  }

  resetAtNextWord() {
    if (!this.#isMute) return;
    this.#sockets[0].once("data", () => {
      this.#isMute = false;
      this.reset();
    }).resume();
  }

  reset() {
    if (this.#isMute) return;
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  destroy() {
    for (const socket of this.#sockets) socket.destroy();
  }

  #add(socket) {
    this.#sockets.push(socket);
    socket.setNoDelay(true);
    socket.on("error", () => {});
    socket.on("close", () => {
      if (this.#isMute) return;
      this.#ended();
      this.destroy();
    });
  }
}
