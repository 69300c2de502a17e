//! `<clients>`: source addresses of connections.

use std::net::{IpAddr, Ipv4Addr};

use simurgh_load_scenario::{AddressRange, mapped};

use super::{Lower, given, is_true};
use crate::xml::Element;

/// Maximum of ranges, and of addresses that are tried one by one.
const ADDRESSES_MAX: usize = 65_536;

impl Lower<'_> {
    pub(super) fn clients(&mut self, root: &Element) {
        let (line, clients) = root.within("clients");
        clients.iter().for_each(|client| self.client(client));
        if clients.is_empty() && !self.overrides.local {
            let help = "put <client host=\"localhost\" use_controller_vm=\"true\"/> into \
                        <clients>, or give `--local`";
            self.wrong(line, "there is no <client>", help);
        }
    }

    fn client(&mut self, client: &Element) {
        for name in ["cpu", "use_controller_vm", "maxusers", "weight"] {
            if let Some(attribute) = client.attribute(name) {
                let what =
                    "`cpu`, `use_controller_vm`, `maxusers` and `weight` of <client> are ignored";
                self.warn(attribute.line, what, "workers are as many as this host has cores");
            }
        }
        if client.value("type") == Some("batch") {
            self.batch(client);
        } else if !self.overrides.local && !self.is_local(client) {
            let host = client.value("host").unwrap_or_default();
            let help = "add `--local` to run its users here; for several hosts convert the file \
                        with `simurgh load convert --local`, start `simurgh load agent` on each \
                        host, and name them in the TOML file";
            self.wrong(client.line, format!("the client {host} is another host"), help);
        }
        for child in client.children() {
            if child.name == "ip" {
                self.ip(client, child);
            } else {
                self.ip_range(child);
            }
        }
    }

    fn batch(&mut self, client: &Element) {
        let what = "<client> of type batch: simurgh cannot ask a job scheduler for hosts";
        if self.overrides.local {
            self.warn(client.line, what, "ignored, as `--local` is given");
        } else {
            let help = "`--local` makes all clients workers of this host";
            self.wrong(client.line_of("type"), what, help);
        }
        self.ignore(client, "batch", "there is no job scheduler");
        self.ignore(client, "scan_intf", "addresses are given with <ip>, <iprange> or `--source`");
    }

    fn is_local(&mut self, client: &Element) -> bool {
        if is_true(client, "use_controller_vm") {
            return true;
        }
        let Some(host) = given(client, "host") else {
            self.wrong(client.line, "<client> lacks its attribute `host`", "");
            return true;
        };
        let (host, _) = mapped(host, 0, &self.overrides.map);
        let own = self.environment.host_name();
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        if host == "localhost" || (!own.is_empty() && short(&own) == short(&host)) {
            return true;
        }
        self.look_up(&host).first().is_some_and(|&address| self.environment.is_ours(address))
    }

    fn ip(&mut self, client: &Element, ip: &Element) {
        let value = self.wanted(ip, "value").to_owned();
        if is_true(ip, "scan") {
            let what = format!("<ip value=\"{value}\" scan=\"true\"> is ignored");
            let help = "addresses of an interface are not looked up: give them with <ip>, \
                        <iprange> or `--source`";
            self.warn(ip.line, what, help);
            return;
        }
        let name =
            if value == "resolve" { client.value("host").unwrap_or_default() } else { &value };
        let (name, _) = mapped(name, 0, &self.overrides.map);
        match self.look_up(&name).first().copied() {
            Some(address) => self.source(AddressRange { first: address, last: address }, ip.line),
            None if self.overrides.local => {
                let what = format!("<ip> {name} is not known and is ignored");
                self.warn(ip.line, what, "`--local` keeps only addresses of this host");
            }
            None => {
                let help = format!("give its address with `--map {name}=ADDRESS`");
                self.wrong(ip.line, format!("the host {name} is not known"), help);
            }
        }
    }

    fn ip_range(&mut self, range: &Element) {
        let value = self.wanted(range, "value").to_owned();
        let line = range.line_of("value");
        let version = range.value("version").unwrap_or("v4");
        if version != "v4" {
            let what = format!("<iprange> has the version {version}");
            return self.wrong(range.line_of("version"), what, "only v4 can be given, as in Tsung");
        }
        match ranges(&value) {
            Some(ranges) if ranges.len() <= ADDRESSES_MAX => {
                for range in ranges {
                    self.source(range, line);
                }
            }
            Some(_) => {
                let what = format!("<iprange> \"{value}\" is too many ranges");
                self.wrong(line, what, "vary the last parts, for example 10.0.0-255.0-255");
            }
            None => {
                let what = format!("<iprange> cannot be \"{value}\"");
                self.wrong(line, what, "four numbers or ranges, for example 172.28.1-20.0-254");
            }
        }
    }

    /// Adds source addresses; with `--local` only those of this host.
    fn source(&mut self, range: AddressRange, line: u32) {
        if self.sources.addresses.len() >= ADDRESSES_MAX {
            let what = format!("the clients have more than {ADDRESSES_MAX} ranges of addresses");
            return self.warn(line, what, "the others are ignored");
        }
        if !self.overrides.local || (range.first.is_loopback() && range.last.is_loopback()) {
            self.sources.addresses.push(range);
            return;
        }
        let (mut kept, mut dropped) = (Vec::<AddressRange>::new(), false);
        let mut adjacent = false;
        for address in (0..range.count()).map(|number| range.nth(number)) {
            self.addresses_tried += 1;
            if self.addresses_tried > ADDRESSES_MAX {
                let what = format!(
                    "{} to {}: only {ADDRESSES_MAX} addresses are tried",
                    range.first, range.last
                );
                self.warn(line, what, "give the others with `--source`");
                break;
            }
            if !self.environment.is_ours(address) {
                dropped = true;
                adjacent = false;
                continue;
            }
            match kept.last_mut() {
                Some(last) if adjacent => last.last = address,
                _ => kept.push(AddressRange { first: address, last: address }),
            }
            adjacent = true;
        }
        self.sources.addresses.extend(kept);
        if dropped {
            let what = "addresses that this host does not have are ignored";
            self.warn(line, format!("{} to {}: {what}", range.first, range.last), "`--local`");
        }
    }
}

/// The ranges of `172.28.1-20.0-254`; adjacent ones are merged.
fn ranges(text: &str) -> Option<Vec<AddressRange>> {
    let mut parts = Vec::new();
    for part in text.split('.') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u8>().ok()?, last.parse::<u8>().ok()?);
        if first > last {
            return None;
        }
        parts.push((first, last));
    }
    let parts: [(u8, u8); 4] = parts.try_into().ok()?;
    // Ranges without a gap: of the last part, and of the parts before it if all below is included.
    let mut runs = vec![(0_u32, 0_u32)];
    for (index, &(first, last)) in parts.iter().enumerate() {
        let whole_below = parts.iter().skip(index + 1).all(|&part| part == (0, 255));
        let numbers = u32::from(last) - u32::from(first) + 1;
        if runs.len().saturating_mul(numbers as usize) > ADDRESSES_MAX && !whole_below && index < 3
        {
            return Some(vec![range_of(0, 0); ADDRESSES_MAX + 1]);
        }
        let (first, last) = (u32::from(first), u32::from(last));
        runs = runs
            .into_iter()
            .flat_map(|(low, high)| -> Vec<(u32, u32)> {
                if whole_below || low != high {
                    vec![(low << 8 | first, high << 8 | last)]
                } else {
                    (first..=last).map(|n| (low << 8 | n, low << 8 | n)).collect()
                }
            })
            .collect();
    }
    Some(runs.into_iter().map(|(first, last)| range_of(first, last)).collect())
}

fn range_of(first: u32, last: u32) -> AddressRange {
    let address = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
    AddressRange { first: address(first), last: address(last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let ranges = ranges(text).unwrap();
        ranges.iter().map(|range| format!("{}-{}", range.first, range.last)).collect()
    }

    #[test]
    fn tsung_address_ranges_are_expanded() {
        assert_eq!(read("10.0.0.1"), ["10.0.0.1-10.0.0.1"]);
        assert_eq!(read("127.0.0.2-9"), ["127.0.0.2-127.0.0.9"]);
        let many = read("172.28.1-20.0-254");
        assert_eq!((many.len(), many[0].as_str()), (20, "172.28.1.0-172.28.1.254"));
        assert_eq!(many[19], "172.28.20.0-172.28.20.254");
        assert_eq!(read("10.1-2.0-255.0-255"), ["10.1.0.0-10.2.255.255"]);
        assert_eq!(read("0-255.0-255.0-255.0-255"), ["0.0.0.0-255.255.255.255"]);
        assert_eq!(read("1.2-3.4-5.6-7").len(), 4);
        assert_eq!(read("1.2-3.4.0-255"), ["1.2.4.0-1.2.4.255", "1.3.4.0-1.3.4.255"]);
        assert!(ranges("0-255.0-255.0-255.1-2").unwrap().len() > ADDRESSES_MAX);
        for text in ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.9-1", "a.b.c.d", "1.2.3.-4"] {
            assert!(ranges(text).is_none(), "{text}");
        }
    }
}
