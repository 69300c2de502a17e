//! Dates of cookies, in every form that RFC 6265 §5.1.1 accepts.
//!
//! `httpdate` reads only the three forms of HTTP; servers also write dates with dashes, without a
//! weekday, or in another order.

use std::time::{Duration, UNIX_EPOCH};

/// Since 1970; earlier dates become 1970.
pub(super) fn date(value: &[u8]) -> Option<Duration> {
    let (mut time, mut day, mut month, mut year) = (None, None, None, None);
    for token in value.split(|byte| is_delimiter(*byte)).filter(|token| !token.is_empty()) {
        if time.is_none() && clock(token).is_some() {
            time = clock(token);
        } else if day.is_none() && number(token, 1..=2).is_some() {
            day = number(token, 1..=2);
        } else if month.is_none() && month_of(token).is_some() {
            month = month_of(token);
        } else if year.is_none() {
            year = number(token, 2..=4);
        }
    }
    let (hour, minute, second) = time?;
    let year = match year? {
        short @ 0..=69 => short + 2000,
        short @ 70..=99 => short + 1900,
        year => year,
    };
    if year < 1601 || second > 59 {
        return None;
    }
    // Four centuries later the calendar is the same; what is before 1970 is only checked.
    let later = if year < 1970 { year + 400 } else { year };
    let (month, day) = (month? + 1, day?);
    let text = format!("{later:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    let time = humantime::parse_rfc3339(&text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(if later == year { time } else { Duration::ZERO })
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x20..=0x2f | 0x3b..=0x40 | 0x5b..=0x60 | 0x7b..=0x7e)
}

/// The number at the start of a token, if its count of digits is in the range.
fn number(token: &[u8], digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let end = token.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(token.len());
    let front = token.get(..end).filter(|_| digits.contains(&end))?;
    str::from_utf8(front).ok()?.parse().ok()
}

/// `hh:mm:ss` at the front of a token.
fn clock(token: &[u8]) -> Option<(u32, u32, u32)> {
    let mut fields = token.splitn(3, |byte| *byte == b':');
    let whole = |field: &[u8]| field.iter().all(u8::is_ascii_digit);
    let (hour, minute, second) = (fields.next()?, fields.next()?, fields.next()?);
    let (hour, minute) = Some((hour, minute)).filter(|(h, m)| whole(h) && whole(m))?;
    Some((number(hour, 1..=2)?, number(minute, 1..=2)?, number(second, 1..=2)?))
}

fn month_of(token: &[u8]) -> Option<u32> {
    let name = token.get(..3)?;
    let at = MONTHS.iter().position(|month| month.as_bytes().eq_ignore_ascii_case(name))?;
    u32::try_from(at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_dates_of_rfc_6265_are_parsed_in_every_format() {
        let wanted = Some(Duration::from_secs(1_900_000_000));
        for text in [
            "Sun, 17 Mar 2030 17:46:40 GMT",
            "Sunday, 17-Mar-30 17:46:40 GMT",
            "Sun Mar 17 17:46:40 2030",
            "Sun, 17-Mar-2030 17:46:40 GMT",
            "17 Mar 2030 17:46:40",
            "17:46:40 17 march 2030 UTC",
            "2030 mar 17 17:46:40",
            "Sun, 17 MARCH 30 17:46:40x",
            "17th Mar 2030 17:46:40",
            "Sun;17/Mar/2030 (17:46:40) +0200",
        ] {
            assert_eq!(date(text.as_bytes()), wanted, "{text}");
        }
        let midnight = Some(Duration::from_secs(86_400 * 365));
        assert_eq!(date(b"1 Jan 71 0:0:0"), midnight);
        assert_eq!(date(b"Fri, 01 Jan 1971 00:00:00 GMT"), midnight);
        assert_eq!(date(b"29 Feb 2000 0:0:1"), Some(Duration::from_secs(951_782_401)));
        assert_eq!(date(b"31 Dec 9999 23:59:59"), Some(Duration::from_secs(253_402_300_799)));
        for text in ["Mon, 01-Jan-1601 00:00:00 GMT", "31 Dec 1969 23:59:59", "29 Feb 1904 1:1:1"] {
            assert_eq!(date(text.as_bytes()), Some(Duration::ZERO), "{text}");
        }
        let no_tuesday = date(b"Tue, 17 Mar 2030 17:46:40 GMT");
        assert_eq!(no_tuesday, wanted, "the weekday is not looked at");
    }

    #[test]
    fn invalid_cookie_dates_are_ignored() {
        for text in [
            "",
            "tomorrow",
            "17 Mar 2030",
            "17 Mar 2030 24:00:00",
            "17 Mar 2030 17:60:00",
            "17 Mar 2030 17:46:60",
            "17 Mar 2030 17:46",
            "30 Feb 2030 17:46:40",
            "29 Feb 1901 17:46:40",
            "31 Apr 2030 17:46:40",
            "32 Mar 2030 17:46:40",
            "0 Mar 2030 17:46:40",
            "17 Mar 1600 17:46:40",
            "17 Mar 203 17:46:40",
            "17 Mar 20300 17:46:40",
            "17 Foo 2030 17:46:40",
        ] {
            assert_eq!(date(text.as_bytes()), None, "{text}");
        }
    }
}
