//! The tables of a scenario, except for steps.

use std::cell::RefCell;
use std::path::Path;

use simurgh_text::toml::{Document, Entry, Table, did_you_mean};

use super::keys::Keys;
use super::template::{self, Names};
use super::{tables, vars};
use crate::{
    DataFile, Diagnostics, Loaded, Overrides, Row, Scenario, Target, Template, VarId, read_rows,
};

/// Parses a scenario. Relative file names start from `base`; of `overrides` only the flags for
/// parsers are used. Returns all mistakes, in the order of their lines.
pub fn read(text: &str, base: &Path, overrides: &Overrides) -> Result<Loaded, Diagnostics> {
    let scenario = Document::read(text, |document, root| {
        let mut reader = Reader {
            document,
            base,
            overrides,
            vars: vars::declared(root.raw()),
            files: Vec::new(),
            targets: RefCell::default(),
            sessions: Vec::new(),
            phases: Vec::new(),
            topic: RefCell::default(),
        };
        reader.scenario(root)
    })?;
    Ok(Loaded { scenario, warnings: Vec::new() })
}

pub(super) struct Reader<'p> {
    pub(super) document: &'p Document,
    base: &'p Path,
    pub(super) overrides: &'p Overrides,
    vars: Vec<String>,
    files: Vec<DataFile>,
    pub(super) targets: RefCell<Vec<Target>>,
    pub(super) sessions: Vec<String>,
    pub(super) phases: Vec<String>,
    /// That of the last join of the session.
    pub(super) topic: RefCell<Option<Template>>,
}

impl Names for Reader<'_> {
    fn var(&self, name: &str) -> Result<VarId, String> {
        match self.vars.iter().position(|known| known == name) {
            Some(at) => u16::try_from(at)
                .map(VarId)
                .map_err(|_| "exceeds the maximum number of variables".into()),
            None => {
                let known: Vec<_> = self.vars.iter().map(String::as_str).collect();
                let help =
                    did_you_mean(name, &known).map(|hint| format!("; {hint}")).unwrap_or_default();
                Err(format!("the variable {name:?} is never set{help}"))
            }
        }
    }

    fn file(&self, name: &str) -> Result<u16, String> {
        let at = self.files.iter().position(|file| file.name == name);
        at.and_then(|at| u16::try_from(at).ok())
            .ok_or_else(|| format!("the file {name:?} is not in [files]"))
    }
}

impl Reader<'_> {
    fn scenario(&mut self, root: Table<'_, '_>) -> Scenario {
        self.files = root.get("files").map(|entry| self.read_files(&entry)).unwrap_or_default();
        self.read_targets(&root);
        let sessions = root.need("session", "tables [[session]] with steps");
        let sessions: Vec<_> = sessions.iter().flat_map(Entry::one_or_more).collect();
        self.sessions = sessions.iter().enumerate().map(|(at, one)| table_name(at, one)).collect();
        let phases = root.all("phase");
        self.phases = phases.iter().enumerate().map(|(at, one)| table_name(at, one)).collect();
        let mut scenario = Scenario {
            vars: self.vars.clone(),
            files: self.files.clone(),
            sources: self.section(&root, "sources", "[sources]", tables::sources),
            timeouts: self.section(&root, "timeouts", "[timeouts]", tables::timeouts),
            tls: self.section(&root, "tls", "[tls]", tables::tls),
            ..Scenario::default()
        };
        tables::top(&mut Keys::Read(self, &root), &mut scenario);
        let tsung = root.get("tsung");
        scenario.tsung = tsung.and_then(|entry| self.table(&entry, "[tsung]", tables::tsung));
        let agents = root.all("agent").into_iter();
        let agents: Vec<_> =
            agents.filter_map(|entry| self.table(&entry, "[[agent]]", tables::agent)).collect();
        scenario.agents = if self.overrides.local { Vec::new() } else { agents };
        scenario.load.phases = self.tables(&phases, "[[phase]]", tables::phase);
        let appointments = root.all("appointment");
        scenario.load.appointments =
            self.tables(&appointments, "[[appointment]]", |keys, one, _| {
                tables::appointment(keys, one);
            });
        scenario.sessions = self.tables(&sessions, "[[session]]", |keys, one, at| {
            self.topic.take();
            tables::session(keys, one, at);
        });
        scenario.pass = root.get("pass").map(|entry| tables::pass(&entry)).unwrap_or_default();
        for name in root.all("vars") {
            name.text("names of variables");
        }
        root.finish();
        Scenario { targets: self.targets.take(), ..scenario }
    }

    fn section<T: Default>(
        &self,
        root: &Table<'_, '_>,
        key: &'static str,
        label: &str,
        describe: fn(&mut Keys<'_, '_, '_>, &mut T),
    ) -> T {
        root.get(key).and_then(|entry| self.table(&entry, label, describe)).unwrap_or_default()
    }

    fn tables<T: Default>(
        &self,
        entries: &[Entry<'_, '_>],
        label: &str,
        describe: impl Fn(&mut Keys<'_, '_, '_>, &mut T, usize),
    ) -> Vec<T> {
        let entries = entries.iter().enumerate();
        let read = |(at, entry): (usize, &Entry<'_, '_>)| {
            self.table(entry, label, |keys, one| describe(keys, one, at))
        };
        entries.filter_map(read).collect()
    }

    fn read_files(&self, entry: &Entry<'_, '_>) -> Vec<DataFile> {
        let mut found = Vec::new();
        for file in entry.named() {
            let (path, rows) = if file.is_list() {
                let rows = file.list("").unwrap_or_default();
                let rows = rows.iter().filter_map(|row| row.text("a row"));
                (None, rows.map(|row| Row::from(row.as_bytes())).collect())
            } else if file.is_table() {
                (None, self.numbers(&file))
            } else {
                let takes = "the path of a file, a list of rows, or { from = 1, to = 600 }";
                let Some(path) = file.text(takes) else {
                    continue;
                };
                let rows = read_rows(self.base, path).unwrap_or_else(|error| {
                    file.wrong(error, "paths start from the scenario's directory");
                    Vec::new()
                });
                (Some(path.to_owned()), rows)
            };
            found.push(DataFile { name: file.key, path, rows });
        }
        found
    }

    /// The rows of `{ from = 1, to = 600 }`.
    fn numbers(&self, entry: &Entry<'_, '_>) -> Vec<Row> {
        let Some(table) = entry.table(format!("the rows of {}", entry.key)) else {
            return Vec::new();
        };
        let bound = |key| table.need(key, "a whole number").and_then(|entry| entry.count(0));
        let (from, to) = (bound("from"), bound("to"));
        table.finish();
        let (Some(from), Some(to)) = (from, to) else { return Vec::new() };
        match to.checked_sub(from) {
            Some(more) if more < ROWS_MAX => {
                (from..=to).map(|row| Row::from(row.to_string())).collect()
            }
            Some(_) => {
                entry.wrong(format_args!("has more than {ROWS_MAX} rows"), "");
                Vec::new()
            }
            None => {
                entry.wrong(format_args!("goes from {from} down to {to}"), "");
                Vec::new()
            }
        }
    }

    pub(super) fn session_index(&self, entry: &Entry<'_, '_>, name: &str) -> Option<usize> {
        self.index_of("session", &self.sessions, entry, name)
    }

    /// The index of a name, which must be unique.
    pub(super) fn index_of(
        &self,
        what: &str,
        all: &[String],
        entry: &Entry<'_, '_>,
        name: &str,
    ) -> Option<usize> {
        let mut found = all.iter().enumerate().filter(|(_, known)| *known == name);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Some(at),
            (Some(_), Some(_)) => {
                entry.wrong(format_args!("several {what}s are called {name:?}"), "rename one");
                None
            }
            (None, _) => {
                let known: Vec<_> = all.iter().map(String::as_str).collect();
                let help = did_you_mean(name, &known).unwrap_or_default();
                entry.wrong(format_args!("there is no {what} {name:?}"), help);
                None
            }
        }
    }

    /// PEM, or the path of a file with it.
    pub(super) fn pem(&self, entry: &Entry<'_, '_>) -> Option<String> {
        let text = entry.text("the path of a PEM file")?;
        if text.contains(PEM) {
            return Some(text.to_owned());
        }
        let path = self.base.join(text);
        match std::fs::read_to_string(&path) {
            Ok(text) if text.contains(PEM) => Some(text),
            Ok(_) => {
                entry.wrong(format_args!("{} holds no PEM", path.display()), "");
                None
            }
            Err(error) => {
                entry.wrong(format_args!("cannot read {}: {error}", path.display()), "");
                None
            }
        }
    }

    pub(super) fn template(&self, entry: &Entry<'_, '_>) -> Option<Template> {
        let text = entry.text("a text")?;
        let template = template::parse(text, self);
        entry.checked(template, "")
    }

    pub(super) fn var_of(&self, entry: &Entry<'_, '_>) -> Option<VarId> {
        let name = entry.text("the name of a variable")?;
        self.var_named(entry, name)
    }

    pub(super) fn var_named(&self, entry: &Entry<'_, '_>, name: &str) -> Option<VarId> {
        entry.checked(self.var(name), "")
    }
}

/// Maximum of numeric rows: more would be a mistake.
const ROWS_MAX: u64 = 1_000_000;
const PEM: &str = "-----BEGIN ";

/// The name of one of several tables: its number, unless it has a name.
fn table_name(at: usize, entry: &Entry<'_, '_>) -> String {
    let name = entry.value().get("name").and_then(|name| name.get_ref().as_str());
    name.map_or_else(|| (at + 1).to_string(), str::to_owned)
}
