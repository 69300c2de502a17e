//! The session: what the server remembers of a visitor, stored in the visitor's browser in a signed
//! cookie. The visitor can read it, but only the server can change it.

use std::ops::Range;
use std::str;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac::{self, HMAC_SHA256};
use simurgh::axum::body::Bytes;
use simurgh::axum::http::header::COOKIE;
use simurgh::axum::http::{HeaderMap, HeaderValue};
use subtle::ConstantTimeEq;

/// The cookie's name, with the `=`.
const NAME: &str = "_hello_page_key=";
const ATTRIBUTES: &str = "; HttpOnly; SameSite=Lax; Path=/";
/// HMAC-SHA256 in base64, at the start of the value.
const SIGNATURE_CHARS: usize = 44;
const TOKEN: &str = "_csrf_token";
const FLASH: &str = "flash";
/// Bytes of the token against forged forms.
pub(crate) const TOKEN_BYTES: usize = 18;
/// In base64.
const TOKEN_CHARS: usize = TOKEN_BYTES / 3 * 4;
/// The masked token, followed by the mask.
const MASKED_CHARS: usize = 2 * TOKEN_CHARS;
/// More than the size of a cookie without a flash message.
const COOKIE_BYTES: usize = 160;

/// The key that signs sessions.
pub struct Secret(hmac::Key);

impl Secret {
    /// A new random secret.
    pub fn random() -> Self {
        Self::of(&rand::random())
    }

    /// Computes the key's hashes of HMAC once, not for each signature.
    fn of(bytes: &[u8; 32]) -> Self {
        Self(hmac::Key::new(HMAC_SHA256, bytes))
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Session {
    /// The token in our forms; a form of another site cannot have it.
    csrf_token: [u8; TOKEN_BYTES],
    /// A message for the next page, shown once.
    pub(crate) flash: Option<String>,
}

/// A token as a page contains it.
pub(crate) struct MaskedToken([u8; MASKED_CHARS]);

impl Session {
    /// The session of the request, if signed by us; else a new one, which must be set.
    pub(crate) fn of(headers: &HeaderMap, secret: &Secret) -> (Self, bool) {
        match Self::read(headers, secret) {
            Some(session) => (session, false),
            None => (Self::new(), true),
        }
    }

    fn new() -> Self {
        let mut csrf_token = [0; TOKEN_BYTES];
        rand::fill(&mut csrf_token);
        Self { csrf_token, flash: None }
    }

    fn read(headers: &HeaderMap, secret: &Secret) -> Option<Self> {
        let sent = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = sent.flat_map(|pairs| pairs.split(';')).map(str::trim);
        let (signature, value) =
            cookies.find_map(|pair| pair.strip_prefix(NAME))?.split_at_checked(SIGNATURE_CHARS)?;
        let mut tag = [0; SIGNATURE_CHARS / 4 * 3];
        let bytes = STANDARD.decode_slice(signature, &mut tag).ok()?;
        hmac::verify(&secret.0, value.as_bytes(), tag.get(..bytes)?).ok()?;
        Self::parse(value)
    }

    fn parse(value: &str) -> Option<Self> {
        let parts = value.strip_prefix(TOKEN)?.strip_prefix('=')?;
        let (token, more) = parts.split_once('&').unwrap_or((parts, ""));
        let mut more = form_urlencoded::parse(more.as_bytes());
        let flash = more.find_map(|(name, text)| (name == FLASH).then(|| text.into_owned()));
        Some(Self { csrf_token: decoded(token)?, flash })
    }

    pub(crate) fn to_header(&self, secret: &Secret) -> Option<HeaderValue> {
        const SIGNATURE: Range<usize> = NAME.len()..NAME.len() + SIGNATURE_CHARS;
        let mut token = [0; TOKEN_CHARS];
        URL_SAFE_NO_PAD.encode_slice(self.csrf_token, &mut token).ok()?;
        let mut text = Vec::with_capacity(COOKIE_BYTES);
        text.extend_from_slice(NAME.as_bytes());
        text.extend_from_slice(&[b'='; SIGNATURE_CHARS]);
        // Neither name nor token has a character that a form would encode.
        text.extend_from_slice(TOKEN.as_bytes());
        text.push(b'=');
        text.extend_from_slice(&token);
        if let Some(flash) = &self.flash {
            let mut pair = form_urlencoded::Serializer::new(String::new());
            text.push(b'&');
            text.extend_from_slice(pair.append_pair(FLASH, flash).finish().as_bytes());
        }
        let signature = hmac::sign(&secret.0, text.get(SIGNATURE.end..)?);
        STANDARD.encode_slice(signature, text.get_mut(SIGNATURE)?).ok()?;
        text.extend_from_slice(ATTRIBUTES.as_bytes());
        HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
    }

    /// The token as a page contains it: masked with other random bytes each time, so that nothing
    /// can be learned from how well the page compresses (as Phoenix does).
    pub(crate) fn masked_token(&self, random: [u8; TOKEN_BYTES]) -> MaskedToken {
        let mut masked = [0; 2 * TOKEN_BYTES];
        let (token, mask) = masked.split_at_mut(TOKEN_BYTES);
        mask.copy_from_slice(&random);
        for ((masked, mask), byte) in token.iter_mut().zip(mask).zip(self.csrf_token) {
            *masked = *mask ^ byte;
        }
        let mut text = [0; MASKED_CHARS];
        // It fills the array to its end.
        let _ = URL_SAFE_NO_PAD.encode_slice(masked, &mut text);
        MaskedToken(text)
    }

    pub(crate) fn bears(&self, masked: &str) -> bool {
        let Some(mut masked) = decoded::<{ 2 * TOKEN_BYTES }>(masked) else { return false };
        let (token, mask) = masked.split_at_mut(TOKEN_BYTES);
        for (masked, mask) in token.iter_mut().zip(mask) {
            *masked ^= *mask;
        }
        (*token).ct_eq(&self.csrf_token).into()
    }
}

impl MaskedToken {
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Exactly this many bytes in base64.
fn decoded<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let count = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    (count == BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_back(header: &HeaderValue) -> HeaderMap {
        let pair = header.to_str().unwrap().split(';').next().unwrap();
        HeaderMap::from_iter([(COOKIE, pair.parse().unwrap())])
    }

    #[test]
    fn session_round_trips_through_its_cookie() {
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
    fn altered_or_foreign_session_cookie_is_ignored() {
        let (secret, other) = (Secret::random(), Secret::random());
        let header = Session::new().to_header(&secret).unwrap();
        assert!(Session::of(&sent_back(&header), &other).1);
        let text = header.to_str().unwrap();
        let changed = text.replacen("_csrf_token", "_csrf_tokem", 1);
        assert!(Session::of(&sent_back(&changed.parse().unwrap()), &secret).1);
    }

    /// Interoperability: the `cookie` crate has the same in signed jars.
    #[test]
    fn session_cookies_are_compatible_with_the_cookie_crate() {
        let secret = Secret::of(&[7; 32]);
        let key = cookie::Key::from(&[7; 64]);
        let session = Session { csrf_token: [9; TOKEN_BYTES], flash: Some("a&b=c; ü".into()) };
        let header = session.to_header(&secret).unwrap();
        let ours = cookie::Cookie::parse(header.to_str().unwrap().to_owned()).unwrap();
        assert_eq!((ours.http_only(), ours.path()), (Some(true), Some("/")));
        let verified = cookie::CookieJar::new().signed(&key).verify(ours).unwrap();
        let value = format!("{TOKEN}={}&{FLASH}=a%26b%3Dc%3B+%C3%BC", "CQkJ".repeat(6));
        assert_eq!(verified.value(), value);
        let mut jar = cookie::CookieJar::new();
        jar.signed_mut(&key).add(("_hello_page_key", value));
        let theirs = format!("a=b; {}; c=d", jar.get("_hello_page_key").unwrap());
        let headers = HeaderMap::from_iter([(COOKIE, theirs.parse().unwrap())]);
        assert_eq!(Session::of(&headers, &secret), (session, false));
    }

    #[test]
    fn masked_token_differs_each_time_and_is_accepted() {
        let session = Session::new();
        let (first, second) = (session.masked_token([1; 18]), session.masked_token([2; 18]));
        let (first, second) = (first.as_str(), second.as_str());
        assert_ne!(first, second);
        assert!(session.bears(first) && session.bears(second));
        assert!(!Session::new().bears(first));
        for wrong in ["", "x", &first[1..], &format!("{first}AAAA")] {
            assert!(!session.bears(wrong), "{wrong}");
        }
    }
}
