//! Measures what the reactor adds to a bare send loop.
//!
//! `fanout [--connections N] [--rounds N] [--core C]` opens N loopback connections to one shard,
//! takes every second one off it, and then writes 64-byte frames, round about: to the ones left
//! by [`Io::send_shared`] in slices of a turn, to the ones taken by nothing but `send`. Prints CPU
//! time per frame of each, medians over the rounds, and their ratio: the same thread, table and
//! kernel work, so the difference is the reactor.

use std::io::Read;
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use rustix::time::{ClockId, clock_gettime};
use simurgh_reactor::{
    Accepted, Closed, Config, Descriptor, Handler, Io, Key, Next, ShardSet, Shared, Slow,
    raise_descriptor_limit,
};

const FRAME_BYTES: usize = 64;

enum Mail {
    /// Take every second connection off the shard.
    Split(Sender<(usize, usize)>),
    Reactor(Sender<f64>),
    Bare(Sender<f64>),
}

struct Fanout {
    keys: Vec<Key>,
    taken: Vec<Descriptor>,
    frame: Shared,
    /// Next member, CPU time at the begin, whom to tell.
    running: Option<(usize, f64, Sender<f64>)>,
}

impl Handler for Fanout {
    type Conn = [u64; 8];
    type Mail = Mail;

    fn accepted(&mut self, _: &mut Io<[u64; 8]>, from: Accepted) -> Option<[u64; 8]> {
        self.keys.push(from.key);
        Some([0; 8])
    }

    fn readable(&mut self, _: &mut Io<[u64; 8]>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, _: &mut Io<[u64; 8]>, _: Key, _: [u64; 8], _: Closed) {}

    fn mail(&mut self, io: &mut Io<[u64; 8]>, mail: Mail) {
        match mail {
            Mail::Split(answer) => {
                let mut index = 0;
                let taken = &mut self.taken;
                self.keys.retain(|key| {
                    index += 1;
                    if index % 2 == 0 {
                        return true;
                    }
                    taken.extend(io.take(*key).map(|(descriptor, _)| descriptor));
                    false
                });
                let _ = answer.send((self.keys.len(), self.taken.len()));
            }
            Mail::Reactor(answer) => self.running = Some((0, cpu_ns(), answer)),
            Mail::Bare(answer) => {
                let frame = [b'b'; FRAME_BYTES];
                let begun = cpu_ns();
                for descriptor in &self.taken {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    let sent = rustix::net::send(descriptor, &frame, flags);
                    assert_eq!(sent, Ok(FRAME_BYTES));
                }
                let _ = answer.send((cpu_ns() - begun) / self.taken.len() as f64);
            }
        }
    }

    /// A slice of the fan-out: about half a millisecond.
    fn turn_end(&mut self, io: &mut Io<[u64; 8]>) -> Next {
        let Some((next, begun, answer)) = self.running.take() else { return Next::Idle };
        let until = Instant::now() + Duration::from_micros(500);
        let mut done = next;
        for keys in self.keys[next..].chunks(16) {
            for key in keys {
                io.send_shared(*key, &self.frame);
            }
            done += keys.len();
            if Instant::now() >= until {
                break;
            }
        }
        if done == self.keys.len() {
            let _ = answer.send((cpu_ns() - begun) / self.keys.len() as f64);
            return Next::Idle;
        }
        self.running = Some((done, begun, answer));
        Next::Now
    }

    fn slow(&mut self, _: &mut Io<[u64; 8]>, _: Key) -> Slow {
        Slow::Abort
    }
}

fn cpu_ns() -> f64 {
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    cpu.tv_sec as f64 * 1e9 + cpu.tv_nsec as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut connections, mut rounds, mut config) = (18_000, 40, Config::default());
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value: usize = args.next().ok_or_else(|| format!("{flag} needs a value"))?.parse()?;
        match flag.as_str() {
            "--connections" => connections = value,
            "--rounds" => rounds = value,
            "--core" => config.core = Some(value),
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    raise_descriptor_limit();
    let mut set = ShardSet::prepare(1, 1 << 20)?;
    let address = set.bind(&["127.0.0.1:0".parse()?])?[0];
    let shard = set.spawn("fanout", config, |_| Fanout {
        keys: Vec::new(),
        taken: Vec::new(),
        frame: Shared::from(vec![b'r'; FRAME_BYTES]),
        running: None,
    })?;
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(TcpStream::connect(address)?);
    }
    while shard.stats().read().open < connections as u64 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let door = &set.mailboxes()[0];
    let (answer, answered) = channel();
    door.post_anyway(Mail::Split(answer));
    let (left, taken) = answered.recv()?;
    let before = shard.stats().read();
    let (mut reactor, mut bare) = (Vec::new(), Vec::new());
    let mut buffer = [0_u8; 65_536];
    for round in 0..rounds {
        let (answer, answered) = channel();
        door.post_anyway(Mail::Reactor(answer.clone()));
        reactor.push(answered.recv()?);
        door.post_anyway(Mail::Bare(answer));
        bare.push(answered.recv()?);
        if round % 20 == 19 {
            for client in &mut clients {
                let _ = client.read(&mut buffer)?;
            }
        }
    }
    let counts = shard.stats().read();
    let writes = counts.writes - before.writes;
    assert_eq!(writes, (left * rounds) as u64);
    let (reactor, bare) = (median(reactor), median(bare));
    println!(
        "send_shared {reactor:.0} ns ({left} sockets), bare {bare:.0} ns ({taken} sockets), \
         ratio {:.3}; turns {} max {} us",
        reactor / bare,
        counts.turns - before.turns,
        counts.turn_max_ns / 1000
    );
    println!("turns by duration {:?}", counts.turns_by_duration);
    Ok(())
}
