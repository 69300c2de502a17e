//! The keys of a table. One description of them reads the table, and writes it.

use std::time::Duration;

use simurgh_text::toml::{Entry, Table};

use super::read::Reader;
use super::template::{print, quoted};
use crate::{Scenario, Template, VarId};

/// A table that is read, or one that is written.
pub(super) enum Keys<'k, 'd, 'i> {
    /// A value that is wrong is reported, and its default stands in for it.
    Read(&'k Reader<'d>, &'k Table<'d, 'i>),
    Write(Writer<'k>, Vec<(String, String)>),
}

/// How a value is read and written.
pub(super) struct Codec<T> {
    pub(super) read: fn(&Reader<'_>, &Entry<'_, '_>) -> Option<T>,
    pub(super) write: fn(Writer<'_>, &T) -> String,
}

/// The surroundings of what is written.
#[derive(Clone, Copy)]
pub(super) struct Writer<'s> {
    pub(super) scenario: &'s Scenario,
    /// How many lists of steps are around it.
    pub(super) depth: usize,
    /// Inner steps, headers, cookies and credentials are left out.
    pub(super) is_outline: bool,
}

impl Keys<'_, '_, '_> {
    /// A key with a default, which is not written.
    pub(super) fn key<T: PartialEq>(
        &mut self,
        key: &'static str,
        value: &mut T,
        default: T,
        codec: Codec<T>,
    ) {
        match self {
            Self::Read(reader, table) => {
                let found = table.get(key).and_then(|entry| (codec.read)(reader, &entry));
                *value = found.unwrap_or(default);
            }
            Self::Write(writer, keys) if *value != default => {
                keys.push((bare(key), (codec.write)(*writer, value)));
            }
            Self::Write(..) => {}
        }
    }

    /// A key that is required.
    pub(super) fn needed<T>(
        &mut self,
        key: &'static str,
        takes: &str,
        value: &mut T,
        codec: Codec<T>,
    ) {
        match self {
            Self::Read(reader, table) => {
                let found = table.need(key, takes).and_then(|entry| (codec.read)(reader, &entry));
                if let Some(found) = found {
                    *value = found;
                }
            }
            Self::Write(writer, keys) => keys.push((bare(key), (codec.write)(*writer, value))),
        }
    }

    /// A key without a default.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        value: &mut Option<T>,
        codec: Codec<T>,
    ) {
        match self {
            Self::Read(reader, table) => {
                *value = table.get(key).and_then(|entry| (codec.read)(reader, &entry));
            }
            Self::Write(..) => {
                if let Some(value) = value {
                    self.needed(key, "", value, codec);
                }
            }
        }
    }

    /// A single value, or a list of them.
    pub(super) fn list<T>(&mut self, key: &'static str, values: &mut Vec<T>, codec: Codec<T>) {
        match self {
            Self::Read(reader, table) => {
                let entries = table.all(key);
                *values = entries.iter().filter_map(|one| (codec.read)(reader, one)).collect();
            }
            Self::Write(writer, keys) => {
                let written: Vec<_> =
                    values.iter().map(|value| (codec.write)(*writer, value)).collect();
                match written.as_slice() {
                    [] => {}
                    [one] => keys.push((bare(key), one.clone())),
                    all => keys.push((bare(key), format!("[{}]", all.join(", ")))),
                }
            }
        }
    }

    /// Names with values.
    pub(super) fn named<T>(
        &mut self,
        key: &'static str,
        values: &mut Vec<(String, T)>,
        codec: Codec<T>,
    ) {
        match self {
            Self::Read(reader, table) => {
                let entries = table.get(key).map(|entry| entry.named()).unwrap_or_default();
                let read =
                    |one: &Entry<'_, '_>| Some((one.key.clone(), (codec.read)(reader, one)?));
                *values = entries.iter().filter_map(read).collect();
            }
            Self::Write(writer, keys) if !values.is_empty() => {
                let written = values
                    .iter()
                    .map(|(name, value)| (name.as_str(), (codec.write)(*writer, value)));
                keys.push((bare(key), named(&written.collect::<Vec<_>>())));
            }
            Self::Write(..) => {}
        }
    }

    /// One of some words.
    pub(super) fn word<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        value: &mut T,
        default: T,
        words: &[(&'static str, T)],
    ) {
        match self {
            Self::Read(_, table) => *value = table.word(key, words).unwrap_or(default),
            Self::Write(_, keys) if *value != default => {
                keys.push((bare(key), word(words, *value)));
            }
            Self::Write(..) => {}
        }
    }

    pub(super) fn is_outline(&self) -> bool {
        matches!(self, Self::Write(Writer { is_outline: true, .. }, _))
    }
}

impl Reader<'_> {
    /// A table with these keys and no others.
    pub(super) fn table<T: Default>(
        &self,
        entry: &Entry<'_, '_>,
        label: &str,
        describe: impl Fn(&mut Keys<'_, '_, '_>, &mut T),
    ) -> Option<T> {
        let table = entry.table(label)?;
        let mut value = T::default();
        describe(&mut Keys::Read(self, &table), &mut value);
        table.finish();
        Some(value)
    }
}

impl<'s> Writer<'s> {
    pub(super) fn keys<T: Clone>(
        self,
        value: &T,
        describe: impl Fn(&mut Keys<'_, '_, '_>, &mut T),
    ) -> Vec<(String, String)> {
        let mut keys = Keys::Write(self, Vec::new());
        describe(&mut keys, &mut value.clone());
        match keys {
            Keys::Write(_, keys) => keys,
            Keys::Read(..) => Vec::new(),
        }
    }

    /// An inline table.
    pub(super) fn table<T: Clone>(
        self,
        value: &T,
        describe: impl Fn(&mut Keys<'_, '_, '_>, &mut T),
    ) -> String {
        let keys = self.keys(value, describe).into_iter();
        let keys: Vec<_> = keys.map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{{ {} }}", keys.join(", "))
    }

    pub(super) fn var(self, var: VarId) -> &'s str {
        self.scenario.vars.get(usize::from(var.0)).map_or("", String::as_str)
    }

    pub(super) fn template(self, template: &Template) -> String {
        text(&print(template, self.scenario))
    }
}

pub(super) const FLAG: Codec<bool> =
    Codec { read: |_, entry| entry.bool(), write: |_, flag| flag.to_string() };

pub(super) const TEXT: Codec<String> =
    Codec { read: |_, entry| entry.text("a text").map(str::to_owned), write: |_, one| text(one) };

pub(super) const TIME: Codec<Duration> =
    Codec { read: |_, entry| entry.time(), write: |_, one| time(*one) };

/// More than nothing.
pub(super) const SOME_TIME: Codec<Duration> =
    Codec { read: |_, entry| entry.some_time(), write: |_, one| time(*one) };

pub(super) const COUNT: Codec<u64> =
    Codec { read: |_, entry| entry.count(0), write: |_, count| count.to_string() };

/// At least 1.
pub(super) const SOME_COUNT: Codec<u64> =
    Codec { read: |_, entry| entry.count(1), write: |_, count| count.to_string() };

pub(super) const SMALL: Codec<u32> = Codec {
    read: |_, entry| {
        entry.integer(0..=i64::from(u32::MAX)).and_then(|number| u32::try_from(number).ok())
    },
    write: |_, number| number.to_string(),
};

pub(super) const INTEGER: Codec<i64> = Codec {
    read: |_, entry| entry.integer(i64::MIN..=i64::MAX),
    write: |_, number| number.to_string(),
};

pub(super) const WEIGHT: Codec<f64> =
    Codec { read: |_, entry| entry.number("a weight from 0"), write: |_, weight| number(*weight) };

pub(super) const TEMPLATE: Codec<Template> = Codec {
    read: |reader, entry| reader.template(entry),
    write: |writer, one| writer.template(one),
};

pub(super) const VAR: Codec<VarId> = Codec {
    read: |reader, entry| reader.var_of(entry),
    write: |writer, var| text(writer.var(*var)),
};

pub(super) fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> String {
    text(words.iter().find(|(_, one)| *one == value).map_or("", |(word, _)| word))
}

pub(super) fn time(time: Duration) -> String {
    text(&humantime::format_duration(time).to_string())
}

/// Whole numbers without a point, all others so that they are read as the same.
pub(super) fn number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        format!("{number:.0}")
    } else {
        format!("{number:?}")
    }
}

/// Names with values: a table, or pairs if a name comes twice.
pub(super) fn named(values: &[(&str, String)]) -> String {
    let twice = |(at, (name, _)): (usize, &(&str, String))| {
        values.iter().skip(at + 1).any(|(other, _)| other == name)
    };
    if values.iter().enumerate().any(twice) {
        let pairs = values.iter().map(|(name, value)| format!("[{}, {value}]", text(name)));
        return format!("[{}]", pairs.collect::<Vec<_>>().join(", "));
    }
    if values.is_empty() {
        return "{}".to_owned();
    }
    let entries: Vec<_> =
        values.iter().map(|(name, value)| format!("{} = {value}", bare(name))).collect();
    format!("{{ {} }}", entries.join(", "))
}

pub(super) fn bare(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { basic(key) }
}

/// A text, in quotes without escapes if possible.
pub(crate) fn text(text: &str) -> String {
    let needs_escapes = text.contains(['"', '\\']);
    if needs_escapes && !text.contains(|char: char| char == '\'' || char.is_control()) {
        return format!("'{text}'");
    }
    basic(text)
}

/// JSON's escapes are valid in TOML, but TOML needs one more.
fn basic(text: &str) -> String {
    quoted(text).replace('\u{7f}', "\\u007F")
}
