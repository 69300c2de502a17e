//! Writes steps, one on each line, with inner steps indented.

use std::time::Duration;

use super::answer::{ACTIONS, PRESENCE_LISTS};
use super::steps::END;
use super::tables::PROTOCOLS;
use super::template::{is_plain, print, quoted};
use super::write::{Keys, list, named, target_name, text, time, word};
use crate::{
    Act, Action, Answer, AnswerRule, Bound, Capture, Check, Compare, Condition, Connect, Find, For,
    ForEach, FrameOut, Http, HttpAuth, Matcher, Message, Push, Receive, Repeat, Reply, Scenario,
    Set, Step, Switch, Template, Think, Value, VarId,
};

pub(super) fn steps(steps: &[Step], depth: usize, scenario: &Scenario) -> String {
    let indent = "  ".repeat(depth);
    let mut out = "[\n".to_owned();
    for step in steps {
        let mut keys = Keys::new(scenario, depth);
        keys.act(&step.act);
        out.push_str(&format!("{indent}  {},\n", keys.inline()));
    }
    out.push_str(&indent);
    out.push(']');
    out
}

/// A step on one line, without inner steps, headers, cookies and credentials.
pub(crate) fn outline(act: &Act, scenario: &Scenario) -> String {
    let mut keys = Keys::new(scenario, 0);
    keys.is_outline = true;
    keys.act(act);
    keys.inline()
}

/// The frames that a matcher takes.
pub(crate) fn matcher(matcher: &Matcher, scenario: &Scenario) -> String {
    Keys::new(scenario, 0).matcher(matcher)
}

impl Keys<'_> {
    fn template(&self, template: &Template) -> String {
        text(&print(template, self.scenario))
    }

    fn var(&self, var: VarId) -> &str {
        self.scenario.vars.get(usize::from(var.0)).map_or("", String::as_str)
    }

    fn steps(&mut self, inner: &[Step]) {
        if !self.is_outline {
            self.key("steps", steps(inner, self.depth + 1, self.scenario));
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Connect(connect) => self.connect(connect),
            Act::Send(message) => self.message("send", message),
            Act::Raw(message) => self.message("raw", message),
            Act::Wait(wait) => {
                self.key("wait", self.matcher(&wait.matcher));
                self.answer(&wait.answer);
            }
            Act::Receive(receive) => self.receive(receive),
            Act::Think(think) => self.key("think", self.think(*think)),
            Act::Join(join) => self.channel("join", join),
            Act::Push(push) => self.push(push),
            Act::Leave(leave) => self.channel("leave", leave),
            Act::Http(http) => self.http(http),
            Act::Close { code: 1000 } => self.key("close", "true"),
            Act::Close { code } => self.key("close", code.to_string()),
            Act::Set(set) => self.set(set),
            Act::For(each) => self.for_(each),
            Act::ForEach(each) => self.each(each),
            Act::Repeat(repeat) => self.repeat(repeat),
            Act::If { condition, steps } => {
                self.key("if", self.condition(condition));
                self.steps(steps);
            }
            Act::Transaction { name, steps } => {
                self.key("transaction", text(name));
                self.steps(steps);
            }
            Act::Switch(switch) => self.switch(switch),
            Act::Gather { users, timeout } => {
                self.key("gather", users.to_string());
                self.optional("timeout", timeout.map(time));
            }
            Act::InteractionSend { id } => self.key("mark", text(id)),
            Act::InteractionReceive { id } => self.key("measure", text(id)),
            Act::WaitServer => self.key("wait_server", "true"),
            Act::Abort => self.key("abort", text("user")),
            Act::AbortRun => self.key("abort", text("run")),
        }
    }

    fn connect(&mut self, connect: &Connect) {
        self.key("connect", self.template(&connect.path));
        self.optional("origin", connect.origin.as_ref().map(|origin| self.template(origin)));
        let offered = &connect.subprotocols;
        if !offered.is_empty() {
            self.key("subprotocols", list(offered.iter().map(|name| text(name))));
        }
        self.templates("headers", &connect.headers);
        self.answer(&connect.answer);
    }

    fn templates(&mut self, key: &str, values: &[(String, Template)]) {
        if !values.is_empty() && !self.is_outline {
            let values: Vec<_> =
                values.iter().map(|(name, value)| (name.as_str(), self.template(value))).collect();
            self.key(key, named(&values));
        }
    }

    fn message(&mut self, verb: &str, message: &Message) {
        self.key(verb, self.template(&message.data));
        self.flag("binary", message.binary, false);
        match &message.reply {
            Reply::None => {}
            Reply::First => self.key("reply", "true"),
            Reply::Match(matcher) => self.key("reply", self.matcher(matcher)),
        }
        self.answer(&message.answer);
    }

    fn matcher(&self, matcher: &Matcher) -> String {
        let mut table = self.table();
        match matcher {
            Matcher::Any => return text("any"),
            Matcher::Is(whole) => table.key("is", self.template(whole)),
            Matcher::Contains(part) => table.key("contains", self.template(part)),
            Matcher::Regex(regex) => table.key("regex", self.template(regex)),
            Matcher::Json { path, is } => {
                table.key("json", text(path));
                table.key("is", self.template(is));
            }
            Matcher::Event { topic, event } => {
                table.key("event", self.template(event));
                table.optional("topic", topic.as_ref().map(|topic| self.template(topic)));
            }
            Matcher::Presence { topic, list, key } => {
                table.key("presence", text(word(&PRESENCE_LISTS, *list)));
                table.key("key", self.template(key));
                table.optional("topic", topic.as_ref().map(|topic| self.template(topic)));
            }
        }
        table.inline()
    }

    /// A rule for frames of the server.
    pub(super) fn rule(&self, rule: &AnswerRule) -> String {
        let mut table = self.table();
        table.key("when", self.matcher(&rule.when));
        table.frame_out(&rule.send);
        table.inline()
    }

    pub(super) fn frame_out(&mut self, frame: &FrameOut) {
        self.key("send", self.template(&frame.data));
        self.flag("binary", frame.binary, false);
    }

    fn receive(&mut self, receive: &Receive) {
        let time = receive.time.map_or_else(|| text(END), |time| self.think(time));
        self.key("receive", time);
        self.optional("count", receive.count.map(|count| count.to_string()));
        self.optional("match", receive.matcher.as_ref().map(|matcher| self.matcher(matcher)));
    }

    fn think(&self, think: Think) -> String {
        match think {
            Think::Constant(constant) => time(constant),
            Think::Uniform(from, to) => format!("[{}, {}]", time(from), time(to)),
            Think::Exponential(mean) => format!("{{ mean = {} }}", time(mean)),
            Think::Var(var, random) => {
                let random = if random { ", random = true" } else { "" };
                format!("{{ seconds = {}{random} }}", text(self.var(var)))
            }
        }
    }

    fn push(&mut self, push: &Push) {
        self.key("push", self.template(&push.event));
        self.key("topic", self.template(&push.topic));
        self.channel_rest(push);
    }

    fn channel(&mut self, verb: &str, push: &Push) {
        self.key(verb, self.template(&push.topic));
        self.channel_rest(push);
    }

    fn channel_rest(&mut self, push: &Push) {
        let payload = print(&push.payload, self.scenario);
        if payload != "{}" {
            self.key("payload", text(&payload));
        }
        self.flag("binary", push.binary, false);
        match push.status.as_deref() {
            Some("ok") => {}
            Some(status) => self.key("status", text(status)),
            None => self.key("status", text("any")),
        }
        self.flag("reply", push.await_reply, true);
        self.optional("presence", push.presence.as_ref().map(|key| self.template(key)));
        self.answer(&push.answer);
    }

    fn http(&mut self, http: &Http) {
        let usual = ["get", "post", "put", "patch", "delete", "head"];
        let is_it = |verb: &&str| verb.to_ascii_uppercase() == http.method;
        let verb = usual.into_iter().find(is_it).unwrap_or("request");
        self.key(verb, self.template(&http.url));
        if verb == "request" {
            self.key("method", text(&http.method));
        }
        self.optional("version", http.version_1_0.then(|| text("1.0")));
        self.templates("headers", &http.headers);
        self.optional("body", http.body.as_ref().map(|body| self.template(body)));
        self.templates("cookies", &http.cookies);
        let auth = http.auth.as_ref().filter(|_| !self.is_outline);
        self.optional("auth", auth.map(|auth| self.auth(auth)));
        match http.status.as_slice() {
            [] => {}
            [one] => self.key("status", one.to_string()),
            status => self.key("status", list(status.iter().map(u16::to_string))),
        }
        self.answer(&http.answer);
    }

    fn auth(&self, auth: &HttpAuth) -> String {
        let mut table = self.table();
        table.key("user", self.template(&auth.user));
        table.key("password", self.template(&auth.password));
        table.flag("digest", auth.digest, false);
        let template = |template: &Option<Template>| template.as_ref().map(|t| self.template(t));
        table.optional("realm", template(&auth.realm));
        table.optional("nonce", template(&auth.nonce));
        table.optional("opaque", template(&auth.opaque));
        table.optional("qop", auth.qop.as_deref().map(text));
        table.inline()
    }

    fn set(&mut self, set: &Set) {
        match set.vars.as_slice() {
            [var] => self.key("set", text(self.var(*var))),
            vars => self.key("set", list(vars.iter().map(|var| text(self.var(*var))))),
        }
        match &set.value {
            Value::Template(template) => self.key("value", self.template(template)),
            Value::Row { file, delimiter, random } => {
                let file = self.scenario.files.get(usize::from(*file));
                self.key("row", text(file.map_or("", |file| &file.name)));
                self.optional("delimiter", (delimiter != ";").then(|| text(delimiter)));
                self.flag("random", *random, false);
            }
            Value::Json { from, path } => {
                self.key("from", text(self.var(*from)));
                self.key("json", text(path));
            }
            Value::Target => self.key("target", "true"),
        }
    }

    fn for_(&mut self, each: &For) {
        let to = match each.to {
            Bound::Endless => text("forever"),
            bound => self.bound(bound),
        };
        self.key("loop", to);
        self.optional("counter", each.var.map(|var| text(self.var(var))));
        if each.from != Bound::Number(1) {
            self.key("from", self.bound(each.from));
        }
        if each.step != 1 {
            self.key("step", each.step.to_string());
        }
        self.optional("every", each.every.map(time));
        self.flag("at_least_once", each.at_least_once, false);
        self.steps(&each.steps);
    }

    fn bound(&self, bound: Bound) -> String {
        match bound {
            Bound::Number(number) => number.to_string(),
            Bound::Var(var) => format!("{{ var = {} }}", text(self.var(var))),
            // Not a valid start of a loop; the parser refuses it.
            Bound::Endless => text("forever"),
        }
    }

    fn each(&mut self, each: &ForEach) {
        self.key("each", text(self.var(each.var)));
        self.key("in", text(self.var(each.list)));
        self.optional("include", each.include.as_deref().map(text));
        self.optional("exclude", each.exclude.as_deref().map(text));
        self.steps(&each.steps);
    }

    fn repeat(&mut self, repeat: &Repeat) {
        self.key("repeat", repeat.times_max.to_string());
        self.optional("name", (!repeat.name.is_empty()).then(|| text(&repeat.name)));
        let key = if repeat.until { "until" } else { "while" };
        self.key(key, self.condition(&repeat.condition));
        self.steps(&repeat.steps);
    }

    fn condition(&self, condition: &Condition) -> String {
        let name = self.var(condition.var);
        let name = if is_plain(name) { name.to_owned() } else { quoted(name) };
        let element = condition.element.map(|at| format!("[{at}]")).unwrap_or_default();
        let sign = word(&Compare::SIGNS, condition.compare);
        let value = print(&condition.value, self.scenario);
        // Blanks around a value are dropped, but not within empty quotes.
        let guard = if value.trim() == value { "" } else { "{{\"\"}}" };
        text(format!("{name}{element} {sign} {guard}{value}{guard}").trim_end())
    }

    fn switch(&mut self, switch: &Switch) {
        self.key("switch", target_name(switch.target, self.scenario));
        self.key("protocol", text(word(&PROTOCOLS, switch.dialect)));
        self.flag("store", switch.store, false);
        self.flag("restore", switch.restore, false);
    }

    fn answer(&mut self, answer: &Answer) {
        self.optional("timeout", answer.timeout.map(time));
        if !answer.captures.is_empty() {
            let captures = answer.captures.iter();
            let captures: Vec<_> =
                captures.map(|one| (self.var(one.var), self.capture(one))).collect();
            let captures = named(&captures);
            self.key("capture", captures);
        }
        match answer.checks.as_slice() {
            [] => {}
            [one] => self.key("check", self.check(one)),
            checks => self.key("check", list(checks.iter().map(|check| self.check(check)))),
        }
    }

    fn capture(&self, capture: &Capture) -> String {
        let (kind, place) = match &capture.from {
            Find::Json(path) if !capture.decode_html => return text(path),
            Find::Json(path) => ("json", path),
            Find::Regex(regex) => ("regex", regex),
            Find::Header(name) => ("header", name),
            Find::FormField(name) => ("form_field", name),
        };
        let mut table = self.table();
        table.key(kind, text(place));
        table.flag("decode_html", capture.decode_html, false);
        table.inline()
    }

    fn check(&self, check: &Check) -> String {
        let mut table = self.table();
        table.key("pattern", self.template(&check.pattern));
        table.optional("name", (check.name != "-").then(|| text(&check.name)));
        table.optional("when", check.when_found.then(|| text("found")));
        match check.action {
            Action::Log => {}
            Action::Restart { times_max } => {
                table.key("do", format!("{{ restart = {times_max} }}"))
            }
            Action::Loop { times_max, sleep, back } => {
                table.key("do", loop_(times_max, sleep, back))
            }
            action => table.key("do", text(word(&ACTIONS, action))),
        }
        table.flag("skip_headers", check.skip_headers, false);
        table.inline()
    }
}

fn loop_(times_max: u32, sleep: Duration, back: u32) -> String {
    let back = if back > 0 { format!(", back = {back}") } else { String::new() };
    format!("{{ loop = {times_max}, sleep = {}{back} }}", time(sleep))
}
