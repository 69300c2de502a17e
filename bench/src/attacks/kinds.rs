//! The attacks. Each runs until its time is over, from an address of its own.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use simurgh_bench_kit::flood::{Crowd, SOCKET};
use simurgh_bench_kit::wait::sleep_until;

use super::Field;

const POLL: &str = "/socket/longpoll?vsn=2.0.0";

fn sockets<'a>(field: &Field<'a>, count: usize) -> Result<Crowd<'a>> {
    http(field).at(SOCKET).open(count)
}

fn http<'a>(field: &Field<'a>) -> Crowd<'a> {
    Crowd::http(field.server.address, field.host, field.sent)
}

fn join(number: u64, topic: &str, payload: &str) -> String {
    format!("[\"{number}\",\"{number}\",\"{topic}\",\"phx_join\",{payload}]")
}

fn pad(bytes: usize) -> String {
    "x".repeat(bytes)
}

/// Supabase clients track another meta again and again.
pub(super) fn tracks(field: &Field<'_>) -> Result<()> {
    let meta = pad(3_900);
    sockets(field, 8)?.flood(field.until, |at, number| match number {
        0 => {
            let config = format!("\"presence\":{{\"key\":\"k{at}\",\"enabled\":true}}");
            Some(join(1, "realtime:tracks", &format!("{{\"config\":{{{config}}}}}")))
        }
        _ => Some(format!(
            "[\"1\",\"{number}\",\"realtime:tracks\",\"presence\",{{\"type\":\"presence\",\
             \"event\":\"track\",\"payload\":{{\"n\":{number},\"pad\":\"{meta}\"}}}}]"
        )),
    })
}

/// Three members of the chat join again and again, each time under another key.
pub(super) fn new_keys(field: &Field<'_>) -> Result<()> {
    let pad = pad(200);
    sockets(field, 3)?.flood(field.until, |at, number| {
        let key = format!("{at}-{number}-{pad}");
        let payload = format!("{{\"user\":\"a\",\"presence\":\"{key}\"}}");
        Some(join(number + 1, "rooms:keys", &payload))
    })
}

/// A long-poll session that has joined `plain:polls`: its token.
fn session(field: &Field<'_>) -> Result<String> {
    let answer = field.server.get(POLL)?;
    let token = answer.get("token").and_then(|token| token.as_str());
    let token = token.with_context(|| answer.to_string())?.to_owned();
    field.server.post(&format!("{POLL}&token={token}"), &join(1, "plain:polls", "{}"))?;
    Ok(token)
}

/// Four times: one client publishes 5.4 MB, then 40 sessions send a poll each and read no answer.
/// It publishes on until the time is over.
pub(super) fn unread_polls(field: &Field<'_>) -> Result<()> {
    let sessions = (0..40).map(|_| session(field)).collect::<Result<Vec<String>>>()?;
    let body = pad(54_000);
    let mut publisher = sockets(field, 1)?;
    let mut polls = http(field).unread();
    for turn in 1..=5 {
        let half = Instant::now() + Duration::from_millis(500);
        let (until, most) = if turn < 5 { (half, turn * 100) } else { (field.until, u64::MAX) };
        publisher.flood(until, |_, number| match number {
            0 => Some(join(1, "plain:polls", "{}")),
            _ => (number < most).then(|| {
                format!("[\"1\",\"{number}\",\"plain:polls\",\"say\",{{\"body\":\"{body}\"}}]")
            }),
        })?;
        if turn < 5 {
            polls = polls.open(sessions.len())?;
        }
        polls.flood(Instant::now() + Duration::from_millis(500), |at, number| {
            let token = sessions.get(at % sessions.len()).filter(|_| number == 0)?;
            Some(format!("GET {POLL}&token={token} HTTP/1.1\r\nHost: x\r\n\r\n"))
        })?;
    }
    Ok(())
}

/// 200 POST requests send 7.9 MB each and never end.
pub(super) fn bodies(field: &Field<'_>) -> Result<()> {
    let token = session(field)?;
    let head = format!("POST {POLL}&token={token} HTTP/1.1\r\nHost: x\r\nContent-Length: 7950000");
    let part = pad(65_536);
    http(field).open(200)?.flood(field.until, |_, number| match number {
        0 => Some(format!("{head}\r\n\r\n")),
        _ => (number <= 120).then(|| part.clone()),
    })
}

/// One socket renews its token again and again.
pub(super) fn renewals(field: &Field<'_>) -> Result<()> {
    let token = field.token;
    let path = format!("{}&token={token}", SOCKET);
    http(field).at(&path).open(1)?.flood(field.until, |_, number| match number {
        0 => Some(join(1, "realtime:renewals", "{\"config\":{}}")),
        _ => {
            let (own, topic) = match number % 2 {
                0 => ("null", "phoenix"),
                _ => ("\"1\"", "realtime:renewals"),
            };
            let payload = format!("{{\"access_token\":\"{token}\"}}");
            Some(format!("[{own},\"{number}\",\"{topic}\",\"access_token\",{payload}]"))
        }
    })
}

/// 1,100 members with metas of 4 kB under one key; then one more client joins again and again.
pub(super) fn sample(field: &Field<'_>) -> Result<()> {
    let pad = pad(3_900);
    sockets(field, 1_101)?.flood(field.until, |at, number| match (at, number) {
        (1_100, _) => Some(join(number + 1, "plain:sample", "{\"presence\":\"me\"}")),
        (_, 0) => {
            let payload = format!("{{\"presence\":\"one\",\"pad\":\"{pad}\"}}");
            Some(join(1, "plain:sample", &payload))
        }
        _ => None,
    })
}

/// Joins with a bad ES256 token each.
pub(super) fn bad_tokens(field: &Field<'_>) -> Result<()> {
    let token = super::server::bad_token();
    sockets(field, 1)?.flood(field.until, |_, number| {
        let payload = format!("{{\"token\":\"{token}\"}}");
        Some(join(number + 1, &format!("ticket:{number}"), &payload))
    })
}

/// Joins of Supabase with as many changes as fit.
pub(super) fn changes(field: &Field<'_>) -> Result<()> {
    let changes = vec!["{}"; 21_500].join(",");
    let config = format!("{{\"config\":{{\"postgres_changes\":[{changes}]}}}}");
    sockets(field, 1)?
        .flood(field.until, |_, number| Some(join(number + 1, "realtime:changes", &config)))
}

/// Fifty clients join the same topic again and again.
pub(super) fn rejoins(field: &Field<'_>) -> Result<()> {
    sockets(field, 50)?
        .flood(field.until, |_, number| Some(join(number + 1, "rooms:again", "{\"user\":\"a\"}")))
}

/// Members with large metas come and go, so that lists and diffs are large.
pub(super) fn metas(field: &Field<'_>) -> Result<()> {
    let pad = pad(3_900);
    sockets(field, 150)?.flood(field.until, |at, number| {
        let payload = format!("{{\"presence\":\"{at}\",\"pad\":\"{pad}\"}}");
        Some(join(number + 1, "plain:metas", &payload))
    })
}

/// Joins and leaves of ever new topics with a history.
pub(super) fn evictions(field: &Field<'_>) -> Result<()> {
    let payload = "{\"simurgh\":{\"id\":\"client-0000001\",\"since\":null}}";
    sockets(field, 1)?.flood(field.until, |_, number| {
        let own = number / 2 + 1;
        let topic = format!("rooms:new-{own}");
        Some(match number % 2 {
            0 => join(own, &topic, payload),
            _ => format!("[\"{own}\",\"{number}\",\"{topic}\",\"phx_leave\",{{}}]"),
        })
    })
}

/// Joins of 9.5 MB in a channel with history.
pub(super) fn large_joins(field: &Field<'_>) -> Result<()> {
    let list = vec!["[]"; 3_160_000].join(",");
    let id = "\"simurgh\":{\"id\":\"client-0000001\",\"since\":null}";
    let payload = format!("{{{id},\"list\":[{list}]}}");
    sockets(field, 1)?
        .flood(field.until, |_, number| Some(join(number + 1, "large:joins", &payload)))
}

/// 500 POST requests without their bodies from one address take all 400 places, and another address
/// begins long polls.
pub(super) fn slots(field: &Field<'_>) -> Result<()> {
    let token = session(field)?;
    let head = format!("POST {POLL}&token={token} HTTP/1.1\r\nHost: x\r\nContent-Length: 9999");
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut asked, mut refused) = (0, 0);
            while Instant::now() < field.until {
                asked += 1;
                refused += usize::from(field.server.get(POLL).is_err());
                thread::sleep(Duration::from_millis(40));
            }
            field.put("others_asked", asked);
            field.put("others_refused", refused);
        });
        http(field)
            .open(500)?
            .flood(field.until, |_, number| (number == 0).then(|| format!("{head}\r\n\r\n")))
    })
}

/// One attacker of each kind, at once.
pub(super) fn all(field: &Field<'_>) -> Result<()> {
    thread::scope(|scope| {
        for (host, attack) in (1..).zip(&super::ATTACKS) {
            scope.spawn(move || {
                // An attacker that is refused comes back until the time is over.
                while Instant::now() < field.until {
                    if (attack.run)(&Field { host, ..*field }).is_err() {
                        sleep_until(Instant::now() + Duration::from_secs(1));
                    }
                }
            });
        }
    });
    Ok(())
}
