//! Writes a scenario, so that it is read as the same again. Defaults are left out.

use std::time::Duration;

use super::tables::{CUTS, DUMPS, EXACT, PROTOCOLS, SPREADS, TRANSPORTS};
use super::{template, vars, write_steps};
use crate::{
    AddressRange, Agent, Arrivals, DataFile, Dialect, Dump, Follow, Heartbeat, Load, Phase,
    Scenario, Session, Sources, Spread, Target, Threshold, Timeouts, Tls, Transport,
};

/// Writes a scenario, which [`read`](super::read()) reads as the same, except for lines.
pub fn write(scenario: &Scenario) -> String {
    let mut top = Keys::new(scenario, 0);
    top.key("name", text(&scenario.name));
    // TOML's integers have a sign, seeds do not.
    let seed = i64::try_from(scenario.seed).map(|seed| seed.to_string());
    top.key("seed", seed.unwrap_or_else(|_| text(&scenario.seed.to_string())));
    run(&mut top, &scenario.load);
    top.word("spread", &SPREADS, scenario.spread, Spread::default());
    let set = vars::set(scenario).into_iter().map(|var| usize::from(var.0));
    if !set.eq(0..scenario.vars.len()) {
        top.key("vars", list(scenario.vars.iter().map(|name| text(name))));
    }
    let agents = scenario.user_agents.iter();
    let agents: Vec<_> = agents.map(|(name, weight)| (name.as_str(), number(*weight))).collect();
    top.optional("user_agents", (!agents.is_empty()).then(|| named(&agents)));
    let mut out = top.lines();
    let mut section = |header: &str, write: &dyn Fn(&mut Keys<'_>)| {
        let mut keys = Keys::new(scenario, 0);
        write(&mut keys);
        out.push_str(&format!("\n{header}\n{}", keys.lines()));
    };
    for one in &scenario.targets {
        section("[[target]]", &|out| target(out, one));
    }
    if scenario.sources != Sources::default() {
        section("[sources]", &|out| sources(out, &scenario.sources));
    }
    if scenario.timeouts != Timeouts::default() {
        section("[timeouts]", &|out| timeouts(out, &scenario.timeouts));
    }
    for one in &scenario.agents {
        section("[[agent]]", &|out| agent(out, one));
    }
    if scenario.tls != Tls::default() {
        section("[tls]", &|out| tls(out, &scenario.tls));
    }
    if !scenario.files.is_empty() {
        section("[files]", &|out| files(out, &scenario.files));
    }
    if let Some(run) = &scenario.tsung {
        section("[tsung]", &|out| {
            out.optional("version", run.version.as_deref().map(text));
            out.flag("full_stats", run.full_stats, false);
            out.flag("proxy", run.proxy, false);
            out.word("dump", &DUMPS, run.dump, Dump::Off);
        });
    }
    for (at, one) in scenario.load.phases.iter().enumerate() {
        section("[[phase]]", &|out| phase(out, at, one));
    }
    for appointment in &scenario.load.appointments {
        section("[[appointment]]", &|out| {
            out.key("at", time(appointment.at));
            let session = scenario.sessions.get(appointment.session);
            out.key("session", text(session.map_or("", |session| &session.name)));
        });
    }
    for (at, one) in scenario.sessions.iter().enumerate() {
        section("[[session]]", &|out| session(out, at, one));
    }
    if !scenario.pass.is_empty() {
        section("[pass]", &|out| pass(out, &scenario.pass));
    }
    out
}

/// Keys and values of a section, or of an inline table.
pub(super) struct Keys<'s> {
    keys: Vec<(String, String)>,
    pub(super) scenario: &'s Scenario,
    /// How many lists of steps are around it.
    pub(super) depth: usize,
    /// Inner steps and credentials are left out.
    pub(super) is_outline: bool,
}

impl<'s> Keys<'s> {
    pub(super) fn new(scenario: &'s Scenario, depth: usize) -> Self {
        Self { keys: Vec::new(), scenario, depth, is_outline: false }
    }

    pub(super) fn table(&self) -> Self {
        Self::new(self.scenario, self.depth)
    }

    pub(super) fn key(&mut self, key: &str, value: impl Into<String>) {
        self.keys.push((bare(key), value.into()));
    }

    pub(super) fn optional(&mut self, key: &str, value: Option<String>) {
        if let Some(value) = value {
            self.key(key, value);
        }
    }

    /// Written unless it is the default.
    pub(super) fn flag(&mut self, key: &str, value: bool, default: bool) {
        self.optional(key, (value != default).then(|| value.to_string()));
    }

    /// One of some words, written unless it is the default.
    pub(super) fn word<T: PartialEq>(
        &mut self,
        key: &str,
        words: &[(&'static str, T)],
        value: T,
        default: T,
    ) {
        self.optional(key, (value != default).then(|| text(word(words, value))));
    }

    fn lines(self) -> String {
        self.keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }

    pub(super) fn inline(self) -> String {
        let keys = self.keys.iter().map(|(key, value)| format!("{key} = {value}"));
        format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
    }
}

fn run(out: &mut Keys<'_>, load: &Load) {
    out.optional("duration", load.duration.map(time));
    out.optional("max_users", load.users_max.map(|users| users.to_string()));
    match load.follow_stamps {
        Follow::Nothing => {}
        Follow::Last => out.key("follow_stamps", "true"),
        Follow::Exactly => out.key("follow_stamps", text(EXACT)),
    }
    out.optional("repeat", (load.repeat > 0).then(|| load.repeat.to_string()));
}

fn target(out: &mut Keys<'_>, target: &Target) {
    out.key("url", text(&url(target)));
    let is_written = is_address(target);
    out.optional("address", (!is_written).then(|| text(&target.address.to_string())));
    out.optional("weight", weight(target.weight));
}

fn url(target: &Target) -> String {
    let scheme = if target.tls { "wss" } else { "ws" };
    let user = target.credentials.as_ref().map_or(String::new(), |user| format!("{user}@"));
    let port = target.address.port();
    match &target.host {
        host if host.contains(':') => format!("{scheme}://{user}[{host}]:{port}"),
        host => format!("{scheme}://{user}{host}:{port}"),
    }
}

/// Whether the host is written as the address and needs no lookup.
fn is_address(target: &Target) -> bool {
    target.host.parse() == Ok(target.address.ip())
}

pub(super) fn target_name(index: usize, scenario: &Scenario) -> String {
    let target = scenario.targets.get(index).filter(|target| is_address(target));
    let first = |target: &&Target| scenario.targets.iter().position(|one| one.is_same(target));
    match target.filter(|target| first(target) == Some(index)) {
        Some(target) => text(&url(target)),
        None => (index + 1).to_string(),
    }
}

fn weight(weight: f64) -> Option<String> {
    (weight != 1.0).then(|| number(weight))
}

fn sources(out: &mut Keys<'_>, sources: &Sources) {
    out.optional("addresses", addresses(&sources.addresses));
    out.optional("ports", sources.ports.map(|(first, last)| format!("[{first}, {last}]")));
    let bytes = |count: usize| count.to_string();
    out.optional("receive_buffer_bytes", sources.receive_buffer_bytes.map(bytes));
    out.optional("send_buffer_bytes", sources.send_buffer_bytes.map(bytes));
}

fn addresses(ranges: &[AddressRange]) -> Option<String> {
    let range = |AddressRange { first, last }: &AddressRange| {
        text(&if first == last { first.to_string() } else { format!("{first}-{last}") })
    };
    (!ranges.is_empty()).then(|| list(ranges.iter().map(range)))
}

fn timeouts(out: &mut Keys<'_>, timeouts: &Timeouts) {
    out.key("connect", time(timeouts.connect));
    out.key("reply", time(timeouts.reply));
    out.key("retries", timeouts.retries.to_string());
    out.key("retry_wait", time(timeouts.retry_wait));
}

fn agent(out: &mut Keys<'_>, agent: &Agent) {
    out.key("address", text(&agent.address));
    out.key("token", text(&agent.token));
    out.optional("weight", weight(agent.weight));
    out.optional("addresses", addresses(&agent.addresses));
}

fn tls(out: &mut Keys<'_>, tls: &Tls) {
    out.flag("insecure", tls.insecure, false);
    let roots = &tls.roots_pem;
    let roots = (!roots.is_empty()).then(|| list(roots.iter().map(|pem| text(pem))));
    out.optional("roots", roots);
    out.optional("identity", tls.identity_pem.as_deref().map(text));
}

fn files(out: &mut Keys<'_>, files: &[DataFile]) {
    for file in files {
        let rows =
            || list(file.rows.iter().map(|row| text(&String::from_utf8_lossy(row.as_bytes()))));
        out.key(&file.name, file.path.as_deref().map_or_else(rows, text));
    }
}

fn name(out: &mut Keys<'_>, at: usize, name: &str) {
    out.optional("name", (name != (at + 1).to_string()).then(|| text(name)));
}

fn phase(out: &mut Keys<'_>, at: usize, phase: &Phase) {
    name(out, at, &phase.name);
    out.key("duration", time(phase.duration));
    match phase.arrivals {
        Arrivals::Open { from, to, poisson } => {
            out.key("rate", both(number(from), number(to)));
            out.optional("arrivals", poisson.then(|| text("poisson")));
        }
        Arrivals::Closed { from, to } => {
            out.key("users", both(from.to_string(), to.to_string()));
        }
    }
    out.optional("max_users", phase.users_max.map(|users| users.to_string()));
    out.flag("wait_for_users", phase.wait_for_users, false);
    out.flag("hold", phase.hold, false);
    if !phase.weights.is_empty() {
        let weights = out.scenario.sessions.iter().zip(&phase.weights);
        let weights: Vec<_> = weights
            .filter_map(|(session, weight)| Some((session.name.as_str(), number((*weight)?))))
            .collect();
        out.key("weights", named(&weights));
    }
}

fn both(from: String, to: String) -> String {
    if from == to { from } else { format!("[{from}, {to}]") }
}

fn session(out: &mut Keys<'_>, at: usize, session: &Session) {
    name(out, at, &session.name);
    out.optional("weight", weight(session.weight));
    out.word("protocol", &PROTOCOLS, session.dialect, Dialect::default());
    out.word("transport", &TRANSPORTS, session.transport, Transport::default());
    if let Some(Heartbeat { every, send }) = &session.heartbeat {
        let mut value = time(*every);
        if let Some(frame) = send {
            let mut table = out.table();
            table.key("every", value);
            table.frame_out(frame);
            value = table.inline();
        }
        out.key("heartbeat", value);
    }
    if !session.rules.is_empty() {
        out.key("answer", list(session.rules.iter().map(|rule| out.rule(rule))));
    }
    if let Some(reconnect) = session.reconnect {
        let mut table = out.table();
        table.key("min", time(reconnect.min));
        table.key("max", time(reconnect.max));
        table.optional("attempts", reconnect.attempts_max.map(|most| most.to_string()));
        table.key("rejoin", reconnect.rejoin.to_string());
        out.key("reconnect", table.inline());
    }
    if let Some(drop) = session.drop {
        let mut table = out.table();
        table.key("every", time(drop.every));
        table.key("for", time(drop.away));
        table.key("how", text(word(&CUTS, drop.how)));
        let (shortest, longest) = (drop.reconnect.0, drop.reconnect.1);
        let range = |time| humantime::format_duration(time);
        table.key("reconnect", text(&format!("{}-{}", range(shortest), range(longest))));
        let phase = drop.phase.and_then(|at| out.scenario.load.phases.get(at));
        table.optional("phase", phase.map(|phase| text(&phase.name)));
        out.key("drop", table.inline());
    }
    out.flag("resume", session.resume, false);
    out.optional("read_rate_max", session.read_rate_max.map(|bytes| bytes.to_string()));
    out.key("steps", write_steps::steps(&session.steps, 0, out.scenario));
}

fn pass(out: &mut Keys<'_>, pass: &[Threshold]) {
    for same in pass.chunk_by(|one, next| one.figure == next.figure) {
        match same {
            [one] => out.key(&one.figure, text(&one.text)),
            [first, ..] => out.key(&first.figure, list(same.iter().map(|one| text(&one.text)))),
            [] => {}
        }
    }
}

pub(super) fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, one)| *one == value).map_or("", |(word, _)| word)
}

pub(super) fn time(time: Duration) -> String {
    text(&humantime::format_duration(time).to_string())
}

/// Whole numbers without a point, all others so that they are read as the same.
pub(super) fn number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        format!("{number:.0}")
    } else {
        format!("{number:?}")
    }
}

pub(super) fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// Names with values: a table, or pairs if a name comes twice.
pub(super) fn named(values: &[(&str, String)]) -> String {
    let twice = |(at, (name, _)): (usize, &(&str, String))| {
        values.iter().skip(at + 1).any(|(other, _)| other == name)
    };
    if values.iter().enumerate().any(twice) {
        return list(values.iter().map(|(name, value)| format!("[{}, {value}]", text(name))));
    }
    if values.is_empty() {
        return "{}".to_owned();
    }
    let entries: Vec<_> =
        values.iter().map(|(name, value)| format!("{} = {value}", bare(name))).collect();
    format!("{{ {} }}", entries.join(", "))
}

pub(super) fn bare(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { basic(key) }
}

/// A text, in quotes without escapes if possible.
pub(crate) fn text(text: &str) -> String {
    let needs_escapes = text.contains(['"', '\\']);
    if needs_escapes && !text.contains(|char: char| char == '\'' || char.is_control()) {
        return format!("'{text}'");
    }
    basic(text)
}

/// JSON's escapes are valid in TOML, but TOML needs one more.
fn basic(text: &str) -> String {
    template::quoted(text).replace('\u{7f}', "\\u007F")
}
