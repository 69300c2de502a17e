//! A step is a table with one verb (`verbs.rs`) and its keys. Times, conditions and payloads, which
//! several verbs have.

use simurgh_text::toml::{Entry, Table, did_you_mean};
use toml::de::DeValue;

use super::answer::{MATCHER, check_json};
use super::keys::{Codec, Keys, Writer, text, time};
use super::read::Reader;
use super::template::{self, is_plain, print, quoted};
use super::verbs::{VERBS, Verb, act};
use crate::{Act, Compare, Condition, Matcher, Part, Scenario, Step, Template, Think};

/// One on each line, with inner steps indented.
pub(super) const STEPS: Codec<Vec<Step>> = Codec {
    read: |reader, entry| {
        let entries = entry.list("a list of steps").unwrap_or_default();
        Some(entries.iter().filter_map(|entry| reader.step(entry)).collect())
    },
    write: |writer, steps| {
        let indent = "  ".repeat(writer.depth);
        let within = Writer { depth: writer.depth + 1, ..writer };
        let lines =
            steps.iter().map(|step| format!("{indent}  {},\n", within.table(&step.act, act)));
        format!("[\n{}{indent}]", lines.collect::<String>())
    },
};

pub(super) const THINK: Codec<Think> = Codec {
    read: |reader, entry| reader.think(entry),
    write: |writer, think| match *think {
        Think::Constant(constant) => time(constant),
        Think::Uniform(from, to) => format!("[{}, {}]", time(from), time(to)),
        Think::Exponential(mean) => format!("{{ mean = {} }}", time(mean)),
        Think::Var(var, random) => {
            let random = if random { ", random = true" } else { "" };
            format!("{{ seconds = {}{random} }}", text(writer.var(var)))
        }
    },
};

pub(super) const CONDITION: Codec<Condition> = Codec {
    read: |reader, entry| reader.condition(entry),
    write: |writer, condition| {
        let name = writer.var(condition.var);
        let name = if is_plain(name) { name.to_owned() } else { quoted(name) };
        let element = condition.element.map(|at| format!("[{at}]")).unwrap_or_default();
        let mut signs = Compare::SIGNS.iter();
        let sign = signs.find(|(_, one)| *one == condition.compare).map_or("", |(sign, _)| sign);
        let value = print(&condition.value, writer.scenario);
        // Blanks around a value are dropped, but not within empty quotes.
        let guard = if value.trim() == value { "" } else { "{{\"\"}}" };
        text(format!("{name}{element} {sign} {guard}{value}{guard}").trim_end())
    },
};

/// JSON text, or any TOML value, which becomes JSON.
pub(super) const PAYLOAD: Codec<Template> = Codec {
    read: |reader, entry| {
        if entry.as_str().is_none() {
            let mut json = Template::default();
            return reader.json(entry, &mut json).map(|()| json);
        }
        let template = reader.template(entry)?;
        let help = "binary = true sends it as bytes";
        let checked = check_json(&template).map_err(|why| format!("is not JSON: {why}"));
        entry.checked(checked, help).map(|()| template)
    },
    write: |writer, payload| writer.template(payload),
};

/// The same if it is sent as bytes: any text.
pub(super) const BYTES: Codec<Template> = Codec {
    read: |reader, entry| match entry.as_str() {
        Some(_) => reader.template(entry),
        None => (PAYLOAD.read)(reader, entry),
    },
    write: PAYLOAD.write,
};

/// A step on one line, without inner steps, headers, cookies and credentials.
pub(crate) fn outline(one: &Act, scenario: &Scenario) -> String {
    Writer { scenario, depth: 0, is_outline: true }.table(one, act)
}

/// The frames that a matcher takes.
pub(crate) fn matcher(matcher: &Matcher, scenario: &Scenario) -> String {
    (MATCHER.write)(Writer { scenario, depth: 0, is_outline: true }, matcher)
}

impl Reader<'_> {
    fn step(&self, entry: &Entry<'_, '_>) -> Option<Step> {
        let table = entry.table("a step such as { think = \"1s\" }")?;
        let (name, new) = verb(entry, &table)?;
        let table = entry.table(format!("a {name} step"))?;
        let tag = table.text("tag", "a tag");
        let mut one = new(name);
        act(&mut Keys::Read(self, &table), &mut one);
        table.finish();
        let is_excluded = |tag: &str| self.overrides.exclude_tags.iter().any(|one| one == tag);
        if tag.is_some_and(is_excluded) {
            return None;
        }
        Some(Step { line: self.document.line(entry.at), act: one })
    }

    /// `"500ms"`, `["1s", "5s"]`, `{ mean = "2s" }`, `{ seconds = "variable" }`.
    fn think(&self, entry: &Entry<'_, '_>) -> Option<Think> {
        if entry.is_list() {
            let (from, to) = entry.pair("the shortest and the longest time")?;
            let (from, to) = (from.time()?, to.time()?);
            if to < from {
                entry.wrong("goes from a longer to a shorter time", "swap them");
                return None;
            }
            return Some(Think::Uniform(from, to));
        }
        if !entry.is_table() {
            return entry.time().map(Think::Constant);
        }
        let table =
            entry.table("a time such as { mean = \"2s\" } or { seconds = \"variable\" }")?;
        let (mean, seconds) = (table.get("mean"), table.get("seconds"));
        let random = table.bool("random").unwrap_or(false);
        table.finish();
        match (mean, seconds) {
            (Some(mean), None) => mean.time().map(Think::Exponential),
            (None, Some(var)) => self.var_of(&var).map(|var| Think::Var(var, random)),
            _ => {
                entry.wrong("needs either mean or seconds", "");
                None
            }
        }
    }

    /// `"n >= 3"`, `"list[0] == {{other}}"`.
    fn condition(&self, entry: &Entry<'_, '_>) -> Option<Condition> {
        let takes = "it takes a variable, one of == != < <= > >=, and a value: \"n >= 3\"";
        let text = entry.text("a condition such as \"n >= 3\"")?.trim();
        let (name, rest) = if text.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
            match values.next() {
                Some(Ok(name)) => (name, &text[values.byte_offset()..]),
                _ => ("".to_owned(), ""),
            }
        } else {
            let end = |char: char| char.is_whitespace() || "=!<>[".contains(char);
            let (name, rest) = text.split_at(text.find(end).unwrap_or(text.len()));
            (name.to_owned(), rest)
        };
        let element = rest.strip_prefix('[').map(|rest| rest.split_once(']'));
        let (element, rest) = match element {
            Some(Some((element, rest))) => match element.trim().parse() {
                Ok(element) => (Some(element), rest),
                Err(_) => (None, ""),
            },
            Some(None) => (None, ""),
            None => (None, rest),
        };
        let Some((compare, value)) = Compare::split(rest) else {
            entry.wrong(format_args!("{text:?} is not a condition"), takes);
            return None;
        };
        let value = entry.checked(template::parse(value, self), "")?;
        Some(Condition { var: self.var_named(entry, &name)?, element, compare, value })
    }

    fn json(&self, entry: &Entry<'_, '_>, out: &mut Template) -> Option<()> {
        match entry.value() {
            DeValue::String(_) => {
                out.push_literal(b"\"");
                for part in self.template(entry)?.parts {
                    match part {
                        Part::Literal(bytes) => {
                            let quoted = template::quoted(&String::from_utf8_lossy(&bytes));
                            let inner = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"'));
                            out.push_literal(inner.unwrap_or_default().as_bytes());
                        }
                        part => out.push(part),
                    }
                }
                out.push_literal(b"\"");
            }
            DeValue::Boolean(value) => out.push_literal(value.to_string().as_bytes()),
            DeValue::Integer(_) => {
                out.push_literal(entry.integer(i64::MIN..=i64::MAX)?.to_string().as_bytes());
            }
            DeValue::Float(value) => {
                let value = value.as_str().parse().ok().and_then(serde_json::Number::from_f64);
                let Some(value) = value else {
                    entry.wrong("is not a JSON number", "");
                    return None;
                };
                out.push_literal(value.to_string().as_bytes());
            }
            DeValue::Datetime(value) => out.push_literal(format!("\"{value}\"").as_bytes()),
            DeValue::Array(_) => {
                out.push_literal(b"[");
                for (at, value) in entry.list("")?.iter().enumerate() {
                    out.push_literal(if at > 0 { b"," } else { b"" });
                    self.json(value, out)?;
                }
                out.push_literal(b"]");
            }
            DeValue::Table(_) => {
                out.push_literal(b"{");
                for (at, value) in entry.named().iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    let key = format!("{comma}{}:", template::quoted(&value.key));
                    out.push_literal(key.as_bytes());
                    self.json(value, out)?;
                }
                out.push_literal(b"}");
            }
        }
        Some(())
    }
}

fn verb(entry: &Entry<'_, '_>, table: &Table<'_, '_>) -> Option<(&'static str, Verb)> {
    let keys = table.entries();
    let known = |key: &str| VERBS.into_iter().find(|(name, _)| *name == key);
    let names = VERBS.map(|(name, _)| name);
    let found: Vec<_> = keys.iter().filter_map(|entry| known(&entry.key)).collect();
    match found.as_slice() {
        [verb] => return Some(*verb),
        [] => match keys.iter().find_map(|key| Some((key, did_you_mean(&key.key, &names)?))) {
            Some((key, hint)) => {
                entry.document.wrong(key.at, format!("{}: is not a step", key.key), hint);
            }
            None => entry.wrong("a step without a verb", format!("verbs are {}", names.join(", "))),
        },
        [(first, _), (second, _), ..] => {
            let what = format_args!("a step has one verb, not both {first} and {second}");
            entry.wrong(what, "make two steps of it");
        }
    }
    None
}
