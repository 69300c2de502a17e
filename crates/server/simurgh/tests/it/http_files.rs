//! A directory of files: validators, ranges, compression, and what must not be served.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::raw::{Answer, Raw};
use crate::support::start;
use simurgh::Endpoint;
use simurgh::axum::http::HeaderValue;
use simurgh::http::static_files;

struct Scene {
    root: PathBuf,
    endpoint: Endpoint,
}

const TEXT: &str = "All work and no play makes Jack a dull boy.\n";

/// Bytes that cannot be compressed.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

impl Scene {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("simurgh-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let files = root.join("files");
        fs::create_dir_all(files.join("sub/.git")).unwrap();
        fs::create_dir_all(files.join(".well-known")).unwrap();
        fs::create_dir_all(root.join("beside")).unwrap();
        fs::write(root.join("beside/secret.txt"), "secret").unwrap();
        fs::write(files.join("index.html"), "<!doctype html><p>index").unwrap();
        fs::write(files.join("long.txt"), TEXT.repeat(100)).unwrap();
        fs::write(files.join("picture.png"), noise(4000)).unwrap();
        fs::write(files.join("page.css"), "plain".repeat(100)).unwrap();
        fs::write(files.join("page.css.br"), "as br").unwrap();
        fs::write(files.join("page.css.gz"), "as gzip").unwrap();
        fs::write(files.join("page.css.zst"), "as zstd").unwrap();
        fs::write(files.join("sub/index.html"), "sub").unwrap();
        fs::write(files.join(".env"), "secret").unwrap();
        fs::write(files.join("sub/.git/config"), "secret").unwrap();
        fs::write(files.join(".well-known/security.txt"), "Contact: mailto:a@b").unwrap();
        symlink("long.txt", files.join("inside.txt")).unwrap();
        symlink("../beside/secret.txt", files.join("out.txt")).unwrap();
        symlink(root.join("beside/secret.txt"), files.join("absolute.txt")).unwrap();
        symlink("../beside", files.join("beside")).unwrap();
        symlink("round.txt", files.join("round.txt")).unwrap();
        symlink("/proc/self", files.join("self")).unwrap();
        let policy = HeaderValue::from_static("default-src 'self'");
        let router = static_files(&files, policy).unwrap();
        Self { root, endpoint: start(Endpoint::builder().http(router)) }
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.endpoint.addresses()[0])
    }

    fn request(&self, line: &str, headers: &str) -> Answer {
        let mut raw = self.raw();
        raw.send(format!("{line} HTTP/1.1\r\nhost: a\r\n{headers}\r\n"));
        if line.starts_with("HEAD") { raw.answer_to_head() } else { raw.answer() }
    }

    fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), "")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_file_is_sent_with_its_type_validators_and_security_headers() {
    let scene = Scene::new("plain");
    let answer = scene.get("/long.txt");
    assert_eq!((answer.status, answer.text()), (200, TEXT.repeat(100).as_str()));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert!(answer.header("etag").is_some_and(|tag| tag.starts_with('"')), "{answer:?}");
    assert!(answer.header("last-modified").is_some());
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("x-frame-options"), Some("DENY"));
    assert_eq!(answer.header("content-security-policy"), Some("default-src 'self'"));
    assert_eq!(scene.get("/").text(), "<!doctype html><p>index");
    assert_eq!(scene.get("/sub/").text(), "sub");
    assert_eq!(scene.get("/sub").header("location"), Some("/sub/"));
    assert_eq!(scene.get("/nothing").status, 404);
    assert_eq!(scene.request("POST /long.txt", "content-length: 0\r\n").status, 405);
}

#[test]
fn client_that_has_a_file_gets_304() {
    let scene = Scene::new("validators");
    let first = scene.get("/long.txt");
    let tag = first.header("etag").unwrap();
    let date = first.header("last-modified").unwrap();
    for (headers, status) in [
        (format!("if-none-match: {tag}\r\n"), 304),
        (format!("if-none-match: W/{tag}\r\n"), 304),
        (format!("if-none-match: \"x\", {tag}\r\n"), 304),
        (format!("if-none-match: \"x\"\r\nif-none-match: {tag}\r\n"), 304),
        ("if-none-match: *\r\n".to_owned(), 304),
        ("if-none-match: \"x\"\r\n".to_owned(), 200),
        (format!("if-modified-since: {date}\r\n"), 304),
        ("if-modified-since: Thu, 01 Jan 1970 00:00:00 GMT\r\n".to_owned(), 200),
        // With both headers the tag decides.
        (format!("if-none-match: \"x\"\r\nif-modified-since: {date}\r\n"), 200),
        ("if-match: \"x\"\r\n".to_owned(), 412),
    ] {
        let answer = scene.request("GET /long.txt", &headers);
        assert_eq!(answer.status, status, "{headers}");
        if status == 304 {
            assert_eq!(answer.header("etag"), Some(tag), "{headers}");
        }
    }
    fs::write(scene.root.join("files/long.txt"), "another").unwrap();
    let answer = scene.request("GET /long.txt", &format!("if-none-match: {tag}\r\n"));
    assert_eq!((answer.status, answer.text()), (200, "another"));
}

#[test]
fn head_returns_the_headers_of_get() {
    let scene = Scene::new("head");
    let (get, head) = (scene.get("/picture.png"), scene.request("HEAD /picture.png", ""));
    for name in ["content-length", "content-type", "etag", "last-modified", "accept-ranges"] {
        assert!(get.header(name).is_some(), "{name}");
        assert_eq!(get.header(name), head.header(name), "{name}");
    }
}

#[test]
fn single_ranges_are_sent() {
    let scene = Scene::new("ranges");
    for (range, status, text) in [
        ("bytes=0-2", 206, "All"),
        ("BYTES=4-7", 206, "work"),
        ("bytes=-5", 206, "boy.\n"),
        ("bytes=4398-9999", 206, ".\n"),
        ("bytes=99999-", 416, ""),
    ] {
        let answer = scene.request("GET /long.txt", &format!("range: {range}\r\n"));
        assert_eq!((answer.status, answer.text()), (status, text), "{range}");
    }
    let answer = scene.request("GET /long.txt", "range: bytes=0-2\r\naccept-encoding: gzip\r\n");
    assert_eq!((answer.status, answer.text()), (206, "All"), "a part is not compressed");
}

#[test]
fn range_that_means_nothing_gets_the_whole_file() {
    let scene = Scene::new("void-ranges");
    fs::write(scene.root.join("files/empty.txt"), "").unwrap();
    let whole = TEXT.repeat(100);
    for range in
        ["bytes=0-99999999999999999999", "bites=0-2", "x=0-", "items=0-2", "bytes", "bytes=0-0,-1"]
    {
        let answer = scene.request("GET /long.txt", &format!("range: {range}\r\n"));
        assert_eq!((answer.status, answer.text()), (200, whole.as_str()), "{range}");
        assert_eq!(answer.header("content-range"), None);
    }
    for range in ["bytes=0-", "bytes=0-0", "bytes=-1"] {
        let answer = scene.request("GET /empty.txt", &format!("range: {range}\r\n"));
        assert_eq!((answer.status, answer.text()), (200, ""), "{range}: {answer:?}");
        assert_eq!(answer.header("content-length"), Some("0"));
    }
    assert_eq!(scene.request("HEAD /long.txt", "range: bytes=0-2\r\n").status, 200);
}

#[test]
fn range_counts_for_the_file_that_if_range_names() {
    let scene = Scene::new("if-range");
    let first = scene.get("/long.txt");
    let (tag, date) = (first.header("etag").unwrap(), first.header("last-modified").unwrap());
    let answer = |range: &str, if_range: &str| {
        let headers = format!("range: {range}\r\nif-range: {if_range}\r\n");
        scene.request("GET /long.txt", &headers)
    };
    for same in [tag, date] {
        assert_eq!(
            (answer("bytes=0-2", same).status, answer("bytes=0-2", same).text()),
            (206, "All")
        );
    }
    let weak = format!("W/{tag}");
    for stale in ["\"stale\"", "Thu, 01 Jan 1970 00:00:00 GMT", &weak, "x"] {
        for range in ["bytes=0-2", "bytes=99999-"] {
            let answer = answer(range, stale);
            assert_eq!((answer.status, answer.text()), (200, first.text()), "{range} {stale}");
            assert_eq!(answer.header("content-range"), None);
        }
    }
}

#[test]
fn redirect_to_a_directory_stays_on_this_host() {
    let scene = Scene::new("redirects");
    for path in ["/sub", "//sub", "///sub", "/\\sub", "/\\/sub"] {
        let answer = scene.get(path);
        assert_eq!((answer.status, answer.header("location")), (307, Some("/sub/")), "{path}");
    }
    assert_eq!(scene.get("//long.txt").status, 200);
}

#[test]
fn file_is_compressed_as_the_client_accepts() {
    let scene = Scene::new("compression");
    for encoding in ["gzip", "br"] {
        let answer = scene.request("GET /long.txt", &format!("accept-encoding: {encoding}\r\n"));
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        assert!(answer.header("vary").is_some_and(|it| it.contains("accept-encoding")));
        assert!(answer.body.len() < 400, "{encoding}: {} bytes", answer.body.len());
        let tag = answer.header("etag").unwrap();
        assert_ne!(scene.get("/long.txt").header("etag"), Some(tag), "other bytes");
        let known = format!("accept-encoding: {encoding}\r\nif-none-match: {tag}\r\n");
        assert_eq!(scene.request("GET /long.txt", &known).status, 304);
        let picture =
            scene.request("GET /picture.png", &format!("accept-encoding: {encoding}\r\n"));
        assert_eq!(picture.header("content-encoding"), None, "it is compressed already");
    }
    let not_made = "accept-encoding: zstd\r\n";
    for none in ["", "accept-encoding: deflate\r\n", "accept-encoding: gzip;q=0\r\n", not_made] {
        let answer = scene.request("GET /long.txt", none);
        assert_eq!(answer.header("content-encoding"), None, "{none}");
        assert_eq!(answer.text(), TEXT.repeat(100));
    }
}

/// Twenty clients that requested 21 MB as brotli blocked an HTTP thread for seconds: it compressed
/// the file for each of them.
#[test]
fn compressing_a_large_file_for_many_does_not_block_others() {
    let scene = Scene::new("crowd");
    let words: Vec<String> = noise(1 << 20).chunks(4).map(|it| format!("{it:02x?}")).collect();
    let text = words.concat();
    fs::write(scene.root.join("files/large.txt"), &text).unwrap();
    let mut crowd: Vec<Raw> = (0..20).map(|_| scene.raw()).collect();
    for raw in &mut crowd {
        raw.send("GET /large.txt HTTP/1.1\r\nhost: a\r\naccept-encoding: br\r\n\r\n");
    }
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(scene.get("/healthz").text(), "ok\n");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
    for raw in &mut crowd {
        // No request waits for the copy that is being made.
        let answer = raw.answer();
        assert_eq!(answer.header("content-encoding"), None);
        assert_eq!(answer.header("vary"), Some("accept-encoding"));
        assert_eq!(answer.body.len(), text.len());
    }
}

#[test]
fn compressed_copies_have_no_path() {
    let scene = Scene::new("names");
    let gzip = scene.request("GET /long.txt", "accept-encoding: gzip\r\n");
    let head = scene.request("HEAD /long.txt", "accept-encoding: gzip\r\n");
    for name in ["content-length", "content-encoding", "etag", "content-type"] {
        assert!(gzip.header(name).is_some(), "{name}");
        assert_eq!(gzip.header(name), head.header(name), "{name}");
    }
    assert_eq!(scene.get("/long.txt.gz").status, 404);
    fs::write(scene.root.join("files/long.txt"), "x".repeat(2_000)).unwrap();
    let changed = scene.request("GET /long.txt", "accept-encoding: gzip\r\n");
    assert_ne!(changed.header("etag"), gzip.header("etag"), "a copy is of the file as it is");
    assert!(changed.body.len() < 100);
}

#[test]
fn files_compressed_beforehand_are_sent_as_they_are() {
    let scene = Scene::new("precompressed");
    for (accepted, encoding, text) in [
        ("br", "br", "as br"),
        ("gzip", "gzip", "as gzip"),
        ("zstd", "zstd", "as zstd"),
        ("gzip;q=0.5, br;q=0.9", "br", "as br"),
    ] {
        let answer = scene.request("GET /page.css", &format!("accept-encoding: {accepted}\r\n"));
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        assert_eq!(answer.header("content-type"), Some("text/css"));
        assert_eq!(answer.text(), text);
        assert!(answer.header("vary").is_some());
    }
    assert_eq!(scene.get("/page.css").text(), "plain".repeat(100));
}

#[test]
fn no_path_leads_out_of_the_directory() {
    let scene = Scene::new("traversal");
    for path in [
        "/../beside/secret.txt",
        "/sub/../../beside/secret.txt",
        "/%2e%2e/beside/secret.txt",
        "/..%2fbeside%2fsecret.txt",
        "/%2e%2e%2fbeside%2fsecret.txt",
        "/sub/..%5c..%5cbeside/secret.txt",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/..%00/beside/secret.txt",
        "/long.txt%00",
        "/long.txt/",
        "/long.txt/..",
        "/%ff",
    ] {
        let answer = scene.get(path);
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer:?}");
        assert!(!answer.text().contains("secret") && !answer.text().contains("root:"), "{path}");
    }
}

#[test]
fn hidden_files_are_not_served() {
    let scene = Scene::new("hidden");
    for path in ["/.env", "/%2eenv", "/sub/.git/config", "/sub/%2egit/config", "/sub/.git/"] {
        assert_eq!(scene.get(path).status, 404, "{path}");
        assert_eq!(scene.request(&format!("HEAD {path}"), "").status, 404, "{path}");
    }
    assert_eq!(scene.get("/.well-known/security.txt").status, 200);
}

#[test]
fn links_are_followed_within_the_directory_only() {
    let scene = Scene::new("links");
    assert_eq!(scene.get("/inside.txt").text(), TEXT.repeat(100));
    for path in [
        "/out.txt",
        "/absolute.txt",
        "/beside/secret.txt",
        "/beside/",
        "/round.txt",
        "/self/environ",
        "/self/root/etc/passwd",
    ] {
        assert_eq!(scene.get(path).status, 404, "{path}");
        assert_eq!(scene.request(&format!("HEAD {path}"), "").status, 404, "{path}");
    }
}

#[test]
fn missing_directory_is_an_error_at_once() {
    let policy = || HeaderValue::from_static("default-src 'self'");
    assert!(static_files("/nowhere/at/all", policy()).is_err());
    assert!(static_files("/etc/passwd", policy()).is_err());
}
