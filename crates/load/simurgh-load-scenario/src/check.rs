//! Checks scenarios of both languages: consistent figures, and steps that their session can do.
//! Regular expressions, paths and certificates are compiled here once, so that a run cannot fail on
//! them later.

use std::fmt::Display;

use simurgh_load_client::http::is_token;
use simurgh_load_client::tls::TlsConfig;
use simurgh_load_client::tun::Network;

use super::{
    Act, Arrivals, Bound, Diagnostic, Diagnostics, Dialect, Find, Heartbeat, LOCAL_AGENT, Load,
    Matcher, Part, Phase, Protocol, Push, Reply, Scenario, Session, Spread, Step, Target, Think,
    Transport,
};
use crate::answer::{CompiledCheck, CompiledFind, CompiledMatcher, compile_pattern};
use crate::figures;

/// Checks a scenario. Returns all mistakes, those of the whole first, then in order of lines.
pub fn check(scenario: &Scenario) -> Result<(), Diagnostics> {
    let mut diagnostics = Vec::new();
    whole(scenario, &mut diagnostics);
    load(scenario, &mut diagnostics);
    for session in &scenario.sessions {
        let mut check = SessionCheck {
            scenario,
            session,
            diagnostics: &mut diagnostics,
            dialect: session.dialect,
        };
        check.session();
    }
    if diagnostics.is_empty() {
        return Ok(());
    }
    diagnostics.sort_by_key(|diagnostic| diagnostic.line);
    diagnostics.dedup();
    Err(Diagnostics(diagnostics))
}

/// The highest rate: beyond it, clocks cannot separate two arrivals.
const RATE_MAX: f64 = 10_000_000.0;

/// The number of servers that a user's state can index.
const TARGETS_MAX: usize = 1 << 14;

/// How deep steps may nest; the TOML parser has the same bound.
const DEPTH_MAX: usize = 32;

fn whole(scenario: &Scenario, diagnostics: &mut Vec<Diagnostic>) {
    let mut wrong = |what: String, help: &str| diagnostics.push(Diagnostic::at(0, what).help(help));
    if scenario.targets.is_empty() {
        wrong("no server is configured".into(), "add a target");
    }
    if scenario.targets.len() > TARGETS_MAX {
        wrong(format!("there are {} servers", scenario.targets.len()), "use 16,384 or less");
    }
    let comes_back = |session: &Session| session.reconnect.is_some() || session.drop.is_some();
    if scenario.spread == Spread::Elsewhere
        && scenario.timeouts.retries == 0
        && !scenario.sessions.iter().any(comes_back)
    {
        let help = "add reconnect = {} to sessions that shall reconnect";
        wrong("spread = \"elsewhere\": no session reconnects".into(), help);
    }
    let targets: Vec<f64> = scenario.targets.iter().map(|target| target.weight).collect();
    let user_agents = scenario.user_agents.iter().map(|(_, weight)| *weight).collect();
    let agents = scenario.agents.iter().map(|agent| agent.weight).collect();
    for (whose, weights) in [("servers", targets), ("user agents", user_agents), ("agents", agents)]
    {
        if !weights.is_empty() && !is_distribution(weights.into_iter()) {
            wrong(format!("the weights of the {whose} do not add up to more than 0"), "");
        }
    }
    if scenario.sessions.is_empty() {
        wrong("there is no session".into(), "add a [[session]] with steps");
    }
    for agent in scenario.agents.iter().filter(|agent| agent.address != LOCAL_AGENT) {
        if agent.address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            let what = format!("the agent {:?} has no port", agent.address);
            wrong(what, "it takes HOST:PORT, as `simurgh load agent --listen` has it");
        }
        if agent.token.is_empty() {
            wrong(format!("the agent {:?} has no token", agent.address), "");
        }
    }
    if let Some((first, last)) = scenario.sources.ports
        && (first == 0 || last < first)
    {
        let what = format!("the ports {first} to {last} are not a range");
        wrong(what, "the first is at least 1, the last not below it");
    }
    for range in &scenario.sources.addresses {
        if range.first.is_ipv4() != range.last.is_ipv4() || range.last < range.first {
            wrong(format!("the addresses {} to {} are not a range", range.first, range.last), "");
        }
    }
    if scenario.sources.tun.is_some() {
        let is_other = |target: &&Target| target.tls || !target.address.is_ipv4();
        for target in scenario.targets.iter().filter(is_other) {
            let what = format!("the server {} cannot be reached over TUN devices", target.host);
            wrong(what, "they have no TLS, and IPv4 only");
        }
        if let Err(why) = Network::of(&scenario.sources, 0, 1) {
            wrong(why, "");
        }
    }
    for threshold in &scenario.pass {
        if figures::unit(&threshold.figure).is_none() {
            wrong(format!("unknown figure {:?}", threshold.figure), "");
        }
    }
    if let Err(why) = TlsConfig::new(&scenario.tls) {
        wrong(why, "");
    }
    if scenario.timeouts.connect.is_zero() || scenario.timeouts.reply.is_zero() {
        wrong("a timeout is 0, so nothing can succeed".into(), "remove it to use the default");
    }
}

/// Whether the weights can be used for a choice.
fn is_distribution(weights: impl Iterator<Item = f64>) -> bool {
    let mut sum = 0.0;
    for weight in weights {
        if !weight.is_finite() || weight < 0.0 {
            return false;
        }
        sum += weight;
    }
    sum > 0.0 && sum.is_finite()
}

fn load(scenario: &Scenario, diagnostics: &mut Vec<Diagnostic>) {
    let Load { phases, appointments, duration, .. } = &scenario.load;
    let mut wrong = |what: String, help: &str| diagnostics.push(Diagnostic::at(0, what).help(help));
    if phases.is_empty() && appointments.is_empty() {
        wrong("no users ever arrive".into(), "add a phase with a duration and a rate");
    }
    for phase in phases {
        let name = &phase.name;
        if phase.duration.is_zero() {
            wrong(format!("phase {name} has no duration"), "");
        }
        match phase.arrivals {
            Arrivals::Open { from, to, .. } => {
                for rate in [from, to].into_iter().filter(|rate| !(0.0..=RATE_MAX).contains(rate)) {
                    let help = format!("rates are from 0 to {RATE_MAX} users per second");
                    wrong(format!("phase {name} has a rate of {rate}"), &help);
                }
            }
            Arrivals::Closed { from: 0, to: 0 } => {
                wrong(format!("phase {name} has no users"), "rate = 0 makes a pause");
            }
            Arrivals::Closed { .. } => {}
        }
        if !scenario.sessions.is_empty() && !is_distribution(weights(scenario, phase)) {
            let what = format!("phase {name}: the sessions' weights do not add up to more than 0");
            wrong(what, "no session could be chosen for a user");
        }
    }
    for appointment in appointments {
        if appointment.session >= scenario.sessions.len() {
            wrong("an appointment is of no session".into(), "");
        }
    }
    if duration.is_some_and(|duration| duration.is_zero()) {
        wrong("the duration of the run is 0".into(), "");
    }
}

pub(super) fn weights(scenario: &Scenario, phase: &Phase) -> impl Iterator<Item = f64> {
    let own = |at: usize| phase.weights.get(at).copied().flatten();
    let sessions = scenario.sessions.iter().enumerate();
    sessions.map(move |(at, session)| own(at).unwrap_or(session.weight))
}

struct SessionCheck<'s> {
    scenario: &'s Scenario,
    session: &'s Session,
    diagnostics: &'s mut Vec<Diagnostic>,
    dialect: Dialect,
}

/// The state before a step.
#[derive(Clone, Copy, Default)]
struct Before {
    /// On some path.
    connected: bool,
    /// On every path.
    open: bool,
    joined: bool,
}

impl<'s> SessionCheck<'s> {
    fn wrong(&mut self, line: u32, what: impl Display, help: &str) {
        let what = format!("session {}: {what}", self.session.name);
        self.diagnostics.push(Diagnostic::at(line, what).help(help));
    }

    fn session(&mut self) {
        let session = self.session;
        if session.steps.is_empty() {
            self.wrong(0, "it has no steps", "users would end as they come");
        }
        let is_phoenix = matches!(session.dialect, Dialect::Phoenix(_));
        let other = session.dialect.other();
        let (mut connects, mut joins) = (false, false);
        session.each_step(&mut |step| {
            connects |= matches!(step.act, Act::Connect(_));
            joins |= matches!(step.act, Act::Join(_));
        });
        self.by_themselves(
            is_phoenix || other.is_some_and(Protocol::has_heartbeat),
            connects || session.dialect == Dialect::Tsung,
        );
        if let Some(reconnect) = session.reconnect
            && reconnect.max < reconnect.min
        {
            self.wrong(0, "reconnect: min is longer than max", "raise max");
        }
        if session.transport == Transport::LongPoll && !is_phoenix {
            self.wrong(0, "long polling is Phoenix's", "add protocol = \"phoenix\"");
        }
        self.drops(session, connects, joins);
        if session.read_rate_max == Some(0) {
            self.wrong(0, "it may not read anything", "");
        }
        self.steps(&session.steps, &mut Before::default(), 0);
    }

    /// Checks heartbeats and answers.
    fn by_themselves(&mut self, has_heartbeat: bool, connects: bool) {
        let Session { heartbeat, rules, transport, .. } = self.session;
        match heartbeat {
            Some(Heartbeat { send: None, .. }) if !has_heartbeat => {
                let help = "write what is sent, as heartbeat = { every = \"25s\", send = \"2\" }, \
                            or add protocol = \"phoenix\"";
                self.wrong(0, "a heartbeat without `send` is Phoenix's", help);
            }
            Some(Heartbeat { send: Some(_), .. }) if has_heartbeat => {
                let help = "leave `send` out: heartbeat = \"30s\"";
                self.wrong(0, "the protocol has a heartbeat of its own", help);
            }
            _ => {}
        }
        if heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.every.is_zero()) {
            self.wrong(0, "the interval of heartbeats is 0", "");
        }
        if !rules.is_empty() && *transport == Transport::LongPoll {
            self.wrong(0, "`answer` is for frames of WebSockets", "leave answer or longpoll out");
        }
        let sends = heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.send.is_some());
        if !connects && (sends || !rules.is_empty()) {
            let what = "it has no connection for its `answer` or `heartbeat`";
            self.wrong(0, what, "add a connect step");
        }
        for rule in rules {
            self.matcher(0, &rule.when);
        }
    }

    /// Checks that a matcher can be compiled, and suits the protocol.
    fn matcher(&mut self, line: u32, matcher: &Matcher) {
        let of_event = matches!(matcher, Matcher::Event { .. } | Matcher::Presence { .. });
        if of_event && self.dialect == Dialect::Raw {
            self.wrong(line, "events are Phoenix's", "add protocol = \"phoenix\"");
        }
        if let Err(why) = CompiledMatcher::new(matcher) {
            self.wrong(line, why, "");
        }
    }

    fn drops(&mut self, session: &'s Session, connects: bool, joins: bool) {
        if let Some(drop) = session.drop {
            if drop.away >= drop.every {
                let help = "make `for` shorter than `every`";
                self.wrong(0, "drop: the next drop would begin before this one ends", help);
            }
            if drop.reconnect.1 < drop.reconnect.0 {
                self.wrong(
                    0,
                    "drop: the first time of reconnect is longer than the second",
                    "swap them",
                );
            }
            if session.transport == Transport::LongPoll {
                self.wrong(0, "drop works on WebSockets only", "remove drop or longpoll");
            }
            if !connects {
                self.wrong(0, "drop needs a connection", "add a connect step");
            }
            if drop.phase.is_some_and(|phase| phase >= self.scenario.load.phases.len()) {
                self.wrong(0, "drop names an unknown phase", "");
            }
        }
        if session.resume && !matches!(session.dialect, Dialect::Phoenix(_)) {
            self.wrong(0, "resume needs the Phoenix protocol", "add protocol = \"phoenix\"");
        } else if session.resume && !joins {
            self.wrong(0, "resume needs a channel", "add a join step");
        }
        let stays_out = session.reconnect.is_some_and(|policy| !policy.rejoin);
        if stays_out && (session.drop.is_some() || session.resume) {
            self.wrong(0, "drop and resume need rejoin", "remove rejoin = false");
        }
    }

    fn steps(&mut self, steps: &'s [Step], before: &mut Before, depth: usize) {
        if depth > DEPTH_MAX && !steps.is_empty() {
            let line = steps.first().map_or(0, |step| step.line);
            return self.wrong(line, "steps are nested too deep", "the maximum is 32");
        }
        for step in steps {
            self.step(step, before);
            self.texts(step);
            // The inner steps may be left out.
            let mut inner = *before;
            self.steps(step.act.steps(), &mut inner, depth + 1);
            before.connected |= inner.connected;
            before.joined |= inner.joined;
            before.open &= inner.open;
        }
    }

    fn step(&mut self, step: &'s Step, before: &mut Before) {
        let line = step.line;
        match &step.act {
            Act::Connect(connect) => {
                let greets = self.dialect.other().is_some_and(Protocol::greets);
                if connect.payload.is_some() && !greets {
                    let help = "put it into the path or a header";
                    self.wrong(line, "the protocol's connect has no payload", help);
                }
                *before = Before { connected: true, open: true, joined: false };
                let polls = self.session.transport == Transport::LongPoll;
                if polls && !connect.subprotocols.is_empty() {
                    let help = "a token goes in the header x-phoenix-authtoken";
                    self.wrong(line, "subprotocols are those of WebSockets", help);
                }
                if polls && connect.compress {
                    self.wrong(line, "compress is for WebSockets", "leave it out");
                }
            }
            Act::Switch(switch) => {
                self.dialect = switch.dialect;
                if switch.target >= self.scenario.targets.len() {
                    self.wrong(line, "it switches to an unknown server", "");
                }
                *before = Before { connected: switch.restore, ..Before::default() };
            }
            Act::Join(join) => {
                if self.session.resume && !takes_keys(join) {
                    let help = "the position is added to it as \"simurgh\"";
                    self.wrong(line, "a join that resumes has an object as its payload", help);
                }
                self.has_topics(step, join);
                self.is_connected(line, "a join", *before);
                before.joined = true;
            }
            Act::Push(push) | Act::Leave(push) => {
                self.has_topics(step, push);
                if before.connected && !before.joined && !is_own_topic(&push.topic) {
                    self.wrong(line, "nothing was joined before", "add a join step");
                } else {
                    self.is_connected(line, "a push", *before);
                }
            }
            Act::Send(_) => self.is_connected(line, "a message", *before),
            Act::Wait(_) | Act::Receive(_) | Act::WaitServer => {
                self.is_connected(line, "waiting for frames", *before);
            }
            Act::Close { .. } => *before = Before::default(),
            Act::Http(_) if before.open && self.dialect != Dialect::Tsung => {
                let help = "add { close = true } before it, or a session of its own";
                self.wrong(line, "an HTTP request needs the socket to be closed first", help);
            }
            Act::For(each) => self.bounds(step, each.from, each.to, each.step),
            Act::Think(Think::Uniform(from, to)) if to < from => {
                self.wrong(line, "think: the first time is longer than the second", "swap them");
            }
            Act::Repeat(repeat) if repeat.times_max == 0 => {
                self.wrong(line, "the limit of repetitions is 0", "");
            }
            Act::Gather { users: 0, .. } => self.wrong(line, "it gathers no users", ""),
            Act::Set(set) if set.vars.is_empty() => self.wrong(line, "it sets no variable", ""),
            _ => {}
        }
    }

    /// Checks that the protocol has what a join, push or leave wants.
    fn has_topics(&mut self, step: &Step, push: &Push) {
        if !self.dialect.has_topics() {
            let help = "add protocol = \"phoenix\" to the session, or another with topics";
            self.wrong(step.line, "joins, pushes and leaves need a protocol with topics", help);
        }
        let Some(protocol) = self.dialect.other() else { return };
        let name = protocol.name();
        if push.await_reply && !protocol.replies_to(&step.act) {
            let what = format_args!("{name} has no reply to this step");
            self.wrong(step.line, what, "add reply = false");
        }
        if push.binary || push.presence.is_some() {
            let what = format_args!("binary and presence do not work with {name}");
            self.wrong(step.line, what, "leave them out");
        }
    }

    fn is_connected(&mut self, line: u32, what: &str, before: Before) {
        // Tsung connects when a step needs it.
        if !before.connected && self.dialect != Dialect::Tsung {
            self.wrong(
                line,
                format_args!("{what} needs a connection"),
                "add a connect step before",
            );
        }
    }

    fn bounds(&mut self, step: &Step, from: Bound, to: Bound, by: i64) {
        match (from, to) {
            (Bound::Endless, _) => self.wrong(step.line, "a loop has to begin somewhere", ""),
            (_, Bound::Number(_) | Bound::Var(_)) if by == 0 => {
                self.wrong(step.line, "a loop with steps of 0 never ends", "say \"forever\"");
            }
            (Bound::Number(from), Bound::Number(to)) if (by > 0) != (from <= to) && from != to => {
                let what = format!("no step of {by} leads from {from} to {to}");
                if !matches!(&step.act, Act::For(each) if each.at_least_once) {
                    self.wrong(step.line, what, "its steps would never run");
                }
            }
            _ => {}
        }
        let Act::For(each) = &step.act else { return };
        if to == Bound::Endless && each.every.is_none() && !each.steps.iter().any(takes_time) {
            let help = "add every = \"1s\" or a think time, else it takes all of a core";
            self.wrong(step.line, "an endless loop in which nothing takes time", help);
        }
    }

    /// Checks everything that is compiled for a run.
    fn texts(&mut self, step: &'s Step) {
        let mut wrong = Vec::new();
        if let Some(answer) = step.act.answer() {
            for capture in &answer.captures {
                wrong.extend(CompiledFind::new(&capture.from).err());
                if let Find::Regex(pattern) = &capture.from {
                    wrong.extend(self.braces(pattern));
                }
            }
            wrong.extend(answer.checks.iter().filter_map(|one| CompiledCheck::new(one).err()));
        }
        let matcher = match &step.act {
            Act::Send(message) | Act::Raw(message) => match &message.reply {
                Reply::Match(matcher) => Some(matcher),
                _ => None,
            },
            Act::Wait(wait) => Some(&wait.matcher),
            Act::Receive(receive) => receive.matcher.as_ref(),
            _ => None,
        };
        if let Some(matcher) = matcher {
            self.matcher(step.line, matcher);
        }
        if self.dialect != Dialect::Tsung {
            wrong.extend(tokens(&step.act).filter(|text| !is_token(text.as_bytes())).map(|text| {
                format!("{text:?} has characters that HTTP does not allow in a name or method")
            }));
        }
        if let Act::ForEach(each) = &step.act {
            for pattern in each.include.iter().chain(&each.exclude) {
                wrong.extend(compile_pattern(pattern).err().or_else(|| self.braces(pattern)));
            }
        }
        for why in wrong {
            self.wrong(step.line, why, "");
        }
    }

    /// The mistake in a pattern that is not a template but looks like one. In Tsung's files it
    /// cannot be meant as one.
    fn braces(&self, pattern: &str) -> Option<String> {
        let (_, name) = pattern.split_once("{{").filter(|_| self.scenario.tsung.is_none())?;
        let (name, _) = name.split_once("}}")?;
        Some(format!(
            "'{pattern}': {{{{{name}}}}} is not replaced in this regular expression; write \
             '\\{{\\{{' for two braces"
        ))
    }
}

/// Names of headers and cookies, and a method.
fn tokens(act: &Act) -> impl Iterator<Item = &str> {
    let (headers, cookies, method): (_, &[_], _) = match act {
        Act::Http(http) => (&*http.headers, &http.cookies, Some(http.method.as_str())),
        Act::Connect(connect) => (&*connect.headers, &[], None),
        _ => (&[][..], &[], None),
    };
    headers.iter().chain(cookies).map(|(name, _)| name.as_str()).chain(method)
}

/// Whether a join's payload can be an object, judged by its beginning.
fn takes_keys(join: &Push) -> bool {
    let begins = match join.payload.parts.first() {
        None | Some(Part::Value(_) | Part::Var(_) | Part::Element(..)) => true,
        Some(Part::Literal(text)) => text.trim_ascii_start().first().is_none_or(|it| *it == b'{'),
    };
    begins && !join.binary
}

/// Whether a step waits for something, so that a loop of it lets other users run.
fn takes_time(step: &Step) -> bool {
    match &step.act {
        Act::Connect(_)
        | Act::Wait(_)
        | Act::Receive(_)
        | Act::Think(_)
        | Act::Http(_)
        | Act::Close { .. }
        | Act::Gather { .. }
        | Act::WaitServer
        | Act::Abort
        | Act::AbortRun => true,
        Act::Send(message) | Act::Raw(message) => message.reply != Reply::None,
        Act::Join(push) | Act::Push(push) | Act::Leave(push) => push.await_reply,
        Act::For(each) if each.every.is_some() => true,
        act => act.steps().iter().any(takes_time),
    }
}

/// The protocol's heartbeat topic, which needs no join.
fn is_own_topic(topic: &super::Template) -> bool {
    topic.constant() == Some(b"phoenix")
}

#[cfg(test)]
mod tests;
