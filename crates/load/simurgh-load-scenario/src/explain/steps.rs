//! Describes steps in words.

use std::fmt::Write;
use std::time::Duration;

use simurgh_load_client::http::Url;
use simurgh_text::format;

use super::plan;
use crate::toml::{print_template, word};
use crate::{
    Act, Bound, Compare, Condition, Dialect, For, Http, Matcher, Message, PresenceList, Receive,
    Reply, Scenario, Set, Step, Switch, Template, Think, Value, VarId, Vsn,
};

const SHOWN: usize = 60;

pub(super) struct Steps<'s> {
    pub(super) scenario: &'s Scenario,
    pub(super) out: &'s mut String,
}

impl Steps<'_> {
    pub(super) fn write(&mut self, steps: &[Step], depth: usize) {
        for step in steps {
            let indent = "  ".repeat(depth);
            let line = if step.line > 0 { format!("line {:<4}", step.line) } else { String::new() };
            let words = self.act(&step.act);
            let _ = writeln!(self.out, "{indent}{line}{words}");
            self.write(step.act.steps(), depth + 1);
        }
    }

    fn act(&self, act: &Act) -> String {
        match act {
            Act::Connect(connect) => format!("connects to {}", self.text(&connect.path)),
            Act::Send(message) => self.message("sends", message),
            Act::Raw(message) => self.message("sends over plain TCP", message),
            Act::Wait(wait) => format!("waits for {}", self.matcher(&wait.matcher)),
            Act::Receive(receive) => self.receive(receive),
            Act::Think(time) => format!("thinks {}", self.think(*time)),
            Act::Join(join) => {
                let wait = if join.await_reply { "" } else { ", without waiting for the reply" };
                format!("joins {}{wait}", self.text(&join.topic))
            }
            Act::Push(push) => {
                let wait = if push.await_reply { " and waits for the reply" } else { "" };
                let (event, topic) = (self.text(&push.event), self.text(&push.topic));
                format!("pushes {event} to {topic}: {}{wait}", self.text(&push.payload))
            }
            Act::Leave(leave) => format!("leaves {}", self.text(&leave.topic)),
            Act::Http(http) => self.http(http),
            Act::Close { code } => format!("closes with {code} and waits for the server's close"),
            Act::Set(set) => self.set(set),
            Act::For(each) => self.rounds(each),
            Act::ForEach(each) => {
                format!("for each {} of {}:", self.var(each.var), self.var(each.list))
            }
            Act::Repeat(repeat) => {
                let word = if repeat.until { "until" } else { "while" };
                let condition = self.condition(&repeat.condition);
                format!("{word} {condition}, {} times at most:", count(repeat.times_max as f64))
            }
            Act::If { condition, .. } => format!("if {}:", self.condition(condition)),
            Act::Transaction { name, .. } => format!("timed as {name}:"),
            Act::Switch(switch) => self.switch(switch),
            Act::Gather { users, timeout } => {
                let end = timeout.map(|end| format!(", for {} at most", self.time(end)));
                let users = of(*users as f64, "user");
                format!("waits until {users} have come here{}", end.unwrap_or_default())
            }
            Act::InteractionSend { id } => format!("marks the moment {id}"),
            Act::InteractionReceive { id } => format!("records the time since the moment {id}"),
            Act::WaitServer => "waits for any frame from the server".to_owned(),
            Act::Abort => "ends".to_owned(),
            Act::AbortRun => "ends the whole run".to_owned(),
        }
    }

    pub(super) fn text(&self, template: &Template) -> String {
        shortened(&print_template(template, self.scenario))
    }

    fn var(&self, var: VarId) -> &str {
        self.scenario.vars.get(usize::from(var.0)).map_or("?", String::as_str)
    }

    fn time(&self, duration: Duration) -> String {
        format::time(duration.as_secs_f64())
    }

    fn message(&self, verb: &str, message: &Message) -> String {
        let kind = if message.binary { " (binary)" } else { "" };
        let wait = match &message.reply {
            Reply::None => String::new(),
            Reply::First => " and waits for a frame".to_owned(),
            Reply::Match(matcher) => format!(" and waits for {}", self.matcher(matcher)),
        };
        format!("{verb}{kind} {}{wait}", self.text(&message.data))
    }

    pub(super) fn matcher(&self, matcher: &Matcher) -> String {
        match matcher {
            Matcher::Any => "any frame".to_owned(),
            Matcher::Is(text) => format!("the frame {}", self.text(text)),
            Matcher::Contains(text) => format!("a frame with {}", self.text(text)),
            Matcher::Regex(regex) => format!("a frame that /{}/ matches", self.text(regex)),
            Matcher::Json { path, is } => {
                format!("a frame whose {path} is {}", self.text(is))
            }
            Matcher::Event { topic: Some(topic), event } => {
                format!("the event {} of {}", self.text(event), self.text(topic))
            }
            Matcher::Event { topic: None, event } => format!("the event {}", self.text(event)),
            Matcher::Presence { topic, list, key } => {
                let of = topic.as_ref().map(|topic| format!(" of {}", self.text(topic)));
                let (key, of) = (self.text(key), of.unwrap_or_default());
                match list {
                    PresenceList::State => format!("a presence_state{of} with {key}"),
                    PresenceList::Joins => format!("a presence_diff{of} in which {key} joins"),
                    PresenceList::Leaves => format!("a presence_diff{of} in which {key} leaves"),
                }
            }
        }
    }

    fn receive(&self, receive: &Receive) -> String {
        let time = match receive.time {
            Some(time) => format!("for {}", self.think(time)),
            None => "to the end of the run".to_owned(),
        };
        let which = receive.matcher.as_ref().map_or("any frame".to_owned(), |m| self.matcher(m));
        match receive.count {
            Some(times) => {
                format!("takes what comes {time}, or until {} times {which}", count(times as f64))
            }
            None => format!("takes what comes {time}"),
        }
    }

    fn think(&self, think: Think) -> String {
        match think {
            Think::Constant(time) => self.time(time),
            Think::Uniform(from, to) => format!("{} to {}", self.time(from), self.time(to)),
            Think::Exponential(mean) => format!("{} on average (exponential)", self.time(mean)),
            Think::Var(var, false) => format!("{} seconds", self.var(var)),
            Think::Var(var, true) => format!("{} seconds on average (exponential)", self.var(var)),
        }
    }

    fn http(&self, http: &Http) -> String {
        let url = print_template(&http.url, self.scenario);
        format!("requests {} {}", http.method, shortened(&Url::without_credentials(&url)))
    }

    fn set(&self, set: &Set) -> String {
        let names: Vec<_> = set.vars.iter().map(|var| self.var(*var)).collect();
        let names = names.join(", ");
        match &set.value {
            Value::Template(value) => format!("sets {names} to {}", self.text(value)),
            Value::Row { file, random, .. } => {
                let file = self.scenario.files.get(usize::from(*file));
                let which = if *random { "any row" } else { "the next row" };
                format!("sets {names} from {which} of {}", file.map_or("?", |file| &file.name))
            }
            Value::Json { from, path } => {
                format!("sets {names} to {path} of {}", self.var(*from))
            }
            Value::Target => format!("sets {names} to the server's host and port"),
        }
    }

    fn rounds(&self, each: &For) -> String {
        let bound = |bound: Bound| match bound {
            Bound::Number(number) => number.to_string(),
            Bound::Var(var) => self.var(var).to_owned(),
            Bound::Endless => "without end".to_owned(),
        };
        let every = each.every.map(|every| format!(", one every {}", self.time(every)));
        let every = every.unwrap_or_default();
        match (each.from, each.to, each.var) {
            (_, Bound::Endless, _) => format!("again and again{every}:"),
            (Bound::Number(_), Bound::Number(_), None) => {
                let rounds = plan::rounds(each.from, each.to, each.step);
                format!("{}{every}:", of(rounds, "time"))
            }
            (from, to, var) => {
                let name = var.map_or("a counter", |var| self.var(var));
                format!("for {name} from {} to {}{every}:", bound(from), bound(to))
            }
        }
    }

    fn condition(&self, condition: &Condition) -> String {
        let sign = word(&Compare::SIGNS, condition.compare);
        let element = condition.element.map(|at| format!("[{at}]")).unwrap_or_default();
        let name = self.var(condition.var);
        format!("{name}{element} {sign} {}", self.text(&condition.value))
    }

    fn switch(&self, switch: &Switch) -> String {
        let target = self.scenario.targets.get(switch.target);
        let host =
            target.map_or_else(|| "?".to_owned(), |one| format!("{} ({})", one.host, one.address));
        let how = match (switch.store, switch.restore) {
            (true, _) => ", keeping the connection",
            (false, true) => ", with the connection that was kept",
            (false, false) => "",
        };
        format!("goes on with {host}, {}{how}", dialect(switch.dialect))
    }
}

pub(super) fn dialect(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Raw => "plain frames",
        Dialect::Phoenix(Vsn::V1) => "Phoenix V1",
        Dialect::Phoenix(Vsn::V2) => "Phoenix V2",
        Dialect::Tsung => "as Tsung does it",
    }
}

pub(super) fn count(number: f64) -> String {
    format::number(number.max(0.0).round())
}

pub(super) fn of(number: f64, thing: &str) -> String {
    let number = count(number);
    match (number.as_str(), thing.ends_with('s')) {
        ("1", _) => format!("1 {thing}"),
        (_, true) => format!("{number} {thing}es"),
        (_, false) => format!("{number} {thing}s"),
    }
}

fn shortened(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
