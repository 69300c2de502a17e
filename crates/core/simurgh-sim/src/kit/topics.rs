//! Topics by their numbers.

/// Ids that sockets may have.
pub(crate) const IDS: usize = 3;

/// Names of topics by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topics {
    /// All names; those of rooms come first.
    pub(crate) names: Vec<String>,
    pub(crate) rooms: usize,
    /// A topic whose name is too long to be joined.
    pub(crate) over: Option<u8>,
}

/// Longest topic of a join or a broadcast.
pub(crate) const TOPIC_BYTES_MAX: usize = 16 << 10;
/// Longest field of a binary frame.
pub(crate) const FIELD_BYTES_MAX: usize = 255;

impl Topics {
    /// This many rooms, with short names, names about as long as a binary frame has room for, or
    /// about as long as can be joined.
    pub(crate) fn new(rooms: usize, long: u8) -> Self {
        let bytes = |n: usize| match long {
            0 => 7,
            1 => FIELD_BYTES_MAX + [1, 0, 2, 40][n % 4],
            _ => [TOPIC_BYTES_MAX, FIELD_BYTES_MAX + 1, TOPIC_BYTES_MAX - 1, 7][n % 4],
        };
        let name = |bytes: usize, n: usize| format!("rooms:{}{n}", "x".repeat(bytes - 7));
        let mut topics = Self::named((0..rooms).map(|n| name(bytes(n), n)).collect());
        topics.over = (long > 1).then_some(topics.names.len() as u8);
        topics.names.extend(topics.over.map(|_| name(TOPIC_BYTES_MAX + 1, 9)));
        topics
    }

    /// Rooms with these names.
    pub(crate) fn named(mut names: Vec<String>) -> Self {
        let rooms = names.len();
        names.extend(["other:0", "phoenix", "plain:0"].map(str::to_owned));
        names.extend((0..IDS).map(|n| format!("ids:{n}")));
        Self { names, rooms, over: None }
    }

    /// Whether a binary frame has no room for its name.
    pub(crate) fn is_wide(&self, topic: u8) -> bool {
        self.name(topic).len() > FIELD_BYTES_MAX
    }

    /// Whether it can be joined, apart from its length.
    pub(crate) fn is_room(&self, topic: u8) -> bool {
        usize::from(topic) < self.rooms || self.over == Some(topic)
    }

    pub(crate) fn unmatched(&self) -> u8 {
        self.rooms as u8
    }

    pub(crate) fn phoenix(&self) -> u8 {
        self.rooms as u8 + 1
    }

    /// The topic of sockets without a serializer.
    pub(crate) fn plain(&self) -> u8 {
        self.rooms as u8 + 2
    }

    pub(crate) fn id(&self, n: usize) -> u8 {
        (self.rooms + 3 + n % IDS) as u8
    }

    pub(crate) fn name(&self, topic: u8) -> &str {
        self.names.get(usize::from(topic)).map_or("", |it| it)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u8> {
        let digit = || name.bytes().next_back().map_or(0, |it| usize::from(it.wrapping_sub(b'0')));
        let guess = match name.as_bytes().first()? {
            b'r' if digit() == 9 => self.over.map_or(9, usize::from),
            b'r' => digit(),
            b'i' => usize::from(self.id(digit())),
            b'o' => self.rooms,
            _ if name == "phoenix" => self.rooms + 1,
            _ => self.rooms + 2,
        };
        match self.names.get(guess).is_some_and(|it| it == name) {
            true => Some(guess as u8),
            // Names in one bucket have any digits.
            false => self.names.iter().position(|it| it == name).map(|at| at as u8),
        }
    }
}
