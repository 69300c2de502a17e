//! Starting shards, in the one order that keeps descriptor tables apart: all wakers and hand-off
//! pairs are made first ([`ShardSet::prepare`]), addresses are tried and reserved
//! ([`ShardSet::bind`]), event loops that shards may wake are started (a tokio runtime), then each
//! shard's thread separates its table, opens its own poll set and listeners, and reports
//! ([`ShardSet::spawn`]).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use thiserror::Error;

use crate::accept::Listeners;
use crate::affinity::pin_thread;
use crate::clock::Clock;
use crate::config::Config;
use crate::connection::Special;
use crate::handler::Handler;
use crate::handoff::{self, HandOffEnd};
use crate::io::Io;
use crate::listening::{Addresses, Listening};
use crate::mailbox::{Inbox, Mailbox, MailboxState, mailbox};
use crate::net::{self, ListenError};
use crate::stats::ReactorStats;
use crate::tables::{self, Tables, raise_descriptor_limit};
use crate::tun;
use crate::turn::Reactor;
use crate::wake::WakeSet;

/// Shards that know each other: prepared together, then spawned one by one.
#[derive(derive_more::Debug)]
#[debug("ShardSet({spawned} of {}, {:?})", mailboxes.len(), addresses.all)]
pub struct ShardSet<M> {
    wakes: Arc<WakeSet>,
    clock: Clock,
    mailboxes: Vec<Mailbox<M>>,
    /// For each shard that is not spawned yet: its inbox and its end of the hand-off.
    parts: Vec<Option<(Inbox<M>, OwnedFd)>>,
    hand_off_ends: Vec<HandOffEnd>,
    addresses: Addresses,
    reserved: Vec<OwnedFd>,
    spawned: usize,
    descriptors_max: u64,
    /// Wakers of other event loops, as of the first spawn: searching all open descriptors for each
    /// of a hundred shards would take most of their start.
    foreign_wakers: Option<Vec<RawFd>>,
}

/// The parts from which a handler is made, on the shard's own thread.
#[derive(Debug)]
pub struct Shard<M> {
    /// Its index in the set.
    pub index: usize,
    /// Its own mailbox and those of all others, by index.
    pub mailboxes: Vec<Mailbox<M>>,
    /// Its counters.
    pub stats: Arc<ReactorStats>,
    /// The number of connections from which on new ones count as over capacity.
    pub capacity: usize,
    /// Whether its descriptor table is its own.
    pub tables: Tables,
}

/// A running shard. Dropping this does not stop it.
#[derive(Debug)]
pub struct ShardHandle {
    index: usize,
    capacity: usize,
    tables: Tables,
    stats: Arc<ReactorStats>,
    mailbox_state: Arc<MailboxState>,
    thread: JoinHandle<io::Result<()>>,
}

/// Why a shard did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address could not be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Another error; the first field names the failed step.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// All shards of the set are spawned already.
    #[error("all shards of the set are spawned already")]
    NoneLeft,
}

impl<M: Send + 'static> ShardSet<M> {
    /// Makes the wakers, mailboxes (each with a limit of `mailbox_bytes_max`) and hand-off pairs of
    /// `count` shards, and raises the descriptor limit. Must not be called on a shard's thread.
    pub fn prepare(count: usize, mailbox_bytes_max: usize) -> io::Result<Self> {
        let (descriptors_max, _) = raise_descriptor_limit();
        let wakes = Arc::new(WakeSet::new(count)?);
        tables::close_deferred();
        let (mut mailboxes, mut parts, mut hand_off_ends) = (Vec::new(), Vec::new(), Vec::new());
        for shard in 0..count {
            let (mailbox, inbox) = mailbox(shard, mailbox_bytes_max, Arc::clone(&wakes));
            let (hand_off, end) = handoff::pair()?;
            mailboxes.push(mailbox);
            parts.push(Some((inbox, hand_off)));
            hand_off_ends.push(HandOffEnd::new(end));
        }
        Ok(Self {
            wakes,
            clock: Clock::new(),
            mailboxes,
            parts,
            hand_off_ends,
            addresses: Addresses::default(),
            reserved: Vec::new(),
            spawned: 0,
            descriptors_max,
            foreign_wakers: None,
        })
    }

    /// The clock of all shards of the set, nanoseconds since it was prepared.
    pub fn clock_ns(&self) -> u64 {
        self.clock.ns()
    }

    /// Each shard finds out in its own table which of them were closed since.
    fn foreign_wakers(&mut self) -> &[RawFd] {
        let own: Vec<RawFd> = self.wakes.descriptors().collect();
        self.foreign_wakers.get_or_insert_with(|| {
            let all = tables::event_counters().into_iter();
            all.filter(|fd| !own.contains(fd)).collect()
        })
    }

    /// The mailboxes of all shards, by index; they may be used before the shards run.
    pub fn mailboxes(&self) -> &[Mailbox<M>] {
        &self.mailboxes
    }

    /// The process's ends of the hand-offs, by shard index; empty from the second call on.
    pub fn take_hand_off_ends(&mut self) -> Vec<HandOffEnd> {
        std::mem::take(&mut self.hand_off_ends)
    }

    /// Checks that no other socket listens on `addresses` or is about to, and reserves them for the
    /// shards. Returns them, with the ports that the system chose instead of 0.
    pub fn bind(&mut self, addresses: &[SocketAddr]) -> Result<Vec<SocketAddr>, ListenError> {
        let mut actual = Vec::new();
        for address in addresses {
            let (fd, address) = net::reserve(*address)?;
            self.reserved.push(fd);
            actual.push(address);
        }
        self.addresses.all.extend_from_slice(&actual);
        Ok(actual)
    }

    /// In place of [`bind`](Self::bind) for an address on which these sockets listen already. All
    /// shards share them.
    pub fn inherit(&mut self, address: SocketAddr, sockets: Vec<OwnedFd>) {
        self.addresses.inherit(address, sockets);
    }

    /// Copies of the sockets on which the shards listen, once all are spawned: the process that
    /// listens next gets them. Until they are closed, clients can connect even if no shard accepts
    /// them.
    pub fn take_listening(&mut self) -> Listening {
        self.addresses.take()
    }

    /// Starts the next shard on a thread called `name`; returns once it listens on all reserved
    /// addresses. `make` makes the handler, on that thread.
    pub fn spawn<H, F>(
        &mut self,
        name: &str,
        config: Config,
        make: F,
    ) -> Result<ShardHandle, StartError>
    where
        H: Handler<Mail = M>,
        F: FnOnce(&Shard<M>) -> H + Send + 'static,
    {
        let index = self.spawned;
        let parts = self.parts.get_mut(index).and_then(Option::take);
        let (inbox, hand_off) = parts.ok_or(StartError::NoneLeft)?;
        self.spawned += 1;
        let shard = (index, self.parts.len());
        let listening = self.addresses.open(shard, config.backlog, config.receive_stamps)?;
        let mailbox_state = inbox.state();
        let stats = Arc::new(ReactorStats::default());
        let (report, reported) = sync_channel(1);
        // The shard's copy of the hand-off has the same number in its own table; ours closes once
        // the shard has its own, unless the table turns out to be the same.
        let start = Start {
            index,
            wakes: Arc::clone(&self.wakes),
            clock: self.clock,
            mailboxes: self.mailboxes.clone(),
            inbox,
            hand_off: hand_off.as_raw_fd(),
            foreign_wakers: self.foreign_wakers().to_vec(),
            listening: listening.iter().map(|(fd, of)| (fd.as_raw_fd(), *of)).collect(),
            stats: Arc::clone(&stats),
            descriptors_max: self.descriptors_max,
            config,
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(start.config.stack_bytes)
            .spawn(move || start.run(make, &report))
            .map_err(|error| StartError::Io("cannot start a thread", error))?;
        let started = reported.recv();
        if !matches!(started, Ok((Tables::Private, _))) {
            // The shard owned these very descriptors, or may have.
            let _ = hand_off.into_raw_fd();
            for (fd, _) in listening {
                let _ = fd.into_raw_fd();
            }
        }
        let (tables, outcome) = started.map_err(|_| {
            StartError::Io("a shard ended before it listened", io::ErrorKind::Other.into())
        })?;
        let capacity = outcome?;
        if self.spawned == self.parts.len() {
            // All listen: no other process can bind any more.
            self.reserved.clear();
        }
        Ok(ShardHandle { index, capacity, tables, stats, mailbox_state, thread })
    }
}

impl ShardHandle {
    /// The shard's index in its set.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of connections from which on new ones count as over capacity.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether its descriptor table is its own.
    pub fn tables(&self) -> Tables {
        self.tables
    }

    /// The shard's counters.
    pub fn stats(&self) -> &Arc<ReactorStats> {
        &self.stats
    }

    /// Asks the shard to end after its turn.
    pub fn stop(&self) {
        self.mailbox_state.ask_to_stop();
    }

    /// Whether the shard has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the shard has ended; an error if its loop failed or it panicked.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the shard panicked")))
    }
}

struct Start<M> {
    index: usize,
    wakes: Arc<WakeSet>,
    clock: Clock,
    mailboxes: Vec<Mailbox<M>>,
    inbox: Inbox<M>,
    hand_off: RawFd,
    /// Wakers of other event loops of the process: kept, so that code on the shard may use them.
    foreign_wakers: Vec<RawFd>,
    /// The sockets it listens on, with the index of their address.
    listening: Vec<(RawFd, u16)>,
    stats: Arc<ReactorStats>,
    descriptors_max: u64,
    config: Config,
}

/// The report of a starting shard: its table, and its capacity once the listeners are open.
type Report = SyncSender<(Tables, Result<usize, StartError>)>;

impl<M: Send + 'static> Start<M> {
    fn run<H: Handler<Mail = M>>(
        self,
        make: impl FnOnce(&Shard<M>) -> H,
        report: &Report,
    ) -> io::Result<()> {
        tables::block_signals();
        let mut keep: Vec<RawFd> = self.wakes.descriptors().collect();
        keep.push(self.hand_off);
        keep.extend(self.listening.iter().map(|(fd, _)| *fd));
        let foreign: Vec<RawFd> =
            self.foreign_wakers.iter().copied().filter(|fd| !keep.contains(fd)).collect();
        keep.extend_from_slice(&foreign);
        let tables = tables::separate(self.wakes.set(), &keep);
        if tables == Tables::Private {
            tables::close_unless_event_counters(&foreign);
        }
        if tables == Tables::Shared && cfg!(target_os = "linux") {
            tracing::warn!(
                "cannot create a descriptor table for the shard: all shards share one limit"
            );
        }
        let hand_off = tables::inherited(self.hand_off);
        let reactor = match self.open(make, tables, hand_off, keep.len()) {
            Ok(reactor) => reactor,
            Err(error) => {
                let kind = io::Error::other(error.to_string());
                // The spawning thread waits for this report.
                let _ = report.send((tables, Err(error)));
                return Err(kind);
            }
        };
        let _ = report.send((tables, Ok(reactor.io.capacity())));
        reactor.run()
    }

    fn open<H: Handler<Mail = M>>(
        self,
        make: impl FnOnce(&Shard<M>) -> H,
        tables: Tables,
        hand_off: OwnedFd,
        kept: usize,
    ) -> Result<Reactor<H>, StartError> {
        let io_error = |what| move |error| StartError::Io(what, error);
        if let Some(core) = self.config.core {
            pin_thread(core).map_err(io_error("cannot pin the shard to its core"))?;
        }
        // 0, 1, 2, what was kept, the poll set, the timer.
        let fixed = 3 + kept + 1 + usize::from(cfg!(target_os = "linux"));
        let room = self.room(tables, fixed);
        let stats = Arc::clone(&self.stats);
        let mut io = Io::new(&self.config, self.clock, room.capacity, Some(hand_off), stats)
            .map_err(io_error("cannot create a poll set"))?;
        let hand_off = io.hand_off.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let waker = self.wakes.registered(self.index).unwrap_or(-1);
        io.register_special(waker, Special::Waker)
            .and_then(|()| io.register_special(hand_off, Special::HandOff))
            .map_err(io_error("cannot register the waker"))?;
        if let Some(config) = &self.config.tun {
            let tun = tun::open(config).map_err(io_error("cannot make the TUN device"))?;
            io.register_special(tun.as_raw_fd(), Special::Tun)
                .map_err(io_error("cannot register the TUN device"))?;
            io.tun = Some(tun);
        }
        let listening = self.listening.iter().map(|(fd, of)| (tables::inherited(*fd), *of));
        let listeners = Listeners::new(listening.collect(), room.open_max, &io)
            .map_err(io_error("cannot register the listeners"))?;
        let shard = Shard {
            index: self.index,
            mailboxes: self.mailboxes,
            stats: self.stats,
            capacity: room.capacity,
            tables,
        };
        let handler = make(&shard);
        Ok(Reactor::new(handler, io, listeners, self.inbox, self.config.read_buffer_bytes))
    }

    fn room(&self, tables: Tables, fixed: usize) -> Room {
        let limit = usize::try_from(self.descriptors_max).unwrap_or(usize::MAX);
        let own = match tables {
            Tables::Private => limit,
            Tables::Shared => limit / self.mailboxes.len().max(1),
        };
        let room = Room::within(own, fixed);
        match self.config.connections_max {
            Some(most) if most < room.capacity => {
                let reserve = room.open_max - room.capacity;
                Room { capacity: most, open_max: most + reserve }
            }
            _ => room,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Room {
    capacity: usize,
    /// The same with those accepted from the reserve, only to be refused politely.
    open_max: usize,
}

impl Room {
    /// Of `limit` descriptors `fixed` are used, and 64, or a sixteenth if that is less, are
    /// reserved. A quarter of the reserve is never used for accepting: it is for connections handed
    /// back by the other side, and for those that the handler opens.
    fn within(limit: usize, fixed: usize) -> Self {
        let reserve = (limit / 16).min(64);
        let capacity = limit.saturating_sub(fixed + reserve).max(1);
        Self { capacity, open_max: capacity + reserve - reserve / 4 }
    }
}

/// The number of shards that hold `connections` with a table of `descriptors` each, if the kernel
/// spreads new connections by a hash: with room for six standard deviations, no shard is full
/// before all connections are open. At least 1; 0 descriptors count as 1.
pub fn shards_for(connections: usize, descriptors: u64) -> usize {
    let limit = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let holds = |shards: usize| {
        // Each shard keeps the wakers of all, and a dozen other descriptors.
        let capacity = Room::within(limit, shards.saturating_add(FIXED)).capacity;
        let mean = connections as f64 / shards as f64;
        mean + 6.0 * mean.sqrt() <= capacity as f64
    };
    // More shards may hold less each, because of their wakers: the first count that suffices.
    let least = connections.div_ceil(Room::within(limit, FIXED).capacity).max(1);
    (least..=least.saturating_mul(2)).find(|shards| holds(*shards)).unwrap_or(least)
}

/// How many connections `shards` with `descriptors` each have before any of them is full, with the
/// same room for an uneven spread as [`shards_for`].
pub fn connections_for(shards: usize, descriptors: u64) -> usize {
    let limit = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let capacity = Room::within(limit, shards.saturating_add(FIXED)).capacity as f64;
    // The mean m with m + 6 sqrt(m) = capacity.
    let root = (9.0 + capacity).sqrt() - 3.0;
    (root * root * shards as f64) as usize
}

/// Descriptors of a shard besides connections and wakers: a generous estimate.
const FIXED: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_room_for_an_uneven_spread() {
        assert_eq!(shards_for(0, 20_000), 1);
        assert_eq!(shards_for(15_000, 20_000), 1);
        assert_eq!(shards_for(20_000, 20_000), 2);
        let many = shards_for(2_000_000, 20_000);
        assert!((105..=107).contains(&many), "{many}");
        assert_eq!(shards_for(1_000_000, 1 << 20), 1);
        assert!(shards_for(100, 8) >= 100);
    }

    #[test]
    fn chosen_number_of_shards_holds_the_connections() {
        for connections in [1_000, 15_000, 100_000, 2_000_000] {
            for descriptors in [4_096, 20_000, 1 << 20] {
                let shards = shards_for(connections, descriptors);
                let held = connections_for(shards, descriptors);
                assert!(held >= connections, "{connections} of {descriptors}: {shards}, {held}");
                let fewer = connections_for(shards - 1, descriptors);
                assert!(fewer < connections, "{connections} of {descriptors}: {shards}, {fewer}");
            }
        }
        assert_eq!((connections_for(0, 20_000), connections_for(5, 8)), (0, 0));
    }

    #[test]
    fn descriptor_reserve_is_a_sixteenth_but_at_most_64() {
        assert_eq!(Room::within(20_000, 10), Room { capacity: 19_926, open_max: 19_974 });
        assert_eq!(Room::within(256, 10), Room { capacity: 230, open_max: 242 });
        assert_eq!(Room::within(8, 10).capacity, 1);
    }
}
