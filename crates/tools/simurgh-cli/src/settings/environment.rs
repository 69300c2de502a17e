//! Keys from the environment: `SIMURGH_IDLE_TIMEOUT` is the key `idle_timeout`,
//! `SIMURGH_TOKEN__KEY_FILE` is `key_file` of `[token]`, and `SIMURGH_HOOK__APP__URL` is `url` of
//! the hook `app`. A value is TOML, else a text. A name that ends with `_FILE` and is no key itself
//! names the file that holds the value.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::table::Value;

const PREFIX: &str = "SIMURGH_";
const OF_FILE: &str = "_file";
/// Variables of other commands, and of builds.
const OTHERS: [&str; 6] = [
    "SIMURGH_BUILD_COMMIT",
    "SIMURGH_BUILD_DATE",
    "SIMURGH_COMMIT",
    "SIMURGH_LOAD_TOKEN",
    "SIMURGH_NATS_SERVER",
    "SIMURGH_TOKEN_KEY",
];

/// The lists of tables that have names.
const LISTS: [&str; 2] = ["api", "hook"];
const OF_LIST: &str = "a hook's key is SIMURGH_HOOK__NAME__KEY, and an API token's \
    SIMURGH_API__NAME__KEY";

/// A variable that names a key: the tables that contain it, its own name, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    tables: Vec<String>,
    key: String,
    text: String,
}

impl Variable {
    /// All of this process, in the order of their names.
    pub(super) fn all() -> Vec<Self> {
        Self::of(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        }))
    }

    pub(super) fn of(all: impl IntoIterator<Item = (String, String)>) -> Vec<Self> {
        let mut all: Vec<_> =
            all.into_iter().filter_map(|(name, text)| Self::new(name, text)).collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn new(name: String, text: String) -> Option<Self> {
        let path = name.strip_prefix(PREFIX).filter(|_| !OTHERS.contains(&name.as_str()))?;
        let mut tables: Vec<_> = path.split("__").map(str::to_ascii_lowercase).collect();
        let key = tables.pop()?;
        Some(Self { name, tables, key, text })
    }

    /// Reads the file that it names, if `is_key` knows its key only without `_FILE`. `is_key` gets
    /// the outermost table and the key.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(
        &mut self,
        is_key: impl Fn(Option<&str>, &str) -> bool,
    ) -> Result<(), String> {
        let table = self.tables.first().map(String::as_str);
        let Some(key) = self.key.strip_suffix(OF_FILE) else { return Ok(()) };
        if is_key(table, &self.key) || !is_key(table, key) {
            return Ok(());
        }
        let read = std::fs::read_to_string(&self.text);
        let read = read.map_err(|error| format!("cannot read {}: {error}", self.text))?;
        read.trim_end_matches(['\r', '\n']).clone_into(&mut self.text);
        self.key.truncate(key.len());
        Ok(())
    }

    /// The name of another variable with a value for the same key, if this one names a file.
    pub(super) fn rival<'v>(&self, all: &'v [Self]) -> Option<&'v str> {
        let is_same = |other: &&Self| other.key == self.key && other.tables == self.tables;
        let mut others = all.iter().filter(is_same).filter(|other| other.name != self.name);
        let is_file = self.name.to_ascii_lowercase().ends_with(OF_FILE);
        others.next().filter(|_| is_file).map(|other| &*other.name)
    }

    /// The key of the file itself that it needs: its own, or its outermost table.
    pub(super) fn first(&self) -> &str {
        self.tables.first().unwrap_or(&self.key)
    }

    /// Writes it into the file's tables, in place of the key that is there. All its mistakes have
    /// the position `at`.
    ///
    /// # Errors
    /// The path leads through something that is no table.
    pub(super) fn put<'i>(&'i self, root: &mut DeTable<'i>, at: usize) -> Result<(), String> {
        let place = at..at;
        let mut inside = root;
        let mut tables = self.tables.iter();
        while let Some(name) = tables.next() {
            inside = match name.as_str() {
                list if LISTS.contains(&list) => {
                    let name = tables.next().ok_or(OF_LIST)?;
                    member(inside, list, name, &place)?
                }
                name => table_of(inside, name, &place).ok_or_else(|| no_table(name))?,
            };
        }
        // The key of the file would remain, with its own position.
        inside.remove(self.key.as_str());
        inside.insert(named(&self.key, &place), value(&self.text, &place));
        Ok(())
    }
}

fn named<'i>(name: &'i str, place: &Range<usize>) -> Spanned<DeString<'i>> {
    Spanned::new(place.clone(), name.into())
}

/// The inner table of this name, made if there is none.
fn table_of<'t, 'i>(
    table: &'t mut DeTable<'i>,
    name: &'i str,
    place: &Range<usize>,
) -> Option<&'t mut DeTable<'i>> {
    if table.get(name).is_none() {
        let empty = Spanned::new(place.clone(), DeValue::Table(DeTable::new()));
        table.insert(named(name, place), empty);
    }
    match table.get_mut(name)?.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

fn no_table(name: &str) -> String {
    format!("{name} is not a table")
}

/// The table of this name in a list, made if the file has none of the list: another name beside
/// those of the file is more often mistyped than meant.
fn member<'t, 'i>(
    root: &'t mut DeTable<'i>,
    list: &'i str,
    name: &'i str,
    place: &Range<usize>,
) -> Result<&'t mut DeTable<'i>, String> {
    if root.get(list).is_none() {
        let empty = Spanned::new(place.clone(), DeValue::Array(DeArray::new()));
        root.insert(named(list, place), empty);
    }
    let Some(DeValue::Array(all)) = root.get_mut(list).map(Spanned::get_mut) else {
        return Err(no_table(list));
    };
    let place_of = |wanted: &str| all.iter().position(|table| name_of(table) == Some(wanted));
    let index = if let Some(index) = place_of(name) {
        index
    } else {
        // The tables of the environment have a place, and those of the file a length.
        let of_file = all.iter().filter(|table| !table.span().is_empty());
        let known: Vec<_> = of_file.filter_map(name_of).collect();
        if !known.is_empty() {
            let known = known.join(", ");
            return Err(format!("no [[{list}]] has the name {name:?}; the names are {known}"));
        }
        let mut table = DeTable::new();
        let own = Spanned::new(place.clone(), DeValue::String(name.into()));
        table.insert(named("name", place), own);
        all.push(Spanned::new(place.clone(), DeValue::Table(table)));
        all.len() - 1
    };
    match all.get_mut(index).map(Spanned::get_mut) {
        Some(DeValue::Table(table)) => Ok(table),
        _ => Err(no_table(list)),
    }
}

fn name_of<'t>(table: &'t Value<'_>) -> Option<&'t str> {
    table.get_ref().get("name")?.get_ref().as_str()
}

/// A value as TOML, else as a text; all its parts at one position.
fn value<'i>(text: &'i str, place: &Range<usize>) -> Value<'i> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    match DeValue::parse(text).map(Spanned::into_inner) {
        // Other forms of numbers and times are more often texts, such as tokens and versions.
        Ok(DeValue::Integer(number)) if is_plain => placed(DeValue::Integer(number), place),
        Ok(DeValue::Integer(_) | DeValue::Float(_) | DeValue::Datetime(_)) | Err(_) => {
            Spanned::new(place.clone(), DeValue::String(text.into()))
        }
        Ok(value) => placed(value, place),
    }
}

fn placed<'i>(value: DeValue<'i>, place: &Range<usize>) -> Value<'i> {
    let value = match value {
        DeValue::Array(array) => {
            let mut here = DeArray::new();
            array.into_iter().for_each(|entry| here.push(placed(entry.into_inner(), place)));
            DeValue::Array(here)
        }
        DeValue::Table(table) => {
            let mut here = DeTable::new();
            for (key, value) in table {
                let key = Spanned::new(place.clone(), key.into_inner());
                here.insert(key, placed(value.into_inner(), place));
            }
            DeValue::Table(here)
        }
        plain => plain,
    };
    Spanned::new(place.clone(), value)
}
