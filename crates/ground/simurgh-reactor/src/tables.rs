//! Descriptor tables: each shard has its own, so `RLIMIT_NOFILE` counts per shard and no lock is
//! shared when connections are opened and closed.
//!
//! The price is that a descriptor *number* is valid only in its table: used in another it may
//! close, or write into, another client's socket. So a shard thread closes everything it inherited
//! except 0, 1, 2, the descriptors it was given, and event counters (with which code on the shard
//! wakes other loops, such as tokio's); and a descriptor of the process's own table is a
//! [`MainFd`], which is closed only there.
//!
//! A shard must not start threads: they would share its table without knowing it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Whether a shard has its own descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// The shard's own: the descriptor limit applies to it alone.
    Private,
    /// The process's: not Linux, or the kernel refused; all shards share one limit.
    Shared,
}

/// Raises the soft limit on open descriptors to the hard one; returns both as they are now. If the
/// system refuses, the soft limit stays.
pub fn raise_descriptor_limit() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // macOS refuses more than OPEN_MAX; the old limit then remains and is returned below.
        let _ =
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let limit = getrlimit(Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadTable {
    pub(crate) table: u32,
    pub(crate) set: u32,
}

thread_local! {
    static THREAD_TABLE: Cell<ThreadTable> = const { Cell::new(ThreadTable { table: 0, set: 0 }) };
}

static NEXT_TABLE: AtomicU32 = AtomicU32::new(1);

/// Descriptors of the process's table whose owners were dropped on a shard.
static DEFERRED_CLOSES: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

pub(crate) fn thread_table() -> ThreadTable {
    THREAD_TABLE.with(Cell::get)
}

/// Gives the calling thread, a new shard of `set`, its own table, in which only 0, 1, 2 and `keep`
/// stay open. Descriptors that other threads open meanwhile in the process's table have no effect
/// on it.
pub(crate) fn separate(set: u32, keep: &[RawFd]) -> Tables {
    let tables = if unshare_and_close(keep) { Tables::Private } else { Tables::Shared };
    let table = match tables {
        Tables::Private => NEXT_TABLE.fetch_add(1, Ordering::Relaxed),
        Tables::Shared => thread_table().table,
    };
    THREAD_TABLE.with(|cell| cell.set(ThreadTable { table, set }));
    tables
}

/// Blocks all signals in the calling thread, a new shard, except those that its own faults raise. A
/// signal handler runs on any thread, and commonly writes to a pipe by its number, which in a
/// shard's table may be a client's socket.
pub(crate) fn block_signals() {
    // SAFETY: the set is initialised by `sigfillset` before it is read; none of these calls touches
    // other memory, and only the calling thread's mask changes.
    unsafe {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(set.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT] {
            libc::sigdelset(set.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// The event counters (eventfd) open in the calling thread's table: the wakers of event loops that
/// already run, such as tokio's. If a shard keeps them, code on the shard may wake those loops: the
/// same number means the same counter there. Looks at every open descriptor once.
pub(crate) fn event_counters() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/thread-self/fd") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| is_event_counter(*fd)).collect()
}

fn is_event_counter(fd: RawFd) -> bool {
    std::fs::read_link(format!("/proc/thread-self/fd/{fd}"))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

/// Closes, in a private table, those of `kept` whose numbers were reused before it was copied.
pub(crate) fn close_unless_event_counters(kept: &[RawFd]) {
    for fd in kept.iter().filter(|fd| !is_event_counter(**fd)) {
        // SAFETY: called on a new private table, where nothing owns this number.
        unsafe { libc::close(*fd) };
    }
}

/// Takes ownership of an inherited descriptor, after [`separate`] kept it.
///
/// In a private table the number has no other owner. In a shared one the spawner gives up its
/// ownership when the shard reports so.
pub(crate) fn inherited(fd: RawFd) -> OwnedFd {
    // SAFETY: `fd` was open in the table this one is a copy of and is in the list of those kept;
    // the single owner of the number in this table is made here, once for each shard.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Takes ownership of a descriptor that this process was started with; `None` if it is not open.
pub(crate) fn passed(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: the call reads the flags of a number, whether it is open or not.
    let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    // SAFETY: the one who started the process opened it for it, and said so; called once for each
    // number, before anything else could have that number.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(target_os = "linux")]
fn unshare_and_close(keep: &[RawFd]) -> bool {
    let mut kept: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.extend([0, 1, 2]);
    kept.sort_unstable();
    kept.dedup();
    let last = kept.last().copied().unwrap_or(2);
    // One call that copies only the lower descriptors: a process with a million open sockets must
    // not duplicate all of them first. It is also allowed where seccomp forbids `unshare`.
    if !close_range(last + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE) {
        // SAFETY: this thread runs only reactor code from here on, and from this point it uses
        // only descriptors that are in `keep` or that it opens itself; see the module comment.
        if unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.is_err() {
            return false;
        }
        close_each(last + 1, u32::try_from(raise_descriptor_limit().0).unwrap_or(u32::MAX));
    }
    for pair in kept.windows(2) {
        if let [below, above] = *pair
            && above - below > 1
            && !close_range(below + 1, above - 1, 0)
        {
            close_each(below + 1, above);
        }
    }
    true
}

#[cfg(not(target_os = "linux"))]
fn unshare_and_close(_keep: &[RawFd]) -> bool {
    false
}

#[cfg(target_os = "linux")]
fn close_range(first: u32, last: u32, flags: libc::c_uint) -> bool {
    // SAFETY: the call touches no memory. With CLOSE_RANGE_UNSHARE it makes the table private
    // before anything is closed; without it, it is only made on a private table.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}

#[cfg(target_os = "linux")]
fn close_each(first: u32, end: u32) {
    for fd in first..end {
        // SAFETY: the table is private to this thread, and nothing in it above 2 that is not
        // kept has an owner here; a number that is not open is an error without effect.
        unsafe { libc::close(fd as libc::c_int) };
    }
}

/// A descriptor of the process's table, which threads of other tables hold but never close.
#[derive(Debug)]
pub(crate) struct MainFd {
    fd: ManuallyDrop<OwnedFd>,
}

impl MainFd {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        debug_assert_eq!(thread_table().table, 0);
        Self { fd: ManuallyDrop::new(fd) }
    }
}

impl AsFd for MainFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for MainFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for MainFd {
    fn drop(&mut self) {
        // SAFETY: taken here once, and nothing can use `self.fd` after its drop.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if thread_table().table != 0 {
            DEFERRED_CLOSES.lock().unwrap_or_else(PoisonError::into_inner).push(fd);
        }
    }
}

/// Closes the deferred descriptors of the process's table; only called there.
pub(crate) fn close_deferred() {
    debug_assert_eq!(thread_table().table, 0);
    DEFERRED_CLOSES.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
