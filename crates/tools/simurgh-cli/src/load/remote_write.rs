//! `--remote-write`: sends the figures of each second to Prometheus (remote write 1.0).
//!
//! A thread sends them, so that a slow server does not delay the run. A second that cannot be sent
//! is left out; the files of the run are complete anyway.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use simurgh_load::record::{Record, Tick};
use simurgh_load::report::Exporter;
use simurgh_text::output::complain;

/// Seconds that may wait for the server.
const WAITING_MAX: usize = 4;
const ANSWER_MAX: Duration = Duration::from_secs(5);

pub(super) struct RemoteWrite {
    waiting: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    left_out: u64,
}

impl RemoteWrite {
    /// Fails if no thread can be started.
    pub(super) fn start(url: String) -> io::Result<Self> {
        let (waiting, bodies) = sync_channel(WAITING_MAX);
        let post = move || post_all(&url, &bodies);
        let thread = std::thread::Builder::new().name("remote-write".into()).spawn(post)?;
        Ok(Self { waiting: Some(waiting), thread: Some(thread), left_out: 0 })
    }

    fn add(&mut self, record: &Record) -> io::Result<()> {
        let body = snap::raw::Encoder::new().compress_vec(&samples(record));
        let body = body.map_err(io::Error::other)?;
        let is_sent = self.waiting.as_ref().is_some_and(|waiting| waiting.try_send(body).is_ok());
        self.left_out += u64::from(!is_sent);
        Ok(())
    }
}

impl Exporter for RemoteWrite {
    fn tick(&mut self, record: &Record, _: &Tick) -> io::Result<()> {
        self.add(record)
    }

    fn finish(&mut self, record: &Record) -> io::Result<()> {
        self.add(record)?;
        self.waiting = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been logged.
            let _ = thread.join();
        }
        if self.left_out > 0 {
            let left_out = self.left_out;
            complain(&format!("--remote-write: {left_out} seconds are left out (slow server)"));
        }
        Ok(())
    }

    fn name(&self) -> &str {
        "remote write"
    }
}

fn post_all(url: &str, bodies: &Receiver<Vec<u8>>) {
    let config = ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).build();
    let agent = ureq::Agent::new_with_config(config);
    let mut failed = 0_u64;
    for body in bodies {
        let request = agent
            .post(url)
            .header("content-type", "application/x-protobuf")
            .header("content-encoding", "snappy")
            .header("x-prometheus-remote-write-version", "0.1.0");
        let Err(error) = request.send(&body[..]) else { continue };
        failed += 1;
        if failed == 1 {
            complain(&format!("--remote-write: {url}: {error}. The run continues."));
        }
    }
    if failed > 1 {
        complain(&format!("--remote-write: {failed} requests failed"));
    }
}

/// A `WriteRequest` with the current figures.
fn samples(record: &Record) -> Vec<u8> {
    let (live, meta) = (record.live(), record.meta());
    let at_ms = meta.started_unix_ms.saturating_add(record.at_ms());
    let mut out = Vec::new();
    let mut add = |name: &str, labels: &[(&str, &str)], value: f64| {
        let name = format!("simurgh_load_{name}");
        let own = [("__name__", name.as_str()), ("scenario", meta.scenario.as_str())];
        let mut labels: Vec<_> = own.iter().chain(labels).copied().collect();
        // Prometheus requires their order.
        labels.sort_unstable();
        field(&mut out, 1, &time_series(&labels, value, at_ms));
    };
    add("users", &[], live.users as f64);
    add("connected", &[], live.connected as f64);
    add("cpu_seconds_total", &[], live.cpu_s);
    for (count, n) in live.counts.iter() {
        add(&format!("{}_total", count.name()), &[], n as f64);
    }
    for error in &live.errors {
        add("errors_total", &[("kind", &error.kind)], error.count as f64);
    }
    for (metric, times) in &live.point_times {
        let quantiles = [("0.5", times.p50), ("0.9", times.p90), ("0.99", times.p99)];
        for (quantile, us) in quantiles.into_iter().chain([("1", times.max)]) {
            let labels = [("metric", metric.as_str()), ("quantile", quantile)];
            add("time_seconds", &labels, us as f64 / 1e6);
        }
    }
    out
}

/// A `TimeSeries` with one sample, in the encoding of Protocol Buffers.
fn time_series(labels: &[(&str, &str)], value: f64, at_ms: u64) -> Vec<u8> {
    let mut series = Vec::new();
    for (name, value) in labels {
        let mut label = Vec::new();
        field(&mut label, 1, name.as_bytes());
        field(&mut label, 2, value.as_bytes());
        field(&mut series, 1, &label);
    }
    // Field 1 has 64 bits, field 2 is a varint.
    let mut sample = vec![1 << 3 | 1];
    sample.extend(value.to_le_bytes());
    sample.push(2 << 3);
    varint(&mut sample, at_ms);
    field(&mut series, 2, &sample);
    series
}

/// Appends a field with a length.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_series_is_encoded_as_protocol_buffers() {
        let expected =
            b"\x0a\x0d\x0a\x08__name__\x12\x01u\x12\x0c\x09\0\0\0\0\0\0\xf0?\x10\xac\x02";
        let series = time_series(&[("__name__", "u")], 1.0, 300);
        assert_eq!(series.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
}
