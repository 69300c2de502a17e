//! Captures and checks of answers, and matches of frames.

use std::time::Duration;

use simurgh_text::toml::Entry;

use super::keys::{
    Codec, FLAG, Keys, SMALL, TEMPLATE, TEXT, TIME, Writer, named, text, time, word,
};
use super::read::Reader;
use crate::{
    Action, Answer, Capture, Check, Find, Generated, Matcher, Part, PresenceList, Template,
};

pub(super) fn answer(keys: &mut Keys<'_, '_, '_>, answer: &mut Answer) {
    keys.optional("timeout", &mut answer.timeout, TIME);
    keys.key("capture", &mut answer.captures, Vec::new(), CAPTURES);
    keys.list("check", &mut answer.checks, CHECK);
}

const CAPTURES: Codec<Vec<Capture>> = Codec {
    read: |reader, entry| {
        Some(entry.named().iter().filter_map(|one| reader.capture(one)).collect())
    },
    write: |writer, captures| {
        let written = captures.iter().map(|one| (writer.var(one.var), capture(one)));
        named(&written.collect::<Vec<_>>())
    },
};

fn capture(capture: &Capture) -> String {
    let (kind, place) = match &capture.from {
        Find::Json(path) if !capture.decode_html => return text(path),
        Find::Json(path) => ("json", path),
        Find::Regex(regex) => ("regex", regex),
        Find::Header(name) => ("header", name),
        Find::FormField(name) => ("form_field", name),
    };
    let decode = if capture.decode_html { ", decode_html = true" } else { "" };
    format!("{{ {kind} = {}{decode} }}", text(place))
}

const CHECK: Codec<Check> = Codec {
    read: |reader, entry| match entry.as_str() {
        Some(_) => {
            Some(Check { name: "-".into(), pattern: reader.template(entry)?, ..<_>::default() })
        }
        None => reader.table(entry, "a check such as { pattern = \"ok\" }", check),
    },
    write: |writer, one| writer.table(one, check),
};

fn check(keys: &mut Keys<'_, '_, '_>, check: &mut Check) {
    keys.needed("pattern", "a regular expression", &mut check.pattern, TEMPLATE);
    keys.key("name", &mut check.name, "-".to_owned(), TEXT);
    keys.word("when", &mut check.when_found, false, &[("missing", false), ("found", true)]);
    keys.key("do", &mut check.action, Action::Log, ACTION);
    keys.key("skip_headers", &mut check.skip_headers, false, FLAG);
}

const ACTION: Codec<Action> = Codec {
    read: |reader, entry| match entry.is_table() {
        true => action(reader, entry),
        false => entry.word(&ACTIONS),
    },
    write: |_, action| match *action {
        Action::Restart { times_max } => format!("{{ restart = {times_max} }}"),
        Action::Loop { times_max, sleep, back } => {
            let back = if back > 0 { format!(", back = {back}") } else { String::new() };
            format!("{{ loop = {times_max}, sleep = {}{back} }}", time(sleep))
        }
        action => word(&ACTIONS, action),
    },
};

fn action(reader: &Reader<'_>, entry: &Entry<'_, '_>) -> Option<Action> {
    let table = entry.table("an action such as { restart = 3 }")?;
    let (mut restart, mut times, mut sleep, mut back) = (None, None, Duration::ZERO, 0);
    let mut keys = Keys::Read(reader, &table);
    keys.optional("restart", &mut restart, SMALL);
    keys.optional("loop", &mut times, SMALL);
    keys.key("sleep", &mut sleep, Duration::from_secs(5), TIME);
    keys.key("back", &mut back, 0, SMALL);
    table.finish();
    match (restart, times) {
        (Some(times_max), None) => Some(Action::Restart { times_max }),
        (None, Some(times_max)) => Some(Action::Loop { times_max, sleep, back }),
        _ => {
            entry.wrong("needs either restart or loop", "");
            None
        }
    }
}

pub(super) const MATCHER: Codec<Matcher> = Codec {
    read: |reader, entry| reader.matcher(entry),
    write: |writer, matcher| writer.matcher(matcher),
};

impl Writer<'_> {
    fn matcher(self, matcher: &Matcher) -> String {
        let one = |key: &str, value: &Template| format!("{{ {key} = {} }}", self.template(value));
        let topic = |topic: &Option<Template>| match topic {
            Some(topic) => format!(", topic = {}", self.template(topic)),
            None => String::new(),
        };
        match matcher {
            Matcher::Any => text("any"),
            Matcher::Is(whole) => one("is", whole),
            Matcher::Contains(part) => one("contains", part),
            Matcher::Regex(regex) => one("regex", regex),
            Matcher::Json { path, is } => {
                format!("{{ json = {}, is = {} }}", text(path), self.template(is))
            }
            Matcher::Event { topic: of, event } => {
                format!("{{ event = {}{} }}", self.template(event), topic(of))
            }
            Matcher::Presence { topic: of, list, key } => {
                let (list, key) = (word(&PRESENCE_LISTS, *list), self.template(key));
                format!("{{ presence = {list}, key = {key}{} }}", topic(of))
            }
        }
    }
}

impl Reader<'_> {
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

    pub(super) fn matcher(&self, entry: &Entry<'_, '_>) -> Option<Matcher> {
        let takes = "\"any\" or a table with is, contains, regex, json and is, event and topic, \
                     or presence, key and topic";
        if let Some(text) = entry.as_str() {
            if text != "any" {
                let help = format!(
                    "{{ is = {text:?} }} takes that text, {{ contains = {text:?} }} frames with it"
                );
                entry.wrong(format_args!("{text:?} is not a match"), help);
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
                entry.wrong("is not a match", format!("it takes {takes}"));
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

/// Suggests a replacement for an XPath, which only Tsung has.
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
                | Generated::HmacSha256(_)
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
