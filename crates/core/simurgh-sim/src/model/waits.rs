//! Channels whose handlers wait and hold their socket, and work that ends with its channel.

use std::collections::VecDeque;

use simurgh_core::Reason;

use super::{Action, Call, Input, Life, Model};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// The channel that holds the socket, and since which tick.
    pub(crate) full: Option<(u32, u32)>,
    pub(crate) is_reading: bool,
    pub(crate) has_shut: bool,
    /// The value that may have been kept with it as it closed.
    assigned_perhaps: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The latest message: later ones have greater numbers.
    last: Option<u32>,
    behind: VecDeque<u32>,
    tasks: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) chan: u32,
    /// It has ended by itself, and may be dropped.
    pub(crate) is_finished: bool,
    pub(crate) is_handler: bool,
    is_told: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handler {
    pub(crate) chan: u32,
    pub(crate) task: u32,
}

impl Model {
    pub(crate) fn waits(&self, conn: u32) -> bool {
        self.conn(conn).is_some_and(|it| {
            it.awaiting.is_some() || it.waits.full.is_some() || it.waits.is_reading
        })
    }

    /// A message is handed in: its socket must not wait for anything.
    pub(crate) fn must_not_wait(&mut self, conn: u32) {
        if self.waits(conn) {
            let waits = self.conn(conn).map(|it| it.waits);
            self.fail("held", format!("socket {conn} is read while it waits: {waits:?}"));
        }
    }

    pub(super) fn came(&mut self, chan: u32, id: u32) {
        let Some(it) = self.chan_mut(chan) else { return };
        let last = it.work.last.replace(id);
        if last.is_some_and(|last| last >= id) {
            self.fail("handler", format!("channel {chan}: message {id} comes behind {last:?}"));
        }
    }

    pub(crate) fn waits_behind(&mut self, chan: u32, id: u32) {
        self.chans[chan as usize].work.behind.push_back(id);
    }

    pub(crate) fn begins(&mut self, chan: u32, id: u32, task: u32) {
        let next = self.chan_mut(chan).and_then(|it| it.work.behind.pop_front());
        if next != Some(id) {
            self.fail("handler", format!("channel {chan} begins on {id} where {next:?} is next"));
        }
        self.tasks[task as usize].is_handler = true;
        self.handlers.push(Handler { chan, task });
    }

    pub(super) fn is_done(&mut self, chan: u32, task: u32) {
        self.counts.count("handlers that waited", 1);
        let task_of = self.tasks.get_mut(task as usize).filter(|it| it.chan == chan);
        if task_of.is_none_or(|it| std::mem::replace(&mut it.is_finished, true)) {
            let text = format!("channel {chan}: handler {task} is done again, or not its own");
            self.fail("handler", text);
        }
    }

    pub(crate) fn reads(&mut self, chan: u32, assigned: Option<u32>) {
        let Some(conn) = self.chan(chan).map(|it| it.conn) else { return };
        let expected = self.conn(conn).and_then(|it| it.assigned);
        let perhaps = self.conn(conn).and_then(|it| it.waits.assigned_perhaps);
        if assigned != expected && (perhaps.is_none() || assigned != perhaps) {
            self.fail("assigned", format!("channel {chan} reads {assigned:?}, not {expected:?}"));
        }
    }

    pub(crate) fn next_assigned(&mut self) -> u32 {
        self.counts.count("values kept with sockets", 1);
        self.counts.of("values kept with sockets") as u32
    }

    pub(crate) fn new_task(&mut self, chan: u32) -> u32 {
        self.tasks.push(Task { chan, ..Task::default() });
        self.tasks.len() as u32 - 1
    }

    /// Work is notified that its channel has ended, or dropped because it has finished.
    pub(crate) fn task_told(&mut self, task: u32) {
        let Some(it) = self.tasks.get_mut(task as usize) else { return };
        if std::mem::replace(&mut it.is_told, true) {
            self.fail("linked", format!("work {task} is told its end again"));
        }
        self.now.told.push(task);
    }

    /// A value is assigned to a socket; that of a closed socket is never read.
    pub(super) fn assigns(&mut self, conn: u32, call: Call, in_closing: bool, value: u32) {
        let has_closed = self.now.closing.contains(&conn) && !in_closing;
        if call == Call::Terminate(Reason::Closed) {
            return;
        }
        let Some(it) = self.conn_mut(conn) else { return };
        if !has_closed {
            it.assigned = Some(value);
        } else if matches!(call, Call::HandleOut(_) | Call::Terminate(_)) {
            // The channel may catch up, or end by that, before its socket closes for another
            // reason.
            it.waits.assigned_perhaps = Some(value);
        }
    }

    pub(super) fn reached(&mut self, chan: u32, conn: u32, call: Call, effect: Action) {
        // The last effects of a channel on a closing socket reach only others.
        if call == Call::Terminate(Reason::Closed) {
            if let Action::Link(task) = effect {
                self.now.unlinked.push(task);
            }
            return;
        }
        let is_there = self.is_live(chan) && !self.now.closing.contains(&conn);
        match effect {
            Action::Link(task) => {
                self.counts.count("works linked", 1);
                match self.chan_mut(chan).filter(|_| is_there) {
                    Some(it) => it.work.tasks.push(task),
                    None => self.now.unlinked.push(task),
                }
            }
            Action::Hold if is_there && !self.waits(conn) => {
                let since_tick = self.now.tick;
                self.conns[conn as usize].waits.full = Some((chan, since_tick));
                self.counts.count("holds", 1);
                self.now.waits.push(conn);
            }
            Action::Proceed => self.proceeds(chan, conn),
            _ => {}
        }
    }

    pub(super) fn proceeds(&mut self, chan: u32, conn: u32) {
        let full = self.conn_mut(conn).map(|it| &mut it.waits.full);
        if let Some(full) = full.and_then(|it| it.take_if(|(it, _)| *it == chan)) {
            self.now.proceeded.push(full);
            self.now.waits.push(conn);
        }
    }

    /// Whether a channel may be ended because it has held its socket for too long.
    pub(super) fn is_overdue(&mut self, chan: u32, conn: u32) -> bool {
        let Some(Waits { full, has_shut, .. }) = self.conn(conn).map(|it| it.waits) else {
            return false;
        };
        let [usual, shut] = self.waits_max;
        let (longest, tick) = (if has_shut { shut } else { usual }, self.now.tick);
        // A broadcast that it intercepted may have made it proceed and hold anew: too late.
        let mut all = full.iter().chain(&self.now.proceeded);
        let is_late = all.any(|(it, since)| *it == chan && tick.wrapping_sub(*since) > longest);
        let is_overdue = is_late && self.input == Input::Tick;
        self.counts.count("of them overdue", u64::from(is_overdue));
        is_overdue
    }

    /// A channel ends: its work was notified, and it no longer holds its socket.
    pub(super) fn work_ends(&mut self, chan: u32, conn: u32) {
        let Some(it) = self.chan_mut(chan) else { return };
        let Work { tasks, behind, .. } = std::mem::take(&mut it.work);
        self.counts.count("messages behind one that ended", behind.len() as u64);
        let is_told = |it: &u32| self.tasks.get(*it as usize).is_some_and(|it| it.is_told);
        if let Some(task) = tasks.iter().find(|it| !is_told(it)) {
            self.fail("linked", format!("channel {chan} ends, its work {task} was not told"));
        }
        self.proceeds(chan, conn);
    }

    pub(super) fn check_told(&mut self) {
        let [mut told, mut unlinked] =
            [&mut self.now.told, &mut self.now.unlinked].map(std::mem::take);
        for &task in &told {
            let Some(it) = self.tasks.get(task as usize) else { continue };
            let lives = self.chan(it.chan).is_some_and(|it| it.life == Life::Live);
            if lives && !it.is_finished && !unlinked.contains(&task) {
                let text = format!("work {task} is told its end, channel {} lives", it.chan);
                self.fail("linked", text);
                break;
            }
        }
        let is_kept = |it: &&u32| self.tasks.get(**it as usize).is_some_and(|it| !it.is_told);
        if let Some(task) = unlinked.iter().find(is_kept) {
            self.fail("linked", format!("work {task} goes on without a channel"));
        }
        told.clear();
        unlinked.clear();
        (self.now.told, self.now.unlinked) = (told, unlinked);
    }

    pub(crate) fn untold(&self) -> usize {
        self.tasks.iter().filter(|it| !it.is_told).count()
    }
}
