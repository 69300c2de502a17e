//! Operations: all that a scheduler decides. Each is complete by itself, so leaving one out of a
//! run does not change what the others mean. An operation that is impossible at its time is
//! skipped.

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident $name:literal $weight:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $($(#[doc = $doc])* $kind,)* }

        impl Kind {
            pub(crate) const ALL: &'static [(Self, &'static str, u32)] =
                &[$((Self::$kind, $name, $weight),)*];
        }
    };
}

kinds! {
    /// A client opens a socket: `a` the client, `c` its shard, wire, id.
    Connect "connect" 24,
    Join "join" 50,
    /// A client pushes to topic `b`; `c` is the word for the application.
    Push "push" 140,
    Leave "leave" 16,
    Heartbeat "heartbeat" 6,
    /// A client sends a message with refs outside of its session.
    Odd "odd" 20,
    /// The server reads up to `b` messages of client `a`.
    Read "read" 200,
    /// Client `a` takes `c` bytes, or all there are.
    Take "take" 90,
    /// What fits into a client's connection is written.
    Write "write" 50,
    /// Client `a` stops reading for a while, or starts again.
    Stall "stall" 6,
    Vanish "vanish" 3,
    Close "close" 2,
    HalfClose "half-close" 2,
    /// Core `a` takes up to `b` mails.
    Mail "mail" 90,
    /// Core `a` ends its turn; `c` says how far the clock moves.
    Turn "turn" 80,
    Decide "decide" 40,
    /// A broadcast on topic `b` from outside of channels.
    Publish "publish" 20,
    Handle "handle" 30,
    Disconnect "disconnect" 1,
    Wait "wait" 30,
    Drain "drain" 0,
    /// The transport rejects bytes of a client.
    Fail "fail" 1,
    /// Everything is delivered, and the state is checked.
    Rest "rest" 0,
    /// The core closes the socket of client `a`, as asked from outside.
    Kick "kick" 2,
    /// A message that was read away from its shard is ready.
    Reading "reading" 40,
    /// New cores start once all have drained and ended.
    Restart "restart" 20,
    Done "done" 60,
    Finish "finish" 5,
    Speak "speak" 12,
    /// A listener outside of channels subscribes to topic `b`, or unsubscribes.
    Listen "listen" 4,
    Unlisten "unlisten" 3,
    /// A question from outside of channels: which users are present in topic `b`.
    Who "who" 10,
    /// A client sends the same message repeatedly, and all are read: `b` topic, `c` what, how
    /// often.
    Burst "burst" 20,
}

impl Kind {
    /// How many kinds there were at first: profiles draw the later ones apart.
    pub(crate) const EARLY: usize = Self::Rest as usize + 1;
    /// How many there were before handlers waited.
    pub(crate) const MIDDLE: usize = Self::Restart as usize + 1;
    /// How many there were before presence.
    pub(crate) const LATE: usize = Self::Unlisten as usize + 1;
    /// How many there were before limits.
    pub(crate) const UNLIMITED: usize = Self::Who as usize + 1;
}

pub(crate) type Op = simurgh_sim_kit::operation::Op<Kind>;

pub(crate) fn line(op: &Op) -> String {
    format!("{} {} {} {}", Kind::ALL[op.kind as usize].1, op.a, op.b, op.c)
}

pub(crate) fn from_line(line: &str) -> Result<Op, String> {
    let op = || {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let (kind, ..) = *Kind::ALL.iter().find(|it| it.1 == name)?;
        let mut number = || words.next()?.parse::<u32>().ok();
        Some(Op { kind, a: number()? as u16, b: number()? as u16, c: number()? })
    };
    op().ok_or_else(|| format!("no operation: {line:?}"))
}
