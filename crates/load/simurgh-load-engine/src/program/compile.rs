//! Compiles a scenario to a program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use regex::Regex;
use simurgh_load_record::{Metric, MetricId, Names};
use simurgh_load_scenario::answer::CompiledMatcher;
use simurgh_load_scenario::{
    Act, AnswerRule, Bound, Condition, Dialect, For, ForEach, Generated, Message, Part, Push,
    Receive, Reconnect, Repeat, Reply, Scenario, Session, Step, Template, VarId,
};
use simurgh_proto::session::client::Topic;

use super::reachable::waits_until;
use super::{
    AnswerOp, ChannelCommand, ChannelOp, EachOp, LoopOp, Op, Paced, Program, ReceiveOp, Register,
    RepeatOp, RuleOp, SendOp, SessionInfo,
};

/// Compiles a checked scenario. Fails only for an invalid pattern, which `check` excludes.
pub(crate) fn compile(scenario: &Arc<Scenario>) -> Result<Program, String> {
    let mut compiler = Compiler {
        names: Names::of(scenario),
        ops: Vec::new(),
        registers: 0,
        repeats: BTreeMap::new(),
        is_tsung: false,
        used: BTreeSet::new(),
        stamped: false,
        tracks: false,
    };
    let mut sessions = Vec::new();
    for session in &scenario.sessions {
        compiler.registers = 0;
        compiler.repeats.clear();
        compiler.is_tsung = session.dialect == Dialect::Tsung;
        compiler.used = session.vars();
        compiler.stamped |= session.templates().into_iter().any(has_stamp);
        let reconnect = session.reconnect.or(session.drop.map(|_| Reconnect::AFTER_DROP));
        let start = compiler.here();
        compiler.steps(&session.steps)?;
        compiler.push(Op::End);
        sessions.push(SessionInfo {
            start,
            session: Session { steps: Vec::new(), reconnect, ..session.clone() },
            plain_joins: plain_joins(session),
            rules: session.rules.iter().map(rule_op).collect::<Result<_, _>>()?,
            waits_until: waits_until(&compiler.ops, start),
        });
    }
    let Compiler { ops, stamped, tracks, .. } = compiler;
    let throttled = sessions.iter().any(|session| session.read_rate_max.is_some());
    let scenario = Arc::clone(scenario);
    Ok(Program { scenario, ops, sessions, stamped, tracks, throttled })
}

struct Compiler {
    names: Names,
    ops: Vec<Op>,
    registers: Register,
    /// The registers of `Repeat`s by name.
    repeats: BTreeMap<String, Register>,
    is_tsung: bool,
    /// Variables that are more than counters of loops.
    used: BTreeSet<VarId>,
    stamped: bool,
    tracks: bool,
}

impl Compiler {
    fn here(&self) -> u32 {
        u32::try_from(self.ops.len()).unwrap_or(u32::MAX)
    }

    fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn register(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    /// The metric of a transaction or interaction.
    fn timed(&self, name: &str) -> MetricId {
        // All names were collected from this scenario.
        self.names.transaction(name).unwrap_or(MetricId::from(Metric::Session))
    }

    fn steps(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            self.act(&step.act).map_err(|error| match step.line {
                0 => error,
                line => format!("line {line}: {error}"),
            })?;
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<(), String> {
        let op = match act {
            Act::Connect(connect) => Op::Connect(connect.clone(), AnswerOp::new(&connect.answer)?),
            Act::Send(message) => Op::Send(send(message)?),
            Act::Raw(message) => Op::Raw(send(message)?),
            Act::Wait(wait) => {
                Op::Wait(CompiledMatcher::new(&wait.matcher)?, AnswerOp::new(&wait.answer)?)
            }
            Act::Receive(receive) => Op::Receive(receive_op(receive)?),
            Act::Think(think) => Op::Think(*think),
            Act::Join(push) => Op::Channel(self.channel(ChannelCommand::Join, push)?),
            Act::Push(push) => Op::Channel(self.channel(ChannelCommand::Push, push)?),
            Act::Leave(push) => Op::Channel(self.channel(ChannelCommand::Leave, push)?),
            Act::Http(http) => Op::Http(http.clone(), AnswerOp::new(&http.answer)?),
            Act::Close { code } => Op::Close(*code),
            Act::Set(set) => Op::Set(set.clone()),
            Act::For(each) => return self.counted(each),
            Act::ForEach(each) => return self.each(each),
            Act::Repeat(repeat) => return self.repeat(repeat),
            Act::If { condition, steps } => return self.condition(condition, steps),
            Act::Transaction { name, steps } => {
                let metric = self.timed(name);
                self.push(Op::TransactionStart(metric));
                self.steps(steps)?;
                Op::TransactionEnd(metric)
            }
            Act::Switch(switch) => Op::Switch(switch.clone()),
            Act::Gather { users, timeout } => Op::Gather(*users, *timeout),
            Act::InteractionSend { id } => Op::InteractionSend(id.clone()),
            Act::InteractionReceive { id } => Op::InteractionReceive(id.clone(), self.timed(id)),
            Act::WaitServer => Op::WaitServer,
            Act::Abort => Op::Abort,
            Act::AbortRun => Op::AbortRun,
        };
        self.push(op);
        Ok(())
    }

    fn channel(&mut self, command: ChannelCommand, push: &Push) -> Result<ChannelOp, String> {
        self.tracks |= push.presence.is_some();
        let topic = push.topic.constant().and_then(|topic| str::from_utf8(topic).ok());
        let topic = topic.map(Topic::from);
        Ok(ChannelOp { command, push: push.clone(), topic, answer: AnswerOp::new(&push.answer)? })
    }

    /// `start: LoopStart(end); body; end: LoopEnd(body)`.
    fn counted(&mut self, each: &For) -> Result<(), String> {
        let round = self.register();
        let paced = each.every.map(|every| {
            let (began, rested) = (self.register(), self.register());
            Paced { every, began, rested }
        });
        let start = self.here();
        let mut ends = LoopOp {
            round,
            to: start + 1,
            var: each.var.filter(|var| self.used.contains(var)),
            first: each.from,
            last: each.to,
            step: each.step,
            paced,
            at_least_once: each.at_least_once,
        };
        self.push(Op::LoopStart(ends.clone()));
        self.steps(&each.steps)?;
        self.push(Op::LoopEnd(ends.clone()));
        ends.to = self.here();
        self.replace(start, Op::LoopStart(ends));
        Ok(())
    }

    /// `start: Each(end); body; Jump(start); end:`.
    fn each(&mut self, each: &ForEach) -> Result<(), String> {
        let regex = |pattern: &Option<String>| pattern.as_deref().map(Regex::new).transpose();
        let include = regex(&each.include).map_err(|error| error.to_string())?;
        let exclude = regex(&each.exclude).map_err(|error| error.to_string())?;
        let round = self.register();
        let start = self.here();
        self.push(Op::Jump(start));
        self.steps(&each.steps)?;
        self.push(Op::Jump(start));
        let each = ForEach { steps: Vec::new(), ..each.clone() };
        let end = self.here();
        self.replace(start, Op::Each(Box::new(EachOp { each, include, exclude, round, end })));
        Ok(())
    }

    fn repeat(&mut self, repeat: &Repeat) -> Result<(), String> {
        // Tsung counts by name, and on when the loop begins again.
        let known = self.repeats.get(&repeat.name).filter(|_| self.is_tsung).copied();
        let round = known.unwrap_or_else(|| self.register());
        self.repeats.insert(repeat.name.clone(), round);
        // Elsewhere the register is set to 0 each time the loop begins.
        if !self.is_tsung {
            self.push(Op::LoopStart(LoopOp {
                round,
                to: self.here() + 1,
                var: None,
                first: Bound::Number(0),
                last: Bound::Endless,
                step: 1,
                paced: None,
                at_least_once: true,
            }));
        }
        let body = self.here();
        self.steps(&repeat.steps)?;
        self.push(Op::RepeatEnd(RepeatOp {
            round,
            body,
            times_max: repeat.times_max,
            condition: repeat.condition.clone(),
            until: repeat.until,
        }));
        Ok(())
    }

    fn condition(&mut self, condition: &Condition, steps: &[Step]) -> Result<(), String> {
        let start = self.here();
        self.push(Op::Jump(start));
        self.steps(steps)?;
        let end = self.here();
        self.replace(start, Op::Unless(condition.clone(), end));
        Ok(())
    }

    fn replace(&mut self, at: u32, op: Op) {
        if let Some(place) = self.ops.get_mut(at as usize) {
            *place = op;
        }
    }
}

fn send(message: &Message) -> Result<SendOp, String> {
    let matcher = match &message.reply {
        Reply::Match(matcher) => Some(CompiledMatcher::new(matcher)?),
        Reply::None | Reply::First => None,
    };
    let answer = AnswerOp::new(&message.answer)?;
    Ok(SendOp { message: message.clone(), matcher, answer })
}

fn receive_op(receive: &Receive) -> Result<ReceiveOp, String> {
    let matcher = receive.matcher.as_ref().map(CompiledMatcher::new).transpose()?;
    Ok(ReceiveOp { receive: receive.clone(), matcher })
}

fn rule_op(rule: &AnswerRule) -> Result<RuleOp, String> {
    Ok(RuleOp { when: CompiledMatcher::new(&rule.when)?, send: rule.send.clone() })
}

/// Whether each join of a session has a separate topic, the same for all users.
fn plain_joins(session: &Session) -> bool {
    let (mut topics, mut plain) = (BTreeSet::new(), true);
    session.each_step(&mut |step| {
        if let Act::Join(push) = &step.act {
            plain &= push.topic.constant().is_some_and(|topic| topics.insert(topic.to_vec()));
        }
    });
    plain
}

fn has_stamp(template: &Template) -> bool {
    template.parts.iter().any(|part| matches!(part, Part::Value(Generated::Stamp)))
}
