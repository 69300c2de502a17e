//! The controller's side: connects to the agents of a scenario and talks to each.

#![allow(
    clippy::disallowed_types,
    reason = "only threads of the process's own table are here; workers close what they inherit"
)]

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use simurgh_load_scenario::{Agent, Scenario};

use super::clock::{Reading, Readings};
use super::host::{HostEvent, Report, RunClock};
use super::peer::{self, PeerLost, PeerReader, PeerWriter};
use super::wire::{
    FromAgent, Greeting, Hello, PING_INTERVAL, PROTOCOL, ToAgent, VERSION, is_this_version,
};
use crate::command::{WorkerCommand, WorkerEvent};
use crate::pool::Part;

const CONNECT: Duration = Duration::from_secs(5);
/// Rounds of the first measurement of its clock, and how long they may take.
const ROUNDS: usize = 16;
const ROUNDS_TIME: Duration = Duration::from_secs(1);
/// Commands that wait for the network: more than there are in a run.
const COMMANDS_MAX: usize = 1000;

struct Found {
    greeting: Greeting,
    reader: PeerReader,
    writer: PeerWriter,
    readings: Readings,
}

/// Connects to an agent and measures its clock. From then on its events go to `reports` as those of
/// `host`. An error says what is wrong and what to do, to be put after the agent's name.
pub(crate) fn find(
    agent: &Agent,
    host: u16,
    clock: RunClock,
    reports: &Sender<Report>,
) -> Result<(Greeting, Link), String> {
    let mut found = greet(agent)?;
    found.measure(clock).map_err(|gone| format!("its clock cannot be measured: {gone}"))?;
    let greeting = found.greeting.clone();
    let link = found.link(host, clock, reports);
    Ok((greeting, link.map_err(|error| format!("no thread to stay in touch with it: {error}"))?))
}

fn greet(agent: &Agent) -> Result<Found, String> {
    let token = super::token(&agent.token)?;
    let address = &agent.address;
    let stream = connect(address).map_err(|error| {
        let port = address.rsplit_once(':').map_or("PORT", |(_, port)| port);
        format!(
            "cannot connect: {error}; start `simurgh load agent --listen 0.0.0.0:{port} --token T` \
             there, and see that no firewall is in between"
        )
    })?;
    let system = |error: io::Error| format!("cannot set up the connection: {error}");
    let (mut reader, writer) = peer::open(stream).map_err(system)?;
    let broken = |gone: PeerLost| format!("no answer: {gone}; is it `simurgh load agent`?");
    writer.send(&Hello::new(token)).map_err(broken)?;
    let greeting: Greeting = match reader.receive() {
        Ok(greeting) => greeting,
        Err(PeerLost::Closed) => {
            return Err("it closed without an answer: wrong token. Use the token that the agent \
                was started with."
                .to_owned());
        }
        Err(gone) => return Err(broken(gone)),
    };
    if !is_this_version(greeting.protocol, &greeting.version) {
        return Err(format!(
            "it is simurgh {} (protocol {}), this is {VERSION} (protocol {PROTOCOL}); install the \
             same version on both",
            greeting.version, greeting.protocol
        ));
    }
    if let Some(what) = &greeting.busy {
        return Err(format!("it is busy with {what}; wait for its end, or name another agent"));
    }
    reader.trust();
    Ok(Found { greeting, reader, writer, readings: Readings::default() })
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Found {
    fn measure(&mut self, clock: RunClock) -> Result<(), PeerLost> {
        let start = Instant::now();
        for round in 0..ROUNDS {
            // Three on any network: the first one may be slow, as it wakes up threads.
            if round >= 3 && start.elapsed() >= ROUNDS_TIME {
                break;
            }
            self.writer.send(&ToAgent::Ping { sent_ns: clock.ns() })?;
            if let FromAgent::Pong { sent_ns, clock_ns } = self.reader.receive()? {
                self.readings.add(sent_ns, clock.ns(), clock_ns);
            }
        }
        Ok(())
    }

    fn link(self, host: u16, clock: RunClock, reports: &Sender<Report>) -> io::Result<Link> {
        let Self { reader, writer, readings, .. } = self;
        let readings = Arc::new(Mutex::new(readings));
        let (commands, sending) = sync_channel(COMMANDS_MAX);
        let sender = writer.clone();
        let listener = ReceiveLoop {
            host,
            reader,
            writer: writer.clone(),
            clock,
            readings: Arc::clone(&readings),
            commands: commands.clone(),
            reports: reports.clone(),
        };
        let thread = |name: &str| std::thread::Builder::new().name(format!("agent-{host}-{name}"));
        // When it ends, it closes the connection, and so the receiving thread ends too.
        thread("out").spawn(move || send(&sender, clock, &sending))?;
        let listener = thread("in").spawn(move || listener.run())?;
        Ok(Link { commands, writer, readings, listener: Some(listener) })
    }
}

/// The connection to an agent that takes part.
pub(crate) struct Link {
    commands: SyncSender<ToAgent>,
    writer: PeerWriter,
    readings: Arc<Mutex<Readings>>,
    listener: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts the agent's workers; it reports [`HostEvent::Prepared`] or [`HostEvent::Failed`].
    pub(crate) fn prepare(&self, scenario: Scenario, part: Part, receive_stamps: bool) {
        let scenario = Box::new(scenario);
        self.send(ToAgent::Prepare { scenario, part, receive_stamps });
    }

    /// Sends a command, whose times are of the run's clock.
    pub(crate) fn command(&self, command: WorkerCommand) {
        let mut readings = self.lock();
        let reading = match command {
            // Before the start any reading is new.
            WorkerCommand::Start { .. } => readings.correct().or_else(|| readings.best()),
            _ => readings.best(),
        };
        drop(readings);
        let offset_ns = reading.map_or(0, |reading| reading.offset_ns);
        self.send(ToAgent::Command(command.by_clock(offset_ns.saturating_neg())));
    }

    /// The known one-way delay of a command.
    pub(crate) fn way(&self) -> Duration {
        Duration::from_nanos(self.lock().best().map_or(0, |reading| reading.bound_ns))
    }

    pub(crate) fn dismiss(&self) {
        self.send(ToAgent::Over);
    }

    /// Waits until the agent has closed, at most [`super::wire::SILENCE`].
    pub(crate) fn end(mut self) {
        if let Some(listener) = self.listener.take() {
            // Its events were reported.
            let _ = listener.join();
        }
    }

    fn send(&self, message: ToAgent) {
        if self.commands.try_send(message).is_err() {
            // The agent does not read or is gone: the receiving thread sees the end and reports it.
            self.writer.close();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.writer.close();
    }
}

/// Sends commands, and pings between them.
fn send(writer: &PeerWriter, clock: RunClock, sending: &Receiver<ToAgent>) {
    let mut next_ping = Instant::now() + PING_INTERVAL;
    loop {
        let said = match sending.recv_timeout(next_ping.saturating_duration_since(Instant::now())) {
            // Nothing follows; the agent closes.
            Ok(ToAgent::Over) => {
                return writer.send(&ToAgent::Over).unwrap_or_else(|_| writer.close());
            }
            Ok(message) => writer.send(&message),
            Err(RecvTimeoutError::Timeout) => {
                next_ping = Instant::now() + PING_INTERVAL;
                writer.send(&ToAgent::Ping { sent_ns: clock.ns() })
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if said.is_err() {
            break;
        }
    }
    writer.close();
}

struct ReceiveLoop {
    host: u16,
    reader: PeerReader,
    writer: PeerWriter,
    clock: RunClock,
    readings: Arc<Mutex<Readings>>,
    commands: SyncSender<ToAgent>,
    reports: Sender<Report>,
}

impl ReceiveLoop {
    fn run(mut self) {
        let why = loop {
            match self.reader.receive() {
                Ok(message) => self.take(message),
                Err(gone) => break gone.to_string(),
            }
        };
        self.writer.close();
        self.report(HostEvent::Lost { why });
    }

    fn take(&mut self, message: FromAgent) {
        match message {
            FromAgent::Pong { sent_ns, clock_ns } => self.take_time(sent_ns, clock_ns),
            FromAgent::Worker(mut event) => {
                if let WorkerEvent::Delta(delta) = &mut event {
                    delta.worker.host = self.host;
                }
                self.report(HostEvent::Worker(event));
            }
            FromAgent::Prepared { capacity } => {
                let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
                self.report(HostEvent::Prepared { capacity });
            }
            FromAgent::Failed { why } => self.report(HostEvent::Failed { why }),
            FromAgent::WorkerLost { thread, why } => {
                self.report(HostEvent::WorkerLost { thread, why })
            }
        }
    }

    fn take_time(&self, sent_ns: u64, clock_ns: u64) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings.add(sent_ns, self.clock.ns(), clock_ns);
        // It is not in use before the start.
        if !readings.is_in_use() {
            return;
        }
        let correction = readings.correct();
        let skew = readings.skew();
        drop(readings);
        if let Some(Reading { offset_ns, .. }) = correction {
            let command = WorkerCommand::Clock { clock_offset_ns: offset_ns };
            // If the queue is full, the next reading corrects it.
            let _ = self.commands.try_send(ToAgent::Command(command));
        }
        if let Some(skew) = skew {
            self.report(HostEvent::Skew(skew));
        }
    }

    fn report(&self, event: HostEvent) {
        // No one receives it after the end of the run.
        let _ = self.reports.send((self.host, event));
    }
}
