//! The queue of log lines, and the thread that writes them.
//!
//! `tracing-appender` 0.2.5 waits 1.1 s when the process ends, and drops lines if a non-blocking
//! output is full: a reader of standard error that was busy for longer missed the last lines.

use std::io::{self, ErrorKind, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use simurgh_text::output::complain;

/// Queued lines, of a few hundred bytes each.
const LINES_MAX: usize = 16_384;
/// How long [`LogQueue::finish`] waits for a reader that does not read. Less than the margin that
/// the service manager leaves beyond the drain.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// The interval of attempts where neither a full queue nor a full output can wake anybody.
const RETRY: Duration = Duration::from_millis(5);

enum Entry {
    Line(Vec<u8>),
    End,
}

/// Where any thread puts a line without blocking. If the queue is full, lines are dropped.
#[derive(Clone)]
pub(crate) struct LogWriter(SyncSender<Entry>);

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.0.try_send(Entry::Line(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The other end of a [`LogWriter`], for the end of the process.
pub(crate) struct LogQueue {
    entries: SyncSender<Entry>,
    done: Receiver<()>,
}

/// Starts the thread that writes lines to `out`. If the system has no thread left, it says so, and
/// there is no log.
pub(crate) fn start(out: impl Write + Send + 'static) -> (LogWriter, LogQueue) {
    let (entries, queue) = sync_channel(LINES_MAX);
    let (ended, done) = channel();
    let thread = std::thread::Builder::new().name("simurgh-log".into()).spawn(move || {
        write_all(&queue, out);
        let _ = ended.send(());
    });
    if let Err(error) = thread {
        complain(&format!("cannot start the thread that writes the log: {error}"));
    }
    (LogWriter(entries.clone()), LogQueue { entries, done })
}

impl LogQueue {
    /// Returns when all lines before are written, or after 5 s. Later lines are dropped.
    pub(crate) fn finish(self) {
        let until = Instant::now() + FINISH_MAX;
        while let Err(TrySendError::Full(_)) = self.entries.try_send(Entry::End)
            && Instant::now() < until
        {
            std::thread::sleep(RETRY);
        }
        let _ = self.done.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn write_all(queue: &Receiver<Entry>, mut out: impl Write) {
    while let Ok(Entry::Line(line)) = queue.recv() {
        // There is no place to report an error to, and the next line may be possible again.
        let _ = write_line(&mut out, &line);
    }
}

/// Standard error may be a pipe that another process has made non-blocking.
fn write_line(out: &mut impl Write, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes three bytes at a time; every second write fails.
    #[derive(Clone, Default)]
    struct Reluctant(Arc<Mutex<(Vec<u8>, u64)>>, Duration);

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.lock().unwrap();
            state.1 += 1;
            if state.1 == 1 {
                std::thread::sleep(self.1);
            }
            match state.1 % 4 {
                1 => Err(ErrorKind::WouldBlock.into()),
                3 => Err(ErrorKind::Interrupted.into()),
                _ => {
                    let taken = bytes.len().min(3);
                    state.0.extend_from_slice(&bytes[..taken]);
                    Ok(taken)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn last_line_is_written_to_an_output_that_takes_parts_late_and_does_not_block() {
        for round in 0..50 {
            let out = Reluctant::default();
            let (mut writer, queue) = start(out.clone());
            writer.write_all(format!("round {round}\n").as_bytes()).unwrap();
            writer.write_all(b"stopped\n").unwrap();
            queue.finish();
            let written = out.0.lock().unwrap().0.clone();
            assert_eq!(String::from_utf8(written).unwrap(), format!("round {round}\nstopped\n"));
        }
    }

    /// As `tracing-appender` did not: it waited for 1.1 s.
    #[test]
    fn last_line_waits_for_a_reader_that_is_busy_for_a_while() {
        let out = Reluctant(Arc::default(), Duration::from_secs(2));
        let (mut writer, queue) = start(out.clone());
        writer.write_all(b"stopped\n").unwrap();
        queue.finish();
        assert_eq!(out.0.lock().unwrap().0, b"stopped\n");
    }

    #[test]
    fn full_queue_drops_lines_and_blocks_nobody() {
        let out = Reluctant::default();
        let (mut writer, queue) = start(out.clone());
        let nothing_is_written = out.0.lock().unwrap();
        for _ in 0..2 * LINES_MAX {
            writer.write_all(b"x").unwrap();
        }
        drop((nothing_is_written, queue));
    }
}
