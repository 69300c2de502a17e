//! HTTP/1.1 as a client, without I/O, clock or randomness: bytes and times go in, bytes come out.
//!
//! A request is written by [`Request::write`]; its answer is read by a [`Response`], which counts
//! a body and leaves it to the caller whether to keep it ([`Kept`]). A user's [`Jar`] holds its
//! cookies; [`Challenge`] and [`DigestAnswer`] are for servers that require a password.

mod auth;
mod cookies;
mod framing;
mod longpoll;
mod request;
mod response;
mod url;

pub use auth::params;
pub use auth::{Challenge, DigestAnswer, basic};
pub use cookies::{COOKIE_BYTES_MAX, COOKIES_MAX, Jar, append_cookie};
pub use longpoll::{LongPollAnswer, LongPollPost, longpoll_path, with_token};
pub use request::{Request, asks_to_close, is_token};
pub use response::{
    Done, Event, Head, Kept, Limits, Response, ResponseError, header_lines, header_values,
};
pub use url::{Url, basic_of_url};
