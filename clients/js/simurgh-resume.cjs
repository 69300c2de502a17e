"use strict";
// For require(): made from simurgh-resume.js (a test compares them).
// No message lost: the official phoenix client (1.2 or later) sends its position in a topic with
// each join, so that a Simurgh server with a history of the topic delivers what it missed.

const POSITION = /^[a-z][0-9a-z]{5}\.\d+(-\d+)?$/;
/** By socket: the last position that arrived on its connection, whether a channel got it or not. */
const arrived = new WeakMap();

function arrivals(socket) {
  if (!arrived.has(socket)) {
    let last = {}, next = {};
    socket.onOpen(() => { [last, next] = [{}, {}]; });
    socket.onMessage(({ topic, event, payload, ref }) => {
      const at = POSITION.test(ref) ? ref : payload instanceof ArrayBuffer && next[topic];
      if (event === "simurgh:next") next[topic] = ref; // Its frame may still be on its way.
      else if (at) [last[topic], next[topic]] = [at];
    });
    arrived.set(socket, (topic) => last[topic]);
  }
  return arrived.get(socket);
}

/** `socket.channel(topic, params)`, resumable. simurgh-resume.d.ts describes the options. */
exports.resumable = function resumable(socket, topic, params = {}, options = {}) {
  const { id, since = null, partial, key, onGap } = options;
  const last = arrivals(socket);
  const simurgh = { id, since, partial, key, get seen() { return last(topic); } };
  const channel = socket.channel(topic, typeof params === "function"
    ? () => ({ ...params(), simurgh }) : { ...params, simurgh });
  const onMessage = channel.onMessage.bind(channel);
  let next = null; // The position of a binary frame comes before it: the frame has no place for it.
  channel.onMessage = (event, payload, ref, joinRef) => {
    if (event === "simurgh:next") next = ref;
    else if (POSITION.test(ref)) [simurgh.since, next] = [ref, null];
    else if (next !== null && payload instanceof ArrayBuffer) [simurgh.since, next] = [next, null];
    if (event === "simurgh:resumed") simurgh.key = payload.key ?? simurgh.key;
    if (payload?.recovered === false && event.startsWith("simurgh:")) onGap?.(payload);
    return onMessage(event, payload, ref, joinRef);
  };
  return Object.assign(channel, { position: () => simurgh.since, resumeKey: () => simurgh.key });
}
