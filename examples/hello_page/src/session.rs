//! The session: what the server remembers of a visitor, kept by the visitor's browser in a signed
//! cookie. It can be read by whoever holds it and changed by nobody but the server.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cookie::{Cookie, CookieJar, Key, SameSite};
use serde::{Deserialize, Serialize};
use simurgh::axum::http::header::COOKIE;
use simurgh::axum::http::{HeaderMap, HeaderValue};
use subtle::ConstantTimeEq;

/// The cookie's name.
const NAME: &str = "_hello_page_key";
/// Bytes of the token against forged forms.
const TOKEN_BYTES: usize = 18;
/// In base64.
const TOKEN_CHARS: usize = TOKEN_BYTES / 3 * 4;

/// What sessions are signed with.
pub struct Secret(Key);

impl Secret {
    /// A new one, of the system's random numbers.
    pub fn random() -> Self {
        let bytes: [u8; 64] = rand::random();
        Self(Key::from(&bytes))
    }
}

/// A visitor's session.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// The token that a form of ours bears, and one of another site cannot.
    #[serde(rename = "_csrf_token")]
    csrf_token: String,
    /// To be shown on the next page, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flash: Option<String>,
}

impl Session {
    /// That of the request, if it is signed by us; else a new one, which has to be set.
    pub(crate) fn of(headers: &HeaderMap, secret: &Secret) -> (Self, bool) {
        match Self::read(headers, secret) {
            Some(session) => (session, false),
            None => (Self::new(), true),
        }
    }

    fn new() -> Self {
        let token: [u8; TOKEN_BYTES] = rand::random();
        Self { csrf_token: URL_SAFE_NO_PAD.encode(token), flash: None }
    }

    fn read(headers: &HeaderMap, secret: &Secret) -> Option<Self> {
        let sent = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookie = sent.flat_map(Cookie::split_parse).flatten().find(|it| it.name() == NAME)?;
        let verified = CookieJar::new().signed(&secret.0).verify(cookie.into_owned())?;
        let session: Self = serde_urlencoded::from_str(verified.value()).ok()?;
        (session.csrf_token.len() == TOKEN_CHARS).then_some(session)
    }

    /// The header that has the browser keep it.
    pub(crate) fn to_header(&self, secret: &Secret) -> Option<HeaderValue> {
        let value = serde_urlencoded::to_string(self).ok()?;
        let cookie =
            Cookie::build((NAME, value)).path("/").http_only(true).same_site(SameSite::Lax);
        let mut jar = CookieJar::new();
        jar.signed_mut(&secret.0).add(cookie);
        HeaderValue::from_str(&jar.get(NAME)?.to_string()).ok()
    }

    /// The token as a page shows it: masked anew each time, so that nothing can be learned from how
    /// well the page compresses (as Phoenix does).
    pub(crate) fn masked_token(&self) -> String {
        let mask: [u8; TOKEN_BYTES] = rand::random();
        let mut masked = [0; 2 * TOKEN_BYTES];
        let token = self.token().unwrap_or_default();
        for (at, (mask, token)) in mask.iter().zip(token).enumerate() {
            if let Some(byte) = masked.get_mut(at) {
                *byte = mask ^ token;
            }
            if let Some(byte) = masked.get_mut(at + TOKEN_BYTES) {
                *byte = *mask;
            }
        }
        URL_SAFE_NO_PAD.encode(masked)
    }

    /// Whether a form bears this session's token.
    pub(crate) fn bears(&self, masked: &str) -> bool {
        let Ok(masked) = URL_SAFE_NO_PAD.decode(masked) else { return false };
        let Some(token) = self.token() else { return false };
        let Some((masked, mask)) = masked.split_at_checked(TOKEN_BYTES) else { return false };
        if mask.len() != TOKEN_BYTES {
            return false;
        }
        let borne: Vec<u8> = masked.iter().zip(mask).map(|(masked, mask)| masked ^ mask).collect();
        borne.ct_eq(&token).into()
    }

    fn token(&self) -> Option<[u8; TOKEN_BYTES]> {
        URL_SAFE_NO_PAD.decode(&self.csrf_token).ok()?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_back(header: &HeaderValue) -> HeaderMap {
        let pair = header.to_str().unwrap().split(';').next().unwrap();
        HeaderMap::from_iter([(COOKIE, pair.parse().unwrap())])
    }

    #[test]
    fn a_session_comes_back_as_it_was_set() {
        let secret = Secret::random();
        let (mut session, is_new) = Session::of(&HeaderMap::new(), &secret);
        assert!(is_new);
        session.flash = Some("Olé; \"ü\" = 100 %, & more".to_owned());
        let header = session.to_header(&secret).unwrap();
        let text = header.to_str().unwrap();
        assert!(text.contains("HttpOnly") && text.contains("SameSite=Lax"), "{text}");
        assert_eq!(Session::of(&sent_back(&header), &secret), (session, false));
    }

    #[test]
    fn a_session_that_was_changed_or_signed_by_others_is_none() {
        let (secret, other) = (Secret::random(), Secret::random());
        let header = Session::new().to_header(&secret).unwrap();
        assert!(Session::of(&sent_back(&header), &other).1);
        let text = header.to_str().unwrap();
        let changed = text.replacen("_csrf_token", "_csrf_tokem", 1);
        assert!(Session::of(&sent_back(&changed.parse().unwrap()), &secret).1);
    }

    #[test]
    fn a_masked_token_is_new_each_time_and_known_again() {
        let session = Session::new();
        let (first, second) = (session.masked_token(), session.masked_token());
        assert_ne!(first, second);
        assert!(session.bears(&first) && session.bears(&second));
        assert!(!Session::new().bears(&first));
        for wrong in ["", "x", &first[1..], &format!("{first}AAAA")] {
            assert!(!session.bears(wrong), "{wrong}");
        }
    }
}
