//! How values are written, the same in flags and in the file: texts in, checked values or what is
//! wrong.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use simurgh::CheckOrigin;
use tracing_subscriber::filter::LevelFilter;

/// A value, or the word that says there is none (`off`) or that it is found out (`auto`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    /// The word.
    Word,
    /// The value.
    Value(T),
}

impl<T> Choice<T> {
    /// The value, if it is one.
    pub(crate) fn value(self) -> Option<T> {
        match self {
            Self::Word => None,
            Self::Value(value) => Some(value),
        }
    }

    fn read(
        text: &str,
        word: &str,
        value: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Self, String> {
        if text == word { Ok(Self::Word) } else { value(text).map(Self::Value) }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is no address with a port"))
}

pub(crate) fn address_or_off(text: &str) -> Result<Choice<SocketAddr>, String> {
    Choice::read(text, "off", address)
}

/// Longer than nothing.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match duration_or_zero(text)? {
        Duration::ZERO => Err("must be longer than nothing".to_owned()),
        duration => Ok(duration),
    }
}

pub(crate) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let duration: Duration =
        text.parse::<humantime::Duration>().map_err(|error| format!("{text:?}: {error}"))?.into();
    if duration > DURATION_MAX {
        return Err(format!("{text:?} is longer than {} days", DURATION_MAX.as_secs() / 86_400));
    }
    Ok(duration)
}

/// Far beyond any use, and far below what a shard's clock counts to.
const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);

pub(crate) fn duration_or_off(text: &str) -> Result<Choice<Duration>, String> {
    Choice::read(text, "off", duration)
}

pub(crate) fn duration_or_never(text: &str) -> Result<Choice<Duration>, String> {
    Choice::read(text, "never", duration)
}

pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    match simurgh::declared::parse_bytes(text)? {
        0 => Err("must be at least 1 byte".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(crate) fn bytes_or_off(text: &str) -> Result<Choice<usize>, String> {
    Choice::read(text, "off", bytes)
}

/// Frames and messages: what does not fit a control frame cannot be told to close properly.
pub(crate) fn message_bytes(text: &str) -> Result<usize, String> {
    match simurgh::declared::parse_bytes(text)? {
        bytes if bytes < 125 => Err(format!("{text:?} is less than 125 bytes")),
        bytes => Ok(bytes),
    }
}

pub(crate) fn shards(text: &str) -> Result<Choice<usize>, String> {
    Choice::read(text, "auto", |text| between(text, 1, SHARDS_MAX).map(|n| n as usize))
}

/// Threads; with 20,000 descriptors each, enough for 80 million connections.
pub(crate) const SHARDS_MAX: u32 = 4_096;

/// Of a server, or `off`.
pub(crate) fn connections(text: &str) -> Result<Choice<usize>, String> {
    Choice::read(text, "off", |text| between(text, 1, CONNECTIONS_MAX).map(|n| n as usize))
}

/// Of one address or user, or `off`.
pub(crate) fn connections_of_one(text: &str) -> Result<Choice<u32>, String> {
    Choice::read(text, "off", |text| between(text, 1, CONNECTIONS_MAX))
}

/// Of a road, from which on it has a milestone to measure at.
pub(crate) fn road_connections(text: &str) -> Result<u64, String> {
    between(text, 100, CONNECTIONS_MAX).map(u64::from)
}

/// That a machine is to hold.
pub(crate) fn connections_wanted(text: &str) -> Result<u64, String> {
    between(text, 1, CONNECTIONS_MAX).map(u64::from)
}

/// What [`SHARDS_MAX`] shards can hold where each has 20,000 descriptors.
pub(crate) const CONNECTIONS_MAX: u32 = 80_000_000;

/// Of the HTTP side.
pub(crate) fn http_threads(text: &str) -> Result<Choice<usize>, String> {
    Choice::read(text, "auto", |text| between(text, 1, 1_024).map(|n| n as usize))
}

/// Plain HTTP ones.
pub(crate) fn http_connections(text: &str) -> Result<usize, String> {
    between(text, 1, 1_000_000).map(|n| n as usize)
}

/// Of one connection.
pub(crate) fn http_requests(text: &str) -> Result<u64, String> {
    between(text, 1, 1_000_000_000).map(u64::from)
}

/// Of a request, so many as a shard can look at.
pub(crate) fn headers(text: &str) -> Result<usize, String> {
    between(text, 1, 100).map(|n| n as usize)
}

/// Of a request: what has room in one piece when it changes sides.
pub(crate) fn head_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        bytes @ 1_024..=65_536 => Ok(bytes),
        _ => Err(format!("{text:?} is not from 1024 to 65536 bytes")),
    }
}

/// One that is there.
pub(crate) fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err(format!("{text:?} is no directory")) }
}

/// A file that need not be there yet, in a folder that is.
pub(crate) fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let is_in_one = folder.is_none_or(std::path::Path::is_dir);
    match path.file_name() {
        Some(_) if is_in_one && !path.is_dir() => Ok(path),
        Some(_) if is_in_one => Err(format!("{text:?} is a directory, and no file")),
        Some(_) => Err(format!("{text:?} is in no directory that is there")),
        None => Err(format!("{text:?} names no file")),
    }
}

/// How many of something.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    between(text, 1, CONNECTIONS_MAX).map(|n| n as usize)
}

pub(crate) fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{text:?} is not JSON: {error}"))
}

/// Bytes in millions.
pub(crate) fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

pub(crate) fn channels(text: &str) -> Result<u16, String> {
    between(text, 1, u32::from(u16::MAX)).map(|n| n as u16)
}

pub(crate) fn members(text: &str) -> Result<u32, String> {
    between(text, 0, u32::MAX)
}

/// Keys of presences: those that are made up have to fit, too.
pub(crate) fn key_bytes(text: &str) -> Result<usize, String> {
    match simurgh::declared::parse_bytes(text)? {
        bytes if bytes < 32 => Err(format!("{text:?} is less than 32 bytes")),
        bytes => Ok(bytes),
    }
}

/// How many presences; 0: none.
pub(crate) fn presences(text: &str) -> Result<usize, String> {
    between(text, 0, u32::MAX).map(|n| n as usize)
}

/// How many presences one channel may have.
pub(crate) fn entries(text: &str) -> Result<usize, String> {
    between(text, 1, u32::from(u16::MAX)).map(|n| n as usize)
}

fn between(text: &str, least: u32, most: u32) -> Result<u32, String> {
    match text.replace('_', "").parse::<u32>() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is no whole number from {least} to {most}")),
    }
}

/// `auto`, `off`, `conn`, `local`, or a list with commas.
pub(crate) fn check_origin(text: &str) -> Result<Choice<CheckOrigin>, String> {
    Choice::read(text, "auto", |text| match text {
        "off" => Ok(CheckOrigin::Off),
        "conn" => Ok(CheckOrigin::Conn),
        "local" => Ok(CheckOrigin::Local),
        list => {
            let entries = list.split(',').map(str::trim);
            CheckOrigin::list(entries).map_err(|error| format!("{text:?}: {error}"))
        }
    })
}

/// A network in CIDR form; an address alone is a network of one.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    let network = text.parse::<IpNet>().or_else(|_| alone());
    network.map_err(|_| format!("{text:?} is no network"))
}

/// A name as it stands in `Host`, without a port; an address of version 6 without brackets.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_name = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    match text.parse::<IpAddr>().is_ok() || (!text.is_empty() && is_name(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is no host; it has no scheme, no port and no wildcard")),
    }
}

/// A bearer token as RFC 6750 has it, more or less; what is wrong is never repeated, it is a
/// secret.
pub(crate) fn token(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("is empty; leave it out for no token".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("holds spaces or characters beyond ASCII".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn level(text: &str) -> Result<LevelFilter, String> {
    match text {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!("{text:?} is no level")),
    }
}

pub(crate) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?} is no format")),
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration_or_off("off"), Ok(Choice::Word));
        assert_eq!(duration_or_zero("0s"), Ok(Duration::ZERO));
        for wrong in ["60", "0s", "", "-1s", "s", "1 fortnight", "off", "1e9y", "366d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn networks_and_addresses() {
        assert_eq!(network("10.0.0.0/8").map(|net| net.prefix_len()), Ok(8));
        assert_eq!(network("10.1.2.3").map(|net| net.prefix_len()), Ok(32));
        assert_eq!(network("fd00::/8").map(|net| net.prefix_len()), Ok(8));
        for wrong in ["10.0.0.0/33", "example.com", "", "10.0.0"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
        assert!(address("[::1]:4000").is_ok());
        for wrong in ["127.0.0.1", "localhost:4000", ":4000", "127.0.0.1:99999", "::1:4000:"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn origins() {
        assert_eq!(check_origin("auto"), Ok(Choice::Word));
        assert_eq!(check_origin("off"), Ok(Choice::Value(CheckOrigin::Off)));
        assert_eq!(check_origin("conn"), Ok(Choice::Value(CheckOrigin::Conn)));
        assert_eq!(check_origin("local"), Ok(Choice::Value(CheckOrigin::Local)));
        for right in ["chat.example.com", "backend_1", "10.0.0.1", "fd00::1"] {
            assert_eq!(host(right).as_deref(), Ok(right));
        }
        for wrong in ["", "http://a", "a:80", "a/b", "*.a", "[::1]", "a b"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
        let list = check_origin("//a.com, https://b.com,//*.c.com").map(Choice::value);
        assert!(matches!(list, Ok(Some(CheckOrigin::List(entries))) if entries.len() == 3));
        for wrong in ["", "a.com", "//", "//a.com,", "conn,off"] {
            assert!(check_origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(shards("2"), Ok(Choice::Value(2)));
        assert_eq!(shards("auto"), Ok(Choice::Word));
        for wrong in ["0", "-1", "two", "4097", "1.5", ""] {
            assert!(shards(wrong).is_err(), "{wrong}");
        }
        assert!(channels("65536").is_err());
        assert!(message_bytes("124").is_err());
        assert!(bytes("0").is_err());
    }

    #[test]
    fn a_wrong_token_is_not_repeated() {
        let error = token("s3cret with a space").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
        assert!(token("").is_err());
        assert_eq!(token("s3cret").as_deref(), Ok("s3cret"));
    }
}
