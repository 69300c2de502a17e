//! Plain counters, which only grow.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::named::named;

named! {
    /// Plain counters. Errors are counted by [`super::ErrorKind`] instead.
    Count {
        /// Users that were due, started or not.
        UsersDue = "users_due",
        /// Users started.
        UsersStarted = "users_started",
        /// Users that reached the end of their session.
        UsersFinished = "users_finished",
        /// Users that ended before the end of their session.
        UsersAborted = "users_aborted",
        /// Users that started more than 10 ms late.
        LateArrivals = "late_arrivals",
        /// Steps that began more than 10 ms late.
        LateSteps = "late_steps",
        /// Connections tried.
        ConnectsTried = "connects_tried",
        /// TCP connections made (with TLS where it is used).
        Connects = "connects",
        /// Connections ended, by either side.
        Disconnects = "disconnects",
        /// Connections tried again after one was lost.
        Reconnects = "reconnects",
        /// Upgrades answered with 101.
        Upgrades = "upgrades",
        /// Requests sent that expect an answer: upgrades, joins, pushes, messages, HTTP.
        Requests = "requests",
        /// Messages sent without waiting for an answer.
        RequestsNoAck = "requests_no_ack",
        /// Requests that ended without an answer: timed out, or their connection ended.
        RequestsUnanswered = "requests_unanswered",
        /// Text frames received.
        FramesInText = "frames_in_text",
        /// Binary frames received.
        FramesInBinary = "frames_in_binary",
        /// Text frames sent.
        FramesOutText = "frames_out_text",
        /// Binary frames sent.
        FramesOutBinary = "frames_out_binary",
        /// Frames received that no step waited for.
        FramesUnsolicited = "frames_unsolicited",
        /// Pings received; each is answered.
        PingsIn = "pings_in",
        /// Pongs received.
        PongsIn = "pongs_in",
        /// Close frames received.
        ClosesIn = "closes_in",
        /// Joins sent.
        Joins = "joins",
        /// Joins answered with `ok`.
        JoinsOk = "joins_ok",
        /// Leaves sent.
        Leaves = "leaves",
        /// Pushes sent.
        Pushes = "pushes",
        /// Heartbeats sent.
        Heartbeats = "heartbeats",
        /// Frames received that a rule of `answer` answered.
        Answers = "answers",
        /// Phoenix replies with status `ok`.
        RepliesOk = "replies_ok",
        /// Phoenix replies with any other status.
        RepliesError = "replies_error",
        /// Presence lists received.
        PresenceStates = "presence_states",
        /// Messages received about presences that joined or left.
        PresenceDiffs = "presence_diffs",
        /// Polls sent: GETs of long-poll sessions.
        Polls = "polls",
        /// POSTs sent in long-poll sessions.
        Posts = "posts",
        /// Broadcasts sent with a stamp.
        Broadcasts = "broadcasts",
        /// Stamped broadcasts received.
        Deliveries = "deliveries",
        /// Broadcasts received twice by the same user.
        DeliveriesDuplicate = "deliveries_duplicate",
        /// Broadcasts received after a later one of the same sender.
        DeliveriesOutOfOrder = "deliveries_out_of_order",
        /// Broadcasts that came before they were sent, by the clocks, because of clock skew.
        DeliveriesBeforeSent = "deliveries_before_sent",
        /// Expected deliveries that did not come.
        DeliveriesMissing = "deliveries_missing",
        /// Stamps of another run received.
        StampsForeign = "stamps_foreign",
        /// Broadcasts whose first and last receiver are known.
        BroadcastsComplete = "broadcasts_complete",
        /// Deliveries of broadcasts beyond those that are followed one by one; only in `delivery`.
        BroadcastsUntracked = "broadcasts_untracked",
        /// Deliveries of a broadcast that already counted as complete, 2 s after the delivery
        /// before: they are in `delivery`, not in `last_receiver`.
        DeliveriesAfterwards = "deliveries_afterwards",
        /// Stamped pushes times the other users at their topics, as far as known: `follow_stamps`.
        DeliveriesExpected = "deliveries_expected",
        /// Expected deliveries that came, each counted once.
        DeliveriesOnce = "deliveries_once",
        /// Stamped pushes to users before their join, or before the first that they should get.
        DeliveriesUnexpected = "deliveries_unexpected",
        /// Stamped pushes beyond those that are followed exactly; they are not expected.
        BroadcastsUnnumbered = "broadcasts_unnumbered",
        /// HTTP answers whose body could not be searched as a whole: it was too long, or compressed
        /// in another way than gzip and deflate.
        AnswersCut = "answers_cut",
        /// Stamped pushes that the server should have answered with `ok` and did not.
        BroadcastsUnconfirmed = "broadcasts_unconfirmed",
        /// Unconfirmed pushes that a user of the same host got; then all users should get them.
        BroadcastsUnconfirmedHeard = "broadcasts_unconfirmed_heard",
        /// Connections cut on purpose by a reset.
        DropsReset = "drops_reset",
        /// Connections cut on purpose silently.
        DropsSilent = "drops_silent",
        /// Resuming joins that were answered with all missed messages.
        ResumesRecovered = "resumes_recovered",
        /// Missed messages that the server announced in answers to such joins.
        ResumedMessages = "resumed_messages",
        /// Gaps reported by the server: the missed messages are too old.
        GapsExpired = "gaps_expired",
        /// Gaps: too many messages came after the missed ones.
        GapsOverwritten = "gaps_overwritten",
        /// Gaps: the server was short of memory.
        GapsEvicted = "gaps_evicted",
        /// Gaps: the history was deleted.
        GapsPurged = "gaps_purged",
        /// Gaps: the history is a different one.
        GapsEpoch = "gaps_epoch",
        /// Gaps: more messages were missed than are sent again.
        GapsTooMany = "gaps_too_many",
        /// Gaps: more bytes were missed than are sent again.
        GapsTooLarge = "gaps_too_large",
        /// Gaps: the history cannot be reached.
        GapsUnavailable = "gaps_unavailable",
        /// Gaps: messages were lost between servers.
        GapsLost = "gaps_lost",
        /// Gaps for another reason, or none.
        GapsOther = "gaps_other",
        /// Bytes received, everything above TCP (TLS: after decryption).
        BytesIn = "bytes_in",
        /// Bytes sent.
        BytesOut = "bytes_out",
        /// Checks on answers that found their pattern.
        Matches = "matches",
        /// Checks on answers that did not find their pattern.
        NoMatches = "no_matches",
        /// Lines for `match.log` beyond the limit of one second.
        MatchLinesDropped = "match_lines_dropped",
        /// HTTP answers.
        HttpAnswers = "http_answers",
        /// HTTP answers with a status of 400 or more.
        HttpFailures = "http_failures",
        /// Samples and lines of traffic dropped beyond the limit of one second.
        SamplesDropped = "samples_dropped",
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
