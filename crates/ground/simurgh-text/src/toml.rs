//! TOML read key by key: a value of the wrong type and an unknown key become [`Diagnostic`]s with
//! their line, and reading continues, so that all of them are found.
//!
//! ```
//! # use simurgh_text::toml::Document;
//! let wrong = Document::read("port = \"80\"\nhots = \"a\"\n", |_, root| {
//!     let port = root.get("port").and_then(|port| port.integer(1..=65_535));
//!     let host = root.text("host", "the name of a host").map(str::to_owned);
//!     root.finish();
//!     (port, host)
//! });
//! assert_eq!(
//!     wrong.unwrap_err().to_string(),
//!     "line 1: port: is of the wrong type (string) (it takes a whole number from 1 to 65535)\n\
//!      line 2: hots: no such key in the top of the file (did you mean host?)"
//! );
//! ```

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{Diagnostic, Diagnostics};

/// The lines of a text, and the errors in them.
#[derive(Debug)]
pub struct Document {
    starts: Vec<usize>,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

impl Document {
    /// Reads a text with `read`, which gets its top table.
    ///
    /// # Errors
    /// All errors in the order of the text. If it is not TOML at all, `read` was not called.
    pub fn read<T>(
        text: &str,
        read: impl FnOnce(&Document, Table<'_, '_>) -> T,
    ) -> Result<T, Diagnostics> {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        let document = Self { starts, diagnostics: RefCell::default() };
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut lines = BTreeSet::new();
        for error in &errors {
            let at = error.span().map_or(0, |span| span.start);
            // A second error on the same line is most often the same error again.
            if lines.insert(document.line(at)) {
                let message = error.message().lines().collect::<Vec<_>>().join(", ");
                document.wrong(at, format!("not TOML: {message}"), "");
            }
        }
        let table = Table::new(&document, root.get_ref(), 0, "the top of the file");
        let found = errors.is_empty().then(|| read(&document, table));
        let mut diagnostics = document.diagnostics.into_inner();
        diagnostics.sort_by_key(|one| one.line);
        match found {
            Some(found) if diagnostics.is_empty() => Ok(found),
            _ => Err(Diagnostics(diagnostics)),
        }
    }

    /// The line of a place in the text, from 1.
    pub fn line(&self, at: usize) -> u32 {
        u32::try_from(self.starts.partition_point(|start| *start <= at)).unwrap_or(u32::MAX)
    }

    /// Adds an error at a place in the text.
    pub fn wrong(&self, at: usize, what: impl Into<String>, help: impl Into<String>) {
        self.add(Diagnostic::at(self.line(at), what).help(help));
    }

    /// Adds an error.
    pub fn add(&self, diagnostic: Diagnostic) {
        self.diagnostics.borrow_mut().push(diagnostic);
    }
}

/// A table, which remembers the keys that were read.
#[derive(Debug)]
pub struct Table<'d, 'i> {
    document: &'d Document,
    table: &'d DeTable<'i>,
    at: usize,
    label: String,
    known: RefCell<Vec<&'static str>>,
}

impl<'d, 'i> Table<'d, 'i> {
    fn new(
        document: &'d Document,
        table: &'d DeTable<'i>,
        at: usize,
        label: impl Into<String>,
    ) -> Self {
        Self { document, table, at, label: label.into(), known: RefCell::default() }
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &'static str) -> Option<Entry<'d, 'i>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&key) {
            known.push(key);
        }
        let (name, value) = self.table.get_key_value(key)?;
        Some(Entry { document: self.document, key: key.into(), at: name.span().start, value })
    }

    /// The value of a required key.
    pub fn need(&self, key: &'static str, takes: &str) -> Option<Entry<'d, 'i>> {
        let found = self.get(key);
        if found.is_none() {
            self.wrong(format_args!("{key} is missing"), format!("it takes {takes}"));
        }
        found
    }

    /// The entries of a list, or a single value, or nothing if the key is missing.
    pub fn all(&self, key: &'static str) -> Vec<Entry<'d, 'i>> {
        self.get(key).map(|entry| entry.one_or_more()).unwrap_or_default()
    }

    /// A text, if it is there.
    pub fn text(&self, key: &'static str, takes: &str) -> Option<&'d str> {
        self.get(key)?.text(takes)
    }

    /// `true` or `false`, if it is there.
    pub fn bool(&self, key: &'static str) -> Option<bool> {
        self.get(key)?.bool()
    }

    /// One of some words, if it is there.
    pub fn word<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.get(key)?.word(words)
    }

    /// A whole number of at least `least`, if it is there.
    pub fn count(&self, key: &'static str, least: i64) -> Option<u64> {
        self.get(key)?.count(least)
    }

    /// A time, if it is there.
    pub fn time(&self, key: &'static str) -> Option<Duration> {
        self.get(key)?.time()
    }

    /// All entries in the order of the text, for tables whose keys are names.
    pub fn entries(&self) -> Vec<Entry<'d, 'i>> {
        entries(self.document, self.table)
    }

    /// Whether a key is there; it does not count as read.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The table as it was parsed.
    pub fn raw(&self) -> &'d DeTable<'i> {
        self.table
    }

    /// Adds an error of the table as a whole.
    pub fn wrong(&self, why: impl Display, help: impl Into<String>) {
        self.document.wrong(self.at, format!("{}: {why}", self.label), help);
    }

    /// Adds the keys that were not read as errors.
    pub fn finish(self) {
        let known = self.known.borrow();
        for entry in self.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let what = format!("{}: no such key in {}", entry.key, self.label);
            let help = did_you_mean(&entry.key, &known)
                .unwrap_or_else(|| format!("it takes {}", any_of(&known)));
            self.document.wrong(entry.at, what, help);
        }
    }
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry<'d, 'i> {
    /// The document that it is from.
    pub document: &'d Document,
    /// The key.
    pub key: String,
    /// The offset of the key, or in lists of the value.
    pub at: usize,
    value: &'d Spanned<DeValue<'i>>,
}

impl<'d, 'i> Entry<'d, 'i> {
    /// Adds an error of the value, with the allowed values.
    pub fn wrong(&self, why: impl Display, help: impl Into<String>) {
        self.document.wrong(self.value.span().start, format!("{}: {why}", self.key), help);
    }

    fn wrong_type<T>(&self, takes: &str) -> Option<T> {
        let found = self.value().type_str();
        self.wrong(format_args!("is of the wrong type ({found})"), format!("it takes {takes}"));
        None
    }

    /// The value, if it was read; otherwise adds the error.
    pub fn checked<T>(&self, value: Result<T, impl Display>, help: impl Into<String>) -> Option<T> {
        value.map_err(|why| self.wrong(why, help)).ok()
    }

    /// The value as it was parsed.
    pub fn value(&self) -> &'d DeValue<'i> {
        self.value.get_ref()
    }

    /// The value, if it is a text.
    pub fn as_str(&self) -> Option<&'d str> {
        self.value().as_str()
    }

    /// A text.
    pub fn text(&self, takes: &str) -> Option<&'d str> {
        self.as_str().or_else(|| self.wrong_type(takes))
    }

    /// `true` or `false`.
    pub fn bool(&self) -> Option<bool> {
        self.value().as_bool().or_else(|| self.wrong_type("true or false"))
    }

    /// One of some words.
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let takes = any_of(&names);
        let text = self.text(&takes)?;
        let found = words.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let help = did_you_mean(text, &names).unwrap_or_else(|| format!("it takes {takes}"));
            self.wrong(format_args!("{text:?} is not allowed"), help);
        }
        found.map(|(_, value)| *value)
    }

    /// A whole number in bounds.
    pub fn integer(&self, bounds: RangeInclusive<i64>) -> Option<i64> {
        let takes = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let DeValue::Integer(number) = self.value() else { return self.wrong_type(&takes) };
        let found = i64::from_str_radix(number.as_str(), number.radix()).ok();
        let found = found.filter(|found| bounds.contains(found));
        if found.is_none() {
            self.wrong(format_args!("{number} is out of bounds"), format!("it takes {takes}"));
        }
        found
    }

    /// A whole number of at least `least`.
    pub fn count(&self, least: i64) -> Option<u64> {
        self.integer(least..=i64::MAX).map(i64::unsigned_abs)
    }

    /// A number, whole or not, from 0.
    pub fn number(&self, takes: &str) -> Option<f64> {
        let found = match self.value() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .ok()
                .map(|number| number as f64),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => return self.wrong_type(takes),
        };
        let found = found.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        if found.is_none() {
            self.wrong("must be a number of 0 or more", format!("it takes {takes}"));
        }
        found
    }

    /// A time, which may be 0.
    pub fn time(&self) -> Option<Duration> {
        let takes = "a time with its unit such as \"500ms\", \"30s\", \"1m 30s\", \"2h\"";
        let text = self.text(takes)?;
        let time = text.parse::<humantime::Duration>();
        let time = time.map_err(|error| format!("{text:?}: {error}"));
        self.checked(time, format!("it takes {takes}")).and_then(|time| self.bounded(*time, text))
    }

    /// A time within the bound.
    pub fn bounded(&self, time: Duration, text: &str) -> Option<Duration> {
        if time > TIME_MAX {
            self.wrong(format_args!("{text:?} is too long"), "the maximum is a hundred years");
            return None;
        }
        Some(time)
    }

    /// A time greater than 0.
    pub fn some_time(&self) -> Option<Duration> {
        let found = self.time()?;
        if found.is_zero() {
            self.wrong("must be longer than 0", "");
            return None;
        }
        Some(found)
    }

    /// The entries of a list.
    pub fn list(&self, takes: &str) -> Option<Vec<Self>> {
        let DeValue::Array(values) = self.value() else { return self.wrong_type(takes) };
        let entry = |value: &'d Spanned<DeValue<'i>>| Entry {
            at: value.span().start,
            value,
            ..self.clone()
        };
        Some(values.iter().map(entry).collect())
    }

    /// The entries of a list, or the single value.
    pub fn one_or_more(&self) -> Vec<Self> {
        match self.value() {
            DeValue::Array(_) => self.list("").unwrap_or_default(),
            _ => vec![self.clone()],
        }
    }

    /// A pair of entries.
    pub fn pair(&self, takes: &str) -> Option<(Self, Self)> {
        let both: Result<[Self; 2], _> = self.list(takes)?.try_into();
        let both = both.map_err(|_| "does not have two entries");
        self.checked(both, format!("it takes {takes}")).map(<(Self, Self)>::from)
    }

    /// Whether the value is a list.
    pub fn is_list(&self) -> bool {
        self.value().is_array()
    }

    /// Whether the value is a table.
    pub fn is_table(&self) -> bool {
        self.value().is_table()
    }

    /// A table; `label` is its name in messages.
    pub fn table(&self, label: impl Into<String>) -> Option<Table<'d, 'i>> {
        let label = label.into();
        match self.value().as_table() {
            Some(table) => Some(Table::new(self.document, table, self.value.span().start, label)),
            None => self.wrong_type(&format!("a table: {label}")),
        }
    }

    /// Names with values in order: a table, or a list of pairs if a name occurs twice.
    pub fn named(&self) -> Vec<Self> {
        if let DeValue::Table(table) = self.value() {
            return entries(self.document, table);
        }
        let named = |pair: &Self| {
            let (name, value) = pair.pair("a name and a value")?;
            Some(Entry { key: name.text("a name")?.to_owned(), ..value })
        };
        let pairs = self.list("a table of names and values, or a list of pairs");
        pairs.iter().flatten().filter_map(named).collect()
    }
}

/// Far above any use, and far below the limit of clocks.
const TIME_MAX: Duration = Duration::from_secs(36_500 * 86_400);

fn entries<'d, 'i>(document: &'d Document, table: &'d DeTable<'i>) -> Vec<Entry<'d, 'i>> {
    let entry = |(name, value): (&'d Spanned<_>, _)| {
        let key: &std::borrow::Cow<'i, str> = name.get_ref();
        Entry { document, key: key.to_string(), at: name.span().start, value }
    };
    let mut found: Vec<_> = table.iter().map(entry).collect();
    found.sort_by_key(|entry| entry.at);
    found
}

/// The known word nearest to an unknown one, as a question, if it is near enough.
pub fn did_you_mean(word: &str, known: &[&str]) -> Option<String> {
    let word = word.replace('-', "_").to_ascii_lowercase();
    let distance = |known: &&&str| strsim::damerau_levenshtein(&known.to_ascii_lowercase(), &word);
    let is_near = |known: &&&str| distance(known) <= 1 + word.chars().count() / 4;
    // `aud` for `audience`.
    let is_short = |known: &&&str| known.len() > 2 && word.starts_with(**known);
    let near = known.iter().min_by_key(distance).filter(is_near);
    near.or_else(|| known.iter().find(is_short)).map(|near| format!("did you mean {near}?"))
}

/// `a, b or c`.
fn any_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
