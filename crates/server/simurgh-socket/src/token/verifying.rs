//! The keys of a policy, and how those of a file or at a URL are read again.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

#[cfg(feature = "hooks")]
use simurgh_token::jwt::Keys;
use simurgh_token::jwt::{Algorithm, Checks};
use simurgh_token::{JwtSettings, KeyError, KeySource, Settings, Verifier};

/// Least time between two reads: bounds the cost of tokens with invented key names.
const READ_EVERY: Duration = Duration::from_secs(5);
/// The keys at a URL are read again after this time.
#[cfg(feature = "hooks")]
const REFRESH_EVERY: Duration = Duration::from_secs(600);

pub(super) struct CurrentVerifier {
    /// Locked only while the pointer is copied or replaced.
    verifier: RwLock<Arc<Verifier>>,
    source: Option<KeySet>,
}

/// A JWK set that changes.
struct KeySet {
    place: Place,
    algorithms: Vec<Algorithm>,
    checks: Checks,
    read_every: Duration,
    /// Time of the last read; locked during a read.
    last_read: tokio::sync::Mutex<Option<Instant>>,
    /// Reads that gave keys, and those that did not.
    reads: [AtomicU64; 2],
}

enum Place {
    File(PathBuf),
    #[cfg(feature = "hooks")]
    Url(Box<simurgh_hooks::Document>),
}

/// Why a JWKS file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwksFileError {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Read(std::io::Error),
    /// It has no keys that can be used.
    #[error("{0}")]
    Keys(KeyError),
}

impl CurrentVerifier {
    pub(super) fn fixed(verifier: Verifier) -> Self {
        Self { verifier: RwLock::new(Arc::new(verifier)), source: None }
    }

    pub(super) fn file(
        path: PathBuf,
        algorithms: Vec<Algorithm>,
        checks: Checks,
    ) -> Result<Self, JwksFileError> {
        let text = std::fs::read_to_string(&path).map_err(JwksFileError::Read)?;
        let source = KeySet::new(Place::File(path), algorithms, checks);
        let verifier = source.verifier(text).map_err(JwksFileError::Keys)?;
        Ok(Self { source: Some(source), ..Self::fixed(verifier) })
    }

    /// Without keys, until they are read.
    #[cfg(feature = "hooks")]
    pub(super) fn url(
        document: simurgh_hooks::Document,
        algorithms: Vec<Algorithm>,
        checks: Checks,
    ) -> Self {
        let verifier = Verifier::of_keys(Keys::none(), checks.clone());
        let source = KeySet::new(Place::Url(Box::new(document)), algorithms, checks);
        Self { source: Some(source), ..Self::fixed(verifier) }
    }

    pub(super) fn verifier(&self) -> Arc<Verifier> {
        Arc::clone(&self.verifier.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether newer keys may be available, or are being read.
    pub(super) fn may_be_newer(&self) -> bool {
        self.source.as_ref().is_some_and(|source| match source.last_read.try_lock() {
            Ok(last_read) => source.is_due(*last_read),
            Err(_) => true,
        })
    }

    /// Reads the keys again, unless another task just has. A task of its own reads: a client that
    /// leaves must not end the read, after which the next client would begin another one.
    pub(super) async fn read_again(self: &Arc<Self>) {
        let this = Arc::clone(self);
        if let Err(error) = tokio::spawn(async move { this.read_if_due().await }).await {
            tracing::error!(%error, "the keys of tokens were not read");
        }
    }

    async fn read_if_due(&self) {
        let Some(source) = &self.source else { return };
        let mut last_read = source.last_read.lock().await;
        if !source.is_due(*last_read) {
            return;
        }
        let place = &source.place;
        let read = match source.text().await {
            Ok(text) => source.verifier(text).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let [good, bad] = &source.reads;
        match read {
            Ok(verifier) => {
                // Later ones are mostly the same keys again.
                if good.fetch_add(1, Relaxed) == 0 {
                    tracing::info!(%place, "read the keys of tokens");
                }
                *self.verifier.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(verifier);
            }
            Err(error) => {
                bad.fetch_add(1, Relaxed);
                tracing::warn!(%place, %error, "cannot read the keys of tokens; the old ones stay");
            }
        }
        *last_read = Some(Instant::now());
    }

    /// Whether it has keys, or can read them at their URL.
    #[cfg(feature = "hooks")]
    pub(super) async fn has_keys(self: Arc<Self>) -> bool {
        let Some(KeySet { place: Place::Url(_), reads: [good, _], .. }) = &self.source else {
            return true;
        };
        self.read_if_due().await;
        good.load(Relaxed) > 0
    }

    /// Reads the keys at a URL for as long as the server runs.
    #[cfg(feature = "hooks")]
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        let Some(KeySet { place: Place::Url(_), read_every, reads, .. }) = &self.source else {
            return;
        };
        loop {
            self.read_if_due().await;
            let has_keys = reads[0].load(Relaxed) > 0;
            tokio::time::sleep(if has_keys { REFRESH_EVERY } else { *read_every }).await;
        }
    }

    /// How often keys were read since the start, and how often they could not be; `None` if they
    /// never change.
    #[cfg(feature = "hooks")]
    pub(super) fn reads(&self) -> Option<[u64; 2]> {
        Some(self.source.as_ref()?.reads.each_ref().map(|count| count.load(Relaxed)))
    }
}

impl KeySet {
    fn new(place: Place, algorithms: Vec<Algorithm>, checks: Checks) -> Self {
        let last_read = tokio::sync::Mutex::new(None);
        let reads = Default::default();
        Self { place, algorithms, checks, read_every: READ_EVERY, last_read, reads }
    }

    fn is_due(&self, last_read: Option<Instant>) -> bool {
        last_read.is_none_or(|last_read| last_read.elapsed() >= self.read_every)
    }

    /// The text of the set. A file is read on a thread of its own, never on a shard, whose
    /// descriptors are for sockets.
    async fn text(&self) -> Result<String, String> {
        match &self.place {
            Place::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
                read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
            }
            #[cfg(feature = "hooks")]
            Place::Url(document) => document.read().await,
        }
    }

    fn verifier(&self, text: String) -> Result<Verifier, KeyError> {
        let mut settings = JwtSettings::new(KeySource::Jwks(text));
        settings.algorithms.clone_from(&self.algorithms);
        settings.checks = self.checks.clone();
        let verifier = Verifier::new(Settings::Jwt(settings))?;
        for skipped in verifier.skipped_keys() {
            let (place, index, kid) = (&self.place, skipped.index, skipped.id.as_deref());
            tracing::warn!(%place, index, kid, why = skipped.why, "ignored a key of tokens");
        }
        Ok(verifier)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            #[cfg(feature = "hooks")]
            Self::Url(document) => document.url().fmt(f),
        }
    }
}

impl fmt::Debug for CurrentVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.source.as_ref().map(|source| source.place.to_string());
        f.debug_struct("CurrentVerifier").field("place", &place).finish_non_exhaustive()
    }
}
