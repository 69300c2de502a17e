//! Parses and checks the commands of a prompt or a script.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;
use simurgh_text::toml::did_you_mean;

use crate::settings::values;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Command {
    Start { count: usize, params: Option<Value> },
    Join { ids: Ids, topic: String, payload: Value },
    Push { ids: Ids, topic: String, event: String, payload: Value },
    Leave { ids: Ids, topic: String },
    Close { ids: Ids },
    Flush { ids: Ids },
    Broadcast { topic: String, event: String, payload: Value },
    Wait(Duration),
    Stats,
    Help(Option<&'static Usage>),
    Quit,
}

/// Sockets, by their numbers from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ids {
    All,
    Some(Vec<RangeInclusive<u32>>),
}

/// The syntax of a command, for help and messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) name: &'static str,
    pub(super) takes: &'static str,
    pub(super) about: &'static str,
}

const fn usage(name: &'static str, takes: &'static str, about: &'static str) -> Usage {
    Usage { name, takes, about }
}

/// All commands, in the order of the help.
pub(super) const ALL: &[Usage] = &[
    usage("start", "COUNT [PARAMS]", "opens sockets, numbered from 1"),
    usage("join", "IDS TOPIC [PAYLOAD]", "joins a topic"),
    usage("push", "IDS TOPIC EVENT [PAYLOAD]", "pushes an event to a channel"),
    usage("flush", "[IDS]", "shows new messages"),
    usage("broadcast", "TOPIC EVENT [PAYLOAD]", "broadcasts to all members, as the server does"),
    usage("leave", "IDS TOPIC", "leaves a topic"),
    usage("close", "IDS", "closes sockets"),
    usage("stats", "", "shows counts, memory and CPU time"),
    usage("wait", "TIME", "waits, for example 500ms"),
    usage("help", "[COMMAND]", "shows this"),
    usage("quit", "", "exits, as do Ctrl-D and Ctrl-C"),
];

/// Why a line is not a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// The byte of the line to point at.
    pub(super) at: usize,
    pub(super) why: String,
}

/// Parses a line; `None` if it is empty or a comment.
pub(super) fn parse(line: &str) -> Result<Option<Command>, Mistake> {
    let mut words = Words { line, at: 0, usage: None };
    let Some((at, name)) = words.next() else { return Ok(None) };
    if name.starts_with('#') {
        return Ok(None);
    }
    let usage = find(name).ok_or_else(|| unknown(at, name))?;
    words.usage = Some(usage);
    let command = match usage.name {
        "start" => {
            Command::Start { count: words.value("a number", values::count)?, params: words.json()? }
        }
        "join" => Command::Join {
            ids: words.ids()?,
            topic: words.word("a topic")?,
            payload: words.json()?.unwrap_or_else(empty),
        },
        "push" => Command::Push {
            ids: words.ids()?,
            topic: words.word("a topic")?,
            event: words.word("an event")?,
            payload: words.json()?.unwrap_or_else(empty),
        },
        "broadcast" => Command::Broadcast {
            topic: words.word("a topic")?,
            event: words.word("an event")?,
            payload: words.json()?.unwrap_or_else(empty),
        },
        "leave" => Command::Leave { ids: words.ids()?, topic: words.word("a topic")? },
        "close" => Command::Close { ids: words.ids()? },
        "flush" => {
            Command::Flush { ids: if words.rest().is_empty() { Ids::All } else { words.ids()? } }
        }
        "wait" => Command::Wait(words.value("a time", simurgh_text::duration)?),
        "stats" => Command::Stats,
        "help" => Command::Help(words.command()?),
        _ => Command::Quit,
    };
    match words.next() {
        None => Ok(Some(command)),
        Some((at, word)) => {
            Err(Mistake { at, why: format!("unexpected {word:?}; usage: {}", words.written()) })
        }
    }
}

pub(super) fn find(name: &str) -> Option<&'static Usage> {
    let name = if name == "exit" { "quit" } else { name };
    ALL.iter().find(|usage| usage.name == name)
}

fn unknown(at: usize, name: &str) -> Mistake {
    let known: Vec<&str> = ALL.iter().map(|usage| usage.name).collect();
    let hint = did_you_mean(name, &known).unwrap_or_else(|| "help names all commands".to_owned());
    Mistake { at, why: format!("there is no command {name:?}; {hint}") }
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

struct Words<'l> {
    line: &'l str,
    at: usize,
    usage: Option<&'static Usage>,
}

impl<'l> Words<'l> {
    fn rest(&mut self) -> &'l str {
        let rest = self.line.get(self.at..).unwrap_or_default();
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    /// The next word, and its position.
    fn next(&mut self) -> Option<(usize, &'l str)> {
        let rest = self.rest();
        let at = self.at;
        let word = rest.split_whitespace().next()?;
        self.at += word.len();
        Some((at, word))
    }

    /// The syntax of the command, for mistakes.
    fn written(&self) -> String {
        self.usage.map(|it| format!("{} {}", it.name, it.takes)).unwrap_or_default()
    }

    fn needed(&mut self, what: &str) -> Result<(usize, &'l str), Mistake> {
        let end = self.line.len();
        self.next().ok_or_else(|| Mistake {
            at: end,
            why: format!("{what} is missing: {}", self.written()),
        })
    }

    fn word(&mut self, what: &str) -> Result<String, Mistake> {
        self.needed(what).map(|(_, word)| word.to_owned())
    }

    fn value<T>(&mut self, what: &str, read: fn(&str) -> Result<T, String>) -> Result<T, Mistake> {
        let (at, word) = self.needed(what)?;
        read(word).map_err(|why| Mistake { at, why })
    }

    fn command(&mut self) -> Result<Option<&'static Usage>, Mistake> {
        let Some((at, word)) = self.next() else { return Ok(None) };
        find(word).map(Some).ok_or_else(|| unknown(at, word))
    }

    /// `7`, `1-1000`, `1,5,9-12` or `all`.
    fn ids(&mut self) -> Result<Ids, Mistake> {
        let (at, word) = self.needed("the number of a socket")?;
        if word == "all" {
            return Ok(Ids::All);
        }
        let mut ranges = Vec::new();
        let mut part_at = at;
        for part in word.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n > 0);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => ranges.push(first..=last),
                _ => {
                    let why = format!(
                        "{part:?} is not a socket number; write 7, 1-1000, 1,5,9-12 \
                        or all"
                    );
                    return Err(Mistake { at: part_at, why });
                }
            }
            part_at += part.len() + 1;
        }
        Ok(Ids::Some(ranges))
    }

    fn json(&mut self) -> Result<Option<Value>, Mistake> {
        let text = self.rest();
        if text.is_empty() {
            return Ok(None);
        }
        let start = self.at;
        self.at = self.line.len();
        serde_json::from_str(text).map(Some).map_err(|error| {
            // In a single line only the column matters, in bytes from 1.
            let at = start + error.column().saturating_sub(1).min(text.len());
            let why = error.to_string();
            let why = why.split(" at line ").next().unwrap_or_default();
            Mistake { at, why: format!("not JSON: {why}") }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn command(line: &str) -> Command {
        parse(line).unwrap().unwrap()
    }

    fn mistake(line: &str) -> (usize, String) {
        let mistake = parse(line).unwrap_err();
        (mistake.at, mistake.why)
    }

    #[test]
    fn commands_are_parsed() {
        let (topic, event) = ("ping_topic".to_owned(), "ping".to_owned());
        assert_eq!(command("start 1_000"), Command::Start { count: 1000, params: None });
        let params = Some(json!({"token": "x y"}));
        assert_eq!(command(" start 2 {\"token\": \"x y\"} "), Command::Start { count: 2, params });
        let ids = Ids::Some(vec![1..=1000]);
        let join = Command::Join { ids, topic: topic.clone(), payload: json!({}) };
        assert_eq!(command("join 1-1000 ping_topic"), join);
        let ids = Ids::Some(vec![1..=1, 5..=5, 9..=12]);
        let push = Command::Push { ids, topic: topic.clone(), event, payload: json!([1, "b c"]) };
        assert_eq!(command("push 1,5,9-12 ping_topic ping [1, \"b c\"]"), push);
        assert_eq!(command("leave all ping_topic"), Command::Leave { ids: Ids::All, topic });
        assert_eq!(command("flush"), Command::Flush { ids: Ids::All });
        assert_eq!(command("wait 500ms"), Command::Wait(Duration::from_millis(500)));
        assert_eq!(command("exit"), Command::Quit);
        assert_eq!(command("help join"), Command::Help(find("join")));
        for nothing in ["", "   ", "# join 1 t", "\t#"] {
            assert_eq!(parse(nothing), Ok(None));
        }
    }

    #[test]
    fn parse_errors_point_at_the_mistake() {
        let no = |name: &str, hint: &str| format!("there is no command {name:?}; {hint}");
        assert_eq!(mistake("strat 5"), (0, no("strat", "did you mean start?")));
        assert_eq!(mistake("  frobnicate"), (2, no("frobnicate", "help names all commands")));
        let missing = "a topic is missing: join IDS TOPIC [PAYLOAD]".to_owned();
        assert_eq!(mistake("join 7"), (6, missing));
        for wrong in ["0", "x", "5-1", "-3", "1-", "4294967296"] {
            let (at, why) = mistake(&format!("close 1,{wrong}"));
            assert_eq!(
                (at, why),
                (8, format!("{wrong:?} is not a socket number; write 7, 1-1000, 1,5,9-12 or all"))
            );
        }
        assert_eq!(mistake("stats now").0, 6);
        assert!(mistake("start many").1.contains("whole number"));
        assert_eq!(mistake("help me").0, 5);
    }

    #[test]
    fn invalid_json_is_pointed_at() {
        for (line, place) in [
            ("push 7 t e {\"a\":}", "}"),
            ("push 7 t e {\"a\":1", "1"),
            ("push 7 t e nothing", "othing"),
            ("join 1 t {} {}", "{}"),
        ] {
            let (at, why) = mistake(line);
            assert!(why.starts_with("not JSON: "), "{why}");
            assert_eq!(&line[at..], place, "{why}");
        }
    }
}
