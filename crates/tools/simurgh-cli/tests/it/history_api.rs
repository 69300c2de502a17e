//! The requests in docs/HTTP-API.md, sent to a real server, get the printed answers.

use std::process::Command;

use crate::support::{Server, directory, simurgh};
use serde_json::Value;

const PAGE: &str = include_str!("../../../../../docs/HTTP-API.md");
/// The page's placeholders for generated values.
const EPOCH: &str = "k7ku80";
const ADDRESS: &str = "127.0.0.1:4000";

/// Blocks of code with their languages, in order.
fn blocks() -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut rest = PAGE;
    std::iter::from_fn(move || {
        let (_, block) = rest.split_once("\n```")?;
        let (language, block) = block.split_once('\n')?;
        let (text, after) = block.split_once("\n```")?;
        rest = after;
        Some((language, text))
    })
}

/// Removes the times, and collects them in order.
fn without_times(value: &mut Value, times: &mut Vec<u64>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_u64().filter(|_| name == "at") {
                    Some(at) => {
                        times.push(at);
                        *value = Value::Null;
                    }
                    None => without_times(value, times),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|it| without_times(it, times)),
        _ => {}
    }
}

#[test]
#[ignore = "needs curl"]
fn documented_requests_get_the_documented_responses() {
    let mut toml = blocks().filter(|(language, _)| *language == "toml").map(|(_, text)| text);
    let toml = toml.next().unwrap();
    let token = ("SIMURGH_API_TOKEN", "a-token-of-no-importance");
    let listen = format!("listen = [\"127.0.0.1:0\"]\n{toml}");
    let dir = directory(&[("simurgh.toml", &listen)]);
    let server = Server::start_with_env(&simurgh(), dir, &["--shards", "3"], 1, &[token]);
    let (mut epoch, mut asked) = (None, 0);
    let mut answers = blocks().filter(|(language, _)| ["sh", "json"].contains(language));
    while let Some((language, request)) = answers.next() {
        assert_eq!(language, "sh", "{request}: an answer without its request");
        let (language, expected) = answers.next().expect(request);
        assert_eq!(language, "json", "{request}: a request without its answer");
        let request = request.replace(ADDRESS, &server.addresses[0]);
        let request = request.replace(EPOCH, epoch.as_deref().unwrap_or(EPOCH));
        let request = request.replace("curl ", "curl --silent --show-error --fail-with-body ");
        let ran = Command::new("sh").args(["-c", &request]).env(token.0, token.1).output().unwrap();
        let answer = String::from_utf8(ran.stdout).unwrap();
        let wrong = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.success(), "{request}\n{wrong}{answer}");
        let found: Value = serde_json::from_str(&answer).unwrap();
        let known = epoch.get_or_insert_with(|| {
            let position = found["positions"][0].as_str().expect("the first to publish");
            position.split('.').next().unwrap().to_owned()
        });
        let answer = answer.replace(&*known, EPOCH);
        let (mut found, mut times): (Value, _) = (serde_json::from_str(&answer).unwrap(), vec![]);
        without_times(&mut found, &mut times);
        assert!(times.is_sorted() && times.iter().all(|at| *at > 1_700_000_000_000), "{times:?}");
        let mut expected: Value = serde_json::from_str(expected).unwrap();
        without_times(&mut expected, &mut Vec::new());
        assert_eq!(found, expected, "{request}");
        asked += 1;
    }
    assert_eq!(asked, 8, "requests on the page");
}
