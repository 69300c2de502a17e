//! What users run: the sessions of a scenario, flattened to one list of operations.
//!
//! A user's place is an index into it. Loops are jumps, and what a loop has to remember is a
//! register of the user: the round, counted from 0, and for a paced loop when it began.

use std::sync::Arc;
use std::time::Duration;

use simurgh_load_record::{Count, Metric, MetricId};
use simurgh_load_scenario::answer::CompiledMatcher;
use simurgh_load_scenario::{
    Bound, Condition, Connect, Dialect, ForEach, Http, Message, Part, Push, Receive, Scenario,
    Session, Set, Switch, Template, Think, VarId, Vsn,
};
use simurgh_proto::serializer::Serializer;
use simurgh_proto::session::client::Topic;

mod answer;
mod compile;
mod reachable;

pub(crate) use answer::AnswerOp;
pub(crate) use compile::compile;

/// A compiled scenario. Each worker has its own.
pub(crate) struct Program {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) ops: Vec<Op>,
    /// For each operation, whether a `Wait` can still come after it: frames are kept for one.
    pub(crate) waits_ahead: Vec<bool>,
    pub(crate) sessions: Vec<SessionInfo>,
    /// Somebody writes stamps, so frames are searched for them.
    pub(crate) stamped: bool,
    /// Some step has the key of a presence that it changes, so diffs are parsed.
    pub(crate) tracks: bool,
    /// Some session reads slowly.
    pub(crate) throttled: bool,
}

/// What holds for the whole of a session.
pub(crate) struct SessionInfo {
    /// Its first operation; it goes on to the next session's.
    pub(crate) start: u32,
    /// As the scenario has it, without its steps.
    pub(crate) session: Session,
    /// Each join has a topic of its own, the same for all users: what was joined can be seen from a
    /// user's Channels session, and need not be noted.
    pub(crate) plain_joins: bool,
}

impl std::ops::Deref for SessionInfo {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// A register of a user.
pub(crate) type Register = u16;

pub(crate) enum Op {
    Connect(Connect, AnswerOp),
    Send(SendOp),
    Raw(SendOp),
    Wait(CompiledMatcher, AnswerOp),
    Receive(ReceiveOp),
    Think(ThinkOp),
    Channel(ChannelOp),
    Http(Box<Http>, AnswerOp),
    Close(u16),
    Set(Set),
    LoopStart(LoopOp),
    LoopEnd(LoopOp),
    /// Takes the next element, or jumps when there is none.
    Each(Box<EachOp>),
    RepeatEnd(RepeatOp),
    /// Jumps unless the condition holds.
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
    /// For [`simurgh_load_scenario::Reply::Match`].
    pub(crate) matcher: Option<CompiledMatcher>,
    pub(crate) answer: AnswerOp,
}

pub(crate) struct ReceiveOp {
    pub(crate) receive: Receive,
    pub(crate) matcher: Option<CompiledMatcher>,
}

#[derive(Clone, Copy)]
pub(crate) struct ThinkOp {
    pub(crate) think: Think,
    /// When it ends cannot be seen, since only another one follows: it may end late.
    pub(crate) lazy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelCommand {
    Join,
    Push,
    Leave,
}

impl ChannelCommand {
    /// As what its reply is timed, as what it is counted, and its name.
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
    /// The topic, where it is the same for all.
    pub(crate) topic: Option<Topic>,
    pub(crate) answer: AnswerOp,
}

/// A counted loop; the same for its start and its end.
#[derive(Clone, Debug)]
pub(crate) struct LoopOp {
    pub(crate) round: Register,
    /// Where the loop stands, for the other end: the body's first operation at the end, the first
    /// after the loop at the start.
    pub(crate) to: u32,
    pub(crate) var: Option<VarId>,
    pub(crate) first: Bound,
    pub(crate) last: Bound,
    pub(crate) step: i64,
    /// Time from one round's start to the next, and the register of when this one began.
    pub(crate) every: Option<(Duration, Register)>,
    pub(crate) at_least_once: bool,
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
    /// One in which nobody does anything.
    pub(crate) fn empty(scenario: &Arc<Scenario>) -> Self {
        Self {
            scenario: Arc::clone(scenario),
            ops: Vec::new(),
            waits_ahead: Vec::new(),
            sessions: Vec::new(),
            stamped: false,
            tracks: false,
            throttled: false,
        }
    }

    pub(crate) fn op(&self, at: u32) -> &Op {
        // Every path ends in `End`; a place beyond the list would too.
        self.ops.get(at as usize).unwrap_or(&Op::End)
    }

    /// Whether a user who stands at an operation may come to a `Wait` after it.
    pub(crate) fn waits_after(&self, at: u32) -> bool {
        self.waits_ahead.get(at as usize).copied().unwrap_or(false)
    }

    /// The topic of a join that is the same for all users.
    pub(crate) fn joined_topic(&self, at: u32) -> Option<&Topic> {
        match self.op(at) {
            Op::Channel(op) if op.command == ChannelCommand::Join => op.topic.as_ref(),
            _ => None,
        }
    }

    /// The joins of the session that an operation belongs to.
    pub(crate) fn joins_of(&self, at: u32) -> impl Iterator<Item = u32> {
        let session = self.session_of(at);
        let place = |session: usize| self.sessions.get(session).map(|session| session.start);
        let (start, end) = (place(session), place(session + 1));
        let all = start.unwrap_or(0)..end.unwrap_or(self.ops.len() as u32);
        all.filter(|at| self.joined_topic(*at).is_some())
    }

    /// What holds for the session that an operation belongs to.
    pub(crate) fn session_at(&self, at: u32) -> Option<&SessionInfo> {
        self.sessions.get(self.session_of(at))
    }

    /// The number of the session that an operation belongs to.
    pub(crate) fn session_of(&self, at: u32) -> usize {
        self.sessions.partition_point(|session| session.start <= at).saturating_sub(1)
    }
}

/// The Channels serializer of a dialect.
pub(crate) fn serializer(dialect: Dialect) -> Option<Serializer> {
    match dialect {
        Dialect::Phoenix(Vsn::V1) => Some(Serializer::V1),
        Dialect::Phoenix(Vsn::V2) => Some(Serializer::V2),
        Dialect::Raw | Dialect::Tsung => None,
    }
}

/// The text of a template that is the same for all users.
pub(crate) fn constant(template: &Template) -> Option<&[u8]> {
    match template.parts.as_slice() {
        [] => Some(b""),
        [Part::Literal(text)] => Some(text),
        _ => None,
    }
}
