//! The live view on a separate pseudo-terminal, which this test reads and writes.

#![allow(clippy::disallowed_types, reason = "a test, outside of all tables")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use simurgh_load::control::{self, Control};
use simurgh_load::record::{Ending, Meta, Record};
use simurgh_load::terminal;

const WAIT: Duration = Duration::from_secs(20);

/// Marks the process under test for the test below, and how it should end.
const ROLE: &str = "SIMURGH_TERMINAL_TEST";

/// Runs in a separate process, started by the others; as a test it does nothing.
#[test]
fn process_under_test() {
    let Ok(ending) = std::env::var(ROLE) else { return };
    let record =
        Arc::new(Mutex::new(Record::new(Meta { scenario: "lobby".into(), ..Meta::default() })));
    let (control, commands) = Control::new();
    let options = terminal::Options { record: Arc::clone(&record), control, dashboard: None };
    let view = terminal::start(options).unwrap();
    // Commands of keys are reported on standard output, which is a pipe.
    while let Ok(command) = commands.recv_timeout(WAIT) {
        println!("{command:?}");
        if command == control::Command::Stop {
            break;
        }
    }
    match ending.as_str() {
        "panic" => panic!("on purpose"),
        "exit" => {
            terminal::restore();
            std::process::exit(0);
        }
        _ => {
            record.lock().unwrap().finish(1000, Ending::Stopped);
            view.finish();
        }
    }
}

struct Run {
    child: Child,
    /// The keyboard and screen.
    behind: OwnedFd,
    /// The terminal itself.
    front: OwnedFd,
    before: Termios,
    seen: String,
}

impl Run {
    fn start(ending: &str) -> Self {
        let behind = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&behind).unwrap();
        unlockpt(&behind).unwrap();
        let name = ptsname(&behind, Vec::new()).unwrap();
        let front = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&front, size).unwrap();
        let before = tcgetattr(&front).unwrap();
        // A new session with this terminal, as after a login.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "process_under_test", "--nocapture"])
            .env(ROLE, ending)
            .env("TERM", "xterm")
            .stdin(Stdio::from(front.try_clone().unwrap()))
            .stderr(Stdio::from(front.try_clone().unwrap()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, behind, front, before, seen: String::new() }
    }

    fn press(&self, keys: &str) {
        rustix::io::write(&self.behind, keys.as_bytes()).unwrap();
    }

    fn sees(&mut self, text: &str) {
        let end = Instant::now() + WAIT;
        while !self.seen.contains(text) {
            assert!(Instant::now() < end, "no {text:?} in {:?}", self.seen);
            let mut watched =
                [rustix::event::PollFd::new(&self.behind, rustix::event::PollFlags::IN)];
            let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            if rustix::event::poll(&mut watched, Some(&time)).unwrap() > 0 {
                let mut bytes = [0; 4096];
                let count = rustix::io::read(&self.behind, &mut bytes).unwrap();
                self.seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        }
    }

    /// Waits for the end, and compares the terminal with its earlier state.
    fn end(mut self) -> String {
        let end = Instant::now() + WAIT;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.sees("\x1b[?7h\x1b[?25h");
        let after = tcgetattr(&self.front).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        let of = |modes: &Termios| format!("{:?}", modes.special_codes);
        assert_eq!(of(&after), of(&self.before));
        let mut told = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        told
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The processes that it started end when they lose their terminal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_steer_unseen_and_the_terminal_is_put_back() {
    let mut run = Run::start("finish");
    run.sees("q\x1b[0;2m stop");
    let modes = tcgetattr(&run.front).unwrap().local_modes;
    assert!(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO));
    assert!(modes.contains(LocalModes::ISIG), "interrupts stay signals");
    run.press("p");
    run.sees("paused");
    run.press("r+\x1b[A");
    run.sees("\u{d7}1.25");
    run.press("q");
    run.sees("Stop the run?");
    run.press("y");
    run.sees("\x1b[J\x1b[?7h\x1b[?25h");
    let told = run.end();
    let commands: Vec<&str> =
        told.lines().filter(|line| !line.is_empty() && !line.contains("test")).collect();
    assert_eq!(commands, ["Pause", "Resume", "Rate { factor: 1.25 }", "Stop"]);
}

#[test]
fn a_panic_puts_the_terminal_back() {
    let mut run = Run::start("panic");
    run.sees("q\x1b[0;2m stop");
    run.press("qq");
    run.sees("on purpose");
    run.end();
}

#[test]
fn an_exit_at_once_can_put_the_terminal_back() {
    let mut run = Run::start("exit");
    run.sees("q\x1b[0;2m stop");
    run.press("qq");
    run.end();
}
