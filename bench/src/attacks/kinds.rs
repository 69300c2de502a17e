//! The attacks. Each runs until its time is up, from addresses of its own.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use simurgh_bench_kit::wait::sleep_until;

use super::Field;
use super::wire::{Crowd, ask, session};

const SOCKET: &str = "/socket/websocket?vsn=2.0.0";
const TAKEN: Duration = Duration::from_secs(10);

fn join(number: u64, topic: &str, payload: &str) -> String {
    format!("[\"{number}\",\"{number}\",\"{topic}\",\"phx_join\",{payload}]")
}

fn pad(bytes: usize) -> String {
    "x".repeat(bytes)
}

/// Supabase clients track another meta again and again.
pub(super) fn tracks(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 8)?;
    let meta = pad(3_900);
    crowd.flood(field.until, |at, number| match number {
        0 => {
            let config = format!("\"presence\":{{\"key\":\"k{at}\",\"enabled\":true}}");
            join(1, "realtime:tracks", &format!("{{\"config\":{{{config}}}}}"))
        }
        _ => format!(
            "[\"1\",\"{number}\",\"realtime:tracks\",\"presence\",{{\"type\":\"presence\",\
             \"event\":\"track\",\"payload\":{{\"n\":{number},\"pad\":\"{meta}\"}}}}]"
        ),
    })
}

/// Members of the chat join again and again, each time under another key.
pub(super) fn rejoins_with_keys(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 8)?;
    let pad = pad(200);
    crowd.flood(field.until, |at, number| {
        let key = format!("{at}-{number}-{pad}");
        join(number + 1, "rooms:keys", &format!("{{\"user\":\"a\",\"presence\":\"{key}\"}}"))
    })
}

/// Sessions of long polls ask for messages, and do not read the answers.
pub(super) fn unread_polls(field: &Field<'_>) -> Result<()> {
    let server = field.address;
    let sessions = (0..40).map(|_| session(server, field.host)).collect::<Result<Vec<String>>>()?;
    for token in &sessions {
        let target = format!("POST /socket/longpoll?vsn=2.0.0&token={token}");
        ask(server, field.host, &target, &join(1, "plain:polls", "{}"))?;
    }
    let mut publisher = Crowd::sockets(server, field.host, SOCKET, 1)?;
    publisher.push(0, &join(1, "plain:polls", "{}"));
    let mut polls = Crowd::http(server, field.host);
    polls.reads = false;
    let body = pad(54_000);
    for number in 0_u64.. {
        if Instant::now() > field.until || polls.open_count() > 2_000 {
            break;
        }
        for push in 0..100 {
            let push = number * 100 + push;
            let payload = format!("{{\"body\":\"{body}\"}}");
            publisher.push(0, &format!("[\"1\",\"{push}\",\"plain:polls\",\"say\",{payload}]"));
        }
        publisher.flush(TAKEN)?;
        for token in &sessions {
            let at = polls.open()?;
            let target = format!("/socket/longpoll?vsn=2.0.0&token={token}");
            polls.send(at, format!("GET {target} HTTP/1.1\r\nHost: {server}\r\n\r\n").as_bytes());
        }
        polls.narrow()?;
        polls.flush(Duration::from_secs(2))?;
        publisher.rest(Instant::now() + Duration::from_millis(500))?;
    }
    field.put("polls", polls.open_count());
    polls.rest(field.until)
}

/// POST requests with bodies that do not end.
pub(super) fn unfinished_bodies(field: &Field<'_>) -> Result<()> {
    let token = session(field.address, field.host)?;
    let mut crowd = Crowd::http(field.address, field.host);
    let head = format!(
        "POST /socket/longpoll?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: {}\r\n\
         Content-Length: 7950000\r\n\r\n",
        field.address
    );
    let body = vec![b'x'; 7_900_000];
    // Ten at once, so that the benchmark itself does not hold all bodies.
    for _ in 0..20 {
        for _ in 0..10 {
            let at = crowd.open()?;
            crowd.send(at, head.as_bytes());
            crowd.send(at, &body);
        }
        crowd.flush(TAKEN)?;
        if Instant::now() > field.until {
            break;
        }
    }
    field.put("bodies_held", crowd.open_count());
    crowd.rest(field.until)
}

/// One socket renews its token again and again.
pub(super) fn renewals(field: &Field<'_>) -> Result<()> {
    let token = field.token;
    let path = format!("{SOCKET}&token={token}");
    let mut crowd = Crowd::sockets(field.address, field.host, &path, 1)?;
    crowd.flood(field.until, |_, number| match number {
        0 => join(1, "realtime:renewals", "{\"config\":{}}"),
        _ if number % 2 == 0 => format!(
            "[null,\"{number}\",\"phoenix\",\"access_token\",{{\"access_token\":\"{token}\"}}]"
        ),
        _ => format!(
            "[\"1\",\"{number}\",\"realtime:renewals\",\"access_token\",\
             {{\"access_token\":\"{token}\"}}]"
        ),
    })
}

/// Many metas under one key, beyond what a list may have; then small joins ask for the sample.
pub(super) fn samples(field: &Field<'_>) -> Result<()> {
    let mut members = Crowd::sockets(field.address, field.host, SOCKET, 1_100)?;
    let pad = pad(3_900);
    for at in 0..1_100 {
        let payload = format!("{{\"presence\":\"one\",\"pad\":\"{pad}\"}}");
        members.push(at, &join(1, "plain:sample", &payload));
    }
    members.flush(TAKEN)?;
    members.rest(Instant::now() + Duration::from_millis(500))?;
    let mut joiner = Crowd::sockets(field.address, field.host, SOCKET, 1)?;
    let mut number = 0;
    while Instant::now() < field.until {
        number += 1;
        joiner.push(0, &join(number, "plain:sample", "{\"presence\":\"me\"}"));
        joiner.pump(Duration::from_millis(5))?;
        members.pump(Duration::ZERO)?;
    }
    field.put("joins", usize::try_from(number)?);
    field.put("mb_received_by_joins", usize::try_from(joiner.received >> 20)?);
    Ok(())
}

/// Joins with a bad token each.
pub(super) fn bad_tokens(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 1)?;
    let token = super::server::bad_token();
    crowd.flood(field.until, |_, number| {
        join(number + 1, &format!("ticket:{number}"), &format!("{{\"token\":\"{token}\"}}"))
    })
}

/// Joins of Supabase with as many changes as fit.
pub(super) fn changes(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 1)?;
    let changes = vec!["{}"; 21_500].join(",");
    crowd.flood(field.until, |_, number| {
        let config = format!("{{\"config\":{{\"postgres_changes\":[{changes}]}}}}");
        join(number + 1, "realtime:changes", &config)
    })
}

fn rejoins(field: &Field<'_>, clients: usize) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, clients)?;
    crowd.flood(field.until, |_, number| join(number + 1, "rooms:again", "{\"user\":\"a\"}"))
}

/// Ten clients join the same topic again and again.
pub(super) fn rejoins_of_10(field: &Field<'_>) -> Result<()> {
    rejoins(field, 10)
}

/// Fifty clients join the same topic again and again.
pub(super) fn rejoins_of_50(field: &Field<'_>) -> Result<()> {
    rejoins(field, 50)
}

/// Members with large metas come and go, so that lists and diffs are large.
pub(super) fn large_metas(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 150)?;
    let pad = pad(3_900);
    crowd.flood(field.until, |at, number| {
        let payload = format!("{{\"presence\":\"{at}\",\"pad\":\"{pad}\"}}");
        join(number + 1, "plain:metas", &payload)
    })
}

/// Joins and leaves of ever new topics with a history.
pub(super) fn evictions(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 1)?;
    crowd.flood(field.until, |_, number| {
        let half = number / 2;
        let topic = format!("rooms:new-{half}");
        match number % 2 {
            0 => join(half + 1, &topic, "{\"simurgh\":{\"id\":\"client-0000001\",\"since\":null}}"),
            _ => format!("[\"{}\",\"{number}\",\"{topic}\",\"phx_leave\",{{}}]", half + 1),
        }
    })?;
    field.put("mb_sent", usize::try_from(crowd.sent >> 20)?);
    Ok(())
}

fn large_joins(field: &Field<'_>, topic: &str) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 1)?;
    let list = vec!["[]"; 3_160_000].join(",");
    let (opts_in, token) = ("\"id\":\"client-0000001\",\"since\":null", field.token);
    let payload = format!("{{\"simurgh\":{{{opts_in}}},\"token\":\"{token}\",\"list\":[{list}]}}");
    crowd.flood(field.until, |_, number| join(number + 1, topic, &payload))
}

/// Joins of 9.5 MB in a channel with history.
pub(super) fn large_joins_history(field: &Field<'_>) -> Result<()> {
    large_joins(field, "large:joins")
}

/// Joins of 9.5 MB in a channel with `join_token`.
pub(super) fn large_joins_token(field: &Field<'_>) -> Result<()> {
    large_joins(field, "ticket:joins")
}

/// One address takes every slot for HTTP; another one's long polls are still to be answered.
pub(super) fn http_slots(field: &Field<'_>) -> Result<()> {
    let server = field.address;
    let mut crowd = Crowd::http(server, field.host);
    let (mut asked, mut refused) = (0, 0);
    while Instant::now() < field.until {
        while crowd.open_count() < 500 {
            let at = crowd.open()?;
            // A request without an end holds its slot longest.
            let head = format!("POST /socket/longpoll HTTP/1.1\r\nHost: {server}\r\n");
            crowd.send(at, format!("{head}Content-Length: 100000\r\n\r\n").as_bytes());
        }
        for _ in 0..10 {
            for at in 0..crowd.len() {
                crowd.send(at, b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
            }
            crowd.pump(Duration::from_millis(20))?;
            asked += 1;
            let answer = ask(server, field.host + 100, "GET /socket/longpoll?vsn=2.0.0", "");
            refused += usize::from(!answer.is_ok_and(|(status, _)| status.contains(" 200 ")));
            thread::sleep(Duration::from_millis(20));
        }
        crowd.forget_closed();
    }
    field.put("others_asked", asked);
    field.put("others_refused", refused);
    Ok(())
}

/// Fills histories and then does nothing: the row is about saving them.
pub(super) fn histories(field: &Field<'_>) -> Result<()> {
    let mut crowd = Crowd::sockets(field.address, field.host, SOCKET, 1)?;
    let body = pad(8_000);
    crowd.flood(field.until, |_, number| match number {
        0..400 => join(number + 1, &format!("rooms:saved-{number}"), "{\"user\":\"a\"}"),
        _ => {
            let at = number % 400;
            let payload = format!("{{\"user\":\"a\",\"body\":\"{body}\"}}");
            let (own, topic) = (at + 1, format!("rooms:saved-{at}"));
            format!("[\"{own}\",\"{number}\",\"{topic}\",\"new:msg\",{payload}]")
        }
    })
}

/// One attacker of each kind, at once.
pub(super) fn all(field: &Field<'_>) -> Result<()> {
    type Kind = fn(&Field<'_>) -> Result<()>;
    const KINDS: [Kind; 11] = [
        tracks,
        rejoins_with_keys,
        unread_polls,
        unfinished_bodies,
        renewals,
        bad_tokens,
        changes,
        rejoins_of_10,
        large_metas,
        evictions,
        large_joins_history,
    ];
    thread::scope(|scope| {
        for (host, kind) in (1..).zip(KINDS) {
            scope.spawn(move || {
                // Refused attackers are a result; they come back until the time is up.
                while Instant::now() < field.until {
                    if kind(&Field { host, extra: Default::default(), ..*field }).is_err() {
                        sleep_until(Instant::now() + Duration::from_secs(1));
                    }
                }
            });
        }
    });
    Ok(())
}
