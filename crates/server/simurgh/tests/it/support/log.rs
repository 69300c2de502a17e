//! What this process logs: it has one subscriber, so all tests share it.

use std::io::{self, Write};
use std::sync::{Mutex, Once};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs everything from now on.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(|| Log)
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

pub fn text() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned()
}
