//! The terminal: single keys without echo, its size, and restoring it at the end.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};

/// Lines wrap again, and the cursor is shown.
pub(super) const PLAIN_SCREEN: &str = "\x1b[?7h\x1b[?25h";

const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// Disables a special character of the terminal.
#[cfg(target_os = "linux")]
const NO_KEY: u8 = 0;
#[cfg(not(target_os = "linux"))]
const NO_KEY: u8 = 0xff;

static CHANGED: Mutex<Changed> = Mutex::new(Changed { modes: None, screen: false });

struct Changed {
    modes: Option<Termios>,
    screen: bool,
}

/// Restores the terminal; does nothing when nothing was changed. Must be called before
/// `std::process::exit`, which drops nothing. Panics call it themselves.
pub fn restore() {
    // A panicking thread may hold the lock; the state is then complete, but maybe old.
    let Ok(mut changed) = CHANGED.try_lock() else { return };
    if std::mem::take(&mut changed.screen) {
        let _ = io::stderr().write_all(PLAIN_SCREEN.as_bytes());
    }
    if let Some(modes) = changed.modes.take() {
        let _ = tcsetattr(stdio::stdin(), OptionalActions::Now, &modes);
    }
}

pub(super) fn screen_changes() {
    restore_on_panic();
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner).screen = true;
}

fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

pub(super) fn size() -> (u16, u16) {
    match tcgetwinsize(stdio::stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => SIZE_UNKNOWN,
    }
}

/// Single keys of standard input, without echo.
#[derive(Debug)]
pub(super) struct Keyboard(());

impl Keyboard {
    /// `None`: standard input is not a terminal, or belongs to another job.
    pub(super) fn open() -> Option<Self> {
        let stdin = stdio::stdin();
        if !io::stdin().is_terminal() || !is_ours() {
            return None;
        }
        let before = tcgetattr(stdin).ok()?;
        let mut modes = before.clone();
        // Interrupts stay signals: the CLI handles them.
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        // A suspended run measures nothing, and would leave the terminal as it is now.
        modes.special_codes[SpecialCodeIndex::VSUSP] = NO_KEY;
        restore_on_panic();
        CHANGED.lock().unwrap_or_else(PoisonError::into_inner).modes = Some(before);
        if tcsetattr(stdin, OptionalActions::Now, &modes).is_err() {
            restore();
            return None;
        }
        Some(Self(()))
    }

    /// Waits for keys: letters, and an escape for each sequence, such as that of an arrow. Fails if
    /// the terminal is gone.
    pub(super) fn wait(&self, time: Duration) -> io::Result<Vec<u8>> {
        let stdin = stdio::stdin();
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        let mut watched = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
        match poll(&mut watched, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // Reading while another job is in the foreground would stop this process.
        if !is_ours() {
            return Err(io::Error::other("another job has the terminal"));
        }
        let mut bytes = [0; 64];
        match rustix::io::read(stdin, &mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => Ok(keys(bytes.get(..count).unwrap_or_default()).to_vec()),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The keys of one read. The letters of a sequence are no keys; it comes in one read.
fn keys(bytes: &[u8]) -> &[u8] {
    bytes.split_inclusive(|byte| *byte == 0x1b).next().unwrap_or_default()
}

/// Whether this process's job is in the foreground of the terminal on standard input.
fn is_ours() -> bool {
    tcgetpgrp(stdio::stdin()).is_ok_and(|front| front == rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_keys_and_sequences_are_not() {
        assert_eq!(keys(b"pr+-q"), b"pr+-q");
        assert_eq!(keys(b"\x1b[q"), b"\x1b");
        assert_eq!(keys(b"p\x1b[1;5q"), b"p\x1b");
        assert_eq!(keys(b""), b"");
    }
}
