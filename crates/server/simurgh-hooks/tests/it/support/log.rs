//! The log of all tests of this program.

use std::io;
use std::sync::{Mutex, Once};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static START: Once = Once::new();

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Collects the log from now on.
pub(crate) fn collect() {
    START.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .with_ansi(false)
            .with_writer(|| Writer)
            .finish();
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

/// Lines with this text.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    log.lines().filter(|line| line.contains(text)).map(ToOwned::to_owned).collect()
}
