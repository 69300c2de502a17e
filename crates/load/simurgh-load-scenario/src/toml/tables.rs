//! The tables of a scenario, except for servers and steps.

use std::time::Duration;

use simurgh_text::toml::{Entry, Table};

use super::answer::MATCHER;
use super::keys::{
    COUNT, Codec, FLAG, Keys, SMALL, SOME_COUNT, SOME_TIME, TEMPLATE, TEXT, TIME, WEIGHT, bare,
    named, number, text, time, word,
};
use super::steps::STEPS;
use super::units;
use crate::figures;
use crate::{
    AddressRange, Agent, AnswerRule, Appointment, Arrivals, Cut, Dialect, Drop, Dump, Follow,
    FrameOut, Heartbeat, LOCAL_AGENT, Matcher, Phase, Protocol, Reconnect, Scenario, Session,
    Sources, Spread, Threshold, Timeouts, Tls, Transport, TsungRun, Vsn,
};

pub(super) const PROTOCOLS: [(&str, Dialect); 9] = [
    ("raw", Dialect::Raw),
    ("phoenix", Dialect::Phoenix(Vsn::V2)),
    ("phoenix-v1", Dialect::Phoenix(Vsn::V1)),
    ("tsung", Dialect::Tsung),
    other(Protocol::SocketIo),
    other(Protocol::Pusher),
    other(Protocol::ActionCable),
    other(Protocol::Centrifuge),
    other(Protocol::GraphqlWs),
];

const fn other(protocol: Protocol) -> (&'static str, Dialect) {
    (protocol.name(), Dialect::Other(protocol))
}

pub(super) const TRANSPORTS: [(&str, Transport); 2] =
    [("websocket", Transport::WebSocket), ("longpoll", Transport::LongPoll)];

pub(super) const CUTS: [(&str, Cut); 3] =
    [("rst", Cut::Reset), ("silence", Cut::Silence), ("both", Cut::Both)];

pub(super) const SPREADS: [(&str, Spread); 4] = [
    ("round-robin", Spread::RoundRobin),
    ("sticky", Spread::Sticky),
    ("elsewhere", Spread::Elsewhere),
    ("random", Spread::Random),
];

pub(super) const DUMPS: [(&str, Dump); 4] = [
    ("off", Dump::Off),
    ("full", Dump::Full),
    ("light", Dump::Light),
    ("protocol", Dump::Protocol),
];

/// How users are spread: `round-robin`, `sticky`, `elsewhere` or `random`; else it fails.
pub fn spread(word: &str) -> Result<Spread, String> {
    let known = SPREADS.iter().find(|(known, _)| *known == word);
    let names = SPREADS.map(|(name, _)| name).join(", ");
    known.map(|(_, spread)| *spread).ok_or_else(|| format!("{word:?} is unknown: use {names}"))
}

/// The word for [`Follow::Exactly`].
pub(super) const EXACT: &str = "exact";

const FOLLOW: Codec<Follow> = Codec {
    read: |_, entry| {
        if entry.as_str().is_some() {
            return entry.word(&[(EXACT, Follow::Exactly)]);
        }
        entry.bool().map(|last| if last { Follow::Last } else { Follow::Nothing })
    },
    write: |_, follow| match follow {
        Follow::Exactly => text(EXACT),
        follow => (*follow == Follow::Last).to_string(),
    },
};

/// TOML's integers have a sign, seeds do not.
const SEED: Codec<u64> = Codec {
    read: |_, entry| match entry.as_str() {
        Some(text) => {
            let seed = text.parse();
            seed.map_err(|_| entry.wrong("is not a whole number from 0", "")).ok()
        }
        None => entry.count(0),
    },
    write: |_, seed| match i64::try_from(*seed) {
        Ok(seed) => seed.to_string(),
        Err(_) => text(&seed.to_string()),
    },
};

/// The keys at the top of the file.
pub(super) fn top(keys: &mut Keys<'_, '_, '_>, scenario: &mut Scenario) {
    keys.key("name", &mut scenario.name, "unnamed".to_owned(), TEXT);
    keys.key("seed", &mut scenario.seed, 1, SEED);
    let load = &mut scenario.load;
    keys.optional("duration", &mut load.duration, SOME_TIME);
    keys.optional("max_users", &mut load.users_max, COUNT);
    keys.key("follow_stamps", &mut load.follow_stamps, Follow::Nothing, FOLLOW);
    keys.key("repeat", &mut load.repeat, 0, SMALL);
    keys.word("spread", &mut scenario.spread, Spread::default(), &SPREADS);
    keys.named("user_agents", &mut scenario.user_agents, WEIGHT);
}

/// A phase, by its index.
pub(super) fn phase(keys: &mut Keys<'_, '_, '_>, phase: &mut Phase, at: usize) {
    keys.key("name", &mut phase.name, (at + 1).to_string(), TEXT);
    keys.needed("duration", "a time such as \"60s\"", &mut phase.duration, TIME);
    match keys {
        Keys::Read(_, table) => phase.arrivals = arrivals(table).unwrap_or_default(),
        Keys::Write(_, keys) => {
            let (key, value) = match phase.arrivals {
                Arrivals::Open { from, to, .. } => ("rate", both_written(number(from), number(to))),
                Arrivals::Closed { from, to } => {
                    ("users", both_written(from.to_string(), to.to_string()))
                }
            };
            keys.push((key.to_owned(), value));
            if let Arrivals::Open { poisson: true, .. } = phase.arrivals {
                keys.push(("arrivals".to_owned(), text("poisson")));
            }
        }
    }
    keys.optional("max_users", &mut phase.users_max, COUNT);
    keys.key("wait_for_users", &mut phase.wait_for_users, false, FLAG);
    keys.key("hold", &mut phase.hold, false, FLAG);
    keys.key("weights", &mut phase.weights, Vec::new(), WEIGHTS);
}

fn both_written(from: String, to: String) -> String {
    if from == to { from } else { format!("[{from}, {to}]") }
}

/// Weights by the names of sessions.
const WEIGHTS: Codec<Vec<Option<f64>>> = Codec {
    read: |reader, entry| {
        let mut weights = vec![None; reader.sessions.len()];
        for weight in entry.named() {
            let at = reader.session_index(&weight, &weight.key);
            let value = weight.number("a weight from 0");
            if let Some(slot) = at.and_then(|at| weights.get_mut(at)) {
                *slot = value;
            }
        }
        Some(weights)
    },
    write: |writer, weights| {
        let weights = writer.scenario.sessions.iter().zip(weights);
        let weights = weights
            .filter_map(|(session, weight)| Some((session.name.as_str(), number((*weight)?))));
        named(&weights.collect::<Vec<_>>())
    },
};

fn arrivals(table: &Table<'_, '_>) -> Option<Arrivals> {
    let (rate, users) = (table.get("rate"), table.get("users"));
    let poisson = table.get("arrivals");
    let is_open = rate.is_some();
    let poisson_word = poisson.as_ref().and_then(|e| e.word(&[("even", false), ("poisson", true)]));
    match (rate, users) {
        (Some(rate), None) => {
            let takes = "users per second, or a text such as \"60/min\", or two for a ramp";
            let (from, to) = both(&rate, takes, |one| match one.as_str() {
                Some(text) => one.checked(units::rate(text), takes),
                None => one.number(takes),
            })?;
            Some(Arrivals::Open { from, to, poisson: poisson_word.unwrap_or(false) })
        }
        (None, Some(users)) => {
            if let Some(poisson) = poisson {
                poisson.wrong("goes with rate, not with users", "");
            }
            let (from, to) = both(&users, "a number of users, or two for a ramp", |e| e.count(0))?;
            Some(Arrivals::Closed { from, to })
        }
        _ => {
            let what =
                if is_open { "rate and users exclude each other" } else { "rate is missing" };
            let help = "rate = 100 lets 100 users arrive each second, users = 100 keeps 100 there";
            table.wrong(what, help);
            None
        }
    }
}

fn both<'p, 'i, T: Copy>(
    entry: &Entry<'p, 'i>,
    takes: &str,
    read: impl Fn(&Entry<'p, 'i>) -> Option<T>,
) -> Option<(T, T)> {
    if !entry.is_list() {
        return read(entry).map(|one| (one, one));
    }
    let (from, to) = entry.pair(takes)?;
    let (from, to) = (read(&from), read(&to));
    Some((from?, to?))
}

pub(super) fn appointment(keys: &mut Keys<'_, '_, '_>, one: &mut Appointment) {
    keys.needed("at", "a time after the start", &mut one.at, TIME);
    keys.needed("session", "the name of a session", &mut one.session, SESSION);
}

const SESSION: Codec<usize> = Codec {
    read: |reader, entry| reader.session_index(entry, entry.text("the name of a session")?),
    write: |writer, at| text(writer.scenario.sessions.get(*at).map_or("", |one| &one.name)),
};

/// A session, by its index.
pub(super) fn session(keys: &mut Keys<'_, '_, '_>, session: &mut Session, at: usize) {
    keys.key("name", &mut session.name, (at + 1).to_string(), TEXT);
    keys.key("weight", &mut session.weight, 1.0, WEIGHT);
    keys.word("protocol", &mut session.dialect, Dialect::default(), &PROTOCOLS);
    keys.word("transport", &mut session.transport, Transport::default(), &TRANSPORTS);
    keys.optional("heartbeat", &mut session.heartbeat, HEARTBEAT);
    keys.list("answer", &mut session.rules, RULE);
    keys.optional("reconnect", &mut session.reconnect, RECONNECT);
    keys.optional("drop", &mut session.drop, DROP);
    keys.key("resume", &mut session.resume, false, FLAG);
    keys.optional("read_rate_max", &mut session.read_rate_max, SOME_COUNT);
    keys.needed("steps", "a list of steps", &mut session.steps, STEPS);
}

/// A time, or `{ every = "25s", send = "2" }`.
const HEARTBEAT: Codec<Heartbeat> = Codec {
    read: |reader, entry| match entry.is_table() {
        true => reader.table(entry, "heartbeat", heartbeat),
        false => Some(Heartbeat { every: entry.some_time()?, send: None }),
    },
    write: |writer, beat| match beat.send {
        Some(_) => writer.table(beat, heartbeat),
        None => time(beat.every),
    },
};

fn heartbeat(keys: &mut Keys<'_, '_, '_>, beat: &mut Heartbeat) {
    keys.needed("every", "a time such as \"25s\"", &mut beat.every, SOME_TIME);
    frame_out(keys, beat.send.get_or_insert_default());
}

/// `{ when = "2", send = "3" }`; a plain text is the whole frame.
const RULE: Codec<AnswerRule> = Codec {
    read: |reader, entry| {
        reader.table(entry, "a rule such as { when = \"2\", send = \"3\" }", rule)
    },
    write: |writer, one| writer.table(one, rule),
};

fn rule(keys: &mut Keys<'_, '_, '_>, rule: &mut AnswerRule) {
    let takes = "the text of the frames that are answered, or a match";
    keys.needed("when", takes, &mut rule.when, WHEN);
    frame_out(keys, &mut rule.send);
}

const WHEN: Codec<Matcher> = Codec {
    read: |reader, entry| match entry.as_str() {
        Some("any") | None => reader.matcher(entry),
        Some(_) => reader.template(entry).map(Matcher::Is),
    },
    write: MATCHER.write,
};

fn frame_out(keys: &mut Keys<'_, '_, '_>, frame: &mut FrameOut) {
    keys.needed("send", "what is sent, a text", &mut frame.data, TEMPLATE);
    keys.key("binary", &mut frame.binary, false, FLAG);
}

const RECONNECT: Codec<Reconnect> = Codec {
    read: |reader, entry| reader.table(entry, "reconnect", reconnect),
    write: |writer, one| writer.table(one, reconnect),
};

fn reconnect(keys: &mut Keys<'_, '_, '_>, one: &mut Reconnect) {
    keys.key("min", &mut one.min, Duration::from_secs(1), TIME);
    keys.key("max", &mut one.max, one.min.max(Duration::from_secs(30)), TIME);
    keys.optional("attempts", &mut one.attempts_max, SMALL);
    keys.key("rejoin", &mut one.rejoin, true, FLAG);
}

const DROP: Codec<Drop> = Codec {
    read: |reader, entry| reader.table(entry, "drop", drop),
    write: |writer, one| writer.table(one, drop),
};

fn drop(keys: &mut Keys<'_, '_, '_>, one: &mut Drop) {
    let takes = "the time from one cut to the next, such as \"10s\"";
    keys.needed("every", takes, &mut one.every, SOME_TIME);
    keys.needed("for", "how long the user is away, such as \"2s\"", &mut one.away, TIME);
    keys.needed("how", "\"rst\", \"silence\" or \"both\"", &mut one.how, CUT);
    keys.key("reconnect", &mut one.reconnect, <_>::default(), TIME_RANGE);
    keys.optional("phase", &mut one.phase, PHASE);
}

const CUT: Codec<Cut> =
    Codec { read: |_, entry| entry.word(&CUTS), write: |_, cut| word(&CUTS, *cut) };

const PHASE: Codec<usize> = Codec {
    read: |reader, entry| {
        reader.index_of("phase", &reader.phases, entry, entry.text("the name of a phase")?)
    },
    write: |writer, at| text(writer.scenario.load.phases.get(*at).map_or("", |one| &one.name)),
};

/// A time, or the shortest and the longest.
const TIME_RANGE: Codec<(Duration, Duration)> = Codec {
    read: |_, entry| {
        let takes = "a time or a range of times such as \"0-1s\", \"500ms-2s\"";
        let text = entry.text(takes)?;
        let (first, last) = entry.checked(units::time_range(text), takes)?;
        entry.bounded(last, text).map(|last| (first, last))
    },
    write: |_, (first, last)| {
        let [first, last] = [first, last].map(|one| humantime::format_duration(*one));
        text(&format!("{first}-{last}"))
    },
};

pub(super) fn sources(keys: &mut Keys<'_, '_, '_>, sources: &mut Sources) {
    keys.list("addresses", &mut sources.addresses, ADDRESSES);
    keys.optional("tun", &mut sources.tun, TEXT);
    keys.optional("ports", &mut sources.ports, PORTS);
    keys.optional("receive_buffer_bytes", &mut sources.receive_buffer_bytes, BYTES);
    keys.optional("send_buffer_bytes", &mut sources.send_buffer_bytes, BYTES);
}

const BYTES: Codec<usize> = Codec {
    read: |_, entry| entry.count(1).and_then(|count| usize::try_from(count).ok()),
    write: |_, count| count.to_string(),
};

const PORTS: Codec<(u16, u16)> = Codec {
    read: |_, entry| {
        let port = |entry: &Entry<'_, '_>| u16::try_from(entry.integer(1..=65_535)?).ok();
        let (first, last) = entry.pair("the first and the last port")?;
        Some((port(&first)?, port(&last)?))
    },
    write: |_, (first, last)| format!("[{first}, {last}]"),
};

const ADDRESSES: Codec<AddressRange> = Codec {
    read: |_, entry| {
        let takes = "an address or a range such as \"10.0.0.2-10.0.0.9\"";
        let range = units::address_range(entry.text(takes)?);
        entry.checked(range, format!("it takes {takes}"))
    },
    write: |_, AddressRange { first, last }| {
        text(&if first == last { first.to_string() } else { format!("{first}-{last}") })
    },
};

pub(super) fn timeouts(keys: &mut Keys<'_, '_, '_>, timeouts: &mut Timeouts) {
    let default = Timeouts::default();
    keys.key("connect", &mut timeouts.connect, default.connect, TIME);
    keys.key("reply", &mut timeouts.reply, default.reply, TIME);
    keys.key("retries", &mut timeouts.retries, default.retries, SMALL);
    keys.key("retry_wait", &mut timeouts.retry_wait, default.retry_wait, TIME);
}

pub(super) fn agent(keys: &mut Keys<'_, '_, '_>, agent: &mut Agent) {
    keys.needed("address", "where `simurgh load agent` listens", &mut agent.address, TEXT);
    if agent.address == LOCAL_AGENT {
        keys.key("token", &mut agent.token, String::new(), TEXT);
    } else {
        let takes = "what it was started with; $NAME is from the environment";
        keys.needed("token", takes, &mut agent.token, TEXT);
    }
    keys.key("weight", &mut agent.weight, 1.0, WEIGHT);
    keys.list("addresses", &mut agent.addresses, ADDRESSES);
}

pub(super) fn tls(keys: &mut Keys<'_, '_, '_>, tls: &mut Tls) {
    keys.key("insecure", &mut tls.insecure, false, FLAG);
    keys.list("roots", &mut tls.roots_pem, PEM);
    keys.optional("identity", &mut tls.identity_pem, PEM);
}

const PEM: Codec<String> = Codec { read: |reader, entry| reader.pem(entry), write: TEXT.write };

pub(super) fn tsung(keys: &mut Keys<'_, '_, '_>, run: &mut TsungRun) {
    keys.optional("version", &mut run.version, TEXT);
    keys.key("full_stats", &mut run.full_stats, false, FLAG);
    keys.key("proxy", &mut run.proxy, false, FLAG);
    keys.word("dump", &mut run.dump, Dump::Off, &DUMPS);
}

/// Conditions, by the names of figures.
pub(super) fn pass(entry: &Entry<'_, '_>) -> Vec<Threshold> {
    let conditions = entry.named().into_iter().flat_map(|one| one.one_or_more());
    let read = |condition: Entry<'_, '_>| {
        let text = condition.text("a condition such as \"< 50ms\" or \"== 0\"")?;
        condition.checked(figures::parse_threshold(&condition.key, text), "")
    };
    conditions.filter_map(read).collect()
}

pub(super) fn pass_written(pass: &[Threshold]) -> Vec<(String, String)> {
    let same = pass.chunk_by(|one, next| one.figure == next.figure);
    let written = same.map(|same| {
        let texts: Vec<_> = same.iter().map(|one| text(&one.text)).collect();
        let figure = same.first().map_or("", |first| &first.figure);
        let value =
            if same.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        (bare(figure), value)
    });
    written.collect()
}
