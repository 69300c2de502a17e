//! Bodies of requests and answers, whose bytes count as held by their connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use simurgh_shard::config::HttpConfig;
use simurgh_shard::connections::{HeldBytes, HttpConnections, Side, Watch};

/// A body up to this size counts as sent when the response begins.
const SMALL_BYTES: u64 = 16 << 10;

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
    let held = Arc::clone(held);
    Body::new(body.map_frame(move |frame| {
        held.add(frame.data_ref().map_or(0, Bytes::len));
        frame
    }))
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
