//! The live page of a run: charts, tables and buttons, on loopback, during the run.
//!
//! One thread with a small separate runtime; start it after the engine's workers, so that none of
//! its descriptors is in their tables. It only reads the record, and controls the run through
//! [`Control`].
//!
//! ```text
//! Record --polled 5 times a second--> frames::publish --one text for all--> GET /events (SSE)
//! Target: the servers' own figures ---------------------^
//! POST /control --guard: host, origin, token--> Control
//! ```

mod assets;
mod frames;
mod guard;
mod probe;
mod server;
mod target;
mod view;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use simurgh_load_record::Record;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::control::Control;

pub(crate) use probe::{CPU, Figures, Probe, and, grown, point};
pub use target::Target;
pub(crate) use target::TargetPoint;

pub(crate) use assets::report_page;
pub(crate) use view::PageView;

/// The default address of the page; the port is Tsung's.
pub const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8091);

const PORTS_TRIED: u16 = 100;

const PAGES_MAX: usize = 32;

/// How long open pages have to read the last event.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// The inputs of a dashboard.
pub struct Options {
    /// The address to listen on; it must be a loopback address.
    pub address: SocketAddr,
    /// The run.
    pub record: Arc<Mutex<Record>>,
    /// The control for the buttons.
    pub control: Control,
    /// The servers' figures, if a [`Meter`](crate::meter::Meter) asks for them.
    pub target: Target,
}

/// A running dashboard. It ends when it is dropped.
#[derive(Debug)]
pub struct Dashboard {
    address: SocketAddr,
    moved_from: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    record: Arc<Mutex<Record>>,
    control: Control,
    target: Target,
    /// Part of the page, and required with each command.
    token: String,
    frames: watch::Receiver<Arc<frames::Frame>>,
    pages: Arc<Semaphore>,
}

impl Shared {
    fn record<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the page, on the next free port if that of the options is in use.
///
/// # Errors
/// `InvalidInput` for an address that is not loopback; the system's error when no port is free or
/// no thread can be started.
pub fn start(options: Options) -> io::Result<Dashboard> {
    let Options { address: asked, record, control, target } = options;
    if !asked.ip().is_loopback() {
        let text = format!(
            "the dashboard listens on loopback only, not on {asked}: take 127.0.0.1, and `ssh -L` \
             to look at it from another host"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let listener = server::listen(asked, PORTS_TRIED)?;
    let address = listener.local_addr()?;
    let (sender, frames) = watch::channel(Arc::default());
    let token = token()?;
    let pages = Arc::new(Semaphore::new(PAGES_MAX));
    let shared = Arc::new(Shared { record, control, target, token, frames, pages });
    let (stop, stopped) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("simurgh-dashboard".into()).spawn(move || {
        runtime.block_on(async {
            let publisher = tokio::spawn(frames::publish(Arc::clone(&shared), sender));
            server::serve(listener, shared, publisher, stopped).await;
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
    })?;
    let moved_from = (asked.port() != 0 && asked != address).then_some(asked);
    Ok(Dashboard { address, moved_from, stop: Some(stop), thread: Some(thread) })
}

impl Dashboard {
    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the options, if its port was in use.
    pub fn moved_from(&self) -> Option<SocketAddr> {
        self.moved_from
    }

    /// Sends the end of the run to open pages, and ends; waits up to 2 seconds for readers.
    pub fn finish(self) {}
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests;
