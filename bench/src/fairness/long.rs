//! Messages of 9 MB that are expensive to read: escapes, blanks, nested arrays. One client
//! publishes them; a probe's heartbeats show for how long other clients were not served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::field::{Field, USUAL, attack};
use super::messages::{Event, Serializer};
use super::probe::{Activity, Probe};
use super::{Bench, Sample, clients};
use simurgh_bench_kit::frames;

const LONG: usize = 9_000_000;
/// Nested arrays, below the limit of a message.
const DEPTH: usize = 1_000;
const WAIT_MAX: Duration = Duration::from_secs(15);

struct Text {
    name: &'static str,
    body: String,
    /// Spaces behind it.
    blanks: usize,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    texts()
        .iter()
        .try_for_each(|text| attack(bench, sample, text.name, USUAL, |field| publish(field, text)))
}

fn texts() -> [Text; 3] {
    let nested = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    let nests = vec![nested.as_str(); LONG / (2 * DEPTH + 1)].join(",");
    [
        Text { name: "escapes", body: format!("\"{}\"", r"\n".repeat(LONG / 2)), blanks: 0 },
        Text { name: "blanks", body: "\"x\"".to_owned(), blanks: LONG },
        Text { name: "nested", body: format!("[{nests}]"), blanks: 0 },
    ]
}

/// The payload, and the same without blanks: a server may forward it with them or without.
fn payload(text: &Text) -> [String; 2] {
    [" ".repeat(text.blanks), String::new()]
        .map(|blanks| format!("{{\"body\":{}{blanks}}}", text.body))
}

fn publish(field: &mut Field<'_>, text: &Text) -> Result<()> {
    let room = field.room(Serializer::V2, "long", Event::Chat);
    let mut stream = clients::joined(&room, 0)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let beats = Probe::start(field.server.address, Activity::Heartbeat)?;
    std::thread::sleep(Duration::from_secs(1));

    let [payload, dense] = payload(text);
    let broadcast = room.broadcast_text(&dense);
    let response = format!("{{\"msg\":{}}}", text.body);
    let messages = field.bench.options.size(20, 3);
    let begun = Instant::now();
    let outcome = (0..messages).try_for_each(|number| {
        let frame = room.push_text(number, &payload);
        exchange(&mut stream, &frame, &[&broadcast, &room.answer_text(number, &response)])
    });
    let ended = Instant::now();
    beats.end()?.put(field.sample, &format!("{}_heartbeat", text.name), begun, ended);
    field.put("ms_each", (ended - begun).as_secs_f64() * 1e3 / f64::from(messages));
    outcome.context(text.name)
}

/// Sends one message and reads the results: these texts, in any order, blanks aside.
fn exchange(stream: &mut TcpStream, frame: &[u8], expected: &[&[u8]]) -> Result<()> {
    stream.write_all(frame).context("a long message is not taken")?;
    let mut left: Vec<&[u8]> = expected.to_vec();
    let mut input = Vec::new();
    let mut buf = vec![0; 256 << 10];
    while !left.is_empty() {
        let count = stream.read(&mut buf).context("no answer to a long message")?;
        ensure!(count > 0, "cut for a long message");
        input.extend_from_slice(buf.get(..count).unwrap_or_default());
        while let Some(frame) = frames::frame(&input) {
            let mut dense = frame.payload.to_vec();
            dense.retain(|byte| *byte != b' ');
            let at = left.iter().position(|text| *text == dense);
            let Some(at) = at else {
                let begin = frame.payload.get(..200).unwrap_or(frame.payload);
                bail!("not what was sent: {}", String::from_utf8_lossy(begin));
            };
            left.remove(at);
            let used = frame.len;
            input.drain(..used);
        }
    }
    Ok(())
}
