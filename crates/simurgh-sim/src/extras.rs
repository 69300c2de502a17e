//! What seeds have beside the rest of their profile, drawn by itself: what was found before there
//! was any of it is found again by the same seeds, which run without (`early` in `seeds.txt`).

use fastrand::Rng;

/// See the module. Each may be switched off, to shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    /// How many shards may fan out at once, if that is not for the cores to say.
    pub(crate) permits: Option<u8>,
    /// Members that are too many on a shard to be served without a permit.
    pub(crate) is_crowded: bool,
}

impl Extras {
    /// What a seed makes, for so many shards.
    pub(crate) fn of(seed: u64, shards: usize) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x0045_5854_5241_53ff);
        let is_crowded = rng.u8(..) < 3;
        let permits = match rng.u8(..) {
            _ if is_crowded => Some(1),
            0..150 => Some(rng.usize(1..=shards) as u8),
            _ => None,
        };
        Self { permits, is_crowded }
    }

    /// As a word of a file.
    pub(crate) fn word(self) -> String {
        let Self { permits, is_crowded } = self;
        let permits = permits.map_or_else(|| "-".to_owned(), |it| it.to_string());
        format!("{permits},{}", u8::from(is_crowded))
    }

    /// From such a word.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        let (permits, switches) = word.split_once(',')?;
        let permits = if permits == "-" { None } else { Some(permits.parse().ok()?) };
        let switches: u8 = switches.parse().ok()?;
        Some(Self { permits, is_crowded: switches & 1 != 0 })
    }
}
