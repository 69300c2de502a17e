//! Timestamps in the broker's format (RFC 3339).

use std::time::{Duration, UNIX_EPOCH};

/// The length of a time with nine digits after the seconds.
const LONGEST: usize = 30;

/// Milliseconds since 1970 of a time as `2026-11-23T16:22:18.123456789Z`, with up to nine digits
/// after the seconds; `None` for another text, or one before 1970.
pub(crate) fn unix_ms(text: &[u8]) -> Option<u64> {
    // The library accepts a point without digits, and any number of digits.
    let is_exact = |it: &&str| it.len() <= LONGEST && !it.ends_with(".Z");
    let text = str::from_utf8(text).ok().filter(is_exact)?;
    let time = humantime::parse_rfc3339(text).ok()?;
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

pub(crate) fn text(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(unix_ms)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_times_can_be_read() {
        let ms = |text: &str| unix_ms(text.as_bytes());
        assert_eq!(ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(ms("1970-01-01T00:00:00.9Z"), Some(900));
        assert_eq!(ms("2000-02-29T12:00:00.0015Z"), Some(951_825_600_001));
        assert_eq!(ms("2000-03-01T00:00:00Z"), Some(951_868_800_000));
        assert_eq!(ms("2026-11-23T16:22:18.123456789Z"), Some(1_795_450_938_123));
        assert_eq!(ms("9999-12-31T23:59:59.999999999Z"), Some(253_402_300_799_999));
    }

    #[test]
    fn times_are_written_with_all_their_digits() {
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_825_600_001), "2000-02-29T12:00:00.001Z");
        assert_eq!(text(1_798_761_599_999), "2026-12-31T23:59:59.999Z");
        assert_eq!(text(1_798_761_600_000), "2027-01-01T00:00:00.000Z");
    }

    #[test]
    fn invalid_time_is_rejected() {
        for text in [
            "",
            "1969-12-31T23:59:59Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-32T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.1234567890Z",
            "2026-01-01T00:00:00+02:00",
            "2026-01-01 00:00:00Z",
            "+026-01-01T00:00:00Z",
        ] {
            assert_eq!(unix_ms(text.as_bytes()), None, "{text:?}");
        }
    }
}
