// A balancer of connections, as stands before the nodes of a cluster: TCP, each in turn.

import net from "node:net";

export class Balancer {
  #listener;
  #ports = [];
  #turn = 0;
  #clients = new Set();

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
  }

  close() {
    this.#listener.close();
    for (const client of this.#clients) client.destroy();
  }

  #accept(client) {
    this.#clients.add(client);
    client.on("close", () => this.#clients.delete(client));
    client.on("error", () => {});
    const ports = this.#ports.map((_, n, all) => all[(this.#turn + n) % all.length]);
    this.#turn += 1;
    this.#connect(client.setNoDelay(true), ports);
  }

  /** To the first of these that takes it. */
  #connect(client, [port, ...others]) {
    if (client.destroyed) return;
    if (port === undefined) {
      client.resetAndDestroy();
      return;
    }
    const node = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    const refused = () => this.#connect(client, others);
    node.once("error", refused);
    node.once("connect", () => {
      node.off("error", refused).setNoDelay(true);
      // What one side breaks is broken for the other.
      node.on("error", () => client.resetAndDestroy());
      client.on("error", () => node.resetAndDestroy());
      client.on("close", () => node.destroy());
      node.on("close", () => client.destroySoon());
      client.pipe(node).pipe(client);
    });
  }
}
