//! Captures and checks of answers, and matches of frames.

use std::time::Duration;

use simurgh_text::toml::{Entry, Table};

use super::read::Reader;
use super::tables::small;
use crate::{
    Action, Answer, Capture, Check, Find, Generated, Matcher, Part, PresenceList, Template,
};

impl Reader<'_> {
    pub(super) fn answer(&self, table: &Table<'_, '_>) -> Answer {
        let captures = table.get("capture").map(|entry| entry.named()).unwrap_or_default();
        let checks = table.get("check").map(|entry| entry.one_or_more()).unwrap_or_default();
        Answer {
            timeout: table.time("timeout"),
            captures: captures.iter().filter_map(|entry| self.capture(entry)).collect(),
            checks: checks.iter().filter_map(|entry| self.check(entry)).collect(),
        }
    }

    fn capture(&self, entry: &Entry<'_, '_>) -> Option<Capture> {
        let var = self.var_named(entry, &entry.key)?;
        if let Some(path) = entry.as_str() {
            return Some(Capture { var, from: Find::Json(path.to_owned()), decode_html: false });
        }
        let table = entry.table("a capture such as { json = \"path\" }")?;
        if table.has("xpath") {
            entry.wrong("xpath is not supported", XPATH_HELP);
            return None;
        }
        let kinds: [(&'static str, Kind); 4] = [
            ("json", Find::Json),
            ("regex", Find::Regex),
            ("header", Find::Header),
            ("form_field", Find::FormField),
        ];
        let found: Vec<_> =
            kinds.iter().filter_map(|(key, find)| Some((table.get(key)?, find))).collect();
        let decode_html = table.bool("decode_html").unwrap_or(false);
        table.finish();
        let [(place, find)] = found.as_slice() else {
            let kinds = "json, regex, header and form_field";
            entry.wrong(format_args!("needs one of {kinds}"), "");
            return None;
        };
        let from = find(place.text("a text")?.to_owned());
        Some(Capture { var, from, decode_html })
    }

    fn check(&self, entry: &Entry<'_, '_>) -> Option<Check> {
        if entry.as_str().is_some() {
            return Some(Check {
                name: "-".to_owned(),
                pattern: self.template(entry)?,
                when_found: false,
                action: Action::Log,
                skip_headers: false,
            });
        }
        let table = entry.table("a check such as { pattern = \"ok\" }")?;
        let pattern = table.need("pattern", "a regular expression");
        let name = table.text("name", "a name").unwrap_or("-");
        let when = table.word("when", &[("missing", false), ("found", true)]);
        let action = table.get("do").map_or(Some(Action::Log), |entry| action(&entry));
        let skip_headers = table.bool("skip_headers");
        table.finish();
        Some(Check {
            name: name.to_owned(),
            pattern: self.template(&pattern?)?,
            when_found: when.unwrap_or(false),
            action: action?,
            skip_headers: skip_headers.unwrap_or(false),
        })
    }

    pub(super) fn matcher(&self, entry: &Entry<'_, '_>) -> Option<Matcher> {
        let takes = "\"any\" or a table with is, contains, regex, json and is, event and topic, \
                     or presence, key and topic";
        if let Some(text) = entry.as_str() {
            if text != "any" {
                let help = format!(
                    "{{ is = {text:?} }} takes that text, {{ contains = {text:?} }} frames with it"
                );
                entry.wrong(format_args!("{text:?} is no match"), help);
            }
            return Some(Matcher::Any);
        }
        let table = entry.table(format!("a match: {takes}"))?;
        let one = |key| table.get(key);
        let given = [one("contains"), one("regex"), one("json"), one("event"), one("presence")];
        let rest = [one("is"), one("topic"), one("key")];
        table.finish();
        match (given, rest) {
            ([Some(text), None, None, None, None], [None, None, None]) => {
                self.template(&text).map(Matcher::Contains)
            }
            ([None, Some(pattern), None, None, None], [None, None, None]) => {
                self.template(&pattern).map(Matcher::Regex)
            }
            ([None, None, None, None, None], [Some(is), None, None]) => {
                self.template(&is).map(Matcher::Is)
            }
            ([None, None, Some(path), None, None], [Some(is), None, None]) => {
                let path = path.text("a JSON path").map(str::to_owned);
                Some(Matcher::Json { path: path?, is: self.template(&is)? })
            }
            ([None, None, None, Some(event), None], [None, topic, None]) => {
                let event = self.template(&event);
                Some(Matcher::Event { topic: self.optional(topic)?, event: event? })
            }
            ([None, None, None, None, Some(list)], [None, topic, Some(key)]) => {
                let (list, key) = (list.word(&PRESENCE_LISTS), self.template(&key));
                Some(Matcher::Presence { topic: self.optional(topic)?, list: list?, key: key? })
            }
            _ => {
                entry.wrong("is no match", format!("it takes {takes}"));
                None
            }
        }
    }

    /// An optional template; `None` if it is there and wrong.
    fn optional(&self, entry: Option<Entry<'_, '_>>) -> Option<Option<Template>> {
        match entry {
            Some(entry) => self.template(&entry).map(Some),
            None => Some(None),
        }
    }
}

pub(super) const PRESENCE_LISTS: [(&str, PresenceList); 3] = [
    ("state", PresenceList::State),
    ("joins", PresenceList::Joins),
    ("leaves", PresenceList::Leaves),
];

type Kind = fn(String) -> Find;

/// What to use in place of an XPath, which Tsung has.
pub const XPATH_HELP: &str =
    "take the value with a regular expression, or a form field by its name";

/// Actions that are a single word.
pub(super) const ACTIONS: [(&str, Action); 5] = [
    ("continue", Action::Continue),
    ("log", Action::Log),
    ("dump", Action::Dump),
    ("abort", Action::Abort),
    ("abort-run", Action::AbortRun),
];

fn action(entry: &Entry<'_, '_>) -> Option<Action> {
    if !entry.is_table() {
        return entry.word(&ACTIONS);
    }
    let table = entry.table("an action such as { restart = 3 }")?;
    let (restart, times) = (table.get("restart"), table.get("loop"));
    let sleep = table.time("sleep").unwrap_or(Duration::from_secs(5));
    let back = table.get("back").and_then(|entry| small(&entry)).unwrap_or(0);
    table.finish();
    match (restart, times) {
        (Some(times), None) => small(&times).map(|times_max| Action::Restart { times_max }),
        (None, Some(times)) => {
            small(&times).map(|times_max| Action::Loop { times_max, sleep, back })
        }
        _ => {
            entry.wrong("needs either restart or loop", "");
            None
        }
    }
}

/// Whether a template becomes JSON. Placeholders may be numbers, or anything within quotes.
pub(super) fn check_json(template: &Template) -> Result<(), String> {
    let mut text = Vec::new();
    for part in &template.parts {
        match part {
            Part::Literal(bytes) => text.extend_from_slice(bytes),
            Part::Value(
                Generated::RandomString(_)
                | Generated::ReallyUniqueId
                | Generated::TargetHost
                | Generated::Md5(_)
                | Generated::Stamp,
            ) => text.push(b'a'),
            _ => text.push(b'1'),
        }
    }
    let json = serde_json::from_slice::<serde::de::IgnoredAny>(&text);
    json.map(drop).map_err(|error| {
        let shown = String::from_utf8_lossy(&text);
        let shown: String = shown.chars().take(80).collect();
        format!("{error}, in {shown}")
    })
}
