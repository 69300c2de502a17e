//! Writes a scenario, so that it is read as the same again. Defaults are left out.

use std::fmt::Write;
use std::time::Duration;

use super::tables::{CUTS, DUMPS, EXACT, PROTOCOLS, SPREADS, TRANSPORTS};
use super::{template, vars, write_steps};
use crate::{
    AddressRange, Agent, Arrivals, DataFile, Dialect, Drop, Dump, Follow, Load, Phase, Scenario,
    Session, Sources, Spread, Target, Threshold, Timeouts, Tls, Transport,
};

/// Writes a scenario in the native language; [`read`](super::read()) makes the same scenario of it
/// again, but for the steps' lines.
pub fn write(scenario: &Scenario) -> String {
    let mut out = Lines::default();
    out.key("name", text(&scenario.name));
    // TOML's integers have a sign, seeds do not.
    let seed = i64::try_from(scenario.seed).map(|seed| seed.to_string());
    out.key("seed", seed.unwrap_or_else(|_| text(&scenario.seed.to_string())));
    run(&mut out, &scenario.load);
    let spread = scenario.spread;
    let is_written = spread != Spread::default();
    out.optional("spread", is_written.then(|| text(word(&SPREADS, spread))));
    let set = vars::set(scenario).into_iter().map(|var| usize::from(var.0));
    if !set.eq(0..scenario.vars.len()) {
        out.key("vars", list(scenario.vars.iter().map(|name| text(name))));
    }
    if !scenario.user_agents.is_empty() {
        let agents = scenario.user_agents.iter();
        let agents: Vec<_> =
            agents.map(|(name, weight)| (name.as_str(), number(*weight))).collect();
        out.key("user_agents", named(&agents));
    }
    scenario.targets.iter().for_each(|one| target(&mut out, one));
    sources(&mut out, &scenario.sources);
    timeouts(&mut out, &scenario.timeouts);
    scenario.agents.iter().for_each(|one| agent(&mut out, one));
    tls(&mut out, &scenario.tls);
    files(&mut out, &scenario.files);
    if let Some(run) = &scenario.tsung {
        out.table("[tsung]");
        out.optional("version", run.version.as_deref().map(text));
        out.optional("full_stats", run.full_stats.then(|| "true".to_owned()));
        let is_written = run.dump != Dump::Off;
        out.optional("dump", is_written.then(|| text(word(&DUMPS, run.dump))));
    }
    for (at, phase) in scenario.load.phases.iter().enumerate() {
        write_phase(&mut out, at, phase, scenario);
    }
    for appointment in &scenario.load.appointments {
        out.table("[[appointment]]");
        out.key("at", time(appointment.at));
        let session = scenario.sessions.get(appointment.session);
        out.key("session", text(session.map_or("", |session| &session.name)));
    }
    for (at, one) in scenario.sessions.iter().enumerate() {
        session(&mut out, at, one, scenario);
    }
    pass(&mut out, &scenario.pass);
    out.0
}

/// The text, line by line.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn key(&mut self, key: &str, value: String) {
        let _ = writeln!(self.0, "{} = {value}", bare(key));
    }

    fn optional(&mut self, key: &str, value: Option<String>) {
        if let Some(value) = value {
            self.key(key, value);
        }
    }

    fn table(&mut self, header: &str) {
        let _ = writeln!(self.0, "\n{header}");
    }
}

fn run(out: &mut Lines, load: &Load) {
    out.optional("duration", load.duration.map(time));
    out.optional("max_users", load.users_max.map(|users| users.to_string()));
    match load.follow_stamps {
        Follow::Nothing => {}
        Follow::Last => out.key("follow_stamps", true.to_string()),
        Follow::Exactly => out.key("follow_stamps", text(EXACT)),
    }
    out.optional("repeat", (load.repeat > 0).then(|| load.repeat.to_string()));
}

fn target(out: &mut Lines, target: &Target) {
    out.table("[[target]]");
    out.key("url", text(&url(target)));
    let is_written = is_address(target);
    out.optional("address", (!is_written).then(|| text(&target.address.to_string())));
    out.optional("weight", weight(target.weight));
}

fn url(target: &Target) -> String {
    let scheme = if target.tls { "wss" } else { "ws" };
    let host = &target.host;
    let port = target.address.port();
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}

/// Whether the host as written is the address, so that it need not be looked up.
fn is_address(target: &Target) -> bool {
    target.host.parse() == Ok(target.address.ip())
}

/// How a step names a server.
pub(super) fn target_name(index: usize, scenario: &Scenario) -> String {
    match scenario.targets.get(index) {
        Some(target) if is_address(target) => {
            let first = scenario.targets.iter().position(|one| one.is_same(target));
            if first == Some(index) { text(&url(target)) } else { (index + 1).to_string() }
        }
        _ => (index + 1).to_string(),
    }
}

fn weight(weight: f64) -> Option<String> {
    (weight != 1.0).then(|| number(weight))
}

fn sources(out: &mut Lines, sources: &Sources) {
    if *sources == Sources::default() {
        return;
    }
    out.table("[sources]");
    out.optional("addresses", addresses(&sources.addresses));
    out.optional("ports", sources.ports.map(|(first, last)| format!("[{first}, {last}]")));
    let bytes = |count: usize| count.to_string();
    out.optional("receive_buffer_bytes", sources.receive_buffer_bytes.map(bytes));
    out.optional("send_buffer_bytes", sources.send_buffer_bytes.map(bytes));
}

fn addresses(ranges: &[AddressRange]) -> Option<String> {
    let range = |range: &AddressRange| {
        let AddressRange { first, last } = range;
        text(&if first == last { first.to_string() } else { format!("{first}-{last}") })
    };
    (!ranges.is_empty()).then(|| list(ranges.iter().map(range)))
}

fn timeouts(out: &mut Lines, timeouts: &Timeouts) {
    let default = Timeouts::default();
    if *timeouts == default {
        return;
    }
    out.table("[timeouts]");
    out.key("connect", time(timeouts.connect));
    out.key("reply", time(timeouts.reply));
    out.key("retries", timeouts.retries.to_string());
    out.key("retry_wait", time(timeouts.retry_wait));
}

fn agent(out: &mut Lines, agent: &Agent) {
    out.table("[[agent]]");
    out.key("address", text(&agent.address));
    out.key("token", text(&agent.token));
    out.optional("weight", weight(agent.weight));
    out.optional("addresses", addresses(&agent.addresses));
}

fn tls(out: &mut Lines, tls: &Tls) {
    if *tls == Tls::default() {
        return;
    }
    out.table("[tls]");
    out.optional("insecure", tls.insecure.then(|| "true".to_owned()));
    let roots = &tls.roots_pem;
    let roots = (!roots.is_empty()).then(|| list(roots.iter().map(|pem| text(pem))));
    out.optional("roots", roots);
    out.optional("identity", tls.identity_pem.as_deref().map(text));
}

fn files(out: &mut Lines, files: &[DataFile]) {
    if files.is_empty() {
        return;
    }
    let value = |file: &DataFile| match &file.path {
        Some(path) => text(path),
        None => list(file.rows.iter().map(|row| text(row))),
    };
    out.table("[files]");
    for file in files {
        out.key(&file.name, value(file));
    }
}

fn write_phase(out: &mut Lines, at: usize, phase: &Phase, scenario: &Scenario) {
    out.table("[[phase]]");
    if phase.name != (at + 1).to_string() {
        out.key("name", text(&phase.name));
    }
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
    out.optional("wait_for_users", phase.wait_for_users.then(|| "true".to_owned()));
    out.optional("hold", phase.hold.then(|| "true".to_owned()));
    if !phase.weights.is_empty() {
        let weights = scenario.sessions.iter().zip(&phase.weights);
        let weights: Vec<_> = weights
            .filter_map(|(session, weight)| Some((session.name.as_str(), number((*weight)?))))
            .collect();
        out.key("weights", named(&weights));
    }
}

fn both(from: String, to: String) -> String {
    if from == to { from } else { format!("[{from}, {to}]") }
}

fn session(out: &mut Lines, at: usize, session: &Session, scenario: &Scenario) {
    out.table("[[session]]");
    if session.name != (at + 1).to_string() {
        out.key("name", text(&session.name));
    }
    out.optional("weight", weight(session.weight));
    let is_written = session.dialect != Dialect::Raw;
    out.optional("protocol", is_written.then(|| text(word(&PROTOCOLS, session.dialect))));
    let is_written = session.transport != Transport::default();
    out.optional("transport", is_written.then(|| text(word(&TRANSPORTS, session.transport))));
    out.optional("heartbeat", session.heartbeat.map(time));
    out.optional(
        "reconnect",
        session.reconnect.map(|reconnect| {
            let attempts = reconnect.attempts_max.map(|most| format!("attempts = {most}, "));
            format!(
                "{{ min = {}, max = {}, {}rejoin = {} }}",
                time(reconnect.min),
                time(reconnect.max),
                attempts.unwrap_or_default(),
                reconnect.rejoin
            )
        }),
    );
    out.optional("drop", session.drop.map(|one| drop_table(&one, scenario)));
    out.optional("resume", session.resume.then(|| true.to_string()));
    out.optional("read_rate_max", session.read_rate_max.map(|bytes| bytes.to_string()));
    out.key("steps", write_steps::steps(&session.steps, 0, scenario));
}

fn drop_table(one: &Drop, scenario: &Scenario) -> String {
    let (shortest, longest) = one.reconnect;
    let range = |time: Duration| humantime::format_duration(time);
    let phase = one.phase.and_then(|at| scenario.load.phases.get(at));
    let phase = phase.map(|phase| format!(", phase = {}", text(&phase.name)));
    format!(
        "{{ every = {}, for = {}, how = {}, reconnect = {}{} }}",
        time(one.every),
        time(one.away),
        text(word(&CUTS, one.how)),
        text(&format!("{}-{}", range(shortest), range(longest))),
        phase.unwrap_or_default()
    )
}

fn pass(out: &mut Lines, pass: &[Threshold]) {
    if pass.is_empty() {
        return;
    }
    let condition = |one: &Threshold| text(&one.text);
    out.table("[pass]");
    let mut rest = pass;
    while let Some(first) = rest.first() {
        let alike = rest.iter().take_while(|one| one.figure == first.figure).count();
        let (same, others) = rest.split_at(alike);
        match same {
            [one] => out.key(&one.figure, condition(one)),
            same => out.key(&first.figure, list(same.iter().map(condition))),
        }
        rest = others;
    }
}

/// The word that stands for a value.
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

/// Names with values: a table, or pairs where a name comes twice.
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

/// A key.
pub(super) fn bare(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { basic(key) }
}

/// A text, in the quotes that need no escapes where that is possible.
pub(super) fn text(text: &str) -> String {
    let needs_escapes = text.contains(['"', '\\']);
    if needs_escapes && !text.contains(|char: char| char == '\'' || char.is_control()) {
        return format!("'{text}'");
    }
    basic(text)
}

/// JSON's escapes are TOML's too, but TOML wants one more.
fn basic(text: &str) -> String {
    template::quoted(text).replace('\u{7f}', "\\u007F")
}
