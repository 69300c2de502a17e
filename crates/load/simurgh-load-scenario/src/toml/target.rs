//! The servers of a scenario: its targets, and those that steps name.

use std::net::SocketAddr;

use simurgh_text::toml::{Entry, Table};

use super::read::Reader;
use super::tables::weight;
use crate::{Diagnostic, Overrides, Target, mapped, resolve};

const TAKES: &str = "a table [target] with url = \"ws://HOST:PORT\"";

impl Reader<'_> {
    /// The targets of the text, or those of the flags.
    pub(super) fn read_targets(&self, root: &Table<'_, '_>) {
        if !self.overrides.targets.is_empty() {
            // The servers of the text may have no address here.
            let _ = root.get("target");
            return self.targets_of_flags();
        }
        let Some(targets) = root.need("target", TAKES) else { return };
        let entries = targets.one_or_more();
        if entries.is_empty() {
            targets.wrong("names no server", format!("it takes {TAKES}, or several [[target]]"));
        }
        let mut lines = Vec::new();
        for entry in entries {
            let Some((target, url_at)) = self.target(&entry) else { continue };
            let mut known = self.targets.borrow_mut();
            let line = self.document.line(url_at);
            if let Some(first) = known.iter().position(|one| one.is_same(&target)) {
                let first: u32 = lines.get(first).copied().unwrap_or_default();
                let what = format!("url: the same server as on line {first}");
                self.document.wrong(url_at, what, "one [[target]] with more weight has more users");
                continue;
            }
            known.push(target);
            lines.push(line);
        }
    }

    fn targets_of_flags(&self) {
        for text in &self.overrides.targets {
            let mut known = self.targets.borrow_mut();
            match target_of(text, self.overrides) {
                Ok(target) if known.iter().any(|one| one.is_same(&target)) => {
                    self.document.add(Diagnostic::at(0, format!("--target {text}: named twice")));
                }
                Ok(target) => known.push(target),
                Err(why) => self.document.add(Diagnostic::at(0, format!("--target {text}: {why}"))),
            }
        }
    }

    fn target(&self, entry: &Entry<'_, '_>) -> Option<(Target, usize)> {
        let table = entry.table("[target]")?;
        let url = table.need("url", "such as \"ws://127.0.0.1:4000\"");
        let address = table.get("address");
        let weight = weight(&table);
        table.finish();
        let url = url?;
        let (host, port, tls) = match split_url(url.text("a URL")?) {
            Ok(found) => found,
            Err(why) => {
                url.wrong(why, "it takes a URL such as \"ws://127.0.0.1:4000\"");
                return None;
            }
        };
        let map = &self.overrides.map;
        let is_mapped = mapped(&host, port, map) != (host.clone(), port);
        let written = address.and_then(|entry| {
            let address = entry.text("an address with its port")?.parse::<SocketAddr>();
            if address.is_err() {
                entry.wrong("is no address with a port", "such as \"10.0.0.1:4000\"");
            }
            address.ok()
        });
        let address = match written {
            Some(address) if !is_mapped => address,
            _ => match resolve(&host, port, map) {
                Ok(address) => address,
                Err(why) => {
                    url.wrong(why, "");
                    return None;
                }
            },
        };
        Some((Target { host, address, tls, weight }, url.at))
    }

    /// The index of a server, by number or URL; an unknown one is added with weight 0.
    pub(super) fn target_index(&self, entry: &Entry<'_, '_>) -> Option<usize> {
        let count = self.targets.borrow().len();
        let Some(url) = entry.as_str() else {
            let last = i64::try_from(count).unwrap_or(i64::MAX);
            return entry.integer(1..=last).and_then(|at| usize::try_from(at - 1).ok());
        };
        let found = split_url(url).and_then(|(host, port, tls)| {
            let address = resolve(&host, port, &self.overrides.map)?;
            Ok(Target { host, address, tls, weight: 0.0 })
        });
        match found {
            Ok(target) => {
                let mut targets = self.targets.borrow_mut();
                let at = targets.iter().position(|one| one.is_same(&target));
                Some(at.unwrap_or_else(|| {
                    targets.push(target);
                    count
                }))
            }
            Err(why) => {
                entry.wrong(why, "it takes the URL of a server, or its number in [[target]]");
                None
            }
        }
    }
}

/// The server of a URL, with weight 1.
fn target_of(text: &str, overrides: &Overrides) -> Result<Target, String> {
    let (host, port, tls) = split_url(text)?;
    let address = resolve(&host, port, &overrides.map)?;
    Ok(Target { host, address, tls, weight: 1.0 })
}

/// The URL of a server: scheme, host and port, without a path; or what is wrong with it.
pub fn url(text: &str) -> Result<String, String> {
    split_url(text).map(|_| text.to_owned())
}

fn split_url(url: &str) -> Result<(String, u16, bool), String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("{url:?} has no scheme"));
    };
    let (tls, default) = match scheme {
        "ws" | "http" => (false, 80),
        "wss" | "https" => (true, 443),
        scheme => return Err(format!("the scheme {scheme:?} is none of ws, wss, http, https")),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if path.len() > 1 {
        return Err(format!("{path:?} does not belong here: paths are those of the steps"));
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
        }
        _ => (authority, default),
    };
    let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(Some(host)) => host,
        Some(None) => return Err(format!("{host:?} lacks its closing bracket")),
        None if host.contains(':') => return Err(format!("{host:?} has to stand in brackets")),
        None => host,
    };
    let odd = |char: char| char.is_whitespace() || char.is_control() || "@?#[]".contains(char);
    if host.is_empty() || host.contains(odd) || port == 0 {
        return Err(format!("{authority:?} is no host with a port"));
    }
    Ok((host.to_owned(), port, tls))
}
