// A balancer of connections, as stands before the nodes of a cluster: TCP, each in turn, and who
// comes again from the same address goes to another node than before.

import net from "node:net";

export class Balancer {
  #listener;
  #ports = [];
  #turn = 0;
  /** To which node the last connection of an address led: its place among `#ports`. */
  #last = new Map();
  #clients = new Set();
  /** Connections of addresses that had one before, by whether they led to another node. */
  returns = { elsewhere: 0, again: 0 };

  /** On `port`, 0 for any free one. */
  static async open(port = 0) {
    const balancer = new Balancer();
    // One that is half closed stays so: what is on its way to the other side still gets there.
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

  /** Where nodes are, from now on. Connections that stand stay where they are. */
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
    // Until one of them has taken it: others of this address may come meanwhile.
    this.#last.set(address, places[0]);
    return places.map((place) => ({ place, last, address }));
  }

  #leadsTo({ place, last, address }) {
    this.#last.set(address, place);
    if (last !== undefined) this.returns[place === last ? "again" : "elsewhere"] += 1;
  }

  /** To the first of these that takes it. */
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
      // What one side breaks is broken for the other.
      node.on("error", () => client.resetAndDestroy());
      client.on("error", () => node.resetAndDestroy());
      client.on("close", () => node.destroy());
      node.on("close", () => client.destroySoon());
      client.pipe(node).pipe(client);
    });
  }
}
