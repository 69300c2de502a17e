//! An application that is made of closures.

use std::panic::resume_unwind;

use super::*;

/// Ends a callback as a panic does, without a message on the terminal.
pub(crate) fn crash() -> ! {
    resume_unwind(Box::new("crash"))
}

pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        crash();
    }
}

#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    /// Two names for one list.
    pub(crate) fn shared() -> (Self, Self) {
        let notes = Self::default();
        (notes.clone(), notes)
    }

    /// Adds a note of a call that gets no reply.
    pub(crate) fn of_call(&self, note: impl Into<String>) -> Outcome {
        self.add(note);
        Outcome::NoReply
    }

    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub(crate) enum ChannelCall<'a> {
    Joined,
    In(&'a str, Payload<'a>),
    Info(Box<dyn Any + Send>),
    Out(&'a str, &'a Payload<'a>),
    Broadcast(&'a Broadcast),
    Ends(Reason),
}

type Script = dyn Fn(&mut ShardContext<'_>, ChannelCall<'_>) -> Outcome + Send + Sync;

#[derive(Clone)]
pub(crate) struct Scripted {
    script: Arc<Script>,
    intercepts: &'static [&'static str],
    sleeps: Arc<dyn Fn() + Send + Sync>,
}

pub(crate) fn scripted(
    script: impl Fn(&mut ShardContext<'_>, ChannelCall<'_>) -> Outcome + Send + Sync + 'static,
) -> Scripted {
    Scripted { script: Arc::new(script), intercepts: &[], sleeps: Arc::new(|| {}) }
}

impl Scripted {
    pub(crate) fn intercepting(self, intercepts: &'static [&'static str]) -> Self {
        Self { intercepts, ..self }
    }

    pub(crate) fn sleeping(self, sleeps: impl Fn() + Send + Sync + 'static) -> Self {
        Self { sleeps: Arc::new(sleeps), ..self }
    }

    pub(crate) fn user_socket(self) -> UserSocket {
        user_socket(move |_, _| Join::ok(self.clone()))
    }
}

impl ShardChannel for Scripted {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let _ = (self.script)(ctx, ChannelCall::Joined);
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        (self.script)(ctx, ChannelCall::In(event, payload))
    }

    fn intercept(&self) -> &'static [&'static str] {
        self.intercepts
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        (self.script)(ctx, ChannelCall::Out(event, payload))
    }

    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        (self.script)(ctx, ChannelCall::Broadcast(broadcast))
    }

    fn hibernate(&mut self) {
        (self.sleeps)();
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        let _ = (self.script)(ctx, ChannelCall::Ends(*reason));
    }
}

impl<M: Any + Send> ShardHandleInfo<M> for Scripted {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, message: M) -> Outcome {
        (self.script)(ctx, ChannelCall::Info(Box::new(message)))
    }
}

pub(crate) fn info<M: Any + Send>(message: M) -> ToChannel {
    ToChannel::Message(Box::new(simurgh_channel::ChannelMessage::new::<Scripted, M>(message)))
}

pub(crate) fn user_socket(
    join: impl Fn(&mut ShardContext<'_>, Payload<'_>) -> Join + Send + Sync + 'static,
) -> UserSocket {
    let route = Route::new(Pattern::parse("*").unwrap(), Arc::new(join));
    UserSocket::new(Kind::Channels(vec![route]))
}

/// A user socket whose sockets join a topic when they open, and send bare messages.
pub(crate) fn plain(
    topic: &str,
    join: impl Fn(&mut ShardContext<'_>, Payload<'_>) -> Join + Send + Sync + 'static,
) -> UserSocket {
    UserSocket::new(Kind::Plain { topic: topic.into(), join: Arc::new(join) })
}

/// A channel that does what events request, most of them as PROTOCOL §15 names them.
pub(crate) fn standard(ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>) -> Outcome {
    let (event, payload) = match heard {
        ChannelCall::In(event, payload) => (event, payload.into_owned()),
        ChannelCall::Broadcast(it) => {
            ctx.push(it.event(), it.payload());
            return Outcome::NoReply;
        }
        ChannelCall::Ends(_) => {
            ctx.push("you_left", Payload::EMPTY_OBJECT);
            return Outcome::NoReply;
        }
        ChannelCall::Joined | ChannelCall::Info(_) | ChannelCall::Out(..) => {
            return Outcome::NoReply;
        }
    };
    let text = || payload.parse::<String>().unwrap();
    match event {
        "echo" => return Outcome::ok(payload),
        "noreply" => {}
        "push_me" => ctx.push("pushed", payload),
        "bcast" => ctx.broadcast("news", payload),
        "bcast_from" => ctx.broadcast_from("news", payload),
        "bcast_to" => ctx.broadcast_to(&text(), "news", Payload::EMPTY_OBJECT),
        "crash" => crash(),
        "stop" => return Outcome::Stop(Stop::Normal),
        "stop_shutdown" => return Outcome::Stop(Stop::Shutdown),
        "stop_bad" => return Outcome::Stop(Stop::Abnormal),
        "stop_expired" => return Outcome::Stop(Stop::Expired),
        "stop_reply" => return Outcome::ReplyAndStop(Reply::ok(payload), Stop::Normal),
        "subscribe" => ctx.subscribe(&text()),
        "unsubscribe" => ctx.unsubscribe(&text()),
        "disconnect" => ctx.disconnect(&text()),
        "close" => ctx.close_socket(CloseCode::RESTART),
        _ => return Outcome::unknown_event(),
    }
    Outcome::NoReply
}
