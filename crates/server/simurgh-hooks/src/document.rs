//! A document that the server reads from a URL, such as the keys of an issuer of tokens.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST};
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use tokio::time::timeout;

use crate::answer::outcome::shown;
use crate::client::Client;
use crate::config::{HookConfig, TlsConfig};

/// The time for one read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A JSON document at a URL. Redirects are not followed.
pub struct Document {
    client: Client,
    url: Uri,
    host: HeaderValue,
}

impl Document {
    /// A document that is not read yet.
    ///
    /// # Errors
    /// The mistake in the URL or the certificates.
    pub fn new(url: Uri, tls: TlsConfig) -> Result<Self, String> {
        let authority = url.authority().ok_or("a URL with http:// or https:// is needed")?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| "the host is wrong")?;
        let client = Client::new(&HookConfig { tls, ..HookConfig::new("", url.clone()) })?;
        Ok(Self { client, url, host })
    }

    /// Its URL.
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// Reads it, in at most 5 s. To be called in the server's own runtime.
    ///
    /// # Errors
    /// There is no answer in this time, its status is not 200, or it has more than 64 KiB.
    pub async fn read(&self) -> Result<String, String> {
        let answer = timeout(READ_TIMEOUT, self.client.send(|| self.request())).await;
        let response = answer.map_err(|_| format!("no answer within {READ_TIMEOUT:?}"))?;
        let response = response.map_err(|error| error.to_string())?;
        match (response.status, response.body) {
            (200, Some(body)) => String::from_utf8(body).map_err(|_| "it is not UTF-8".to_owned()),
            (200, None) => Err("it is longer than 64 KiB".to_owned()),
            (status, body) => Err(shown(status, body.as_deref())),
        }
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        let path = self.url.path_and_query().map(|path| Uri::from(path.clone()));
        *request.uri_mut() = path.unwrap_or_default();
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        request
    }
}
