//! Serves the files below a directory, and nothing outside of it, with tower-http.
#![allow(
    clippy::disallowed_types,
    reason = "the directory is opened and used in the process's own table, never by a shard"
)]

use std::fs::{File as StdFile, Metadata as StdMetadata};
use std::io::{self, Cursor, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_RANGE, ETAG, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE,
};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::map_response;
use axum::response::Response;
use tokio::fs::File as TokioFile;
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::services::ServeDir;
use tower_http::services::fs::{Backend, File, Metadata};
use tower_service::Service;

use crate::access::lines;

use super::copies::{Copies, Encoding, Version};
use super::with_security_headers;

/// The default limit of compressed copies, bytes.
const COPIES_BYTES_MAX: usize = 32 << 20;
/// Clients with a file ask whether it has changed.
const CACHING: HeaderValue = HeaderValue::from_static("no-cache");

/// Serves the files below a directory, as a router's fallback. It answers with `index.html` for a
/// directory, with `ETag` and `Last-Modified` (304 for clients that have the file), and with
/// ranges. It compresses with `br`, `zstd` or `gzip` if the client accepts that: it sends
/// `page.css.br` if that file exists, else a copy (`br` or `gzip`) that another thread makes and
/// caches. Answers have security headers with `policy` ([`with_security_headers`]).
///
/// Copies take up to 32 MiB, and a file above a quarter of that gets none; [`static_files_keeping`]
/// sets another limit.
///
/// Links that lead out of the directory are not followed. Names that begin with a dot, of files or
/// their directories, are not served, except `.well-known` (RFC 8615).
///
/// Reads run on a pool of threads: for a few files that never change, `include_bytes!` and a route
/// are faster.
///
/// # Errors
/// The directory cannot be opened.
pub fn static_files(directory: impl AsRef<Path>, policy: HeaderValue) -> io::Result<Router> {
    static_files_keeping(directory, policy, COPIES_BYTES_MAX)
}

/// As [`static_files`], with a limit of bytes for compressed copies; with 0 none are made.
///
/// # Errors
/// As [`static_files`].
pub fn static_files_keeping(
    directory: impl AsRef<Path>,
    policy: HeaderValue,
    copies_bytes_max: usize,
) -> io::Result<Router> {
    let beneath = Beneath::open(directory.as_ref())?;
    let copying = Beneath { copies: Some(Copies::new(copies_bytes_max)), ..beneath.clone() };
    let [as_they_are, copied] = [beneath, copying].map(|backend| {
        ServeDir::with_backend("", backend)
            .precompressed_br()
            .precompressed_zstd()
            .precompressed_gzip()
    });
    let serve = move |mut request: Request| {
        let if_range = request.headers_mut().remove(IF_RANGE);
        make_plain(&mut request);
        // A range is of the file itself; and our copies cannot be requested by name.
        let is_range = request.headers().contains_key(RANGE);
        let is_plain = is_range || Encoding::of(Path::new(request.uri().path())).is_some();
        let mut files = if is_plain { as_they_are.clone() } else { copied.clone() };
        let (mut head, body) = request.into_parts();
        async move {
            let answered = files.call(Request::from_parts(head.clone(), body)).await?;
            if !is_range || range_counts(answered.headers(), if_range.as_ref()) {
                return Ok(answered);
            }
            head.headers.remove(RANGE);
            files.call(Request::from_parts(head, Body::empty())).await
        }
    };
    let router = Router::new().fallback(serve).layer(map_response(finish));
    Ok(with_security_headers(router, policy))
}

/// Removes a range that means nothing (RFC 9110 §14.2), and several ranges or numbers of 19 digits,
/// which a server may ignore. It also removes slashes before the path: a redirect to `//dir/` would
/// lead to another host. Puts the tags of several lines into one.
fn make_plain(request: &mut Request) {
    let range = request.headers().get(RANGE).map_or(&[][..], HeaderValue::as_bytes);
    let unit = range.get(..6).filter(|_| !range.contains(&b','));
    let is_known = unit.is_some_and(|unit| unit.eq_ignore_ascii_case(b"bytes="))
        && range.split(|byte| !byte.is_ascii_digit()).all(|digits| digits.len() < 19);
    let plain = String::from_utf8_lossy(range).to_ascii_lowercase().parse();
    let is_get = request.method() == Method::GET;
    let headers = request.headers_mut();
    headers.remove(RANGE);
    if let (true, Ok(range)) = (is_get && is_known, plain) {
        headers.insert(RANGE, range);
    }
    let tags = lines(headers, IF_NONE_MATCH.as_str()).join(&b", "[..]);
    if let Ok(tags) = HeaderValue::from_bytes(&tags)
        && !tags.is_empty()
    {
        headers.insert(IF_NONE_MATCH, tags);
    }
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    if path.starts_with("//") || path.starts_with("/\\") {
        let path = path.trim_start_matches(['/', '\\']);
        *request.uri_mut() = format!("/{path}").parse().unwrap_or_default();
    }
}

/// Whether the range of a request counts, by its answer: the file is the one that `If-Range` names
/// (RFC 9110 §13.1.5), and has bytes.
fn range_counts(answered: &HeaderMap, if_range: Option<&HeaderValue>) -> bool {
    let names = [ETAG, LAST_MODIFIED].map(|name| answered.get(name));
    let is_same = if_range
        .is_none_or(|named| !named.as_bytes().starts_with(b"W/") && names.contains(&Some(named)));
    is_same && answered.get(CONTENT_RANGE).is_none_or(|range| !range.as_bytes().ends_with(b"/0"))
}

async fn finish(mut response: Response) -> Response {
    if response.status().is_success() {
        response.headers_mut().entry(CACHE_CONTROL).or_insert(CACHING);
    }
    response
}

/// A directory that is opened once; paths are resolved from there.
#[derive(Clone)]
struct Beneath {
    directory: Arc<OwnedFd>,
    /// For files without compressed files beside them.
    copies: Option<Arc<Copies>>,
    /// For systems that cannot resolve paths beneath a directory themselves.
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
            copies: None,
            #[cfg(not(target_os = "linux"))]
            path: path.canonicalize()?,
        })
    }

    /// Opens `path`, if it is a file or a directory beneath this one.
    async fn look_up(self, path: PathBuf) -> io::Result<(Opened, About)> {
        if !is_open(&path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let beneath = self.clone();
        let found = tokio::task::spawn_blocking(move || beneath.look_for(&path));
        match found.await.map_err(io::Error::other)?? {
            Looked::Found(file, about) => Ok((Opened::File(file.into()), about)),
            Looked::Original { path, encoding, file, version } => {
                let copies = self.copies.clone().ok_or(io::ErrorKind::NotFound)?;
                let for_names = path.clone();
                let has_own = move || {
                    Encoding::names(&for_names).any(|name| self.open_beneath(&name).is_ok())
                };
                let found = copies.find(path, encoding, file, version, has_own).await;
                let copy = found.ok_or(io::ErrorKind::NotFound)?;
                let version = Version { bytes: copy.len() as u64, ..version };
                let about = About { version, is_dir: false };
                Ok((Opened::Copy(Cursor::new(copy), about), about))
            }
        }
    }

    fn look_for(&self, path: &Path) -> io::Result<Looked> {
        let opened = self.open_beneath(path);
        if let (Err(error), Some(_)) = (&opened, &self.copies)
            && error.kind() == io::ErrorKind::NotFound
            && let Some((path, encoding)) = Encoding::of(path)
        {
            let file = self.open_beneath(&path)?;
            let About { version, is_dir: false } = About::of(&file.metadata()?)? else {
                return Err(io::ErrorKind::NotFound.into());
            };
            return Ok(Looked::Original { path, encoding, file, version });
        }
        let file = opened?;
        let about = About::of(&file.metadata()?)?;
        Ok(Looked::Found(file, about))
    }

    #[cfg(target_os = "linux")]
    fn open_beneath(&self, path: &Path) -> io::Result<StdFile> {
        use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
        use rustix::io::Errno;
        // The kernel refuses to leave the directory, even if files move or are linked meanwhile.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&*self.directory, path, flags, Mode::empty(), resolve) {
            Ok(descriptor) => Ok(descriptor.into()),
            // The path leads outside, is a loop, or is too long for a name.
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

fn is_open(path: &Path) -> bool {
    path.components().all(|part| match part {
        Component::Normal(name) => {
            !name.as_encoded_bytes().starts_with(b".") || name == ".well-known"
        }
        Component::CurDir => true,
        _ => false,
    })
}

enum Looked {
    Found(StdFile, About),
    /// Nothing is there, but the name is that of a compressed copy of this file.
    Original {
        path: PathBuf,
        encoding: Encoding,
        file: StdFile,
        version: Version,
    },
}

#[derive(Clone, Copy)]
struct About {
    version: Version,
    is_dir: bool,
}

impl About {
    /// Fails for a pipe or a device: reading it could block forever, or have effects.
    fn of(about: &StdMetadata) -> io::Result<Self> {
        if !about.is_file() && !about.is_dir() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let version = Version { modified: about.modified()?, bytes: about.len() };
        Ok(Self { version, is_dir: about.is_dir() })
    }
}

impl Metadata for About {
    fn is_dir(&self) -> bool {
        self.is_dir
    }

    fn modified(&self) -> io::Result<SystemTime> {
        Ok(self.version.modified)
    }

    fn len(&self) -> u64 {
        self.version.bytes
    }
}

impl Backend for Beneath {
    type File = Opened;
    type Metadata = About;
    type OpenFuture = Pin<Box<dyn Future<Output = io::Result<Opened>> + Send>>;
    type MetadataFuture = Pin<Box<dyn Future<Output = io::Result<About>> + Send>>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        let found = self.clone().look_up(path);
        Box::pin(async { found.await.map(|(opened, _)| opened) })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        let found = self.clone().look_up(path);
        Box::pin(async { found.await.map(|(_, about)| about) })
    }
}

enum Opened {
    File(TokioFile),
    /// The compressed copy of a file, with the file's modification time.
    Copy(Cursor<Bytes>, About),
}

impl File for Opened {
    type Metadata = About;
    type MetadataFuture<'a> = Pin<Box<dyn Future<Output = io::Result<About>> + Send + 'a>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        Box::pin(async move {
            match self {
                Self::File(file) => About::of(&file.metadata().await?),
                Self::Copy(_, about) => Ok(*about),
            }
        })
    }
}

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::File(file) => Pin::new(file).poll_read(context, buffer),
            Self::Copy(bytes, _) => Pin::new(bytes).poll_read(context, buffer),
        }
    }
}

impl AsyncSeek for Opened {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        match &mut *self {
            Self::File(file) => Pin::new(file).start_seek(to),
            Self::Copy(bytes, _) => Pin::new(bytes).start_seek(to),
        }
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        match &mut *self {
            Self::File(file) => Pin::new(file).poll_complete(context),
            Self::Copy(bytes, _) => Pin::new(bytes).poll_complete(context),
        }
    }
}
