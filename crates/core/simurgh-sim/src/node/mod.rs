//! The simulated node: mailboxes, bytes in transit, decisions, open connections.

mod presence;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::kit::fault::Fault;
use crate::kit::setup::locked;
use crate::kit::topics::TOPIC_BYTES_MAX;
use crate::kit::{NONE, payload};
use simurgh_core::{
    Audience, Broadcast, BroadcastError, Callback, CallbackWatch, ChannelId, Config, FanoutPermits,
    JoinDecision, Kind, LinkedWork, Mail, Mailboxes, Node, NodeHandle, PresenceCallback,
    PresenceConfig, Publisher, Route, Signer, ToChannel, UserSocket, WallClock, Work,
};
use simurgh_data::Key;
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use crate::app::shared::Shared;
use crate::app::{self, handlers, ready};
use crate::model::{Answer, Intent};

/// The user socket of clients, and that of clients without a serializer.
pub(crate) const CHANNELS: u8 = 0;
pub(crate) const PLAIN: u8 = 1;

#[derive(Debug)]
pub(crate) struct TaggedMail {
    pub(crate) mail: Mail,
    pub(crate) tag: MailTag,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MailTag {
    Nothing,
    Broadcast(u32),
    ToChannel(u32, Intent),
    Joined(u32, u32, Answer),
    Listen(u32),
    Unlisten(u32),
    Pushes(u32),
    Answers(u32),
}

pub(crate) struct Decision {
    pub(crate) conn: u32,
    pub(crate) shard: usize,
    pub(crate) key: Key,
    pub(crate) ticket: u32,
    pub(crate) work: JoinDecision,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) mailboxes: Vec<VecDeque<TaggedMail>>,
    pub(crate) charged: Vec<usize>,
    pub(crate) ended: Vec<bool>,
    pub(crate) deciding: VecDeque<Decision>,
    pub(crate) member_counts: Vec<i64>,
    spoken: Option<(u32, Intent)>,
    posted: Vec<(usize, u32)>,
    pub(crate) permits_posted: usize,
    pub(crate) has_spoken: bool,
    starts: u64,
    pub(crate) told_last: Option<(Arc<Broadcast>, u32)>,
}

pub(crate) struct SimNode {
    pub(crate) shared: Arc<Shared>,
    user_sockets: [UserSocket; 2],
    permits: FanoutPermits,
    pub(crate) permits_all: Option<usize>,
    shards: usize,
    state: Mutex<State>,
}

impl SimNode {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let profile = &shared.profile;
        let (shards, topics) = (profile.shards, shared.model().topics.names.len());
        let state = State {
            mailboxes: (0..shards).map(|_| VecDeque::new()).collect(),
            charged: vec![0; shards],
            ended: vec![false; shards],
            member_counts: vec![0; topics],
            ..State::default()
        };
        let permits = profile.permits();
        let (permits_all, state) = (permits.left(), Mutex::new(state));
        Self { user_sockets: user_sockets(&shared), permits, permits_all, shards, state, shared }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(crate) fn put(&self, shard: usize, tagged: TaggedMail) -> bool {
        let mut state = self.state();
        if state.ended.get(shard).copied().unwrap_or(true) {
            return false;
        }
        state.permits_posted += usize::from(tagged.is_permit());
        state.mailboxes[shard].push_back(tagged);
        true
    }

    pub(crate) fn restart(&self) {
        let mut state = self.state();
        let deciding = std::mem::take(&mut state.deciding);
        state.charged.fill(0);
        state.ended.fill(false);
        state.starts += 1;
        drop(state);
        drop(deciding);
    }

    pub(crate) fn take(&self, shard: usize) -> Option<TaggedMail> {
        let mut state = self.state();
        let tagged = state.mailboxes.get_mut(shard)?.pop_front()?;
        state.permits_posted -= usize::from(tagged.is_permit());
        Some(tagged)
    }

    /// Ends a shard: its mailbox takes nothing more, and what is in it is lost.
    pub(crate) fn end(&self, shard: usize) -> VecDeque<TaggedMail> {
        let mut state = self.state();
        state.ended[shard] = true;
        let tagged_mails = state.mailboxes.get_mut(shard).map(std::mem::take).unwrap_or_default();
        state.permits_posted -= tagged_mails.iter().filter(|it| it.is_permit()).count();
        tagged_mails
    }
}

impl State {
    fn charge(&mut self, shard: usize, bytes: usize) {
        if let Some(charged) = self.charged.get_mut(shard) {
            *charged += bytes;
        }
    }
}

impl TaggedMail {
    pub(crate) fn new(mail: Mail, tag: MailTag) -> Self {
        Self { mail, tag }
    }

    fn is_permit(&self) -> bool {
        matches!(self.mail, Mail::Permit)
    }
}

fn user_sockets(shared: &Arc<Shared>) -> [UserSocket; 2] {
    let profile = &shared.profile;
    let limits = shared.mistaken(profile.limits().copied().unwrap_or_default());
    let join = app::join(shared);
    // All names with this prefix; it cannot fail.
    let pattern = Pattern::parse("rooms:*");
    let prepare = (profile.features.prepare_above > 0).then(|| ready::prepare(shared));
    let of_channel = limits.of_channel();
    let make = join.clone();
    let route = |pattern| Route { prepare, limits: of_channel, ..Route::new(pattern, make) };
    let route = pattern.ok().map(route);
    let mut channels = UserSocket::new(Kind::Channels(route.into_iter().collect()));
    (channels.channels_max, channels.count_members) =
        (profile.channels_max, profile.counts_members);
    let mut plain = UserSocket::new(Kind::Plain { topic: "plain:0".to_owned(), join });
    plain.count_members = profile.counts_members;
    (channels.limits, plain.limits) = (limits.of_socket(), limits.of_socket());
    [channels, plain]
}

/// Work that does not notice its end, for a planted fault.
struct Untold;

impl LinkedWork for Untold {
    fn is_finished(&self) -> bool {
        false
    }
}

impl NodeHandle for SimNode {
    fn send(&self, channel: ChannelId, what: ToChannel) {
        let Some((chan, intent)) = locked(&self.shared.intent).take() else { return };
        let tagged =
            TaggedMail::new(Mail::ToChannel(channel, what), MailTag::ToChannel(chan, intent));
        self.put(usize::from(channel.shard), tagged);
    }

    fn broadcast_by(
        &self,
        channel: ChannelId,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) -> Result<(), BroadcastError> {
        self.state().spoken = locked(&self.shared.intent).take();
        let done = self.broadcast_for(channel, event, payload, audience);
        self.state().spoken = None;
        done
    }

    fn spawn(&self, _work: Work) {}

    fn spawn_linked(&self, _work: Work) -> Box<dyn LinkedWork> {
        let task = locked(&self.shared.linking).take().unwrap_or(NONE);
        if self.shared.is_faulty(Fault::Unlink) {
            return Box::new(Untold);
        }
        Box::new(handlers::Linked { task, shared: Arc::clone(&self.shared) })
    }

    fn presence_config(&self) -> &PresenceConfig {
        &self.config().presence
    }

    fn list_presences(&self, topic: &str, answer: PresenceCallback) {
        self.request_presences(topic, answer);
    }

    fn member_count(&self, topic: &str) -> Option<u32> {
        let topic = self.shared.model().topics.number(topic)?;
        let count = self.state().member_counts.get(usize::from(topic)).copied();
        self.shared.profile.counts_members.then_some(count.unwrap_or(0).max(0) as u32)
    }
}

impl Node for SimNode {
    fn config(&self) -> &Config {
        &self.shared.profile.config
    }

    fn user_socket(&self, index: u8) -> Option<&UserSocket> {
        self.user_sockets.get(usize::from(index))
    }

    fn id(&self) -> u64 {
        self.shared.profile.seed.wrapping_add(self.state().starts << 8)
    }

    fn has_history(&self) -> bool {
        false
    }

    fn history_bytes(&self) -> &[std::sync::atomic::AtomicU64] {
        &[]
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        let mut model = self.shared.model();
        let conn = model.joining.map_or(NONE, |it| it.conn);
        model.decides(conn, ticket);
        drop(model);
        self.state().deciding.push_back(Decision { conn, shard, key, ticket, work });
    }

    fn member_joined(&self, topic: &str) {
        if !self.shared.is_faulty(Fault::Miscount) {
            self.count(topic, 1);
        }
    }

    fn member_left(&self, topic: &str) {
        self.count(topic, -1);
    }

    fn release_connection(&self) {
        if !self.shared.is_faulty(Fault::Seat) {
            self.shared.model().seats -= 1;
        }
    }
}

impl Mailboxes for SimNode {
    fn shards(&self) -> usize {
        self.shards
    }

    fn post_weighed(&self, shard: usize, bytes: usize, mail: Mail) {
        match presence::is_of_presence(&mail) {
            true if self.shared.is_faulty(Fault::Free) => {}
            // The broadcast was not made by a callback: no publisher is held for it.
            true => {
                let mut state = self.state();
                state.charge(shard, bytes);
                state.has_spoken = true;
            }
            false => self.charge(shard, bytes),
        }
        if !self.post(shard, mail) {
            self.discharge(shard, bytes);
        }
    }

    fn post(&self, shard: usize, mail: Mail) -> bool {
        if presence::is_of_presence(&mail) {
            return self.post_presence(shard, mail);
        }
        let tag = match &mail {
            Mail::Broadcast(posted) => MailTag::Broadcast(number_of(posted.broadcast())),
            Mail::ToChannel(..) => match self.state().spoken {
                Some((chan, intent)) => MailTag::ToChannel(chan, intent),
                None => MailTag::Nothing,
            },
            _ => MailTag::Nothing,
        };
        if let MailTag::Broadcast(id) = tag {
            if self.shared.model().running.is_some() {
                self.state().posted.push((shard, id));
            }
            if self.shared.is_faulty(Fault::LoseMail) {
                return true;
            }
            if self.shared.is_faulty(Fault::DoubleMail)
                && let Mail::Broadcast(posted) = &mail
            {
                let again = simurgh_core::Posted::new(Arc::clone(posted.broadcast()), None);
                self.put(shard, TaggedMail::new(Mail::Broadcast(again), tag));
            }
        }
        if matches!(mail, Mail::Permit) && self.shared.is_faulty(Fault::LosePermit) {
            return true;
        }
        self.put(shard, TaggedMail::new(mail, tag))
    }

    fn charge(&self, shard: usize, bytes: usize) {
        let mut state = self.state();
        state.charge(shard, bytes);
        if state.spoken.is_some() {
            state.has_spoken = true;
            return;
        }
        drop(state);
        let mut model = self.shared.model();
        let mut state = self.state();
        if model.running != Some(shard) {
            return;
        }
        let posted = std::mem::take(&mut state.posted);
        let others = posted.iter().map(|(shard, _)| *shard);
        let is_same = posted.windows(2).all(|it| matches!(it, [one, two] if one.1 == two.1));
        if !is_same || !others.eq((0..self.shards).filter(|it| *it != shard)) {
            model.fail("post", format!("shard {shard} has posted {posted:?}"));
        }
        state.posted = posted;
        state.posted.clear();
        model.own_charge(shard, bytes);
    }

    fn discharge(&self, shard: usize, bytes: usize) {
        if self.shared.is_faulty(Fault::Forget) {
            return;
        }
        let mut state = self.state();
        let Some(charged) = state.charged.get_mut(shard) else { return };
        match charged.checked_sub(bytes) {
            Some(left) => *charged = left,
            None => {
                let text = format!("shard {shard} gives back {bytes} of {charged} bytes");
                drop(state);
                self.shared.model().fail("bytes", text);
            }
        }
    }

    fn charged(&self, shard: usize) -> usize {
        let state = self.state();
        match state.ended.get(shard) {
            Some(false) => state.charged.get(shard).copied().unwrap_or(0),
            _ => 0,
        }
    }
}

impl CallbackWatch for SimNode {
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
        simurgh_core::guarded(f)
    }

    fn enter_callback(&self, _shard: usize, _callback: Callback) {}

    fn leave_callback(&self, _shard: usize) -> Duration {
        Duration::ZERO
    }
}

impl Signer for SimNode {
    fn sign(&self, text: &str) -> String {
        text.to_owned()
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        text == proof
    }
}

impl WallClock for SimNode {
    fn unix_ms(&self, now_ns: u64) -> u64 {
        now_ns / 1_000_000
    }
}

pub(crate) fn number_of(broadcast: &Broadcast) -> u32 {
    match broadcast.event() {
        // Its payload is empty; the first numbers are reserved for these.
        "disconnect" => payload::number(broadcast.topic().as_bytes().get(4..).unwrap_or(&[])).0,
        _ => payload::parse(broadcast.payload()).0,
    }
}

impl SimNode {
    /// The result that broadcasting a payload of this many bytes on a topic must have.
    pub(crate) fn may_broadcast_bytes(
        &self,
        topic: &str,
        bytes: usize,
    ) -> Result<(), BroadcastError> {
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(BroadcastError::TopicTooLong(topic.len()));
        }
        let bytes_max = self.config().broadcast_bytes_max();
        match self.is_congested() {
            _ if bytes > bytes_max => Err(BroadcastError::TooLarge { bytes, bytes_max }),
            true => Err(BroadcastError::Congested),
            false => Ok(()),
        }
    }

    fn count(&self, topic: &str, by: i64) {
        let topic = self.shared.model().topics.number(topic);
        let mut state = self.state();
        if let Some(count) = topic.and_then(|it| state.member_counts.get_mut(usize::from(it))) {
            *count += by;
        }
    }
}
