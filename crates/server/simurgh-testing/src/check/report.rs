//! The message of a failed assertion: what was expected, what came, and possible reasons.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use simurgh::driver::What;
use simurgh_proto::message::{Payload, events};

use super::{Check, Sort, Words};
use crate::expect::{Misfit, payload_line};
use crate::state::{Mailbox, State};

/// A longer payload is shown on lines of its own.
const LINE_CHARS: usize = 90;
/// Further lines of a payload are left out.
const PAYLOAD_LINES: usize = 40;
/// How many of the last messages of a mailbox are shown.
const MESSAGES: usize = 60;

/// Findings about a message that did not arrive.
#[derive(Default)]
pub(crate) struct Findings {
    /// The number of the nearest message, how much it differs, and where.
    nearest: Option<(usize, usize, Vec<String>)>,
    hints: Vec<String>,
}

impl Findings {
    pub(crate) fn hint(&mut self, hint: String) {
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    /// A message that fits except for its payload.
    pub(crate) fn near(&mut self, number: usize, misfit: &Misfit) {
        let (far, lines) = misfit.tell();
        if self.nearest.as_ref().is_none_or(|(_, nearest, _)| far < *nearest) {
            self.nearest = Some((number, far, lines));
        }
    }
}

pub(crate) fn missing(
    check: &Check,
    state: &State,
    words: &Words,
    expected: Option<String>,
    time: Duration,
    mut findings: Findings,
) -> String {
    let mut text = format!("{} within {} ms\n", what(check, state, words, false), time.as_millis());
    if let Some(expected) = expected {
        let _ = write!(text, "\nexpected: {expected}\n");
    }
    if let Some((number, _, lines)) = &findings.nearest {
        let _ = writeln!(text, "\nclosest match: message {number}");
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    list(&mut text, state, check.at);
    add_ends(check, state, &mut findings);
    finish(text, &findings.hints)
}

pub(crate) fn unwanted(
    check: &Check,
    state: &State,
    words: &Words,
    expected: Option<String>,
    number: usize,
) -> String {
    let mut text = format!("{}: message {number}\n", what(check, state, words, true));
    if let Some(expected) = expected {
        let _ = write!(text, "\nunwanted: {expected}\n");
    }
    list(&mut text, state, check.at);
    finish(text, &[])
}

pub(crate) fn goes_on(state: &State, at: usize, event: &str, time: Duration) -> String {
    let mut text = format!("expected within {} ms: {event}\n", time.as_millis());
    list(&mut text, state, at);
    finish(text, &[])
}

pub(crate) fn not_subscribed(topic: &str) -> String {
    format!(
        "the test is not subscribed to {topic}: join with subscribe_and_join, or call \
         TestServer::subscribe before the broadcast"
    )
}

pub(crate) fn refused(path: &str, error: &simurgh::driver::DriverError) -> String {
    format!("connecting to {path}: {error}; use try_connect if a refusal is expected")
}

pub(crate) fn not_joined(topic: &str, status: &str, response: &Payload<'_>) -> String {
    let shown = payload_line(response);
    format!(
        "joining {topic} was answered with status {status}: {shown}; use try_join if a refusal \
         is expected"
    )
}

/// The headline: what was searched, and where.
fn what(check: &Check, state: &State, words: &Words, has_come: bool) -> String {
    let socket = state.mailboxes.get(check.at).map(Mailbox::name).unwrap_or_default();
    let no = if has_come { "a" } else { "no" };
    let come = if has_come { "arrived unexpectedly" } else { "arrived" };
    let event = words_text(words);
    match &check.sort {
        Sort::Push(Some(topic)) => format!("{no} push{event} to {socket} on {topic} {come}"),
        Sort::Push(None) => format!("{no} push{event} to {socket} {come}"),
        Sort::Broadcast(topic) => format!("{no} broadcast{event} on {topic} {come}"),
        Sort::Reply(to, topic) | Sort::Joined(to, topic) => {
            let asked = state.asked.get(to).map_or("message", |event| event);
            let on = if topic.is_empty() { String::new() } else { format!(" on {topic}") };
            format!("{no} reply{event} to {asked}{on}, of {socket}, {come}")
        }
    }
}

fn words_text(words: &Words) -> String {
    let Some(words) = &words.0 else { return String::new() };
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!(" {}", quoted.join(" or "))
}

fn list(text: &mut String, state: &State, at: usize) {
    let Some(mailbox) = state.mailboxes.get(at) else { return };
    let whose = mailbox.name();
    let all = mailbox.entries().count();
    if all == 0 {
        let _ = write!(text, "\n{whose} received nothing\n");
        return;
    }
    let _ = write!(text, "\n{whose} received");
    if mailbox.entries().any(|(_, entry)| entry.is_taken) {
        let _ = write!(text, " (* used by an earlier assertion)");
    }
    text.push_str(":\n");
    let skipped = all.saturating_sub(MESSAGES);
    if skipped > 0 {
        let _ = writeln!(text, "       ... {skipped} messages before these");
    }
    for (number, entry) in mailbox.entries().skip(skipped) {
        let mark = if entry.is_taken { '*' } else { ' ' };
        let _ = writeln!(text, "  {mark}{number:>3}. {}", shown(state, &entry.what));
    }
}

fn shown(state: &State, what: &What) -> String {
    match what {
        What::Message(it) if it.topic().is_empty() => {
            format!("{} {}", it.event(), payload(it.payload()))
        }
        What::Message(it) => {
            format!("{} {:?} {}", it.topic(), it.event(), payload(it.payload()))
        }
        What::Reply(it) => {
            let asked = it.to.and_then(|to| state.asked.get(&to)).map_or("message", |it| it);
            let response = payload(&it.response);
            format!("{} reply to {asked}: {} {response}", it.topic, it.status)
        }
        What::ChannelClosed { topic } => format!("{topic} closed (phx_close)"),
        What::ChannelCrashed { topic } => format!("{topic} crashed (phx_error)"),
        What::Closed { code: Some(code) } => format!("socket closed with {code}"),
        What::Closed { code: None } => "socket closed".to_owned(),
        other => format!("{other:?}"),
    }
}

/// On one line, or on several if it is long.
fn payload(payload: &Payload<'_>) -> String {
    let line = payload_line(payload);
    if line.chars().count() <= LINE_CHARS || payload.json().is_none() {
        return line;
    }
    let value = payload.json().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or(line);
    let mut text = String::new();
    for (at, line) in pretty.lines().enumerate() {
        if at == PAYLOAD_LINES {
            text.push_str("\n         ...");
            break;
        }
        let cut: String = line.chars().take(2 * LINE_CHARS).collect();
        let _ = write!(text, "\n         {cut}");
    }
    text
}

/// Notes that a channel or a socket has ended, or was never open.
fn add_ends(check: &Check, state: &State, findings: &mut Findings) {
    let Some(mailbox) = state.mailboxes.get(check.at) else { return };
    let topic = match &check.sort {
        Sort::Push(topic) => topic.as_deref(),
        Sort::Reply(_, topic) | Sort::Joined(_, topic) => Some(&**topic),
        Sort::Broadcast(_) => None,
    };
    if let Some(topic) = topic {
        add_ends_of(topic, mailbox, state, findings);
    }
    if mailbox.is_closed() {
        findings.hint("the socket is closed".to_owned());
    }
    let lost = state.driver.counts().lost;
    if lost > 0 {
        findings.hint(format!("{lost} messages were lost because no assertion used earlier ones"));
    }
}

/// Notes how the channel of a topic has ended.
fn add_ends_of(topic: &str, mailbox: &Mailbox, state: &State, findings: &mut Findings) {
    let mut is_joined = false;
    let mut end = None;
    for (_, entry) in mailbox.entries() {
        match &entry.what {
            What::Reply(it) if *it.topic == *topic => {
                let asked = it.to.and_then(|to| state.asked.get(&to));
                if asked.is_some_and(|event| **event == *events::JOIN) && *it.status == *"ok" {
                    (is_joined, end) = (true, None);
                } else if it.response.json() == Some(r#"{"reason":"unmatched topic"}"#) {
                    end = Some(format!("no channel is joined on {topic}"));
                }
            }
            What::ChannelClosed { topic: it } if **it == *topic => {
                end = Some(format!("{topic} was closed (phx_close)"));
            }
            What::ChannelCrashed { topic: it } if **it == *topic => {
                end = Some(format!(
                    "{topic} crashed (phx_error): a callback panicked, or did not know an event"
                ));
            }
            _ => {}
        }
    }
    if !is_joined && end.is_none() && !topic.is_empty() {
        end = Some(format!("no channel is joined on {topic}"));
    }
    end.into_iter().for_each(|end| findings.hint(end));
}

fn finish(mut text: String, hints: &[String]) -> String {
    if !hints.is_empty() {
        text.push('\n');
    }
    for hint in hints {
        let _ = writeln!(text, "hint: {hint}");
    }
    text
}
