//! A membership: the events that a client sends on its channel, and their effects (PROTOCOL §11.3).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;
use simurgh_channel::{
    Bucket, Outcome, PARSED_BYTES_MAX, PresenceError, ShardChannel, ShardContext, ShardHandleInfo,
    Stop, nanoseconds,
};
use simurgh_proto::message::{Payload, events};
use tokio::sync::watch;

#[cfg(feature = "token")]
use super::access::Renewed;
use super::config::JoinConfig;
use super::{Pass, Realtime};

pub(super) struct Member {
    realtime: Arc<Realtime>,
    /// Key of its presence; none: a random one is made when needed.
    key: Option<Box<str>>,
    /// Limits its events; made with the first one.
    bucket: Option<Box<Bucket>>,
    /// When its token expires; none: with its socket's.
    deadline: Option<watch::Sender<Instant>>,
    /// Lifetime of its first token, seconds; 0: as long as its socket's.
    lifetime_s: u32,
    acks: bool,
    hears_itself: bool,
    may_publish: bool,
    is_present: bool,
    /// The events that follow its join.
    wants_state: bool,
    wants_changes: bool,
}

// The cost of a joined client, in addition to its membership.
const _: () = assert!(size_of::<Member>() <= 56);

/// The token may have expired, unless it was replaced meanwhile.
struct Expired;

enum Refused {
    TooLarge,
    WrongPayload,
    Unauthorized,
}

#[derive(Deserialize)]
struct Presence<'a> {
    #[serde(borrow)]
    event: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "there")]
    payload: Option<&'a RawValue>,
}

/// Any value that is present, `null` included.
fn there<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl Member {
    pub(super) fn new(realtime: Arc<Realtime>, config: JoinConfig, pass: Pass) -> Self {
        let Pass { may_publish, lifetime } = pass;
        let lifetime_s = lifetime.map_or(0, |it| it.as_secs().max(1));
        Self {
            realtime,
            key: config.key.map(String::into_boxed_str),
            bucket: None,
            deadline: None,
            lifetime_s: u32::try_from(lifetime_s).unwrap_or(0),
            acks: config.ack,
            hears_itself: config.own,
            may_publish,
            is_present: false,
            wants_state: config.presence,
            wants_changes: !config.changes.is_empty(),
        }
    }

    /// Passes a broadcast on: in a Supabase frame if it came in one, else as the event `broadcast`.
    fn broadcast(&self, ctx: &mut ShardContext<'_>, payload: Payload<'_>) -> Outcome {
        if let Err(refused) = self.take(&payload) {
            return self.refuse(ctx, &refused);
        }
        let payload = match payload {
            // Receivers would trust a sender's metadata, such as the ids of replayed messages.
            Payload::User(broadcast) => Payload::User(broadcast.without_metadata()),
            payload => payload,
        };
        match self.hears_itself {
            true => ctx.broadcast(events::BROADCAST, payload.into_owned()),
            false => ctx.broadcast_from(events::BROADCAST, payload.into_owned()),
        }
        match self.acks {
            true => Outcome::ok(Payload::EMPTY_OBJECT),
            false => Outcome::NoReply,
        }
    }

    fn take(&self, payload: &Payload<'_>) -> Result<(), Refused> {
        let is_object = payload.json().is_some_and(|json| json.starts_with('{'));
        let bytes_max = self.realtime.payload_bytes_max;
        if payload.len() > bytes_max && payload.data().len() > bytes_max {
            Err(Refused::TooLarge)
        } else if !is_object && !matches!(payload, Payload::User(_)) {
            Err(Refused::WrongPayload)
        } else if !self.may_publish {
            Err(Refused::Unauthorized)
        } else {
            Ok(())
        }
    }

    /// Replies only to a client that asked for acknowledgements.
    fn refuse(&self, ctx: &mut ShardContext<'_>, refused: &Refused) -> Outcome {
        let reason = match refused {
            Refused::TooLarge => "payload_size_exceeded".to_owned(),
            Refused::WrongPayload => {
                ctx.count_wrong_payload();
                "wrong_payload".to_owned()
            }
            Refused::Unauthorized => unauthorized(ctx),
        };
        match self.acks {
            true => Outcome::error(json!({ "reason": reason })),
            false => Outcome::NoReply,
        }
    }

    fn presence(&mut self, ctx: &mut ShardContext<'_>, payload: &Payload<'_>) -> Outcome {
        if payload.len() > PARSED_BYTES_MAX {
            return shut_down(ctx, "Track message size exceeded");
        }
        let Ok(Presence { event, payload }) = payload.parse::<Presence<'_>>() else {
            ctx.count_wrong_payload();
            return Outcome::error(json!({"reason": "Presence payload must be a map"}));
        };
        match event.as_deref() {
            None => Outcome::ok(Payload::EMPTY_OBJECT),
            Some(event) if event.eq_ignore_ascii_case("track") => self.track(ctx, payload),
            Some(event) if event.eq_ignore_ascii_case("untrack") => {
                if let Some(key) = self.key.as_deref().filter(|_| self.is_present) {
                    ctx.presence().untrack(key);
                    self.is_present = false;
                }
                Outcome::ok(Payload::EMPTY_OBJECT)
            }
            Some(_) => Outcome::error(json!({"reason": "Unknown presence event"})),
        }
    }

    /// A second one is an update.
    fn track(&mut self, ctx: &mut ShardContext<'_>, meta: Option<&RawValue>) -> Outcome {
        if !self.may_publish {
            let reason = unauthorized(ctx);
            return Outcome::error(json!({ "reason": reason }));
        }
        let key = self.key.get_or_insert_with(|| self.realtime.keys.uuid().into_boxed_str());
        let meta = Payload::from_json(meta.map_or("{}", RawValue::get).to_owned());
        let mut presence = ctx.presence();
        let tracked = match self.is_present {
            true => presence.update(key, meta),
            false => presence.track(key, meta),
        };
        match tracked {
            Ok(()) => {
                self.is_present = true;
                Outcome::ok(Payload::EMPTY_OBJECT)
            }
            Err(PresenceError::MetaTooLong { .. }) => shut_down(ctx, "Track message size exceeded"),
            Err(PresenceError::Meta(_) | PresenceError::BinaryMeta) => {
                ctx.count_wrong_payload();
                let reason = "Presence track payload must be a map";
                Outcome::error(json!({ "reason": reason }))
            }
            Err(error) => Outcome::error(json!({"reason": error.to_string()})),
        }
    }

    /// A fresh token, which is not answered; an invalid one ends the channel.
    #[cfg(feature = "token")]
    fn access_token(&mut self, ctx: &mut ShardContext<'_>, payload: &Payload<'_>) -> Outcome {
        #[derive(Deserialize)]
        struct AccessToken<'a> {
            #[serde(borrow)]
            access_token: Option<Cow<'a, str>>,
        }
        if !self.realtime.access.has_policy() {
            return Outcome::NoReply;
        }
        let short = Some(payload).filter(|payload| payload.len() <= PARSED_BYTES_MAX);
        let Some(Ok(fresh)) = short.map(|payload| payload.parse::<AccessToken<'_>>()) else {
            ctx.count_wrong_payload();
            return shut_down(ctx, "The token provided is not a valid JWT");
        };
        let realtime = Arc::clone(&self.realtime);
        match realtime.access.renew(ctx, fresh.access_token.as_deref()) {
            Renewed::Unchanged => Outcome::NoReply,
            Renewed::Refused(why) => shut_down(ctx, &why),
            Renewed::Pass(pass) => {
                self.may_publish = pass.may_publish;
                if let Some(lifetime) = pass.lifetime {
                    self.expire_in(ctx, lifetime);
                }
                Outcome::NoReply
            }
        }
    }

    #[cfg(not(feature = "token"))]
    fn access_token(&mut self, _: &mut ShardContext<'_>, _: &Payload<'_>) -> Outcome {
        Outcome::NoReply
    }

    /// Sets its deadline; one task waits for it, however often it is set.
    fn expire_in(&mut self, ctx: &mut ShardContext<'_>, lifetime: Duration) {
        let Some(end) = Instant::now().checked_add(lifetime) else { return };
        if let Some(deadline) = &self.deadline {
            deadline.send_replace(end);
            return;
        }
        let (deadline, mut current) = watch::channel(end);
        self.deadline = Some(deadline);
        let this = ctx.handle::<Self>();
        ctx.spawn_linked(async move {
            loop {
                let end = (*current.borrow_and_update()).into();
                let changed = match tokio::time::timeout_at(end, current.changed()).await {
                    Ok(changed) => changed,
                    Err(_) => {
                        this.send(Expired);
                        current.changed().await
                    }
                };
                if changed.is_err() {
                    return;
                }
            }
        });
    }

    fn take_turn(&mut self) -> bool {
        let Some(rate) = &self.realtime.events else { return true };
        let now_ns = nanoseconds(self.realtime.origin.elapsed());
        let bucket = self.bucket.get_or_insert_default();
        let next = bucket.less(rate, 1, now_ns);
        **bucket = next.unwrap_or(**bucket);
        next.is_ok()
    }
}

fn unauthorized(ctx: &ShardContext<'_>) -> String {
    ctx.count_unauthorized();
    let topic = ctx.subtopic();
    format!("Unauthorized: You do not have permissions to write to this Channel topic: {topic}")
}

/// Sends the reason, and ends the channel.
fn shut_down(ctx: &mut ShardContext<'_>, message: &str) -> Outcome {
    system(ctx, "system", "error", message);
    Outcome::Stop(Stop::Normal)
}

fn system(ctx: &mut ShardContext<'_>, extension: &str, status: &str, message: &str) {
    let channel = ctx.subtopic();
    let said = json!({
        "extension": extension, "status": status, "message": message, "channel": channel,
    });
    ctx.push("system", said);
}

impl ShardChannel for Member {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        if std::mem::take(&mut self.wants_state) {
            ctx.presence().push_state();
        }
        if std::mem::take(&mut self.wants_changes) {
            system(ctx, "postgres_changes", "ok", "Subscribed to PostgreSQL");
        }
        if self.lifetime_s > 0 {
            self.expire_in(ctx, Duration::from_secs(u64::from(self.lifetime_s)));
        }
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        if !self.take_turn() {
            return shut_down(ctx, "Too many messages per second");
        }
        match event {
            events::BROADCAST => self.broadcast(ctx, payload),
            "presence" => self.presence(ctx, &payload),
            events::ACCESS_TOKEN => self.access_token(ctx, &payload),
            // As Supabase does: nothing.
            _ => Outcome::NoReply,
        }
    }
}

impl ShardHandleInfo<Expired> for Member {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, _: Expired) -> Outcome {
        let deadline = self.deadline.as_ref().map(|deadline| *deadline.borrow());
        if deadline.is_none_or(|deadline| Instant::now() < deadline) {
            return Outcome::NoReply;
        }
        shut_down(ctx, "Token has expired")
    }
}
