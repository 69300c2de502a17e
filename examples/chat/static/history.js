// Joins a room with this page's position in it: the first join gets the room's newest messages
// (`on_join` of its history), a later one those that were missed. Also the storage of this window.
import { resumable } from "./simurgh-resume.js";

const KEY = "window";
const NOT_STORED = /^(phx_|chan_reply_|simurgh:|presence_)/;

/** Storage that may be forbidden (private windows, policies): then nothing is remembered. */
export const memory = {
  read(store, key) {
    try {
      return window[store].getItem(`simurgh.${key}`);
    } catch {
      return null;
    }
  },
  write(store, key, value) {
    try {
      window[store].setItem(`simurgh.${key}`, value);
    } catch {
      // The page works without.
    }
  },
};

export class RoomHistory {
  /** This window's own, the same after a reload. */
  id = windowId();
  #channels = new Map();

  /**
   * A channel that continues at this page's position in the topic. While it delivers stored
   * messages `replays` is "history" for the first join's, "missed" for a later one's.
   */
  channel(socket, topic, params, onGap) {
    const since = this.#channels.get(topic)?.position() ?? null;
    let isFirst = since === null;
    let left = 0;
    const channel = resumable(socket, topic, params, { id: this.id, since, onGap });
    const { onMessage } = channel;
    channel.onMessage = (event, payload, ...refs) => {
      const isStored = !NOT_STORED.test(event);
      if (isStored && left <= 0) channel.replays = "";
      if (isStored) left -= 1;
      const result = onMessage.call(channel, event, payload, ...refs);
      if (event === "simurgh:resumed") {
        left = payload.count ?? 0;
        channel.replays = isFirst ? "history" : "missed";
        isFirst = false;
      }
      return result;
    };
    this.#channels.set(topic, channel);
    return channel;
  }

  forget(topic) {
    this.#channels.delete(topic);
  }
}

function windowId() {
  const stored = memory.read("sessionStorage", KEY);
  if (/^[0-9a-f]{32}$/.test(stored)) return stored;
  // `crypto.randomUUID` exists only on pages from https.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const id = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  memory.write("sessionStorage", KEY, id);
  return id;
}
