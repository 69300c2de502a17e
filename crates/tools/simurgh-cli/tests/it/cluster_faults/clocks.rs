//! Wrong and stepping clocks: nodes time each other by the monotonic clock.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::room::Room;
use crate::support::engine::Engine;
use crate::support::node::{DOWN, Plan, know_each_other};

/// A wall clock that is ahead of the system's by the seconds in the first eight bytes of a file,
/// read on each call. Loaded before the C library.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static volatile long long *ahead;

__attribute__((constructor)) static void opened(void) {
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    void *page = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0 && page != MAP_FAILED) ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, time);
    if (clock == CLOCK_REALTIME && ahead) time->tv_sec += *ahead;
    return done;
}
"#;

/// A wall clock that a test can step.
struct Clock {
    directory: TempDir,
}

impl Clock {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("clock.c"), CLOCK).unwrap();
        fs::write(path("ahead"), 0_i64.to_ne_bytes()).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([path("clock.so"), path("clock.c")])
            .arg("-ldl")
            .status();
        assert!(made.is_ok_and(|status| status.success()), "cc makes the wrong clock");
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Written in place, since the process has mapped the page.
    fn is_ahead(&self, seconds: i64) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(self.path("ahead")).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

#[test]
#[ignore = "needs nats-server"]
fn stepping_wall_clock_removes_no_presence() {
    let engine = Engine::start("");
    let clock = Clock::new();
    let address = engine.address();
    let mut wrong = Plan::new("wrong", &address);
    wrong.env = vec![
        ("LD_PRELOAD", clock.path("clock.so").into()),
        ("CLOCK_AHEAD", clock.path("ahead").into()),
    ];
    let nodes = [Plan::new("one", &address).start(), Plan::new("two", &address).start(), {
        clock.is_ahead(3600);
        wrong.start()
    }];
    know_each_other(&nodes);
    let room = Room::of(&nodes, 2);
    let is_dated = |hour: i64| {
        let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        let online_at = online_at(&nodes[0], "wrong");
        (online_at - now - hour * 3600).abs() < 120
    };
    assert!(is_dated(1), "the node's clock is right: nothing was tested");
    room.pushes_every(Duration::from_millis(100), 0);
    for ahead in [-7200, 86_400, 0] {
        clock.is_ahead(ahead);
        std::thread::sleep(DOWN / 2);
    }
    // A new link does not detect missing nodes; this one is older now.
    std::thread::sleep(DOWN);
    room.has_healed(&nodes);
    room.nobody_left();
    room.nothing_is_missing();
}

/// The earliest join of a node's members, by the clock of that node, as another node shows it.
fn online_at(node: &crate::support::node::Node, of: &str) -> i64 {
    let (_, body) = node.ask("GET /api/presence?topic=room:a", "");
    let sent: serde_json::Value = serde_json::from_str(&body).unwrap();
    let meta = &sent["presences"][format!("{of}-0")]["metas"][0]["online_at"];
    meta.as_str().unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs nats-server and root"]
fn node_on_a_machine_with_long_uptime_joins_the_cluster() {
    let engine = Engine::start("");
    // A hundred days of running.
    let by = ["unshare", "--time", "--monotonic", "8640000", "--boottime", "8640000"];
    let by: Vec<String> = by.into_iter().chain(["--kill-child"]).map(str::to_owned).collect();
    let tried = Command::new(&by[0]).args(&by[1..]).args(["cat", "/proc/uptime"]).output();
    let uptime = tried.ok().and_then(|it| {
        let text = String::from_utf8(it.stdout).ok()?;
        text.split('.').next()?.parse::<u64>().ok()
    });
    assert!(uptime >= Some(8_640_000), "only root can make a name space of time: {uptime:?}");
    let address = engine.address();
    let old = Plan { by, ..Plan::new("old", &address) };
    let nodes =
        [Plan::new("one", &address).start(), Plan::new("two", &address).start(), old.start()];
    know_each_other(&nodes);
    let room = Room::of(&nodes, 2);
    room.pushes_every(Duration::from_millis(100), 0);
    std::thread::sleep(DOWN * 2);
    room.has_healed(&nodes);
    room.nobody_left();
    room.nothing_is_missing();
}
