//! Records of the lifecycle log of a partition.
//!
//! ```text
//! u8 version = 1; u64, u64 term; u8 kind, and then
//! take        u32 epoch; u64 n; u8 again
//! notice      a notice
//! delivered   hook; u64 n
//! dead        hook; u64 n; a notice; u16 status; u16 length, body
//! cleared     hook; u64 n
//! past        a notice
//! a notice    u64 n; ref; key; u64 since; u16 length, node; u8 reason, 0: start; [u64 at]
//! a key       u8 kind; u16 length, topic; u16 length, user
//! ```

use core::fmt;

use simurgh_data::prelude::*;
use simurgh_history::Epoch;
use simurgh_presence::PhxRef;

use crate::codec::{Malformed, Reader, put_key, put_text, put_u64};
use crate::key::{Key, Kind, Reason};

const VERSION: u8 = 1;

/// Which coordinator wrote a record. Of two terms with one count, the first in the log counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// One more than that of the coordinator before.
    pub count: u64,
    /// The node.
    pub node: u64,
}

/// One continuous period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Unique.
    pub id: PhxRef,
    /// What it is about.
    pub key: Key,
    /// When it began, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The start or the end of a stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its number in the partition, growing in the order of delivery.
    pub n: u64,
    /// The stay.
    pub stay: Stay,
    /// The name of the node where the stay began, or ended; empty if that is unknown.
    pub node: Arc<str>,
    /// When the stay ended in milliseconds since 1970, and why; `None` for a start.
    pub end: Option<(u64, Reason)>,
}

impl Notice {
    /// Its type, as `member.joined`.
    pub fn name(&self) -> &'static str {
        match (self.stay.key.kind(), self.end.is_some()) {
            (Kind::Member, false) => "member.joined",
            (Kind::Member, true) => "member.left",
            (Kind::Topic, false) => "topic.occupied",
            (Kind::Topic, true) => "topic.vacated",
            (Kind::User, false) => "user.connected",
            (Kind::User, true) => "user.disconnected",
        }
    }

    /// When it happened, in milliseconds since 1970.
    pub fn at_ms(&self) -> u64 {
        self.end.map_or(self.stay.since_ms, |(at_ms, _)| at_ms)
    }

    /// About the memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.stay.key.topic().len() + self.stay.key.user().len() + 64
    }
}

/// Its id: that of the stay, with `t` before a topic's and `u` before a user's, and `-1` for a
/// start or `-2` for an end.
impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.stay.key.kind() {
            Kind::Member => "",
            Kind::Topic => "t",
            Kind::User => "u",
        };
        write!(f, "{kind}{}-{}", self.stay.id, if self.end.is_some() { 2 } else { 1 })
    }
}

/// A notice that a hook does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The notice.
    pub notice: Arc<Notice>,
    /// The last status; 0 without an answer.
    pub status: u16,
    /// The beginning of the last answer.
    pub body: Box<str>,
}

/// What a coordinator decides or notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A coordinator begins: records of earlier terms do not count from here on.
    Take {
        /// The epoch of the log when it was written. It does not count in a log of another epoch:
        /// the broker has lost records, and a late one may be the first of the new log.
        epoch: Epoch,
        /// The highest number so far.
        n: u64,
        /// The log was compacted: it is the same take as before.
        is_again: bool,
    },
    /// A stay starts or ends.
    Notice(Arc<Notice>),
    /// A hook has accepted all notices up to this.
    Delivered {
        /// The name of the hook.
        hook: Arc<str>,
        /// The number.
        n: u64,
    },
    /// A hook does not accept a notice.
    Dead {
        /// The name of the hook.
        hook: Arc<str>,
        /// The notice.
        letter: DeadLetter,
    },
    /// A dead letter was delivered after all, or deleted.
    Cleared {
        /// The name of the hook.
        hook: Arc<str>,
        /// The number of its notice.
        n: u64,
    },
}

/// A record with its term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The term of its writer.
    pub term: Term,
    /// The record.
    pub record: Record,
}

impl Entry {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_u64(out, self.term.count);
        put_u64(out, self.term.node);
        match &self.record {
            Record::Take { epoch, n, is_again } => {
                out.push(1);
                out.extend_from_slice(&epoch.get().to_le_bytes());
                put_u64(out, *n);
                out.push((*is_again).into());
            }
            Record::Notice(notice) => {
                out.push(2);
                put_notice(out, notice);
            }
            Record::Delivered { hook, n } => put_number(out, 3, hook, *n),
            Record::Dead { hook, letter } => {
                put_number(out, 4, hook, letter.notice.n);
                put_notice(out, &letter.notice);
                out.extend_from_slice(&letter.status.to_le_bytes());
                put_text(out, &letter.body);
            }
            Record::Cleared { hook, n } => put_number(out, 5, hook, *n),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// It is malformed, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.u8()? != VERSION {
            return Err(Malformed);
        }
        let term = Term { count: reader.u64()?, node: reader.u64()? };
        let record = match reader.u8()? {
            1 => {
                let epoch = Epoch::new(u32::from_le_bytes(reader.array()?)).ok_or(Malformed)?;
                Record::Take { epoch, n: reader.u64()?, is_again: reader.flag()? }
            }
            2 => Record::Notice(notice(&mut reader)?.into()),
            kind @ 3..=5 => {
                let (hook, n) = (reader.text()?.into(), reader.u64()?);
                match kind {
                    3 => Record::Delivered { hook, n },
                    4 => Record::Dead { hook, letter: letter(&mut reader)? },
                    _ => Record::Cleared { hook, n },
                }
            }
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(Self { term, record })
    }
}

fn put_number(out: &mut Vec<u8>, kind: u8, hook: &str, n: u64) {
    out.push(kind);
    put_text(out, hook);
    put_u64(out, n);
}

fn put_notice(out: &mut Vec<u8>, notice: &Notice) {
    let Notice { n, stay, node, end } = notice;
    put_u64(out, *n);
    out.extend_from_slice(&stay.id.to_bytes());
    put_key(out, &stay.key);
    put_u64(out, stay.since_ms);
    put_text(out, node);
    out.push(end.map_or(0, |(_, reason)| reason as u8));
    if let Some((at_ms, _)) = end {
        put_u64(out, *at_ms);
    }
}

fn notice(reader: &mut Reader<'_>) -> Result<Notice, Malformed> {
    let (n, id) = (reader.u64()?, PhxRef::from_bytes(reader.array()?));
    let stay = Stay { id, key: reader.key()?, since_ms: reader.u64()? };
    let node = reader.text()?.into();
    let end = match reader.u8()? {
        0 => None,
        reason => Some((reader.u64()?, Reason::from_repr(reason).ok_or(Malformed)?)),
    };
    Ok(Notice { n, stay, node, end })
}

fn letter(reader: &mut Reader<'_>) -> Result<DeadLetter, Malformed> {
    let notice = notice(reader)?.into();
    Ok(DeadLetter { notice, status: reader.u16()?, body: reader.text()?.into() })
}
