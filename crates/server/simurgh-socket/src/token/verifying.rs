//! The keys of a policy, and how those of a file are read again.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use simurgh_token::jwt::{Algorithm, Checks};
use simurgh_token::{JwtSettings, KeyError, KeySource, Settings, Verifier};

/// Least time between two reads of a file: bounds the cost of tokens with invented key names.
const READ_EVERY: Duration = Duration::from_secs(5);

pub(super) struct CurrentVerifier {
    /// Locked only while the pointer is copied or replaced.
    verifier: RwLock<Arc<Verifier>>,
    file: Option<KeyFile>,
}

struct KeyFile {
    path: PathBuf,
    algorithms: Vec<Algorithm>,
    checks: Checks,
    read_every: Duration,
    /// Time of the last read; locked during a read.
    last_read: tokio::sync::Mutex<Option<Instant>>,
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
        Self { verifier: RwLock::new(Arc::new(verifier)), file: None }
    }

    pub(super) fn file(
        path: PathBuf,
        algorithms: Vec<Algorithm>,
        checks: Checks,
    ) -> Result<Self, JwksFileError> {
        let verifier = read(&path, &algorithms, &checks)?;
        let last_read = tokio::sync::Mutex::new(None);
        let file = KeyFile { path, algorithms, checks, read_every: READ_EVERY, last_read };
        Ok(Self { file: Some(file), ..Self::fixed(verifier) })
    }

    pub(super) fn verifier(&self) -> Arc<Verifier> {
        Arc::clone(&self.verifier.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether newer keys may be available, or are being read.
    pub(super) fn may_be_newer(&self) -> bool {
        self.file.as_ref().is_some_and(|file| match file.last_read.try_lock() {
            Ok(last_read) => file.is_due(*last_read),
            Err(_) => true,
        })
    }

    /// Reads the keys again, unless another task just has. The file is read on its own thread,
    /// never on a shard, whose descriptors are for sockets.
    pub(super) async fn read_again(self: &Arc<Self>) {
        let Some(file) = &self.file else { return };
        let mut last_read = file.last_read.lock().await;
        if !file.is_due(*last_read) {
            return;
        }
        let this = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || this.read_now()).await;
        *last_read = Some(Instant::now());
        if let Err(error) = read {
            tracing::error!(%error, "the keys of tokens were not reloaded");
        }
    }

    fn read_now(&self) {
        let Some(file) = &self.file else { return };
        let path = file.path.display();
        match read(&file.path, &file.algorithms, &file.checks) {
            Ok(verifier) => {
                tracing::info!(%path, "reloaded the keys of tokens");
                *self.verifier.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(verifier);
            }
            Err(error) => {
                tracing::warn!(%path, %error, "cannot reload the keys of tokens; the old ones \
                    stay");
            }
        }
    }
}

impl KeyFile {
    fn is_due(&self, last_read: Option<Instant>) -> bool {
        last_read.is_none_or(|last_read| last_read.elapsed() >= self.read_every)
    }
}

impl fmt::Debug for CurrentVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.file.as_ref().map(|file| &file.path);
        f.debug_struct("CurrentVerifier").field("file", &path).finish_non_exhaustive()
    }
}

fn read(path: &Path, algorithms: &[Algorithm], checks: &Checks) -> Result<Verifier, JwksFileError> {
    let text = std::fs::read_to_string(path).map_err(JwksFileError::Read)?;
    let mut settings = JwtSettings::new(KeySource::Jwks(text));
    settings.algorithms = algorithms.to_vec();
    settings.checks = checks.clone();
    let verifier = Verifier::new(Settings::Jwt(settings)).map_err(JwksFileError::Keys)?;
    for skipped in verifier.skipped_keys() {
        let (path, index, kid) = (path.display(), skipped.index, skipped.id.as_deref());
        tracing::warn!(%path, index, kid, why = skipped.why, "ignored a key of tokens");
    }
    Ok(verifier)
}
