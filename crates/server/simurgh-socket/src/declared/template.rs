//! Payload templates: checked and cut into pieces at start-up, filled by joining text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use simurgh_proto::message::Payload;

use crate::identity::OwnClaims;

/// Most fields of one template: they are collected on the stack.
const FIELDS_MAX: usize = 8;

/// The constant and the variable pieces of a template.
#[derive(Debug, Default)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    /// Names of the fields that [`Piece::Field`] refers to.
    fields: Vec<Box<str>>,
    /// Forms of the client that stand for an identity, for warnings.
    claimed: Vec<String>,
}

/// Before the path of a claim.
const CLAIMS: &str = "claims.";

#[derive(Debug, PartialEq)]
enum Piece {
    Text(String),
    Field(usize),
    Payload,
    Topic,
    Subtopic,
    Event,
    /// Of the verified token the subject (`sub`), or a claim (`claims.PATH`).
    Token(Box<str>),
    /// One of the assigns that the application gave this member.
    Assign(Box<str>),
}

/// The verified facts about a member; its client cannot choose them.
#[derive(Clone, Copy, Default)]
pub(super) struct Identity<'a> {
    /// The claims of its token, or of the application's answer to its connect.
    pub(super) claims: Option<&'a OwnClaims>,
    /// The assigns in the application's answer to its join.
    pub(super) assigns: Option<&'a Map<String, Value>>,
}

pub(super) struct Source<'a> {
    pub(super) identity: Identity<'a>,
    pub(super) payload: &'a Payload<'a>,
    pub(super) topic: &'a str,
    pub(super) event: &'a str,
}

impl Template {
    pub(super) fn compile(value: &Value) -> Result<Self, String> {
        let mut template = Self::default();
        template.add(value)?;
        Ok(template)
    }

    pub(super) fn payload() -> Self {
        Self { pieces: vec![Piece::Payload], ..Self::default() }
    }

    pub(super) fn empty() -> Self {
        Self { pieces: vec![Piece::Text("{}".into())], ..Self::default() }
    }

    pub(super) fn is_payload(&self) -> bool {
        self.pieces == [Piece::Payload]
    }

    /// Whether it contains this field of the payload, alone or with all others.
    #[cfg(feature = "token")]
    pub(super) fn shows(&self, field: &str) -> bool {
        self.pieces.contains(&Piece::Payload) || self.fields.iter().any(|it| **it == *field)
    }

    /// Whether it contains something of the verified identity, or of the assigns.
    pub(super) fn needs_identity(&self) -> bool {
        self.needs_token() || self.needs_assigns()
    }

    /// Whether it contains something of the verified identity.
    pub(super) fn needs_token(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Token(_)))
    }

    /// Whether it contains something that only an application's answer to the join can give.
    pub(super) fn needs_assigns(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Assign(_)))
    }

    /// Forms that the client fills itself although they are called like an identity, or stand for
    /// one.
    pub(super) fn claimed(&self) -> impl Iterator<Item = String> {
        let fields = self.fields.iter().filter(|field| is_identity(field));
        fields.map(|field| format!("${field}")).chain(self.claimed.iter().cloned())
    }

    /// Fields of the payload, and the whole of it.
    pub(super) fn of_client(&self) -> impl Iterator<Item = String> {
        let whole = self.pieces.contains(&Piece::Payload).then(|| "$payload".to_owned());
        self.fields.iter().map(|field| format!("${field}")).chain(whole)
    }

    pub(super) fn fill(&self, from: &Source<'_>) -> Payload<'static> {
        match self.pieces.as_slice() {
            [Piece::Payload] => from.payload.borrow().into_owned(),
            [Piece::Text(text)] if text == "{}" => Payload::EMPTY_OBJECT,
            pieces => Payload::from_json(self.join(pieces, from)),
        }
    }

    fn join(&self, pieces: &[Piece], from: &Source<'_>) -> String {
        let json = from.payload.json();
        let fields = match json {
            Some(json) if !self.fields.is_empty() => fields_of(json, &self.fields),
            _ => [NULL; FIELDS_MAX],
        };
        let mut out = String::with_capacity(64 + json.map_or(0, str::len));
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Field(field) => out.push_str(fields.get(*field).unwrap_or(&NULL)),
                Piece::Payload => out.push_str(json.unwrap_or(NULL)),
                Piece::Topic => out.push_str(&quoted(from.topic)),
                Piece::Subtopic => {
                    let rest = from.topic.split_once(':').map_or(from.topic, |(_, rest)| rest);
                    out.push_str(&quoted(rest));
                }
                Piece::Event => out.push_str(&quoted(from.event)),
                Piece::Token(path) => {
                    let found =
                        from.identity.claims.and_then(|claims| match path.strip_prefix(CLAIMS) {
                            None => claims.subject().map(quoted),
                            Some(path) => claims.find(path).map(Value::to_string),
                        });
                    out.push_str(found.as_deref().unwrap_or(NULL));
                }
                Piece::Assign(name) => {
                    let found = from.identity.assigns.and_then(|assigns| assigns.get(&**name));
                    out.push_str(found.map(Value::to_string).as_deref().unwrap_or(NULL));
                }
            }
        }
        out
    }

    fn add(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::String(text) if text.starts_with('$') => self.add_form(text)?,
            Value::String(text) if text.contains("$token.") => {
                return Err(format!(
                    "{text:?} would be sent unchanged: a form must be the whole text, as in \
                     \"$token.sub\""
                ));
            }
            Value::Array(items) => {
                self.text("[");
                for (n, item) in items.iter().enumerate() {
                    self.text(if n > 0 { "," } else { "" });
                    self.add(item)?;
                }
                self.text("]");
            }
            Value::Object(entries) => {
                self.text("{");
                for (n, (key, item)) in entries.iter().enumerate() {
                    if key.starts_with('$') {
                        return Err(format!(
                            "{key:?} cannot be the name of a field: only values may be $ forms; \
                             write a date as a text"
                        ));
                    }
                    self.text(if n > 0 { "," } else { "" });
                    self.text(&quoted(key));
                    self.text(":");
                    self.add(item)?;
                    self.note_claimed(key, item);
                }
                self.text("}");
            }
            plain => self.text(&plain.to_string()),
        }
        Ok(())
    }

    /// Notes a field that stands for an identity and that the client fills.
    fn note_claimed(&mut self, key: &str, item: &Value) {
        let is_of_client = matches!(self.pieces.last(), Some(Piece::Field(_) | Piece::Payload));
        if let Some(form) = item.as_str().filter(|_| is_of_client && is_identity(key)) {
            self.claimed.push(form.to_owned());
        }
    }

    /// Adds a text that begins with `$`.
    fn add_form(&mut self, text: &str) -> Result<(), String> {
        let form = text.strip_prefix('$').unwrap_or(text);
        let piece = match form {
            "payload" => Piece::Payload,
            "topic" => Piece::Topic,
            "subtopic" => Piece::Subtopic,
            "event" => Piece::Event,
            "token" => {
                return Err("\"$token\" is not a form: use $token.sub or $token.claims.name of \
                    the verified token, or $payload.token of the payload"
                    .to_owned());
            }
            _ if form.starts_with(TOKEN) => Piece::Token(token_path(text)?),
            _ if form.starts_with(ASSIGNS) => match form.strip_prefix(ASSIGNS) {
                Some(name) if is_name(name) => Piece::Assign(name.into()),
                _ => {
                    return Err(format!(
                        "{text:?} is not a form: use $assigns.name for what the answer to the \
                         question join assigned"
                    ));
                }
            },
            literal if literal.starts_with('$') => {
                self.text(&quoted(literal));
                return Ok(());
            }
            name => {
                let name = name.strip_prefix("payload.").unwrap_or(name);
                if !is_name(name) {
                    return Err(format!(
                        "{text:?} is not a form. Forms are $name and $payload.name (a field of \
                         the payload, which the client chooses: letters, digits, _ and -), \
                         $token.sub and $token.claims.name (of its verified token), $payload, \
                         $topic, $subtopic and $event. For a text that begins with $ write $$"
                    ));
                }
                Piece::Field(self.field(name)?)
            }
        };
        self.pieces.push(piece);
        Ok(())
    }

    fn field(&mut self, name: &str) -> Result<usize, String> {
        if let Some(known) = self.fields.iter().position(|field| **field == *name) {
            return Ok(known);
        }
        if self.fields.len() == FIELDS_MAX {
            return Err(format!("uses more than {FIELDS_MAX} fields of the payload"));
        }
        self.fields.push(name.into());
        Ok(self.fields.len() - 1)
    }

    fn text(&mut self, more: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.pieces.push(Piece::Text(more.to_owned())),
        }
    }
}

const NULL: &str = "null";
/// Before the parts of the verified token.
const TOKEN: &str = "token.";
/// Before the name of an assign.
const ASSIGNS: &str = "assigns.";
/// Names of fields by which clients identify themselves, also with `id` or `name` appended.
const IDENTITIES: [&str; 19] = [
    "user", "uid", "sub", "email", "name", "from", "sender", "author", "nick", "login", "handle",
    "account", "owner", "member", "player", "actor", "display", "by", "who",
];

fn is_identity(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['_', '-'], "");
    let stems = ["id", "name"].map(|end| name.strip_suffix(end).unwrap_or(&name));
    IDENTITIES.iter().any(|identity| *identity == name || stems.contains(identity))
}

fn token_path(text: &str) -> Result<Box<str>, String> {
    let path = text.get(1 + TOKEN.len()..).unwrap_or_default();
    let is_claim = path
        .strip_prefix(CLAIMS)
        .is_some_and(|path| !path.is_empty() && path.split('.').all(|name| !name.is_empty()));
    match cfg!(feature = "token") && (path == "sub" || is_claim) {
        true => Ok(path.into()),
        false => Err(format!(
            "{text:?} is not a form: use $token.sub, or $token.claims.name for any claim"
        )),
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(is_part)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The raw text of one field of a JSON object, `null` if it is missing.
#[cfg(feature = "token")]
pub(super) fn field_of<'j>(json: &'j str, name: &[Box<str>; 1]) -> &'j str {
    let [text, ..] = fields_of(json, name);
    text
}

/// The raw text of these fields of a JSON object, `null` for missing ones; nothing else is built.
/// Of a duplicate field the last one counts.
fn fields_of<'j>(json: &'j str, names: &[Box<str>]) -> [&'j str; FIELDS_MAX] {
    let mut json = serde_json::Deserializer::from_str(json);
    json.deserialize_map(Fields(names)).unwrap_or([NULL; FIELDS_MAX])
}

struct Fields<'n>(&'n [Box<str>]);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = [&'de str; FIELDS_MAX];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = [NULL; FIELDS_MAX];
        while let Some(field) = map.next_key_seed(Name(self.0))? {
            match field.and_then(|field| found.get_mut(field)) {
                Some(text) => *text = map.next_value::<&RawValue>()?.get(),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

/// Finds which of the names a key is, without storing the key.
struct Name<'n>(&'n [Box<str>]);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| **name == *key))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fill(template: Value, payload: Payload<'_>) -> Payload<'static> {
        let (topic, event) = ("rooms:a:\"b\"", "new:msg");
        let source = Source { identity: Identity::default(), payload: &payload, topic, event };
        Template::compile(&template).unwrap().fill(&source)
    }

    #[track_caller]
    fn filled(template: Value, payload: &str, expected: &str) {
        let filled = fill(template, Payload::checked(payload).unwrap());
        assert_eq!(filled.json(), Some(expected));
    }

    #[test]
    fn forms_are_filled_in() {
        let payload = r#"{"user":"ann","body":"Grüße \"x\"","n":[1,{"body":2}],"topic":7}"#;
        filled(json!({"msg": "$body"}), payload, r#"{"msg":"Grüße \"x\""}"#);
        filled(json!("$n"), payload, r#"[1,{"body":2}]"#);
        filled(json!(["$user", "$user", "$none"]), payload, r#"["ann","ann",null]"#);
        filled(json!({"all": "$payload"}), payload, &format!(r#"{{"all":{payload}}}"#));
        filled(json!("$payload"), payload, payload);
        filled(json!(["$topic", "$payload.topic"]), payload, r#"["rooms:a:\"b\"",7]"#);
        filled(json!(["$subtopic", "$event"]), payload, r#"["a:\"b\"","new:msg"]"#);
        filled(
            json!(["$$5", "5$", true, 1.5, {"a b": {}}]),
            payload,
            r#"["$5","5$",true,1.5,{"a b":{}}]"#,
        );
    }

    #[test]
    fn fields_of_any_payload_are_values_or_null() {
        for payload in ["[1,2]", "\"body\"", "7", "null", "{}", r#"{"a":{"body":1}}"#] {
            filled(json!("$body"), payload, "null");
        }
        filled(json!("$body"), r#"{"body":1,"body":2}"#, "2");
        filled(json!("$body"), r#"{"bo\u0064y":1}"#, "1");
        let deep = format!(r#"{{"x":{}{},"body":1}}"#, "[".repeat(900), "]".repeat(900));
        filled(json!("$body"), &deep, "1");
        let deep = format!(r#"{{"body":{}{}}}"#, "[".repeat(900), "]".repeat(900));
        filled(json!({"b": "$body"}), &deep, &deep.replace("body", "b"));
    }

    #[test]
    fn binary_payload_has_no_fields_and_passes_unchanged() {
        let binary = || Payload::from_bytes(vec![0, 255]);
        assert_eq!(fill(json!("$payload"), binary()), Payload::from_bytes(vec![0, 255]));
        assert_eq!(fill(json!(["$payload", "$body"]), binary()).json(), Some("[null,null]"));
    }

    #[test]
    fn unknown_form_is_refused() {
        for wrong in ["$", "$1", "$a.b", "$payload.", "$payload.a.b", "$a b", "$ü", "$payload "] {
            let error = Template::compile(&json!({"deep": [wrong]})).unwrap_err();
            assert!(error.contains(wrong) && error.contains("$topic"), "{error}");
        }
        assert!(Template::compile(&json!({"$a": 1})).is_err());
        let many: Vec<_> = (0..=FIELDS_MAX).map(|n| format!("$f{n}")).collect();
        assert!(Template::compile(&json!(many[..FIELDS_MAX])).is_ok());
        assert!(Template::compile(&json!(many)).is_err());
    }

    #[test]
    fn plain_templates_are_one_piece_of_text() {
        let template = Template::compile(&json!({"a": [1, null, {"b": "c"}]})).unwrap();
        assert_eq!(template.pieces, [Piece::Text(r#"{"a":[1,null,{"b":"c"}]}"#.into())]);
        assert!(Template::compile(&json!("$payload")).unwrap().is_payload());
        assert!(!Template::compile(&json!(["$payload"])).unwrap().is_payload());
    }

    #[cfg(feature = "token")]
    #[test]
    fn verified_identity_comes_from_the_token_and_never_from_the_payload() {
        use std::time::Duration;

        use crate::token::{Settings, Signer, Verifier, jwt};

        let secret = b"a secret of thirty-two bytes or more";
        let data = json!({"sub": "7", "name": "Ann", "https://example.com/roles": ["editor"]});
        let key = jwt::SigningKey::from_secret(secret).unwrap();
        let token =
            Signer::Jwt(key).mint(&data, Duration::ZERO, Some(Duration::from_secs(60))).unwrap();
        let keys = crate::token::KeySource::Secret(secret.to_vec());
        let verifier = Verifier::new(Settings::Jwt(crate::token::JwtSettings::new(keys))).unwrap();
        let claims = verifier.verify(&token, Duration::ZERO).unwrap();
        let template = json!({
            "id": "$token.sub", "name": "$token.claims.name",
            "roles": "$token.claims.https://example.com/roles", "none": "$token.claims.none",
            "said": "$sub",
        });
        let template = Template::compile(&template).unwrap();
        assert!(template.needs_identity() && template.claimed().eq(["$sub".to_owned()]));
        let forged = r#"{"sub":"8","token.sub":"8","token":{"sub":"8","claims":{"name":"Eve"}}}"#;
        let payload = Payload::checked(forged).unwrap();
        let filled = |claims| {
            let source = Source {
                identity: Identity { claims, assigns: None },
                payload: &payload,
                topic: "t",
                event: "e",
            };
            template.fill(&source).parse::<Value>().unwrap()
        };
        let roles = json!(["editor"]);
        let expected = json!({"id": "7", "name": "Ann", "roles": roles, "none": null, "said": "8"});
        assert_eq!(filled(Some(&claims)), expected);
        let expected = json!({"id": null, "name": null, "roles": null, "none": null, "said": "8"});
        assert_eq!(filled(None), expected);
        for wrong in ["$token.", "$token.name", "$token.claims.", "$token.claims..a"] {
            let error = Template::compile(&json!(wrong)).unwrap_err();
            assert!(error.contains("$token.sub"), "{error}");
        }
        let error = Template::compile(&json!("$claims.sub")).unwrap_err();
        assert!(error.contains("$token.claims.name"), "{error}");
    }
}
