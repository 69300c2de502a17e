//! Refusals: the part that the client receives, and the part that is only logged.

use std::any::Any;
use std::error::Error;
use std::fmt;

use serde_json::json;
use simurgh_channel::{Outcome, ShardContext, Stop};
use simurgh_proto::message::{Payload, PayloadError};

/// An answer with status `error`: handlers, joins and connects return it for what they refuse.
///
/// The client receives only what was chosen for it, with [`Reject::new`] and [`Reject::with`]. An
/// error of the application that becomes a `Reject` by `?` may contain anything, so it is logged,
/// and the client receives `{"reason": "internal error"}`. For a payload that [`Payload::parse`]
/// does not accept, the client receives what is wrong with it.
///
/// ```
/// use simurgh::Reject;
///
/// fn seat(text: &str) -> Result<u32, Reject> {
///     // Logged; the client learns that there is an internal error.
///     let seat: u32 = text.parse()?;
///     if seat > 8 {
///         return Err(Reject::new("the table has eight seats"));
///     }
///     Ok(seat)
/// }
/// # assert!(seat("3").is_ok() && seat("9").is_err() && seat("x").is_err());
/// ```
#[derive(Debug)]
pub struct Reject(Box<Kind>);

#[derive(Debug)]
enum Kind {
    Response(Payload<'static>),
    Payload(String),
    /// Logged; the client receives a generic reason.
    Internal(Box<dyn Error + Send + Sync>),
    Stop(Stop),
}

impl Reject {
    /// Answers `{"reason": reason}`.
    pub fn new(reason: impl Into<String>) -> Self {
        Self::with(json!({"reason": reason.into()}))
    }

    /// Answers with this payload, by convention an object with a `reason`.
    pub fn with(response: impl Into<Payload<'static>>) -> Self {
        Self::of(Kind::Response(response.into()))
    }

    /// For the last arm of a `match event`: as
    /// [`Outcome::unknown_event`](simurgh_channel::Outcome::unknown_event), it ends the channel
    /// with `phx_error`.
    pub fn unknown_event() -> Self {
        Self::stop(Stop::Abnormal)
    }

    /// Ends the channel.
    pub fn stop(how: Stop) -> Self {
        Self::of(Kind::Stop(how))
    }

    fn of(kind: Kind) -> Self {
        Self(Box::new(kind))
    }

    /// The payload that the client receives.
    pub fn response(&self) -> Payload<'static> {
        match &*self.0 {
            Kind::Response(response) => response.clone(),
            Kind::Payload(reason) => json!({"reason": reason}).into(),
            Kind::Internal(_) => json!({"reason": "internal error"}).into(),
            Kind::Stop(_) => json!({"reason": "the channel has ended"}).into(),
        }
    }

    pub(super) fn reason(&self) -> String {
        let response = self.response();
        let value: Option<serde_json::Value> = response.parse().ok();
        let reason = value.as_ref().and_then(|value| value.get("reason")?.as_str());
        reason.or(response.json()).unwrap_or_default().to_owned()
    }

    /// Logs what the client does not receive; returns whether it is the server's fault.
    pub(super) fn log(&self, topic: &str, at: &str) -> bool {
        if let Kind::Internal(error) = &*self.0 {
            let error = &**error;
            tracing::error!(topic, at, error, "a handler failed");
        }
        matches!(&*self.0, Kind::Internal(_))
    }

    /// Logs what the client does not receive, and returns the part for the shard; `is_asked`: there
    /// is a message of the client to answer.
    pub(super) fn settle(self, topic: &str, at: &str, is_asked: bool) -> Refusal {
        self.log(topic, at);
        let is_payload = matches!(&*self.0, Kind::Payload(_));
        match *self.0 {
            Kind::Stop(how) => Refusal::Stop(how),
            _ if is_asked => Refusal::Reply { response: self.response(), is_payload },
            _ => {
                let response = self.response();
                let said = response.json().unwrap_or("binary");
                tracing::warn!(
                    topic,
                    at,
                    said,
                    "a handler refused, but there is no message to reply to"
                );
                Refusal::Nothing
            }
        }
    }
}

/// A [`Reject`] for the shard, without values of the application.
#[derive(Debug)]
pub(super) enum Refusal {
    Nothing,
    /// An error reply; the payload of the message may be the cause.
    Reply {
        response: Payload<'static>,
        is_payload: bool,
    },
    Stop(Stop),
}

impl Refusal {
    pub(super) fn outcome(self, ctx: &ShardContext<'_>) -> Outcome {
        match self {
            Self::Nothing => Outcome::NoReply,
            Self::Stop(how) => Outcome::Stop(how),
            Self::Reply { response, is_payload } => {
                if is_payload {
                    ctx.count_wrong_payload();
                }
                Outcome::error(response)
            }
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Reject {
    fn from(error: E) -> Self {
        Self::of(match (&error as &dyn Any).downcast_ref::<PayloadError>() {
            Some(error) => Kind::Payload(error.to_string()),
            None => Kind::Internal(Box::new(error)),
        })
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Response(response) => match response.json() {
                Some(json) => f.write_str(json),
                None => f.write_str("a binary response"),
            },
            Kind::Payload(reason) => f.write_str(reason),
            Kind::Internal(error) => error.fmt(f),
            Kind::Stop(how) => write!(f, "the channel ends: {how:?}"),
        }
    }
}
