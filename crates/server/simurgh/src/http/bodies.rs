//! Bodies of requests and answers, whose bytes count as held by their connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use http_body_util::Limited;
use hyper::body::{Frame, Incoming, SizeHint};
use simurgh_shard::config::HttpConfig;
use simurgh_shard::connections::{HeldBytes, HttpConnections, Side, Watch};

/// A body up to this size counts as sent when the response begins.
const SMALL_BYTES: u64 = 16 << 10;
/// The overhead of a part of a request's body: allocation, list of parts.
const PART_BYTES: usize = 128;

/// Whether an answer is so short that it is not counted.
pub(super) fn is_small(response: &Response<Body>) -> bool {
    response.body().size_hint().exact().is_some_and(|bytes| bytes <= SMALL_BYTES)
}

/// The body of a request; a chunked one has a limit, one with a length was checked before. `held`
/// counts its bytes, and belongs to whoever answers the request.
pub(super) fn received(body: Incoming, limits: &HttpConfig, held: &Arc<HeldBytes>) -> Body {
    let body = match body.size_hint().exact() {
        Some(0) => return Body::empty(),
        Some(_) => Body::new(body),
        None => {
            let most = usize::try_from(limits.body_bytes_max).unwrap_or(usize::MAX);
            Body::new(Limited::new(body, most))
        }
    };
    Body::new(Gathered { body, held: Arc::clone(held), pieces: Vec::new() })
}

/// The body of a request in copies of its pieces, those together that have come together: each
/// piece would keep a buffer of the connection, so that a byte could take hundreds.
struct Gathered {
    body: Body,
    held: Arc<HeldBytes>,
    pieces: Vec<u8>,
}

impl HttpBody for Gathered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while (self.pieces.len() as u64) < SMALL_BYTES {
            let polled = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending if self.pieces.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(polled) => polled.transpose()?,
            };
            let Some(frame) = polled else { break };
            // Nobody asks for trailers.
            let piece = frame.into_data().unwrap_or_default();
            self.held.add(piece.len());
            self.pieces.extend_from_slice(&piece);
        }
        if self.pieces.is_empty() {
            return Poll::Ready(None);
        }
        self.held.add(PART_BYTES);
        let part = Bytes::copy_from_slice(&self.pieces);
        self.pieces.clear();
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}

/// The body of an answer that may take long: until its end the connection is not idle, and what is
/// not written yet counts as held.
pub(super) struct Watched {
    pub(super) body: Body,
    pub(super) watch: Arc<Watch>,
    pub(super) http_connections: Arc<HttpConnections>,
}

/// A part of an answer, counted until it is written.
struct HeldPart {
    bytes: Bytes,
    _held: HeldBytes,
}

impl AsRef<[u8]> for HeldPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Watched {
    fn hold(&self, bytes: Bytes) -> Bytes {
        let held = HeldBytes::new(&self.http_connections, &self.watch, Side::Outbound);
        held.add(bytes.len());
        Bytes::from_owner(HeldPart { bytes, _held: held })
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Poll::Ready(Some(Ok(frame))) = polled else { return polled };
        Poll::Ready(Some(Ok(frame.map_data(|bytes| self.hold(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.answered();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::stream;

    use super::*;

    /// The number of parts, and the bytes charged, of a body whose 1-byte pieces come `together`.
    fn gathered(pieces: usize, together: usize) -> (usize, usize) {
        let mut polls = 0;
        let body = Body::from_stream(stream::poll_fn(move |_| {
            polls += 1;
            if polls > pieces / together * (together + 1) {
                return Poll::Ready(None);
            }
            let piece = Bytes::from_static(b"x");
            if polls % (together + 1) == 0 {
                Poll::Pending
            } else {
                Poll::Ready(Some(Ok::<_, std::io::Error>(piece)))
            }
        }));
        let connections = Arc::new(HttpConnections::new(1, 0, [usize::MAX; 2]));
        let held = HeldBytes::new(&connections, &Arc::default(), Side::Inbound);
        let mut body = Gathered { body, held: Arc::new(held), pieces: Vec::new() };
        let (mut parts, mut bytes) = (0, 0);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => {
                    parts += 1;
                    bytes += frame.unwrap().into_data().unwrap().len();
                }
            }
        }
        assert_eq!(bytes, pieces);
        (parts, connections.held_bytes(Side::Inbound))
    }

    #[test]
    fn small_body_pieces_are_merged_and_charged_with_their_overhead() {
        assert_eq!(gathered(40_000, 40_000), (3, 40_000 + 3 * PART_BYTES));
        assert_eq!(gathered(400, 1), (400, 400 + 400 * PART_BYTES));
    }
}
