// What this window has heard of its rooms, so that nothing is lost while it is away: the server
// keeps what is said for a while, and is told where the window stands whenever it joins. That
// outlives a reload in the session's storage, which is the window's own.
import { resumable } from "./simurgh-resume.js";

const KEY = "heard";

/** `memory` has `read` and `write` of storage that may be forbidden. */
export class Heard {
  #memory;
  #id;
  #positions;
  #channels = new Map();

  constructor(memory) {
    this.#memory = memory;
    const { id, positions } = this.#stored();
    this.#id = /^[0-9a-f]{32}$/.test(id) ? id : newId();
    const isPosition = ([, position]) => typeof position === "string";
    this.#positions = new Map(Object.entries(positions ?? {}).filter(isPosition));
    // The last two events of which a page can be sure, on a telephone as well.
    window.addEventListener("pagehide", () => this.#store());
    document.addEventListener("visibilitychange", () => this.#store());
  }

  /** A channel that goes on where this window stands in the topic; `onGap` if it cannot. */
  channel(socket, topic, params, onGap) {
    const since = this.#channels.get(topic)?.position() ?? this.#positions.get(topic);
    const channel = resumable(socket, topic, params, { id: this.#id, since, onGap });
    this.#channels.set(topic, channel);
    return channel;
  }

  /** Who leaves a topic misses what is said there. */
  forget(topic) {
    this.#channels.delete(topic);
    this.#positions.delete(topic);
  }

  #stored() {
    try {
      return JSON.parse(this.#memory.read("sessionStorage", KEY)) ?? {};
    } catch {
      return {};
    }
  }

  #store() {
    for (const [topic, channel] of this.#channels) this.#positions.set(topic, channel.position());
    const said = { id: this.#id, positions: Object.fromEntries(this.#positions) };
    this.#memory.write("sessionStorage", KEY, JSON.stringify(said));
  }
}

/** `crypto.randomUUID` is for pages from https alone. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
