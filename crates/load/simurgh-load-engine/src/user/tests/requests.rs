//! HTTP requests: which are repeated, what is timed, and how a URL is rendered.

use simurgh_load_record::{ErrorKind, Metric};

use super::{Done, Driven, RAW};
use crate::user::{Input, Purpose};

const HTTP_OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A user whose kept connection ends 100 ms after its second request, without an answer.
fn loses_kept_connection(second: &str) -> Driven {
    let steps = format!("steps = [{{ get = \"/a\" }}, {{ {second} = \"/b\" }}]");
    let mut user = Driven::at("http://127.0.0.1:1", RAW, "", &steps);
    user.step(Input::Connected(Purpose::User));
    user.step(Input::Bytes(Purpose::User, HTTP_OK));
    user.wait_ms(100);
    user.log.open.clear();
    user.done();
    let kind = ErrorKind::EndOfStream;
    user.step(Input::Ended { purpose: Purpose::User, kind, in_handshake: false });
    user
}

#[test]
fn connect_of_a_repeated_request_is_timed_by_itself() {
    let mut user = loses_kept_connection("get");
    user.wait_ms(5);
    user.step(Input::Connected(Purpose::User));
    user.step(Input::Bytes(Purpose::User, HTTP_OK));
    assert_eq!(user.times_of(Metric::Connect), [0, 5_000]);
    assert_eq!(user.times_of(Metric::Http), [0, 105_000]);
    assert_eq!(user.log.errors, []);
}

#[test]
fn non_idempotent_request_is_not_repeated() {
    for (second, repeats) in [("put", true), ("delete", true), ("post", false), ("patch", false)] {
        let mut user = loses_kept_connection(second);
        assert_eq!(user.done().contains(&Done::Dial), repeats, "{second}");
        let errors = if repeats { vec![] } else { vec![ErrorKind::EndOfStream] };
        assert_eq!(user.log.errors, errors, "{second}");
    }
}

#[test]
fn undefined_variable_in_a_url_counts_once() {
    for url in ["/{{v}}", "{{v}}", "http://127.0.0.1:1/{{v}}"] {
        let steps = format!(
            "steps = [{{ loop = 0, steps = [{{ set = \"v\", value = \"x\" }}] }}, \
             {{ get = \"{url}\" }}]"
        );
        let mut user = Driven::at("http://127.0.0.1:1", RAW, "", &steps);
        user.step(Input::Connected(Purpose::User));
        assert_eq!(user.log.errors, [], "{url}");
        assert_eq!(user.context.values.undefined, 1, "{url}");
    }
}
