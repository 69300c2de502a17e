// A TCP balancer in front of the nodes of a cluster. It uses them in turn, and a client that
// returns from the same address reaches another node than before.

import net from "node:net";

export class Balancer {
  #listener;
  #ports = [];
  #turn = 0;
  /** The node of an address's last connection: its index in `#ports`. */
  #last = new Map();
  #clients = new Set();
  /** Connections of addresses that had one before, by whether they led to another node. */
  returns = { elsewhere: 0, again: 0 };

  /** On `port`, 0 for any free one. */
  static async open(port = 0) {
    const balancer = new Balancer();
    // A half-closed connection stays half closed, so that data in transit still arrives.
    balancer.#listener = net.createServer({ allowHalfOpen: true }, (client) => {
      balancer.#accept(client);
    });
    await new Promise((resolve, reject) => {
      balancer.#listener.once("error", reject).listen(port, "127.0.0.1", resolve);
    });
    return balancer;
  }

  get port() {
    return this.#listener.address().port;
  }

  /** The ports of the nodes, for new connections. Open connections stay. */
  set ports(ports) {
    this.#ports = ports;
    this.#last.clear();
  }

  close() {
    this.#listener.close();
    for (const client of this.#clients) client.destroy();
  }

  #accept(client) {
    this.#clients.add(client);
    client.on("close", () => this.#clients.delete(client));
    client.on("error", () => {});
    this.#connect(client.setNoDelay(true), this.#places(client.remoteAddress));
  }

  /** All nodes, in the order in which they are tried for a connection of this address. */
  #places(address) {
    const count = this.#ports.length;
    const last = this.#last.get(address);
    const first = last === undefined ? this.#turn : last + 1;
    this.#turn += Number(last === undefined);
    const places = this.#ports.map((_, n) => (first + n) % count);
    // Until one of them accepts it: the same address may open others meanwhile.
    this.#last.set(address, places[0]);
    return places.map((place) => ({ place, last, address }));
  }

  #leadsTo({ place, last, address }) {
    this.#last.set(address, place);
    if (last !== undefined) this.returns[place === last ? "again" : "elsewhere"] += 1;
  }

  /** Connects to the first of these that accepts. */
  #connect(client, [way, ...others]) {
    if (client.destroyed) return;
    if (way === undefined) {
      client.resetAndDestroy();
      return;
    }
    const port = this.#ports[way.place];
    const node = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    const refused = () => this.#connect(client, others);
    node.once("error", refused);
    node.once("connect", () => {
      node.off("error", refused).setNoDelay(true);
      this.#leadsTo(way);
      // If one side breaks, the other is broken too.
      node.on("error", () => client.resetAndDestroy());
      client.on("error", () => node.resetAndDestroy());
      client.on("close", () => node.destroy());
      node.on("close", () => client.destroySoon());
      client.pipe(node).pipe(client);
    });
  }
}
