//! Plain counters, which only grow.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::named::named;

named! {
    /// Plain counters. Errors are counted by [`super::ErrorKind`] instead.
    Count {
        /// Users that were due, started or not.
        UsersDue,
        /// Users started.
        UsersStarted,
        /// Users that reached the end of their session.
        UsersFinished,
        /// Users that ended before the end of their session.
        UsersAborted,
        /// Users that started more than 10 ms late.
        LateArrivals,
        /// Steps that began more than 10 ms late.
        LateSteps,
        /// Ticks of workers, one each 20 ms while they have users.
        Ticks,
        /// Ticks of workers that came more than 10 ms late.
        LateTicks,
        /// Connections tried.
        ConnectsTried,
        /// TCP connections made (with TLS where it is used).
        Connects,
        /// Connections ended, by either side.
        Disconnects,
        /// Attempts to connect again after a lost connection.
        Reconnects,
        /// Upgrades answered with 101.
        Upgrades,
        /// Requests sent that expect an answer: upgrades, joins, pushes, messages, HTTP.
        Requests,
        /// Messages sent without waiting for an answer.
        RequestsNoAck,
        /// Requests that ended without an answer: timed out, or their connection ended.
        RequestsUnanswered,
        /// Those of them whose answer had not come when the run ended.
        RequestsOpen,
        /// Text frames received.
        FramesInText,
        /// Binary frames received.
        FramesInBinary,
        /// Text frames sent.
        FramesOutText,
        /// Binary frames sent.
        FramesOutBinary,
        /// Frames received that no step waited for.
        FramesUnsolicited,
        /// Pings received, of WebSockets and of protocols.
        PingsIn,
        /// Pongs received.
        PongsIn,
        /// Close frames received.
        ClosesIn,
        /// Joins sent.
        Joins,
        /// Joins answered with `ok`.
        JoinsOk,
        /// Leaves sent.
        Leaves,
        /// Pushes sent.
        Pushes,
        /// Heartbeats sent.
        Heartbeats,
        /// Frames received that a rule of `answer` answered.
        Answers,
        /// Phoenix replies with status `ok`.
        RepliesOk,
        /// Phoenix replies with any other status.
        RepliesError,
        /// Presence lists received.
        PresenceStates,
        /// Messages received about presences that joined or left.
        PresenceDiffs,
        /// Polls sent: GETs of long-poll sessions.
        Polls,
        /// POSTs sent in long-poll sessions.
        Posts,
        /// Broadcasts sent with a stamp.
        Broadcasts,
        /// Stamped broadcasts received.
        Deliveries,
        /// Broadcasts received twice by the same user.
        DeliveriesDuplicate,
        /// Broadcasts received after a later one of the same sender.
        DeliveriesOutOfOrder,
        /// Broadcasts that came before they were sent, by the clocks, because of clock skew.
        DeliveriesBeforeSent,
        /// Expected deliveries that did not come.
        DeliveriesMissing,
        /// Stamps of another run received.
        StampsForeign,
        /// Broadcasts whose first and last receiver are known.
        BroadcastsComplete,
        /// Deliveries of broadcasts beyond those that are followed one by one; only in `delivery`.
        BroadcastsUntracked,
        /// Deliveries of a broadcast that already counted as complete, 2 s after the delivery
        /// before: they are in `delivery`, not in `last_receiver`.
        DeliveriesAfterwards,
        /// Stamped pushes times the other users at their topics, as far as known: `follow_stamps`.
        DeliveriesExpected,
        /// Expected deliveries that came, each counted once.
        DeliveriesOnce,
        /// Stamped pushes to users before their join, or before the first that they should get.
        DeliveriesUnexpected,
        /// Stamped pushes beyond those that are followed exactly; they are not expected.
        BroadcastsUnnumbered,
        /// HTTP answers whose body could not be searched as a whole: it was too long, or compressed
        /// in another way than gzip and deflate.
        AnswersCut,
        /// Stamped pushes that the server should have answered with `ok` and did not.
        BroadcastsUnconfirmed,
        /// Unconfirmed pushes that a user of the same host got; then all users should get them.
        BroadcastsUnconfirmedHeard,
        /// Connections cut on purpose by a reset.
        DropsReset,
        /// Connections cut on purpose silently.
        DropsSilent,
        /// Resuming joins that were answered with all missed messages.
        ResumesRecovered,
        /// Missed messages that the server announced in answers to such joins.
        ResumedMessages,
        /// Gaps reported by the server: the missed messages are too old.
        GapsExpired,
        /// Gaps: too many messages came after the missed ones.
        GapsOverwritten,
        /// Gaps: the server was short of memory.
        GapsEvicted,
        /// Gaps: the history was deleted.
        GapsPurged,
        /// Gaps: the history is a different one.
        GapsEpoch,
        /// Gaps: more messages were missed than are sent again.
        GapsTooMany,
        /// Gaps: more bytes were missed than are sent again.
        GapsTooLarge,
        /// Gaps: the history cannot be reached.
        GapsUnavailable,
        /// Gaps: messages were lost between servers.
        GapsLost,
        /// Gaps for another reason, or none.
        GapsOther,
        /// Bytes received, everything above TCP (TLS: after decryption).
        BytesIn,
        /// Bytes sent.
        BytesOut,
        /// Checks on answers that found their pattern.
        Matches,
        /// Checks on answers that did not find their pattern.
        NoMatches,
        /// Lines for `match.log` beyond the limit of one second.
        MatchLinesDropped,
        /// HTTP answers.
        HttpAnswers,
        /// HTTP answers with a status of 400 or more.
        HttpFailures,
        /// Samples and lines of traffic dropped beyond the limit of one second.
        SamplesDropped,
    }
}

impl Count {
    /// All reasons of gaps that servers give, with their counters.
    pub const GAPS: [(&'static str, Self); 10] = [
        ("expired", Self::GapsExpired),
        ("overwritten", Self::GapsOverwritten),
        ("evicted", Self::GapsEvicted),
        ("purged", Self::GapsPurged),
        ("epoch", Self::GapsEpoch),
        ("too_many", Self::GapsTooMany),
        ("too_large", Self::GapsTooLarge),
        ("unavailable", Self::GapsUnavailable),
        ("lost", Self::GapsLost),
        ("other", Self::GapsOther),
    ];

    /// The counter of gaps with this reason.
    pub fn gap(reason: &str) -> Self {
        let known = Self::GAPS.iter().find(|(known, _)| *known == reason);
        known.map_or(Self::GapsOther, |(_, count)| *count)
    }
}

/// One value for each [`Count`]; as JSON an object without the zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts([u64; Count::ALL.len()]);

impl Counts {
    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// Counters that are not 0, in the order of [`Count::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Count, u64)> + '_ {
        Count::ALL.iter().copied().zip(self.0).filter(|(_, n)| *n > 0)
    }

    /// Frames received, text and binary.
    pub fn frames_in(&self) -> u64 {
        self[Count::FramesInText].saturating_add(self[Count::FramesInBinary])
    }

    /// Frames sent, text and binary.
    pub fn frames_out(&self) -> u64 {
        self[Count::FramesOutText].saturating_add(self[Count::FramesOutBinary])
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self([0; Count::ALL.len()])
    }
}

impl Index<Count> for Counts {
    type Output = u64;

    fn index(&self, count: Count) -> &u64 {
        &self.0[count as usize]
    }
}

impl IndexMut<Count> for Counts {
    fn index_mut(&mut self, count: Count) -> &mut u64 {
        &mut self.0[count as usize]
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut counts = Self::default();
        for (count, n) in BTreeMap::<Count, u64>::deserialize(deserializer)? {
            counts[count] = n;
        }
        Ok(counts)
    }
}
