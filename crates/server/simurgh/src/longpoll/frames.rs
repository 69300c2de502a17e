//! The frames in the body of a POST (PROTOCOL §9).

use axum::body::Bytes;
use axum::http::HeaderValue;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// How many lines of one POST are handled; further ones are dropped, as in Phoenix.
const LINES_MAX: usize = 100;
/// Longest line of base64, characters.
const BASE64_MAX: usize = 10_000_000;
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PostFrame {
    Text(String),
    Binary(Vec<u8>),
    Nonsense,
}

/// `None` as the last item if a line is not base64.
pub(super) fn frames(is_many: bool, body: Bytes) -> impl Iterator<Item = Option<PostFrame>> {
    let whole = (!is_many).then(|| Some(text(&body)));
    let lines = is_many.then(|| Lines { body, at: 0 }).into_iter().flatten().take(LINES_MAX);
    whole.into_iter().chain(lines)
}

/// Whether each line of a body is a frame.
pub(super) fn is_ndjson(content_type: &HeaderValue) -> bool {
    let essence = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/x-ndjson")
}

struct Lines {
    body: Bytes,
    at: usize,
}

impl Iterator for Lines {
    type Item = Option<PostFrame>;

    fn next(&mut self) -> Option<Option<PostFrame>> {
        loop {
            let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            self.at += end + 1;
            let line = rest.get(..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match line.first() {
                None => {}
                Some(b'[') => return Some(Some(text(line))),
                Some(_) if line.len() > BASE64_MAX => return Some(None),
                Some(_) => return Some(BASE64.decode(line).ok().map(PostFrame::Binary)),
            }
        }
    }
}

fn text(bytes: &[u8]) -> PostFrame {
    std::str::from_utf8(bytes).map_or(PostFrame::Nonsense, |text| PostFrame::Text(text.to_owned()))
}
