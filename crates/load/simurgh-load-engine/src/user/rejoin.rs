//! Which joins a user repeats once its connection is back.
//!
//! In most sessions each join has a topic of its own, the same for all users. Their Channels
//! session says then what they have joined, and a user who waits holds nothing else for it; only a
//! join that the server has ended or refused is noted. In other sessions all joins are noted as
//! they are made.

use super::{Machine, Outputs, User};
use crate::program::{ChannelCommand, Op, Program, SessionInfo};

impl<O: Outputs> Machine<'_, O> {
    /// Remembers a join for the time after a reconnect, where the session has one; and forgets it
    /// when its topic is left.
    pub(super) fn note_join(&mut self, command: ChannelCommand) {
        let (program, at) = (self.program, self.user.at);
        let Some(session) = rejoining(program, at) else { return };
        let topic = |at: u32| match program.op(at) {
            Op::Channel(channel) => Some(&channel.push.topic),
            _ => None,
        };
        match (command, &mut self.user.extra) {
            (ChannelCommand::Join, _) if !session.plain_joins => add(self.user, at),
            // What is being repeated is to be repeated whole if the connection is lost again.
            (ChannelCommand::Join, Some(extra)) if extra.resume.is_none() => {
                extra.joins.retain(|join| *join != at);
            }
            (ChannelCommand::Leave, Some(extra)) => {
                extra.joins.retain(|join| topic(*join) != topic(at));
            }
            _ => {}
        }
        self.user.tidy();
    }

    /// The server has refused or ended the channel of a topic, which is wanted all the same once
    /// the connection is a new one.
    pub(super) fn note_ended(&mut self, topic: &str) {
        let (program, at) = (self.program, self.user.at);
        if rejoining(program, at).is_some_and(|session| session.plain_joins) {
            let is_it = |at: &u32| program.joined_topic(*at).is_some_and(|known| **known == *topic);
            if let Some(join) = program.joins_of(at).find(is_it) {
                add(self.user, join);
            }
        }
    }
}

/// Notes all that a user has joined: its connection is lost, and its Channels session with it.
pub(super) fn note_all(program: &Program, user: &mut User) {
    // Begun before, it was noted before.
    if user.is_resuming() || !rejoining(program, user.at).is_some_and(|it| it.plain_joins) {
        return;
    }
    let noted = user.extra.as_mut().map(|extra| std::mem::take(&mut extra.joins));
    let noted = noted.unwrap_or_default();
    let wanted = |at: &u32| noted.contains(at) || holds(program, user, *at);
    let joins: Vec<u32> = program.joins_of(user.at).filter(wanted).collect();
    user.extra().joins = joins;
}

/// All that was to be repeated has been: what a user holds again need not be noted.
pub(super) fn forget_held(program: &Program, user: &mut User) {
    if let Some(mut extra) = user.extra.take() {
        if rejoining(program, user.at).is_some_and(|session| session.plain_joins) {
            extra.joins.retain(|at| !holds(program, user, *at));
        }
        user.extra = Some(extra);
    }
}

/// What is repeated after a reconnect, the last step first: the joins of a Channels session, in
/// others all messages between the connect and where it was.
pub(super) fn steps(ops: &[Op], connect_at: u32, at: u32, joins: &[u32]) -> Vec<u32> {
    if !joins.is_empty() {
        return joins.iter().rev().copied().collect();
    }
    let between = (connect_at + 1..at).rev();
    between.filter(|at| matches!(ops.get(*at as usize), Some(Op::Send(_)))).collect()
}

/// The session at an operation, if its joins are repeated after a reconnect.
fn rejoining(program: &Program, at: u32) -> Option<&SessionInfo> {
    let session = program.session_at(at)?;
    session.reconnect.is_some_and(|policy| policy.rejoin).then_some(session)
}

fn holds(program: &Program, user: &User, join: u32) -> bool {
    program.joined_topic(join).is_some_and(|topic| user.client.holds(topic))
}

fn add(user: &mut User, join: u32) {
    let joins = &mut user.extra().joins;
    if !joins.contains(&join) {
        joins.push(join);
    }
}
