// The users in a room, by the official client's Presence (phoenix.min.js, global `Phoenix`), and
// their messages. The server sends the list and then changes; for a room with too many users, it
// sends their number and some of them.
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

/** Keeps `room.present` as {names, count}; calls `changed` after each change. */
function followPresence(room, channel, changed) {
  const set = (names, count) => {
    room.present = { names, count };
    changed(room);
  };
  // Runs before all handlers, because the client's own would throw for another shape.
  const { onMessage } = channel;
  channel.onMessage = (event, payload, ...refs) =>
    presencePayload(event, onMessage.call(channel, event, payload, ...refs));
  const presence = new Phoenix.Presence(channel);
  presence.onSync(() => {
    const names = Object.keys(presence.state).sort((a, b) => a.localeCompare(b));
    set(names, names.length);
  });
  channel.on("presence_summary", (payload) => {
    const [sample, count] = [fieldOf(payload, "sample"), fieldOf(payload, "keys")];
    set(isPresenceList(sample) ? Object.keys(sample) : [], Number.isInteger(count) ? count : 0);
  });
}

/** Avatars of some users, and the number of all; nothing if the server sends no presence. */
function renderPresent(list, room, ownName) {
  const { names, count } = room.present ?? { names: [], count: 0 };
  list.hidden = count === 0 || room.state !== "joined";
  if (list.hidden) return;
  // The user's own name comes first.
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

/** A message, with a button that calls `send` if it was not delivered. */
function renderMessage(entry, send) {
  const { node } = entry;
  node.className = "message";
  node.classList.toggle("mine", entry.mine);
  node.classList.toggle("grouped", entry.grouped);
  node.classList.toggle("sending", Boolean(entry.sending));
  node.classList.toggle("failed", Boolean(entry.failed));
  node.dataset.testid = "message";
  const author = entry.user || "Someone";
  const isShared = entry.from && entry.room.tags?.get(entry.user)?.size > 1;
  const colour = hue(isShared ? author + entry.from : author);
  const avatar = element("span", `avatar ${colour}`, initials(author));
  avatar.setAttribute("aria-hidden", "true");
  const head = element("p", "message-head");
  const name = element("span", `message-user ${colour}`, entry.mine ? "You" : author);
  name.dataset.testid = "message-user";
  if (isShared && !entry.mine) name.append(element("span", "tag", ` #${entry.from}`));
  const time = element("time", "", entry.time.toLocaleTimeString([], {
    hour: "2-digit", minute: "2-digit",
  }));
  time.dateTime = entry.time.toISOString();
  head.append(name);
  if (!entry.isOld) head.append(time); // Stored messages have no time.
  const body = element("p", "bubble", entry.body);
  body.dataset.testid = "message-body";
  const column = element("div", "message-column");
  column.append(head, body);
  if (entry.failed) column.append(retryLine(send));
  node.replaceChildren(avatar, column);
}

function retryLine(send) {
  const line = element("p", "retry", "Not delivered. ");
  const button = element("button", "link-button", "Send again");
  button.type = "button";
  button.addEventListener("click", send);
  line.append(button);
  return line;
}
