//! The verbs of steps, each with its keys.

use simurgh_text::toml::Entry;

use super::answer::{MATCHER, answer};
use super::keys::{
    Codec, FLAG, INTEGER, Keys, SOME_COUNT, SOME_TIME, TEMPLATE, TEXT, TIME, VAR, text,
};
use super::steps::{BYTES, CONDITION, PAYLOAD, STEPS, THINK};
use super::tables::PROTOCOLS;
use super::template::Names;
use super::write::target_name;
use crate::{
    Act, Bound, Connect, For, ForEach, Http, HttpAuth, Message, Push, Receive, Repeat, Reply, Set,
    Step, Switch, Think, Value, VarId,
};

/// The step of a verb, before its keys are read.
pub(super) type Verb = fn(&str) -> Act;

pub(super) const VERBS: [(&str, Verb); 32] = [
    ("connect", |_| Act::Connect(<_>::default())),
    ("send", |_| Act::Send(<_>::default())),
    ("raw", |_| Act::Raw(<_>::default())),
    ("wait", |_| Act::Wait(<_>::default())),
    ("receive", |_| Act::Receive(<_>::default())),
    ("think", |_| Act::Think(Think::Constant(<_>::default()))),
    ("join", |_| Act::Join(<_>::default())),
    ("push", |_| Act::Push(<_>::default())),
    ("leave", |_| Act::Leave(<_>::default())),
    ("get", method),
    ("post", method),
    ("put", method),
    ("patch", method),
    ("delete", method),
    ("head", method),
    ("request", |_| Act::Http(<_>::default())),
    ("close", |_| Act::Close { code: CLOSE_CODE }),
    ("set", |_| Act::Set(<_>::default())),
    ("loop", |_| Act::For(<_>::default())),
    ("each", |_| Act::ForEach(<_>::default())),
    ("repeat", |_| Act::Repeat(<_>::default())),
    ("if", |_| Act::If { condition: <_>::default(), steps: Vec::new() }),
    ("transaction", |_| Act::Transaction { name: String::new(), steps: Vec::new() }),
    ("switch", |_| Act::Switch(<_>::default())),
    ("gather", |_| Act::Gather { users: 0, timeout: None }),
    ("mark", |_| Act::InteractionSend { id: String::new() }),
    ("measure", |_| Act::InteractionReceive { id: String::new() }),
    ("wait_server", |_| Act::WaitServer),
    ("abort", |_| Act::Abort),
    ("options", method),
    ("purge", method),
    ("trace", method),
];

/// A request whose method is the verb.
fn method(verb: &str) -> Act {
    Act::Http(Box::new(Http { method: verb.to_ascii_uppercase(), ..Http::default() }))
}

/// The keys of a step.
pub(super) fn act(keys: &mut Keys<'_, '_, '_>, act: &mut Act) {
    match act {
        Act::Connect(one) => connect(keys, one),
        Act::Send(one) => message(keys, "send", one),
        Act::Raw(one) => message(keys, "raw", one),
        Act::Wait(one) => {
            keys.needed("wait", "", &mut one.matcher, MATCHER);
            answer(keys, &mut one.answer);
        }
        Act::Receive(one) => receive(keys, one),
        Act::Think(one) => keys.needed("think", "", one, THINK),
        Act::Join(one) => {
            keys.needed("join", "", &mut one.topic, TEMPLATE);
            channel(keys, one);
            if let Keys::Read(reader, _) = keys {
                reader.topic.replace(Some(one.topic.clone()));
            }
        }
        Act::Push(one) => push(keys, one),
        Act::Leave(one) => {
            keys.needed("leave", "", &mut one.topic, TEMPLATE);
            channel(keys, one);
        }
        Act::Http(one) => http(keys, one),
        Act::Close { code } => keys.needed("close", "", code, CODE),
        Act::Set(one) => set(keys, one),
        Act::For(one) => loop_(keys, one),
        Act::ForEach(one) => each(keys, one),
        Act::Repeat(one) => repeat(keys, one),
        Act::If { condition, steps } => {
            keys.needed("if", "", condition, CONDITION);
            inner(keys, steps);
        }
        Act::Transaction { name, steps } => {
            keys.needed("transaction", "", name, TEXT);
            inner(keys, steps);
        }
        Act::Switch(one) => switch(keys, one),
        Act::Gather { users, timeout } => {
            keys.needed("gather", "", users, SOME_COUNT);
            keys.optional("timeout", timeout, TIME);
        }
        Act::InteractionSend { id } => keys.needed("mark", "", id, TEXT),
        Act::InteractionReceive { id } => keys.needed("measure", "", id, TEXT),
        Act::WaitServer => keys.needed("wait_server", "", &mut (), YES),
        Act::Abort | Act::AbortRun => keys.needed("abort", "", act, ABORT),
    }
}

const ABORT: Codec<Act> = Codec {
    read: |_, entry| {
        let is_run = entry.word(&[("user", false), ("run", true)])?;
        Some(if is_run { Act::AbortRun } else { Act::Abort })
    },
    write: |_, act| text(if *act == Act::AbortRun { "run" } else { "user" }),
};

/// `true`, the only accepted value.
const YES: Codec<()> = Codec {
    read: |_, entry| {
        let is_true = entry.bool()?;
        if !is_true {
            entry.wrong("is false", "leave the step out");
        }
        is_true.then_some(())
    },
    write: |_, ()| "true".to_owned(),
};

const CLOSE_CODE: u16 = 1000;

const CODE: Codec<u16> = Codec {
    read: |reader, entry| match entry.value().as_bool() {
        Some(_) => (YES.read)(reader, entry).map(|()| CLOSE_CODE),
        None => u16::try_from(entry.integer(1000..=4999)?).ok(),
    },
    write: |_, code| match *code {
        CLOSE_CODE => "true".to_owned(),
        code => code.to_string(),
    },
};

fn inner(keys: &mut Keys<'_, '_, '_>, steps: &mut Vec<Step>) {
    if !keys.is_outline() {
        keys.needed("steps", "a list of steps", steps, STEPS);
    }
}

fn connect(keys: &mut Keys<'_, '_, '_>, one: &mut Connect) {
    keys.needed("connect", "", &mut one.path, TEMPLATE);
    keys.optional("origin", &mut one.origin, TEMPLATE);
    let mut offered = vec![std::mem::take(&mut one.subprotocols)];
    offered.retain(|names| !names.is_empty());
    keys.list("subprotocols", &mut offered, SUBPROTOCOLS);
    one.subprotocols = offered.concat();
    keys.key("compress", &mut one.compress, false, FLAG);
    if !keys.is_outline() {
        keys.named("headers", &mut one.headers, TEMPLATE);
        keys.optional("payload", &mut one.payload, PAYLOAD);
    }
    answer(keys, &mut one.answer);
}

/// The names in a text such as `"chat"` or `"a, b"`.
const SUBPROTOCOLS: Codec<Vec<String>> = Codec {
    read: |_, entry| {
        let text = entry.text("the names of subprotocols, such as [\"a\", \"b\"] or \"a, b\"")?;
        let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
        let is_sign = |char: char| char.is_ascii_graphic() && !"()<>@,;:\\\"/[]?={}".contains(char);
        let wrong = names.iter().find(|name| name.is_empty() || !name.chars().all(is_sign));
        if let Some(wrong) = wrong {
            entry.wrong(
                format_args!("{wrong:?} is not the name of a subprotocol"),
                "such as \"a, b\"",
            );
            return None;
        }
        Some(names)
    },
    write: |_, names| text(&names.join(", ")),
};

fn message(keys: &mut Keys<'_, '_, '_>, verb: &'static str, one: &mut Message) {
    keys.needed(verb, "", &mut one.data, TEMPLATE);
    keys.key("binary", &mut one.binary, false, FLAG);
    keys.key("reply", &mut one.reply, Reply::None, REPLY);
    answer(keys, &mut one.answer);
}

const REPLY: Codec<Reply> = Codec {
    read: |reader, entry| match entry.is_table() || entry.as_str().is_some() {
        true => reader.matcher(entry).map(Reply::Match),
        false => entry.bool().map(|first| if first { Reply::First } else { Reply::None }),
    },
    write: |writer, reply| match reply {
        Reply::Match(matcher) => (MATCHER.write)(writer, matcher),
        reply => (*reply == Reply::First).to_string(),
    },
};

fn receive(keys: &mut Keys<'_, '_, '_>, one: &mut Receive) {
    keys.needed("receive", "", &mut one.time, UP_TO);
    keys.optional("count", &mut one.count, SOME_COUNT);
    keys.optional("match", &mut one.matcher, MATCHER);
}

/// A time, or to the end of the run.
const UP_TO: Codec<Option<Think>> = Codec {
    read: |reader, entry| match entry.as_str() {
        Some("end") => Some(None),
        _ => (THINK.read)(reader, entry).map(Some),
    },
    write: |writer, time| match time {
        Some(time) => (THINK.write)(writer, time),
        None => text("end"),
    },
};

fn push(keys: &mut Keys<'_, '_, '_>, one: &mut Push) {
    keys.needed("push", "", &mut one.event, TEMPLATE);
    let mut topic = matches!(keys, Keys::Write(..)).then(|| one.topic.clone());
    keys.optional("topic", &mut topic, TEMPLATE);
    if let Keys::Read(reader, table) = keys
        && !table.has("topic")
    {
        topic.clone_from(&reader.topic.borrow());
        if let (None, Some(entry)) = (&topic, table.get("push")) {
            entry.wrong("goes to no topic", "join one before, or add topic = \"…\"");
        }
    }
    one.topic = topic.unwrap_or_default();
    channel(keys, one);
}

/// What joins, pushes and leaves have.
fn channel(keys: &mut Keys<'_, '_, '_>, one: &mut Push) {
    keys.key("binary", &mut one.binary, false, FLAG);
    let codec = if one.binary { BYTES } else { PAYLOAD };
    keys.key("payload", &mut one.payload, crate::Template::literal("{}"), codec);
    keys.key("status", &mut one.status, Some("ok".to_owned()), STATUS);
    keys.key("reply", &mut one.await_reply, true, FLAG);
    keys.optional("presence", &mut one.presence, TEMPLATE);
    answer(keys, &mut one.answer);
}

const STATUS: Codec<Option<String>> = Codec {
    read: |_, entry| {
        let status = entry.text("a status such as \"ok\", or \"any\"")?;
        Some(Some(status.to_owned()).filter(|status| status != "any"))
    },
    write: |_, status| text(status.as_deref().unwrap_or("any")),
};

fn http(keys: &mut Keys<'_, '_, '_>, one: &mut Http) {
    let of_verb = |(verb, new): &(&'static str, Verb)| match new(verb) {
        Act::Http(of_verb) if of_verb.method == one.method => Some(*verb),
        _ => None,
    };
    let verb = VERBS.iter().find_map(of_verb).filter(|_| !one.method.is_empty());
    keys.needed(verb.unwrap_or("request"), "", &mut one.url, TEMPLATE);
    if verb.is_none() {
        keys.needed("method", "the method of the request", &mut one.method, TEXT);
    }
    keys.word("version", &mut one.version_1_0, false, &[("1.0", true), ("1.1", false)]);
    keys.optional("body", &mut one.body, TEMPLATE);
    if !keys.is_outline() {
        keys.named("headers", &mut one.headers, TEMPLATE);
        keys.named("cookies", &mut one.cookies, TEMPLATE);
        keys.optional("auth", &mut one.auth, AUTH);
    }
    keys.list("status", &mut one.status, HTTP_STATUS);
    answer(keys, &mut one.answer);
}

const HTTP_STATUS: Codec<u16> = Codec {
    read: |_, entry| u16::try_from(entry.integer(100..=999)?).ok(),
    write: |_, status| status.to_string(),
};

const AUTH: Codec<HttpAuth> = Codec {
    read: |reader, entry| reader.table(entry, "auth", auth),
    write: |writer, one| writer.table(one, auth),
};

fn auth(keys: &mut Keys<'_, '_, '_>, auth: &mut HttpAuth) {
    keys.needed("user", "a name", &mut auth.user, TEMPLATE);
    keys.needed("password", "a text", &mut auth.password, TEMPLATE);
    keys.key("digest", &mut auth.digest, false, FLAG);
    keys.optional("realm", &mut auth.realm, TEMPLATE);
    keys.optional("nonce", &mut auth.nonce, TEMPLATE);
    keys.optional("opaque", &mut auth.opaque, TEMPLATE);
    keys.optional("qop", &mut auth.qop, TEXT);
}

fn set(keys: &mut Keys<'_, '_, '_>, one: &mut Set) {
    keys.list("set", &mut one.vars, VAR);
    let (mut text, mut target) = (None, None);
    let (mut row, mut delimiter, mut random) = (None, ";".to_owned(), false);
    let (mut from, mut json) = (None, None);
    match &one.value {
        Value::Template(template) => text = Some(template.clone()),
        Value::Row { file, delimiter: between, random: any } => {
            (row, delimiter, random) = (Some(*file), between.clone(), *any);
        }
        Value::Json { from: var, path } => (from, json) = (Some(*var), Some(path.clone())),
        Value::Target => target = Some(()),
    }
    keys.optional("value", &mut text, TEMPLATE);
    keys.optional("row", &mut row, ROW);
    keys.key("delimiter", &mut delimiter, ";".to_owned(), TEXT);
    keys.key("random", &mut random, false, FLAG);
    keys.optional("from", &mut from, VAR);
    keys.optional("json", &mut json, TEXT);
    keys.optional("target", &mut target, YES);
    let Keys::Read(_, table) = keys else { return };
    let given = ["value", "row", "json", "target"].map(|key| table.has(key));
    one.value = match (text, row, json, target) {
        _ if given.iter().filter(|is_given| **is_given).count() != 1 => {
            let wrong = |entry: Entry<'_, '_>| {
                entry.wrong("needs one of value, row, json and target", "");
            };
            return table.get("set").map_or((), wrong);
        }
        (Some(template), ..) => Value::Template(template),
        (_, Some(file), ..) => Value::Row { file, delimiter, random },
        (_, _, Some(path), _) => {
            if let (None, Some(entry)) = (from, table.get("set")) {
                entry.wrong("json needs a variable to look into", "add from = \"variable\"");
            }
            Value::Json { from: from.unwrap_or(VarId(0)), path }
        }
        _ => Value::Target,
    };
}

const ROW: Codec<u16> = Codec {
    read: |reader, entry| {
        entry.checked(reader.file(entry.text("the name of a file in [files]")?), "")
    },
    write: |writer, file| {
        let file = writer.scenario.files.get(usize::from(*file));
        text(file.map_or("", |file| &file.name))
    },
};

fn loop_(keys: &mut Keys<'_, '_, '_>, one: &mut For) {
    keys.needed("loop", "", &mut one.to, TO);
    keys.optional("counter", &mut one.var, VAR);
    keys.key("from", &mut one.from, Bound::Number(1), BOUND);
    keys.key("step", &mut one.step, 1, INTEGER);
    keys.optional("every", &mut one.every, SOME_TIME);
    keys.key("at_least_once", &mut one.at_least_once, false, FLAG);
    inner(keys, &mut one.steps);
}

const TO: Codec<Bound> = Codec {
    read: |reader, entry| match entry.as_str() {
        Some("forever") => Some(Bound::Endless),
        _ => (BOUND.read)(reader, entry),
    },
    write: BOUND.write,
};

/// A number, or `{ var = "name" }`.
const BOUND: Codec<Bound> = Codec {
    read: |reader, entry| {
        if !entry.is_table() {
            return entry.integer(i64::MIN..=i64::MAX).map(Bound::Number);
        }
        let label = "a number in a variable, { var = \"name\" }";
        let var = reader.table(entry, label, |keys, var| {
            keys.needed("var", "the name of a variable", var, VAR);
        });
        var.map(Bound::Var)
    },
    write: |writer, bound| match *bound {
        Bound::Number(number) => number.to_string(),
        Bound::Var(var) => format!("{{ var = {} }}", text(writer.var(var))),
        // Not a valid start of a loop; the parser refuses it.
        Bound::Endless => text("forever"),
    },
};

fn each(keys: &mut Keys<'_, '_, '_>, one: &mut ForEach) {
    keys.needed("each", "", &mut one.var, VAR);
    keys.needed("in", "the name of a variable with a list", &mut one.list, VAR);
    // Regular expressions, which are later checked with those of Tsung's files.
    keys.optional("include", &mut one.include, TEXT);
    keys.optional("exclude", &mut one.exclude, TEXT);
    inner(keys, &mut one.steps);
}

fn repeat(keys: &mut Keys<'_, '_, '_>, one: &mut Repeat) {
    keys.needed("repeat", "", &mut one.times_max, SOME_COUNT);
    keys.key("name", &mut one.name, String::new(), TEXT);
    let written = matches!(keys, Keys::Write(..)).then(|| one.condition.clone());
    let (mut go_on, mut until) = if one.until { (None, written) } else { (written, None) };
    keys.optional("while", &mut go_on, CONDITION);
    keys.optional("until", &mut until, CONDITION);
    if let Keys::Read(_, table) = keys {
        one.until = table.has("until");
        if let (true, Some(entry)) = (table.has("while") == one.until, table.get("repeat")) {
            entry.wrong("needs either while or until", "such as until = \"status == ok\"");
        }
        one.condition = go_on.or(until).unwrap_or_default();
    }
    inner(keys, &mut one.steps);
}

fn switch(keys: &mut Keys<'_, '_, '_>, one: &mut Switch) {
    keys.needed("switch", "", &mut one.target, TARGET);
    keys.word("protocol", &mut one.dialect, <_>::default(), &PROTOCOLS);
    keys.key("store", &mut one.store, false, FLAG);
    keys.key("restore", &mut one.restore, false, FLAG);
}

const TARGET: Codec<usize> = Codec {
    read: |reader, entry| reader.target_index(entry),
    write: |writer, index| target_name(*index, writer.scenario),
};
