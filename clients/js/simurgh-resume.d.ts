/** Why something was missed that is not kept any more. */
export type GapReason =
  | "expired" | "overwritten" | "evicted" | "purged" | "epoch" | "too_many" | "too_large"
  | "unavailable" | "lost";

/** What was missed cannot be had; `count` messages that are still kept follow. */
export interface Gap {
  recovered: false;
  reason: GapReason;
  /** Absent when the gap is in a channel that is live. */
  count?: number;
}

export interface Options {
  /** This client's name for itself, 8 to 64 characters, the same after a reload. */
  id?: string;
  /** Where it stands, as an earlier `channel.position()` said; null: from now on. */
  since?: string | null;
  /** Where only what is later than the first join is given: its proof, as `resumeKey()` said. */
  key?: string;
  /** Whether it wants what is still kept when that is not all. Default: true. */
  partial?: boolean;
  /** Something was missed that is not kept any more. */
  onGap?: (gap: Gap) => void;
}

export interface Resumable {
  /** What has been heard so far, opaque; null before the first join is answered. */
  position(): string | null;
  /** The proof of the first join, where only what is later than that is given. */
  resumeKey(): string | undefined;
}

/**
 * `socket.channel(topic, params)` of the official phoenix client, 1.2 or later, whose joins say
 * what has been heard, so that a Simurgh which keeps the topic's broadcasts sends the rest. Params
 * may be a function from phoenix 1.4 on.
 */
export function resumable<Channel = any>(
  socket: { channel(topic: string, params?: any): Channel },
  topic: string,
  params?: object | (() => object),
  options?: Options,
): Channel & Resumable;
