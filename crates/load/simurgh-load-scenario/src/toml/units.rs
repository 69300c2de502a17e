//! Units of values that TOML has no type for; flags use the same texts.

use std::net::IpAddr;
use std::time::Duration;

use crate::AddressRange;

/// Users per second, of `1000`, `1000/s`, `60/min` or `100/h`. An error says what is wrong.
pub fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit.trim() {
        "s" | "sec" | "second" => 1.0,
        "min" | "m" | "minute" => 60.0,
        "h" | "hour" => 3600.0,
        unit => return Err(format!("{unit:?} is not a unit of a rate: use s, min or h")),
    };
    match number.trim().replace('_', "").parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number / seconds),
        _ => Err(format!("{:?} must be a number of 0 or more", number.trim())),
    }
}

/// Shortest and longest of `500ms-2s`, `1s` or, if both have one unit, `0-1s`.
pub(super) fn time_range(text: &str) -> Result<(Duration, Duration), String> {
    let time = |text: &str| {
        let found = text.trim().parse::<humantime::Duration>();
        found.map(|time| *time).map_err(|error| format!("{:?}: {error}", text.trim()))
    };
    let Some((first, last)) = text.split_once('-') else {
        return time(text).map(|only| (only, only));
    };
    let (first, last) = (first.trim(), last.trim());
    let is_bare = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    let unit = last.trim_start_matches(|char: char| char.is_ascii_digit());
    let first = if is_bare { time(&format!("{first}{unit}"))? } else { time(first)? };
    let last = time(last)?;
    if last < first {
        return Err(format!("{text:?} goes from a longer to a shorter time"));
    }
    Ok((first, last))
}

/// Addresses of `10.0.0.2`, `10.0.0.2-10.0.0.9` or, for the last part alone, `10.0.0.2-9`.
pub fn address_range(text: &str) -> Result<AddressRange, String> {
    let address = |text: &str| {
        let text = text.trim();
        text.parse::<IpAddr>().map_err(|_| format!("{text:?} is not an address"))
    };
    let Some((first, last)) = text.split_once('-') else {
        let only = address(text)?;
        return Ok(AddressRange { first: only, last: only });
    };
    let first = address(first)?;
    let last = match (first, last.trim().parse::<u8>()) {
        (IpAddr::V4(first), Ok(end)) => {
            let [a, b, c, _] = first.octets();
            IpAddr::from([a, b, c, end])
        }
        _ => address(last)?,
    };
    if first.is_ipv4() != last.is_ipv4() || last < first {
        return Err(format!("{text:?} does not go from a lower to a higher address"));
    }
    Ok(AddressRange { first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second() {
        assert_eq!(rate("1000"), Ok(1000.0));
        assert_eq!(rate("1_000/s"), Ok(1000.0));
        assert_eq!(rate("60/min"), Ok(1.0));
        assert_eq!(rate("7200 / h"), Ok(2.0));
        for wrong in ["", "/s", "5/fortnight", "-1", "inf", "NaN/s", "5/"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn time_ranges_are_parsed() {
        let ms = |text: &str| {
            time_range(text).map(|(first, last)| (first.as_millis(), last.as_millis()))
        };
        for (text, first, last) in [
            ("1s", 1000, 1000),
            ("0-1s", 0, 1000),
            ("0s-1s", 0, 1000),
            ("500ms - 2s", 500, 2000),
            ("1-3 min", 60_000, 180_000),
            ("1s 500ms-1m 2s", 1500, 62_000),
        ] {
            assert_eq!(ms(text), Ok((first, last)), "{text}");
        }
        for wrong in ["", "-", "1", "2s-1s", "-1s", "1s-", "1s-2", "1s-2s-3s", "1x-2x"] {
            assert!(time_range(wrong).is_err(), "{wrong}: {:?}", ms(wrong));
        }
    }

    #[test]
    fn address_ranges_ascend_within_one_address_family() {
        let shown = |text: &str| address_range(text).map(|r| format!("{} {}", r.first, r.last));
        assert_eq!(shown("127.0.0.2").as_deref(), Ok("127.0.0.2 127.0.0.2"));
        assert_eq!(shown("127.0.0.2-9").as_deref(), Ok("127.0.0.2 127.0.0.9"));
        assert_eq!(shown("127.0.0.2 - 127.0.1.9").as_deref(), Ok("127.0.0.2 127.0.1.9"));
        assert_eq!(shown("::1-::9").as_deref(), Ok("::1 ::9"));
        for wrong in ["", "a", "127.0.0.9-2", "127.0.0.1-::1", "127.0.0.1-999", "-"] {
            assert!(address_range(wrong).is_err(), "{wrong}");
        }
    }
}
