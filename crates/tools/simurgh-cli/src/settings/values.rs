//! Parsers of settings that are neither numbers nor times, for flags and file: they return the
//! checked value or the mistake.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use simurgh::{CheckOrigin, Compress};
use simurgh_text::{Choice, bytes_at_least_one, parse_bytes, whole};
use simurgh_tune::CONNECTIONS_MAX;
use tracing_subscriber::filter::LevelFilter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address with a port"))
}

pub(crate) fn size_from(least: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match parse_bytes(text)? {
        bytes if bytes < least => Err(format!("{text:?} is less than {least} bytes")),
        bytes => Ok(bytes),
    }
}

pub(crate) fn compress(text: &str) -> Result<Compress, String> {
    text.parse().map_err(|_| format!("{text:?} is not \"off\", \"text\" or \"all\""))
}

/// The maximum is the largest piece from a shard to the HTTP side.
pub(crate) fn head_bytes(text: &str) -> Result<usize, String> {
    match bytes_at_least_one(text)? {
        bytes @ 1_024..=65_536 => Ok(bytes),
        _ => Err(format!("{text:?} is not from 1024 to 65536 bytes")),
    }
}

/// An existing directory.
pub(crate) fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err(format!("{text:?} is not a directory")) }
}

/// A file, which need not exist yet, in an existing directory.
pub(crate) fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let is_in_one = folder.is_none_or(std::path::Path::is_dir);
    match path.file_name() {
        Some(_) if is_in_one && !path.is_dir() => Ok(path),
        Some(_) if is_in_one => Err(format!("{text:?} is a directory, not a file")),
        Some(_) => Err(format!("{text:?} is in a directory that does not exist")),
        None => Err(format!("{text:?} does not name a file")),
    }
}

pub(crate) fn count(text: &str) -> Result<usize, String> {
    whole(1, CONNECTIONS_MAX)(text)
}

pub(crate) fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{text:?} is not JSON: {error}"))
}

/// `auto`, `off`, `conn`, `local`, or a list with commas.
pub(crate) fn check_origin(text: &str) -> Result<Choice<CheckOrigin>, String> {
    Ok(Choice::Value(match text {
        "auto" => return Ok(Choice::Word),
        "off" => CheckOrigin::Off,
        "conn" => CheckOrigin::Conn,
        "local" => CheckOrigin::Local,
        list => CheckOrigin::list(list.split(',').map(str::trim))
            .map_err(|error| format!("{text:?}: {error}"))?,
    }))
}

/// A network in CIDR form; an address alone is a network of one.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    let network = text.parse::<IpNet>().or_else(|_| alone());
    network.map_err(|_| format!("{text:?} is not a network"))
}

/// A name as in `Host`, without a port; an address of version 6 without brackets.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_name = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    match text.parse::<IpAddr>().is_ok() || (!text.is_empty() && is_name(text)) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("{text:?} is not a host name: write it without scheme, port and wildcard"))
        }
    }
}

/// A bearer token of visible ASCII (RFC 6750 allows less). Errors do not repeat the secret.
pub(crate) fn token(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("is empty: remove it to have no token".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must not contain spaces or characters beyond ASCII".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn level(text: &str) -> Result<LevelFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    // Numbers and capitals are none.
    let level = LEVELS.contains(&text).then(|| text.parse().ok()).flatten();
    level.ok_or_else(|| format!("{text:?} is not a level"))
}

pub(crate) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?} is not a format")),
    }
}

#[cfg(test)]
mod tests {
    use simurgh_text::word_or;

    use super::*;

    #[test]
    fn networks_and_addresses_are_parsed() {
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
    fn origin_lists_and_host_names_are_parsed() {
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
    fn numbers_out_of_range_are_refused() {
        let shards = word_or("auto", whole::<usize>(1, 4_096));
        assert_eq!(shards("2"), Ok(Choice::Value(2)));
        assert_eq!(shards("auto"), Ok(Choice::Word));
        for wrong in ["0", "-1", "two", "4097", "1.5", ""] {
            assert!(shards(wrong).is_err(), "{wrong}");
        }
        assert!(whole::<u16>(1, 65_535)("65536").is_err());
        assert!(size_from(125)("124").is_err());
        assert!(bytes_at_least_one("0").is_err());
    }

    #[test]
    fn invalid_token_is_not_shown_in_the_error() {
        let error = token("s3cret with a space").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
        assert!(token("").is_err());
        assert_eq!(token("s3cret").as_deref(), Ok("s3cret"));
    }
}
