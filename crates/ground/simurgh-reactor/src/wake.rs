//! Waking a shard that waits.
//!
//! Each shard of a set has an eventfd, made in the process's table *before* any shard separates its
//! own, so that its number means the same in all of them: every thread of the process's table and
//! every shard of the set may write to it. It is registered edge-triggered, where each write is an
//! event, so it is never read. On systems other than Linux it is a pipe.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use crate::tables::{self, MainFd};

static NEXT_SET: AtomicU32 = AtomicU32::new(1);

/// Wakes for shards of *another* set, whose tables do not have the eventfd.
static RELAY: Mutex<Option<Sender<WakeRequest>>> = Mutex::new(None);

type WakeRequest = (Arc<WakeSet>, usize);

#[derive(Debug)]
pub(crate) struct WakeSet {
    set: u32,
    wakes: Vec<Wake>,
}

#[derive(Debug)]
struct Wake {
    read: MainFd,
    /// Only where the waker is a pipe.
    write: Option<MainFd>,
}

impl WakeSet {
    /// Makes `count` wakers in the calling thread's table, which must be the process's own.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        if tables::thread_table().table != 0 {
            return Err(io::Error::other(
                "a shard cannot start shards: it has its own descriptor table",
            ));
        }
        let set = NEXT_SET.fetch_add(1, Ordering::Relaxed);
        if set > 1 {
            start_relay()?;
        }
        let wakes = (0..count).map(|_| Wake::new()).collect::<io::Result<_>>()?;
        Ok(Self { set, wakes })
    }

    pub(crate) fn set(&self) -> u32 {
        self.set
    }

    /// The numbers that must stay open in the table of every shard of the set.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.wakes.iter().flat_map(|wake| {
            std::iter::once(wake.read.as_raw_fd())
                .chain(wake.write.as_ref().map(AsRawFd::as_raw_fd))
        })
    }

    pub(crate) fn registered(&self, shard: usize) -> Option<RawFd> {
        self.wakes.get(shard).map(|wake| wake.read.as_raw_fd())
    }

    pub(crate) fn wake(this: &Arc<Self>, shard: usize) {
        let thread_table = tables::thread_table();
        if thread_table.table == 0 || thread_table.set == this.set {
            this.write(shard);
            return;
        }
        if let Some(relay) = &*RELAY.lock().unwrap_or_else(PoisonError::into_inner) {
            // The relay never ends, so the send cannot fail.
            let _ = relay.send((Arc::clone(this), shard));
        }
    }

    fn write(&self, shard: usize) {
        let Some(wake) = self.wakes.get(shard) else { return };
        let fd = wake.write.as_ref().unwrap_or(&wake.read);
        // If the counter or pipe is full, a wake-up is already pending.
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }

    /// Empties the pipe of shard `shard`; an eventfd needs no reading.
    pub(crate) fn woken(&self, shard: usize) {
        if let Some(wake) = self.wakes.get(shard)
            && wake.write.is_some()
        {
            let mut rest = [0_u8; 64];
            while matches!(rustix::io::read(&wake.read, &mut rest), Ok(64)) {}
        }
    }
}

impl Wake {
    fn new() -> io::Result<Self> {
        let (read, write) = waker_descriptors()?;
        Ok(Self { read: MainFd::new(read), write: write.map(MainFd::new) })
    }
}

#[cfg(target_os = "linux")]
fn waker_descriptors() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok((eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?, None))
}

#[cfg(not(target_os = "linux"))]
fn waker_descriptors() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let (read, write) = rustix::pipe::pipe()?;
    for end in [&read, &write] {
        rustix::io::ioctl_fionbio(end, true)?;
        rustix::io::ioctl_fioclex(end)?;
    }
    Ok((read, Some(write)))
}

fn start_relay() -> io::Result<()> {
    let mut relay = RELAY.lock().unwrap_or_else(PoisonError::into_inner);
    if relay.is_none() {
        let (sender, receiver) = mpsc::channel::<WakeRequest>();
        std::thread::Builder::new()
            .name("simurgh-relay".to_owned())
            .stack_size(64 << 10)
            .spawn(move || receiver.iter().for_each(|(set, shard)| set.write(shard)))?;
        *relay = Some(sender);
    }
    Ok(())
}
