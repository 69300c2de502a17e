//! Parses the verb of a step.

use simurgh_text::toml::{Entry, Table};

use super::read::Reader;
use super::steps::{END, Topic};
use super::tables::PROTOCOLS;
use super::template::Names;
use crate::{
    Act, Bound, Connect, For, ForEach, Http, HttpAuth, Message, Push, Receive, Repeat, Reply, Set,
    Switch, Template, Value, Wait,
};

pub(super) type Verb = fn(&mut StepReader<'_, '_, '_>, &str) -> Option<Act>;

pub(super) const VERBS: [(&str, Verb); 32] = [
    ("connect", |step, _| step.connect()),
    ("send", |step, _| step.message().map(Act::Send)),
    ("raw", |step, _| step.message().map(Act::Raw)),
    ("wait", |step, _| {
        let (matcher, answer) = (step.reader.matcher(step.value), step.answer());
        Some(Act::Wait(Wait { matcher: matcher?, answer }))
    }),
    ("receive", |step, _| step.receive()),
    ("think", |step, _| step.reader.think(step.value).map(Act::Think)),
    ("join", |step, _| {
        let join = step.channel(step.value)?;
        *step.topic = Some(join.topic.clone());
        Some(Act::Join(join))
    }),
    ("push", |step, _| step.push()),
    ("leave", |step, _| step.channel(step.value).map(Act::Leave)),
    ("get", method),
    ("post", method),
    ("put", method),
    ("patch", method),
    ("delete", method),
    ("head", method),
    ("request", |step, _| {
        let method = step.table.need("method", "the method of the request");
        step.http(method.and_then(|it| it.text("the method of the request")))
    }),
    ("close", |step, _| step.close()),
    ("set", |step, _| step.set()),
    ("loop", |step, _| step.loop_()),
    ("each", |step, _| step.each()),
    ("repeat", |step, _| step.repeat()),
    ("if", |step, _| {
        let (condition, steps) = (step.reader.condition(step.value), step.steps());
        Some(Act::If { condition: condition?, steps })
    }),
    ("transaction", |step, _| {
        let (name, steps) = (step.name(), step.steps());
        Some(Act::Transaction { name: name?, steps })
    }),
    ("switch", |step, _| step.switch()),
    ("gather", |step, _| {
        let timeout = step.table.time("timeout");
        Some(Act::Gather { users: step.value.count(1)?, timeout })
    }),
    ("mark", |step, _| step.name().map(|id| Act::InteractionSend { id })),
    ("measure", |step, _| step.name().map(|id| Act::InteractionReceive { id })),
    ("wait_server", |step, _| yes(step.value, Act::WaitServer)),
    ("abort", |step, _| {
        let is_run = step.value.word(&[("user", false), ("run", true)])?;
        Some(if is_run { Act::AbortRun } else { Act::Abort })
    }),
    ("options", method),
    ("purge", method),
    ("trace", method),
];

pub(super) struct StepReader<'r, 'p, 'i> {
    pub(super) reader: &'r Reader<'p>,
    pub(super) value: &'r Entry<'p, 'i>,
    pub(super) table: &'r Table<'p, 'i>,
    pub(super) topic: &'r mut Topic,
}

impl StepReader<'_, '_, '_> {
    fn name(&self) -> Option<String> {
        self.value.text("a name").map(str::to_owned)
    }

    fn answer(&self) -> crate::Answer {
        self.reader.answer(self.table)
    }

    fn steps(&mut self) -> Vec<crate::Step> {
        self.reader.inner(self.table, self.topic)
    }

    fn flag(&self, key: &'static str, default: bool) -> bool {
        self.table.bool(key).unwrap_or(default)
    }

    fn template(&self, key: &'static str) -> Option<Template> {
        self.reader.template_at(self.table, key)
    }

    fn templates(&self, key: &'static str) -> Vec<(String, Template)> {
        let named = self.table.get(key).map(|entry| entry.named()).unwrap_or_default();
        named.iter().filter_map(|one| Some((one.key.clone(), self.reader.template(one)?))).collect()
    }

    fn connect(&self) -> Option<Act> {
        let offered = self.table.all("subprotocols");
        let subprotocols = offered.iter().filter_map(subprotocols).flatten().collect();
        let headers = self.templates("headers");
        let (origin, answer) = (self.template("origin"), self.answer());
        let path = self.reader.template(self.value)?;
        Some(Act::Connect(Connect { path, origin, subprotocols, headers, answer }))
    }

    fn message(&self) -> Option<Message> {
        let reply = match self.table.get("reply") {
            None => Some(Reply::None),
            Some(entry) if entry.is_table() || entry.as_str().is_some() => {
                self.reader.matcher(&entry).map(Reply::Match)
            }
            Some(entry) => entry.bool().map(|first| if first { Reply::First } else { Reply::None }),
        };
        let (binary, answer) = (self.flag("binary", false), self.answer());
        Some(Message { data: self.reader.template(self.value)?, binary, reply: reply?, answer })
    }

    fn receive(&self) -> Option<Act> {
        let count = self.table.count("count", 1);
        let matcher = self.table.get("match").and_then(|entry| self.reader.matcher(&entry));
        let time = match self.value.as_str() {
            Some(END) => None,
            _ => Some(self.reader.think(self.value)?),
        };
        Some(Act::Receive(Receive { time, count, matcher }))
    }

    fn push(&self) -> Option<Act> {
        if let Some(topic) = self.table.get("topic") {
            let push = self.channel(&topic);
            let event = self.reader.template(self.value)?;
            return Some(Act::Push(Push { event, ..push? }));
        }
        let push = self.channel(self.value)?;
        let Some(topic) = self.topic.clone() else {
            self.value.wrong("goes to no topic", "join one before, or add topic = \"…\"");
            return None;
        };
        Some(Act::Push(Push { event: push.topic, topic, ..push }))
    }

    fn channel(&self, topic: &Entry<'_, '_>) -> Option<Push> {
        let binary = self.flag("binary", false);
        let payload = self.reader.payload(self.table, binary);
        let status = match self.table.get("status") {
            None => Some("ok".to_owned()),
            Some(entry) => {
                let status = entry.text("a status such as \"ok\", or \"any\"");
                status.filter(|status| *status != "any").map(str::to_owned)
            }
        };
        let (await_reply, answer) = (self.flag("reply", true), self.answer());
        let (presence, event) = (self.template("presence"), Template::default());
        let (topic, payload) = (self.reader.template(topic)?, payload?);
        Some(Push { topic, event, payload, binary, await_reply, status, presence, answer })
    }

    fn http(&self, method: Option<&str>) -> Option<Act> {
        let version = self.table.word("version", &[("1.0", true), ("1.1", false)]);
        let (headers, cookies) = (self.templates("headers"), self.templates("cookies"));
        let body = self.template("body");
        let auth = self.table.get("auth").and_then(|entry| self.http_auth(&entry));
        let status = self.table.all("status").into_iter();
        let status = status.filter_map(|one| u16::try_from(one.integer(100..=999)?).ok()).collect();
        let answer = self.answer();
        Some(Act::Http(Box::new(Http {
            method: method?.to_owned(),
            url: self.reader.template(self.value)?,
            version_1_0: version.unwrap_or(false),
            headers,
            body,
            cookies,
            auth,
            status,
            answer,
        })))
    }

    fn http_auth(&self, entry: &Entry<'_, '_>) -> Option<HttpAuth> {
        let table = entry.table("auth")?;
        let needed = |key, takes| {
            let entry = table.need(key, takes);
            entry.and_then(|entry| self.reader.template(&entry)).unwrap_or_default()
        };
        let (user, password) = (needed("user", "a name"), needed("password", "a text"));
        let text = |key| self.reader.template_at(&table, key);
        let auth = HttpAuth {
            digest: table.bool("digest").unwrap_or(false),
            user,
            password,
            realm: text("realm"),
            nonce: text("nonce"),
            opaque: text("opaque"),
            qop: table.text("qop", "a text").map(str::to_owned),
        };
        table.finish();
        Some(auth)
    }

    fn close(&self) -> Option<Act> {
        if self.value.value().as_bool().is_some() {
            return yes(self.value, Act::Close { code: 1000 });
        }
        let code = self.value.integer(1000..=4999)?;
        u16::try_from(code).ok().map(|code| Act::Close { code })
    }

    fn set(&self) -> Option<Act> {
        let (value, table, reader) = (self.value, self.table, self.reader);
        let vars = value.one_or_more();
        let vars = vars.iter().filter_map(|entry| reader.var_of(entry)).collect();
        let given = ["value", "row", "json", "target"].map(|key| table.has(key));
        let (text, row, from) = (table.get("value"), table.get("row"), table.get("from"));
        let (json, target) = (table.get("json"), table.get("target"));
        let delimiter = table.text("delimiter", "a text");
        let random = self.flag("random", false);
        let found = match given {
            [true, false, false, false] => Value::Template(reader.template(&text?)?),
            [false, true, false, false] => {
                let row = row?;
                let file = reader.file(row.text("the name of a file in [files]")?);
                let file = row.checked(file, "")?;
                Value::Row { file, delimiter: delimiter.unwrap_or(";").to_owned(), random }
            }
            [false, false, true, false] => {
                let Some(from) = from else {
                    value.wrong("json needs a variable to look into", "add from = \"variable\"");
                    return None;
                };
                let path = json?.text("a JSON path")?.to_owned();
                Value::Json { from: reader.var_of(&from)?, path }
            }
            [false, false, false, true] => yes(&target?, Value::Target)?,
            _ => {
                value.wrong("needs one of value, row, json and target", "");
                return None;
            }
        };
        Some(Act::Set(Set { vars, value: found }))
    }

    fn loop_(&mut self) -> Option<Act> {
        let to = match self.value.as_str() {
            Some("forever") => Some(Bound::Endless),
            _ => self.bound(self.value),
        };
        let from = match self.table.get("from") {
            Some(entry) => self.bound(&entry),
            None => Some(Bound::Number(1)),
        };
        let step = self.table.get("step").and_then(|entry| entry.integer(i64::MIN..=i64::MAX));
        let var = self.table.get("counter").and_then(|entry| self.reader.var_of(&entry));
        let every = self.table.get("every").and_then(|entry| entry.some_time());
        let (at_least_once, steps) = (self.flag("at_least_once", false), self.steps());
        let (from, to, step) = (from?, to?, step.unwrap_or(1));
        Some(Act::For(For { var, from, to, step, every, at_least_once, steps }))
    }

    /// A number, or `{ var = "name" }`.
    fn bound(&self, entry: &Entry<'_, '_>) -> Option<Bound> {
        if !entry.is_table() {
            return entry.integer(i64::MIN..=i64::MAX).map(Bound::Number);
        }
        let table = entry.table("a number in a variable, { var = \"name\" }")?;
        let var = table.need("var", "the name of a variable");
        let var = var.and_then(|entry| self.reader.var_of(&entry));
        table.finish();
        var.map(Bound::Var)
    }

    fn each(&mut self) -> Option<Act> {
        let list = self.table.need("in", "the name of a variable with a list");
        let list = list.and_then(|entry| self.reader.var_of(&entry));
        let regex = |key| self.table.get(key).and_then(|entry| regex(&entry));
        let (include, exclude) = (regex("include"), regex("exclude"));
        let steps = self.steps();
        let var = self.reader.var_of(self.value)?;
        Some(Act::ForEach(ForEach { var, list: list?, include, exclude, steps }))
    }

    fn repeat(&mut self) -> Option<Act> {
        let name = self.table.text("name", "a name").unwrap_or("").to_owned();
        let (go_on, until) = (self.table.get("while"), self.table.get("until"));
        let steps = self.steps();
        let (entry, until) = match (go_on, until) {
            (Some(entry), None) => (entry, false),
            (None, Some(entry)) => (entry, true),
            _ => {
                let help = "such as until = \"status == ok\"";
                self.value.wrong("needs either while or until", help);
                return None;
            }
        };
        let condition = self.reader.condition(&entry);
        let times_max = self.value.count(1)?;
        Some(Act::Repeat(Repeat { name, times_max, steps, condition: condition?, until }))
    }

    fn switch(&self) -> Option<Act> {
        let dialect = self.table.word("protocol", &PROTOCOLS).unwrap_or_default();
        let (store, restore) = (self.flag("store", false), self.flag("restore", false));
        let target = self.reader.target_index(self.value)?;
        Some(Act::Switch(Switch { dialect, target, store, restore }))
    }
}

/// A request whose method is the verb.
fn method(step: &mut StepReader<'_, '_, '_>, verb: &str) -> Option<Act> {
    step.http(Some(&verb.to_ascii_uppercase()))
}

/// `then` for `true`, the only accepted value.
fn yes<T>(value: &Entry<'_, '_>, then: T) -> Option<T> {
    let is_true = value.bool()?;
    if !is_true {
        value.wrong("is false", "leave the step out");
    }
    is_true.then_some(then)
}

/// The names in a text such as `"chat"` or `"a, b"`.
fn subprotocols(entry: &Entry<'_, '_>) -> Option<Vec<String>> {
    let text = entry.text("the names of subprotocols, such as [\"a\", \"b\"] or \"a, b\"")?;
    let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let is_sign = |char: char| char.is_ascii_graphic() && !"()<>@,;:\\\"/[]?={}".contains(char);
    let wrong = names.iter().find(|name| name.is_empty() || !name.chars().all(is_sign));
    if let Some(wrong) = wrong {
        entry.wrong(format_args!("{wrong:?} is no name of a subprotocol"), "such as \"a, b\"");
        return None;
    }
    Some(names)
}

/// A regular expression, which is later checked with those of Tsung's files.
fn regex(entry: &Entry<'_, '_>) -> Option<String> {
    entry.text("a regular expression").map(str::to_owned)
}
