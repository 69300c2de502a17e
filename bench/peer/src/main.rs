//! A bare async-nats client: what a program pays that only speaks to the broker. It reads commands,
//! one a line, and answers each with a line of JSON. `simurgh-bench cluster` reads its CPU time
//! from outside, as it does that of Simurgh.
//!
//! One thread is the cheapest way to run it (two workers wake each other). Queues are larger than
//! all that is measured, since async-nats drops messages for which its queue is full.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream::ContextBuilder;
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, ConnectOptions};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

const QUEUE: usize = 1 << 20;
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Bytes of a message in front of its padding: when it was published.
const STAMP: usize = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let server = std::env::args().nth(1).context("simurgh-bench-peer HOST:PORT")?;
    let (lines, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let mut peer = Peer { client: connect(&server).await?, server, received: Arc::default() };
    while let Some(line) = commands.recv().await {
        let answer = peer.carry_out(&line).await.with_context(|| line.clone())?;
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}

async fn connect(server: &str) -> Result<Client> {
    let options = ConnectOptions::new().subscription_capacity(QUEUE);
    options.connect(server).await.with_context(|| format!("connect to {server}"))
}

struct Peer {
    server: String,
    client: Client,
    received: Arc<AtomicU64>,
}

impl Peer {
    async fn carry_out(&mut self, line: &str) -> Result<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["subscribe", subject] => self.subscribe(subject).await,
            ["received"] => Ok(json!({"received": self.received.load(Ordering::Relaxed)})),
            ["publish", subject, bytes, count] => {
                self.publish(subject, bytes.parse()?, count.parse()?).await
            }
            ["store", prefix, subjects, bytes, count, window, headers] => {
                let under_way = (count.parse()?, window.parse()?);
                self.store((prefix, subjects.parse()?), bytes.parse()?, under_way, headers).await
            }
            ["delay", subject, bytes, count, micros] => {
                let every = Duration::from_micros(micros.parse()?);
                self.delay(subject, bytes.parse()?, count.parse()?, every).await
            }
            _ => bail!("not understood"),
        }
    }

    /// Counts the messages on a subject without reading them.
    async fn subscribe(&mut self, subject: &str) -> Result<Value> {
        let mut messages = self.client.subscribe(subject.to_owned()).await?;
        self.client.flush().await?;
        let received = Arc::clone(&self.received);
        tokio::spawn(async move {
            while messages.next().await.is_some() {
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(json!({"subscribed": subject}))
    }

    /// Publishes messages of this size as fast as possible.
    async fn publish(&self, subject: &str, bytes: usize, count: usize) -> Result<Value> {
        let payload = Bytes::from(vec![b'x'; bytes]);
        let subject = async_nats::Subject::from(subject);
        for _ in 0..count {
            self.client.publish(subject.clone(), payload.clone()).await?;
        }
        self.client.flush().await?;
        Ok(json!({"published": count}))
    }

    /// Has JetStream store messages of this size, on this many subjects in turn, with a bounded
    /// number in progress; returns the seconds until all are confirmed. With `headers` as `id`,
    /// each message has an id by which the broker recognizes duplicates.
    async fn store(
        &self,
        (prefix, subjects): (&str, usize),
        bytes: usize,
        (count, window): (usize, usize),
        headers: &str,
    ) -> Result<Value> {
        let context = ContextBuilder::new().max_ack_inflight(window).build(self.client.clone());
        let payload = Bytes::from(vec![b'x'; bytes]);
        let run = self.client.new_inbox();
        let began = Instant::now();
        let mut acks: FuturesUnordered<<PublishAckFuture as IntoFuture>::IntoFuture> =
            FuturesUnordered::new();
        for nth in 0..count {
            while acks.len() >= window {
                let ack = acks.next().await.context("nothing is under way")?;
                ack.context("not stored")?;
            }
            let subject = format!("{prefix}-{}", nth % subjects.max(1));
            let message = PublishMessage::build().payload(payload.clone());
            let message = match headers {
                "id" => message.message_id(format!("{run}-{nth}")),
                _ => message,
            };
            let published = context.send_publish(subject, message).await?;
            acks.push(published.into_future());
        }
        while let Some(ack) = acks.next().await {
            ack.context("not stored")?;
        }
        Ok(json!({"seconds": began.elapsed().as_secs_f64()}))
    }

    /// The time from the publish on one connection to the reception on another of this process, for
    /// messages one at a time, in microseconds.
    async fn delay(
        &self,
        subject: &str,
        bytes: usize,
        count: usize,
        every: Duration,
    ) -> Result<Value> {
        let other = connect(&self.server).await?;
        let mut messages = other.subscribe(subject.to_owned()).await?;
        other.flush().await?;
        let (client, name) = (self.client.clone(), async_nats::Subject::from(subject));
        let began = Instant::now();
        let publishes = tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for _ in 0..count {
                ticks.tick().await;
                let mut payload = vec![b'x'; bytes.max(STAMP)];
                let stamp = u64::try_from(began.elapsed().as_nanos())?.to_le_bytes();
                payload.splice(..STAMP, stamp);
                client.publish(name.clone(), payload.into()).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        let mut micros = Vec::with_capacity(count);
        while micros.len() < count {
            let message = timeout(WAIT_MAX, messages.next()).await.context("a message is lost")?;
            let message = message.context("the subscription has ended")?;
            let stamp = message.payload.first_chunk::<STAMP>().context("too short")?;
            let published = Duration::from_nanos(u64::from_le_bytes(*stamp));
            let took = began.elapsed().checked_sub(published).context("before it was published")?;
            micros.push(took.as_secs_f64() * 1e6);
        }
        publishes.await??;
        ensure!(micros.len() == count, "{} of {count}", micros.len());
        Ok(json!({"micros": micros}))
    }
}
