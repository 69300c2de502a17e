//! The text as tables that are read key by key: a value of the wrong type and a key that nobody
//! asked for become faults with their line, and reading goes on, so that all of them are found.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{Fault, Faults};

/// The text's lines, and what is wrong in them.
pub(super) struct Page {
    /// Where each line begins.
    starts: Vec<usize>,
    faults: RefCell<Vec<Fault>>,
}

impl Page {
    pub(super) fn new(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        Self { starts, faults: RefCell::default() }
    }

    /// The line of a place in the text, from 1.
    pub(super) fn line(&self, at: usize) -> u32 {
        u32::try_from(self.starts.partition_point(|start| *start <= at)).unwrap_or(u32::MAX)
    }

    pub(super) fn fault(&self, at: usize, what: impl Into<String>, help: impl Into<String>) {
        self.faults.borrow_mut().push(Fault::at(self.line(at), what).help(help));
    }

    /// Something wrong that does not stand in the text.
    pub(super) fn whole(&self, what: impl Into<String>, help: impl Into<String>) {
        self.faults.borrow_mut().push(Fault::at(0, what).help(help));
    }

    pub(super) fn has_faults(&self) -> bool {
        !self.faults.borrow().is_empty()
    }

    /// All of them in the order of the text.
    pub(super) fn into_faults(self) -> Faults {
        let mut faults = self.faults.into_inner();
        faults.sort_by_key(|fault| fault.line);
        Faults(faults)
    }
}

/// A table, which remembers the keys that it was asked for.
pub(super) struct Table<'p, 'i> {
    pub(super) page: &'p Page,
    table: &'p DeTable<'i>,
    /// Where it begins.
    pub(super) at: usize,
    /// How messages call it.
    label: String,
    asked: RefCell<Vec<&'static str>>,
}

impl<'p, 'i> Table<'p, 'i> {
    pub(super) fn new(
        page: &'p Page,
        table: &'p DeTable<'i>,
        at: usize,
        label: impl Into<String>,
    ) -> Self {
        Self { page, table, at, label: label.into(), asked: RefCell::default() }
    }

    /// The value of a key, if it is there.
    pub(super) fn get(&self, key: &'static str) -> Option<Entry<'p, 'i>> {
        self.asked.borrow_mut().push(key);
        let (name, value) = self.table.get_key_value(key)?;
        Some(Entry { page: self.page, key: key.to_owned(), at: name.span().start, value })
    }

    /// The value of a key that has to be there.
    pub(super) fn need(&self, key: &'static str, takes: &str) -> Option<Entry<'p, 'i>> {
        let found = self.get(key);
        if found.is_none() {
            let what = format!("{}: {key} is missing", self.label);
            self.page.fault(self.at, what, format!("it takes {takes}"));
        }
        found
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// All entries in the order of the text, for tables whose keys are names.
    pub(super) fn entries(&self) -> Vec<Entry<'p, 'i>> {
        entries(self.page, self.table)
    }

    /// Complains about keys that were not asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for entry in self.entries().iter().filter(|entry| !asked.contains(&entry.key.as_str())) {
            let what = format!("{}: no such key in {}", entry.key, self.label);
            let help =
                hint(&entry.key, &asked).unwrap_or_else(|| format!("it takes {}", list(&asked)));
            self.page.fault(entry.at, what, help);
        }
    }
}

/// A key and its value.
pub(super) struct Entry<'p, 'i> {
    pub(super) page: &'p Page,
    pub(super) key: String,
    /// Where the key stands, or in lists the value.
    pub(super) at: usize,
    value: &'p Spanned<DeValue<'i>>,
}

impl<'p, 'i> Entry<'p, 'i> {
    /// Says what is wrong with the value, and what is allowed.
    pub(super) fn wrong(&self, why: impl std::fmt::Display, help: impl Into<String>) {
        let what = format!("{}: {why}", self.key);
        self.page.fault(self.value.span().start, what, help);
    }

    fn wrong_type(&self, takes: &str) {
        let found = self.value.get_ref().type_str();
        self.wrong(format_args!("is of the wrong type ({found})"), format!("it takes {takes}"));
    }

    pub(super) fn value(&self) -> &'p DeValue<'i> {
        self.value.get_ref()
    }

    pub(super) fn as_str(&self) -> Option<&'p str> {
        self.value().as_str()
    }

    pub(super) fn text(&self, takes: &str) -> Option<&'p str> {
        let text = self.as_str();
        if text.is_none() {
            self.wrong_type(takes);
        }
        text
    }

    pub(super) fn bool(&self) -> Option<bool> {
        let found = self.value().as_bool();
        if found.is_none() {
            self.wrong_type("true or false");
        }
        found
    }

    /// One of some words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let takes = list(&names);
        let text = self.text(&takes)?;
        let found = words.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let help = hint(text, &names).unwrap_or_else(|| format!("it takes {takes}"));
            self.wrong(format_args!("{text:?} is none of its words"), help);
        }
        found.map(|(_, value)| *value)
    }

    /// A whole number in bounds.
    pub(super) fn integer(&self, bounds: RangeInclusive<i64>) -> Option<i64> {
        let takes = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let DeValue::Integer(number) = self.value() else {
            self.wrong_type(&takes);
            return None;
        };
        match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(found) if bounds.contains(&found) => Some(found),
            _ => {
                self.wrong(format_args!("{number} is out of bounds"), format!("it takes {takes}"));
                None
            }
        }
    }

    /// A whole number from `least` up.
    pub(super) fn count(&self, least: i64) -> Option<u64> {
        self.integer(least..=i64::MAX).map(i64::unsigned_abs)
    }

    /// A number, whole or not, from 0.
    pub(super) fn number(&self, takes: &str) -> Option<f64> {
        let found = match self.value() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .ok()
                .map(|number| number as f64),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => {
                self.wrong_type(takes);
                return None;
            }
        };
        let found = found.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        if found.is_none() {
            self.wrong("is no number from 0", format!("it takes {takes}"));
        }
        found
    }

    /// A time; nothing is one too.
    pub(super) fn time(&self) -> Option<Duration> {
        let takes = "a time with its unit such as \"500ms\", \"30s\", \"1m 30s\", \"2h\"";
        let text = self.text(takes)?;
        match text.parse::<humantime::Duration>() {
            Ok(found) if *found <= TIME_MAX => Some(*found),
            Ok(_) => {
                self.wrong(format_args!("{text:?} is too long"), "a hundred years is the most");
                None
            }
            Err(error) => {
                self.wrong(format_args!("{text:?}: {error}"), format!("it takes {takes}"));
                None
            }
        }
    }

    /// A time, or the shortest and the longest.
    pub(super) fn time_range(&self) -> Option<(Duration, Duration)> {
        let takes = "a time or a range of times such as \"0-1s\", \"500ms-2s\"";
        let text = self.text(takes)?;
        let found = super::units::time_range(text).map_err(|why| self.wrong(why, takes)).ok()?;
        if found.1 > TIME_MAX {
            self.wrong(format_args!("{text:?} is too long"), "a hundred years is the most");
            return None;
        }
        Some(found)
    }

    /// A time that is longer than nothing.
    pub(super) fn some_time(&self) -> Option<Duration> {
        let found = self.time()?;
        if found.is_zero() {
            self.wrong("must be longer than nothing", "");
            return None;
        }
        Some(found)
    }

    /// The entries of a list.
    pub(super) fn list(&self, takes: &str) -> Option<Vec<Self>> {
        let DeValue::Array(values) = self.value() else {
            self.wrong_type(takes);
            return None;
        };
        let entry = |value: &'p Spanned<DeValue<'i>>| Entry {
            page: self.page,
            key: self.key.clone(),
            at: value.span().start,
            value,
        };
        Some(values.iter().map(entry).collect())
    }

    /// The entries of a list, or the value alone.
    pub(super) fn one_or_more(&self) -> Vec<Self> {
        match self.value() {
            DeValue::Array(_) => self.list("").unwrap_or_default(),
            _ => vec![Entry { key: self.key.clone(), ..*self }],
        }
    }

    /// A pair of entries.
    pub(super) fn pair(&self, takes: &str) -> Option<(Self, Self)> {
        let mut both = self.list(takes)?.into_iter();
        match (both.next(), both.next(), both.next()) {
            (Some(first), Some(second), None) => Some((first, second)),
            _ => {
                self.wrong("does not have two entries", format!("it takes {takes}"));
                None
            }
        }
    }

    pub(super) fn is_list(&self) -> bool {
        self.value().is_array()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value().is_table()
    }

    pub(super) fn table(&self, label: impl Into<String>) -> Option<Table<'p, 'i>> {
        let label = label.into();
        let Some(table) = self.value().as_table() else {
            self.wrong_type(&format!("a table: {label}"));
            return None;
        };
        Some(Table::new(self.page, table, self.value.span().start, label))
    }

    /// Names with values in the order of the text: a table, or a list of pairs where a name comes
    /// twice.
    pub(super) fn named(&self) -> Vec<Self> {
        if let DeValue::Table(table) = self.value() {
            return entries(self.page, table);
        }
        let takes = "a table of names and values, or a list of pairs";
        let mut found = Vec::new();
        for pair in self.list(takes).unwrap_or_default() {
            let Some((name, value)) = pair.pair("a name and a value") else { continue };
            if let Some(name) = name.text("a name") {
                found.push(Entry { key: name.to_owned(), ..value });
            }
        }
        found
    }
}

/// Far beyond any use, and far below what clocks count to.
pub(super) const TIME_MAX: Duration = Duration::from_secs(36_500 * 86_400);

fn entries<'p, 'i>(page: &'p Page, table: &'p DeTable<'i>) -> Vec<Entry<'p, 'i>> {
    let mut found: Vec<_> = table
        .iter()
        .map(|(name, value)| Entry {
            page,
            key: name.get_ref().as_ref().to_owned(),
            at: name.span().start,
            value,
        })
        .collect();
    found.sort_by_key(|entry| entry.at);
    found
}

/// What a word that is not known may have been meant to be.
pub(super) fn hint(word: &str, known: &[&str]) -> Option<String> {
    let word = word.replace('-', "_").to_ascii_lowercase();
    let distance = |known: &&&str| strsim::damerau_levenshtein(&known.to_ascii_lowercase(), &word);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= 1 + word.chars().count() / 4).then(|| format!("did you mean {near}?"))
}

fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
