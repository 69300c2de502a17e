//! Rows `crowd` and `leave`: one topic whose members all receive its list.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::server::{How, PRESENCE_EVENTS, QUIET, TOPIC, serve};
use simurgh_bench_kit::clients::{Clients, Counts, Diff};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::target::{Server, Target};
use simurgh_bench_kit::{frames, stats};

/// The time in which all join, one after the other.
const WITHIN: Duration = Duration::from_secs(10);
/// The server gathers changes for this time.
const INTERVAL_MS: u32 = 50;
/// The number of leaves, each followed by a broadcast.
const LEAVES: usize = 60;
/// Pairs that only warm up.
const WARM_UP: usize = 5;

/// The frames of one interval.
#[derive(Clone, Debug, Default)]
struct Interval {
    /// Milliseconds since the first interval.
    at_ms: u64,
    /// The diff's frame, to all that are present.
    diff_bytes: usize,
    /// The number of members present, which are the first to have joined.
    present: usize,
    /// The list's frame, to those that came last: bytes, and how many of them.
    states: Vec<(usize, usize)>,
}

impl Interval {
    fn bytes(&self) -> u64 {
        let states: usize = self.states.iter().map(|(bytes, count)| bytes * count).sum();
        u64::try_from(self.diff_bytes * self.present + states).unwrap_or(u64::MAX)
    }
}

struct Joined {
    server: Server,
    clients: Clients,
    cpu_ns: u64,
    /// From the first join to the last diff of the first member.
    last_diff: Duration,
}

fn members(bench: &Bench<'_>) -> usize {
    bench.options.size(2_000, 300)
}

fn joined(bench: &Bench<'_>, presence: bool) -> Result<Joined> {
    let count = members(bench);
    let server = serve(bench, How { presence, list_max: count })?;
    let mut clients = server.clients()?;
    clients.open(count)?;
    *clients.kept() = presence.then(Vec::new);
    clients.rest(QUIET)?;
    let before = server.cpu()?;
    let began = Instant::now();
    for index in 0..count {
        let due = WITHIN.mul_f64(stats::per(index, u32::try_from(count)?));
        clients.rest_until(began + due)?;
        clients.join(index, TOPIC)?;
    }
    let all = u64::try_from(count)?;
    clients.until(|it| it.replies == all && (!presence || it.states >= all))?;
    clients.rest(QUIET * 3)?;
    let cpu_ns = server.spent(&before)?;
    let last = clients.diffs().last().map_or(began, |diff| diff.at);
    Ok(Joined { server, clients, cpu_ns, last_diff: last - began })
}

/// 2,000 members come within 10 s.
pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = members(bench);
    let without = joined(bench, false)?;
    ensure!(without.clients.total().diffs == 0, "presence was on where it was to be off");
    let Joined { server, mut clients, cpu_ns, last_diff } = joined(bench, true)?;
    let events = server.sum(PRESENCE_EVENTS)?;
    let members = clients.members().to_vec();
    let not_one = members.iter().filter(|member| member.states != 1).count();
    sample.put_count("crowd_states_wrong", not_one);
    let diffs = clients.diffs().len();
    let intervals = last_diff.as_secs_f64() * 1e3 / f64::from(INTERVAL_MS) + 1.0;
    sample.put("crowd_diffs_per_interval", stats::per(diffs, 1) / intervals);
    sample.put("crowd_encodings_per_interval", events / stats::per(diffs, 1));

    let kept = clients.kept().take().unwrap_or_default();
    let entry = read_first(&kept, count).context("what the first member got")?;
    let total = clients.total().bytes;
    let wanted = ideal_bytes(count, entry)?;
    sample.put("crowd_mb", stats::per(total, 1_000_000));
    sample.put("crowd_bytes_ratio", stats::per(total, 1) / wanted);
    sample.put_count("crowd_entry_bytes", entry);

    let pattern = pattern(&members, &clients)?;
    // The floor is measured alone; the measured server had to run until here.
    drop((server, clients, without.server));
    let floor_ns = floor(bench, count, &pattern)?;
    let (on, off) = (stats::per(cpu_ns, 1), stats::per(without.cpu_ns, 1));
    let floor = stats::per(floor_ns, 1);
    sample.put("crowd_cpu_ms", on / 1e6);
    sample.put("crowd_cpu_without_ms", off / 1e6);
    sample.put("crowd_floor_ms", floor / 1e6);
    sample.put("crowd_cpu_ratio", (on - off) / floor);
    sample.put("crowd_cpu_ratio_whole", on / floor);
    Ok(())
}

/// Checks the first member's frames: its list, with all diffs on top, has all members. Returns the
/// bytes of one entry with its key, which are the same for all.
fn read_first(mut kept: &[u8], count: usize) -> Result<usize> {
    let mut there = serde_json::Map::new();
    let mut has_list = false;
    while let Some(frame) = frames::frame(kept) {
        let message: Value = serde_json::from_slice(frame.payload)?;
        kept = kept.get(frame.len..).unwrap_or_default();
        let mut payload = message.get(4).cloned().unwrap_or_default();
        match message.get(3).and_then(Value::as_str) {
            Some("presence_state") => {
                there = payload.as_object().cloned().context("a list is an object")?;
                has_list = true;
            }
            // The list includes diffs that came before it.
            Some("presence_diff") if has_list => {
                let joins = payload.get_mut("joins").and_then(Value::as_object_mut);
                there.append(joins.context("a diff has joins")?);
                let leaves = payload.get("leaves").and_then(Value::as_object);
                ensure!(leaves.is_some_and(serde_json::Map::is_empty), "nobody has left");
            }
            _ => {}
        }
    }
    ensure!(there.len() == count, "{} of {count} are present", there.len());
    let bytes = |(key, value): (&String, &Value)| format!("\"{key}\":{value}").len();
    let one = there.iter().map(bytes).next().context("nobody")?;
    ensure!(there.iter().map(bytes).all(|it| it == one), "entries are not equally long");
    Ok(one)
}

/// Each member's list once, when its interval ends, and one diff an interval to each member, with
/// intervals counted from the first join on.
fn ideal_bytes(count: usize, entry: usize) -> Result<f64> {
    let interval = Duration::from_millis(u64::from(INTERVAL_MS)).as_secs_f64();
    let per_interval = stats::per(count, 1) * interval / WITHIN.as_secs_f64();
    let list = |entries: usize| entries * entry + entries.saturating_sub(1);
    let state_head = format!("[\"1\",null,\"{TOPIC}\",\"presence_state\",{{}}]").len();
    let diff_head =
        format!("[null,null,\"{TOPIC}\",\"presence_diff\",{{\"joins\":{{}},\"leaves\":{{}}}}]")
            .len();
    let (mut bytes, mut present, mut ends) = (0, 0, per_interval);
    while present < count {
        let mut newcomers = 0;
        while present < count && stats::per(present, 1) < ends {
            present += 1;
            newcomers += 1;
        }
        ends += per_interval;
        bytes += present * frames::plain_len(diff_head + list(newcomers));
        bytes += newcomers * frames::plain_len(state_head + list(present));
    }
    Ok(stats::per(bytes, 1))
}

/// The sent frames, interval by interval, from the members' counts.
fn pattern(members: &[Counts], clients: &Clients) -> Result<Vec<Interval>> {
    let diffs = clients.diffs();
    let began = diffs.first().context("no diff")?.at;
    let at_ms = |at: Instant| u64::try_from((at - began).as_millis());
    let interval = |diff: &Diff| {
        Ok(Interval { at_ms: at_ms(diff.at)?, diff_bytes: diff.bytes, ..Interval::default() })
    };
    let mut intervals: Vec<Interval> = diffs.iter().map(interval).collect::<Result<_>>()?;
    for member in members {
        let had = usize::try_from(member.diffs)?;
        let first = diffs.len().checked_sub(had).context("more diffs than the first member")?;
        for interval in intervals.iter_mut().skip(first) {
            interval.present += 1;
        }
        let listed = (first + usize::try_from(member.state_after)?).saturating_sub(1);
        let states = &mut intervals.get_mut(listed).context("a list before any diff")?.states;
        match states.last_mut().filter(|(bytes, _)| *bytes == member.state_bytes) {
            Some((_, count)) => *count += 1,
            None => states.push((member.state_bytes, 1)),
        }
    }
    let sent: u64 = intervals.iter().map(Interval::bytes).sum();
    let replies = clients.total().replies * 128;
    let total = clients.total().bytes;
    ensure!(sent <= total && total - sent <= replies, "{sent} of {total} bytes are accounted for");
    Ok(intervals)
}

/// CPU time of the bare server for the same frames to as many clients, equally timed, ns.
fn floor(bench: &Bench<'_>, count: usize, pattern: &[Interval]) -> Result<u64> {
    let floor = Target::bare(&[])?.start(&bench.scratch.join("floor-log"))?;
    let mut clients = floor.clients()?;
    clients.open(count)?;
    clients.rest(QUIET)?;
    let (before, began) = (floor.cpu()?, Instant::now());
    for interval in pattern {
        clients.rest_until(began + Duration::from_millis(interval.at_ms))?;
        order(&clients, "presence_diff", interval.diff_bytes, 0, interval.present)?;
        let newcomers: usize = interval.states.iter().map(|(_, count)| count).sum();
        let mut first = interval.present.saturating_sub(newcomers);
        for (bytes, count) in &interval.states {
            order(&clients, "presence_state", *bytes, first, *count)?;
            first += count;
        }
    }
    let all: u64 = pattern.iter().map(Interval::bytes).sum();
    clients.until(|total| total.bytes >= all)?;
    clients.rest(QUIET)?;
    let total = clients.total().bytes;
    ensure!(total == all, "the bare server has sent {total} bytes instead of {all}");
    floor.spent(&before)
}

/// Has the bare server send a frame of this size to `count` clients after the `first` ones.
fn order(clients: &Clients, event: &str, bytes: usize, first: usize, count: usize) -> Result<()> {
    let order = json!({"event": event, "bytes": bytes, "first": first, "count": count});
    clients.push(0, "0", TOPIC, "send", &order.to_string())
}

/// One member leaves the crowd, repeatedly; each time a broadcast of as many bytes follows.
pub(super) fn leave(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = members(bench);
    let server = serve(bench, How { presence: true, list_max: count })?;
    let mut clients = server.clients()?;
    clients.open(count)?;
    clients.join_all(|_| TOPIC.to_owned())?;
    let all = u64::try_from(count)?;
    clients.until(|it| it.states >= all)?;
    clients.rest(QUIET * 4)?;
    let (mut leaves, mut broadcasts) = (Vec::new(), Vec::new());
    for pair in 0..WARM_UP + LEAVES {
        let last = count - 1 - pair;
        let others = u64::try_from(last)?;
        let (leave_ns, frame) = one_leaves(&server, &mut clients, last, others)?;
        let broadcast_ns = one_publishes(&server, &mut clients, frame, others)?;
        if pair >= WARM_UP {
            leaves.push(stats::per(leave_ns, 1));
            broadcasts.push(stats::per(broadcast_ns, 1));
        }
    }
    let (leave, broadcast) = (stats::middle(&leaves)?, stats::middle(&broadcasts)?);
    sample.put("leave_us", leave / 1e3);
    sample.put("leave_broadcast_us", broadcast / 1e3);
    sample.put("leave_ratio", leave / broadcast);
    Ok(())
}

/// The cost of one leave, and the length of the diff's frame.
fn one_leaves(
    server: &Server,
    clients: &mut Clients,
    index: usize,
    others: u64,
) -> Result<(u64, usize)> {
    let (before, was) = (server.cpu()?, clients.total());
    clients.push(index, "2", TOPIC, "phx_leave", "{}")?;
    clients.until(|it| it.diffs >= was.diffs + others && it.replies > was.replies)?;
    clients.rest(QUIET)?;
    let cpu_ns = server.spent(&before)?;
    let informed = clients.total().diffs - was.diffs;
    ensure!(informed == others, "{informed} of {others} members heard that one has left");
    Ok((cpu_ns, clients.diffs().last().context("no diff")?.bytes))
}

/// The cost of a broadcast whose frame has this many bytes.
fn one_publishes(server: &Server, clients: &mut Clients, frame: usize, others: u64) -> Result<u64> {
    let empty = format!("[null,null,\"{TOPIC}\",\"new:msg\",{{\"body\":\"\"}}]").len();
    let body = (0..frame).find(|body| frames::plain_len(empty + body) == frame);
    let text = "x".repeat(body.context("no payload is as long")?);
    let (before, was) = (server.cpu()?, clients.total());
    clients.push(0, "3", TOPIC, "new:msg", &format!("{{\"body\":\"{text}\"}}"))?;
    clients.until(|it| it.messages >= was.messages + others && it.replies > was.replies)?;
    clients.rest(QUIET)?;
    let cpu_ns = server.spent(&before)?;
    let (got, replies) =
        (clients.total().messages - was.messages, clients.total().replies - was.replies);
    ensure!((got, replies) == (others, 1), "{got} of {others} members heard it");
    Ok(cpu_ns)
}
