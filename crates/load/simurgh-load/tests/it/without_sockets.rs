//! The accuracy of the generator without sockets: tests of this program, over TUN devices.
//!
//! They need root and /dev/net/tun. Without them, this test passes at once.

use std::fs::OpenOptions;
use std::process::Command;

use crate::outside::TUN;

/// Latencies of a stalled server, exact counts of what was delivered and missed, lost and cut
/// connections, held readers, large messages, HTTP, long polling.
const TESTS: [&str; 7] = [
    "stalled_server",
    "user_messages",
    "cut_connections",
    "lost_connections",
    "bad_servers",
    "http_answers",
    "long_polling",
];

#[test]
fn accuracy_tests_pass_without_sockets() {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return println!("not tried: /dev/net/tun: {error}");
    }
    let this = std::env::current_exe().unwrap();
    let ran = Command::new(this).args(TESTS).env(TUN, "1").output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}");
    assert!(!text.contains("running 0 tests"), "{text}");
}
