// Names' faces, and who is in a room, by the official client's Presence (phoenix.min.js, global
// `Phoenix`): the server sends the list and then what changes; of a room with too many for a list,
// their number.
"use strict";

const PRESENT_SHOWN_MAX = 5;

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function initials(name) {
  const words = name.trim().split(/\s+/).filter(Boolean);
  const letters = words.length > 1 ? [words[0], words.at(-1)] : words;
  return letters.map((word) => [...word][0]).join("").toUpperCase() || "?";
}

function hue(name) {
  let hash = 0x811c9dc5; // FNV-1a
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 0x01000193);
  return `hue-${(hash >>> 13) % 8}`;
}

/** "Ada, Bob and Cleo", and of many only some. */
function listOfNames(all) {
  const names = all.length > 6 ? [...all.slice(0, 5), `${all.length - 5} others`] : all;
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0];
}

/** Keeps `room.present` as {names, count}; `changed` is called when it is another. */
function followPresence(room, channel, changed) {
  const tell = (names, count) => {
    room.present = { names, count };
    changed(room);
  };
  // Ahead of all handlers, the client's own among them, which would throw at another shape.
  const { onMessage } = channel;
  channel.onMessage = (event, payload, ...refs) =>
    presencePayload(event, onMessage.call(channel, event, payload, ...refs));
  const presence = new Phoenix.Presence(channel);
  presence.onSync(() => {
    const names = Object.keys(presence.state).sort((a, b) => a.localeCompare(b));
    tell(names, names.length);
  });
  channel.on("presence_summary", (payload) => {
    const [sample, count] = [fieldOf(payload, "sample"), fieldOf(payload, "keys")];
    tell(isPresenceList(sample) ? Object.keys(sample) : [], Number.isInteger(count) ? count : 0);
  });
}

/** Faces of some, and how many there are; nothing where the server tells nobody. */
function renderPresent(list, room, ownName) {
  const { names, count } = room.present ?? { names: [], count: 0 };
  list.hidden = count === 0 || room.state !== "joined";
  if (list.hidden) return;
  // First oneself: it is there for certain.
  const shown = [...names].sort((a, b) => (b === ownName) - (a === ownName))
    .slice(0, PRESENT_SHOWN_MAX);
  const faces = shown.map((name) => {
    const face = element("li", `avatar ${hue(name)}`, initials(name));
    face.title = name === ownName ? `${name} (you)` : name;
    face.dataset.name = name;
    face.setAttribute("aria-label", face.title);
    return face;
  });
  const words = element("li", "present-count", `${count.toLocaleString()} here`);
  words.dataset.testid = "present-count";
  words.title = names.join(", ");
  list.replaceChildren(...faces, words);
}
