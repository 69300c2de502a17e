//! The cost of compression: a broadcast of 1 kB of JSON to a crowd with permessage-deflate, beside
//! the same without. The server runs without TLS on one core.

use std::time::Duration;

use anyhow::{Result, ensure};

use simurgh_bench_kit::clients::{Clients, Counts};
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL, table};
use simurgh_bench_kit::stats;

pub(crate) const SUITE: Suite = Suite {
    name: "deflate",
    about: "A broadcast to clients with permessage-deflate, beside one without",
    jobs: || vec![Job::new("broadcast", run)],
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};

const TOPIC: &str = "rooms:crowd";
/// Broadcasts that count, and those that only warm up.
const BROADCASTS: usize = 20;
const WARM_UP: usize = 3;
const PAYLOAD_BYTES: usize = 1_000;
/// Time for a server to finish its work.
const QUIET: Duration = Duration::from_millis(130);

fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let first = sample.round.is_multiple_of(2);
    let (mut costs, mut bytes) = ([Vec::new(), Vec::new()], [0.0; 2]);
    for with in [first, !first, !first, first] {
        let (cost, each) = to_crowd(bench, with)?;
        let place = usize::from(with);
        costs.get_mut(place).into_iter().for_each(|costs| costs.push(cost));
        bytes.get_mut(place).into_iter().for_each(|bytes| *bytes = each);
    }
    let [without, with] = costs;
    sample.put_both("broadcast", "ns", (stats::middle(&with)?, stats::middle(&without)?));
    let [without, with] = bytes;
    sample.put_both("bytes", "bytes", (with, without));
    Ok(())
}

/// Server CPU of a delivery, ns, the median of broadcasts one after the other; and its bytes.
fn to_crowd(bench: &Bench<'_>, with: bool) -> Result<(f64, f64)> {
    let server = bench.serve_rooms("compress = \"text\"", "", 1)?;
    let mut clients = match with {
        true => Clients::with_headers(server.address, |_| {
            "sec-websocket-extensions: permessage-deflate\r\n".to_owned()
        })?,
        false => server.clients()?,
    };
    let count = bench.many_clients();
    clients.open(count)?;
    clients.join_all(|_| TOPIC.to_owned())?;
    clients.rest(QUIET * 4)?;
    let (all, payload) = (u64::try_from(count)?, payload());
    let mut costs = Vec::new();
    let mut bytes = 0;
    for nth in 0..WARM_UP + BROADCASTS {
        let (was, before) = (clients.total(), server.cpu()?);
        server.publish([TOPIC.to_owned()].into_iter(), &payload)?;
        clients.until(|it| received(it, with) >= received(&was, with) + all)?;
        clients.rest(QUIET)?;
        if nth >= WARM_UP {
            costs.push(stats::ratio(server.spent(&before)?, all));
            bytes = (clients.total().bytes - was.bytes) / all;
        }
    }
    let each = u64::try_from(WARM_UP + BROADCASTS)?;
    let wrong = clients.members().iter().filter(|it| received(it, with) != each).count();
    ensure!(wrong == 0, "{wrong} have not received each broadcast once");
    Ok((stats::middle(&costs)?, stats::per(bytes, 1)))
}

/// Compressed frames have an event that cannot be read here.
fn received(counts: &Counts, with: bool) -> u64 {
    if with { counts.other } else { counts.messages }
}

/// Posts with numbers, names and some text, as applications send them.
fn payload() -> String {
    const WORDS: [&str; 8] =
        ["alpha", "message", "delivered", "pending", "presence", "typing", "hello", "world"];
    let (mut text, mut state) = (String::from("{\"posts\":["), 12_345_u32);
    while text.len() < PAYLOAD_BYTES {
        let mut draw = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        let (id, user, at) = (draw(1 << 24), draw(1_000), draw(100_000));
        let [one, two, three] = [(); 3].map(|()| WORDS.get(draw(8)).copied().unwrap_or_default());
        text += &format!(
            "{{\"id\":{id},\"user\":\"user-{user}\",\"body\":\"{one} {two} {three}\",\
             \"at\":17{at}}},"
        );
    }
    text.pop();
    text + "]}"
}
