//! Compares what clients see with what they were to be sent.

use crate::kit::delivery::Delivery;

use super::{Conn, Expected, Model, Queue, code_bit};

impl Model {
    pub(crate) fn expect(&mut self, conn: u32, topic: u8, line: Delivery, is_broadcast: bool) {
        let horizon = self.seq;
        if let Some((queue, expected)) = self.expected(conn, topic, line, horizon, is_broadcast) {
            queue.own.push_back(expected);
        }
    }

    /// An interceptor is to send something, or lets it pass; `seq` numbers the broadcast.
    pub(crate) fn expect_out(
        &mut self,
        conn: u32,
        topic: u8,
        line: Delivery,
        seq: u64,
        passes: bool,
    ) {
        if let Some((Queue { out, .. }, expected)) = self.expected(conn, topic, line, seq, true) {
            let at = out.iter().rposition(|it| it.horizon <= seq).map_or(0, |at| at + 1);
            out.insert(at, Expected { passes, ..expected });
        }
    }

    /// What a socket is to be sent, and its queue; `None` if the serializer cannot encode it.
    fn expected(
        &mut self,
        conn: u32,
        topic: u8,
        line: Delivery,
        horizon: u64,
        is_broadcast: bool,
    ) -> Option<(&mut Queue, Expected)> {
        let (step, heard) = (self.step, self.presence.heard);
        let is_binary = self.made(line.id).is_some_and(|it| it.is_binary);
        let wire = self.conn(conn).filter(|it| it.is_open)?.wire;
        if is_binary && self.has_no_form(wire, topic, &line) {
            return None;
        }
        let (line, is_optional, passes) = (line.on(wire), false, false);
        let expected = Expected { line, step, horizon, is_broadcast, is_optional, passes, heard };
        let queue = self.conns[conn as usize].queues.get_mut(usize::from(topic))?;
        Some((queue, expected))
    }

    /// A client receives a delivery; `sum` is that of its payload.
    pub(crate) fn seen(&mut self, conn: u32, topic: Option<u8>, line: Delivery, sum: u32) {
        if self.made(line.id).is_some_and(|it| it.sum != sum) {
            return self.fail("payload", format!("socket {conn} hears {line:?} in other bytes"));
        }
        let Some(it) = self.conn_mut(conn) else { return };
        if it.has_said_close {
            return self.fail("said after close", format!("socket {conn} hears {line:?}"));
        }
        let queue = topic.and_then(|topic| it.queues.get_mut(usize::from(topic)));
        let Some(queue) = queue else {
            return self.fail("unexpected", format!("socket {conn} hears {line:?}: no such topic"));
        };
        match take(queue, line) {
            Ok(heard) => {
                self.counts.count("things heard", 1);
                if let Some((chan, record)) = heard {
                    self.presence_heard(chan, record);
                }
                if self.made(line.id).is_some_and(|it| it.event < 3) {
                    self.counts.count("deliveries", 1);
                }
            }
            Err(rule) => {
                let next = queue.own.front().map(|it| (it.line, it.horizon, it.step));
                let out = queue.out.front().map(|it| (it.line, it.horizon, it.step));
                let topic = topic.map(|it| self.topics.name(it).to_owned()).unwrap_or_default();
                let text = format!(
                    "socket {conn} hears on {topic}: {line:?}\n  next is {next:?}\n  or {out:?} \
                     (line, horizon, step)"
                );
                self.fail(rule, text);
            }
        }
    }

    pub(crate) fn seen_close(&mut self, conn: u32, code: Option<u16>) {
        let Some(it) = self.conn_mut(conn) else { return };
        if it.has_said_close {
            return self.fail("said after close", format!("socket {conn} is closed twice"));
        }
        it.has_said_close = true;
        if it.is_open {
            return self.fail("close", format!("socket {conn} is open and hears {code:?}"));
        }
        if let Some(code) = code.filter(|code| it.codes & code_bit(*code) == 0) {
            let codes = it.codes;
            return self.fail("close code", format!("socket {conn}: {code} ({codes:b} may be)"));
        }
        if let Some((topic, expected)) = missing(it) {
            let topic = self.topics.name(topic).to_owned();
            let text = format!("socket {conn} is closed before it heard on {topic}: {expected:?}");
            self.fail("lost", text);
        }
    }

    pub(crate) fn at_rest(&mut self) {
        for conn in 0..self.conns.len() as u32 {
            let is_there = |it: &&Conn| it.is_open && !it.is_lost;
            let missing = self.conn(conn).filter(is_there).and_then(missing);
            if let Some((topic, expected)) = missing {
                let topic = self.topics.name(topic).to_owned();
                self.fail("lost", format!("socket {conn} has not heard on {topic}: {expected:?}"));
                return;
            }
            if self.conn(conn).is_some_and(|it| is_there(&it) && it.is_disconnected) {
                return self.fail("disconnect", format!("socket {conn} is still open"));
            }
        }
        let waits = |it: &super::Chan| {
            let relays = || it.relays.iter().any(|it| !it.pending.is_empty());
            it.life == super::Life::Live && (!it.pending.is_empty() || relays())
        };
        if let Some(at) = self.chans.iter().position(waits) {
            self.fail("lost", format!("channel {at} has not seen all broadcasts for it"));
        }
    }
}

fn missing(conn: &Conn) -> Option<(u8, Expected)> {
    let is_missing = |it: &&Expected| {
        let before = conn.is_open || it.step < conn.closed_step;
        before && !it.is_optional && !(it.is_broadcast && conn.is_cut)
    };
    conn.queues.iter().enumerate().find_map(|(topic, queue)| {
        let out = queue.out.iter().filter(|_| conn.is_open);
        let found = queue.own.iter().chain(out).find(is_missing)?;
        Some((topic as u8, *found))
    })
}

/// Removes a delivery from those that may come now; returns its event of presence, if it is one.
fn take(queue: &mut Queue, line: Delivery) -> Result<Option<(u32, u32)>, &'static str> {
    let own = queue.own.front().filter(|it| it.line == line);
    if let Some(Expected { horizon, heard, .. }) = own {
        let (horizon, heard) = (*horizon, *heard);
        let mut before = queue.out.iter().take_while(|it| it.horizon < horizon);
        if before.all(|it| it.is_optional) {
            queue.own.pop_front();
            return Ok(heard);
        }
        // An interceptor may have passed on a delivery that looks the same.
    }
    let optional = queue.out.iter().take_while(|it| it.is_optional).count();
    if let Some(at) = queue.out.iter().take(optional + 1).position(|it| it.line == line) {
        return Ok(queue.out.drain(..=at).next_back().and_then(|it| it.heard));
    }
    let later = queue.own.iter().chain(&queue.out).any(|it| it.line == line);
    Err(if later { "order" } else { "unexpected" })
}
