//! What each verb of a step reads.

use super::read::Reader;
use super::steps::{END, Topic};
use super::tables::PROTOCOLS;
use crate::{
    Act, Bound, Connect, Dialect, For, ForEach, Http, HttpAuth, Message, Push, Receive, Repeat,
    Reply, Set, Switch, Template, Value, VarId, Wait,
};
use simurgh_text::toml::{Entry, Table};

/// Reads a step from the verb's value and the whole table.
pub(super) type Verb =
    for<'p, 'i> fn(&Reader<'p>, &Entry<'p, 'i>, &Table<'p, 'i>, &mut Topic) -> Option<Act>;

pub(super) const VERBS: [(&str, Verb); 32] = [
    ("connect", |reader, value, table, _| connect(reader, value, table)),
    ("send", |reader, value, table, _| message(reader, value, table).map(Act::Send)),
    ("raw", |reader, value, table, _| message(reader, value, table).map(Act::Raw)),
    ("wait", |reader, value, table, _| wait(reader, value, table)),
    ("receive", |reader, value, table, _| receive(reader, value, table)),
    ("think", |reader, value, _, _| reader.think(value).map(Act::Think)),
    ("join", join),
    ("push", push),
    ("leave", |reader, value, table, _| channel(reader, table, value).map(Act::Leave)),
    ("get", |reader, value, table, _| http(reader, value, table, Some("GET"))),
    ("post", |reader, value, table, _| http(reader, value, table, Some("POST"))),
    ("put", |reader, value, table, _| http(reader, value, table, Some("PUT"))),
    ("patch", |reader, value, table, _| http(reader, value, table, Some("PATCH"))),
    ("delete", |reader, value, table, _| http(reader, value, table, Some("DELETE"))),
    ("head", |reader, value, table, _| http(reader, value, table, Some("HEAD"))),
    ("request", |reader, value, table, _| http(reader, value, table, None)),
    ("close", |_, value, _, _| close(value)),
    ("set", |reader, value, table, _| set(reader, value, table)),
    ("loop", loop_),
    ("each", each),
    ("repeat", repeat),
    ("if", |reader, value, table, topic| {
        let (condition, steps) = (reader.condition(value), reader.inner(table, topic));
        Some(Act::If { condition: condition?, steps })
    }),
    ("transaction", |reader, value, table, topic| {
        let (name, steps) = (value.text("a name"), reader.inner(table, topic));
        Some(Act::Transaction { name: name?.to_owned(), steps })
    }),
    ("switch", |reader, value, table, _| switch(reader, value, table)),
    ("gather", |_, value, table, _| {
        let timeout = table.time("timeout");
        Some(Act::Gather { users: value.count(1)?, timeout })
    }),
    ("mark", |_, value, _, _| Some(Act::InteractionSend { id: value.text("a name")?.to_owned() })),
    ("measure", |_, value, _, _| {
        Some(Act::InteractionReceive { id: value.text("a name")?.to_owned() })
    }),
    ("wait_server", |_, value, _, _| yes(value).map(|()| Act::WaitServer)),
    ("abort", |_, value, _, _| {
        value.word(&[("user", false), ("run", true)]).map(|run| match run {
            true => Act::AbortRun,
            false => Act::Abort,
        })
    }),
    ("options", |reader, value, table, _| http(reader, value, table, Some("OPTIONS"))),
    ("purge", |reader, value, table, _| http(reader, value, table, Some("PURGE"))),
    ("trace", |reader, value, table, _| http(reader, value, table, Some("TRACE"))),
];

fn connect<'p>(reader: &Reader<'p>, path: &Entry<'p, '_>, table: &Table<'p, '_>) -> Option<Act> {
    let offered = table.all("subprotocols");
    let offered = offered.iter();
    let offered = offered.filter_map(|one| one.text("names of subprotocols").map(str::to_owned));
    let (subprotocols, headers) = (offered.collect(), templates(reader, table, "headers"));
    let origin = table.get("origin").and_then(|entry| reader.template(&entry));
    let answer = reader.answer(table);
    Some(Act::Connect(Connect {
        path: reader.template(path)?,
        origin,
        subprotocols,
        headers,
        answer,
    }))
}

/// Names with templates.
fn templates<'p>(
    reader: &Reader<'p>,
    table: &Table<'p, '_>,
    key: &'static str,
) -> Vec<(String, Template)> {
    let named = table.get(key).map(|entry| entry.named()).unwrap_or_default();
    named.iter().filter_map(|one| Some((one.key.clone(), reader.template(one)?))).collect()
}

fn message<'p>(
    reader: &Reader<'p>,
    data: &Entry<'p, '_>,
    table: &Table<'p, '_>,
) -> Option<Message> {
    let reply = match table.get("reply") {
        None => Some(Reply::None),
        Some(entry) if entry.is_table() || entry.as_str().is_some() => {
            reader.matcher(&entry).map(Reply::Match)
        }
        Some(entry) => entry.bool().map(|first| if first { Reply::First } else { Reply::None }),
    };
    let (binary, answer) = (table.bool("binary").unwrap_or(false), reader.answer(table));
    Some(Message { data: reader.template(data)?, binary, reply: reply?, answer })
}

fn wait<'p>(reader: &Reader<'p>, value: &Entry<'p, '_>, table: &Table<'p, '_>) -> Option<Act> {
    let (matcher, answer) = (reader.matcher(value), reader.answer(table));
    Some(Act::Wait(Wait { matcher: matcher?, answer }))
}

fn receive<'p>(reader: &Reader<'p>, value: &Entry<'p, '_>, table: &Table<'p, '_>) -> Option<Act> {
    let count = table.count("count", 1);
    let matcher = table.get("match").and_then(|entry| reader.matcher(&entry));
    let time = match value.as_str() {
        Some(END) => None,
        _ => Some(reader.think(value)?),
    };
    Some(Act::Receive(Receive { time, count, matcher }))
}

fn join<'p>(
    reader: &Reader<'p>,
    topic: &Entry<'p, '_>,
    table: &Table<'p, '_>,
    last: &mut Topic,
) -> Option<Act> {
    let join = channel(reader, table, topic)?;
    *last = Some(join.topic.clone());
    Some(Act::Join(join))
}

fn push<'p>(
    reader: &Reader<'p>,
    event: &Entry<'p, '_>,
    table: &Table<'p, '_>,
    last: &mut Topic,
) -> Option<Act> {
    let Some(topic) = table.get("topic") else {
        let mut push = channel(reader, table, event)?;
        let Some(topic) = last.clone() else {
            event.wrong("goes to no topic", "join one before, or add topic = \"…\"");
            return None;
        };
        push.event = std::mem::replace(&mut push.topic, topic);
        return Some(Act::Push(push));
    };
    let push = channel(reader, table, &topic);
    let event = reader.template(event)?;
    Some(Act::Push(Push { event, ..push? }))
}

/// What joins, pushes and leaves have in common.
fn channel<'p>(reader: &Reader<'p>, table: &Table<'p, '_>, topic: &Entry<'p, '_>) -> Option<Push> {
    let binary = table.bool("binary").unwrap_or(false);
    let payload = reader.payload(table, binary);
    let status = match table.get("status") {
        None => Some("ok".to_owned()),
        Some(entry) => match entry.text("a status such as \"ok\", or \"any\"") {
            Some("any") => None,
            text => text.map(str::to_owned),
        },
    };
    let (await_reply, answer) = (table.bool("reply").unwrap_or(true), reader.answer(table));
    let presence = table.get("presence").and_then(|entry| reader.template(&entry));
    Some(Push {
        topic: reader.template(topic)?,
        event: Template::default(),
        payload: payload?,
        binary,
        await_reply,
        status,
        presence,
        answer,
    })
}

fn http<'p>(
    reader: &Reader<'p>,
    url: &Entry<'p, '_>,
    table: &Table<'p, '_>,
    method: Option<&str>,
) -> Option<Act> {
    let method = match method {
        Some(method) => Some(method.to_owned()),
        None => table
            .need("method", "the method of the request")
            .and_then(|entry| entry.text("the method of the request").map(str::to_owned)),
    };
    let version = table.word("version", &[("1.0", true), ("1.1", false)]);
    let (headers, cookies) =
        (templates(reader, table, "headers"), templates(reader, table, "cookies"));
    let body = table.get("body").and_then(|entry| reader.template(&entry));
    let auth = table.get("auth").and_then(|entry| http_auth(reader, &entry));
    let status = table.all("status");
    let status = status.iter();
    let status = status.filter_map(|one| one.integer(100..=999));
    let status = status.filter_map(|one| u16::try_from(one).ok()).collect();
    let answer = reader.answer(table);
    Some(Act::Http(Box::new(Http {
        method: method?,
        url: reader.template(url)?,
        version_1_0: version.unwrap_or(false),
        headers,
        body,
        cookies,
        auth,
        status,
        answer,
    })))
}

fn http_auth<'p>(reader: &Reader<'p>, entry: &Entry<'p, '_>) -> Option<HttpAuth> {
    let table = entry.table("auth")?;
    let text = |key| table.get(key).and_then(|entry| reader.template(&entry));
    let (user, password) = (table.need("user", "a name"), table.need("password", "a text"));
    let auth = HttpAuth {
        digest: table.bool("digest").unwrap_or(false),
        user: user.and_then(|entry| reader.template(&entry)).unwrap_or_default(),
        password: password.and_then(|entry| reader.template(&entry)).unwrap_or_default(),
        realm: text("realm"),
        nonce: text("nonce"),
        opaque: text("opaque"),
        qop: table.text("qop", "a text").map(str::to_owned),
    };
    table.finish();
    Some(auth)
}

fn close(value: &Entry<'_, '_>) -> Option<Act> {
    if value.value().as_bool().is_some() {
        return yes(value).map(|()| Act::Close { code: 1000 });
    }
    let code = value.integer(1000..=4999)?;
    u16::try_from(code).ok().map(|code| Act::Close { code })
}

/// `true`: a verb that takes nothing else.
fn yes(value: &Entry<'_, '_>) -> Option<()> {
    match value.bool()? {
        true => Some(()),
        false => {
            value.wrong("is false", "leave the step out");
            None
        }
    }
}

fn set<'p>(reader: &Reader<'p>, value: &Entry<'p, '_>, table: &Table<'p, '_>) -> Option<Act> {
    let vars: Vec<VarId> =
        value.one_or_more().iter().filter_map(|entry| reader.var_of(entry)).collect();
    let given = ["value", "row", "json", "target"].map(|key| table.has(key));
    let (text, row, from) = (table.get("value"), table.get("row"), table.get("from"));
    let (json, target) = (table.get("json"), table.get("target"));
    let delimiter = table.text("delimiter", "a text");
    let random = table.bool("random").unwrap_or(false);
    let found = match given {
        [true, false, false, false] => Value::Template(reader.template(&text?)?),
        [false, true, false, false] => {
            let row = row?;
            let name = row.text("the name of a file in [files]")?;
            let file = super::template::Names::file(reader, name);
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
        [false, false, false, true] => yes(&target?).map(|()| Value::Target)?,
        _ => {
            value.wrong("needs one of value, row, json and target", "");
            return None;
        }
    };
    Some(Act::Set(Set { vars, value: found }))
}

fn loop_<'p>(
    reader: &Reader<'p>,
    value: &Entry<'p, '_>,
    table: &Table<'p, '_>,
    topic: &mut Topic,
) -> Option<Act> {
    let to = match value.as_str() {
        Some("forever") => Some(Bound::Endless),
        _ => bound(reader, value),
    };
    let from = match table.get("from") {
        Some(entry) => bound(reader, &entry),
        None => Some(Bound::Number(1)),
    };
    let step = table.get("step").and_then(|entry| entry.integer(i64::MIN..=i64::MAX));
    let counter = table.get("counter").and_then(|entry| reader.var_of(&entry));
    let every = table.get("every").and_then(|entry| entry.some_time());
    let at_least_once = table.bool("at_least_once").unwrap_or(false);
    let steps = reader.inner(table, topic);
    Some(Act::For(For {
        var: counter,
        from: from?,
        to: to?,
        step: step.unwrap_or(1),
        every,
        at_least_once,
        steps,
    }))
}

/// A number, or `{ var = "name" }`.
fn bound<'p>(reader: &Reader<'p>, entry: &Entry<'p, '_>) -> Option<Bound> {
    if !entry.is_table() {
        return entry.integer(i64::MIN..=i64::MAX).map(Bound::Number);
    }
    let table = entry.table("a number in a variable, { var = \"name\" }")?;
    let var = table.need("var", "the name of a variable").and_then(|entry| reader.var_of(&entry));
    table.finish();
    var.map(Bound::Var)
}

fn each<'p>(
    reader: &Reader<'p>,
    value: &Entry<'p, '_>,
    table: &Table<'p, '_>,
    topic: &mut Topic,
) -> Option<Act> {
    let list = table.need("in", "the name of a variable with a list");
    let list = list.and_then(|entry| reader.var_of(&entry));
    let regex = |key| table.get(key).and_then(|entry: Entry<'p, '_>| regex(&entry));
    let (include, exclude) = (regex("include"), regex("exclude"));
    let steps = reader.inner(table, topic);
    Some(Act::ForEach(ForEach { var: reader.var_of(value)?, list: list?, include, exclude, steps }))
}

/// A regular expression; whether it is one is checked with those of the other language.
pub(super) fn regex(entry: &Entry<'_, '_>) -> Option<String> {
    entry.text("a regular expression").map(str::to_owned)
}

fn repeat<'p>(
    reader: &Reader<'p>,
    value: &Entry<'p, '_>,
    table: &Table<'p, '_>,
    topic: &mut Topic,
) -> Option<Act> {
    let name = table.text("name", "a name").unwrap_or("");
    let (go_on, until) = (table.get("while"), table.get("until"));
    let steps = reader.inner(table, topic);
    let (entry, is_until) = match (go_on, until) {
        (Some(entry), None) => (entry, false),
        (None, Some(entry)) => (entry, true),
        _ => {
            value.wrong("needs either while or until", "such as until = \"status == ok\"");
            return None;
        }
    };
    let condition = reader.condition(&entry);
    Some(Act::Repeat(Repeat {
        name: name.to_owned(),
        times_max: value.count(1)?,
        steps,
        condition: condition?,
        until: is_until,
    }))
}

fn switch<'p>(reader: &Reader<'p>, value: &Entry<'p, '_>, table: &Table<'p, '_>) -> Option<Act> {
    let dialect = table.word("protocol", &PROTOCOLS);
    let (store, restore) =
        (table.bool("store").unwrap_or(false), table.bool("restore").unwrap_or(false));
    Some(Act::Switch(Switch {
        dialect: dialect.unwrap_or(Dialect::Raw),
        target: reader.target_index(value)?,
        store,
        restore,
    }))
}
