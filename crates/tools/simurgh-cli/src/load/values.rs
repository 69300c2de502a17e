//! Values of flags of the load generator only.

use std::time::Duration;

use simurgh_load::scenario::Threshold;
use simurgh_load::scenario::figures::parse_threshold;
use simurgh_text::{duration, whole};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cores(pub(super) Vec<usize>);

pub(super) fn map(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((host, address)) if !host.is_empty() && !address.is_empty() => {
            Ok((host.to_owned(), address.to_owned()))
        }
        _ => Err(format!("{text:?} is not HOST=ADDRESS")),
    }
}

pub(super) fn users(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(users) if users > 0 => Ok(users),
        _ => Err(format!("{text:?} is not a number of users: write a whole number above 0")),
    }
}

/// A name of a figure and a condition: `errors == 0`.
pub(super) fn threshold(text: &str) -> Result<Threshold, String> {
    let (name, condition) = text.split_at(text.find(['<', '>', '=', '!']).unwrap_or(text.len()));
    parse_threshold(name.trim(), condition)
}

/// A number alone counts seconds, as in wrk.
pub(super) fn seconds_or_duration(text: &str) -> Result<Duration, String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => duration(&format!("{text}s")),
        false => duration(text),
    }
}

/// More threads than this are a typing mistake.
const WORKERS_MAX: u32 = 2_000;

pub(super) fn workers(text: &str) -> Result<usize, String> {
    whole(1, WORKERS_MAX)(text)
}

/// More cores than any host has.
const CORES_MAX: usize = 4_096;

pub(super) fn cores(text: &str) -> Result<Cores, String> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last < CORES_MAX => {
                cores.extend(first..=last);
            }
            _ => {
                return Err(format!(
                    "{part:?} is not a core or a range of cores: write 2,3 or 4-7"
                ));
            }
        }
    }
    Ok(Cores(cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_is_a_figure_and_a_condition() {
        for right in ["errors == 0", "errors==0", " http_p99 < 50ms", "connected>=100"] {
            assert!(threshold(right).is_ok(), "{right}");
        }
        for wrong in ["", "errors", "== 0", "errors = ", "nothing == 0"] {
            assert!(threshold(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn number_alone_counts_seconds() {
        assert_eq!(seconds_or_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(seconds_or_duration("10ms"), Ok(Duration::from_millis(10)));
        assert!(seconds_or_duration("").is_err() && seconds_or_duration("-1").is_err());
    }

    #[test]
    fn core_lists_are_parsed() {
        assert_eq!(cores("3"), Ok(Cores(vec![3])));
        assert_eq!(cores("0-2,5"), Ok(Cores(vec![0, 1, 2, 5])));
        for wrong in ["", "a", "2-1", "1-", "0,", "0-99999999999"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mappings_need_both_sides() {
        assert_eq!(map("a=b:1"), Ok(("a".to_owned(), "b:1".to_owned())));
        for wrong in ["", "a", "=b", "a="] {
            assert!(map(wrong).is_err(), "{wrong}");
        }
        assert_eq!(users("15_000"), Ok(15_000));
        assert!(users("0").is_err() && workers("0").is_err());
    }
}
