//! User and password of a URL are sent with each request.

use super::*;

/// `user:p w` in base64.
const OF_TARGET: &str = "authorization: basic dxnlcjpwihc=\r\n";

/// The first request of a user, in lower case.
fn request(url: &str, protocol: &str, session: &str) -> String {
    let mut user = Driven::at(url, protocol, "", session);
    user.step(Input::Connected(Purpose::User));
    let sent = user.done();
    let Some(Done::Sent(request)) = sent.last() else { panic!("{sent:?}") };
    request.to_ascii_lowercase()
}

#[test]
fn credentials_of_a_target_are_sent_with_requests_upgrades_and_polls() {
    for scheme in ["ws", "Ws", "HTTP"] {
        let url = format!("{scheme}://user:p%20w@127.0.0.1:1");
        let get = "steps = [{ get = \"/\" }]";
        assert!(request(&url, RAW, get).contains(OF_TARGET), "{url}");
        let connect = "steps = [{ connect = \"/\" }]";
        assert!(request(&url, RAW, connect).contains(OF_TARGET), "{url}");
        let polls = format!("transport = \"longpoll\"\n{connect}");
        assert!(request(&url, PHOENIX, &polls).contains(OF_TARGET), "{url}");
    }
}

#[test]
fn credentials_of_a_step_override_those_of_the_target() {
    let url = "http://user:p%20w@127.0.0.1:1";
    for (step, value) in [
        ("get = \"HTTP://a:b@127.0.0.1:1/\"", "basic ytpi"),
        ("get = \"http://127.0.0.1:1/\"", "basic dxnlcjpwihc="),
        (
            "get = \"http://a:b@127.0.0.1:1/\", auth = { user = \"c\", password = \"d\" }",
            "basic yzpk",
        ),
        ("get = \"/\", headers = { authorization = \"x\" }", "x"),
        ("connect = \"/\", headers = { authorization = \"x\" }", "x"),
    ] {
        let sent = request(url, RAW, &format!("steps = [{{ {step} }}]"));
        let found = sent.lines().filter(|line| line.starts_with("authorization:"));
        assert_eq!(found.collect::<Vec<_>>(), [format!("authorization: {value}")], "{step}");
    }
}
