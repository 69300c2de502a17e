//! The one form that every scenario has before it runs, whichever language it was written in.
//!
//! The fronts (`toml`, `simurgh_load_tsung`) lower their text to a [`Scenario`] and have it checked
//! (`check`); the engine compiles it; `toml::write` prints it. It is plain data, and complete: the
//! files it names are read into it, so an agent on another host needs nothing but this.
//!
//! Times are `Duration`s; rates are users per second.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use simurgh_load_client::{AddressRange, Sources, Tls};

use super::{Compare, Diagnostic, Step};

/// A scenario that can be run, and what its reader should know.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The scenario.
    pub scenario: Scenario,
    /// Repairs and things ignored.
    pub warnings: Vec<Diagnostic>,
}

/// A whole run: the servers, the source addresses, the users, and the thresholds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// For titles and file names.
    pub name: String,
    /// Arrivals, choices and random values follow from it, so a run can be repeated.
    pub seed: u64,
    /// Servers; users are spread over those with a weight. Never empty.
    pub targets: Vec<Target>,
    /// How users are spread over several servers.
    pub spread: Spread,
    /// Where connections come from.
    pub sources: Sources,
    /// When users arrive.
    pub load: Load,
    /// What users do; one is chosen by weight on arrival. Never empty.
    pub sessions: Vec<Session>,
    /// Names of the variables; a [`VarId`](super::VarId) is an index. Each user has its own values.
    pub vars: Vec<String>,
    /// Data files, read.
    pub files: Vec<DataFile>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// What decides the exit status.
    pub pass: Vec<Threshold>,
    /// Hosts that do the work; none: this one does it all.
    pub agents: Vec<Agent>,
    /// TLS of `wss` and `https` targets.
    pub tls: Tls,
    /// User agents of HTTP requests that name none, by weight.
    pub user_agents: Vec<(String, f64)>,
    /// Set for a Tsung file.
    pub tsung: Option<TsungRun>,
}

impl Scenario {
    /// What users remember of stamped messages. Scenarios that cut connections or resume joins want
    /// to know what is missing, so there it is everything.
    pub fn follow_stamps(&self) -> Follow {
        let counts = |session: &Session| session.drop.is_some() || session.resume;
        match self.sessions.iter().any(counts) {
            true => Follow::Exactly,
            false => self.load.follow_stamps,
        }
    }
}

/// What only a Tsung file sets for the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TsungRun {
    /// The DTD's `version` attribute, kept for the copy of the log.
    pub version: Option<String>,
    /// `backend="fullstats"`: keep each sample in `tsung-fullstats.log` as well.
    pub full_stats: bool,
    /// `dumptraffic`: write what goes over the wire to `tsung.dump`.
    pub dump: Dump,
}

/// Tsung's `dumptraffic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dump {
    /// Nothing.
    #[default]
    Off,
    /// Payloads.
    Full,
    /// The beginnings of payloads.
    Light,
    /// One line for each request.
    Protocol,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// As written, without port and brackets: for `Host` headers and messages.
    pub host: String,
    /// What it resolved to; connections use it, never the name.
    pub address: SocketAddr,
    /// `wss`/`https`.
    pub tls: bool,
    /// Share of the users.
    pub weight: f64,
}

impl Target {
    /// Whether both name one server.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.host, self.address, self.tls) == (&other.host, other.address, other.tls)
    }
}

/// How users are spread over several servers by weight. A step that names a server (`switch`, an
/// absolute URL) binds its user to that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spread {
    /// Connections take servers in turn, as behind a balancer.
    #[default]
    RoundRobin,
    /// Users take servers in turn, and each keeps its own for all its connections.
    Sticky,
    /// The same, but after a connection broke, was cut or was refused its user takes the next
    /// server.
    Elsewhere,
    /// Each user draws a server and keeps it, as in Tsung.
    Random,
}

/// When users arrive, and when it all ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// One after the other.
    pub phases: Vec<Phase>,
    /// Users with an appointment (Tsung's `<user>`).
    pub appointments: Vec<Appointment>,
    /// How often the phases are repeated after the first time.
    pub repeat: u32,
    /// The run ends after this time, users and all; `None`: when the last user has ended.
    pub duration: Option<Duration>,
    /// No more users than this in the whole run.
    pub users_max: Option<u64>,
    /// What users remember of the stamped messages that came.
    pub follow_stamps: Follow,
}

/// What users remember of the stamped messages that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// Nothing.
    #[default]
    Nothing,
    /// The last one (8 bytes), so that one that comes twice or out of order is counted as such as
    /// long as no other sender's comes between.
    Last,
    /// All numbers of each sender at each topic, so that missing, double and disordered messages
    /// are known exactly.
    Exactly,
}

/// A stretch of time with one way of arriving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// For tables; `1`, `2`, … where the text gives none.
    pub name: String,
    /// How long users arrive.
    pub duration: Duration,
    /// How they arrive.
    pub arrivals: Arrivals,
    /// No more than this many arrive in this phase.
    pub users_max: Option<u64>,
    /// The next phase waits until all users have ended.
    pub wait_for_users: bool,
    /// It begins when the run is resumed by a command.
    pub hold: bool,
    /// Weights that replace those of the sessions, by index; `None`: the session's own. Empty:
    /// all sessions' own.
    pub weights: Vec<Option<f64>>,
}

/// How users arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arrivals {
    /// Open model: a rate in users per second that changes evenly from `from` to `to` and does not
    /// depend on the server.
    Open {
        /// At the start of the phase.
        from: f64,
        /// At its end.
        to: f64,
        /// Random distances (a Poisson process) in place of even ones.
        poisson: bool,
    },
    /// Closed model: a number of users at a time that changes evenly from `from` to `to`; one that
    /// ends is replaced at once.
    Closed {
        /// At the start of the phase.
        from: u64,
        /// At its end.
        to: u64,
    },
}

/// One user that arrives at a given time after the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Appointment {
    /// Since the start of the run.
    pub at: Duration,
    /// Index of the session.
    pub session: usize,
}

/// What one kind of user does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// For tables.
    pub name: String,
    /// Share of the users; probabilities are weights that add up to 100.
    pub weight: f64,
    /// How replies are recognised.
    pub dialect: Dialect,
    /// What carries the messages.
    pub transport: Transport,
    /// Phoenix heartbeats on open sockets, this often.
    pub heartbeat: Option<Duration>,
    /// What happens when a connection is lost.
    pub reconnect: Option<Reconnect>,
    /// Connections that are cut on purpose.
    pub drop: Option<Drop>,
    /// Joins send the position of the last message, and request those that followed.
    pub resume: bool,
    /// Bytes per second that a user reads at most (Tsung's `rate_limit`).
    pub read_rate_max: Option<u64>,
    /// In order.
    pub steps: Vec<Step>,
}

/// How a session speaks over a WebSocket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dialect {
    /// Frames are those of the scenario.
    #[default]
    Raw,
    /// Phoenix Channels: replies are matched by ref.
    Phoenix(Vsn),
    /// As Tsung does it: the first frame after a message is its reply.
    Tsung,
}

/// What carries the messages between a user and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A WebSocket.
    #[default]
    WebSocket,
    /// Phoenix's long polling: GETs that wait for messages, POSTs that bring some.
    LongPoll,
}

/// Version of the Channels serializer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vsn {
    /// `vsn=1.0.0`.
    V1,
    /// `vsn=2.0.0`.
    V2,
}

/// Back-off after a lost connection: `min`, doubled each time up to `max`, each with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reconnect {
    /// The first wait.
    pub min: Duration,
    /// The longest wait.
    pub max: Duration,
    /// Attempts in a row; `None`: for ever.
    pub attempts_max: Option<u32>,
    /// Joins the same topics before the session goes on (Phoenix), or in other sessions
    /// repeats the steps between the connect and the one that was interrupted.
    pub rejoin: bool,
}

/// Connections that are cut on purpose, as on a mobile network, at random times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    /// From one cut to the next.
    pub every: Duration,
    /// How long the user is away.
    pub away: Duration,
    /// How the connection ends.
    pub how: Cut,
    /// How long it takes after that to come back, shortest and longest; drawn each time.
    pub reconnect: (Duration, Duration),
    /// Only while this phase lasts; `None`: always.
    pub phase: Option<usize>,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// By a reset, which the server sees at once.
    Reset,
    /// The user stops reading without closing. The socket stays open until the user has connected
    /// again, and is reset then.
    Silence,
    /// Half of the users so, half of them so.
    Both,
}

impl Cut {
    /// Whether some connections stay open while their users have new ones.
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Silence | Self::Both)
    }
}

/// A file of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// As named in the scenario.
    pub name: String,
    /// The path it was read from, as written; `None` where the rows stand in the scenario itself.
    pub path: Option<String>,
    /// Its rows, without line ends and blank lines at the end.
    pub rows: Vec<String>,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeouts {
    /// Time to connect, TLS included.
    pub connect: Duration,
    /// Time for the answer to an upgrade, a join, a push, a message, a request.
    pub reply: Duration,
    /// Attempts to connect after the first has failed (Tsung's `max_retries`).
    pub retries: u32,
    /// Between them, times their number (Tsung's `retry_timeout`).
    pub retry_wait: Duration,
}

impl Reconnect {
    /// For sessions whose connections are cut on purpose and that do not set it.
    pub const AFTER_DROP: Self = Self {
        min: Duration::from_millis(500),
        max: Duration::from_secs(5),
        attempts_max: None,
        rejoin: true,
    };
}

impl Default for Timeouts {
    fn default() -> Self {
        let (connect, reply) = (Duration::from_secs(30), Duration::from_secs(60));
        Self { connect, reply, retries: 0, retry_wait: Duration::from_millis(10) }
    }
}

/// One condition of a pass, such as `join_p99 < 50ms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// A figure's name, see `simurgh_load_record::figures`.
    pub figure: String,
    /// How it is compared.
    pub compare: Compare,
    /// The bound: microseconds for times, else a count, a rate per second or a share.
    pub value: f64,
    /// The condition as written, for output.
    pub text: String,
}

/// Address of the agent that is this host itself.
pub const LOCAL_AGENT: &str = "local";

/// Another host that takes part. Where a scenario names agents, they have all users, in parts by
/// their weights; the controlling host has some only as an agent called [`LOCAL_AGENT`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Where `simurgh load agent` listens, host and port; or [`LOCAL_AGENT`].
    pub address: String,
    /// What it was started with; `$NAME` names an environment variable. [`LOCAL_AGENT`] needs none.
    pub token: String,
    /// Share of the users, met as near as whole numbers of workers can; 0: takes no part.
    pub weight: f64,
    /// Where its connections come from; empty: those of [`Sources`].
    pub addresses: Vec<AddressRange>,
}
