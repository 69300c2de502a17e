//! The bare floor: the cost of sockets and epoll with nothing on top.
//!
//! It recognizes the client's messages only by frame length: any bytes that begin with `G` are an
//! upgrade and get a fixed 101, a frame as long as a join gets fixed bytes, a frame as long as a
//! push starts the bare send loop — the same 66 bytes to every socket, one `send` each. No parsing,
//! no queue, no state beside the descriptor. Do not use it as a server: it trusts its peer.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use simurgh_bench_kit::net::{self, Listener, Slots, send};
use simurgh_bench_kit::{frames, sys};

/// A forgotten floor ends by itself.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Large enough for the 20 pushes of a burst in one read, small enough not to matter in RSS.
const READ_BYTES: usize = 16 * 1024;
/// Sends in a stretch: as many as a shard does in a slice of its fan-out.
const STRETCH_SENDS: usize = 48;

/// Serves until it is killed.
pub(crate) fn serve(listen: SocketAddrV4) -> Result<()> {
    sys::raise_descriptor_limit()?;
    let listener = Listener::open(listen, false)?;
    println!("listening on http://{}", listener.address()?);
    let mut floor = Floor {
        listener,
        sockets: Slots::default(),
        handshake: frames::switching(frames::UPGRADE_KEY),
        join_reply: frames::plain(frames::JOIN_REPLY),
        heartbeat_reply: frames::plain(frames::HEARTBEAT_REPLY),
        stretch_max: Stretch::default(),
    };
    let started = Instant::now();
    let mut events: Vec<Event> = Vec::with_capacity(512);
    let mut buf = vec![0; READ_BYTES];
    while started.elapsed() < LIFETIME {
        net::wait(&floor.listener.epoll, &mut events, None)?;
        for event in &events {
            match event.data.u64() {
                Listener::NUMBER => floor.accept()?,
                socket => floor.read(usize::try_from(socket)?, &mut buf)?,
            }
        }
    }
    Ok(())
}

struct Floor {
    listener: Listener,
    sockets: Slots,
    handshake: Vec<u8>,
    join_reply: Vec<u8>,
    heartbeat_reply: Vec<u8>,
    stretch_max: Stretch,
}

impl Floor {
    fn accept(&mut self) -> Result<()> {
        let Self { listener, sockets, .. } = self;
        listener.accept_some(EventFlags::IN | EventFlags::ET, |at, it| sockets.put(at, it))?;
        Ok(())
    }

    fn read(&mut self, number: usize, buf: &mut [u8]) -> Result<()> {
        let Some(socket) = self.sockets.get(number) else { return Ok(()) };
        let count = match rustix::io::read(socket, &mut *buf) {
            Ok(count) => count,
            Err(Errno::AGAIN) => return Ok(()),
            Err(_) => 0,
        };
        match buf.get(..count) {
            None | Some([]) => self.sockets.close(number),
            Some(request) if request.starts_with(b"GET /metrics") => {
                write(socket, self.stretch_max.metrics().as_bytes())?;
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                self.sockets.close(number);
            }
            Some([b'G', ..]) => write(socket, &self.handshake)?,
            Some(input) => self.frames(number, input)?,
        }
        Ok(())
    }

    /// Answers every frame of one read by its length.
    fn frames(&mut self, number: usize, mut input: &[u8]) -> Result<()> {
        while let Some(&length) = input.get(1) {
            let length = usize::from(length & 0x7f);
            let Some((frame, rest)) = input.split_at_checked(frames::MASKED_HEADER + length) else {
                bail!("the client split a frame; the floor does not gather");
            };
            input = rest;
            if length == frames::PUSH_LEN {
                let seq = sequence(frame).context("push without a running number")?;
                self.broadcast(&frames::plain(&frames::broadcast(seq)))?;
                if let Some(socket) = self.sockets.get(number) {
                    write(socket, &frames::plain(&frames::push_reply(seq)))?;
                }
                continue;
            }
            let Some(socket) = self.sockets.get(number) else { return Ok(()) };
            if length == frames::HEARTBEAT.len() {
                write(socket, &self.heartbeat_reply)?;
            } else if length == frames::JOIN.len() {
                write(socket, &self.join_reply)?;
            } else {
                bail!("a frame of {length} bytes is none of the benchmark's");
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, frame: &[u8]) -> Result<()> {
        for stretch in self.sockets.0.chunks(STRETCH_SENDS) {
            let begun = Stretch::now();
            for socket in stretch.iter().flatten() {
                write(socket, frame)?;
            }
            self.stretch_max.raise(Stretch::now().since(begun));
        }
        Ok(())
    }
}

/// The duration of a stretch of the bare loop: by the clock, and by the thread's CPU time. The
/// longest shows the delays of the machine itself (the hypervisor takes the core, interrupts are
/// served), which no server can avoid.
#[derive(Clone, Copy, Default)]
struct Stretch {
    wall: Duration,
    cpu: Duration,
}

impl Stretch {
    fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
        };
        Self { wall: read(ClockId::Monotonic), cpu: read(ClockId::ThreadCPUTime) }
    }

    fn since(self, begun: Self) -> Self {
        Self { wall: self.wall.saturating_sub(begun.wall), cpu: self.cpu.saturating_sub(begun.cpu) }
    }

    fn raise(&mut self, other: Self) {
        self.wall = self.wall.max(other.wall);
        self.cpu = self.cpu.max(other.cpu);
    }

    /// Under the server's names, so that the same row of the table shows both.
    fn metrics(self) -> String {
        format!(
            "HTTP/1.1 200 OK\r\n\r\nsimurgh_shard_turn_cpu_max_seconds{{shard=\"0\"}} {}\n\
             simurgh_shard_turn_max_seconds{{shard=\"0\"}} {}\n",
            self.cpu.as_secs_f64(),
            self.wall.as_secs_f64()
        )
    }
}

fn sequence(frame: &[u8]) -> Option<u32> {
    let at = frames::PUSH_SEQ_AT..frames::PUSH_SEQ_AT + frames::SEQ_DIGITS;
    let masked = frame.get(frames::MASKED_HEADER..)?.get(at)?;
    let mask = frames::MASK.iter().cycle().skip(frames::PUSH_SEQ_AT);
    frames::numeral(&masked.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect::<Vec<u8>>())
}

/// One `send`. A short or refused one would falsify the floor, so it is an error.
fn write(socket: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let count = send(socket, bytes)?;
    ensure!(count == bytes.len(), "only {count} of {} bytes were taken", bytes.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_number_is_found_in_a_masked_push() {
        let mut frame = Vec::new();
        frames::masked(frames::TEXT, &frames::push(70_429), &mut frame);
        assert_eq!(sequence(&frame), Some(70_429));
    }
}
