//! docs/openapi.yaml says what the server does: the same routes, scopes and fields, and its
//! examples work on a real server, whose answers have the documented form.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};
use simurgh::Endpoint;
use simurgh::api::{ApiToken, Scope};
use simurgh::hooks::NoticeConfig;
use simurgh_shard::connections::API_VERBS;

use crate::api_orders::{client, policy};
use crate::openapi_webhooks::user_socket;
use crate::support::raw::{Answer, ask};
use crate::support::{start, until};

/// All types of notices.
pub(crate) const ALL: u8 = 63;

pub(crate) struct Document(pub(crate) Value);

/// One operation: its path, method and description.
struct Operation<'d> {
    path: &'d str,
    method: String,
    about: &'d Value,
}

impl Document {
    pub(crate) fn read() -> Self {
        Self(serde_norway::from_str(include_str!("../../../../../docs/openapi.yaml")).unwrap())
    }

    fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let paths = self.0["paths"].as_object().unwrap();
        paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            methods.map(|(method, about)| Operation { path, method: method.to_uppercase(), about })
        })
    }

    pub(crate) fn resolve<'d>(&'d self, value: &'d Value) -> &'d Value {
        match value["$ref"].as_str() {
            Some(reference) => self.0.pointer(reference.trim_start_matches('#')).unwrap(),
            None => value,
        }
    }

    /// What of a value does not have the form of a schema.
    pub(crate) fn misfit(&self, schema: &Value, value: &Value, at: &str) -> Option<String> {
        let schema = self.resolve(schema);
        if let Some(kinds) = schema["oneOf"].as_array() {
            let fits = kinds.iter().filter(|kind| self.misfit(kind, value, at).is_none()).count();
            return (fits != 1).then(|| format!("{at}: {fits} of the kinds fit"));
        }
        if let Some(values) = schema["enum"].as_array()
            && !values.contains(value)
        {
            return Some(format!("{at}: {value} is not listed"));
        }
        let types = match &schema["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            Value::String(kind) => vec![kind.as_str()],
            _ => return None,
        };
        if !types.iter().any(|kind| is_of(value, kind)) {
            return Some(format!("{at}: {value} is none of {types:?}"));
        }
        match value {
            Value::Object(fields) => {
                let required = schema["required"].as_array().into_iter().flatten();
                let mut missing = required.filter_map(Value::as_str);
                if let Some(name) = missing.find(|name| !fields.contains_key(*name)) {
                    return Some(format!("{at}: {name} is missing"));
                }
                fields.iter().find_map(|(name, value)| {
                    let at = format!("{at}.{name}");
                    match (schema["properties"].get(name), &schema["additionalProperties"]) {
                        (Some(schema), _) => self.misfit(schema, value, &at),
                        (None, Value::Bool(false)) => Some(format!("{at} is not documented")),
                        (None, schema) => self.misfit(schema, value, &at),
                    }
                })
            }
            Value::Array(items) => {
                items.iter().find_map(|item| self.misfit(&schema["items"], item, at))
            }
            _ => None,
        }
    }

    /// Checks an answer to a request such as `GET /api/stays?user=ann`.
    #[track_caller]
    pub(crate) fn check(&self, line: &str, answer: &Answer) {
        let route = line.split('?').next().unwrap();
        let is_meant = |it: &Operation<'_>| route.split_once(' ') == Some((&*it.method, it.path));
        self.check_answer(&self.operations().find(is_meant).unwrap(), answer);
    }

    #[track_caller]
    fn check_answer(&self, operation: &Operation<'_>, answer: &Answer) {
        let responses = &operation.about["responses"];
        let status = answer.status.to_string();
        let response = responses.get(&status).unwrap_or(&responses["default"]);
        let schema = &self.resolve(response)["content"]["application/json"]["schema"];
        let (path, body) = (operation.path, answer.json());
        let misfit = self.misfit(schema, &body, "");
        assert_eq!(misfit, None, "{path} {status}: {body}");
    }

    /// The parameters of an operation, resolved.
    fn parameters<'d>(&'d self, about: &'d Value) -> impl Iterator<Item = &'d Value> {
        about["parameters"].as_array().into_iter().flatten().map(|it| self.resolve(it))
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    }
}

fn server() -> Endpoint {
    let channels = json!([{"topic": "orders:*", "history": true}]);
    // Nothing answers there, so all notices wait.
    let nowhere = "127.0.0.1:9".parse().unwrap();
    let user_socket = user_socket(nowhere, &channels, Some(policy()), |spec| {
        spec.config.notices = Some(NoticeConfig::new(ALL));
    });
    let token = |scope: Scope| {
        ApiToken::new(scope.name(), ApiToken::hash(scope.name().as_bytes()), [scope])
    };
    let endpoint = start(Endpoint::builder().socket(user_socket).configure(|config| {
        config.api_token = Some("s3cret".to_owned());
        config.api_tokens = Scope::ALL.map(token).into();
    }));
    let header = "authorization: Bearer s3cret\r\n";
    let line = "GET /api/stays?user=nobody";
    until("all partitions", || ask(endpoint.addresses()[0], line, header, "").status == 200);
    endpoint
}

fn request(address: SocketAddr, operation: &Operation<'_>, token: &str, rest: &str) -> Answer {
    let header = format!("authorization: Bearer {token}\r\n");
    let is_post = operation.method == "POST";
    let (query, body) = if is_post { ("", rest) } else { (rest, "") };
    let line = format!("{} {}{query}", operation.method, operation.path);
    ask(address, &line, &header, body)
}

#[test]
fn document_has_the_routes_of_the_server() {
    let document = Document::read();
    let documented: BTreeSet<&str> = document
        .operations()
        .map(|operation| operation.path.strip_prefix("/api/").unwrap())
        .collect();
    assert_eq!(documented, BTreeSet::from(API_VERBS));
}

#[test]
fn document_has_the_scopes_of_the_server() {
    let (document, server) = (Document::read(), server());
    let address = server.addresses()[0];
    for operation in document.operations() {
        for scope in Scope::ALL {
            let answer = request(address, &operation, scope.name(), "");
            let is_refused = answer.status == 403;
            let is_documented = operation.about["x-scope"] == scope.name();
            assert_eq!(is_refused, !is_documented, "{} {scope:?}", operation.path);
            document.check_answer(&operation, &answer);
        }
    }
}

#[test]
fn document_has_the_fields_of_requests() {
    let (document, server) = (Document::read(), server());
    let address = server.addresses()[0];
    for operation in document.operations() {
        let (documented, found): (BTreeSet<String>, BTreeSet<String>) = match &*operation.method {
            "POST" => {
                let content = &operation.about["requestBody"]["content"]["application/json"];
                let schema = document.resolve(&content["schema"]);
                let schema = schema["oneOf"].get(0).map_or(schema, |it| document.resolve(it));
                let fields = schema["properties"].as_object().unwrap().keys().cloned();
                let answer = request(address, &operation, "s3cret", r#"{"unknown":1}"#).json();
                let error = answer["error"].as_str().unwrap().to_owned();
                // serde lists the fields that it expects, each in backquotes.
                let expected = error.split("expected").nth(1).unwrap_or_default();
                let expected = expected.split(" at line").next();
                let names = expected.unwrap().split('`').skip(1).step_by(2).map(str::to_owned);
                (fields.collect(), names.collect())
            }
            _ => {
                let parameters = document.parameters(operation.about);
                let names = parameters.map(|it| it["name"].as_str().unwrap().to_owned());
                let answer = request(address, &operation, "s3cret", "?unknown=1").json();
                let error = answer["error"].as_str().unwrap_or_default();
                let found = error.split(['?', '&']).skip(1).filter_map(|it| it.split_once('='));
                (names.collect(), found.map(|(name, _)| name.to_owned()).collect())
            }
        };
        assert_eq!(documented, found, "{} {}", operation.method, operation.path);
    }
}

#[test]
fn documented_examples_work_and_their_answers_have_the_documented_form() {
    let (document, server) = (Document::read(), server());
    let address = server.addresses()[0];
    let mut member = client(&server, "7");
    member.join("orders:7");
    let (mut last, others): (Vec<_>, Vec<_>) =
        document.operations().partition(|it| it.path == "/api/kick");
    let (more, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|it| it.path == "/api/disconnect");
    last.extend(more);
    for operation in others.iter().chain(&last) {
        let content = &operation.about["requestBody"]["content"]["application/json"];
        let examples: Vec<String> = match content["examples"].as_object() {
            Some(examples) => examples
                .values()
                .map(|example| {
                    let misfit = document.misfit(&content["schema"], &example["value"], "");
                    assert_eq!(misfit, None, "{}: {example}", operation.path);
                    example["value"].to_string()
                })
                .collect(),
            None => {
                let parameters = document.parameters(operation.about);
                let given = parameters.filter(|it| !it["example"].is_null()).map(|it| {
                    let example = it["example"].to_string().replace('"', "").replace(':', "%3A");
                    format!("{}={example}", it["name"].as_str().unwrap())
                });
                vec![format!("?{}", given.collect::<Vec<_>>().join("&"))]
            }
        };
        for example in examples {
            let answer = request(address, operation, "s3cret", &example);
            let status = answer.status;
            assert!((200..300).contains(&status), "{} {example}: {answer:?}", operation.path);
            document.check_answer(operation, &answer);
        }
    }
    // What has no example: a whole row of a connection.
    let _again = client(&server, "7");
    let rows = document.operations().find(|it| it.path == "/api/connections").unwrap();
    let answer = request(address, &rows, "s3cret", "?user=7");
    assert_eq!(answer.json()["connections"].as_array().map(Vec::len), Some(1));
    document.check_answer(&rows, &answer);
}
