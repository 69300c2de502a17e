//! Parts that all hooks of a server share: the cache, and ids of requests.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::error::Unspecified;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::cache::Cache;
use crate::config::HookConfig;

const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(crate) struct Shared {
    /// Makes ids unique over all nodes and starts.
    start: String,
    next_id: AtomicU64,
    random: SystemRandom,
    /// The key of cached answers of hooks without a secret.
    key: hmac::Key,
    cache: Mutex<Cache>,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Self> {
        let random = SystemRandom::new();
        let mut start = [0; 6];
        random.fill(&mut start).map_err(no_random)?;
        Ok(Self {
            start: URL_SAFE_NO_PAD.encode(start),
            next_id: AtomicU64::new(0),
            key: hmac::Key::generate(hmac::HMAC_SHA256, &random).map_err(no_random)?,
            random,
            cache: Mutex::new(Cache::new(CACHE_BYTES_MAX)),
        })
    }

    /// A `webhook-id`.
    pub(crate) fn next_id(&self) -> String {
        format!("q-{}-{}", self.start, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// The id of a span.
    pub(crate) fn span(&self) -> u64 {
        let mut span = [0; 8];
        // Without random numbers all spans have one id: traces are worse, and questions go on.
        let _ = self.random.fill(&mut span);
        u64::from_ne_bytes(span)
    }

    /// The key of a hook's cached answers: answers of another URL are not its own.
    pub(crate) fn cache_key(&self, config: &HookConfig) -> hmac::Key {
        let secret = config.secrets.first().map_or(&self.key, |secret| secret.key());
        let text = format!("simurgh answers\0{}\0{}", config.name, config.url);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(secret, text.as_bytes()).as_ref())
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_random(_: Unspecified) -> io::Error {
    io::Error::other("the system gives no random numbers")
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    ms(since)
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
