//! The smaller tables of a scenario, which refer to no other part of it.

use std::time::Duration;

use simurgh_text::toml::{Entry, Table};

use super::units;
use crate::figures;
use crate::{
    AddressRange, Arrivals, Cut, Dialect, Dump, Follow, Reconnect, Sources, Spread, Threshold,
    Timeouts, Transport, TsungRun, Vsn,
};

pub(super) const PROTOCOLS: [(&str, Dialect); 4] = [
    ("raw", Dialect::Raw),
    ("phoenix", Dialect::Phoenix(Vsn::V2)),
    ("phoenix-v1", Dialect::Phoenix(Vsn::V1)),
    ("tsung", Dialect::Tsung),
];

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

/// How users are spread: `round-robin`, `sticky`, `elsewhere` or `random`; else it fails.
pub fn spread(word: &str) -> Result<Spread, String> {
    let known = SPREADS.iter().find(|(known, _)| *known == word);
    let names = SPREADS.map(|(name, _)| name).join(", ");
    known.map(|(_, spread)| *spread).ok_or_else(|| format!("{word:?} is none of {names}"))
}

/// The word for [`Follow::Exactly`].
pub(super) const EXACT: &str = "exact";

pub(super) fn follow_stamps(entry: &Entry<'_, '_>) -> Option<Follow> {
    if entry.as_str().is_some() {
        return entry.word(&[(EXACT, Follow::Exactly)]);
    }
    entry.bool().map(|last| if last { Follow::Last } else { Follow::Nothing })
}

pub(super) fn seed(entry: &Entry<'_, '_>) -> Option<u64> {
    // TOML's integers have a sign, seeds do not.
    match entry.as_str() {
        Some(text) => {
            let seed = text.parse();
            seed.map_err(|_| entry.wrong("is no whole number from 0", "")).ok()
        }
        None => entry.count(0),
    }
}

pub(super) fn weight(table: &Table<'_, '_>) -> f64 {
    table.get("weight").and_then(|entry| entry.number("a weight from 0")).unwrap_or(1.0)
}

pub(super) fn weighted(entry: &Entry<'_, '_>) -> Vec<(String, f64)> {
    let named = entry.named().into_iter();
    named.filter_map(|one| Some((one.key.clone(), one.number("a weight from 0")?))).collect()
}

pub(super) fn small(entry: &Entry<'_, '_>) -> Option<u32> {
    entry.integer(0..=i64::from(u32::MAX)).and_then(|number| u32::try_from(number).ok())
}

pub(super) fn arrivals(table: &Table<'_, '_>) -> Option<Arrivals> {
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

pub(super) fn reconnect(entry: &Entry<'_, '_>) -> Option<Reconnect> {
    let table = entry.table("reconnect")?;
    let min = table.time("min");
    let min = min.unwrap_or(Duration::from_secs(1));
    let reconnect = Reconnect {
        min,
        max: table.time("max").unwrap_or_else(|| min.max(Duration::from_secs(30))),
        attempts_max: table.get("attempts").and_then(|entry| small(&entry)),
        rejoin: table.bool("rejoin").unwrap_or(true),
    };
    table.finish();
    Some(reconnect)
}

/// A time, or the shortest and the longest.
pub(super) fn time_range(entry: &Entry<'_, '_>) -> Option<(Duration, Duration)> {
    let takes = "a time or a range of times such as \"0-1s\", \"500ms-2s\"";
    let text = entry.text(takes)?;
    let (first, last) = entry.checked(units::time_range(text), takes)?;
    entry.bounded(last, text).map(|last| (first, last))
}

pub(super) fn sources(entry: &Entry<'_, '_>) -> Option<Sources> {
    let table = entry.table("[sources]")?;
    let port =
        |entry: &Entry<'_, '_>| entry.integer(1..=65_535).and_then(|port| u16::try_from(port).ok());
    let ports = table.get("ports").and_then(|entry| {
        let (first, last) = entry.pair("the first and the last port")?;
        Some((port(&first)?, port(&last)?))
    });
    let bytes = |key| {
        let count = table.count(key, 1);
        count.and_then(|count| usize::try_from(count).ok())
    };
    let sources = Sources {
        addresses: table.get("addresses").map(|e| addresses(&e)).unwrap_or_default(),
        ports,
        receive_buffer_bytes: bytes("receive_buffer_bytes"),
        send_buffer_bytes: bytes("send_buffer_bytes"),
    };
    table.finish();
    Some(sources)
}

pub(super) fn addresses(entry: &Entry<'_, '_>) -> Vec<AddressRange> {
    let takes = "an address or a range such as \"10.0.0.2-10.0.0.9\"";
    let read = |entry: Entry<'_, '_>| {
        let text = entry.text(takes)?;
        let range = units::address_range(text);
        entry.checked(range, format!("it takes {takes}"))
    };
    entry.one_or_more().into_iter().filter_map(read).collect()
}

pub(super) fn timeouts(entry: &Entry<'_, '_>) -> Option<Timeouts> {
    let table = entry.table("[timeouts]")?;
    let default = Timeouts::default();
    let time = |key, default| table.time(key).unwrap_or(default);
    let timeouts = Timeouts {
        connect: time("connect", default.connect),
        reply: time("reply", default.reply),
        retries: table.get("retries").and_then(|e| small(&e)).unwrap_or(default.retries),
        retry_wait: time("retry_wait", default.retry_wait),
    };
    table.finish();
    Some(timeouts)
}

pub(super) fn pass(entry: &Entry<'_, '_>) -> Vec<Threshold> {
    let mut thresholds = Vec::new();
    for condition in entry.named().iter().flat_map(Entry::one_or_more) {
        let Some(text) = condition.text("a condition such as \"< 50ms\" or \"== 0\"") else {
            continue;
        };
        match figures::parse_threshold(&condition.key, text) {
            Ok(threshold) => thresholds.push(threshold),
            Err(why) => condition.wrong(why, ""),
        }
    }
    thresholds
}

pub(super) fn tsung(entry: &Entry<'_, '_>) -> Option<TsungRun> {
    let table = entry.table("[tsung]")?;
    let version = table.text("version", "a version");
    let run = TsungRun {
        version: version.map(str::to_owned),
        full_stats: table.bool("full_stats").unwrap_or(false),
        dump: table.word("dump", &DUMPS).unwrap_or_default(),
        proxy: table.bool("proxy").unwrap_or(false),
    };
    table.finish();
    Some(run)
}

pub(super) const DUMPS: [(&str, Dump); 4] = [
    ("off", Dump::Off),
    ("full", Dump::Full),
    ("light", Dump::Light),
    ("protocol", Dump::Protocol),
];
