//! The tables of a scenario, except for steps.

use std::cell::RefCell;
use std::path::Path;

use simurgh_text::toml::{Document, Entry, Table, did_you_mean};

use super::tables::{
    CUTS, PROTOCOLS, SPREADS, TRANSPORTS, addresses, arrivals, follow_stamps, pass, reconnect,
    seed, small, sources, time_range, timeouts, tsung, weight, weighted,
};
use super::template::{self, Names};
use super::vars;
use crate::{
    Agent, AnswerRule, Appointment, Arrivals, DataFile, Diagnostics, Drop, FrameOut, Heartbeat,
    LOCAL_AGENT, Load, Loaded, Matcher, Overrides, Phase, Row, Scenario, Session, Target, Template,
    Tls, VarId, read_rows,
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
    sessions: Vec<String>,
    phases: Vec<String>,
}

impl Names for Reader<'_> {
    fn var(&self, name: &str) -> Result<VarId, String> {
        match self.vars.iter().position(|known| known == name) {
            Some(at) => u16::try_from(at).map(VarId).map_err(|_| "is one variable too many".into()),
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
        let phases = phases.iter().enumerate();
        self.phases = phases.map(|(at, one)| table_name(at, one)).collect();
        let sessions = sessions.iter().enumerate();
        let sessions: Vec<_> = sessions.filter_map(|(at, one)| self.session(at, one)).collect();
        let load = self.load(&root);
        let scenario = Scenario {
            name: root.text("name", "a name").unwrap_or("unnamed").to_owned(),
            seed: root.get("seed").and_then(|entry| seed(&entry)).unwrap_or(1),
            targets: Vec::new(),
            spread: root.word("spread", &SPREADS).unwrap_or_default(),
            sources: root.get("sources").and_then(|e| sources(&e)).unwrap_or_default(),
            load,
            sessions,
            vars: self.vars.clone(),
            files: self.files.clone(),
            timeouts: root.get("timeouts").and_then(|e| timeouts(&e)).unwrap_or_default(),
            pass: root.get("pass").map(|e| pass(&e)).unwrap_or_default(),
            agents: root.get("agent").map(|e| self.agents(&e)).unwrap_or_default(),
            tls: root.get("tls").and_then(|e| self.tls(&e)).unwrap_or_default(),
            user_agents: root.get("user_agents").map(|e| weighted(&e)).unwrap_or_default(),
            tsung: root.get("tsung").and_then(|e| tsung(&e)),
        };
        for name in root.all("vars") {
            name.text("names of variables");
        }
        root.finish();
        Scenario { targets: self.targets.take(), ..scenario }
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

    fn load(&self, root: &Table<'_, '_>) -> Load {
        let phases = root.all("phase");
        let phases = phases.iter().enumerate();
        let phases = phases.filter_map(|(at, entry)| self.phase(at, entry)).collect();
        let appointments = root.all("appointment");
        let appointments = appointments.iter();
        Load {
            phases,
            appointments: appointments.filter_map(|entry| self.appointment(entry)).collect(),
            repeat: root.get("repeat").and_then(|e| small(&e)).unwrap_or(0),
            duration: root.get("duration").and_then(|entry| entry.some_time()),
            users_max: root.count("max_users", 0),
            follow_stamps: root
                .get("follow_stamps")
                .and_then(|e| follow_stamps(&e))
                .unwrap_or_default(),
        }
    }

    fn phase(&self, at: usize, entry: &Entry<'_, '_>) -> Option<Phase> {
        let table = entry.table("[[phase]]")?;
        let name = table.text("name", "a name");
        let duration = table.need("duration", "a time such as \"60s\"");
        let arrivals = arrivals(&table);
        let weights = table.get("weights").map(|entry| self.weights(&entry));
        let phase = Phase {
            name: name.map_or_else(|| (at + 1).to_string(), str::to_owned),
            duration: duration.and_then(|entry| entry.time()).unwrap_or_default(),
            arrivals: arrivals.unwrap_or(Arrivals::Closed { from: 0, to: 0 }),
            users_max: table.count("max_users", 0),
            wait_for_users: table.bool("wait_for_users").unwrap_or(false),
            hold: table.bool("hold").unwrap_or(false),
            weights: weights.unwrap_or_default(),
        };
        table.finish();
        Some(phase)
    }

    fn weights(&self, entry: &Entry<'_, '_>) -> Vec<Option<f64>> {
        let mut weights = vec![None; self.sessions.len()];
        for weight in entry.named() {
            let at = self.session_index(&weight, &weight.key);
            let value = weight.number("a weight from 0");
            if let Some(slot) = at.and_then(|at| weights.get_mut(at)) {
                *slot = value;
            }
        }
        weights
    }

    fn session_index(&self, entry: &Entry<'_, '_>, name: &str) -> Option<usize> {
        self.index_of("session", &self.sessions, entry, name)
    }

    /// The index of a name, which must be unique.
    fn index_of(
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

    fn appointment(&self, entry: &Entry<'_, '_>) -> Option<Appointment> {
        let table = entry.table("[[appointment]]")?;
        let at = table.need("at", "a time after the start").and_then(|entry| entry.time());
        let session = table.need("session", "the name of a session").and_then(|entry| {
            let name = entry.text("the name of a session")?;
            self.session_index(&entry, name)
        });
        table.finish();
        Some(Appointment { at: at?, session: session? })
    }

    fn session(&self, at: usize, entry: &Entry<'_, '_>) -> Option<Session> {
        let table = entry.table("[[session]]")?;
        // It was read before all others.
        table.text("name", "a name");
        let dialect = table.word("protocol", &PROTOCOLS);
        let transport = table.word("transport", &TRANSPORTS);
        let rules = table.all("answer");
        let steps = table.need("steps", "a list of steps");
        let session = Session {
            name: self.sessions.get(at).cloned().unwrap_or_default(),
            weight: weight(&table),
            dialect: dialect.unwrap_or_default(),
            transport: transport.unwrap_or_default(),
            heartbeat: table.get("heartbeat").and_then(|entry| self.heartbeat(&entry)),
            rules: rules.iter().filter_map(|entry| self.rule(entry)).collect(),
            reconnect: table.get("reconnect").and_then(|entry| reconnect(&entry)),
            drop: table.get("drop").and_then(|entry| self.drop(&entry)),
            resume: table.bool("resume").unwrap_or(false),
            read_rate_max: table.count("read_rate_max", 1),
            steps: steps.map(|entry| self.steps(&entry, &mut None)).unwrap_or_default(),
        };
        table.finish();
        Some(session)
    }

    /// A time, or `{ every = "25s", send = "2" }`.
    fn heartbeat(&self, entry: &Entry<'_, '_>) -> Option<Heartbeat> {
        if !entry.is_table() {
            return Some(Heartbeat { every: entry.some_time()?, send: None });
        }
        let table = entry.table("heartbeat")?;
        let every = table.need("every", "a time such as \"25s\"");
        let every = every.and_then(|entry| entry.some_time());
        let send = self.frame_out(&table);
        table.finish();
        Some(Heartbeat { every: every?, send: Some(send?) })
    }

    /// `{ when = "2", send = "3" }`; a plain text is the whole frame.
    fn rule(&self, entry: &Entry<'_, '_>) -> Option<AnswerRule> {
        let table = entry.table("a rule such as { when = \"2\", send = \"3\" }")?;
        let when = table.need("when", "the text of the frames that are answered, or a match");
        let when = when.and_then(|entry| match entry.as_str() {
            Some("any") | None => self.matcher(&entry),
            Some(_) => self.template(&entry).map(Matcher::Is),
        });
        let send = self.frame_out(&table);
        table.finish();
        Some(AnswerRule { when: when?, send: send? })
    }

    /// The keys `send` and `binary` of a table.
    fn frame_out(&self, table: &Table<'_, '_>) -> Option<FrameOut> {
        let data = table.need("send", "what is sent, a text");
        let data = data.and_then(|entry| self.template(&entry));
        let binary = table.bool("binary").unwrap_or(false);
        Some(FrameOut { data: data?, binary })
    }

    fn drop(&self, entry: &Entry<'_, '_>) -> Option<Drop> {
        let table = entry.table("drop")?;
        let every = table.need("every", "the time from one cut to the next, such as \"10s\"");
        let every = every.and_then(|entry| entry.some_time());
        let away = table.need("for", "how long the user is away, such as \"2s\"");
        let away = away.and_then(|entry| entry.time());
        let how = table.need("how", "\"rst\", \"silence\" or \"both\"");
        let how = how.and_then(|entry| entry.word(&CUTS));
        let reconnect = table.get("reconnect").and_then(|entry| time_range(&entry));
        let phase = match table.get("phase") {
            None => Some(None),
            Some(entry) => {
                let name = entry.text("the name of a phase")?;
                self.index_of("phase", &self.phases, &entry, name).map(Some)
            }
        };
        table.finish();
        Some(Drop {
            every: every?,
            away: away?,
            how: how?,
            reconnect: reconnect.unwrap_or_default(),
            phase: phase?,
        })
    }

    fn agents(&self, entry: &Entry<'_, '_>) -> Vec<Agent> {
        let mut agents = Vec::new();
        for entry in entry.one_or_more() {
            let Some(table) = entry.table("[[agent]]") else { continue };
            let address = table.need("address", "where `simurgh load agent` listens");
            let address = address.and_then(|e| e.text("host and port")).unwrap_or("").to_owned();
            let token = if address == LOCAL_AGENT {
                table.get("token")
            } else {
                table.need("token", "what it was started with; $NAME is from the environment")
            };
            agents.push(Agent {
                address,
                token: token.and_then(|e| e.text("a token")).unwrap_or("").to_owned(),
                weight: weight(&table),
                addresses: table.get("addresses").map(|e| addresses(&e)).unwrap_or_default(),
            });
            table.finish();
        }
        if self.overrides.local { Vec::new() } else { agents }
    }

    fn tls(&self, entry: &Entry<'_, '_>) -> Option<Tls> {
        let table = entry.table("[tls]")?;
        let roots = table.all("roots");
        let roots = roots.iter();
        let tls = Tls {
            insecure: table.bool("insecure").unwrap_or(false),
            roots_pem: roots.filter_map(|entry| self.pem(entry)).collect(),
            identity_pem: table.get("identity").and_then(|entry| self.pem(&entry)),
        };
        table.finish();
        Some(tls)
    }

    /// PEM, or the path of a file with it.
    fn pem(&self, entry: &Entry<'_, '_>) -> Option<String> {
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

    pub(super) fn template_at(&self, table: &Table<'_, '_>, key: &'static str) -> Option<Template> {
        self.template(&table.get(key)?)
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
