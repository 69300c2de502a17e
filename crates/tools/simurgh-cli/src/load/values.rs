//! Values of flags of the load generator only.

use simurgh_text::whole;

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
        _ => Err(format!("{text:?} is no number of users")),
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
            _ => return Err(format!("{part:?} is no core, nor a range of cores")),
        }
    }
    Ok(Cores(cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(cores("3"), Ok(Cores(vec![3])));
        assert_eq!(cores("0-2,5"), Ok(Cores(vec![0, 1, 2, 5])));
        for wrong in ["", "a", "2-1", "1-", "0,", "0-99999999999"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn maps_have_two_sides() {
        assert_eq!(map("a=b:1"), Ok(("a".to_owned(), "b:1".to_owned())));
        for wrong in ["", "a", "=b", "a="] {
            assert!(map(wrong).is_err(), "{wrong}");
        }
        assert_eq!(users("15_000"), Ok(15_000));
        assert!(users("0").is_err() && workers("0").is_err());
    }
}
