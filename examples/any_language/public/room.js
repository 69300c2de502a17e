// The chat of both examples. It has no token: the browser sends the session cookie of its host with
// the connect, and Simurgh asks the application who that is.

const { hostname } = location;
const { port } = new URL(document.currentScript.src);
const socket = new Phoenix.Socket(`ws://${hostname}:${port}/socket`);
const room = socket.channel("rooms:lobby");

const log = document.getElementById("log");
const form = document.getElementById("write");

function show(text) {
  const item = document.createElement("li");
  item.textContent = text;
  log.append(item);
}

/** The name comes from the application, which knows it from the session. */
function send(payload) {
  room.push("new:msg", payload).receive("error", ({ reason }) => show(`Refused: ${reason}`));
}

room.on("new:msg", ({ from, body }) => show(`${from}: ${body}`));

let isOpen = false;
socket.onOpen(() => { isOpen = true; });
socket.onClose(() => { isOpen = false; });
socket.onError(() => {
  // A browser hides from its page why a connect failed.
  if (isOpen) return;
  socket.disconnect();
  show("The server refused the connection, or is away. Log in, or reload this page.");
});

room.join()
  .receive("ok", ({ title }) => show(`You are in ${title}.`))
  .receive("error", ({ reason }) => show(`Join refused: ${reason}`));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  send({ body: form.elements.body.value });
  form.reset();
});
document.getElementById("forge").addEventListener("click", () => {
  send({ from: "somebody else", body: "This is not me." });
});
document.getElementById("staff").addEventListener("click", () => {
  const staff = socket.channel("rooms:staff");
  staff.join()
    .receive("ok", ({ title }) => show(`You are in ${title}.`))
    .receive("error", ({ reason }) => {
      show(`Join refused: ${reason}`);
      staff.leave();
    });
});
socket.connect();
