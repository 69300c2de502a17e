//! A crowd of clients in its own process (one descriptor table holds no more than 20,000 of them in
//! many places): `simurgh-bench crowd`, whose input is commands.

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::helper::Helper;
use simurgh_bench_kit::clients::{Clients, user};
use simurgh_bench_kit::target::CLIENT_CORE;
use simurgh_bench_kit::{frames, sys};

const PAYLOAD: &str = r#"{"n":1,"body":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#;

/// Starts a process with a crowd, on the clients' core.
pub(super) fn start(server: SocketAddrV4) -> Result<Helper> {
    let own = std::env::current_exe().context("own path")?;
    Helper::start(&own, CLIENT_CORE, &["crowd", "--server", &server.to_string()])
}

/// Has all crowds do something at the same time; an error if one of them fails.
pub(super) fn all<'a>(
    crowds: impl Iterator<Item = &'a mut Helper>,
    line: impl Fn(usize) -> String,
) -> Result<Vec<Value>> {
    let mut asked = Vec::new();
    for (nth, crowd) in crowds.enumerate() {
        crowd.send(&line(nth))?;
        asked.push(crowd);
    }
    asked.into_iter().map(Helper::answer).collect()
}

/// Carries out the commands of its input until it ends.
pub(crate) fn serve(server: SocketAddrV4) -> Result<()> {
    sys::raise_descriptor_limit()?;
    let mut clients = Clients::new(server)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = carry_out(&mut clients, &line).with_context(|| line.clone())?;
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}

fn carry_out(clients: &mut Clients, line: &str) -> Result<Value> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        // The number of members and of rooms, and the number of the first user.
        ["join", count, rooms, first] => {
            let (rooms, first): (usize, usize) = (rooms.parse()?, first.parse()?);
            ensure!(rooms > 0, "no rooms");
            clients.params =
                Box::new(move |index| format!("{{\"user\":\"{}\"}}", user(first + index)));
            clients.open_and_join(count.parse()?, |index| room(index % rooms))?;
        }
        ["publish"] => clients.push(0, "2", &room(0), "new:msg", PAYLOAD)?,
        // The number of messages in all that are waited for.
        ["until", messages] => {
            let messages: u64 = messages.parse()?;
            clients.until(|it| it.messages >= messages)?;
        }
        ["rest", ms] => clients.rest(Duration::from_millis(ms.parse()?))?,
        ["leaves", count, ms] => {
            let within = Duration::from_millis(ms.parse()?);
            return leaves(clients, count.parse()?, within);
        }
        _ => bail!("not understood"),
    }
    let each = || clients.members().iter().map(|it| it.messages);
    Ok(json!({
        "messages_least": each().min(),
        "messages_most": each().max(),
        "diffs": clients.total().diffs,
        "states_least": clients.members().iter().map(|it| it.states).min(),
    }))
}

fn room(index: usize) -> String {
    format!("rooms:{index}")
}

/// Reads for `within`, or until the first member has received `count` leaves and a while has
/// passed; returns when that was, and how many diffs each has received.
fn leaves(clients: &mut Clients, count: usize, within: Duration) -> Result<Value> {
    let began = Instant::now();
    let before: Vec<u64> = clients.members().iter().map(|it| it.diffs).collect();
    *clients.kept() = Some(Vec::new());
    let (mut found, mut complete) = (0, None);
    while began.elapsed() < within && (count == 0 || complete.is_none()) {
        clients.rest(Duration::from_millis(20))?;
        found += leaves_in(clients.kept().as_mut().context("nothing is kept")?)?;
        if count > 0 && found >= count {
            complete = Some(began.elapsed().as_secs_f64());
            // Time for the last members, and for diffs that should not come.
            clients.rest(Duration::from_secs(1))?;
        }
    }
    *clients.kept() = None;
    let diffs = clients.members().iter().zip(&before).map(|(now, before)| now.diffs - before);
    let diffs: Vec<u64> = diffs.collect();
    let (most, least) = (diffs.iter().max(), diffs.iter().min());
    Ok(json!({"complete_s": complete, "leaves": found, "most": most, "least": least}))
}

/// Takes the whole diffs out and counts their leaves.
fn leaves_in(kept: &mut Vec<u8>) -> Result<usize> {
    let (mut used, mut leaves) = (0, 0);
    while let Some(frame) = frames::frame(kept.get(used..).unwrap_or_default()) {
        used += frame.len;
        let message: Value = serde_json::from_slice(frame.payload)?;
        if message.get(3).is_some_and(|event| event == "presence_diff") {
            let gone = message.get(4).and_then(|it| it.get("leaves")?.as_object());
            leaves += gone.map_or(0, serde_json::Map::len);
        }
    }
    kept.drain(..used);
    Ok(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_counted_only_in_complete_diffs() {
        let diff =
            br#"[null,null,"rooms:0","presence_diff",{"joins":{"c":{}},"leaves":{"a":{},"b":{}}}]"#;
        let said = br#"[null,null,"rooms:0","new:msg",{"leaves":{"d":{}}}]"#;
        let whole = [frames::plain(diff), frames::plain(said), frames::plain(diff)].concat();
        let mut kept = whole.clone();
        kept.truncate(whole.len() - 1);
        assert_eq!(leaves_in(&mut kept).unwrap(), 2);
        kept.extend(whole.last());
        assert_eq!((leaves_in(&mut kept).unwrap(), kept.len()), (2, 0));
    }
}
