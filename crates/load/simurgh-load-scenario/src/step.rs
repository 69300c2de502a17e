//! The steps of a session.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Dialect, Template, VarId};

/// One step of a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Line of the scenario's text, from 1; 0 if there is none.
    pub line: u32,
    /// The action.
    pub act: Act,
}

/// The action of a [`Step`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Act {
    /// Opens the user's WebSocket; an open one is closed first.
    Connect(Connect),
    /// Sends one message.
    Send(Message),
    /// Waits for a frame.
    Wait(Wait),
    /// Stays open and receives frames for a time.
    Receive(Receive),
    /// Waits for a think time.
    Think(Think),
    /// Joins a topic (Phoenix).
    Join(Push),
    /// Pushes an event to a topic (Phoenix).
    Push(Push),
    /// Leaves a topic (Phoenix).
    Leave(Push),
    /// One HTTP request on the user's kept-alive connection.
    Http(Box<Http>),
    /// Sends bytes over plain TCP (Tsung's `raw`).
    Raw(Message),
    /// Closes the WebSocket in an orderly way and waits for the server's close.
    Close {
        /// Close code, 1000 by default.
        code: u16,
    },
    /// Sets variables.
    Set(Set),
    /// A loop with a counter.
    For(For),
    /// A loop over the elements of a list variable.
    ForEach(ForEach),
    /// A loop that runs while (or until) a condition holds, checked after each round.
    Repeat(Repeat),
    /// Steps under a condition.
    If {
        /// The steps run if it holds.
        condition: Condition,
        /// The steps.
        steps: Vec<Step>,
    },
    /// Steps that are timed together, with think times.
    Transaction {
        /// Statistic `tr_NAME`.
        name: String,
        /// The steps.
        steps: Vec<Step>,
    },
    /// Continues with another server or another protocol (Tsung's `change_type`).
    Switch(Switch),
    /// Waits until this many users have reached this step or another of its kind (Tsung's
    /// `wait_global`, and what follows a reply with its `ack="global"`).
    Gather {
        /// The number of users.
        users: u64,
        /// Continues after this time, which is counted as an error; `None`: no limit.
        timeout: Option<Duration>,
    },
    /// Marks a moment for another user's [`Act::InteractionReceive`].
    InteractionSend {
        /// The statistic.
        id: String,
    },
    /// Records the time since the last [`Act::InteractionSend`] of that name.
    InteractionReceive {
        /// The statistic.
        id: String,
    },
    /// Waits for any unsolicited frame (`wait_bidi`).
    WaitServer,
    /// Ends the user.
    Abort,
    /// Ends the run.
    AbortRun,
}

/// Opens a WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connect {
    /// Path and query. For Phoenix the `vsn` parameter is added unless it is there.
    pub path: Template,
    /// `Origin`; `None`: none in native files, the host in Tsung's.
    pub origin: Option<Template>,
    /// Subprotocols to offer.
    pub subprotocols: Vec<String>,
    /// Whether to offer permessage-deflate.
    pub compress: bool,
    /// Payload of the client's first message, if its protocol has one.
    pub payload: Option<Template>,
    /// Further headers.
    pub headers: Vec<(String, Template)>,
    /// Checks and captures on the answer's head.
    pub answer: Answer,
}

/// Sends a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The message.
    pub data: Template,
    /// As a binary frame.
    pub binary: bool,
    /// How its answer is recognised.
    pub reply: Reply,
    /// Captures and checks of the answer.
    pub answer: Answer,
}

/// How the answer to a message is recognised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// No answer is expected.
    #[default]
    None,
    /// The first frame that comes.
    First,
    /// The first frame that matches.
    Match(Matcher),
}

/// A condition on frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Matcher {
    /// Any frame.
    #[default]
    Any,
    /// The whole text is this.
    Is(Template),
    /// The text contains this.
    Contains(Template),
    /// A regular expression matches; values in it are literal text.
    Regex(Template),
    /// The value at a JSON path equals this (compared as text), in one of the frame's documents.
    Json {
        /// For example `payload.status`.
        path: String,
        /// The value.
        is: Template,
    },
    /// A Channels message of this topic and event.
    Event {
        /// `None`: any topic.
        topic: Option<Template>,
        /// The event.
        event: Template,
    },
    /// A Channels message with this key in a list of presences.
    Presence {
        /// `None`: any topic.
        topic: Option<Template>,
        /// The list.
        list: PresenceList,
        /// The key.
        key: Template,
    },
}

/// The lists in presence messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PresenceList {
    /// All presences: the payload of `presence_state`.
    State,
    /// New and changed presences: `joins` of `presence_diff`.
    Joins,
    /// Presences that left or changed: `leaves` of `presence_diff`.
    Leaves,
}

/// The processing of an answer, in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The longest time to wait; `None`: [`Timeouts::reply`](super::Timeouts::reply).
    pub timeout: Option<Duration>,
    /// Values taken from it.
    pub captures: Vec<Capture>,
    /// Checks of it.
    pub checks: Vec<Check>,
}

/// Takes a value from an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    /// The variable; several matches make a list.
    pub var: VarId,
    /// The place of the value.
    pub from: Find,
    /// HTML entities such as `&amp;` are decoded.
    pub decode_html: bool,
}

/// A place in an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Find {
    /// The first group of a regular expression.
    Regex(String),
    /// A JSON path.
    Json(String),
    /// An HTTP header, or a field of it (`set-cookie/session`).
    Header(String),
    /// The `value` of the HTML form field with this name.
    FormField(String),
}

/// Checks an answer against a pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// For `match.log`; `-` by default.
    pub name: String,
    /// Regular expression; variables in it are replaced first.
    pub pattern: Template,
    /// The action is taken when the pattern is found (`true`) or is not found.
    pub when_found: bool,
    /// The action.
    pub action: Action,
    /// HTTP: the head is not searched.
    pub skip_headers: bool,
}

/// The action of a [`Check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Counts and continues.
    Continue,
    /// Also writes a line to `match.log`.
    #[default]
    Log,
    /// Also writes the answer to a file.
    Dump,
    /// Ends the user.
    Abort,
    /// Ends the run.
    AbortRun,
    /// Restarts the session.
    Restart {
        /// Maximum number of restarts.
        times_max: u32,
    },
    /// Repeats the request, and the `back` requests before it.
    Loop {
        /// Maximum number of repetitions.
        times_max: u32,
        /// Wait before each.
        sleep: Duration,
        /// Requests to go back beyond this one.
        back: u32,
    },
}

/// Waits for a frame that has come since the last wait, or comes now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The awaited frame.
    pub matcher: Matcher,
    /// Captures and checks of the frame.
    pub answer: Answer,
}

/// Receives frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Receive {
    /// The longest time; `None`: to the end of the run.
    pub time: Option<Think>,
    /// Ends when this many frames have matched.
    pub count: Option<u64>,
    /// The frames that count; `None`: all.
    pub matcher: Option<Matcher>,
}

/// The length of a think time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Think {
    /// Always the same.
    Constant(Duration),
    /// Uniformly distributed between both.
    Uniform(Duration, Duration),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
    /// Seconds in a variable; exponentially distributed if the second field is `true`.
    Var(VarId, bool),
}

/// A Channels message of the client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Push {
    /// The topic.
    pub topic: Template,
    /// The event; not used by join and leave.
    pub event: Template,
    /// JSON text, or bytes.
    pub payload: Template,
    /// The payload is bytes (V2 only).
    pub binary: bool,
    /// Waits for the reply, matched by ref.
    pub await_reply: bool,
    /// A reply with another status is an error; `None`: any status is accepted.
    pub status: Option<String>,
    /// The presence that it changes: a join or a push makes the server track the user under this
    /// key, a leave ends that. Times of `presence_state` and `presence_diff` count from here.
    pub presence: Option<Template>,
    /// Captures and checks of the reply's `response`.
    pub answer: Answer,
}

/// An HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Http {
    /// For example `GET`.
    pub method: String,
    /// Path and query; a full URL switches the user's server, as in Tsung.
    pub url: Template,
    /// HTTP/1.0.
    pub version_1_0: bool,
    /// Further headers.
    pub headers: Vec<(String, Template)>,
    /// The body.
    pub body: Option<Template>,
    /// Cookies of the scenario, in addition to those of the server.
    pub cookies: Vec<(String, Template)>,
    /// Credentials.
    pub auth: Option<HttpAuth>,
    /// Any other status is an error; empty: 4xx and 5xx are counted, not failed.
    pub status: Vec<u16>,
    /// Captures and checks of the answer.
    pub answer: Answer,
}

/// HTTP credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpAuth {
    /// Digest instead of basic (RFC 7616, MD5).
    pub digest: bool,
    /// User.
    pub user: Template,
    /// Password.
    pub password: Template,
    /// Digest: the realm; if empty, from the last 401.
    pub realm: Option<Template>,
    /// Digest: the server's nonce, likewise.
    pub nonce: Option<Template>,
    /// Digest: the server's opaque value, likewise.
    pub opaque: Option<Template>,
    /// Digest: the quality of protection, likewise.
    pub qop: Option<String>,
}

/// Sets variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Set {
    /// The variables; several only for [`Value::Row`] and [`Value::Target`].
    pub vars: Vec<VarId>,
    /// Their value.
    pub value: Value,
}

/// A value for variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// A rendered template.
    Template(Template),
    /// Fields of a row of a file, one for each variable.
    Row {
        /// Index of the file.
        file: u16,
        /// Between the fields.
        delimiter: String,
        /// Takes a random row instead of the next one (counted over all users).
        random: bool,
    },
    /// The value of a JSON path in a variable.
    Json {
        /// The variable.
        from: VarId,
        /// The path.
        path: String,
    },
    /// Host and port of the user's server.
    #[default]
    Target,
}

/// A loop with a counter; runs at least once if `at_least_once`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct For {
    /// The variable of the counter.
    pub var: Option<VarId>,
    /// First value.
    pub from: Bound,
    /// Last value.
    pub to: Bound,
    /// Step.
    pub step: i64,
    /// Each round begins this long after the previous one began, whatever the server does; a round
    /// that cannot is late, and its latencies count from when it should have begun.
    pub every: Option<Duration>,
    /// Tsung's `for` always runs at least once.
    pub at_least_once: bool,
    /// The body.
    pub steps: Vec<Step>,
}

/// A number, or a variable that holds one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bound {
    /// The number.
    Number(i64),
    /// The variable.
    Var(VarId),
    /// No end.
    #[default]
    Endless,
}

/// A loop over a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForEach {
    /// The variable for the current element.
    pub var: VarId,
    /// The list.
    pub list: VarId,
    /// Only elements that this regular expression matches.
    pub include: Option<String>,
    /// And only those that this one does not match.
    pub exclude: Option<String>,
    /// The body.
    pub steps: Vec<Step>,
}

/// A loop with its condition at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// For messages.
    pub name: String,
    /// Rounds at most.
    pub times_max: u64,
    /// The body.
    pub steps: Vec<Step>,
    /// Checked after each round.
    pub condition: Condition,
    /// Repeats *until* it holds, instead of while.
    pub until: bool,
}

/// Compares a variable with a text: as numbers if both are, else as text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The variable.
    pub var: VarId,
    /// Index of the element, from 0, if it is a list.
    pub element: Option<u32>,
    /// The comparison.
    pub compare: Compare,
    /// The other side.
    pub value: Template,
}

/// A comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// Equal.
    #[default]
    Eq,
    /// Not equal.
    Neq,
    /// Greater.
    Gt,
    /// Greater or equal.
    Gte,
    /// Less.
    Lt,
    /// Less or equal.
    Lte,
}

impl Compare {
    /// The operators; longer ones come before their prefixes.
    pub(crate) const SIGNS: [(&str, Self); 6] = [
        ("==", Self::Eq),
        ("!=", Self::Neq),
        (">=", Self::Gte),
        ("<=", Self::Lte),
        (">", Self::Gt),
        ("<", Self::Lt),
    ];

    /// Splits a condition such as `>= 3` into its sign and value.
    pub(crate) fn split(text: &str) -> Option<(Self, &str)> {
        let text = text.trim();
        let mut signs = Self::SIGNS.iter();
        signs.find_map(|(sign, compare)| Some((*compare, text.strip_prefix(sign)?.trim())))
    }

    /// Whether two values compare so.
    pub fn holds<T: PartialOrd>(self, left: T, right: T) -> bool {
        match self {
            Self::Eq => left == right,
            Self::Neq => left != right,
            Self::Gt => left > right,
            Self::Gte => left >= right,
            Self::Lt => left < right,
            Self::Lte => left <= right,
        }
    }

    /// The comparison with its sides exchanged.
    #[must_use]
    pub fn turned(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::Lte => Self::Gte,
            Self::Gt => Self::Lt,
            Self::Gte => Self::Lte,
            Self::Eq | Self::Neq => self,
        }
    }
}

/// Another server or protocol for the rest of the session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// The dialect from here on.
    pub dialect: Dialect,
    /// Index in [`Scenario::targets`](super::Scenario::targets); weight 0 if only for switches.
    pub target: usize,
    /// The open connection is stored for a later `restore`.
    pub store: bool,
    /// The stored connection is used again.
    pub restore: bool,
}
