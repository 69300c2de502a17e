// Listens to the server, shows the chosen view, and reports a lost server. Requests carry the
// token, which is stored for this tab only.
"use strict";

const POINTS_MAX = 300;
const SILENT_MS_MAX = 6000;
const RETRY_MS = 1000;

class Live {
  constructor(root) {
    this.root = root;
    this.token = sessionStorage.getItem("simurgh-token") ?? "";
    this.state = { overview: null, points: [], lists: {} };
    this.views = null;
    this.lost = el("div", {
      className: "notice bad floating", hidden: true, dataset: { testid: "lost" },
      attributes: { role: "status" },
    });
    this.pill = el("span", { className: "state", dataset: { testid: "state" } }, "connecting");
    window.addEventListener("hashchange", () => this.#choose());
  }

  /** The page, once there is something to show. */
  #build() {
    this.views = {
      overview: new Overview(), shards: new Shards(), topics: new Topics(this),
      connections: new Connections(this), errors: new Errors(), hooks: new Hooks(),
      cluster: new Cluster(),
    };
    const names = ["Overview", "Shards", "Topics", "Connections", "Errors", "Hooks", "Cluster"];
    this.tabs = names.map((name) => el("a", {
      href: `#${name.toLowerCase()}`, dataset: { testid: `tab-${name.toLowerCase()}` },
    }, name));
    this.main = el("main", {}, this.lost);
    this.dialog = this.#dialog();
    this.facts = el("p", { className: "facts" });
    this.root.replaceChildren(
      el("header", { className: "top" },
        el("div", { className: "top-row" },
          el("div", { className: "titles" },
            el("div", { className: "title-line" }, el("h1", {}, "Simurgh observer"), this.pill),
            this.facts)),
        el("nav", { className: "tabs" }, ...this.tabs)),
      this.main, this.dialog);
    this.#choose();
  }

  get #view() {
    const [name] = location.hash.slice(1).split("/");
    if (name === "cluster" && !this.state.overview.cluster) return "overview";
    return Object.hasOwn(this.views, name) ? name : "overview";
  }

  #choose() {
    if (!this.views) return;
    const name = this.#view;
    for (const tab of this.tabs) {
      if (tab.hash === `#${name}`) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    this.main.replaceChildren(this.lost, this.views[name].node);
    this.show();
    this.listen();
  }

  /** Another view, and one connection in it. */
  go(view, id) {
    location.hash = view;
    this.views[view].pick(id);
  }

  show() {
    if (!this.state.overview) return;
    if (!this.views) this.#build();
    const { overview } = this.state;
    const commit = overview.commit ? ` (${overview.commit})` : "";
    this.facts.replaceChildren(...[
      location.host, `version ${overview.version}${commit}`,
      `up for ${Format.span(overview.uptime_s)}`, `${overview.shards.length} shards`,
    ].map((text) => el("span", {}, text)));
    // Only a node of a cluster has others to show, and only some servers have hooks.
    this.tabs.at(-1).hidden = !overview.cluster;
    this.tabs.at(-2).hidden = !overview.hooks;
    this.views[this.#view].update(this.state);
  }

  mayDisconnect() {
    return this.state.overview.can_disconnect;
  }

  #headers() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }

  /** Listens again, to the list of the chosen view. */
  listen() {
    const wanted = new URLSearchParams(this.views?.[this.#view].list ?? {}).toString();
    if (this.wanted === wanted && this.listening) return;
    this.wanted = wanted;
    this.round = (this.round ?? 0) + 1;
    this.listening?.abort();
    this.#listen(this.round, wanted);
  }

  async #listen(round, wanted) {
    while (this.round === round) {
      this.listening = new AbortController();
      try {
        await this.#hear(round, wanted, this.listening);
      } catch (error) {
        if (this.round !== round) return;
        if (error instanceof Refused) return this.#refused(error);
        if (error.isAlone) return this.#isAlone();
        this.#say(error.said ?? "The server does not answer. Trying again; the figures below "
          + "are the last received.");
      }
      await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
    }
  }

  /** One stream of events, to its end. */
  async #hear(round, wanted, controller) {
    let quiet = setTimeout(() => controller.abort(), SILENT_MS_MAX);
    try {
      const answer = await fetch(`api/feed?${wanted}`, {
        headers: this.#headers(), signal: controller.signal,
      });
      await check(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      while (true) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the stream ended");
        clearTimeout(quiet);
        quiet = setTimeout(() => controller.abort(), SILENT_MS_MAX);
        const events = (text + value).split("\n\n");
        text = events.pop();
        if (this.round !== round) return;
        for (const event of events) this.#take(event);
        this.#say("");
        this.show();
      }
    } finally {
      clearTimeout(quiet);
      controller.abort();
    }
  }

  /** The server was started again, as no part of a cluster. */
  #isAlone() {
    this.listening = null;
    location.hash = "overview";
  }

  #take(event) {
    const lines = event.split("\n");
    const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
    const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
    if (!name || !data.length) return;
    const value = JSON.parse(data.join("\n"));
    if (name !== "overview") {
      this.state.lists[name] = value;
      return;
    }
    this.state.overview = value;
    const last = this.state.points.at(-1)?.at_unix_s ?? 0;
    const news = [...(value.history ?? []), value.now].filter((point, at, all) => (
      point.at_unix_s > last && point.at_unix_s > (all[at - 1]?.at_unix_s ?? 0)));
    this.state.points = [...this.state.points, ...news].slice(-POINTS_MAX);
  }

  #say(text) {
    this.lost.textContent = text;
    this.lost.hidden = text === "";
    this.pill.dataset.state = text ? "bad" : "running";
    this.pill.textContent = text ? "lost" : "live";
    const waiting = document.getElementById("waiting");
    if (text && waiting) waiting.textContent = "The server does not answer. Trying again.";
  }

  /** Asks for the token, and removes the figures. */
  #refused(error) {
    this.views = null;
    this.state = { overview: null, points: [], lists: {} };
    const input = el("input", {
      type: "password", autocomplete: "off", required: true, dataset: { testid: "token" },
      attributes: { "aria-label": "Token" },
    });
    const form = el("form", {
      className: "ask",
      onsubmit: (event) => {
        event.preventDefault();
        this.token = input.value;
        sessionStorage.setItem("simurgh-token", this.token);
        this.root.replaceChildren(el("p", { id: "waiting" }, "Waiting for the server."));
        this.listening = null;
        this.listen();
      },
    }, input, el("button", { type: "submit" }, "Open"));
    this.root.replaceChildren(el("main", {}, el("section", { className: "panel token" },
      el("header", {}, el("h2", {}, "Simurgh observer")),
      el("p", { className: this.token ? "refused" : "", dataset: { testid: "refused" } },
        error.message),
      error.asks ? form : null)));
    input.focus();
  }

  /** The JSON at an address, or `null` after reporting what went wrong. */
  async ask(url, options = {}) {
    try {
      const answer = await fetch(url, {
        ...options, headers: { ...this.#headers(), ...options.headers },
        signal: AbortSignal.timeout(15_000),
      });
      await check(answer);
      return await answer.json();
    } catch (error) {
      this.#say(`The request failed: ${error.message}`);
      return null;
    }
  }

  disconnect(row) {
    this.dialog.row = row;
    this.dialog.querySelector("p").textContent = `The server closes ${row.id} (`
      + `${row.peer ?? "no address"}) with 1001. Official clients reconnect.`;
    this.dialog.showModal();
  }

  #dialog() {
    const close = (value) => () => dialog.close(value);
    const dialog = el("dialog", { attributes: { "aria-labelledby": "close-title" } },
      el("h2", { id: "close-title" }, "Disconnect this connection?"), el("p", {}),
      el("div", { className: "dialog-buttons" },
        el("button", { type: "button", onclick: close("keep"), autofocus: true }, "Keep it"),
        el("button", {
          type: "button", className: "danger", onclick: close("close"),
          dataset: { testid: "disconnect-confirm" },
        }, "Disconnect")));
    dialog.addEventListener("close", async () => {
      if (dialog.returnValue !== "close") return;
      dialog.returnValue = "";
      await this.ask("api/disconnect", {
        method: "POST", headers: { "content-type": "application/json" },
        body: JSON.stringify({ id: dialog.row.id }),
      });
    });
    return dialog;
  }
}

/** The server refuses. */
class Refused extends Error {
  constructor(text, asks) {
    super(text);
    this.asks = asks;
  }
}

/** Throws the error of an answer that has one. */
async function check(answer) {
  if (answer.ok) return;
  const said = await answer.json().then(({ error }) => error, () => `status ${answer.status}`);
  if (answer.status === 401) throw new Refused(said, true);
  if (answer.status === 403 && answer.url.includes("/feed")) throw new Refused(said, false);
  const error = new Error(said);
  error.isAlone = answer.status === 404 && answer.url.includes("/feed");
  if (answer.status === 400 || answer.status === 503) error.said = `The server says: ${said}`;
  throw error;
}

const page = new Live(document.getElementById("app"));
page.listen();
