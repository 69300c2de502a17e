// A chat whose users log in with Express. Simurgh keeps the sockets, and asks the three routes
// under /simurgh who connects, joins and writes.

import express from "express";
import session from "express-session";
import { Webhook } from "standardwebhooks";

import { SIMURGH, page } from "./page.mjs";

const STAFF = ["ada"];
const webhook = new Webhook(process.env.HOOK_SECRET);
const app = express();
app.use(session({ secret: "for this example only", resave: false, saveUninitialized: false }));

// Pages for people. A real application checks a password here.
app.get("/", (req, res) => res.send(page(req.session.user)));
app.post("/login", express.urlencoded(), (req, res) => {
  req.session.user = req.body.name;
  res.redirect("/");
});
app.post("/logout", async (req, res) => {
  const { user } = req.session;
  await new Promise((done) => req.session.destroy(done));
  await disconnect(user); // after the session: a client that returns at once finds none
  res.redirect("/");
});

/** Closes all sockets of a user, and voids the cached answers for them. */
async function disconnect(user) {
  const headers = { authorization: `Bearer ${process.env.SIMURGH_API_TOKEN}` };
  const body = JSON.stringify({ user });
  const response = await fetch(`${SIMURGH}/api/disconnect`, { method: "POST", headers, body });
  if (!response.ok) throw new Error(`disconnect: ${response.status} ${await response.text()}`);
}

// Questions of Simurgh. The signature covers the bytes of the body, so they stay raw.
const questions = express.Router();
questions.use(express.raw({ type: "*/*" }), (req, res, next) => {
  try {
    req.ask = webhook.verify(req.body, req.headers).data;
  } catch (error) {
    return res.status(400).send(error.message);
  }
  next();
});

questions.post("/connect", (req, res) => {
  const { user } = req.session; // the session of the browser: Simurgh forwards its cookie
  if (!user) return res.status(401).json({ reason: "please log in" });
  res.json({ user, claims: { staff: STAFF.includes(user) }, cache_for: 600 });
});

questions.post("/join", (req, res) => {
  const { topic, claims } = req.ask;
  if (topic === "rooms:staff" && !claims.staff) {
    return res.status(403).json({ reason: "staff only" });
  }
  res.json({ reply: { title: topic } });
});

questions.post("/message", (req, res) => {
  const { user, payload } = req.ask;
  if (payload.from && payload.from !== user) {
    return res.status(403).json({ reason: `you are ${user}` });
  }
  res.json({ payload: { from: user, body: String(payload.body).slice(0, 500) } });
});

app.use("/simurgh", questions);
const server = app.listen(process.env.PORT ?? 3000, "127.0.0.1", () => {
  console.log(`Open http://127.0.0.1:${server.address().port}/`);
});
