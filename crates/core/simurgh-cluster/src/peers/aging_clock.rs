//! The clock by which nodes age.

/// A clock that runs only while this node has had a link for some seconds. Without a link no beats
/// are received, and over a new one others need time to send one.
#[derive(Clone, Debug)]
pub(super) struct AgingClock {
    settles_ns: u64,
    up_since_ns: Option<u64>,
    shown_ns: u64,
}

impl AgingClock {
    pub(super) const fn new(settles_ns: u64) -> Self {
        Self { settles_ns, up_since_ns: None, shown_ns: 0 }
    }

    pub(super) const fn is_up(&self) -> bool {
        self.up_since_ns.is_some()
    }

    pub(super) const fn is_running(&self, now_ns: u64) -> bool {
        match self.up_since_ns {
            Some(since_ns) => now_ns >= since_ns.saturating_add(self.settles_ns),
            None => false,
        }
    }

    pub(super) const fn shows_ns(&self, now_ns: u64) -> u64 {
        match self.up_since_ns {
            Some(since_ns) => {
                let starts_ns = since_ns.saturating_add(self.settles_ns);
                self.shown_ns.saturating_add(now_ns.saturating_sub(starts_ns))
            }
            None => self.shown_ns,
        }
    }

    /// When it will show this time; never without a link.
    pub(super) fn when_ns(&self, shows_ns: u64) -> Option<u64> {
        let starts_ns = self.up_since_ns?.saturating_add(self.settles_ns);
        Some(starts_ns.saturating_add(shows_ns.saturating_sub(self.shown_ns)))
    }

    pub(super) const fn up(&mut self, now_ns: u64) {
        self.shown_ns = self.shows_ns(now_ns);
        self.up_since_ns = Some(now_ns);
    }

    pub(super) const fn down(&mut self, now_ns: u64) {
        self.shown_ns = self.shows_ns(now_ns);
        self.up_since_ns = None;
    }

    /// This process did not run since then: beats of that time are received from now on.
    pub(super) const fn skip(&mut self, since_ns: u64, now_ns: u64) {
        if self.is_up() {
            self.shown_ns = self.shows_ns(since_ns);
            self.up_since_ns = Some(now_ns);
        }
    }
}
