// The chat page: rooms over Phoenix Channels with the official client (phoenix.min.js, global
// `Phoenix`). One socket at /socket, one channel `rooms:<name>` for each room that is open.
// Everything that comes from others is put into the page as text, never as markup, and may be of
// any shape (payload.js).
import { RoomHistory, memory } from "./history.js";

const ROOM_LENGTH_MAX = 48;
const ENTRIES_MAX = 400; // Of one room; older ones are dropped.
const GROUP_MS = 5 * 60_000; // Messages of one author this close together share a heading.
const BODY_LENGTH_MAX = 16_384; // Characters that are shown of what others send.
const USER_LENGTH_MAX = 64;
const OFFLINE_AFTER_MS = 15_000; // "Reconnecting" becomes "offline" when it lasts this long.
const ANSWER_MS_MAX = 3_000; // A connection without an answer in this time is lost.
const FINAL_JOIN_ERRORS = new Set(["unauthorized", "unmatched topic"]);
const DEFAULT_ROOMS = ["lobby"];
const SOCKET = "/socket";

const at = (id) => document.getElementById(id);
const ui = {
  app: at("app"), side: at("side"), scrim: at("scrim"), roomList: at("room-list"),
  roomForm: at("room-form"), roomInput: at("room-input"), me: at("me"), meName: at("me-name"),
  meAvatar: at("me-avatar"), menuOpen: at("menu-open"), menuClose: at("menu-close"),
  menuBadge: at("menu-badge"), title: at("room-title"), invite: at("invite"),
  present: at("present"), connection: at("connection"), connectionText: at("connection-text"),
  notice: at("notice"),
  noticeText: at("notice-text"), noticeAction: at("notice-action"), log: at("log"),
  empty: at("empty"), emptyTitle: at("empty-title"), entries: at("entries"),
  toNewest: at("to-newest"), composer: at("composer"), composerLabel: at("composer-label"),
  composerInput: at("composer-input"), welcome: at("welcome"), welcomeForm: at("welcome-form"),
  nameInput: at("name-input"),
};

// ---- Stored settings ----------------------------------------------------------------------------

function rememberedRooms() {
  try {
    const rooms = JSON.parse(memory.read("localStorage", "rooms"));
    return Array.isArray(rooms) && rooms.every((name) => typeof name === "string")
      ? rooms.slice(0, 50)
      : DEFAULT_ROOMS;
  } catch {
    return DEFAULT_ROOMS;
  }
}

// ---- State -------------------------------------------------------------------------------------

/**
 * A window has its own name (so that two windows can talk), and the last one chosen is what a new
 * window proposes.
 */
let userName = memory.read("sessionStorage", "name");

/** name → {name, channel, state, error, entries, unread, draft, entered}; insertion is order. */
const rooms = new Map();
let current = null;
let connection = "connecting";
let offlineTimer = null;
let started = false;
let refusal = ""; // The server's reason, if it refuses the connection.

const socket = new Phoenix.Socket(SOCKET, { longPollFallbackMs: 2500 }); // in case of proxies
const roomHistory = new RoomHistory();
const tag = roomHistory.id.slice(0, 4); // Tells users with one name apart.

/** states: idle (not asked for), joining, joined, errored (the client retries), refused, closed */
function roomNamed(name) {
  let room = rooms.get(name);
  if (!room) {
    room = { name, channel: null, state: "idle", error: "", entries: [], unread: 0, draft: "" };
    rooms.set(name, room);
    memory.write("localStorage", "rooms", JSON.stringify([...rooms.keys()]));
  }
  return room;
}

function cleanRoomName(text) {
  return text.trim().replace(/^#+/, "").replace(/\s+/g, "-").slice(0, ROOM_LENGTH_MAX);
}

function roomOfHash() {
  try {
    return cleanRoomName(decodeURIComponent(location.hash));
  } catch {
    return "";
  }
}

// ---- Channels ----------------------------------------------------------------------------------

function join(room) {
  // `presence` is the name in the list of members.
  const params = () => ({ user: userName, presence: userName });
  const missed = () => addEntry(room, { kind: "gap" });
  const channel = roomHistory.channel(socket, `rooms:${room.name}`, params, missed);
  room.channel = channel;
  followPresence(room, channel, presentChanged);
  setRoomState(room, "joining");
  channel.on("new:msg", (payload) => {
    const body = fieldText(payload, "body", BODY_LENGTH_MAX);
    // A message without a text is not shown.
    if (body === "") return;
    const user = fieldText(payload, "user", USER_LENGTH_MAX);
    addMessage(room, { user, body, from: fieldText(payload, "from", tag.length) });
  });
  channel.on("user:entered", (payload) => {
    const isOld = channel.replays === "history";
    if (!isOld) addEntered(room, fieldText(payload, "user", USER_LENGTH_MAX));
  });
  channel.onError(() => {
    // Also called for every open room when the connection is lost, which has its own text. If the
    // client gives up a channel by itself, nothing else is called.
    if (!socket.isConnected()) connectionGone();
    if (room.channel === channel && room.state !== "refused") setRoomState(room, "errored");
  });
  channel.onClose(() => {
    if (room.channel !== channel) return;
    room.channel = null;
    if (room.state !== "refused") setRoomState(room, "closed");
  });
  channel.join()
    .receive("ok", () => {
      room.isAnnounced = false; // The server announces each join, this one as well.
      setRoomState(room, "joined");
    })
    .receive("error", (answer) => {
      const reason = fieldText(answer, "reason", BODY_LENGTH_MAX) || "the server refused";
      if (FINAL_JOIN_ERRORS.has(reason)) {
        setRoomState(room, "refused", reason);
        channel.leave(); // Otherwise the client would ask again and again.
      } else {
        setRoomState(room, "errored", reason);
      }
    })
    .receive("timeout", () => setRoomState(room, "errored", "no answer from the server"));
}

function presentChanged(room) {
  if (room === current) renderPresent(ui.present, room, userName);
}

/** A user with a new name joins each room anew. */
function enterAgain(room) {
  const { channel } = room;
  if (!channel) return;
  room.channel = null;
  channel.leave();
  join(room);
}

function leave(room) {
  const channel = room.channel;
  room.channel = null;
  channel?.leave();
  roomHistory.forget(`rooms:${room.name}`);
  rooms.delete(room.name);
  memory.write("localStorage", "rooms", JSON.stringify([...rooms.keys()]));
}

function setRoomState(room, state, error = "") {
  room.state = state;
  room.error = error;
  if (room === current) renderNotice();
  renderRooms();
}

function send(room, body) {
  deliver(addEntry(room, { kind: "message", user: userName, body, from: tag, mine: true }));
}

/** The message comes back as a broadcast; the reply only confirms it. */
function deliver(entry) {
  entry.failed = false;
  entry.sending = true;
  renderEntry(entry);
  const failed = () => {
    if (!entry.sending) return;
    entry.sending = false;
    entry.failed = true;
    renderEntry(entry);
  };
  const { channel } = entry.room;
  if (!channel) return failed();
  channel.push("new:msg", { user: entry.user, body: entry.body, from: entry.from })
    .receive("ok", () => {
      entry.sending = false;
      renderEntry(entry);
    })
    .receive("error", failed)
    .receive("timeout", failed);
}

// ---- Messages ----------------------------------------------------------------------------------

function addMessage(room, { user, body, from }) {
  const isOld = room.channel?.replays === "history";
  // The broadcast of our own message: it is already shown.
  const own = !isOld && room.entries.find((entry) =>
    entry.mine && !entry.echoed && entry.user === user && entry.body === body);
  if (own) {
    Object.assign(own, { echoed: true, sending: false, failed: false });
    renderEntry(own);
    return;
  }
  const mine = isOld && from === tag;
  addEntry(room, { kind: "message", user, body, from, mine, echoed: true, isOld });
  if (isOld || mine) return;
  if (room !== current || document.hidden) {
    room.unread += 1;
    renderRooms();
  }
}

/** Consecutive arrivals share one line, which names each user once. */
function addEntered(room, user) {
  const isOwn = user === userName && !room.isAnnounced;
  room.isAnnounced ||= isOwn;
  const name = isOwn ? "You" : user === userName ? `Another ${user}` : user || "Someone";
  const last = room.entries.at(-1);
  if (last?.kind === "entered") {
    if (last.names.includes(name) || last.names.length >= ENTRIES_MAX) return;
    last.names.push(name);
    renderEntry(last);
    keepAtEnd();
  } else {
    addEntry(room, { kind: "entered", names: [name] });
  }
}

function addEntry(room, entry) {
  const before = room.entries.at(-1);
  entry.room = room;
  entry.time = new Date();
  entry.grouped = before?.kind === "message" && entry.kind === "message"
    && before.user === entry.user && before.from === entry.from && before.mine === entry.mine
    && before.isOld === entry.isOld && entry.time - before.time < GROUP_MS;
  room.entries.push(entry);
  if (entry.kind === "message") markNamesakes(room, entry);
  if (room === current) showEntry(entry);
  if (room.entries.length > ENTRIES_MAX) room.entries.shift().node?.remove();
  return entry;
}

/** Shows the tag of users that share a name in the room. */
function markNamesakes(room, { user, from }) {
  room.tags ??= new Map([[userName, new Set([tag])]]);
  if (!room.tags.has(user)) room.tags.set(user, new Set());
  const tags = room.tags.get(user);
  if (!from || tags.has(from)) return;
  tags.add(from);
  if (tags.size === 2) room.entries.filter((it) => it.user === user).forEach(renderEntry);
}

// ---- Drawing: the conversation -----------------------------------------------------------------

function nearEnd() {
  return ui.log.scrollHeight - ui.log.scrollTop - ui.log.clientHeight < 80;
}

function toEnd() {
  ui.log.scrollTop = ui.log.scrollHeight;
  ui.toNewest.hidden = true;
}

function keepAtEnd() {
  if (nearEnd()) toEnd();
}

function showEntry(entry) {
  const follow = nearEnd() || entry.mine;
  entry.node = element("li");
  renderEntry(entry);
  ui.entries.append(entry.node);
  if (entry.kind === "message") ui.empty.hidden = true;
  if (follow) toEnd();
  else if (entry.kind === "message") ui.toNewest.hidden = false;
}

function renderEntry(entry) {
  if (!entry.node) return;
  if (entry.kind === "message") return renderMessage(entry, () => deliver(entry));
  const text = entry.kind === "gap"
    ? "Some messages are missing here. The server no longer has them."
    : `${listOfNames(entry.names)} entered`;
  entry.node.className = "entered";
  entry.node.dataset.testid = entry.kind;
  entry.node.replaceChildren(element("span", "", text));
}

// ---- Drawing: everything around it -------------------------------------------------------------

function renderRoom() {
  const room = current;
  document.title = `#${room.name} · Simurgh chat`;
  ui.title.replaceChildren(element("span", "hash", "#"), document.createTextNode(room.name));
  ui.composerLabel.textContent = `Message to #${room.name}`;
  ui.composerInput.placeholder = `Message #${room.name}`;
  ui.composerInput.value = room.draft;
  fitComposer();
  ui.entries.replaceChildren();
  ui.empty.hidden = false; // Until the first message is shown.
  ui.log.setAttribute("aria-live", "off"); // Do not read the whole room out again.
  room.entries.forEach(showEntry);
  ui.log.setAttribute("aria-live", "polite");
  toEnd();
  renderNotice();
  renderRooms();
}

function renderRooms() {
  let unread = 0;
  const items = [...rooms.values()].map((room) => {
    if (room !== current) unread += room.unread;
    return roomItem(room);
  });
  ui.roomList.replaceChildren(...items);
  ui.menuBadge.hidden = unread === 0;
  ui.menuOpen.setAttribute("aria-label", unread === 0
    ? "Show the room list"
    : `Show the room list, ${unread} unread`);
  const mark = unread + (current?.unread ?? 0);
  if (current) document.title = `${mark ? `(${mark}) ` : ""}#${current.name} · Simurgh chat`;
}

function roomItem(room) {
  const item = element("li", "room-item");
  const link = element("a", "room-link");
  link.href = `#${encodeURIComponent(room.name)}`;
  link.dataset.testid = "room-link";
  link.dataset.room = room.name;
  link.dataset.state = room.state;
  link.append(element("span", "hash", "#"), element("span", "room-name", room.name));
  if (room === current) link.setAttribute("aria-current", "page");
  if (room.unread > 0 && room !== current) {
    const badge = element("span", "badge", room.unread > 99 ? "99+" : String(room.unread));
    badge.append(element("span", "visually-hidden", " unread"));
    link.append(badge);
  }
  item.append(link);
  if (rooms.size > 1) {
    const close = element("button", "room-leave", "×");
    close.type = "button";
    close.setAttribute("aria-label", `Leave ${room.name}`);
    close.addEventListener("click", () => leaveAndMoveOn(room));
    item.append(close);
  }
  return item;
}

function renderNotice() {
  const room = current;
  const away = ["reconnecting", "offline", "refused"].includes(connection);
  let text = "";
  let action = null;
  if (connection === "refused") {
    text = refusal === "missing"
      ? "This server requires a token, and this page has none. Connect with your own page."
      : `The server refuses the connection: ${refusal}.`;
    action = ["Try again", reconnectNow];
  } else if (connection === "offline") {
    text = "You are offline. Your messages are sent when the server answers again.";
    action = ["Try now", reconnectNow];
  } else if (away) {
    text = "The connection is lost. Reconnecting…";
  } else if (room?.state === "refused") {
    text = `You cannot join #${room.name}: ${room.error}.`;
    action = ["Try again", () => join(room)];
  } else if (room?.state === "closed") {
    text = `The server closed #${room.name}.`;
    action = ["Join again", () => join(room)];
  } else if (room?.state === "errored") {
    text = `#${room.name} is not reachable${room.error ? `: ${room.error}` : ""}. Trying again…`;
  }
  if (room) renderPresent(ui.present, room, userName);
  const refused = room?.state === "refused";
  ui.empty.dataset.state = room?.state ?? "idle";
  ui.emptyTitle.textContent = refused
    ? `#${room.name} is closed to you`
    : `No messages in #${room?.name} yet`;
  ui.composerInput.disabled = refused;
  ui.notice.hidden = text === "";
  ui.notice.dataset.kind = away ? "connection" : "room";
  if (ui.noticeText.textContent !== text) ui.noticeText.textContent = text;
  ui.noticeAction.hidden = action === null;
  ui.noticeAction.textContent = action?.[0] ?? "";
  ui.noticeAction.onclick = action?.[1] ?? null;
}

function setConnection(state) {
  connection = state;
  clearTimeout(offlineTimer);
  if (state === "reconnecting") {
    offlineTimer = setTimeout(() => setConnection("offline"), OFFLINE_AFTER_MS);
  }
  ui.connection.dataset.state = state;
  ui.connectionText.textContent = {
    connecting: "Connecting", connected: "Connected", reconnecting: "Reconnecting",
    offline: "Offline", refused: "Refused",
  }[state];
  if (current) renderNotice();
}

function renderMe() {
  ui.meName.textContent = userName;
  ui.meAvatar.textContent = initials(userName);
  ui.meAvatar.className = `avatar ${hue(userName)}`;
}

/** As tall as its text, up to what the style sheet allows. */
function fitComposer() {
  ui.composerInput.style.height = "auto";
  ui.composerInput.style.height = `${ui.composerInput.scrollHeight}px`;
  keepAtEnd();
}

// ---- What the user does ------------------------------------------------------------------------

function openRoom(name) {
  if (current) current.draft = ui.composerInput.value;
  current = roomNamed(name);
  current.unread = 0;
  if (current.state === "idle") join(current);
  renderRoom();
  setMenu(false);
}

function leaveAndMoveOn(room) {
  leave(room);
  if (room !== current) return renderRooms();
  current = null;
  location.hash = encodeURIComponent(rooms.keys().next().value);
}

function setMenu(open) {
  ui.app.classList.toggle("menu", open);
  ui.scrim.hidden = !open;
  ui.menuOpen.setAttribute("aria-expanded", String(open));
}

function askName() {
  ui.nameInput.value = userName ?? memory.read("localStorage", "name") ?? "";
  ui.welcome.classList.toggle("first", !started);
  if (!ui.welcome.open) ui.welcome.showModal();
  ui.nameInput.select();
}

function takeName(event) {
  const name = ui.nameInput.value.trim().replace(/\s+/g, " ");
  if (!name) {
    event.preventDefault();
    return;
  }
  const isOther = name !== userName;
  userName = name;
  memory.write("sessionStorage", "name", name);
  memory.write("localStorage", "name", name);
  renderMe();
  ui.welcome.close(); // Now already: behind an open dialog the message field cannot get the focus.
  if (!started) start();
  else if (isOther) rooms.forEach(enterAgain);
}

function submitMessage(event) {
  event.preventDefault();
  const body = ui.composerInput.value.trim();
  if (!body || !current) return;
  send(current, body);
  current.draft = "";
  ui.composerInput.value = "";
  fitComposer();
  ui.composerInput.focus();
}

function composerKey(event) {
  // Enter sends, Shift+Enter breaks the line, Enter that ends an input method's word does neither.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ui.composer.requestSubmit();
}

function submitRoom(event) {
  event.preventDefault();
  const name = cleanRoomName(ui.roomInput.value);
  if (!name) return;
  ui.roomInput.value = "";
  location.hash = encodeURIComponent(name);
  if (name === current?.name) setMenu(false);
}

async function copyInvite() {
  await navigator.clipboard.writeText(location.href);
  ui.invite.classList.add("done");
  ui.invite.setAttribute("aria-label", "Link copied");
  setTimeout(() => {
    ui.invite.classList.remove("done");
    ui.invite.setAttribute("aria-label", "Copy a link to this room");
  }, 1600);
}

function reconnectNow() {
  setConnection(connection === "refused" ? "connecting" : "reconnecting");
  socket.disconnect(() => socket.connect());
}

/** A browser hides why a WebSocket was refused; a plain request of the same path shows it. */
async function askWhy() {
  const answer = await fetch(`${SOCKET}/websocket?vsn=2.0.0`).catch(() => null);
  if (answer?.status !== 403 || socket.isConnected()) return;
  refusal = (await answer.text()).trim().slice(0, BODY_LENGTH_MAX) || "no reason given";
  socket.disconnect(); // Another attempt would end the same way.
  setConnection("refused");
}

function connectionGone() {
  if (connection === "refused") return;
  if (connection === "connecting") askWhy();
  const state = navigator.onLine ? "reconnecting" : "offline";
  if (connection !== "offline" && connection !== state) setConnection(state);
}

/** A connection may end with the network without an event: a ping finds out. */
function networkChanged() {
  if (!started || connection === "refused") return;
  const late = setTimeout(reconnectNow, socket.isConnected() ? ANSWER_MS_MAX : 0);
  socket.ping(() => clearTimeout(late));
}

function hashChanged() {
  openRoom(roomOfHash() || DEFAULT_ROOMS[0]);
}

// ---- Start -------------------------------------------------------------------------------------

function start() {
  started = true;
  rememberedRooms().forEach((name) => name && roomNamed(name));
  socket.onOpen(() => setConnection("connected"));
  socket.onClose(connectionGone);
  socket.connect();
  const name = roomOfHash() || DEFAULT_ROOMS[0];
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  openRoom(name);
  if (matchMedia("(hover: hover)").matches) ui.composerInput.focus();
}

window.addEventListener("hashchange", () => started && hashChanged());
window.addEventListener("offline", networkChanged);
window.addEventListener("online", networkChanged);
document.addEventListener("visibilitychange", () => {
  if (document.hidden || !current || current.unread === 0) return;
  current.unread = 0;
  renderRooms();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") setMenu(false);
});
ui.composer.addEventListener("submit", submitMessage);
ui.composerInput.addEventListener("keydown", composerKey);
ui.composerInput.addEventListener("input", fitComposer);
ui.roomForm.addEventListener("submit", submitRoom);
ui.welcomeForm.addEventListener("submit", takeName);
ui.welcome.addEventListener("cancel", (event) => {
  if (!started) event.preventDefault(); // There is no chatting without a name.
});
ui.me.addEventListener("click", askName);
ui.menuOpen.addEventListener("click", () => {
  setMenu(true);
  ui.menuClose.focus();
});
ui.menuClose.addEventListener("click", () => {
  setMenu(false);
  ui.menuOpen.focus();
});
ui.scrim.addEventListener("click", () => setMenu(false));
ui.log.addEventListener("scroll", () => {
  if (nearEnd()) ui.toNewest.hidden = true;
}, { passive: true });
ui.toNewest.addEventListener("click", toEnd);
if (navigator.clipboard) {
  ui.invite.hidden = false;
  ui.invite.addEventListener("click", copyInvite);
}

if (userName) {
  renderMe();
  start();
} else {
  askName();
}
