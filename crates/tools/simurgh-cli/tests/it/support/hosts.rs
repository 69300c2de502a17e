//! Several hosts on one machine: network name spaces joined by a bridge.

use std::process::{Command, Output};

/// Set in the environment of a test that was restarted in its own name spaces.
const INSIDE: &str = "TEST_IN_NAMESPACES";
/// The address of the engine and the clients on the bridge.
pub(crate) const HUB: &str = "10.0.0.1";

/// Whether this process is in its own name spaces, where it can make networks that end with it. If
/// not, runs the test of this name there, and returns false after it has passed. Needs root, `ip`
/// and `nft` (Debian: util-linux, iproute2, nftables).
#[track_caller]
pub(crate) fn are_here(module: &str, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // /run is empty here, so the names of the hosts are free.
    let script = "mount -t tmpfs none /run && ip link set lo up && exec \"$0\" \"$@\"";
    let unshare =
        ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];
    let (_crate, module) = module.split_once("::").unwrap();
    let test = format!("{module}::{test}");
    let ran = Command::new("unshare")
        .args(unshare)
        .arg(script)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--include-ignored", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    let (passed, stderr) = (output.contains("1 passed"), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && passed, "{output}\n{stderr}");
    false
}

pub(crate) struct Host {
    name: String,
    pub(crate) address: String,
}

/// Excludes the host with the engine and the clients.
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

    /// The prefix that runs a command on this host.
    pub(crate) fn by(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).into()
    }

    /// Drops packets to the engine at this port, from it, or both. Clients are not affected.
    pub(crate) fn loses(&self, port: &str, directions: &[Direction]) {
        for direction in directions {
            let rule = match direction {
                Direction::In => {
                    format!("add rule inet cut input ip saddr {HUB} tcp sport {port} drop")
                }
                Direction::Out => {
                    format!("add rule inet cut output ip daddr {HUB} tcp dport {port} drop")
                }
            };
            self.does("nft", &rule);
        }
    }

    /// All its connections to this port of another host end as if by the other side, and bytes in
    /// flight are lost.
    pub(crate) fn resets(&self, port: &str) {
        // Accepted even where other packets are dropped.
        let rule =
            format!("insert rule inet cut input tcp sport {port} tcp flags & rst == rst accept");
        self.does("nft", &rule);
        let rule = format!("insert rule inet cut output tcp dport {port} reject with tcp reset");
        self.does("nft", &rule);
    }

    pub(crate) fn heals(&self) {
        self.does("nft", "flush chain inet cut input");
        self.does("nft", "flush chain inet cut output");
    }

    fn does(&self, program: &str, words: &str) {
        does("ip", &format!("netns exec {} {program} {words}", self.name));
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    In,
    Out,
}

#[track_caller]
fn does(program: &str, words: &str) {
    let Output { status, stderr, .. } =
        Command::new(program).args(words.split(' ')).output().unwrap();
    assert!(status.success(), "{program} {words}: {}", String::from_utf8_lossy(&stderr));
}
