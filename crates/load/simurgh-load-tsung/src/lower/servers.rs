//! `<servers>`, and all other places that name a server.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use simurgh_load_scenario::{Target, mapped};

use super::Lower;
use crate::xml::Element;

/// Servers, and the names that have been resolved.
#[derive(Default)]
pub(super) struct Servers {
    pub(super) targets: Vec<Target>,
    /// Whether one has the type `websocket`, whose connections begin with a handshake.
    pub(super) websocket: bool,
    known: HashMap<String, Vec<IpAddr>>,
}

#[derive(Clone, Copy)]
struct Type {
    tls: bool,
    six: bool,
    websocket: bool,
}

const TYPES: &str = "tcp, ssl, tcp6, ssl6, websocket, websocket_ssl, ws, wss";

fn type_of(name: &str) -> Option<Type> {
    let tls = matches!(name, "ssl" | "ssl6" | "websocket_ssl" | "wss");
    let six = matches!(name, "tcp6" | "ssl6");
    let websocket = matches!(name, "websocket" | "websocket_ssl" | "ws" | "wss");
    (tls || six || websocket || name == "tcp").then_some(Type { tls, six, websocket })
}

impl Lower<'_> {
    pub(super) fn servers(&mut self, root: &Element) {
        if !self.overrides.targets.is_empty() {
            let what = "--target does not go with a file of Tsung, whose steps name its servers";
            self.wrong(0, what, "--map HOST=ADDR puts another in the place of one");
        }
        let (line, servers) = root.within("servers");
        servers.into_iter().for_each(|server| self.server(server));
        let weightless = self.servers.targets.iter().all(|target| target.weight <= 0.0);
        if self.servers.targets.is_empty() && self.diagnostics.is_empty() {
            let help = "put <server host=\"127.0.0.1\" port=\"4000\" type=\"tcp\"/> into <servers>";
            self.wrong(line, "there is no <server>", help);
        } else if weightless && self.diagnostics.is_empty() {
            self.wrong(line, "all servers have the weight 0", "give one of them a weight");
        }
    }

    fn server(&mut self, server: &Element) {
        let host = self.wanted(server, "host").to_owned();
        let Some(port) = self.whole(server, "port", 1..=65_535) else { return };
        let weight = self.number(server, "weight").unwrap_or(1.0);
        let kind = server.value("type").unwrap_or("tcp");
        let Some(kind) = self.type_named(kind, server.line_of("type"), "server") else { return };
        self.servers.websocket |= kind.websocket;
        let line = server.line_of("host");
        if let Some((host, address)) = self.resolve(&host, port, kind.six, line) {
            let target = Target { host, address, tls: kind.tls, credentials: None, weight };
            // A server named twice has both shares, as in Tsung.
            match self.servers.targets.iter_mut().find(|one| one.is_same(&target)) {
                Some(known) => known.weight += weight,
                None => self.servers.targets.push(target),
            }
        }
    }

    fn type_named(&mut self, name: &str, line: u32, element: &str) -> Option<Type> {
        let kind = type_of(name);
        if kind.is_none() {
            let what = format!("<{element}> has the type {name}, which cannot be loaded");
            self.wrong(line, what, format!("one of: {TYPES}"));
        }
        kind
    }

    /// The index of the server for further steps; a new one is added with weight 0.
    pub(super) fn other_server(
        &mut self,
        host: &str,
        port: u16,
        tls: bool,
        line: u32,
    ) -> Option<usize> {
        let (host, address) = self.resolve(host, port, false, line)?;
        let targets = &mut self.servers.targets;
        let same =
            |t: &Target| t.host == host && t.address.port() == address.port() && t.tls == tls;
        if let Some(index) = targets.iter().position(same) {
            return Some(index);
        }
        targets.push(Target { host, address, tls, credentials: None, weight: 0.0 });
        Some(targets.len() - 1)
    }

    /// As [`Self::other_server`], with a type as in `<server>`.
    pub(super) fn other_server_of_type(
        &mut self,
        element: &Element,
        host: &str,
        port: u16,
    ) -> Option<usize> {
        let name = element.value("server_type").unwrap_or_default();
        let kind = self.type_named(name, element.line_of("server_type"), &element.name)?;
        self.other_server(host, port, kind.tls, element.line_of("host"))
    }

    fn resolve(
        &mut self,
        host: &str,
        port: u16,
        six: bool,
        line: u32,
    ) -> Option<(String, SocketAddr)> {
        if host.is_empty() {
            return None;
        }
        let (host, port) = mapped(bare(host), port, &self.overrides.map);
        let addresses = self.look_up(&host);
        let wanted = addresses.iter().find(|address| address.is_ipv6() == six);
        let Some(&address) = wanted.or(addresses.first()) else {
            let help = format!("give its address with `--map {host}=ADDRESS`");
            return self.refuse(line, format!("the host {host} is not known"), help);
        };
        Some((bare(&host).to_owned(), SocketAddr::new(address, port)))
    }

    /// The addresses of a name, resolved once; an address is returned unchanged.
    pub(super) fn look_up(&mut self, host: &str) -> Vec<IpAddr> {
        if let Ok(address) = bare(host).parse() {
            return vec![address];
        }
        if let Some(known) = self.servers.known.get(host) {
            return known.clone();
        }
        let found = self.environment.resolve(host);
        self.servers.known.insert(host.to_owned(), found.clone());
        found
    }
}

/// Without the brackets of an IPv6 address in a URL.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
