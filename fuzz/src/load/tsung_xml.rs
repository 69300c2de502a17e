//! Any text as a scenario of Tsung: it is read or refused, with the same outcome each time, without
//! networks and files. The first byte chooses the flags.
use std::io;
use std::net::IpAddr;

use simurgh_load::scenario::{Diagnostic, Overrides, check};
use simurgh_load::tsung::{Environment, read_in};

/// Knows one host and two files.
struct Nowhere;

impl Environment for Nowhere {
    fn resolve(&self, host: &str) -> Vec<IpAddr> {
        let known = (host == "localhost").then_some(IpAddr::from([127, 0, 0, 1]));
        known.into_iter().collect()
    }

    fn file(&self, name: &str) -> io::Result<Vec<u8>> {
        match name {
            "users.csv" => Ok(b"alice;pw1\nbob;pw2\n".to_vec()),
            "steps.xml" => Ok(b"<thinktime value=\"1\"/>".to_vec()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        address.is_loopback()
    }

    fn host_name(&self) -> String {
        "here".to_owned()
    }
}

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [flags, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let overrides = |strict: bool| Overrides {
        strict,
        local: flags & 2 != 0,
        map: vec![("server_ip_address".to_owned(), "127.0.0.1".to_owned())],
        ..Overrides::default()
    };
    // A lone CR ends a line in XML, but not for `lines`.
    let lines = text.split(['\n', '\r']).count();
    let in_text = |fault: &Diagnostic| {
        assert!(usize::try_from(fault.line).is_ok_and(|line| line <= lines), "{fault}");
        assert!(!fault.what.is_empty());
    };
    let found = read_in(&text, &overrides(flags & 1 != 0), &Nowhere);
    assert_eq!(found, read_in(&text, &overrides(flags & 1 != 0), &Nowhere), "alike each time");
    match found {
        Ok(loaded) => {
            loaded.warnings.iter().for_each(in_text);
            let _ = check(&loaded.scenario);
            if flags & 1 != 0 {
                let tolerant = read_in(&text, &overrides(false), &Nowhere);
                assert_eq!(tolerant.map(|loaded| loaded.scenario), Ok(loaded.scenario));
            }
        }
        Err(faults) => {
            assert!(!faults.0.is_empty());
            faults.0.iter().for_each(in_text);
        }
    }
}
