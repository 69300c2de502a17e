//! Operations: all that a scheduler decides. Each is complete by itself, so leaving one out of a
//! run does not change what the others mean. An operation that is impossible at its time is
//! skipped.

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident $weight:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $($(#[doc = $doc])* $kind,)* }

        impl Kind {
            pub(crate) const ALL: &'static [(Self, u32)] = &[$((Self::$kind, $weight),)*];
        }
    };
}

kinds! {
    /// A client opens a socket: `a` the client, `c` its shard, wire, id.
    Connect 24,
    Join 50,
    /// A client pushes to topic `b`; `c` is the word for the application.
    Push 140,
    Leave 16,
    Heartbeat 6,
    /// A client sends a message with refs outside of its session.
    Odd 20,
    /// The server reads up to `b` messages of client `a`.
    Read 200,
    /// Client `a` takes `c` bytes, or all there are.
    Take 90,
    /// What fits into a client's connection is written.
    Write 50,
    /// Client `a` stops reading for a while, or starts again.
    Stall 6,
    Vanish 3,
    Close 2,
    HalfClose 2,
    /// Core `a` takes up to `b` mails.
    Mail 90,
    /// Core `a` ends its turn; `c` says how far the clock moves.
    Turn 80,
    Decide 40,
    /// A broadcast on topic `b` from outside of channels.
    Publish 20,
    Handle 30,
    Disconnect 1,
    Wait 30,
    Drain 0,
    /// The transport rejects bytes of a client.
    Fail 1,
    /// Everything is delivered, and the state is checked.
    Rest 0,
    /// The core closes the socket of client `a`, as asked from outside.
    Kick 2,
    /// A message that was read away from its shard is ready.
    Reading 40,
    /// New cores start once all have drained and ended.
    Restart 20,
    Done 60,
    Finish 5,
    Speak 12,
    /// A listener outside of channels subscribes to topic `b`, or unsubscribes.
    Listen 4,
    Unlisten 3,
    /// A question from outside of channels: which users are present in topic `b`.
    Who 10,
    /// A client sends the same message repeatedly, and all are read: `b` topic, `c` what, how
    /// often.
    Burst 20,
}

pub(crate) type Op = crate::kit::operation::Op<Kind>;
