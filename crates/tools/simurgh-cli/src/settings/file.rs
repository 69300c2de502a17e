//! Reads `simurgh.toml` below the environment: all keys, and all mistakes with their lines, not
//! only the first.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use simurgh::api::ApiToken;
use simurgh::declared::{ChannelSpec, Mistake, SocketLimitsSpec};
use simurgh::hooks::HookSet;
use simurgh_text::toml::did_you_mean;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::api::ApiSpec;
#[cfg(feature = "nats")]
use super::cluster::ClusterSpec;
use super::environment::Variable;
use super::hook::HookTable;
use super::keys::{self, PartialSettings};
use super::mistakes::Refusal;
use super::table::{Channels, Value};
use super::tls::TlsSpec;
use super::token::TokenSpec;

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) name: String,
    text: String,
    /// The valid keys.
    pub(crate) settings: PartialSettings,
    /// The readable `[[channel]]` tables; `None` if the file declares no channels.
    pub(crate) channels: Option<Vec<ChannelSpec>>,
    /// The readable part of `[limits]`.
    pub(crate) limits: SocketLimitsSpec,
    /// The tables `[limits.NAME]`.
    pub(crate) named_limits: Vec<(String, SocketLimitsSpec)>,
    /// The table `[token]`, if there is one; `Some(None)` if any part cannot be read.
    pub(crate) token: Option<Option<TokenSpec>>,
    /// The table `[tls]`, likewise.
    pub(crate) tls: Option<Option<TlsSpec>>,
    /// The readable `[[hook]]` tables.
    pub(crate) hooks: Vec<HookTable>,
    /// The tables `[[api]]`; `None` if any part of one cannot be read.
    pub(crate) api: Vec<Option<ApiSpec>>,
    /// The table `[cluster]`, likewise.
    #[cfg(feature = "nats")]
    pub(crate) cluster: Option<Option<ClusterSpec>>,
    /// All tables, to compare them.
    pub(crate) tables: BTreeMap<String, toml::Value>,
    /// The hooks of a server that runs, in a reload.
    pub(crate) hooks_before: Option<Arc<HookSet>>,
    /// Warnings: settings that are allowed but probably not intended.
    warnings: Vec<(usize, String)>,
    /// Channels with unreadable keys; their further mistakes are not reported.
    unreadable: BTreeSet<usize>,
    /// The position of each key by its path, such as `channel[0].event[1].reply`.
    spans: BTreeMap<String, Range<usize>>,
    /// Positions in the text, and mistakes.
    complaints: Vec<(usize, String)>,
    /// The names of variables of the environment, whose positions follow the text.
    variables: Vec<String>,
}

impl File {
    /// The file, if there is a path, below the environment. Fails only if it cannot be read at all.
    pub(crate) fn read(path: Option<&Path>, channels: Channels) -> Result<Self, Refusal> {
        let variables = Variable::all();
        let Some(path) = path else {
            return Ok(Self::below(variables, "", String::new(), channels));
        };
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::below(variables, &name, text, channels)),
            Err(error) => Err(Refusal(vec![format!("cannot read {name}: {error}")])),
        }
    }

    pub(crate) fn parse(name: &str, text: String, channels: Channels) -> Self {
        Self::below(Vec::new(), name, text, channels)
    }

    /// The file with these variables in place of its keys.
    fn below(mut variables: Vec<Variable>, name: &str, text: String, channels: Channels) -> Self {
        let mut file = Self { name: name.to_owned(), text: text.clone(), ..Self::default() };
        file.variables = variables.iter().map(|variable| variable.name.clone()).collect();
        for (index, variable) in variables.iter_mut().enumerate() {
            if let Err(why) = variable.read(is_key) {
                file.complaints.push((text.len() + 1 + index, why));
            }
        }
        for (index, variable) in variables.iter().enumerate() {
            if let Some(rival) = variable.rival(&variables) {
                let why = format!("{rival} is set, too: remove one of them");
                file.complaints.push((text.len() + 1 + index, why));
            }
        }
        let (mut root, errors) = DeTable::parse_recoverable(&text);
        let mut last = 0;
        for error in &errors {
            let at = error.span().map_or(0, |span| span.start);
            // The next error on the same line usually has the same cause.
            if file.line(at) != last {
                last = file.line(at);
                file.complaints.push((at, format!("not TOML: {}", one_line(error.message()))));
            }
        }
        if errors.is_empty() {
            file.put(&variables, root.get_mut(), channels);
            file.root(root.get_ref(), channels);
        }
        file
    }

    fn put<'i>(&mut self, variables: &'i [Variable], root: &mut DeTable<'i>, channels: Channels) {
        let named = named_by_keys(root);
        let known = names(channels);
        for (index, variable) in variables.iter().enumerate() {
            let at = self.text.len() + 1 + index;
            // The value of another key, which names the variable.
            if named.contains(&variable.name) {
                continue;
            }
            let put = match known.contains(&variable.first()) {
                true => variable.put(root, at),
                false => Err(format!("no such key; {}", hint(variable.first(), &known))),
            };
            if let Err(why) = put {
                self.complaints.push((at, why));
            }
        }
    }

    pub(crate) fn complain(&mut self, path: &str, text: impl Into<String>) {
        self.complaints.push((self.place(path), text.into()));
    }

    pub(crate) fn complain_of(&mut self, mistake: &Mistake) {
        if self.unreadable.contains(&mistake.channel) {
            return;
        }
        let (table, label) = match mistake.event {
            None => (format!("channel[{}]", mistake.channel), CHANNEL),
            Some(event) => (format!("channel[{}].event[{event}]", mistake.channel), EVENT),
        };
        let text = format!("{label} {}: {}", mistake.key, mistake.message);
        self.complain(&format!("{table}.{}", mistake.key), text);
    }

    /// Adds a warning about a setting of a channel that is allowed but probably not intended.
    pub(crate) fn warn_of(&mut self, trap: &Mistake) {
        let path = format!("channel[{}].{}", trap.channel, trap.key);
        self.warn(&path, format!("{CHANNEL}: {}", trap.message));
    }

    pub(crate) fn warn(&mut self, path: &str, text: String) {
        self.warnings.push((self.place(path), text));
    }

    /// A text with the place of a key before it, as `file:line: text`.
    pub(crate) fn placed(&self, path: &str, text: &str) -> String {
        format!("{}: {text}", self.source(self.place(path)))
    }

    /// The warnings, as `file:line: text`.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.iter().map(|(at, text)| format!("{}: {text}", self.source(*at))).collect()
    }

    /// In the order of the file, as `file:line: text`.
    pub(crate) fn complaints(mut self) -> Vec<String> {
        self.complaints.sort_by_key(|(at, _)| *at);
        self.complaints.iter().map(|(at, text)| format!("{}: {text}", self.source(*at))).collect()
    }

    /// Where a position is: a line of the file, or a variable of the environment.
    fn source(&self, at: usize) -> String {
        let variable = at.checked_sub(self.text.len() + 1).and_then(|it| self.variables.get(it));
        match variable {
            Some(variable) => variable.clone(),
            None => format!("{}:{}", self.name, self.line(at)),
        }
    }

    /// The line of a position in the text, from 1.
    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    /// The position of a key, or of the table where it is missing.
    fn place(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(span) = self.spans.get(path) {
                return span.start;
            }
            match path.rsplit_once('.') {
                Some((table, _)) => path = table,
                None => return 0,
            }
        }
    }

    fn root(&mut self, root: &DeTable<'_>, channels: Channels) {
        let is_declared = channels == Channels::Declared;
        for (key, value) in root.iter() {
            let name = key.get_ref().as_ref();
            self.spans.insert(name.to_owned(), key.span());
            let plain = toml::Value::deserialize(ValueDeserializer::from(value.clone()));
            if keys::ALL.iter().all(|key| key.name != name) {
                self.tables.extend(plain.map(|plain| (name.to_owned(), plain)));
            }
            match name {
                "channel" if is_declared => self.read_channels(value),
                "hook" if is_declared => self.read_hooks(value),
                "limits" if is_declared => self.read_limits(value),
                "token" if is_declared => self.token = Some(self.whole_table(TOKEN, name, value)),
                "api" => self.read_api(value),
                "tls" => self.tls = Some(self.whole_table(TLS, name, value)),
                #[cfg(feature = "nats")]
                "cluster" => self.cluster = Some(self.whole_table(CLUSTER, name, value)),
                name => self.setting(name, key.span().start, value, channels),
            }
        }
    }

    fn setting(&mut self, name: &str, at: usize, value: &Value<'_>, channels: Channels) {
        let Some(key) = keys::ALL.iter().find(|key| key.name == name) else {
            let text = match name {
                "channel" => format!("{CHANNEL}: {IN_RUST}"),
                "limits" => format!("{LIMITS}: {IN_RUST}"),
                "token" => format!("{TOKEN}: {IN_RUST}"),
                "hook" => format!("{HOOK}: {IN_RUST}"),
                "cluster" => {
                    format!("{CLUSTER}: this program was built without the feature `nats`")
                }
                _ => format!("{name}: no such key; {}", hint(name, &names(channels))),
            };
            return self.complaints.push((at, text));
        };
        if !key.is_for(channels) {
            self.complaints.push((at, format!("{name}: {IN_RUST}")));
        } else if let Err(wrong) = (key.set)(&mut self.settings, value) {
            for wrong in wrong {
                let text = format!("{name}: {}; it takes {}", wrong.why, key.takes);
                self.complaints.push((wrong.span.start, text));
            }
        }
    }

    /// A table; `None` if any part cannot be read.
    fn whole_table<T: Default + for<'de> Deserialize<'de>>(
        &mut self,
        label: &str,
        path: &str,
        value: &Value<'_>,
    ) -> Option<T> {
        let before = self.complaints.len();
        let table = self.table(label, path, value);
        (self.complaints.len() == before).then_some(table)
    }

    fn read_api(&mut self, value: &Value<'_>) {
        let why = "api: write each token as its own table, ";
        for (index, table) in self.tables(value, why, API).iter().enumerate() {
            let spec = self.whole_table(API, &format!("api[{index}]"), table);
            self.api.push(spec);
        }
    }

    /// Takes the tables `[[api]]`; complains of all mistakes.
    pub(crate) fn take_api_tokens(&mut self) -> Vec<ApiToken> {
        let mut tokens = Vec::new();
        for (index, spec) in std::mem::take(&mut self.api).into_iter().enumerate() {
            match spec.map(|spec| spec.token(&tokens)) {
                // Its mistakes are known.
                None => {}
                Some(Ok(token)) => tokens.push(token),
                Some(Err(mistakes)) => {
                    for (key, text) in mistakes {
                        self.complain(
                            &format!("api[{index}].{key}"),
                            format!("{API} {key}: {text}"),
                        );
                    }
                }
            }
        }
        tokens
    }

    fn read_channels(&mut self, value: &Value<'_>) {
        let mut specs = Vec::new();
        let why = "channel: write each channel as its own table, ";
        for (index, table) in self.tables(value, why, CHANNEL).iter().enumerate() {
            let path = format!("channel[{index}]");
            let before = self.complaints.len();
            let mut spec: ChannelSpec = self.table(CHANNEL, &path, table);
            let events = table.get_ref().get("event");
            let why = "event: write each event as its own table, ";
            let events = events.map_or(&[][..], |events| self.tables(events, why, EVENT));
            for (index, event) in events.iter().enumerate() {
                spec.event.push(self.table(EVENT, &format!("{path}.event[{index}]"), event));
            }
            if self.complaints.len() > before {
                self.unreadable.insert(index);
            }
            specs.push(spec);
        }
        self.channels = Some(specs);
    }

    /// A table in `[limits]` that is no key of it has a name of its own.
    fn read_limits(&mut self, value: &Value<'_>) {
        let mut own = value.clone();
        if let DeValue::Table(table) = own.get_mut() {
            let keys = fields_of::<SocketLimitsSpec>();
            for (name, value) in table.iter() {
                let key = name.get_ref().as_ref();
                if matches!(value.get_ref(), DeValue::Table(_)) && !keys.contains(&key) {
                    let limits = self.table(LIMITS, &format!("limits.{key}"), value);
                    self.named_limits.push((key.to_owned(), limits));
                }
            }
            for (name, _) in &self.named_limits {
                table.remove(name.as_str());
            }
        }
        self.limits = self.table(LIMITS, "limits", &own);
        if self.named_limits.len() > NAMED_LIMITS_MAX {
            self.complain("limits", format!("{LIMITS}: at most {NAMED_LIMITS_MAX} names"));
        }
    }

    fn read_hooks(&mut self, value: &Value<'_>) {
        let why = "hook: write each hook as its own table, ";
        for (index, table) in self.tables(value, why, HOOK).iter().enumerate() {
            let hook = self.table(HOOK, &format!("hook[{index}]"), table);
            self.hooks.push(hook);
        }
    }

    fn tables<'v, 'i>(&mut self, value: &'v Value<'i>, why: &str, label: &str) -> &'v [Value<'i>] {
        let DeValue::Array(tables) = value.get_ref() else {
            self.complaints.push((value.span().start, format!("{why}{label}")));
            return &[];
        };
        tables
    }

    /// Reads a table key by key, so that every mistake is found; returns the valid keys.
    fn table<T: Default + for<'de> Deserialize<'de>>(
        &mut self,
        label: &str,
        path: &str,
        value: &Value<'_>,
    ) -> T {
        let keys = fields_of::<T>();
        self.spans.insert(path.to_owned(), value.span());
        let DeValue::Table(table) = value.get_ref() else {
            let text = format!("{label} must be a table, not {}", value.get_ref().type_str());
            self.complaints.push((value.span().start, text));
            return T::default();
        };
        let mut right = DeTable::new();
        for (name, value) in table.iter() {
            let key = name.get_ref().as_ref();
            self.spans.insert(format!("{path}.{key}"), name.span());
            if !keys.contains(&key) {
                let hint = hint_within(label, key, keys);
                let text = format!("{label} {key}: no such key; {hint}");
                self.complaints.push((name.span().start, text));
            } else if key != "event" {
                let mut alone = DeTable::new();
                alone.insert(name.clone(), value.clone());
                match deserialize::<T>(alone, value.span()) {
                    Ok(_) => drop(right.insert(name.clone(), value.clone())),
                    Err(error) => {
                        let at = error.span().unwrap_or_else(|| value.span()).start;
                        let text = format!("{label} {key}: {}", one_line(error.message()));
                        self.complaints.push((at, text));
                    }
                }
            }
        }
        deserialize(right, value.span()).unwrap_or_default()
    }
}

/// Each is a copy of the user socket, and of Supabase's; a server has at most 256.
const NAMED_LIMITS_MAX: usize = 100;
const CHANNEL: &str = "[[channel]]";
const EVENT: &str = "[[channel.event]]";
const HOOK: &str = "[[hook]]";
const LIMITS: &str = "[limits]";
const TOKEN: &str = "[token]";
const API: &str = "[[api]]";
const CLUSTER: &str = "[cluster]";
const TLS: &str = "[tls]";
const IN_RUST: &str = "not available: this application declares its channels in Rust";

/// The keys of a table, by the fields of its type.
fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    struct Fields<'f>(&'f mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only the names of the fields are needed"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut fields: &[_] = &[];
    let _ = T::deserialize(Fields(&mut fields));
    fields
}

fn deserialize<'i, T: Deserialize<'i>>(
    table: DeTable<'i>,
    span: Range<usize>,
) -> Result<T, toml::de::Error> {
    T::deserialize(ValueDeserializer::from(Spanned::new(span, DeValue::Table(table))))
}

/// Whether a table, or the file itself, has a key.
fn is_key(table: Option<&str>, key: &str) -> bool {
    match table {
        None => keys::ALL.iter().any(|own| own.name == key),
        Some("token") => fields_of::<TokenSpec>().contains(&key),
        Some("hook") => fields_of::<HookTable>().contains(&key),
        Some("api") => fields_of::<ApiSpec>().contains(&key),
        Some("limits") => fields_of::<SocketLimitsSpec>().contains(&key),
        #[cfg(feature = "nats")]
        Some("cluster") => fields_of::<ClusterSpec>().contains(&key),
        // The keys of [tls] are files already.
        Some(_) => false,
    }
}

/// The variables of the environment that values of the file name: `key_env = "NAME"`, `"env:NAME"`.
fn named_by_keys(table: &DeTable<'_>) -> BTreeSet<String> {
    fn add(key: &str, value: &DeValue<'_>, found: &mut BTreeSet<String>) {
        match value {
            DeValue::String(text) if key.ends_with("_env") => drop(found.insert(text.to_string())),
            DeValue::String(text) => found.extend(text.strip_prefix("env:").map(str::to_owned)),
            DeValue::Array(all) => all.iter().for_each(|it| add(key, it.get_ref(), found)),
            DeValue::Table(all) => {
                all.iter().for_each(|(key, it)| add(key.get_ref(), it.get_ref(), found));
            }
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    table.iter().for_each(|(key, value)| add(key.get_ref(), value.get_ref(), &mut found));
    found
}

fn names(channels: Channels) -> Vec<&'static str> {
    let keys = keys::ALL.iter().filter(|key| key.is_for(channels)).map(|key| key.name);
    let tables = ["channel", "hook", "limits", "token"]
        .into_iter()
        .filter(|_| channels == Channels::Declared);
    let cluster = cfg!(feature = "nats").then_some("cluster");
    keys.chain(tables).chain(["api", "tls"]).chain(cluster).collect()
}

/// Suggests the known key that an unknown one resembles.
fn hint(name: &str, known: &[&str]) -> String {
    did_you_mean(name, known).unwrap_or_else(|| "`simurgh config` prints every key".to_owned())
}

/// The same for a table, which in TOML also gets keys of the file that are written below it.
fn hint_within(label: &str, name: &str, known: &[&str]) -> String {
    if keys::ALL.iter().any(|key| key.name == name) {
        let is_table = [TOKEN, LIMITS, CLUSTER, HOOK, TLS].contains(&label);
        let table = if is_table { label } else { CHANNEL };
        format!("move it above the first {table}")
    } else {
        hint(name, known)
    }
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_key_gets_a_hint_only_if_a_similar_key_exists() {
        let known = names(Channels::Declared);
        for (wrong, meant) in [
            ("idle_timout", "idle_timeout"),
            ("idle-timeout", "idle_timeout"),
            ("Shards", "shards"),
            ("chanel", "channel"),
            ("admin_listn", "admin_listen"),
        ] {
            assert_eq!(hint(wrong, &known), format!("did you mean {meant}?"));
        }
        assert!(hint("workers", &known).contains("simurgh config"));
    }

    fn below(variables: &[(&str, &str)], text: &str) -> File {
        let variables =
            variables.iter().map(|(name, value)| (format!("SIMURGH_{name}"), (*value).to_owned()));
        File::below(Variable::of(variables), "f.toml", text.to_owned(), Channels::Declared)
    }

    #[test]
    fn environment_overrides_keys_of_the_file_and_its_tables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "from a file\n").unwrap();
        let variables = [
            ("IDLE_TIMEOUT", "90s"),
            ("LISTEN", "[\"127.0.0.1:1\"]"),
            ("SHARDS", "3"),
            ("OBSERVER", "true"),
            ("API_TOKEN_FILE", path.to_str().unwrap()),
            ("LIMITS__JOINS", "5"),
            ("TOKEN__KEY_FILE", "key.pem"),
            ("HOOK__APP__URL", "http://127.0.0.1:1/a"),
            ("HOOK__APP__TIMEOUT__TOTAL", "5s"),
            ("SECRET_OF_APP", "named by secret_env"),
            ("LOAD_TOKEN", "of another command"),
        ];
        let text = "shards = 9\nidle_timeout = \"1s\"\n[[hook]]\nname = \"app\"\n\
            url = \"http://127.0.0.1:9\"\nsecret_env = \"SIMURGH_SECRET_OF_APP\"\n";
        let file = below(&variables, text);
        assert_eq!(file.settings.shards.and_then(simurgh_text::Choice::value), Some(3));
        let idle = file.settings.idle_timeout.and_then(simurgh_text::Choice::value);
        assert_eq!(idle, Some(std::time::Duration::from_secs(90)));
        assert_eq!(file.settings.listen, Some(vec!["127.0.0.1:1".parse().unwrap()]));
        assert_eq!(file.settings.observer, Some(true));
        assert_eq!(file.settings.api_token.as_deref(), Some("from a file"));
        let hooks = format!("{:?}", file.hooks);
        assert_eq!(file.hooks.len(), 1, "{hooks}");
        for part in ["127.0.0.1:1/a", "total: Some(\"5s\")"] {
            assert!(hooks.contains(part), "{part} is not in {hooks}");
        }
        assert!(format!("{:?}", file.token).contains("key.pem"), "{:?}", file.token);
        assert_eq!(file.complaints(), [""; 0]);
    }

    #[test]
    fn second_value_of_a_key_and_a_mistyped_hook_are_errors() {
        let hook = "[[hook]]\nname = \"app\"\nurl = \"http://a\"\n";
        for (variables, text, expected) in [
            (&[("HOOK__APPP__URL", "http://b")][..], "", ""),
            (
                &[("HOOK__APPP__URL", "x")],
                hook,
                "HOOK__APPP__URL: no [[hook]] has the name \"appp\"",
            ),
            (
                &[("API_TOKEN", "y"), ("API_TOKEN_FILE", "/dev/null")],
                "",
                "API_TOKEN_FILE: SIMURGH_API_TOKEN is set, too: remove one of them",
            ),
        ] {
            let complaints = below(variables, text).complaints().join("\n");
            assert_eq!(complaints.is_empty(), expected.is_empty(), "{complaints}");
            assert!(complaints.contains(expected), "{complaints}");
        }
    }

    #[test]
    fn texts_of_the_environment_that_look_like_numbers_stay_as_they_are() {
        for token in ["1_2345678901234567", "6.5000", "0x12", "2026-11-28", "007", "12345"] {
            let file = below(&[("API_TOKEN", token)], "");
            assert_eq!(file.settings.api_token.as_deref(), Some(token));
            assert_eq!(file.complaints(), [""; 0]);
        }
    }

    #[test]
    fn mistakes_in_the_environment_name_their_variable() {
        let variables = [
            ("SHARD", "3"),
            ("IDLE_TIMEOUT", "soon"),
            ("TOKEN__SALTS", "x"),
            ("HOOK__APP", "x"),
            ("SHARDS__TWO", "x"),
            ("API_TOKEN_FILE", "no/such/file"),
            ("OBSERVER", "[true]"),
        ];
        let complaints = below(&variables, "shards = 9\n").complaints().join("\n");
        for expected in [
            "SIMURGH_SHARD: no such key; did you mean shards?",
            "SIMURGH_IDLE_TIMEOUT: idle_timeout: ",
            "SIMURGH_TOKEN__SALTS: [token] salts: no such key; did you mean salt?",
            "SIMURGH_HOOK__APP: a hook's key is SIMURGH_HOOK__NAME__KEY",
            "SIMURGH_SHARDS__TWO: shards is not a table",
            "SIMURGH_API_TOKEN_FILE: cannot read no/such/file",
            "SIMURGH_OBSERVER: observer: is of the wrong type (array)",
        ] {
            assert!(complaints.contains(expected), "{expected:?} is not in\n{complaints}");
        }
    }

    #[test]
    fn errors_are_listed_in_order_with_their_lines() {
        let text = "shards = 0\n\nlisten = [\n  \"x\",\n  \"[::1]:1\",\n  5,\n]\nnone = 1\n";
        let file = File::parse("f.toml", text.to_owned(), Channels::Declared);
        let complaints = file.complaints();
        let lines: Vec<_> = complaints.iter().map(|text| &text[..9]).collect();
        assert_eq!(lines, ["f.toml:1:", "f.toml:4:", "f.toml:6:", "f.toml:8:"], "{complaints:#?}");
    }

    #[test]
    fn every_unknown_key_of_every_table_is_named() {
        let text = "[[channel]]\ntopic = 5\nmember_max = 3\ndeny = \"x\"\nlisten = []\n\
                    [[channel.event]]\nname = \"a\"\nbroadcast = \"everyone\"\nstatus = []\n";
        let file = File::parse("f", text.to_owned(), Channels::Declared);
        let complaints = file.complaints().join("\n");
        for expected in [
            "f:2: [[channel]] topic: invalid type: integer `5`, expected a string",
            "f:3: [[channel]] member_max: no such key; did you mean members_max?",
            "f:4: [[channel]] deny: invalid type: string",
            "f:5: [[channel]] listen: no such key; move it above the first [[channel]]",
            "f:8: [[channel.event]] broadcast: unknown variant `everyone`, expected one of `all`",
            "f:9: [[channel.event]] status: invalid type",
        ] {
            assert!(complaints.contains(expected), "{expected:?} is not in\n{complaints}");
        }
        assert_eq!(complaints.lines().count(), 6, "{complaints}");
    }
}
