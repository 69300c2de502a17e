// The page: a form to log in, or the chat.

export const SIMURGH = process.env.REALTIME_URL ?? "http://127.0.0.1:4000";

const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

const LOGIN = `<form action="/login" method="post">
  <label>Name <input name="name" required autofocus></label> <button>Log in</button>
</form>`;

const logout = (user) => `<form action="/logout" method="post">
  You are <b id="user">${escape(user)}</b>. <button id="logout">Log out</button>
</form>`;

export const page = (user) => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Express and Simurgh</title>
<link rel="icon" href="data:,">
${user ? logout(user) : LOGIN}
<ul id="log"></ul>
<form id="write">
  <label>Message <input name="body" required autocomplete="off"></label> <button>Send</button>
</form>
<button id="forge">Write as somebody else</button>
<button id="staff">Enter the staff room</button>
<script src="${SIMURGH}/phoenix.min.js"></script>
<script src="${SIMURGH}/room.js"></script>
</html>
`;
