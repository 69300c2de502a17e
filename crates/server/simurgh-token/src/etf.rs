//! Erlang's external term format, for terms with an equivalent in JSON.
//!
//! `term_to_binary/1` writes it, and a `Phoenix.Token` contains it. The source of the tags is [The
//! External Term Format](https://www.erlang.org/doc/apps/erts/erl_ext_dist.html). A term only
//! becomes JSON: no atom is created, and functions, processes, references, bit strings and
//! compressed terms are refused.
//!
//! | Erlang, Elixir | JSON |
//! |---|---|
//! | integer of at most 64 bits, float | number |
//! | `nil`, `true`, `false` | `null`, `true`, `false` |
//! | another atom, binary of UTF-8 | string |
//! | list, charlist, tuple | array |
//! | map whose keys are atoms, binaries or integers | object |
//!
//! [`encode`] writes the bytes of Erlang/OTP 26 and newer; older versions read them, but write
//! atoms differently.

use serde_json::{Map, Number, Value};

/// The maximum nesting of terms, in both directions.
pub const DEPTH_MAX: usize = 32;

/// Decodes a whole term, which begins with the byte 131.
///
/// Memory is bounded by the input: about 70 bytes of memory for each byte of a list of small
/// integers, less for all else.
///
/// # Errors
/// It is truncated, has bytes after its end, is nested deeper than [`DEPTH_MAX`], or has no
/// equivalent in JSON.
pub fn decode(bytes: &[u8]) -> Result<Value, EtfError> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.byte()? != VERSION {
        return Err(reader.error_at(0, "it does not begin with byte 131"));
    }
    if reader.rest().first() == Some(&COMPRESSED) {
        return Err(reader.error("compressed terms are not supported"));
    }
    let value = reader.term(DEPTH_MAX)?;
    if !reader.rest().is_empty() {
        return Err(reader.error("there are bytes after the term"));
    }
    Ok(value)
}

/// Encodes a value as a whole term.
///
/// A string is a binary, an object a map with binaries as keys, an array a list.
///
/// # Errors
/// It is nested deeper than [`DEPTH_MAX`], or its length does not fit into 32 bits.
pub fn encode(value: &Value) -> Result<Vec<u8>, EtfError> {
    let mut bytes = vec![VERSION];
    write(&mut bytes, value, DEPTH_MAX)?;
    Ok(bytes)
}

/// An element of a tuple: a value, or an atom without an equivalent in JSON.
pub(crate) enum Element<'a> {
    Value(&'a Value),
    Atom(&'static str),
}

/// As [`encode`], for a tuple of these elements.
pub(crate) fn encode_tuple(elements: &[Element<'_>; 3]) -> Result<Vec<u8>, EtfError> {
    let mut bytes = vec![VERSION, SMALL_TUPLE, 3];
    for element in elements {
        match element {
            Element::Value(value) => write(&mut bytes, value, DEPTH_MAX - 1)?,
            Element::Atom(name) => write_atom(&mut bytes, name),
        }
    }
    Ok(bytes)
}

/// Whether a whole term is a tuple; in JSON it is an array like a list.
pub(crate) fn is_tuple(bytes: &[u8]) -> bool {
    matches!(bytes, [VERSION, SMALL_TUPLE | LARGE_TUPLE, ..])
}

/// Why bytes are not a term, or have no equivalent in JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Erlang term, byte {at}: {why}")]
pub struct EtfError {
    at: usize,
    why: &'static str,
}

impl EtfError {
    /// The offset of the byte that could not be read; when writing, the number of bytes written.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn error(&self, why: &'static str) -> EtfError {
        self.error_at(self.at, why)
    }

    fn error_at(&self, at: usize, why: &'static str) -> EtfError {
        EtfError { at, why }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], EtfError> {
        let Some((taken, _)) = self.rest().split_at_checked(count) else {
            return Err(self.error("it is incomplete"));
        };
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EtfError> {
        let at = self.at;
        self.take(N)?.try_into().map_err(|_| self.error_at(at, "it is incomplete"))
    }

    fn byte(&mut self) -> Result<u8, EtfError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// The number of bytes, digits or elements of a term with this tag: one, two or four bytes.
    fn count(&mut self, tag: u8) -> Result<usize, EtfError> {
        let at = self.at;
        match tag {
            SMALL_BIG | SMALL_TUPLE | SMALL_ATOM | SMALL_ATOM_UTF8 => Ok(self.byte()?.into()),
            STRING | ATOM | ATOM_UTF8 => Ok(u16::from_be_bytes(self.array()?).into()),
            _ => usize::try_from(u32::from_be_bytes(self.array()?))
                .map_err(|_| self.error_at(at, "its length is too large")),
        }
    }

    fn term(&mut self, depth: usize) -> Result<Value, EtfError> {
        let at = self.at;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.error("it is nested more than 32 levels deep"));
        };
        match self.byte()? {
            SMALL_INTEGER => Ok(self.byte()?.into()),
            INTEGER => Ok(i32::from_be_bytes(self.array()?).into()),
            tag @ (SMALL_BIG | LARGE_BIG) => self.big(at, tag),
            NEW_FLOAT => {
                let float = Number::from_f64(f64::from_be_bytes(self.array()?));
                float.map(Value::Number).ok_or_else(|| self.error_at(at, "the float is not finite"))
            }
            tag @ (ATOM | SMALL_ATOM | ATOM_UTF8 | SMALL_ATOM_UTF8) => {
                Ok(match self.atom(tag)?.as_str() {
                    "nil" => Value::Null,
                    "true" => Value::Bool(true),
                    "false" => Value::Bool(false),
                    other => Value::String(other.to_owned()),
                })
            }
            BINARY => self.binary().map(Value::String),
            NIL => Ok(Value::Array(Vec::new())),
            STRING => {
                let count = self.count(STRING)?;
                Ok(self.take(count)?.iter().map(|byte| Value::from(*byte)).collect())
            }
            LIST => self.list(depth),
            tag @ (SMALL_TUPLE | LARGE_TUPLE) => {
                let count = self.count(tag)?;
                self.terms(count, depth).map(Value::Array)
            }
            MAP => self.map(depth).map(Value::Object),
            other => Err(self.error_at(at, refused(other))),
        }
    }

    /// An integer of any length: its sign, then its bytes, least significant first.
    fn big(&mut self, at: usize, tag: u8) -> Result<Value, EtfError> {
        let digits = self.count(tag)?;
        let negative = self.byte()? != 0;
        let bytes = self.take(digits)?;
        let significant = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let too_long = self.error_at(at, "the integer has more than 64 bits");
        let mut eight = [0; 8];
        let Some((room, bytes)) = eight.get_mut(..significant).zip(bytes.get(..significant)) else {
            return Err(too_long);
        };
        room.copy_from_slice(bytes);
        let magnitude = u64::from_le_bytes(eight);
        match negative {
            false => Ok(magnitude.into()),
            true => 0_i64.checked_sub_unsigned(magnitude).map(Value::from).ok_or(too_long),
        }
    }

    fn atom(&mut self, tag: u8) -> Result<String, EtfError> {
        let count = self.count(tag)?;
        let at = self.at;
        let name = self.take(count)?;
        match tag {
            // Latin-1: each byte is its code point.
            ATOM | SMALL_ATOM => Ok(name.iter().copied().map(char::from).collect()),
            _ => self.text(at, name),
        }
    }

    fn binary(&mut self) -> Result<String, EtfError> {
        let count = self.count(BINARY)?;
        let at = self.at;
        let bytes = self.take(count)?;
        self.text(at, bytes)
    }

    fn text(&self, at: usize, bytes: &[u8]) -> Result<String, EtfError> {
        let why = "a binary is not UTF-8; sign it as text, such as Base64";
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| self.error_at(at, why))
    }

    fn terms(&mut self, count: usize, depth: usize) -> Result<Vec<Value>, EtfError> {
        // Each takes at least a byte, so a length beyond the end does not allocate memory.
        if count > self.rest().len() {
            return Err(self.error("it is incomplete"));
        }
        (0..count).map(|_| self.term(depth)).collect()
    }

    fn list(&mut self, depth: usize) -> Result<Value, EtfError> {
        let count = self.count(LIST)?;
        let elements = self.terms(count, depth)?;
        let at = self.at;
        match self.byte()? {
            NIL => Ok(Value::Array(elements)),
            _ => Err(self.error_at(at, "the list is improper")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Map<String, Value>, EtfError> {
        let count = self.count(MAP)?;
        if count > self.rest().len() / 2 {
            return Err(self.error("it is incomplete"));
        }
        let mut map = Map::new();
        for _ in 0..count {
            let at = self.at;
            let key = self.key()?;
            if map.insert(key, self.term(depth)?).is_some() {
                return Err(self.error_at(at, "two keys of a map have the same name"));
            }
        }
        Ok(map)
    }

    fn key(&mut self) -> Result<String, EtfError> {
        let at = self.at;
        match self.byte()? {
            tag @ (ATOM | SMALL_ATOM | ATOM_UTF8 | SMALL_ATOM_UTF8) => self.atom(tag),
            BINARY => self.binary(),
            SMALL_INTEGER | INTEGER | SMALL_BIG | LARGE_BIG => {
                self.at = at;
                self.term(1).map(|integer| integer.to_string())
            }
            _ => Err(self.error_at(at, "a map's key is not an atom, binary or integer")),
        }
    }
}

fn refused(tag: u8) -> &'static str {
    match tag {
        77 => "a bit string has no form in JSON",
        88 | 103 => "a process identifier has no form in JSON",
        89 | 102 | 120 => "a port has no form in JSON",
        90 | 101 | 114 => "a reference has no form in JSON",
        112 | 113 | 117 => "a function has no form in JSON",
        COMPRESSED => "compressed terms are not supported",
        99 => "floats as text (Erlang before R11) are not supported",
        _ => "no term begins with this byte",
    }
}

fn write(bytes: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), EtfError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(EtfError { at: bytes.len(), why: "it is nested more than 32 levels deep" });
    };
    match value {
        Value::Null => write_atom(bytes, "nil"),
        Value::Bool(true) => write_atom(bytes, "true"),
        Value::Bool(false) => write_atom(bytes, "false"),
        Value::Number(number) => write_number(bytes, number)?,
        Value::String(text) => write_binary(bytes, text)?,
        Value::Array(elements) => write_list(bytes, elements, depth)?,
        Value::Object(map) => {
            bytes.push(MAP);
            write_count(bytes, map.len())?;
            // The order of small maps in Erlang, also where `serde_json` has another.
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            for (key, value) in members {
                write_binary(bytes, key)?;
                write(bytes, value, depth)?;
            }
        }
    }
    Ok(())
}

fn write_atom(bytes: &mut Vec<u8>, name: &str) {
    bytes.push(SMALL_ATOM_UTF8);
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name.as_bytes());
}

fn write_number(bytes: &mut Vec<u8>, number: &Number) -> Result<(), EtfError> {
    let at = bytes.len();
    if let Some(byte) = number.as_u64().and_then(|number| u8::try_from(number).ok()) {
        bytes.extend([SMALL_INTEGER, byte]);
    } else if let Some(integer) = number.as_i64().and_then(|number| i32::try_from(number).ok()) {
        bytes.push(INTEGER);
        bytes.extend(integer.to_be_bytes());
    } else if let Some(integer) = number.as_u64() {
        write_big(bytes, false, integer);
    } else if let Some(integer) = number.as_i64() {
        write_big(bytes, true, integer.unsigned_abs());
    } else {
        let why = "a number is neither an integer of 64 bits nor a float";
        let float = number.as_f64().ok_or(EtfError { at, why })?;
        bytes.push(NEW_FLOAT);
        bytes.extend(float.to_be_bytes());
    }
    Ok(())
}

fn write_big(bytes: &mut Vec<u8>, negative: bool, magnitude: u64) {
    let digits = magnitude.to_le_bytes();
    let count = 8 - magnitude.leading_zeros() as usize / 8;
    bytes.extend([SMALL_BIG, count as u8, u8::from(negative)]);
    bytes.extend(digits.iter().take(count));
}

fn write_binary(bytes: &mut Vec<u8>, text: &str) -> Result<(), EtfError> {
    bytes.push(BINARY);
    write_count(bytes, text.len())?;
    bytes.extend_from_slice(text.as_bytes());
    Ok(())
}

fn write_list(bytes: &mut Vec<u8>, elements: &[Value], depth: usize) -> Result<(), EtfError> {
    if elements.is_empty() {
        bytes.push(NIL);
        return Ok(());
    }
    // Erlang writes a list of bytes as one string.
    let byte = |element: &Value| element.as_u64().and_then(|element| u8::try_from(element).ok());
    let string: Option<Vec<u8>> = elements.iter().map(byte).collect();
    if let (Some(string), Ok(count)) = (string, u16::try_from(elements.len())) {
        bytes.push(STRING);
        bytes.extend(count.to_be_bytes());
        bytes.extend(string);
        return Ok(());
    }
    bytes.push(LIST);
    write_count(bytes, elements.len())?;
    elements.iter().try_for_each(|element| write(bytes, element, depth))?;
    bytes.push(NIL);
    Ok(())
}

fn write_count(bytes: &mut Vec<u8>, count: usize) -> Result<(), EtfError> {
    let at = bytes.len();
    let count = u32::try_from(count).map_err(|_| EtfError { at, why: "longer than 4 GiB" })?;
    bytes.extend(count.to_be_bytes());
    Ok(())
}

const VERSION: u8 = 131;
const NEW_FLOAT: u8 = 70;
const COMPRESSED: u8 = 80;
const SMALL_INTEGER: u8 = 97;
const INTEGER: u8 = 98;
const ATOM: u8 = 100;
const SMALL_TUPLE: u8 = 104;
const LARGE_TUPLE: u8 = 105;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const SMALL_BIG: u8 = 110;
const LARGE_BIG: u8 = 111;
const SMALL_ATOM: u8 = 115;
const MAP: u8 = 116;
const ATOM_UTF8: u8 = 118;
const SMALL_ATOM_UTF8: u8 = 119;

#[cfg(test)]
mod tests;
