//! The servers of a scenario: its targets, and those that steps name.

use std::net::SocketAddr;

use simurgh_load_client::http::Url;
use simurgh_text::toml::{Entry, Table};

use super::keys::{Keys, WEIGHT};
use super::read::Reader;
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
            let shown = Url::without_credentials(text);
            match target_of(text, self.overrides) {
                Ok(target) if known.iter().any(|one| one.is_same(&target)) => {
                    self.document.add(Diagnostic::at(0, format!("--target {shown}: named twice")));
                }
                Ok(target) => known.push(target),
                Err(why) => {
                    self.document.add(Diagnostic::at(0, format!("--target {shown}: {why}")))
                }
            }
        }
    }

    fn target(&self, entry: &Entry<'_, '_>) -> Option<(Target, usize)> {
        let table = entry.table("[target]")?;
        let url = table.need("url", "such as \"ws://127.0.0.1:4000\"");
        let address = table.get("address");
        let mut weight = 1.0;
        Keys::Read(self, &table).key("weight", &mut weight, 1.0, WEIGHT);
        table.finish();
        let url = url?;
        let server = match server_url(url.text("a URL")?) {
            Ok(server) => server,
            Err(why) => {
                url.wrong(why, "it takes a URL such as \"ws://127.0.0.1:4000\"");
                return None;
            }
        };
        let (host, port, map) = (server.host, server.port, &self.overrides.map);
        let is_mapped = mapped(host, port, map) != (host.to_owned(), port);
        let written = address.and_then(|entry| {
            let address = entry.text("an address with its port")?.parse::<SocketAddr>();
            if address.is_err() {
                entry.wrong("is not an address with a port", "such as \"10.0.0.1:4000\"");
            }
            address.ok()
        });
        let address = match written {
            Some(address) if !is_mapped => address,
            _ => match resolve(host, port, map) {
                Ok(address) => address,
                Err(why) => {
                    url.wrong(why, "");
                    return None;
                }
            },
        };
        Some((target(&server, address, weight), url.at))
    }

    /// The index of a server, by number or URL; an unknown one is added with weight 0.
    pub(super) fn target_index(&self, entry: &Entry<'_, '_>) -> Option<usize> {
        let count = self.targets.borrow().len();
        let Some(url) = entry.as_str() else {
            let last = i64::try_from(count).unwrap_or(i64::MAX);
            return entry.integer(1..=last).and_then(|at| usize::try_from(at - 1).ok());
        };
        match target_of(url, self.overrides) {
            Ok(target) => {
                let target = Target { weight: 0.0, ..target };
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
    let url = server_url(text)?;
    let address = resolve(url.host, url.port, &overrides.map)?;
    Ok(target(&url, address, 1.0))
}

fn target(url: &Url<'_>, address: SocketAddr, weight: f64) -> Target {
    let credentials = url.credentials.map(str::to_owned);
    Target { host: url.host.to_owned(), address, tls: url.tls, credentials, weight }
}

/// The URL of a server: scheme, host and port, without a path; or what is wrong with it.
pub fn url(text: &str) -> Result<String, String> {
    server_url(text).map(|_| text.to_owned())
}

fn server_url(text: &str) -> Result<Url<'_>, String> {
    let url = Url::parse(text)?;
    match url.target.as_ref() {
        "/" => Ok(url),
        path => Err(format!("{path:?} does not belong here: paths are those of the steps")),
    }
}
