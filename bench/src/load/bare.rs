//! The bare client: the cost of connections, upgrades, joins and received frames to a load
//! generator with nothing on top. One thread, one epoll, one byte of state per connection.
//!
//! It identifies the server's answers by their order: the first after the upgrade request is the
//! upgrade, the first after the join is its reply, and later bytes are read and discarded unparsed.
//! Its only timing is the schedule of its arrivals. Do not use it as a tool.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ArgAction;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::io::Errno;

use simurgh_bench_kit::clients::Script;
use simurgh_bench_kit::flags::{milliseconds, number};
use simurgh_bench_kit::net::{self, send_all};
use simurgh_bench_kit::{frames, stats, sys};

/// What the bare client is to do.
#[derive(clap::Args, Clone, Debug, PartialEq)]
pub(crate) struct Bare {
    /// The server
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) server: SocketAddrV4,
    /// Clients in all
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = number::<usize>)]
    pub(crate) users: usize,
    /// Arrivals per second, evenly
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = number::<u32>)]
    pub(crate) rate: u32,
    /// Time before the first, in which its memory can be read
    #[arg(long = "wait-ms", value_name = "N", default_value = "0", value_parser = milliseconds)]
    pub(crate) wait: Duration,
    /// After this many comes a pause; 0: none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<usize>)]
    pub(crate) first: usize,
    /// The pause
    #[arg(long = "pause-ms", value_name = "N", default_value = "0", value_parser = milliseconds)]
    pub(crate) pause: Duration,
    /// How long each stays; without it: until this process is killed
    #[arg(long = "hold-ms", value_name = "N", value_parser = milliseconds)]
    pub(crate) hold: Option<Duration>,
    /// 1: they join `rooms:lobby` after the upgrade; 0: they do not
    #[arg(long, value_name = "0|1", default_value = "1", action = ArgAction::Set,
        value_parser = |text: &str| number::<u32>(text).map(|it| it != 0))]
    pub(crate) join: bool,
    /// Messages per second that the first client sends when all have come
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u32>)]
    pub(crate) say: u32,
    /// How many messages
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u32>)]
    pub(crate) messages: u32,
}

/// A forgotten client ends by itself.
const LIFETIME: Duration = Duration::from_secs(600);
const BEFORE_MESSAGES: Duration = Duration::from_secs(3);
const READ_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Connecting,
    Upgrading,
    Joining,
    In,
}

struct Client {
    epoll: OwnedFd,
    plan: Bare,
    script: Script,
    sockets: Vec<(Option<OwnedFd>, State)>,
    /// When joined clients leave again, in order.
    leaving: VecDeque<(Instant, usize)>,
    buf: Vec<u8>,
}

/// Runs the plan until it is killed or all have left.
pub(crate) fn run(plan: &Bare) -> Result<()> {
    sys::raise_descriptor_limit()?;
    let mut client = Client {
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        script: Script::lobby(plan.server),
        sockets: Vec::with_capacity(plan.users),
        leaving: VecDeque::new(),
        buf: vec![0; READ_BYTES],
        plan: plan.clone(),
    };
    let begun = Instant::now();
    let first = begun + plan.wait;
    let arrival = |number: usize| {
        let paused = plan.first > 0 && number >= plan.first;
        let pause = if paused { plan.pause } else { Duration::ZERO };
        first + pause + Duration::from_secs(1).mul_f64(at(number, plan.rate))
    };
    let speech = arrival(plan.users) + BEFORE_MESSAGES;
    let message = |number: u32| speech + Duration::from_secs(1).mul_f64(at(number, plan.say));
    let mut sent = 0;
    let mut events: Vec<Event> = Vec::with_capacity(512);
    while begun.elapsed() < LIFETIME {
        let now = Instant::now();
        while client.sockets.len() < plan.users && arrival(client.sockets.len()) <= now {
            client.open()?;
        }
        while sent < plan.messages && message(sent) <= now {
            client.say(sent)?;
            sent += 1;
        }
        client.leave(now);
        let opened = client.sockets.len();
        if opened == plan.users
            && plan.hold.is_some()
            && client.leaving.is_empty()
            && client.is_empty()
        {
            return Ok(());
        }
        let next = [
            (opened < plan.users).then(|| arrival(opened)),
            (sent < plan.messages).then(|| message(sent)),
            client.leaving.front().map(|(at, _)| *at),
        ];
        let wait = next.into_iter().flatten().min().map(|at| at.saturating_duration_since(now));
        let wait = wait.unwrap_or(Duration::from_secs(1));
        net::wait(&client.epoll, &mut events, Some(wait))?;
        for event in &events {
            client.ready(usize::try_from(event.data.u64())?)?;
        }
    }
    Ok(())
}

/// Seconds until number `number` at `rate` per second.
fn at<T: TryInto<u64>>(number: T, rate: u32) -> f64 {
    stats::per(number, rate.max(1))
}

impl Client {
    fn open(&mut self) -> Result<()> {
        let index = self.sockets.len();
        let socket = net::dial(self.plan.server, index, false)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        net::add(&self.epoll, &socket, index, flags)?;
        self.sockets.push((Some(socket), State::Connecting));
        Ok(())
    }

    fn ready(&mut self, index: usize) -> Result<()> {
        let Some((Some(socket), state)) = self.sockets.get_mut(index) else { return Ok(()) };
        if *state == State::Connecting {
            *state = State::Upgrading;
            return send_all(socket, &self.script.upgrade);
        }
        let count = match rustix::io::read(&*socket, &mut *self.buf) {
            Ok(count) => count,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => bail!("connection {index}: {error}"),
        };
        if count == 0 {
            bail!("the server closed connection {index}");
        }
        match *state {
            State::Upgrading if self.plan.join => {
                *state = State::Joining;
                send_all(socket, &self.script.join)?;
            }
            State::Upgrading | State::Joining => {
                *state = State::In;
                if let Some(hold) = self.plan.hold {
                    self.leaving.push_back((Instant::now() + hold, index));
                }
            }
            State::Connecting | State::In => {}
        }
        Ok(())
    }

    fn leave(&mut self, now: Instant) {
        while self.leaving.front().is_some_and(|(at, _)| *at <= now) {
            if let Some(slot) =
                self.leaving.pop_front().and_then(|(_, index)| self.sockets.get_mut(index))
            {
                slot.0 = None;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.sockets.iter().all(|(socket, _)| socket.is_none())
    }

    fn say(&self, number: u32) -> Result<()> {
        let first = self.sockets.first().and_then(|(socket, _)| socket.as_ref());
        let first = first.context("the first client is gone")?;
        send_all(first, &frames::text(message(number).as_bytes()))
    }
}

/// A push with a body as long as a stamp of `simurgh load`.
fn message(number: u32) -> String {
    format!(r#"["1","{number}","rooms:lobby","new:msg",{{"body":"{number:044}"}}]"#)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, Helper, parse};

    #[test]
    fn clients_connect_at_their_rate_and_leave() {
        let line = "bare-server --listen 127.77.0.5:0 --shards 1";
        let Ok(Command::Help(Helper::BareServer(options))) = parse(line.split(' ').map(Into::into))
        else {
            panic!("{line}")
        };
        let server = crate::bare::start(&options).unwrap();
        let line = format!("bare --server={server} --users=50 --rate=200 --hold-ms=20");
        let Ok(Command::Help(Helper::Bare(plan))) = parse(line.split(' ').map(Into::into)) else {
            panic!("{line}")
        };
        let begun = Instant::now();
        run(&plan).unwrap();
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(49 * 5 + 20), "{took:?}");
    }

    #[test]
    fn generated_messages_have_equal_length() {
        let length = message(9).len();
        assert!(message(0).contains(&format!("\"{}\"", "0".repeat(44))));
        assert_eq!(message(5).len(), length);
        assert!(serde_json::from_str::<serde_json::Value>(&message(77)).is_ok());
    }
}
