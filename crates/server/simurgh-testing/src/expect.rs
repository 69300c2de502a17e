//! The payload that an assertion expects, and the value that it returns.

use std::fmt::Write as _;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde_json::Value;
use simurgh_proto::message::Payload;

use crate::pattern::{Difference, Pattern};

/// How many bytes of a binary payload are shown.
const BYTES: usize = 24;

/// Something that a payload is compared with.
pub trait Expect {
    /// The value that the assertion returns.
    type Value;

    /// Reads the payload, if it matches.
    fn read(&self, seen: Seen<'_>) -> Result<Self::Value, Misfit>;

    /// The expectation as written in the test; `None` if there is none.
    fn text(&self) -> Option<String>;
}

/// A payload that was received.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub(crate) payload: &'a Payload<'static>,
    /// From a socket without Channels, whose texts need not be JSON.
    pub(crate) is_plain: bool,
}

/// Why a payload does not match.
#[derive(Debug)]
pub enum Misfit {
    /// It differs at these places.
    At(Vec<Difference>),
    /// It cannot be read as the expected type; in a sentence.
    Unlike(String),
    /// It fails a check; in a sentence.
    Fails(String),
}

impl Misfit {
    /// How much it differs, to find the nearest message, and where, in lines.
    pub(crate) fn tell(&self) -> (usize, Vec<String>) {
        match self {
            Self::Unlike(text) => (usize::MAX, vec![text.clone()]),
            Self::Fails(text) => (1, vec![text.clone()]),
            Self::At(all) => {
                let far = all.iter().map(Difference::weight).fold(0, usize::saturating_add);
                (far, all.iter().map(ToString::to_string).collect())
            }
        }
    }
}

impl Seen<'_> {
    fn value(self) -> Result<Value, Misfit> {
        let Some(text) = self.payload.json() else { return Err(binary()) };
        match serde_json::from_str(text) {
            Ok(value) => Ok(value),
            Err(_) if self.is_plain => Ok(Value::String(text.to_owned())),
            Err(error) => Err(Misfit::Unlike(format!("it is not JSON: {error}"))),
        }
    }

    fn parse<T: DeserializeOwned>(self) -> Result<T, Misfit> {
        let says = |error| {
            Misfit::Unlike(format!(
                "it cannot be read as {}: {error}",
                short(std::any::type_name::<T>())
            ))
        };
        match self.payload.json() {
            None => Err(binary()),
            Some(text) if !self.is_plain => serde_json::from_str(text).map_err(says),
            Some(_) => serde_json::from_value(self.value()?).map_err(says),
        }
    }

    /// Whether it is this text, if texts need not be JSON.
    fn is_text(self, expected: &Value) -> bool {
        self.is_plain && expected.as_str().is_some_and(|text| self.payload.json() == Some(text))
    }
}

fn binary() -> Misfit {
    Misfit::Unlike("it is binary, but JSON was expected".to_owned())
}

/// The name of a type without its modules.
fn short(name: &str) -> String {
    let mut short = String::new();
    for part in name.split_inclusive(['<', '>', ',', ' ', '(', ')', '&', '[', ']']) {
        short.push_str(part.rsplit("::").next().unwrap_or(part));
    }
    short
}

/// Any payload.
pub struct Anything;

impl Expect for Anything {
    type Value = Payload<'static>;

    fn read(&self, seen: Seen<'_>) -> Result<Payload<'static>, Misfit> {
        Ok(seen.payload.clone())
    }

    fn text(&self) -> Option<String> {
        None
    }
}

/// JSON that matches.
impl Expect for Pattern {
    type Value = Value;

    fn read(&self, seen: Seen<'_>) -> Result<Value, Misfit> {
        if let Self::Is(expected) = self
            && seen.is_text(expected)
        {
            return Ok(expected.clone());
        }
        let value = seen.value()?;
        let differences = self.differences(&value);
        if differences.is_empty() { Ok(value) } else { Err(Misfit::At(differences)) }
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Exactly this payload; the order of an object's members does not matter.
pub struct Exactly(Payload<'static>);

impl Expect for Exactly {
    type Value = Payload<'static>;

    fn read(&self, seen: Seen<'_>) -> Result<Payload<'static>, Misfit> {
        match (&self.0, seen.payload) {
            (Payload::Json(expected), Payload::Json(_)) => {
                let expected: Value = serde_json::from_str(expected).map_err(|error| {
                    Misfit::Unlike(format!("the expected value is not JSON: {error}"))
                })?;
                Pattern::from(expected).read(seen)?;
            }
            (expected, found) if expected == found => {}
            (Payload::Json(_), _) => return Err(binary()),
            (_, Payload::Json(_)) => {
                return Err(Misfit::Unlike("it is JSON, but binary was expected".to_owned()));
            }
            _ => return Err(Misfit::Fails("its bytes differ".to_owned())),
        }
        Ok(seen.payload.clone())
    }

    fn text(&self) -> Option<String> {
        Some(format!("== {}", payload_line(&self.0)))
    }
}

macro_rules! exactly_from {
    ($($(const $n:ident in)? $from:ty => |$it:ident| $payload:expr;)*) => {
        $(impl $(<const $n: usize>)? From<$from> for Exactly {
            fn from($it: $from) -> Self {
                Self($payload)
            }
        })*
    };
}

exactly_from! {
    Payload<'_> => |it| it.into_owned();
    &Payload<'_> => |it| it.into();
    Value => |it| it.into();
    &Value => |it| it.clone().into();
    &str => |it| Value::from(it).into();
    Vec<u8> => |it| it.into();
    &[u8] => |it| it.to_vec().into();
    const N in &[u8; N] => |it| it.to_vec().into();
    const N in [u8; N] => |it| it.to_vec().into();
}

/// A value of the test's own type that passes a check.
struct Typed<T, F> {
    check: F,
    text: String,
    of: PhantomData<fn() -> T>,
}

/// A value of this type.
pub fn typed<T: DeserializeOwned>() -> impl Expect<Value = T> {
    let text = format!("as {}", short(std::any::type_name::<T>()));
    Typed { check: |_: T| true, text, of: PhantomData }
}

/// A value that matches; `check` takes it by value, for patterns that do.
pub fn matching<T: DeserializeOwned, F: Fn(T) -> bool>(
    check: F,
    text: &str,
) -> impl Expect<Value = T> {
    Typed { check, text: text.to_owned(), of: PhantomData }
}

/// A value for which a closure is true.
pub fn meeting<T: DeserializeOwned, F: Fn(&T) -> bool>(
    check: F,
    text: &str,
) -> impl Expect<Value = T> {
    Typed { check: move |value: T| check(&value), text: text.to_owned(), of: PhantomData }
}

/// As [`meeting`], for closures that do not name the type of their argument.
pub fn meeting_json(check: impl Fn(&Value) -> bool, text: &str) -> impl Expect<Value = Value> {
    meeting(check, text)
}

impl<T: DeserializeOwned, F: Fn(T) -> bool> Expect for Typed<T, F> {
    type Value = T;

    fn read(&self, seen: Seen<'_>) -> Result<T, Misfit> {
        // The check consumes its value; parse another for the test.
        match (self.check)(seen.parse()?) {
            true => seen.parse(),
            false => Err(Misfit::Fails(format!("it does not match {}", self.text))),
        }
    }

    fn text(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

pub(crate) fn payload_line(payload: &Payload<'_>) -> String {
    match payload {
        Payload::Json(text) => text.to_string(),
        Payload::User(broadcast) => format!("<{broadcast:?}>"),
        Payload::Binary(bytes) => {
            let unit = if bytes.len() == 1 { "byte" } else { "bytes" };
            let mut text = format!("<{} {unit}", bytes.len());
            for (at, byte) in bytes.iter().take(BYTES).enumerate() {
                let _ = write!(text, "{}{byte:02x}", if at == 0 { ": " } else { " " });
            }
            text.push_str(if bytes.len() > BYTES { " ...>" } else { ">" });
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<E: Expect>(expect: &E, payload: &Payload<'static>, is_plain: bool) -> Option<E::Value> {
        expect.read(Seen { payload, is_plain }).ok()
    }

    #[test]
    fn exactly_accepts_only_equal_values() {
        let json = |text: &'static str| Payload::from_json(text);
        let expected = Exactly::from(json!({"a": 1, "b": [2]}));
        assert!(read(&expected, &json(r#"{"b":[2],"a":1}"#), false).is_some());
        for other in [r#"{"a":1}"#, r#"{"a":1,"b":[2],"c":3}"#, r#"{"a":1,"b":[2,3]}"#] {
            assert!(read(&expected, &json(other), false).is_none(), "{other}");
        }
        assert!(read(&expected, &vec![1].into(), false).is_none());
        assert!(read(&Exactly::from(b"ab"), &b"ab".to_vec().into(), false).is_some());
        assert!(read(&Exactly::from([1, 2]), &vec![1].into(), false).is_none());
        assert!(read(&Exactly::from([1]), &json("[1]"), false).is_none());
    }

    #[test]
    fn plain_text_is_a_string_or_its_json() {
        let text = Payload::from_json("hello");
        assert!(read(&Exactly::from("hello"), &text, true).is_some());
        assert!(read(&Pattern::Is(json!("hello")), &text, true).is_some());
        assert!(read(&Pattern::Is(json!("hello")), &text, false).is_none());
        let number = Payload::from_json("3");
        assert!(read(&Pattern::Is(json!("3")), &number, true).is_some());
        assert!(read(&Pattern::Is(json!(3)), &number, true).is_some());
        assert!(read(&Pattern::Is(json!("3")), &number, false).is_none());
        assert_eq!(read(&typed::<String>(), &text, true).as_deref(), Some("hello"));
    }

    #[test]
    fn type_name_has_no_modules() {
        assert_eq!(short("alloc::vec::Vec<core::option::Option<a::b::C>>"), "Vec<Option<C>>");
        let misfit = Seen { payload: &Payload::from_json("[1]"), is_plain: false };
        let Err(misfit) = typed::<Vec<String>>().read(misfit) else { panic!("it is no string") };
        let (_, lines) = misfit.tell();
        assert!(
            lines[0].starts_with("it cannot be read as Vec<String>: invalid type"),
            "{lines:?}"
        );
    }
}
