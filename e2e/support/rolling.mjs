// Rolling restarts of three nodes with the configuration of the Helm chart, under clients that
// receive numbered messages (crowd.mjs). Nodes are processes, and what Kubernetes does with pods
// and their Service is done here: probes, the order of a Deployment, preStop, the grace period.

import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";

import { Broker } from "./broker.mjs";
import { now } from "./crowd-clients.mjs";
import { Crowd, TOKEN } from "./crowd.mjs";
import { ROOT, startCommand } from "./server.mjs";
import { pause, within } from "./wait.mjs";

const REPLICAS = 3;
const CHART = path.join(ROOT, "packaging/helm/simurgh");
const NATS_CONF = path.join(ROOT, "packaging/cluster/nats.conf");
const SECRETS = {
  NATS_PASSWORD: "what-nodes-tell-the-broker", CLUSTER_SECRET: "s".repeat(64),
  ...Object.fromEntries([TOKEN]),
};
/** `periodSeconds` of the chart's startupProbe. */
const PROBE_MS = 1_000;
/** For the clients of a node to return; only a failure takes so long. */
const BACK_MS_MAX = 60_000;

/** The first group of `pattern` in a file of the chart. */
async function ofChart(file, pattern) {
  return pattern.exec(await readFile(path.join(CHART, file), "utf8"))[1];
}

/** What the chart sets for `values`, of which those that are missing are its own. */
async function chart(values, broker) {
  const value = async (name) => (
    values[name] ?? Number(await ofChart("values.yaml", RegExp(`^${name}: (\\d+)$`, "m"))));
  const [drain, preStop] = [await value("drainSeconds"), await value("preStopSeconds")];
  const config = values.config
    ?? await ofChart("values.yaml", /^config: \|\n((?: {2}.*\n|\n)*)/m);
  const cluster = await ofChart("templates/configmap.yaml", /( {4}\[cluster\][^]*?)\n {4}\{\{-/);
  const args = await ofChart("templates/deployment.yaml", /args:\n((?: {12}- .*\n)*)/);
  const ready = await ofChart("templates/deployment.yaml", /minReadySeconds: (\d+)/);
  return {
    settings: `${config}${cluster}\n`
      .replace("{{ toJson .servers }}", JSON.stringify([broker.url]))
      .replace("{{ toJson .user }}", '"simurgh"'),
    args: [...args.matchAll(/- (.*)/g)].map(([, arg]) => arg
      .replace(/=0\.0\.0\.0:\d+$/, "=127.0.0.1:0").replace("{{ .Values.drainSeconds }}", drain)),
    preStopMs: preStop * 1_000,
    graceMs: (preStop + drain + 15) * 1_000,
    minReadyMs: (values.minReadySeconds ?? Number(ready)) * 1_000,
  };
}

/** A Deployment and its Service. */
class Deployment {
  #t;
  #chart;
  #directory;
  #proxiesMs;
  #started = 0;
  pods = [];
  /** The ports of the pods that new connections reach. */
  endpoints = [];
  onChange = () => {};

  static async start(t, plan) {
    const deployment = new Deployment();
    const args = ["-c", NATS_CONF];
    const broker = await Broker.start({ args, env: SECRETS, keeps: true });
    t.after(() => broker.remove());
    deployment.#t = t;
    deployment.#proxiesMs = plan.proxiesMs;
    deployment.#chart = await chart(plan.values, broker);
    deployment.#directory = await mkdtemp(path.join(os.tmpdir(), "simurgh-rolling-"));
    t.after(() => rm(deployment.#directory, { recursive: true }));
    for (let n = 0; n < REPLICAS; n += 1) await deployment.#start();
    return deployment;
  }

  /** Starts a pod, and resolves once it is available. */
  async #start() {
    this.#started += 1;
    const name = `simurgh-${this.#started}`;
    const file = path.join(this.#directory, `${name}.toml`);
    const { settings, args, minReadyMs } = this.#chart;
    // Pods have host names of their own, processes have not.
    await writeFile(file, settings.replace("[cluster]", `$&\nname = "${name}"`));
    const own = args.map((arg) => arg.replace(/^--config=.*/, `--config=${file}`));
    const server = await startCommand("simurgh", own, { env: SECRETS });
    this.#t.after(() => server.kill());
    await within((async () => {
      while ((await fetch(`${server.url}/healthz`)).status !== 200) await pause(PROBE_MS);
    })(), `${name} is ready`);
    this.pods.push({ name, server });
    this.#change([...this.endpoints, server.port]);
    await pause(minReadyMs);
  }

  /** Deletes a pod, and resolves when it has ended. */
  async #stop(pod) {
    const begun = now();
    const { preStopMs, graceMs } = this.#chart;
    this.pods.splice(this.pods.indexOf(pod), 1);
    // The proxies learn of it while preStop sleeps.
    const proxies = pause(this.#proxiesMs).then(() => (
      this.#change(this.endpoints.filter((port) => port !== pod.server.port))));
    await pause(preStopMs);
    const { code } = await pod.server.stop("SIGTERM");
    await proxies;
    return { ...pod, code, end_ms: Math.round(now() - begun), isLate: now() - begun > graceMs };
  }

  #change(endpoints) {
    this.endpoints = endpoints;
    this.onChange();
  }

  /**
   * Replaces all pods as the chart's Deployment does (`maxSurge: 1`): starts a pod, and when it is
   * available deletes an old one, which still drains when the next one starts. With `maxSurge` 0
   * each pod has ended before the next starts. Resolves to the old pods when they have ended.
   */
  async restart(maxSurge) {
    const stops = [];
    for (const pod of [...this.pods]) {
      if (maxSurge > 0) {
        await this.#start();
        stops.push(this.#stop(pod));
      } else {
        stops.push(await this.#stop(pod));
        await this.#start();
      }
    }
    return await Promise.all(stops);
  }
}

/**
 * `runs` rolling restarts. `values` of the chart, `proxiesMs` for which connections reach a pod
 * after it was deleted, `maxSurge` as for `restart`; the rest as for `Crowd.connect`. Returns a row
 * for each restarted node, with what clients noticed that left it (`Crowd.rows`), and what all
 * clients missed in all runs.
 */
export async function runRolling(t, plan) {
  const { runs, maxSurge, report } = plan;
  const deployment = await Deployment.start(t, plan);
  const crowd = await Crowd.connect(t, plan, { ports: deployment.endpoints });
  deployment.onChange = () => crowd.use({ ports: deployment.endpoints });
  const rows = [];
  for (let run = 1; run <= runs; run += 1) {
    const stopped = await deployment.restart(maxSurge);
    for (const { server: { port } } of stopped) await crowd.haveLeft(String(port), BACK_MS_MAX);
    const noticed = await crowd.rows();
    for (const { name, server: { port }, code, end_ms, isLate } of stopped) {
      const row = { run, name, code, end_ms, isLate, ...noticed[port] };
      rows.push(row);
      report?.(row);
    }
  }
  return { rows, ...await crowd.end() };
}
