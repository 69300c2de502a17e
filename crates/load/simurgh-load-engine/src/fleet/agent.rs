//! The agent: takes part in runs of other hosts, one at a time.

#![allow(
    clippy::disallowed_types,
    reason = "only threads of the process's own table are here; workers close what they inherit"
)]

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simurgh_load_scenario::Scenario;

use super::clock::difference;
use super::host::RunClock;
use super::peer::{self, PeerLost, PeerReader, PeerWriter};
use super::wire::{FromAgent, Greeting, Hello, PROTOCOL, ToAgent, VERSION, is_this_version};
use crate::command::WorkerEvent;
use crate::pool::{Options, Part, WorkerPool};

/// Connections that have not authenticated yet.
const STRANGERS_MAX: usize = 16;
/// Pause when the system is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it checks that its threads are alive.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Workers that a controller may request: more are a mistake.
const WORKERS_MAX: u64 = 10_000;

/// Receives the agent's log for its operator, line by line.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A listening agent.
pub struct Agent {
    listener: TcpListener,
    state: Arc<AgentState>,
}

struct AgentState {
    token: String,
    log: Log,
    busy: Mutex<Option<String>>,
    strangers: AtomicUsize,
}

/// Listens on `listen`, writes to standard output `agent listening on ADDR` (with the port that the
/// system chose for port 0), and serves runs until the process ends. Must not be called on a
/// shard's thread. Fails if the address cannot be listened on.
pub fn serve(listen: SocketAddr, token: String, log: Log) -> io::Result<()> {
    let agent = Agent::bind(listen, token, log)?;
    let mut out = io::stdout();
    writeln!(out, "agent listening on {}", agent.address()?)?;
    out.flush()?;
    agent.run()
}

impl Agent {
    /// Listens; [`Agent::run`] then serves controllers that have `token`. Fails if the address
    /// cannot be listened on, or the token is empty.
    pub fn bind(listen: SocketAddr, token: String, log: Log) -> io::Result<Self> {
        if token.is_empty() {
            let what = "--token must not be empty: without it anyone could use this agent";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let listener = TcpListener::bind(listen)?;
        let (busy, strangers) = (Mutex::new(None), AtomicUsize::new(0));
        Ok(Self { listener, state: Arc::new(AgentState { token, log, busy, strangers }) })
    }

    /// The address it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves runs one after the other; while it is busy, other controllers are refused. If the
    /// controller is lost, its run ends with all users. Returns only when no connection can be
    /// accepted any more.
    pub fn run(self) -> io::Result<()> {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if passes(&error) => {
                    // Without descriptors or memory it would fail again at once.
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.state.strangers.fetch_add(1, Ordering::Relaxed) >= STRANGERS_MAX {
                self.state.strangers.fetch_sub(1, Ordering::Relaxed);
                self.state.log(&format!(
                    "{from}: closed, {STRANGERS_MAX} others have not authenticated yet"
                ));
                continue;
            }
            let state = Arc::clone(&self.state);
            let thread = std::thread::Builder::new().name("agent".to_owned());
            let spawned = thread.spawn(move || state.serve_connection(stream, from));
            if let Err(error) = spawned {
                self.state.strangers.fetch_sub(1, Ordering::Relaxed);
                self.state.log(&format!("{from}: closed, cannot start a thread for it: {error}"));
            }
        }
    }
}

fn passes(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

impl AgentState {
    fn log(&self, line: &str) {
        (self.log)(line);
    }

    fn busy(&self) -> MutexGuard<'_, Option<String>> {
        // A thread that panicked had only read it.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_connection(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let greeted = peer::open(stream).map_err(PeerLost::from);
        let greeted = greeted.and_then(|(reader, writer)| self.greet(reader, writer, from));
        self.strangers.fetch_sub(1, Ordering::Relaxed);
        let (session, reader) = match greeted {
            Ok(Some(greeted)) => greeted,
            Ok(None) => return,
            Err(gone) => return self.log(&format!("{from}: no controller: {gone}")),
        };
        self.log(&format!("{from}: controls this agent"));
        match session.run(reader) {
            Ok(()) => self.log(&format!("{from}: its run is over")),
            Err(why) => self.log(&format!("{from}: its run was ended here: {why}")),
        }
    }

    /// Authenticates a controller. `None`: it was refused, which is logged.
    fn greet(
        self: &Arc<Self>,
        mut reader: PeerReader,
        writer: PeerWriter,
        from: SocketAddr,
    ) -> Result<Option<(Session, PeerReader)>, PeerLost> {
        let hello: Hello = reader.receive()?;
        if !hello.knows(&self.token) {
            self.log(&format!("{from}: refused, wrong token"));
            return Ok(None);
        }
        let same = is_this_version(hello.protocol, &hello.version);
        let slot = if same { Slot::take(self, from) } else { Err(String::new()) };
        let busy = slot.as_ref().err().filter(|_| same).cloned();
        // A refusal that does not arrive needs no handling.
        let said = writer.send(&Greeting { busy, ..Greeting::of_this_host() });
        if !same {
            self.log(&format!(
                "{from}: refused, it is simurgh {} (protocol {}), this is {VERSION} (protocol \
                 {PROTOCOL}); install the same version on both",
                hello.version, hello.protocol
            ));
            return Ok(None);
        }
        let slot = match slot {
            Ok(slot) => slot,
            Err(what) => {
                self.log(&format!("{from}: refused, this agent is busy with {what}"));
                return Ok(None);
            }
        };
        said?;
        reader.trust();
        let session = Session {
            state: Arc::clone(self),
            writer,
            from,
            clock: RunClock::new(),
            slot: Some(slot),
            pool: None,
            to_workers_ns: 0,
        };
        Ok(Some((session, reader)))
    }
}

/// The agent's one run; dropping it frees the agent.
struct Slot(Arc<AgentState>);

impl Slot {
    /// Marks the agent as busy; an error says what it is busy with.
    fn take(state: &Arc<AgentState>, from: SocketAddr) -> Result<Self, String> {
        let mut busy = state.busy();
        if let Some(what) = &*busy {
            return Err(what.clone());
        }
        *busy = Some(format!("a run that {from} prepares"));
        Ok(Self(Arc::clone(state)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.busy() = None;
    }
}

struct Session {
    state: Arc<AgentState>,
    writer: PeerWriter,
    from: SocketAddr,
    clock: RunClock,
    slot: Option<Slot>,
    pool: Option<WorkerPool>,
    /// Converts the session's clock to that of the workers.
    to_workers_ns: i64,
}

enum SessionEvent {
    Received(ToAgent),
    Worker(WorkerEvent),
    Gone(PeerLost),
}

impl Session {
    /// Runs until the controller ends the session, or until an error.
    fn run(mut self, reader: PeerReader) -> Result<(), String> {
        let (sender, events) = channel();
        let (writer, clock, to_session) = (self.writer.clone(), self.clock, sender.clone());
        let thread = std::thread::Builder::new().name("agent-in".to_owned());
        let thread = thread
            .spawn(move || receive(reader, &writer, clock, &to_session))
            .map_err(|error| error.to_string())?;
        let end = self.serve(&events, &sender);
        // Users end at once with their threads.
        drop(self.pool.take());
        // Freed before the controller sees the end: it may return at once.
        drop(self.slot.take());
        self.writer.close();
        // A panic would have been reported.
        let _ = thread.join();
        end
    }

    fn serve(
        &mut self,
        events: &Receiver<SessionEvent>,
        sender: &Sender<SessionEvent>,
    ) -> Result<(), String> {
        let mut next_check = Instant::now() + POLL_INTERVAL;
        loop {
            let event =
                match events.recv_timeout(next_check.saturating_duration_since(Instant::now())) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => {
                        next_check = Instant::now() + POLL_INTERVAL;
                        self.report_lost()?;
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err("its thread has ended".to_owned());
                    }
                };
            match event {
                SessionEvent::Received(ToAgent::Over) => return Ok(()),
                SessionEvent::Received(message) => self.execute(message, sender)?,
                SessionEvent::Worker(event) => {
                    if let WorkerEvent::Stopped { thread } = event
                        && let Some(pool) = &mut self.pool
                    {
                        pool.has_stopped(thread);
                    }
                    self.send(&FromAgent::Worker(event))?;
                }
                SessionEvent::Gone(gone) => return Err(gone.to_string()),
            }
        }
    }

    /// Called when all events have been forwarded.
    fn report_lost(&mut self) -> Result<(), String> {
        for (thread, why) in self.pool.as_mut().map(WorkerPool::take_lost).unwrap_or_default() {
            self.state.log(&format!("worker {thread} has ended: {why}"));
            self.send(&FromAgent::WorkerLost { thread, why })?;
        }
        Ok(())
    }

    fn execute(&mut self, message: ToAgent, sender: &Sender<SessionEvent>) -> Result<(), String> {
        match message {
            // The receiving thread answers these.
            ToAgent::Ping { .. } | ToAgent::Over => Ok(()),
            ToAgent::Prepare { scenario, part, receive_stamps } => {
                let answer = match self.prepare(*scenario, part, receive_stamps, sender) {
                    Ok(capacity) => FromAgent::Prepared { capacity },
                    Err(why) => {
                        self.state.log(&format!("{}: cannot join the run: {why}", self.from));
                        FromAgent::Failed { why }
                    }
                };
                self.send(&answer)
            }
            ToAgent::Command(command) => {
                if let Some(pool) = &self.pool {
                    pool.send(command.by_clock(self.to_workers_ns));
                }
                Ok(())
            }
        }
    }

    fn prepare(
        &mut self,
        scenario: Scenario,
        part: Part,
        receive_stamps: bool,
        sender: &Sender<SessionEvent>,
    ) -> Result<u64, String> {
        if self.pool.is_some() {
            return Err("it has its part already".to_owned());
        }
        let end = part.first.saturating_add(part.workers);
        if part.workers == 0 || part.workers > WORKERS_MAX || end > part.of {
            return Err(format!("{} workers do not fit into {}", part.workers, part.of));
        }
        *self.state.busy() = Some(format!("a run of {:?} from {}", scenario.name, self.from));
        let options = Options { receive_stamps, ..Options::default() };
        let events = sender.clone();
        // Sending fails only after the session's end, when its workers end too.
        let events = Arc::new(move |event| drop(events.send(SessionEvent::Worker(event))));
        let events: crate::pool::EventSender = events;
        let name = scenario.name.clone();
        let pool = WorkerPool::start(&Arc::new(scenario), part, &options, &events);
        let pool = pool.map_err(|error| error.to_string())?;
        self.to_workers_ns = difference(pool.clock_ns(), self.clock.ns());
        let capacity = pool.capacity() as u64;
        self.pool = Some(pool);
        self.state
            .log(&format!("{}: a run of {name:?} with {} workers here", self.from, part.workers));
        Ok(capacity)
    }

    fn send(&self, message: &FromAgent) -> Result<(), String> {
        self.writer.send(message).map_err(|gone| gone.to_string())
    }
}

/// Receives from the controller, and answers its pings without delay.
fn receive(
    mut reader: PeerReader,
    writer: &PeerWriter,
    clock: RunClock,
    events: &Sender<SessionEvent>,
) {
    let gone = loop {
        let said = match reader.receive() {
            Ok(ToAgent::Ping { sent_ns }) => {
                writer.send(&FromAgent::Pong { sent_ns, clock_ns: clock.ns() })
            }
            Ok(message) => {
                // Sending fails only after the session's end, when the connection is closed too.
                let _ = events.send(SessionEvent::Received(message));
                Ok(())
            }
            Err(gone) => Err(gone),
        };
        if let Err(gone) = said {
            break gone;
        }
    };
    let _ = events.send(SessionEvent::Gone(gone));
}
