//! A step is a table with one verb (`verbs.rs`) and its keys. Times, conditions and payloads, which
//! several verbs have.

use simurgh_text::toml::{Entry, Table, did_you_mean};
use toml::de::DeValue;

use super::read::Reader;
use super::template;
use super::verbs::{StepReader, VERBS, Verb};
use crate::{Compare, Condition, Part, Step, Template, Think};

pub(super) type Topic = Option<Template>;

impl Reader<'_> {
    pub(super) fn steps(&self, entry: &Entry<'_, '_>, topic: &mut Topic) -> Vec<Step> {
        let entries = entry.list("a list of steps").unwrap_or_default();
        entries.iter().filter_map(|entry| self.step(entry, topic)).collect()
    }

    fn step(&self, entry: &Entry<'_, '_>, topic: &mut Topic) -> Option<Step> {
        let table = entry.table("a step such as { think = \"1s\" }")?;
        let (name, read) = verb(entry, &table)?;
        let table = entry.table(format!("a {name} step"))?;
        let tag = table.text("tag", "a tag");
        let act = table.get(name).and_then(|value| {
            read(&mut StepReader { reader: self, value: &value, table: &table, topic }, name)
        });
        table.finish();
        let is_excluded = |tag: &str| self.overrides.exclude_tags.iter().any(|one| one == tag);
        if tag.is_some_and(is_excluded) {
            return None;
        }
        Some(Step { line: self.document.line(entry.at), act: act? })
    }

    pub(super) fn inner(&self, table: &Table<'_, '_>, topic: &mut Topic) -> Vec<Step> {
        let steps = table.need("steps", "a list of steps");
        steps.map(|entry| self.steps(&entry, topic)).unwrap_or_default()
    }

    /// `"500ms"`, `["1s", "5s"]`, `{ mean = "2s" }`, `{ seconds = "variable" }`.
    pub(super) fn think(&self, entry: &Entry<'_, '_>) -> Option<Think> {
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
    pub(super) fn condition(&self, entry: &Entry<'_, '_>) -> Option<Condition> {
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
            entry.wrong(format_args!("{text:?} is no condition"), takes);
            return None;
        };
        let value = entry.checked(template::parse(value, self), "")?;
        Some(Condition { var: self.var_named(entry, &name)?, element, compare, value })
    }

    /// A payload: JSON text, bytes, or any TOML value, which becomes JSON.
    pub(super) fn payload(&self, table: &Table<'_, '_>, binary: bool) -> Option<Template> {
        let Some(entry) = table.get("payload") else {
            return Some(Template::literal("{}"));
        };
        if entry.as_str().is_none() {
            let mut json = Template::default();
            self.json(&entry, &mut json)?;
            return Some(json);
        }
        let template = self.template(&entry)?;
        if let (false, Err(why)) = (binary, super::answer::check_json(&template)) {
            entry.wrong(format_args!("is no JSON: {why}"), "binary = true sends it as bytes");
            return None;
        }
        Some(template)
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
                    entry.wrong("is no number of JSON", "");
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
                entry.document.wrong(key.at, format!("{}: is no step", key.key), hint);
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

/// The value of a `receive` that lasts to the end of the run.
pub(super) const END: &str = "end";
