//! The clock by which nodes age.

/// A clock that runs only while the own link is there and has been for some seconds. Nobody can
/// be heard without it, and over a new one others need time to be heard again.
#[derive(Clone, Debug)]
pub(super) struct AgingClock {
    settles_ns: u64,
    up_since_ns: Option<u64>,
    /// What it showed when the link came or went last.
    shown_ns: u64,
}

impl AgingClock {
    pub(super) const fn new(settles_ns: u64) -> Self {
        Self { settles_ns, up_since_ns: None, shown_ns: 0 }
    }

    pub(super) const fn is_up(&self) -> bool {
        self.up_since_ns.is_some()
    }

    /// It runs.
    pub(super) const fn is_running(&self, now_ns: u64) -> bool {
        match self.up_since_ns {
            Some(since_ns) => now_ns >= since_ns.saturating_add(self.settles_ns),
            None => false,
        }
    }

    /// What it shows.
    pub(super) const fn shows_ns(&self, now_ns: u64) -> u64 {
        match self.up_since_ns {
            Some(since_ns) => {
                let starts_ns = since_ns.saturating_add(self.settles_ns);
                self.shown_ns.saturating_add(now_ns.saturating_sub(starts_ns))
            }
            None => self.shown_ns,
        }
    }

    /// When it will show so much; never without a link.
    pub(super) fn when_ns(&self, shows_ns: u64) -> Option<u64> {
        let starts_ns = self.up_since_ns?.saturating_add(self.settles_ns);
        Some(starts_ns.saturating_add(shows_ns.saturating_sub(self.shown_ns)))
    }

    /// There is another link.
    pub(super) const fn up(&mut self, now_ns: u64) {
        self.shown_ns = self.shows_ns(now_ns);
        self.up_since_ns = Some(now_ns);
    }

    /// There is none any more.
    pub(super) const fn down(&mut self, now_ns: u64) {
        self.shown_ns = self.shows_ns(now_ns);
        self.up_since_ns = None;
    }

    /// This process did not run since then: what it would have heard it hears from now on.
    pub(super) const fn skip(&mut self, since_ns: u64, now_ns: u64) {
        if self.is_up() {
            self.shown_ns = self.shows_ns(since_ns);
            self.up_since_ns = Some(now_ns);
        }
    }
}
