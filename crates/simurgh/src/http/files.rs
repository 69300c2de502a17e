//! A directory of files: tower-http serves them, from what lies beneath the directory and nowhere
//! else.
#![allow(
    clippy::disallowed_types,
    reason = "the directory is opened and used in the process's own table, never by a shard"
)]

use std::fs::{File as StdFile, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, ETAG};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::map_response;
use axum::response::Response;
use tokio::fs::File as TokioFile;
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::services::ServeDir;
use tower_http::services::fs::{Backend, File};

use super::with_security_headers;

/// Of what is compressed while it is sent: more would cost the server more than it spares the line.
const LEVEL: CompressionLevel = CompressionLevel::Precise(4);
/// Whoever has a file asks whether it is still the same.
const CACHING: HeaderValue = HeaderValue::from_static("no-cache");

/// Serves the files below a directory, as a router's fallback: `index.html` for a directory, an
/// `ETag` and `Last-Modified` with 304 for who has it already, ranges, and `br`, `zstd` or `gzip`
/// as the client takes them: `page.css.br` and the like where they are there, else compressed while
/// it is sent. Answers bear security headers with `policy`
/// ([`with_security_headers`]).
///
/// Nothing outside of the directory is served, through whatever link, and nothing whose name or
/// whose directory's begins with a dot, but for `.well-known` (RFC 8615).
///
/// Reads are done on threads of their own: for a few files that never change,
/// `include_bytes!` and a route are faster.
///
/// # Errors
/// The directory cannot be opened.
pub fn static_files(directory: impl AsRef<Path>, policy: HeaderValue) -> io::Result<Router> {
    let beneath = Beneath::open(directory.as_ref())?;
    let files = ServeDir::with_backend("", beneath)
        .precompressed_br()
        .precompressed_zstd()
        .precompressed_gzip();
    let router = Router::new()
        .fallback_service(files)
        .layer(CompressionLayer::new().quality(LEVEL))
        .layer(map_response(finish));
    Ok(with_security_headers(router, policy))
}

/// What was compressed while it is sent is the same as the file, but not byte for byte.
async fn finish(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let is_squeezed =
        headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(CONTENT_LENGTH);
    if let (true, Some(weak)) = (is_squeezed, weakened(headers)) {
        headers.insert(ETAG, weak);
    }
    if response.status().is_success() {
        response.headers_mut().entry(CACHE_CONTROL).or_insert(CACHING);
    }
    response
}

fn weakened(headers: &HeaderMap) -> Option<HeaderValue> {
    let strong = headers.get(ETAG)?.as_bytes();
    let weak = [b"W/", strong].concat();
    (!strong.starts_with(b"W/")).then(|| HeaderValue::from_bytes(&weak).ok()).flatten()
}

/// A directory that was opened once; paths are looked up from there.
#[derive(Clone)]
struct Beneath {
    directory: Arc<OwnedFd>,
    /// Where the system cannot look up beneath a directory by itself.
    #[cfg(not(target_os = "linux"))]
    path: PathBuf,
}

impl Beneath {
    fn open(path: &Path) -> io::Result<Self> {
        let directory = StdFile::open(path)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "is no directory"));
        }
        Ok(Self {
            directory: Arc::new(directory.into()),
            #[cfg(not(target_os = "linux"))]
            path: path.canonicalize()?,
        })
    }

    /// Opens what is at `path`, if it is a file or a directory beneath this one.
    async fn look_up(self, path: PathBuf) -> io::Result<(StdFile, Metadata)> {
        if !is_open(&path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let found = tokio::task::spawn_blocking(move || {
            let file = self.open_beneath(&path)?;
            let about = file.metadata()?;
            // A pipe or a device would never end, or do something.
            match about.is_file() || about.is_dir() {
                true => Ok((file, about)),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        });
        found.await.map_err(io::Error::other)?
    }

    #[cfg(target_os = "linux")]
    fn open_beneath(&self, path: &Path) -> io::Result<StdFile> {
        use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
        use rustix::io::Errno;
        // The kernel itself refuses to leave the directory, whatever is moved or linked meanwhile.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&*self.directory, path, flags, Mode::empty(), resolve) {
            Ok(descriptor) => Ok(descriptor.into()),
            // It leads out of here, in circles, or is too long to be a name.
            Err(Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG | Errno::NXIO) => {
                Err(io::ErrorKind::NotFound.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_beneath(&self, path: &Path) -> io::Result<StdFile> {
        let whole = self.path.join(path).canonicalize()?;
        match whole.starts_with(&self.path) {
            true => StdFile::open(whole),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Whether no part of a path is hidden.
fn is_open(path: &Path) -> bool {
    path.components().all(|part| match part {
        Component::Normal(name) => {
            !name.as_encoded_bytes().starts_with(b".") || name == ".well-known"
        }
        Component::CurDir => true,
        _ => false,
    })
}

impl Backend for Beneath {
    type File = Opened;
    type Metadata = Metadata;
    type OpenFuture = Pin<Box<dyn Future<Output = io::Result<Opened>> + Send>>;
    type MetadataFuture = Pin<Box<dyn Future<Output = io::Result<Metadata>> + Send>>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        let found = self.clone().look_up(path);
        Box::pin(async { found.await.map(|(file, _)| Opened(file.into())) })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        let found = self.clone().look_up(path);
        Box::pin(async { found.await.map(|(_, about)| about) })
    }
}

/// A file that is being sent.
struct Opened(TokioFile);

impl File for Opened {
    type Metadata = Metadata;
    type MetadataFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Metadata>> + Send + 'a>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        Box::pin(self.0.metadata())
    }
}

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncSeek for Opened {
    fn start_seek(mut self: Pin<&mut Self>, to: io::SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.0).start_seek(to)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.0).poll_complete(context)
    }
}
