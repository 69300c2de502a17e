//! The table `[tls]` of `simurgh.toml`: addresses with TLS, and their certificates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use simurgh::tls::{CertificateFiles, RecordLayer, Severity, TlsConfig, TlsVersion, check};

use super::mistakes::{Mistake, Mistakes};
use super::values;

/// The table with its comments, for `simurgh config`.
pub(crate) const TEXT: &str = include_str!("../tls.toml");

/// The table of the file.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsSpec {
    #[serde(deserialize_with = "one_or_more")]
    listen: Vec<String>,
    #[serde(deserialize_with = "one_or_more")]
    certificate: Vec<String>,
    #[serde(deserialize_with = "one_or_more")]
    key: Vec<String>,
    min_version: Version,
    record_layer: Layer,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
enum Version {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Layer {
    #[default]
    Rustls,
    Simurgh,
}

/// The settings of TLS, and problems of its certificates that do not prevent a start.
pub(crate) struct Tls {
    pub(crate) config: TlsConfig,
    pub(crate) problems: Vec<(Severity, Mistake)>,
}

impl TlsSpec {
    /// The settings, or all mistakes, also those in the files.
    pub(crate) fn read(&self) -> Result<Tls, Vec<Mistake>> {
        let mut wrong = Mistakes::default();
        let listen = self.listen(&mut wrong);
        let certificate = paths(&mut wrong, ("certificate", "fullchain.pem"), &self.certificate);
        let key = paths(&mut wrong, ("key", "privkey.pem"), &self.key);
        let (Some(chains), Some(keys)) = (certificate, key) else { return Err(wrong.0) };
        if chains.len() != keys.len() {
            let (chains, keys) = (chains.len(), keys.len());
            let text = format!(
                "names {keys} files, and certificate names {chains}: list one key for each \
                 certificate, in the same order"
            );
            wrong.add("key", text);
            return Err(wrong.0);
        }
        let files =
            chains.into_iter().zip(keys).map(|(chain, key)| CertificateFiles { chain, key });
        let files: Vec<_> = files.collect();
        let problems = check(&files).unwrap_or_else(|problems| problems.0);
        let (prevent, allow): (Vec<_>, Vec<_>) = problems
            .iter()
            .map(|it| (it.severity(), (self.key_with(it.file()), it.to_string())))
            .partition(|(severity, _)| *severity == Severity::Error);
        wrong.0.extend(prevent.into_iter().map(|(_, mistake)| mistake));
        let (Some(first), Some(address), true) =
            (files.first(), listen.first(), wrong.0.is_empty())
        else {
            return Err(wrong.0);
        };
        let mut config = TlsConfig::new(*address, &first.chain, &first.key);
        (config.listen, config.certificates) = (listen, files);
        config.min_version = match self.min_version {
            Version::Tls12 => TlsVersion::Tls12,
            Version::Tls13 => TlsVersion::Tls13,
        };
        config.record_layer = match self.record_layer {
            Layer::Simurgh => RecordLayer::Simurgh,
            Layer::Rustls => RecordLayer::Rustls,
        };
        Ok(Tls { config, problems: allow })
    }

    fn listen(&self, wrong: &mut Mistakes) -> Vec<SocketAddr> {
        if self.listen.is_empty() {
            wrong.add("listen", "is missing: an address such as \"0.0.0.0:443\"");
        }
        let addresses = self.listen.iter().map(|text| values::address(text));
        addresses.filter_map(|address| wrong.note("listen", address)).collect()
    }

    /// The key of the table that names a file.
    fn key_with(&self, file: Option<&PathBuf>) -> &'static str {
        let names =
            |all: &[String]| file.is_some_and(|file| all.iter().any(|it| Path::new(it) == file));
        match names(&self.key) && !names(&self.certificate) {
            true => "key",
            false => "certificate",
        }
    }
}

/// The files of a key; `None` if there are mistakes.
fn paths(
    wrong: &mut Mistakes,
    (key, example): (&'static str, &str),
    all: &[String],
) -> Option<Vec<PathBuf>> {
    if all.is_empty() {
        return wrong.refuse(key, format!("is missing: a file such as \"{example}\""));
    }
    // Not quoted: it may be a private key.
    if all.iter().any(|text| text.contains("-----BEGIN")) {
        return wrong.refuse(key, "takes the path of a file, not its text");
    }
    Some(all.iter().map(PathBuf::from).collect())
}

fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    simurgh::declared::one_or_more(from, "the list is empty")
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use tempfile::TempDir;

    use super::super::file::File;
    use super::super::table::Channels;
    use super::super::{PartialSettings, Settings};
    use super::*;

    /// A directory with certificate and key `a`, which are valid, and `old`, which have expired.
    fn certificates() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, until) in [("a", 4096), ("old", 2020)] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new([format!("{name}.example")]).unwrap();
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
            let certificate = params.self_signed(&key).unwrap().pem();
            std::fs::write(dir.path().join(format!("{name}.pem")), certificate).unwrap();
            std::fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        dir
    }

    fn merged(dir: &TempDir, text: &str) -> Result<Settings, String> {
        let text = text.replace("DIR", &dir.path().to_string_lossy());
        let file = File::parse("f.toml", text, Channels::Declared);
        let merged = Settings::merge(PartialSettings::default(), file, Channels::Declared);
        merged.map_err(|refusal| refusal.to_string())
    }

    const ONE: &str =
        "listen = \"127.0.0.1:4443\"\ncertificate = \"DIR/a.pem\"\nkey = \"DIR/a.key\"\n";

    #[test]
    fn table_becomes_the_settings_of_the_library() {
        let dir = certificates();
        let tls = merged(&dir, &format!("[tls]\n{ONE}")).unwrap().config.tls.unwrap();
        let path = |name| dir.path().join(name);
        assert_eq!(tls, TlsConfig::new(tls.listen[0], path("a.pem"), path("a.key")));
        let text = "listen = []\n[tls]\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"]\n\
            certificate = [\"DIR/a.pem\", \"DIR/old.pem\"]\n\
            key = [\"DIR/a.key\", \"DIR/old.key\"]\n\
            min_version = \"1.3\"\nrecord_layer = \"simurgh\"\n";
        let settings = merged(&dir, text).unwrap();
        assert!(settings.config.listen.is_empty());
        let tls = settings.config.tls.unwrap();
        assert_eq!((tls.listen.len(), tls.certificates.len()), (2, 2));
        assert_eq!(tls.min_version, TlsVersion::Tls13);
        assert_eq!(tls.record_layer, RecordLayer::Simurgh);
        assert!(merged(&dir, "").unwrap().config.tls.is_none());
    }

    #[test]
    fn mistakes_in_the_table_and_its_files_are_named_with_their_line() {
        let dir = certificates();
        for (text, says) in [
            ("[tls]\n".to_owned(), "f.toml:1: [tls] listen: is missing: an address such as"),
            ("[tls]\n".to_owned(), "f.toml:1: [tls] certificate: is missing: a file such as"),
            ("[tls]\n".to_owned(), "f.toml:1: [tls] key: is missing: a file such as"),
            (
                format!("[tls]\n{}", ONE.replace("127.0.0.1:4443", "443")),
                "f.toml:2: [tls] listen: \"443\" is not an address with a port",
            ),
            (
                format!("[tls]\n{}", ONE.replace("a.pem", "none")),
                "f.toml:3: [tls] certificate: cannot read",
            ),
            (
                format!("[tls]\n{}", ONE.replace("a.key", "none")),
                "f.toml:4: [tls] key: cannot read",
            ),
            (
                format!("[tls]\n{}", ONE.replace("a.key", "old.key")),
                "old.key is not the key of the first certificate in",
            ),
            (
                format!("[tls]\n{}", ONE.replace("\"DIR/a.key\"", "[\"DIR/a.key\", \"b\"]")),
                "f.toml:4: [tls] key: names 2 files, and certificate names 1: list one key",
            ),
            (
                format!("[tls]\n{}", ONE.replace("DIR/a.key", "-----BEGIN PRIVATE KEY-----")),
                "f.toml:4: [tls] key: takes the path of a file, not its text",
            ),
            (
                format!("[tls]\n{ONE}key_file = \"x\"\n"),
                "[tls] key_file: no such key; did you mean",
            ),
            (format!("[tls]\n{ONE}shards = 5\n"), "move it above the first [tls]"),
            (
                format!("[tls]\n{ONE}min_version = \"1.1\"\n"),
                "f.toml:5: [tls] min_version: unknown variant `1.1`, expected `1.2` or `1.3`",
            ),
            (
                format!("[tls]\n{ONE}record_layer = \"kernel\"\n"),
                "record_layer: unknown variant `kernel`, expected `rustls` or `simurgh`",
            ),
            (
                format!("listen = [\"127.0.0.1:4443\"]\n[tls]\n{ONE}"),
                "f.toml:1: listen: 127.0.0.1:4443 is listed twice",
            ),
            (
                format!("admin_listen = \"127.0.0.1:4443\"\n[tls]\n{ONE}"),
                "f.toml:1: admin_listen: 127.0.0.1:4443 is also an address of listen",
            ),
            ("listen = []\n".to_owned(), "f.toml:1: listen: must name at least one address"),
        ] {
            let refusal = merged(&dir, &text).unwrap_err();
            assert!(refusal.contains(says), "{says:?} is not in\n{refusal}");
        }
    }

    #[test]
    fn expired_certificate_fails_a_check_but_not_a_start() {
        let dir = certificates();
        let text = format!("[tls]\n{ONE}").replace("/a.", "/old.");
        merged(&dir, &text).unwrap();
        let path = dir.path().join("f.toml");
        let text = text.replace("DIR", &dir.path().to_string_lossy());
        std::fs::write(&path, text).unwrap();
        let refusal = Settings::check(&path, Channels::Declared).unwrap_err().to_string();
        let says = "f.toml:3: [tls] certificate: ";
        assert!(refusal.contains(says) && refusal.contains("expired at 2020-01-01"), "{refusal}");
    }
}
