//! News for other nodes: new cached answers, and which are void. They are lines of JSON, signed
//! with the secret of the cluster, because every client of the broker can publish.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::cache::{Granted, Key};

/// Most lines and bytes of an envelope; a line has at most some bytes more than an answer.
const LINES_MAX: usize = 64;
const BYTES_MAX: usize = 512 * 1024;
/// Envelopes that wait; further news are not shared.
const ENVELOPES_MAX: usize = 64;
const TAG_BYTES: usize = 32;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum News {
    Grant {
        key: String,
        granted: Granted,
    },
    /// Grants of a user or socket id from before this time are void.
    Void {
        of: String,
        before_ms: u64,
    },
}

impl News {
    pub(crate) fn grant(key: &Key, granted: &Granted) -> Self {
        Self::Grant { key: URL_SAFE_NO_PAD.encode(key), granted: granted.clone() }
    }

    /// With its end; empty if it cannot be written.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    pub(crate) fn key(text: &str) -> Option<Key> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
    }
}

/// News that are gathered.
#[derive(Default)]
pub(crate) struct Gathered(Vec<(usize, Vec<u8>)>);

impl Gathered {
    /// Adds one; returns whether it is the first.
    pub(crate) fn add(&mut self, news: &News) -> bool {
        let mut line = news.line();
        let last = self.0.last_mut();
        let with_place =
            last.filter(|(lines, text)| *lines < LINES_MAX && text.len() + line.len() <= BYTES_MAX);
        if let Some((lines, text)) = with_place {
            *lines += 1;
            text.append(&mut line);
        } else if self.0.len() < ENVELOPES_MAX {
            self.0.push((1, line));
        }
        matches!(self.0.as_slice(), [(1, _)])
    }

    /// Takes all, each with its signature in front.
    pub(crate) fn take(&mut self, key: &hmac::Key) -> Vec<Vec<u8>> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(_, text)| signed(key, &text)).collect()
    }
}

/// The lines for [`read`].
pub(crate) fn signed(key: &hmac::Key, lines: &[u8]) -> Vec<u8> {
    [hmac::sign(key, lines).as_ref(), lines].concat()
}

/// Reads what another node has gathered; nothing if the signature is wrong. Lines of a newer
/// version are left out.
pub(crate) fn read(key: &hmac::Key, bytes: &[u8]) -> Vec<News> {
    let Some((tag, text)) = bytes.split_at_checked(TAG_BYTES) else { return Vec::new() };
    match hmac::verify(key, text, tag) {
        Ok(()) => read_lines(text),
        Err(_) => Vec::new(),
    }
}

pub(crate) fn read_lines(text: &[u8]) -> Vec<News> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Kind;

    fn granted() -> Granted {
        Granted {
            kind: Kind::Connect,
            body: r#"{"user":"ann"}"#.into(),
            user: Some("ann".into()),
            id: None,
            asked_ms: 1,
            answered_ms: 2,
            fresh_until_ms: 3,
            stale_until_ms: 4,
        }
    }

    fn key(secret: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[secret; 32])
    }

    #[test]
    fn news_are_read_back_in_envelopes_of_64() {
        let mut gathered = Gathered::default();
        let grant = || News::grant(&[7; 32], &granted());
        assert!(gathered.add(&grant()) && !gathered.add(&grant()));
        for _ in 2..64 {
            gathered.add(&grant());
        }
        let void = News::Void { of: "ann".to_owned(), before_ms: 5 };
        assert!(!gathered.add(&void));
        let [first, second] = &gathered.take(&key(1))[..] else { panic!("two envelopes") };
        let read_back = read(&key(1), first);
        assert!(read_back.len() == 64 && read_back.iter().all(|news| *news == grant()));
        assert_eq!(read(&key(1), second), [void]);
        assert!(gathered.take(&key(1)).is_empty());
        let News::Grant { key, .. } = grant() else { unreachable!() };
        assert_eq!(News::key(&key), Some([7; 32]));
    }

    #[test]
    fn forged_news_are_not_read() {
        let mut gathered = Gathered::default();
        gathered.add(&News::grant(&[7; 32], &granted()));
        let mut envelope = gathered.take(&key(1)).remove(0);
        assert!(read(&key(2), &envelope).is_empty());
        envelope[TAG_BYTES + 9] ^= 1;
        assert!(read(&key(1), &envelope).is_empty());
        assert!(read(&key(1), b"short").is_empty());
    }

    #[test]
    fn lines_of_a_newer_version_are_left_out() {
        let text = b"{\"later\":{}}\n{\"void\":{\"of\":\"a\",\"before_ms\":1,\"more\":2}}\n";
        assert_eq!(read_lines(text), [News::Void { of: "a".to_owned(), before_ms: 1 }]);
    }

    #[test]
    fn gathered_news_are_bounded() {
        let mut gathered = Gathered::default();
        for _ in 0..10_000 {
            gathered.add(&News::grant(&[7; 32], &granted()));
        }
        assert_eq!(gathered.take(&key(1)).len(), ENVELOPES_MAX);
    }
}
