//! Times as an engine writes them.

/// Milliseconds since 1970 of a time as `2026-11-23T16:22:18.123456789Z`, with up to nine digits
/// behind the seconds or none; none for another text, or one before 1970.
pub(crate) fn unix_ms(text: &[u8]) -> Option<u64> {
    let (head, rest) = text.split_at_checked(19)?;
    let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1, b'T', h0, h1, b':', i0, i1, b':', s0, s1] =
        head
    else {
        return None;
    };
    let of = |digits: &[u8]| {
        digits.iter().try_fold(0_u64, |sum, digit| {
            digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0'))
        })
    };
    let (year, month, day) = (of(&[*y0, *y1, *y2, *y3])?, of(&[*m0, *m1])?, of(&[*d0, *d1])?);
    let (hour, minute, second) = (of(&[*h0, *h1])?, of(&[*i0, *i1])?, of(&[*s0, *s1])?);
    let is_time = hour < 24 && minute < 60 && second <= 60;
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) || !is_time {
        return None;
    }
    let ms = match rest.strip_suffix(b"Z")? {
        [] => 0,
        [b'.', digits @ ..] if (1..=9).contains(&digits.len()) => {
            of(digits)? * 1_000 / 10_u64.pow(digits.len() as u32)
        }
        _ => return None,
    };
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000 + ms)
}

/// The same as an engine reads it.
pub(crate) fn text(unix_ms: u64) -> String {
    let (of_day_ms, days) = (unix_ms % DAY_MS, unix_ms / DAY_MS);
    let (hour, minute) = (of_day_ms / 3_600_000, of_day_ms / 60_000 % 60);
    let (second, ms) = (of_day_ms / 1_000 % 60, of_day_ms % 1_000);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

const DAY_MS: u64 = 86_400_000;

/// The date so many days after 1970-01-01.
fn date(since: u64) -> (u64, u64, u64) {
    let days_of = |year: u64| days(year, 1, 1);
    // A year has 365.2425 days.
    let mut year = 1970 + since.saturating_mul(400) / 146_097;
    while days_of(year) > since {
        year -= 1;
    }
    while days_of(year + 1) <= since {
        year += 1;
    }
    let month = (2..=12).take_while(|it| days(year, *it, 1) <= since).last().unwrap_or(1);
    (year, month, since - days(year, month, 1) + 1)
}

/// Days from 1970-01-01 to a date. Years begin in March, so that the day a leap year has more is
/// their last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
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
    fn what_is_no_time_is_none() {
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

    proptest! {
        /// Days follow each other, however long their months and years are.
        #[test]
        fn a_day_is_one_more_than_the_day_before(year in 1970..9_999_u64, month in 1..=12_u64) {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let lengths = [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            let length = lengths[month as usize - 1];
            let next = if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) };
            prop_assert_eq!(days(year, month, 1) + length, next);
        }

        #[test]
        fn a_time_that_is_written_is_read_as_the_same(ms in 0..253_402_300_800_000_u64) {
            prop_assert_eq!(unix_ms(text(ms).as_bytes()), Some(ms), "{}", text(ms));
        }

        #[test]
        fn no_bytes_do_harm(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = unix_ms(&text);
        }
    }
}
