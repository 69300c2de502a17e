//! The model of scenarios in all languages.
//!
//! The parsers (`toml`, `simurgh_load_tsung`) make a [`Scenario`] of their text and check it
//! (`check`); the engine compiles it; `toml::write` prints it. It is plain data, and complete: it
//! contains the files that it names, so an agent on another host needs nothing else.
//!
//! Times are `Duration`s; rates are users per second.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use simurgh_load_client::http::basic_of_url;
use simurgh_load_client::{AddressRange, Sources, Tls};

use super::{Compare, Diagnostic, Matcher, Protocol, Row, Step, Template};

/// A runnable scenario, with its warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The scenario.
    pub scenario: Scenario,
    /// Repairs, and ignored parts of the text.
    pub warnings: Vec<Diagnostic>,
}

/// A whole run: the servers, the source addresses, the users, and the thresholds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// For titles and file names.
    pub name: String,
    /// Seed of arrivals, choices and random values, so that a run can be repeated.
    pub seed: u64,
    /// Servers; users are spread over those with a weight. Never empty.
    pub targets: Vec<Target>,
    /// How users are spread over several servers.
    pub spread: Spread,
    /// Where connections come from.
    pub sources: Sources,
    /// When users arrive.
    pub load: Load,
    /// The kinds of users; one is chosen by weight on arrival. Never empty.
    pub sessions: Vec<Session>,
    /// Names of the variables; a [`VarId`](super::VarId) is an index. Each user has its own values.
    pub vars: Vec<String>,
    /// Data files with their rows.
    pub files: Vec<DataFile>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// The conditions that decide the exit status.
    pub pass: Vec<Threshold>,
    /// Hosts that run users; empty: only this host.
    pub agents: Vec<Agent>,
    /// TLS of `wss` and `https` targets.
    pub tls: Tls,
    /// User agents of HTTP requests without one, by weight.
    pub user_agents: Vec<(String, f64)>,
    /// Set for a Tsung file.
    pub tsung: Option<TsungRun>,
}

impl Scenario {
    /// How much users remember of stamped messages. Scenarios that cut connections or resume joins
    /// need `exact`, because they measure missing messages.
    pub fn follow_stamps(&self) -> Follow {
        let counts = |session: &Session| session.drop.is_some() || session.resume;
        match self.sessions.iter().any(counts) {
            true => Follow::Exactly,
            false => self.load.follow_stamps,
        }
    }
}

/// Settings of the run that only a Tsung file has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TsungRun {
    /// The DTD's `version` attribute, kept for the copy of the log.
    pub version: Option<String>,
    /// `backend="fullstats"`: each sample is written to `tsung-fullstats.log`.
    pub full_stats: bool,
    /// `dumptraffic`: the traffic that is written to `tsung.dump`.
    pub dump: Dump,
    /// `http_use_server_as_proxy`: the servers are proxies, and get whole URLs.
    #[serde(default)]
    pub proxy: bool,
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
    /// The resolved address; connections never use the name.
    pub address: SocketAddr,
    /// `wss`/`https`.
    pub tls: bool,
    /// `user:password` as in the URL, percent-encoded; sent with every request, shown nowhere.
    pub credentials: Option<String>,
    /// Share of the users.
    pub weight: f64,
}

impl Target {
    /// Whether both are the same server, addressed by the same user.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { weight: other.weight, ..self.clone() } == *other
    }

    /// The value of `Authorization` for the credentials.
    pub fn authorization(&self) -> Option<String> {
        self.credentials.as_deref().map(basic_of_url)
    }
}

/// How users are spread over servers by weight. A step that names a server binds its user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spread {
    /// Connections take servers in turn, as behind a balancer.
    #[default]
    RoundRobin,
    /// Users take servers in turn, and each keeps its own for all its connections.
    Sticky,
    /// As `Sticky`, but after a failed, cut or refused connection the user takes the next.
    Elsewhere,
    /// Each user chooses a random server and keeps it, as in Tsung.
    Random,
}

/// When users arrive, and when the run ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// In order.
    pub phases: Vec<Phase>,
    /// Users with an appointment (Tsung's `<user>`).
    pub appointments: Vec<Appointment>,
    /// How often the phases are repeated after the first time.
    pub repeat: u32,
    /// The run ends after this time, with all users; `None`: when the last user has ended.
    pub duration: Option<Duration>,
    /// The maximum number of users of the run.
    pub users_max: Option<u64>,
    /// How much users remember of the stamped messages that they receive.
    pub follow_stamps: Follow,
}

/// How much users remember of the stamped messages that they receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// Nothing.
    #[default]
    Nothing,
    /// The last one (8 bytes), so that a message that comes twice or out of order is recognised
    /// unless another sender's comes between.
    Last,
    /// All numbers of each sender at each topic: missing, duplicate, disordered ones are known.
    Exactly,
}

/// A span of time with one kind of arrivals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// For tables; `1`, `2`, … where the text has none.
    pub name: String,
    /// How long users arrive.
    pub duration: Duration,
    /// How they arrive.
    pub arrivals: Arrivals,
    /// The maximum number of users that arrive in this phase.
    pub users_max: Option<u64>,
    /// The next phase waits until all users have ended.
    pub wait_for_users: bool,
    /// It begins when the run is resumed by a command.
    pub hold: bool,
    /// Weights instead of the sessions' own, by index; `None` or an empty list: their own.
    pub weights: Vec<Option<f64>>,
}

/// How users arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arrivals {
    /// Open model: users per second, changing evenly, whatever the server does.
    Open {
        /// At the start of the phase.
        from: f64,
        /// At its end.
        to: f64,
        /// Random intervals (a Poisson process) instead of even ones.
        poisson: bool,
    },
    /// Closed model: users at a time, changing evenly; one that ends is replaced at once.
    Closed {
        /// At the start of the phase.
        from: u64,
        /// At its end.
        to: u64,
    },
}

impl Default for Arrivals {
    fn default() -> Self {
        Self::Closed { from: 0, to: 0 }
    }
}

/// One user that arrives at a given time after the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Appointment {
    /// Since the start of the run.
    pub at: Duration,
    /// Index of the session.
    pub session: usize,
}

/// One kind of user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// For tables.
    pub name: String,
    /// Share of the users; probabilities are weights that add up to 100.
    pub weight: f64,
    /// How replies are recognised.
    pub dialect: Dialect,
    /// The transport of messages.
    pub transport: Transport,
    /// Messages that users send at an interval while they are connected.
    pub heartbeat: Option<Heartbeat>,
    /// Answers to frames, whatever step a user is at; the first rule that matches is used.
    pub rules: Vec<AnswerRule>,
    /// How to reconnect when a connection is lost.
    pub reconnect: Option<Reconnect>,
    /// Cuts of connections.
    pub drop: Option<Drop>,
    /// Joins send the position of the last message, and request the messages after it.
    pub resume: bool,
    /// Bytes per second that a user reads at most (Tsung's `rate_limit`).
    pub read_rate_max: Option<u64>,
    /// In order.
    pub steps: Vec<Step>,
}

/// A message that users send at an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The interval.
    pub every: Duration,
    /// The frame; `None`: Phoenix's heartbeat, whose reply is awaited.
    pub send: Option<FrameOut>,
}

/// A frame that users send without a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameOut {
    /// The payload.
    pub data: Template,
    /// As a binary frame.
    pub binary: bool,
}

/// Answers frames of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerRule {
    /// The frames.
    pub when: Matcher,
    /// The answer to each.
    pub send: FrameOut,
}

/// The protocol of a session over a WebSocket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dialect {
    /// Frames are those of the scenario.
    #[default]
    Raw,
    /// Phoenix Channels: replies are matched by ref.
    Phoenix(Vsn),
    /// As in Tsung: the first frame after a message is its reply.
    Tsung,
    /// The protocol of another server, whose messages are handled as Phoenix's.
    Other(Protocol),
}

impl Dialect {
    /// The protocol of another server than Phoenix.
    pub fn other(self) -> Option<Protocol> {
        match self {
            Self::Other(protocol) => Some(protocol),
            Self::Raw | Self::Phoenix(_) | Self::Tsung => None,
        }
    }

    /// The parameters of a connect's query, which a scenario may set itself.
    pub fn query(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Phoenix(Vsn::V1) => &[("vsn", "1.0.0")],
            Self::Phoenix(Vsn::V2) => &[("vsn", "2.0.0")],
            Self::Other(Protocol::SocketIo) => &[("EIO", "4"), ("transport", "websocket")],
            Self::Other(Protocol::Pusher) => &[("protocol", "7"), ("client", "simurgh-load")],
            Self::Raw | Self::Tsung | Self::Other(_) => &[],
        }
    }

    /// Whether users join topics.
    pub fn has_topics(self) -> bool {
        matches!(self, Self::Phoenix(_) | Self::Other(_))
    }
}

/// The transport of messages between a user and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A WebSocket.
    #[default]
    WebSocket,
    /// Phoenix's long polling: GETs that wait for messages, POSTs that send some.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reconnect {
    /// The first wait.
    pub min: Duration,
    /// The longest wait.
    pub max: Duration,
    /// Attempts in a row; `None`: for ever.
    pub attempts_max: Option<u32>,
    /// Joins the same topics before the session continues (Phoenix); other sessions repeat the
    /// steps between the connect and the interrupted one.
    pub rejoin: bool,
}

/// Deliberate cuts of connections at random times, as in a mobile network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    /// From one cut to the next.
    pub every: Duration,
    /// How long the user is away.
    pub away: Duration,
    /// How the connection ends.
    pub how: Cut,
    /// How long the reconnect takes after that, shortest and longest; drawn each time.
    pub reconnect: (Duration, Duration),
    /// Only during this phase; `None`: always.
    pub phase: Option<usize>,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// By a reset, which the server notices at once.
    #[default]
    Reset,
    /// The user stops reading without closing. The socket stays open until the user has
    /// reconnected, and is reset then.
    Silence,
    /// Half of the users by a reset, the others silently.
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
    /// The path it was read from, as written; `None` if the rows are in the scenario.
    pub path: Option<String>,
    /// Its rows, without line ends and trailing empty lines.
    pub rows: Vec<Row>,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeouts {
    /// Time to connect, TLS included.
    pub connect: Duration,
    /// Time for the answer to an upgrade, a join, a push, a message, a request.
    pub reply: Duration,
    /// Attempts to connect after the first has failed (Tsung's `max_retries`).
    pub retries: u32,
    /// Wait before an attempt, times its number (Tsung's `retry_timeout`).
    pub retry_wait: Duration,
}

impl Reconnect {
    /// For sessions with cuts that do not set it.
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
    /// A figure's name, see `simurgh_load_scenario::figures`.
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

/// Another host that takes part. A scenario's agents run all users, in parts by their weights; the
/// controlling host only runs some as an agent called [`LOCAL_AGENT`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Where `simurgh load agent` listens, host and port; or [`LOCAL_AGENT`].
    pub address: String,
    /// The agent's token; `$NAME` names an environment variable. [`LOCAL_AGENT`] needs none.
    pub token: String,
    /// Share of the users, as exact as whole numbers of workers allow; 0: takes no part.
    pub weight: f64,
    /// Source addresses of its connections; empty: those of [`Sources`].
    pub addresses: Vec<AddressRange>,
}
