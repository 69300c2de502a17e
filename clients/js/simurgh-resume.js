// No message lost: has the official phoenix client (1.2 or later) say what it has heard of a topic
// whenever it joins anew, so that a Simurgh which keeps the topic's broadcasts gives it the rest.

const POSITION = /^[a-z][0-9a-z]{5}\.\d+(-\d+)?$/;

/**
 * `socket.channel(topic, params)`, resumable.
 * `id`: this client's name for itself, 8 to 64 characters, the same after a reload;
 * `since`: where it stands, as an earlier `channel.position()` said;
 * `key`: where only what is later than the first join is given, its proof: `channel.resumeKey()`;
 * `partial`: whether it wants what is still kept when that is not all, which is the default;
 * `onGap({reason, count})`: something was missed that is not kept any more.
 */
export function resumable(socket, topic, params = {}, options = {}) {
  const { id, since = null, partial, key, onGap } = options;
  // Read anew at each join. What arrives while no channel is there, after a leave, is only seen.
  const simurgh = { id, since, seen: undefined, partial, key };
  socket.onMessage((it) => { if (it.topic === topic && POSITION.test(it.ref)) simurgh.seen = it.ref; });
  const join = typeof params === "function"
    ? () => ({ ...params(), simurgh }) : { ...params, simurgh };
  const channel = socket.channel(topic, join);
  const onMessage = channel.onMessage.bind(channel);
  let next = null;
  channel.onMessage = (event, payload, ref, joinRef) => {
    if (POSITION.test(ref)) {
      // A binary frame has no place for its position, which comes before it.
      next = event === "simurgh:next" ? ref : null;
      if (next === null) simurgh.since = ref;
    } else if (next !== null && payload instanceof ArrayBuffer) {
      simurgh.since = next;
      next = null;
    }
    if (event === "simurgh:resumed") simurgh.key = payload.key ?? simurgh.key;
    if (payload?.recovered === false && event.startsWith("simurgh:")) onGap?.(payload);
    return onMessage(event, payload, ref, joinRef);
  };
  channel.position = () => simurgh.since;
  channel.resumeKey = () => simurgh.key;
  return channel;
}
