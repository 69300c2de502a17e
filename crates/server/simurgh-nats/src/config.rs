//! The address of the broker, and a node's credentials.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use simurgh_cluster::Prefix;

use crate::streams::StreamsConfig;

const PORT: u16 = 4222;

/// Settings of a node's link to its broker. Files are read again for each link, so a renewed secret
/// or certificate is used from the next link on.
#[derive(Clone, Debug)]
pub struct Config {
    /// The servers, tried in random order. One is enough: it lists the others.
    pub servers: Vec<Server>,
    /// The prefix of all subjects.
    pub prefix: Prefix,
    /// The node's name, for its connection in the broker's own tools.
    pub name: String,
    /// The node's credentials.
    pub credentials: Credentials,
    /// How the link is encrypted.
    pub tls: Tls,
    /// The streams for topics with a history; none, if there are no such topics.
    pub streams: Option<StreamsConfig>,
}

impl Config {
    /// Without credentials and streams, and encrypted only if the broker requires it.
    pub fn new(servers: Vec<Server>, prefix: Prefix, name: impl Into<String>) -> Self {
        let (credentials, tls) = (Credentials::None, Tls::default());
        Self { servers, prefix, name: name.into(), credentials, tls, streams: None }
    }
}

/// The credentials of a node at its broker.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// None, or the certificate of [`Tls::identity`].
    #[default]
    None,
    /// A user's name and password.
    Password {
        /// The user's name.
        user: String,
        /// The user's password.
        password: Secret,
    },
    /// A token that all nodes share.
    Token(Secret),
    /// The seed of a user's nkey, `SU…`: it signs the server's challenge, and stays in the node.
    Nkey(Secret),
    /// A user's token and the seed of its nkey: the text of a `.creds` file.
    Creds(Secret),
}

/// Encryption of a link. Without any setting a link is encrypted if the broker requires it; every
/// setting here makes TLS required.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// TLS is required.
    pub is_required: bool,
    /// TLS begins before the server's INFO, as its `handshake_first` requires.
    pub is_first: bool,
    /// PEM file of the authorities for the servers' certificates, instead of Mozilla's list.
    pub ca: Option<PathBuf>,
    /// PEM files of this node's own certificate and its key.
    pub identity: Option<Identity>,
}

impl Tls {
    pub(crate) fn is_necessary(&self) -> bool {
        self.is_required || self.is_first || self.ca.is_some() || self.identity.is_some()
    }
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PEM file with the certificate and the intermediate ones.
    pub certificate: PathBuf,
    /// PEM file with the key.
    pub key: PathBuf,
}

/// A secret, which neither `Debug` nor an error shows.
#[derive(Clone)]
pub enum Secret {
    /// The secret itself.
    Text(String),
    /// The file with the secret; white space around it is ignored.
    File(PathBuf),
}

impl Secret {
    /// The secret, read from its file if it has one.
    ///
    /// # Errors
    /// The file cannot be read, or is not text; the error names it.
    pub(crate) fn reveal(&self) -> io::Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                let text = fs::read_to_string(path).map_err(|error| of_file(path, &error))?;
                Ok(text.trim().to_owned())
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// An I/O error with the name of the file.
pub(crate) fn of_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The address of a server: `nats://host:port`, `tls://host:port`, or without a scheme. The port
/// is 4222 by default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    /// The name in its certificate, if that differs: servers list each other by address.
    pub(crate) name: Option<String>,
}

impl Server {
    pub(crate) fn certificate_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.host)
    }

    /// Another server of the same cluster, from this one's list.
    pub(crate) fn listed(&self, address: &str) -> Option<Self> {
        let mut listed: Self = address.parse().ok()?;
        listed.is_tls |= self.is_tls;
        if listed.host.parse::<std::net::IpAddr>().is_ok() {
            listed.name = Some(self.certificate_name().to_owned());
        }
        Some(listed)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "tls" } else { "nats" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// Why a server's address is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// Its scheme is neither `nats` nor `tls`.
    #[error("the scheme must be nats:// or tls://, or absent")]
    Scheme,
    /// It has no host, or a malformed one.
    #[error("the host is missing or invalid: use nats://host:port")]
    Host,
    /// It has a malformed port.
    #[error("the port is invalid: use nats://host:port")]
    Port,
    /// It contains a user or password, which would be shown with it.
    #[error("logs show this address: use the settings for user and password instead")]
    Credentials,
}

impl FromStr for Server {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let (is_tls, rest) = match text.split_once("://") {
            Some(("nats", rest)) => (false, rest),
            Some(("tls", rest)) => (true, rest),
            Some(_) => return Err(ServerError::Scheme),
            None => (false, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err(ServerError::Credentials);
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(address) => {
                let (host, port) = address.split_once(']').ok_or(ServerError::Host)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| ServerError::Host)?;
                match port.strip_prefix(':') {
                    None if port.is_empty() => (host, None),
                    None => return Err(ServerError::Port),
                    port => (host, port),
                }
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_of_host = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '-' | '_');
        let is_host = host.contains(':') || host.chars().all(is_of_host);
        if host.is_empty() || !is_host {
            return Err(ServerError::Host);
        }
        let port = match port {
            None => PORT,
            Some(port) => port.parse().ok().filter(|it| *it > 0).ok_or(ServerError::Port)?,
        };
        Ok(Self { host: host.to_owned(), port, is_tls, name: None })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Result<String, ServerError> {
        text.parse::<Server>().map(|it| it.to_string())
    }

    #[test]
    fn server_addresses_have_several_forms() {
        assert_eq!(shown("localhost").unwrap(), "nats://localhost:4222");
        assert_eq!(shown("nats://10.0.0.1:5000").unwrap(), "nats://10.0.0.1:5000");
        assert_eq!(shown("tls://a-b.example/").unwrap(), "tls://a-b.example:4222");
        assert_eq!(shown("[::1]:4333").unwrap(), "nats://[::1]:4333");
        assert_eq!(shown("nats://[::1]").unwrap(), "nats://[::1]:4222");
    }

    #[test]
    fn invalid_server_address_is_explained() {
        assert_eq!(shown("http://a"), Err(ServerError::Scheme));
        assert_eq!(shown("nats://"), Err(ServerError::Host));
        assert_eq!(shown("nats://a b"), Err(ServerError::Host));
        assert_eq!(shown("nats://[::1"), Err(ServerError::Host));
        assert_eq!(shown("nats://[x]"), Err(ServerError::Host));
        assert_eq!(shown("nats://[::1]4222"), Err(ServerError::Port));
        assert_eq!(shown("nats://a:0"), Err(ServerError::Port));
        assert_eq!(shown("nats://a:65536"), Err(ServerError::Port));
        assert_eq!(shown("nats://me:word@a:4222"), Err(ServerError::Credentials));
    }

    #[test]
    fn announced_server_inherits_tls() {
        let listed = |by: &str, text: &str| by.parse::<Server>().unwrap().listed(text).unwrap();
        let by_name = listed("tls://nats.example", "other.example:4223");
        assert!(by_name.is_tls);
        assert_eq!(by_name.certificate_name(), "other.example");
        let by_address = listed("tls://nats.example", "10.0.0.7:4223");
        assert_eq!(by_address.certificate_name(), "nats.example");
        assert!("nats.example".parse::<Server>().unwrap().listed("http://x").is_none());
    }

    #[test]
    fn no_secret_is_shown() {
        let secret = || Secret::Text("rosebud".to_owned());
        let all = [
            Credentials::Password { user: "kane".to_owned(), password: secret() },
            Credentials::Token(secret()),
            Credentials::Nkey(secret()),
            Credentials::Creds(secret()),
        ];
        for credentials in all {
            let servers = vec!["localhost".parse().unwrap()];
            let mut config = Config::new(servers, Prefix::new("p").unwrap(), "n");
            config.credentials = credentials;
            let shown = format!("{config:?} {config:#?}");
            assert!(!shown.contains("rosebud"), "{shown}");
        }
    }

    #[test]
    fn secret_can_be_read_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "rosebud\n").unwrap();
        let secret = Secret::File(path.clone());
        assert_eq!(secret.reveal().unwrap(), "rosebud");
        assert!(!format!("{secret:?}").contains("rosebud"));
        fs::remove_file(&path).unwrap();
        let error = secret.reveal().unwrap_err().to_string();
        assert!(error.contains("password"), "{error}");
    }

    proptest! {
        #[test]
        fn server_address_is_displayed_as_parsed(text in "\\PC{0,40}") {
            if let Ok(server) = text.parse::<Server>() {
                let again: Server = server.to_string().parse().unwrap();
                prop_assert_eq!(again, server);
            }
        }
    }
}
