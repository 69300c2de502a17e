//! Seeds outside of the fixed ranges that once failed (`--found`).

/// Seeds of several nodes that once failed, with their operations.
pub(crate) const PLAIN: [(u64, usize); 6] = [
    // A change in a parted engine is lost, over links that are new.
    (12_315, 1000),
    // The server never removed the presences of a node that sent no heartbeat.
    (2873, 1000),
    // A process that did not run does not ask for what it missed.
    (2987, 1000),
    // A state from before a new link counts as the answer to a request over it.
    (1_795_785_916_536_504, 2000),
    // A disconnect waits for a node that has ended, because its hello arrives late.
    (1_795_787_562_953_677, 2000),
    // Four cuts meet a change and each time that its version is repeated.
    (1_795_788_051_363_003, 2000),
];

/// The same for topics with a history.
pub(crate) const WITH_HISTORY: [(u64, usize); 9] = [
    // A message that waits hid a loss behind it.
    (9766, 400),
    // A node that stood still passes on a message before it knows that.
    (62_137, 400),
    // A live message goes before one that waits for what is missing.
    (14_400, 400),
    // A purge of a lost engine's numbers is asked of the next.
    (10_007, 400),
    // The node assigned events before a link is up to the former epoch.
    (10_750, 400),
    // Messages expire without a gap while a parted engine does not answer.
    (1_795_755_566_456_916, 400),
    // A presence delta that is sent before a requested state is lost, and never repeated.
    (1_795_776_644_593_309, 2000),
    (1_795_776_644_594_643, 2000),
    // A client comes to a copy that does not have its message yet, and receives it twice.
    (1_795_787_683_819_653, 2000),
];
