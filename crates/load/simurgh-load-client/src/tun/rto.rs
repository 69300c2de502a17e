//! The retransmission timeout (RFC 6298), with one estimate for all connections of a device, as
//! RFC 9040 allows: they have the same way.

use super::tcp::RTO_MAX_MS;

/// The timeout before the first measurement, and the shortest one.
const RTO_MIN_MS: u32 = 1000;

/// An estimate of round-trip times.
#[derive(Debug, Default)]
pub(super) struct Rto {
    /// Eight times the smoothed time, ms; 0: not measured.
    smoothed_8: u32,
    /// Four times the mean deviation, ms.
    deviation_4: u32,
}

impl Rto {
    pub(super) fn measured(&mut self, rtt_ms: u32) {
        // The clock's granularity is 1 ms.
        let rtt_ms = rtt_ms.clamp(1, RTO_MAX_MS);
        if self.smoothed_8 == 0 {
            (self.smoothed_8, self.deviation_4) = (rtt_ms * 8, rtt_ms * 2);
            return;
        }
        let deviation = (self.smoothed_8 / 8).abs_diff(rtt_ms);
        self.deviation_4 = self.deviation_4 - self.deviation_4 / 4 + deviation;
        self.smoothed_8 = self.smoothed_8 - self.smoothed_8 / 8 + rtt_ms;
    }

    pub(super) fn ms(&self) -> u32 {
        (self.smoothed_8 / 8 + self.deviation_4.max(1)).clamp(RTO_MIN_MS, RTO_MAX_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_follows_rfc_6298_and_has_its_limits() {
        let mut rto = Rto::default();
        assert_eq!(rto.ms(), 1000, "(2.1)");
        rto.measured(600);
        assert_eq!(rto.ms(), 600 + 4 * 300, "(2.2)");
        rto.measured(1000);
        // Deviation 3/4 * 300 + 1/4 * 400, time 7/8 * 600 + 1/8 * 1000.
        assert_eq!(rto.ms(), 650 + 4 * 325, "(2.3)");
        for _ in 0..100 {
            rto.measured(0);
        }
        assert_eq!(rto.ms(), 1000, "(2.4)");
        for _ in 0..100 {
            rto.measured(u32::MAX);
        }
        assert_eq!(rto.ms(), 60_000, "(2.5)");
    }
}
