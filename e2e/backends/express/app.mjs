// An application of Express that answers all questions, for the tests.

import express from "express";
import session from "express-session";
import { Webhook } from "standardwebhooks";

const app = express();
const webhook = new Webhook(process.env.HOOK_SECRET);
const seen = { connect: 0, join: 0, message: 0 };

app.use(session({ secret: "of a test", resave: false, saveUninitialized: false }));
app.get("/login/:name", (req, res) => {
  req.session.user = req.params.name;
  res.send("hello");
});
app.get("/seen", (_req, res) => res.json(seen));

app.use("/simurgh", express.raw({ type: "*/*" }), (req, res, next) => {
  try {
    req.ask = webhook.verify(req.body, req.headers).data;
  } catch (error) {
    return res.status(400).send(error.message);
  }
  seen[req.path.slice(1)] += 1;
  next();
});

app.post("/simurgh/connect", (req, res) => {
  const { user } = req.session;
  if (!user) return res.status(401).json({ reason: "please log in" });
  const cached = "cache" in req.ask.params ? { cache_for: 60 } : {};
  res.json({ user, claims: { staff: user === "ada" }, ...cached });
});

app.post("/simurgh/join", ({ ask }, res) => {
  if (ask.topic === "rooms:private") return res.status(403).json({ reason: "private" });
  const role = ask.claims.staff ? "owner" : "guest";
  res.json({ reply: { title: ask.topic }, assigns: { role } });
});

app.post("/simurgh/message", ({ ask }, res) => {
  const { user, topic, assigns: { role }, payload: { body } } = ask;
  if (body === "rude") return res.status(403).json({ reason: "be polite" });
  if (body === "quiet") return res.json({ broadcast: false, reply: { only: "you" } });
  const notice = { topic, event: "notice", payload: { from: "the application" } };
  const messages = body === "twice" ? [notice] : [];
  res.json({ payload: { from: user, role, body }, reply: { stored: 1 }, messages });
});

const server = app.listen(process.env.PORT, "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
