//! Counts of what happened, to see that a run exercises what it is meant to.

macro_rules! counts {
    ($($field:ident $text:literal,)*) => {
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $field: u64,)* }

        impl Counts {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl std::fmt::Display for Counts {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let all = [$((self.$field, $text),)*];
                let mut sep = "";
                for (count, text) in all {
                    write!(f, "{sep}{count} {text}")?;
                    sep = ", ";
                }
                Ok(())
            }
        }
    };
}

counts! {
    steps "steps",
    opened "sockets",
    messages "messages",
    joins "joins",
    rejoins "rejoins",
    refused "refused joins",
    later "joins decided later",
    decided_late "decided too late",
    join_timeouts "join timeouts",
    leaves "leaves",
    stale "stale messages",
    callbacks "callbacks",
    intercepted "interceptions",
    relayed "relayed",
    panics "panics",
    stops "stops",
    broadcasts "broadcasts accepted",
    congested "broadcasts turned away",
    seen "things heard",
    deliveries "deliveries",
    told "handles used",
    disconnects "sockets disconnected",
    closes "closes by the application",
    idle "idle timeouts",
    hibernated "hibernations",
    drains "drains",
    slow "slow cuts",
    caught_up "caught up",
    held "publishers held",
    stashed "messages stashed",
    vanished "vanished",
    slices "slices cut",
    rests "rests",
    restarts "restarts",
    returns "channels joined again after one",
    kicks "kicked",
    too_long "joins with something too long",
    too_big "messages too big",
    read_elsewhere "messages read elsewhere",
    prepared "of them handled as prepared",
    assigned "values kept with sockets",
    handled "handlers that waited",
    given_up "messages behind one that ended",
    holds "holds",
    overdue "of them overdue",
    spoken "broadcasts by handles",
    linked "works linked",
    listened "heard by listeners",
    presences "presences",
    presences_refused "presences refused",
    presence_diffs "diffs of presence",
    presence_states "lists pushed",
    presence_summaries "summaries",
    presence_changes "changes between lists and summaries",
    presence_lists "lists asked for outside",
    limited "over a limit",
    limited_closes "closes for that",
    let_pass "heartbeats and leaves that pass although",
    lifetimes "times of sockets set",
    lapsed "sockets whose time was over",
}
