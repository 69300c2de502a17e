//! Several hosts on one: name spaces of the network, joined by a bridge.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::process::{Command, Output};

/// By which a test that has been started in name spaces of its own knows it.
const INSIDE: &str = "SIMURGH_IN_NAMESPACES";
/// Where the engine and the clients are, on the bridge.
pub(crate) const HUB: &str = "10.0.0.1";

/// Whether this process is in name spaces of its own, where a network can be made and goes with
/// the process. If not, and it can be, the test of this name is run there, and this returns false
/// after it has passed; what cannot be says so.
#[track_caller]
pub(crate) fn are_here(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let lacks = [("unshare", "--version"), ("ip", "-V"), ("nft", "--version")]
        .into_iter()
        .find(|(program, argument)| Command::new(program).arg(argument).output().is_err());
    if let Some((program, _)) = lacks {
        eprintln!("SKIPPED: no program {program} (Debian: util-linux, iproute2, nftables)");
        return false;
    }
    // /run is a new one, so that the names of the hosts are nobody else's.
    let script = "mount -t tmpfs none /run && ip link set lo up && exec \"$0\" \"$@\"";
    let unshare =
        ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];
    if !Command::new("unshare").args(unshare).args(["true"]).output().unwrap().status.success() {
        eprintln!("SKIPPED: no name spaces of the network (needs root)");
        return false;
    }
    let ran = Command::new("unshare")
        .args(unshare)
        .arg(script)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let (passed, stderr) = (said.contains("1 passed"), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && passed, "{said}\n{stderr}");
    false
}

/// One of several hosts on a bridge.
pub(crate) struct Host {
    name: String,
    pub(crate) address: String,
}

/// This many of them, besides the one with the engine and the clients.
pub(crate) fn on_a_bridge(count: usize) -> Vec<Host> {
    does("ip", "link add hub type bridge");
    does("ip", &format!("addr add {HUB}/24 dev hub"));
    does("ip", "link set hub up");
    (0..count).map(|n| Host::new(n + 2)).collect()
}

impl Host {
    fn new(n: usize) -> Self {
        let (name, address) = (format!("host-{n}"), format!("10.0.0.{n}"));
        does("ip", &format!("netns add {name}"));
        does("ip", &format!("link add to-{n} type veth peer name eth0 netns {name}"));
        does("ip", &format!("link set to-{n} master hub up"));
        let host = Self { name, address };
        host.does("ip", &format!("addr add {}/24 dev eth0", host.address));
        host.does("ip", "link set eth0 up");
        host.does("ip", "link set lo up");
        host.does("nft", "add table inet cut");
        for hook in ["input", "output"] {
            let chain = "{ type filter hook HOOK priority 0 ; policy accept ; }";
            let chain = chain.replace("HOOK", hook);
            host.does("nft", &format!("add chain inet cut {hook} {chain}"));
        }
        host
    }

    /// The words before a command that is to run on it.
    pub(crate) fn by(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).into()
    }

    /// Loses what it sends to the engine at this port, what the engine sends, or both. Clients
    /// reach it as before.
    pub(crate) fn loses(&self, port: &str, ways: &[Way]) {
        for way in ways {
            let rule = match way {
                Way::In => format!("add rule inet cut input ip saddr {HUB} tcp sport {port} drop"),
                Way::Out => {
                    format!("add rule inet cut output ip daddr {HUB} tcp dport {port} drop")
                }
            };
            self.does("nft", &rule);
        }
    }

    /// All of its own connections to this port of another host end as if by the other side, and
    /// what was under way there is lost.
    pub(crate) fn resets(&self, port: &str) {
        // Even where nothing else comes in.
        let rule =
            format!("insert rule inet cut input tcp sport {port} tcp flags & rst == rst accept");
        self.does("nft", &rule);
        let rule = format!("insert rule inet cut output tcp dport {port} reject with tcp reset");
        self.does("nft", &rule);
    }

    /// Loses nothing any more.
    pub(crate) fn heals(&self) {
        self.does("nft", "flush chain inet cut input");
        self.does("nft", "flush chain inet cut output");
    }

    fn does(&self, program: &str, words: &str) {
        does("ip", &format!("netns exec {} {program} {words}", self.name));
    }
}

/// What is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    In,
    Out,
}

#[track_caller]
fn does(program: &str, words: &str) {
    let Output { status, stderr, .. } =
        Command::new(program).args(words.split(' ')).output().unwrap();
    assert!(status.success(), "{program} {words}: {}", String::from_utf8_lossy(&stderr));
}
