/** Why missed messages cannot be delivered. */
export type GapReason =
  | "expired" | "overwritten" | "evicted" | "purged" | "epoch" | "too_many" | "too_large"
  | "unavailable" | "lost";

/** Some missed messages are gone; the `count` messages that are left follow. */
export interface Gap {
  recovered: false;
  reason: GapReason;
  /** Absent if the gap is in a channel that is joined. */
  count?: number;
}

export interface Options {
  /** Identifies this client after a reload, 8 to 64 characters. */
  id?: string;
  /** Resumes from this position, of an earlier `channel.position()`; null: from now on. */
  since?: string | null;
  /** For channels with `only_own`: the key of an earlier `channel.resumeKey()`. */
  key?: string;
  /** Whether to deliver the messages that are left if some are gone. Default: true. */
  partial?: boolean;
  /** Called if missed messages are gone. */
  onGap?: (gap: Gap) => void;
}

export interface Resumable {
  /** The position of the last message received, opaque; null before the first join reply. */
  position(): string | null;
  /** The key for channels with `only_own`. */
  resumeKey(): string | undefined;
}

/**
 * As `socket.channel(topic, params)` of the official phoenix client, 1.2 or later. After a
 * reconnect the channel receives the messages it missed, if the Simurgh server has a history of
 * the topic. `params` may be a function from phoenix 1.4 on.
 */
export function resumable<Channel = any>(
  socket: { channel(topic: string, params?: any): Channel },
  topic: string,
  params?: object | (() => object),
  options?: Options,
): Channel & Resumable;
