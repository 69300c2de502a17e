//! Measures what an outgoing connection costs.
//!
//! `connect --to ADDR [--connections N] [--from IP [--ports-from N]] [--reset on] [--stamps on]
//! [--core C]` opens N connections from one shard, at most 256 of them at a time on their way,
//! closes them all, and prints the shard's CPU time for each. Over loopback this includes the
//! kernel's work for the other side. `examples/echo.rs` is somebody to connect to; `strace -cf`
//! counts the calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Sender, channel};

use rustix::time::{ClockId, clock_gettime};
use simurgh_reactor::{Closed, Config, ConnectOptions, Handler, Io, Key, Next, ShardSet, Slow};

const UNDER_WAY_MAX: usize = 256;
const A_TURN: usize = 32;

struct Connect {
    to: SocketAddr,
    how: ConnectOptions,
    /// Ports are counted up from here; `None`: the kernel chooses.
    ports_from: Option<u16>,
    wanted: usize,
    begun: usize,
    ended: usize,
    keys: Vec<Key>,
    begin_ns: f64,
    result: Sender<String>,
}

impl Handler for Connect {
    type Conn = [u64; 8];
    type Mail = ();

    fn connected(&mut self, io: &mut Io<[u64; 8]>, key: Key) {
        self.keys.push(key);
        self.note(io);
    }

    fn readable(&mut self, _: &mut Io<[u64; 8]>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, io: &mut Io<[u64; 8]>, _: Key, _: [u64; 8], why: Closed) {
        if matches!(why, Closed::Unconnected(_)) {
            let _ = self.result.send(format!("a connection failed: {why:?}"));
        }
        self.ended += 1;
        if self.ended == self.wanted {
            self.tell("close");
            io.stop();
        }
    }

    fn mail(&mut self, _: &mut Io<[u64; 8]>, (): ()) {}

    fn turn_end(&mut self, io: &mut Io<[u64; 8]>) -> Next {
        let up = self.keys.len();
        let most = self.wanted.min(up + self.ended + UNDER_WAY_MAX).min(self.begun + A_TURN);
        while self.begun < most {
            self.begun += 1;
            let mut how = self.how;
            if let Some(port) = self.ports_from {
                how.from = how.from.map(|from| (from.ip(), port + self.begun as u16).into());
            }
            if let Err((error, _)) = io.connect(self.to, &how, [0; 8]) {
                self.ended += 1;
                let _ = self.result.send(format!("a connection failed: {error}"));
                self.note(io);
            }
        }
        if self.begun < self.wanted && self.begun < up + UNDER_WAY_MAX {
            return Next::Now;
        }
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<[u64; 8]>, _: Key) -> Slow {
        Slow::Abort
    }
}

impl Connect {
    /// Once all are there, closes them.
    fn note(&mut self, io: &mut Io<[u64; 8]>) {
        if self.keys.len() + self.ended == self.wanted {
            self.tell("connect");
            self.begin_ns = cpu_ns();
            for key in &self.keys {
                io.close(*key);
            }
        }
    }

    fn tell(&self, what: &str) {
        let each = (cpu_ns() - self.begin_ns) / self.wanted as f64 / 1000.0;
        let _ = self.result.send(format!("{what}: {each:.2} µs of CPU each"));
    }
}

fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut to, mut wanted, mut how) = (None, 10_000, ConnectOptions::default());
    let (mut config, mut ports_from) = (Config::default(), None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--to" => to = Some(value.parse()?),
            "--connections" => wanted = value.parse()?,
            "--from" => how.from = Some((value.parse::<IpAddr>()?, 0).into()),
            "--ports-from" => ports_from = Some(value.parse()?),
            "--reset" => how.reset_on_close = value == "on",
            "--stamps" => config.receive_stamps = value == "on",
            "--core" => config.core = Some(value.parse()?),
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let to = to.ok_or("--to says whom to connect to")?;
    let (result, results) = channel();
    let mut set = ShardSet::prepare(1, 1 << 20)?;
    let shard = set.spawn("connect", config, move |_| Connect {
        to,
        how,
        ports_from,
        wanted,
        begun: 0,
        ended: 0,
        keys: Vec::new(),
        begin_ns: cpu_ns(),
        result,
    })?;
    for line in results {
        println!("{line}");
    }
    Ok(shard.join()?)
}
