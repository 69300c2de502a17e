//! Reads `simurgh.toml`: all keys, and all mistakes with their lines, not only the first.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use simurgh::api::ApiToken;
use simurgh::declared::{ChannelSpec, Mistake, SocketLimitsSpec};
use simurgh_text::toml::did_you_mean;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::api::ApiSpec;
#[cfg(feature = "nats")]
use super::cluster::ClusterSpec;
use super::keys::{self, PartialSettings};
use super::mistakes::Refusal;
use super::table::{Channels, Value};
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
    /// The table `[token]`, if there is one; `Some(None)` if any part cannot be read.
    pub(crate) token: Option<Option<TokenSpec>>,
    /// The tables `[[api]]`; `None` if any part of one cannot be read.
    pub(crate) api: Vec<Option<ApiSpec>>,
    /// The table `[cluster]`, likewise.
    #[cfg(feature = "nats")]
    pub(crate) cluster: Option<Option<ClusterSpec>>,
    /// Warnings: settings that are allowed but probably not intended.
    warnings: Vec<(usize, String)>,
    /// Channels with unreadable keys; their further mistakes are not reported.
    unreadable: BTreeSet<usize>,
    /// The position of each key by its path, such as `channel[0].event[1].reply`.
    spans: BTreeMap<String, Range<usize>>,
    /// Positions in the text, and mistakes.
    complaints: Vec<(usize, String)>,
}

impl File {
    /// Fails only if the file cannot be read at all.
    pub(crate) fn read(path: &Path, channels: Channels) -> Result<Self, Refusal> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::parse(&name, text, channels)),
            Err(error) => Err(Refusal(vec![format!("cannot read {name}: {error}")])),
        }
    }

    pub(crate) fn parse(name: &str, text: String, channels: Channels) -> Self {
        let mut file = Self { name: name.to_owned(), text: text.clone(), ..Self::default() };
        let (root, errors) = DeTable::parse_recoverable(&text);
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
            file.root(root.get_ref(), channels);
        }
        file
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
        let at = self.place(&format!("channel[{}].{}", trap.channel, trap.key));
        self.warnings.push((at, format!("{CHANNEL}: {}", trap.message)));
    }

    /// The warnings, as `file:line: text`.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let warnings = self.warnings.iter();
        warnings.map(|(at, text)| format!("{}:{}: {text}", self.name, self.line(*at))).collect()
    }

    /// In the order of the file, as `file:line: text`.
    pub(crate) fn complaints(mut self) -> Vec<String> {
        self.complaints.sort_by_key(|(at, _)| *at);
        let complaints = self.complaints.iter();
        complaints.map(|(at, text)| format!("{}:{}: {text}", self.name, self.line(*at))).collect()
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
            match name {
                "channel" if is_declared => self.read_channels(value),
                "limits" if is_declared => self.limits = self.table(LIMITS, name, value),
                "token" if is_declared => self.token = Some(self.whole_table(TOKEN, name, value)),
                "api" => self.read_api(value),
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

const CHANNEL: &str = "[[channel]]";
const EVENT: &str = "[[channel.event]]";
const LIMITS: &str = "[limits]";
const TOKEN: &str = "[token]";
const API: &str = "[[api]]";
const CLUSTER: &str = "[cluster]";
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

fn names(channels: Channels) -> Vec<&'static str> {
    let keys = keys::ALL.iter().filter(|key| key.is_for(channels)).map(|key| key.name);
    let tables =
        ["channel", "limits", "token"].into_iter().filter(|_| channels == Channels::Declared);
    let cluster = cfg!(feature = "nats").then_some("cluster");
    keys.chain(tables).chain(["api"]).chain(cluster).collect()
}

/// Suggests the known key that an unknown one resembles.
fn hint(name: &str, known: &[&str]) -> String {
    did_you_mean(name, known).unwrap_or_else(|| "`simurgh config` prints every key".to_owned())
}

/// The same for a table, which in TOML also gets keys of the file that are written below it.
fn hint_within(label: &str, name: &str, known: &[&str]) -> String {
    if keys::ALL.iter().any(|key| key.name == name) {
        let is_table = [TOKEN, LIMITS, CLUSTER].contains(&label);
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
