//! Rules in configuration files: permissions on a topic, by the claims of a token.

use std::str::FromStr;

use serde_json::Value;

use crate::claims::{self, Claims, at};

/// A permission by claim and topic.
///
/// | text | allows |
/// |---|---|
/// | `room:{sub}` | tokens whose claim is in the topic in place of `{sub}` |
/// | `org:{claims.org.id}:*` | the same by a nested claim, and any topic with this prefix |
/// | `claims.admin` | tokens with the claim, unless it is `false`, `null`, or empty |
/// | `claims.role = editor` | tokens with this value, or with a list that contains it |
/// | `nobody` | no token |
///
/// `{sub}` is [`Claims::subject`]. Claims have dots between nested names, and names may have dots
/// themselves (`claims.https://example.com/roles = editor`). A list allows by each of its entries.
/// Strings, numbers and booleans are compared as text. An empty value never matches, and a value
/// with a colon matches only at the end of a pattern:
/// `org:{claims.org}:*` must not allow `org:a:b:*` to a user who chose the name `a:b`.
///
/// ```
/// use std::time::Duration;
/// use simurgh_token::{Rule, Signer, Verifier, jwt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let secret = b"a secret of thirty-two bytes or more";
/// let now = Duration::from_secs(1_700_000_000);
/// let data = serde_json::json!({"sub": "7", "orgs": ["a", "b"], "exp": 1_700_000_060});
/// let token = Signer::Jwt(jwt::SigningKey::from_secret(secret)?).mint(&data, now, None)?;
/// let keys = jwt::Keys::from_secret(secret)?;
/// let claims = Verifier::of_keys(keys, jwt::Checks::default()).verify(&token, now)?;
///
/// let own: Rule = "room:{sub}".parse()?;
/// assert!(own.allows("room:7", &claims) && !own.allows("room:8", &claims));
/// let orgs: Rule = "org:{claims.orgs}:*".parse()?;
/// assert!(orgs.allows("org:b:news", &claims) && !orgs.allows("org:c:news", &claims));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Nobody,
    Claim { path: String, value: Option<String> },
    Topic { parts: Vec<Part>, is_prefix: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Claim(String),
}

/// Why a text is not a [`Rule`] or a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct RuleError {
    why: String,
}

impl Rule {
    /// Whether it allows the topic to a token with these claims.
    #[must_use]
    pub fn allows(&self, topic: &str, claims: &Claims) -> bool {
        match &self.0 {
            Kind::Nobody => false,
            Kind::Claim { path, value } => {
                let found = at(claims.claims(), path);
                match value {
                    None => found.is_some_and(is_something),
                    Some(value) => texts(found).iter().any(|text| text == value),
                }
            }
            Kind::Topic { parts, is_prefix } => matches(parts, *is_prefix, topic, claims),
        }
    }

    /// The prefix of all topics it may allow; none if it depends on claims only.
    #[must_use]
    pub fn topic_prefix(&self) -> Option<&str> {
        match &self.0 {
            Kind::Topic { parts, .. } => match parts.first() {
                Some(Part::Text(text)) => Some(text),
                _ => Some(""),
            },
            Kind::Nobody | Kind::Claim { .. } => None,
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text == "nobody" {
            return Ok(Self(Kind::Nobody));
        }
        let joins = ["==", "!=", " and ", " or ", "&&", "||"];
        if text.contains("claims.") && joins.iter().any(|join| text.contains(join)) {
            return wrong(format!(
                "{text:?}: a rule is one condition, such as \"claims.role = editor\". For \"or\" \
                 write a list of rules; there is no \"and\""
            ));
        }
        if let Some(condition) = text.strip_prefix("claims.") {
            let (path, value) = match condition.split_once('=') {
                Some((path, value)) => (path.trim(), Some(value.trim())),
                None => (condition.trim(), None),
            };
            check_path(path)?;
            if value == Some("") {
                return wrong(format!("{text:?}: add a value after the ="));
            }
            let (path, value) = (path.to_owned(), value.map(str::to_owned));
            return Ok(Self(Kind::Claim { path, value }));
        }
        let (pattern, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        if pattern.contains('*') {
            return wrong(format!("{text:?}: a * may only be the last character"));
        }
        if text.is_empty() {
            return wrong("it is empty: remove it to allow every connected client".to_owned());
        }
        let parts = parse(pattern)?;
        Ok(Self(Kind::Topic { parts, is_prefix }))
    }
}

/// A text with placeholders for claims, such as `user_socket:{sub}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

impl Template {
    /// A text, followed by the subject.
    #[must_use]
    pub fn of_subject(prefix: &str) -> Self {
        Self(vec![Part::Text(prefix.to_owned()), Part::Claim("sub".to_owned())])
    }

    /// The text with the values of claims; none if one is missing, empty, or a list of several.
    #[must_use]
    pub fn fill(&self, claims: &Claims) -> Option<String> {
        let mut filled = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Claim(path) => match values(path, claims).as_slice() {
                    [value] => filled.push_str(value),
                    _ => return None,
                },
            }
        }
        Some(filled)
    }
}

impl FromStr for Template {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        match text {
            "" => wrong("it is empty".to_owned()),
            text => parse(text).map(Self),
        }
    }
}

fn wrong<T>(why: String) -> Result<T, RuleError> {
    Err(RuleError { why })
}

fn parse(text: &str) -> Result<Vec<Part>, RuleError> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((name, behind)) = behind.split_once('}') else {
            return wrong(format!("{text:?}: a {{ has no }}"));
        };
        let path = match name.strip_prefix("claims.") {
            None if name != "sub" => {
                return wrong(format!(
                    "{text:?}: {{{name}}} is not a claim: use {{sub}} or {{claims.NAME}}"
                ));
            }
            path => path.unwrap_or(name),
        };
        check_path(path)?;
        if before.contains('}') {
            return wrong(format!("{text:?}: a }} has no {{"));
        }
        match (before, parts.last()) {
            ("", Some(Part::Claim(_))) => {
                return wrong(format!("{text:?}: add a text between two claims"));
            }
            ("", _) => {}
            (before, _) => parts.push(Part::Text(before.to_owned())),
        }
        parts.push(Part::Claim(path.to_owned()));
        rest = behind;
    }
    if rest.contains('}') {
        return wrong(format!("{text:?}: a }} has no {{"));
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

fn check_path(path: &str) -> Result<(), RuleError> {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-:/".contains(c))
    };
    match path.split('.').all(is_name) {
        true => Ok(()),
        false => wrong(format!(
            "{path:?} is not a claim: use letters, digits, _, -, : and /, and dots between \
             nested names"
        )),
    }
}

/// The values that may replace a claim: its own, or those of its entries.
fn values(path: &str, claims: &Claims) -> Vec<String> {
    match path {
        "sub" => {
            claims.subject().filter(|it| !it.is_empty()).map(str::to_owned).into_iter().collect()
        }
        path => texts(at(claims.claims(), path)),
    }
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Bool(it) => Some(it.to_string()),
        value => claims::text(value).filter(|text| !text.is_empty()),
    };
    match value {
        Some(Value::Array(several)) => several.iter().filter_map(text).collect(),
        value => value.and_then(text).into_iter().collect(),
    }
}

fn is_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(several) => !several.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Whether a topic matches a pattern. It recurses: there are few parts, and few entries match.
fn matches(parts: &[Part], is_prefix: bool, topic: &str, claims: &Claims) -> bool {
    match parts {
        [] => is_prefix || topic.is_empty(),
        [Part::Text(text), rest @ ..] => {
            topic.strip_prefix(&**text).is_some_and(|topic| matches(rest, is_prefix, topic, claims))
        }
        [Part::Claim(path), rest @ ..] => {
            let is_last = rest.is_empty() && !is_prefix;
            values(path, claims).iter().filter(|it| is_last || !it.contains(':')).any(|value| {
                let topic = topic.strip_prefix(value.as_str());
                topic.is_some_and(|topic| matches(rest, is_prefix, topic, claims))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(data: Value) -> Claims {
        Claims::new(data, None, None)
    }

    fn allows(rule: &str, topic: &str, data: Value) -> bool {
        rule.parse::<Rule>().unwrap().allows(topic, &claims(data))
    }

    #[test]
    fn topic_rule_matches_only_its_claim() {
        let seven = || json!({"sub": "7"});
        assert!(allows("room:{sub}", "room:7", seven()));
        for topic in ["room:", "room:77", "room:7:x", "room:8", "xroom:7", ""] {
            assert!(!allows("room:{sub}", topic, seven()), "{topic}");
        }
        assert!(!allows("room:{sub}", "room:", json!({"sub": ""})));
        assert!(!allows("room:{sub}", "room:", json!({})));
        assert!(allows("room:{sub}", "room:42", json!({"user_id": 42})), "Claims::subject");
        assert!(allows("room:{sub}", "room:42", json!(42)), "a Phoenix.Token's data");
        assert!(allows("lobby", "lobby", json!({})) && !allows("lobby", "lobby2", json!({})));
        assert!(allows("*", "anything", json!({})));
    }

    #[test]
    fn claims_can_be_nested_and_lists() {
        let data = || json!({"org": {"id": 5}, "teams": ["red", "", null, ["x"], true]});
        assert!(allows("org:{claims.org.id}:*", "org:5:news", data()));
        assert!(!allows("org:{claims.org.id}:*", "org:55:news", data()));
        assert!(!allows("org:{claims.org}:*", "org::news", data()), "an object is no text");
        let named = || json!({"https://example.com/roles": ["editor"], "a.b": {"c.d": 1}});
        assert!(allows("claims.https://example.com/roles = editor", "t", named()));
        assert!(!allows("claims.https://example.com/roles = admin", "t", named()));
        assert!(allows("r:{claims.https://example.com/roles}", "r:editor", named()));
        assert!(allows("claims.a.b.c.d = 1", "t", named()));
        assert!(!allows("claims.a.b.c = 1", "t", named()));
        for topic in ["t:red:5", "t:true:5"] {
            assert!(allows("t:{claims.teams}:{claims.org.id}", topic, data()), "{topic}");
        }
        for topic in ["t::5", "t:blue:5", "t:red:4", "t:red"] {
            assert!(!allows("t:{claims.teams}:{claims.org.id}", topic, data()), "{topic}");
        }
    }

    #[test]
    fn colon_in_a_name_does_not_extend_a_rule() {
        let data = || json!({"org": "a:b", "sub": "urn:x:1"});
        assert!(!allows("org:{claims.org}:*", "org:a:b:c", data()));
        assert!(!allows("org:{claims.org}*", "org:a:b", data()));
        assert!(allows("user:{sub}", "user:urn:x:1", data()), "at the end it is the whole rest");
    }

    #[test]
    fn conditions_depend_only_on_claims() {
        let data = || json!({"role": "editor", "roles": ["a", "b"], "admin": false, "n": 3});
        for (rule, is_allowed) in [
            ("claims.role = editor", true),
            ("claims.role=editor", true),
            ("claims.role = admin", false),
            ("claims.roles = b", true),
            ("claims.roles = a,b", false),
            ("claims.admin", false),
            ("claims.admin = false", true),
            ("claims.n = 3", true),
            ("claims.role", true),
            ("claims.missing", false),
            ("claims.missing = null", false),
            ("nobody", false),
        ] {
            assert_eq!(allows(rule, "t", data()), is_allowed, "{rule}");
        }
    }

    #[test]
    fn malformed_rules_are_reported() {
        for (text, why) in [
            ("", "empty"),
            ("room:*:x", "the last character"),
            ("room:{sub", "has no }"),
            ("room:}x", "has no {"),
            ("room:}{sub}", "has no {"),
            ("room:{}", "is not a claim"),
            ("room:{claims.a..b}", "is not a claim"),
            ("r:{claim.x}", "use {sub} or {claims.NAME}"),
            ("r:{team}", "use {sub} or {claims.NAME}"),
            ("claims.role == editor", "a rule is one condition"),
            ("claims.role != editor", "a rule is one condition"),
            ("claims.a = true and claims.b", "a rule is one condition"),
            ("room:{sub} or claims.admin", "a rule is one condition"),
            ("{sub}{claims.b}", "between two claims"),
            ("claims.", "is not a claim"),
            ("claims.role = ", "add a value"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        let prefix = |text: &str| text.parse::<Rule>().unwrap().topic_prefix().map(str::to_owned);
        assert_eq!(prefix("room:{sub}").as_deref(), Some("room:"));
        assert_eq!(prefix("{sub}:room").as_deref(), Some(""));
        assert_eq!(prefix("claims.admin"), None);
    }

    #[test]
    fn templates_need_one_value_for_each_claim() {
        let fill = |text: &str, data| text.parse::<Template>().unwrap().fill(&claims(data));
        assert_eq!(fill("user_socket:{sub}", json!({"sub": 7})).as_deref(), Some("user_socket:7"));
        assert_eq!(
            fill("{claims.org.id}/{sub}", json!({"sub": "a", "org": {"id": 1}})).as_deref(),
            Some("1/a")
        );
        assert_eq!(fill("u:{sub}", json!({})), None);
        assert_eq!(fill("u:{claims.teams}", json!({"teams": ["a", "b"]})), None);
    }
}
