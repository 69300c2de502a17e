//! Compiled programs of users: the sessions of a scenario as one list of operations.
//!
//! A user's position is an index into it. Loops are jumps. A loop's state is in registers of the
//! user: the round, counted from 0, and for a paced loop when it began.

use std::sync::Arc;
use std::time::Duration;

use simurgh_load_record::{Count, Metric, MetricId};
use simurgh_load_scenario::answer::CompiledMatcher;
use simurgh_load_scenario::{
    Bound, Condition, Connect, Dialect, ForEach, FrameOut, Http, Message, Push, Receive, Scenario,
    Session, Set, Switch, Think, VarId, Vsn,
};
use simurgh_proto::serializer::Serializer;
use simurgh_proto::session::client::Topic;

mod answer;
mod compile;
mod reachable;

pub(crate) use answer::AnswerOp;
pub(crate) use compile::compile;

/// A compiled scenario. Each worker has one.
pub(crate) struct Program {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) ops: Vec<Op>,
    pub(crate) sessions: Vec<SessionInfo>,
    /// The scenario writes stamps, so frames are searched for them.
    pub(crate) stamped: bool,
    /// A step has the key of a presence that it changes, so diffs are parsed.
    pub(crate) tracks: bool,
    pub(crate) throttled: bool,
}

pub(crate) struct SessionInfo {
    /// Its first operation; its last is before the next session's first.
    pub(crate) start: u32,
    pub(crate) session: Session,
    /// Each join has a separate topic, the same for all users: a user's Channels session shows what
    /// was joined, and joins need not be noted.
    pub(crate) plain_joins: bool,
    pub(crate) rules: Vec<RuleOp>,
    /// A `Wait` can only follow before this operation: only there are frames kept.
    pub(crate) waits_until: u32,
}

/// Answers frames of the server.
pub(crate) struct RuleOp {
    pub(crate) when: CompiledMatcher,
    pub(crate) send: FrameOut,
}

impl std::ops::Deref for SessionInfo {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

pub(crate) type Register = u16;

pub(crate) enum Op {
    Connect(Connect, AnswerOp),
    Send(SendOp),
    Raw(SendOp),
    Wait(CompiledMatcher, AnswerOp),
    Receive(ReceiveOp),
    Think(Think),
    Channel(ChannelOp),
    Http(Box<Http>, AnswerOp),
    Close(u16),
    Set(Set),
    LoopStart(LoopOp),
    LoopEnd(LoopOp),
    Each(Box<EachOp>),
    RepeatEnd(RepeatOp),
    Unless(Condition, u32),
    Jump(u32),
    TransactionStart(MetricId),
    TransactionEnd(MetricId),
    Switch(Switch),
    Gather(u64, Option<Duration>),
    InteractionSend(String),
    InteractionReceive(String, MetricId),
    WaitServer,
    Abort,
    AbortRun,
    End,
}

pub(crate) struct SendOp {
    pub(crate) message: Message,
    pub(crate) matcher: Option<CompiledMatcher>,
    pub(crate) answer: AnswerOp,
}

pub(crate) struct ReceiveOp {
    pub(crate) receive: Receive,
    pub(crate) matcher: Option<CompiledMatcher>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelCommand {
    Join,
    Push,
    Leave,
}

impl ChannelCommand {
    /// Metric and counter of its reply, and its name.
    pub(crate) const fn figures(self) -> (Metric, Count, &'static str) {
        match self {
            Self::Join => (Metric::Join, Count::Joins, "join"),
            Self::Push => (Metric::Push, Count::Pushes, "push"),
            Self::Leave => (Metric::Leave, Count::Leaves, "leave"),
        }
    }
}

pub(crate) struct ChannelOp {
    pub(crate) command: ChannelCommand,
    pub(crate) push: Push,
    /// The topic, if it is the same for all users.
    pub(crate) topic: Option<Topic>,
    pub(crate) answer: AnswerOp,
}

/// A counted loop; used at its start and its end.
#[derive(Clone, Debug)]
pub(crate) struct LoopOp {
    pub(crate) round: Register,
    /// The other end: at the end the body's first operation, at the start the one after the loop.
    pub(crate) to: u32,
    pub(crate) var: Option<VarId>,
    pub(crate) first: Bound,
    pub(crate) last: Bound,
    pub(crate) step: i64,
    pub(crate) paced: Option<Paced>,
    pub(crate) at_least_once: bool,
}

/// A loop whose rounds begin at fixed times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paced {
    /// From one round's start to the next.
    pub(crate) every: Duration,
    /// This round's start.
    pub(crate) began: Register,
    /// All rests of the user before it, µs.
    pub(crate) rested: Register,
}

pub(crate) struct EachOp {
    pub(crate) each: ForEach,
    pub(crate) include: Option<regex::Regex>,
    pub(crate) exclude: Option<regex::Regex>,
    pub(crate) round: Register,
    pub(crate) end: u32,
}

pub(crate) struct RepeatOp {
    pub(crate) round: Register,
    pub(crate) body: u32,
    pub(crate) times_max: u64,
    pub(crate) condition: Condition,
    pub(crate) until: bool,
}

impl Program {
    pub(crate) fn empty(scenario: &Arc<Scenario>) -> Self {
        Self {
            scenario: Arc::clone(scenario),
            ops: Vec::new(),
            sessions: Vec::new(),
            stamped: false,
            tracks: false,
            throttled: false,
        }
    }

    pub(crate) fn op(&self, at: u32) -> &Op {
        // Every path ends in `End`, and so does an index beyond the list.
        self.ops.get(at as usize).unwrap_or(&Op::End)
    }

    pub(crate) fn waits_after(&self, at: u32) -> bool {
        self.session_at(at).is_some_and(|session| at < session.waits_until)
    }

    pub(crate) fn joined_topic(&self, at: u32) -> Option<&Topic> {
        match self.op(at) {
            Op::Channel(op) if op.command == ChannelCommand::Join => op.topic.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn joins_of(&self, at: u32) -> impl Iterator<Item = u32> {
        let session = self.session_of(at);
        let place = |session: usize| self.sessions.get(session).map(|session| session.start);
        let (start, end) = (place(session), place(session + 1));
        let all = start.unwrap_or(0)..end.unwrap_or(self.ops.len() as u32);
        all.filter(|at| self.joined_topic(*at).is_some())
    }

    pub(crate) fn session_at(&self, at: u32) -> Option<&SessionInfo> {
        self.sessions.get(self.session_of(at))
    }

    pub(crate) fn session_of(&self, at: u32) -> usize {
        self.sessions.partition_point(|session| session.start <= at).saturating_sub(1)
    }
}

pub(crate) fn serializer(dialect: Dialect) -> Option<Serializer> {
    match dialect {
        Dialect::Phoenix(Vsn::V1) => Some(Serializer::V1),
        Dialect::Phoenix(Vsn::V2) => Some(Serializer::V2),
        Dialect::Raw | Dialect::Tsung | Dialect::Other(_) => None,
    }
}
