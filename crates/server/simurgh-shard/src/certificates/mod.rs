//! The certificates of a server: chosen by the name that a client requests, and replaced all at
//! once.

mod files;
mod problem;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::CertificateFiles;
pub use files::Certificate;
pub use problem::{CertificateProblem, CertificateProblems, Severity};

/// The certificates that new connections get. Connections that exist keep theirs.
#[derive(Debug)]
pub struct Certificates {
    files: Mutex<Vec<CertificateFiles>>,
    current: RwLock<Arc<CertificateSet>>,
    /// Reloads that succeeded and that failed.
    pub reloads: AtomicU64,
    pub failed_reloads: AtomicU64,
}

impl Certificates {
    /// Reads the files, and logs what is wrong but does not prevent a start: an expired certificate
    /// as an error, the rest as warnings.
    ///
    /// # Errors
    /// What prevents a start.
    pub fn read(files: &[CertificateFiles]) -> Result<Self, CertificateProblems> {
        let (set, problems) = CertificateSet::read(files, SystemTime::now())?;
        problems.iter().for_each(CertificateProblem::log);
        Ok(Self {
            files: Mutex::new(files.to_vec()),
            current: RwLock::new(Arc::new(set)),
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
        })
    }

    /// Reads the files again, for all later connections. Logs and counts the result.
    ///
    /// # Errors
    /// What prevents a start, and certificates that are not valid now. The old ones then stay.
    pub fn reload(&self) -> Result<(), CertificateProblems> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match self.read_again(&files) {
            Ok(set) => {
                self.publish(files, set);
                Ok(())
            }
            Err(problems) => {
                self.failed_reloads.fetch_add(1, Relaxed);
                tracing::error!(
                    "the TLS certificates were not reloaded; the old ones stay: {problems}"
                );
                Err(problems)
            }
        }
    }

    /// Reads these files, which need not be the same. Logs warnings.
    ///
    /// # Errors
    /// As [`reload`](Self::reload).
    pub fn read_again(
        &self,
        files: &[CertificateFiles],
    ) -> Result<CertificateSet, CertificateProblems> {
        let (set, problems) = CertificateSet::read(files, SystemTime::now())?;
        match problems.iter().all(|problem| problem.severity() == Severity::Warning) {
            true => {
                problems.iter().for_each(CertificateProblem::log);
                Ok(set)
            }
            false => Err(CertificateProblems(problems)),
        }
    }

    /// Uses certificates of these files for all later connections.
    pub fn publish(&self, files: Vec<CertificateFiles>, set: CertificateSet) {
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = files;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        self.reloads.fetch_add(1, Relaxed);
        tracing::info!("reloaded the TLS certificates");
    }

    pub fn current(&self) -> Arc<CertificateSet> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current().for_name(hello.server_name()).map(Certificate::key)
    }
}

/// Certificates that were read together.
#[derive(Debug)]
pub struct CertificateSet {
    certificates: Vec<Certificate>,
    /// The certificate of each DNS name, in lower case; `*.a.b` has the name `.a.b`.
    by_name: HashMap<Box<str>, usize>,
}

impl CertificateSet {
    /// Reads and checks files. With the certificates come problems that do not prevent a start.
    ///
    /// # Errors
    /// All problems, if at least one prevents a start.
    pub fn read(
        files: &[CertificateFiles],
        now: SystemTime,
    ) -> Result<(Self, Vec<CertificateProblem>), CertificateProblems> {
        let mut problems = Vec::new();
        let read = files.iter().filter_map(|files| Certificate::read(files, now, &mut problems));
        let mut set = Self { certificates: read.collect(), by_name: HashMap::new() };
        set.fill_names(&mut problems);
        if files.is_empty() {
            problems.push(CertificateProblem::NoFiles);
        }
        match problems.iter().any(|problem| problem.severity() == Severity::Error) {
            true => Err(CertificateProblems(problems)),
            false => Ok((set, problems)),
        }
    }

    /// The certificates, in the order of the settings.
    pub fn all(&self) -> &[Certificate] {
        &self.certificates
    }

    /// The certificate for a name that a client requests, else the first.
    pub fn for_name(&self, name: Option<&str>) -> Option<&Certificate> {
        let index = name.and_then(|name| self.index_of(&name.to_ascii_lowercase()));
        self.certificates.get(index.unwrap_or(0))
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        let parent = || name.find('.').and_then(|dot| name.get(dot..));
        let exact = self.by_name.get(name);
        exact.or_else(|| self.by_name.get(parent()?)).copied()
    }

    /// The first certificate with a name has it.
    fn fill_names(&mut self, problems: &mut Vec<CertificateProblem>) {
        for (index, certificate) in self.certificates.iter().enumerate() {
            for name in &certificate.names {
                let key = name.strip_prefix('*').unwrap_or(name).to_ascii_lowercase();
                let first = *self.by_name.entry(key.into()).or_insert(index);
                if let Some(first) = self.certificates.get(first).filter(|_| first != index) {
                    problems.push(CertificateProblem::NameTwice {
                        name: name.clone(),
                        file: certificate.files.chain.clone(),
                        first: first.files.chain.clone(),
                    });
                }
            }
        }
    }
}
