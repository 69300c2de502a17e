//! Parses templates: `{{name}}` is replaced, all other text stays. [`WORDS`] are the functions.

use crate::{Generated, Part, Scenario, Template, VarId};

pub(super) trait Names {
    /// The variable with this name, or an error message.
    fn var(&self, name: &str) -> Result<VarId, String>;
    fn file(&self, name: &str) -> Result<u16, String>;
}

pub(super) fn parse(text: &str, names: &dyn Names) -> Result<Template, String> {
    parse_within(text, names, 0)
}

fn parse_within(text: &str, names: &dyn Names, depth: u32) -> Result<Template, String> {
    let mut template = Template::default();
    let mut rest = text;
    while let Some(at) = rest.find("{{") {
        // Of three or more braces the last two open.
        let braces = rest[at..].bytes().take_while(|byte| *byte == b'{').count();
        let open = at + braces - 2;
        template.push_literal(&rest.as_bytes()[..open]);
        let (words, after) = words(&rest[open + 2..])?;
        template.push(part(&words, names, depth)?);
        rest = after;
    }
    template.push_literal(rest.as_bytes());
    Ok(template)
}

#[derive(Debug, PartialEq)]
enum Word {
    Bare(String),
    Quoted(String),
}

impl Word {
    fn text(&self) -> &str {
        match self {
            Self::Bare(text) | Self::Quoted(text) => text,
        }
    }
}

/// The words up to the closing braces, and the text after these.
fn words(text: &str) -> Result<(Vec<Word>, &str), String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix("}}") {
            return Ok((words, after));
        }
        let taken;
        if rest.starts_with('"') {
            let mut read = serde_json::Deserializer::from_str(rest).into_iter();
            let text = read.next().and_then(Result::ok);
            words.push(Word::Quoted(
                text.ok_or("a quote of JSON is not closed, or has a wrong \\")?,
            ));
            taken = read.byte_offset();
        } else {
            let end = |(at, char): &(usize, char)| {
                char.is_whitespace() || *char == '"' || rest[*at..].starts_with("}}")
            };
            taken = rest.char_indices().find(end).map_or(rest.len(), |(at, _)| at);
            if taken == rest.len() {
                return Err("{{ is not closed by }}; {{\"{{\"}} means two braces".to_owned());
            }
            words.push(Word::Bare(rest[..taken].to_owned()));
        }
        rest = rest[taken..].trim_start();
    }
}

const DEPTH_MAX: u32 = 8;

fn part(words: &[Word], names: &dyn Names, depth: u32) -> Result<Part, String> {
    let (first, rest) = words.split_first().ok_or("{{}} is empty")?;
    let verb = match first {
        Word::Quoted(text) if rest.is_empty() => {
            return Ok(Part::Literal(text.clone().into_bytes()));
        }
        Word::Quoted(_) => return Err("a quoted text must be alone in its braces".to_owned()),
        Word::Bare(verb) => verb.as_str(),
    };
    let value = match (verb, rest) {
        ("random_number", [first, last]) => match (number(first)?, number(last)?) {
            (first, last) if first <= last => Generated::RandomNumber(first, last),
            _ => return Err("random_number goes from the smaller to the larger number".to_owned()),
        },
        ("random_string", [length]) => Generated::RandomString(number(length)?),
        ("line", [file]) => Generated::NextLine(names.file(file.text())?),
        ("random_line", [file]) => Generated::RandomLine(names.file(file.text())?),
        ("md5" | "hmac_sha256", _) if depth == DEPTH_MAX => {
            return Err(format!("{verb} is nested too deep"));
        }
        ("md5", [Word::Quoted(text)]) => {
            Generated::Md5(Box::new(parse_within(text, names, depth + 1)?))
        }
        ("hmac_sha256", [Word::Quoted(key), Word::Quoted(text)]) => {
            let [key, text] = [key, text].map(|inner| parse_within(inner, names, depth + 1));
            Generated::HmacSha256(Box::new((key?, text?)))
        }
        ("bytes", [hex]) => return bytes(hex.text()).map(Part::Literal),
        ("var", [name]) => return Ok(Part::Var(names.var(name.text())?)),
        ("var", [name, element]) => {
            return Ok(Part::Element(names.var(name.text())?, number(element)?));
        }
        _ => match (reserved(verb), rest) {
            (Some((_, Some(value))), []) => value.clone(),
            (Some((usage, _)), _) => return Err(format!("{verb} is written {{{{{usage}}}}}")),
            (None, []) => return variable(verb, names),
            (None, _) => return Err(format!("{{{{{verb} …}}}} is not known")),
        },
    };
    Ok(Part::Value(value))
}

fn reserved(verb: &str) -> Option<&'static (&'static str, Option<Generated>)> {
    WORDS.iter().find(|(usage, _)| usage.split(' ').next() == Some(verb))
}

/// Reserved words with their use, and the value of those that stand alone.
pub(super) static WORDS: [(&str, Option<Generated>); 14] = [
    ("user_id", Some(Generated::UserId)),
    ("unique_id", Some(Generated::ReallyUniqueId)),
    ("stamp", Some(Generated::Stamp)),
    ("unix_time", Some(Generated::UnixTime)),
    ("target_host", Some(Generated::TargetHost)),
    ("target_port", Some(Generated::TargetPort)),
    ("random_number FIRST LAST", None),
    ("random_string LENGTH", None),
    ("line FILE", None),
    ("random_line FILE", None),
    ("md5 \"TEXT\"", None),
    ("hmac_sha256 \"KEY\" \"TEXT\"", None),
    ("bytes HEX", None),
    ("var NAME", None),
];

/// `name` or `name[2]`.
fn variable(text: &str, names: &dyn Names) -> Result<Part, String> {
    if let Some((name, index)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        let wrong = |_| format!("{text}: an element is written name[0]");
        return Ok(Part::Element(names.var(name)?, index.parse().map_err(wrong)?));
    }
    names.var(text).map(Part::Var)
}

fn number<T: std::str::FromStr>(word: &Word) -> Result<T, String> {
    word.text().parse().map_err(|_| format!("{:?} is not a number that fits here", word.text()))
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    let digit = |char: u8| char::from(char).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let bytes: Option<_> = hex.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| format!("{hex:?} is not made of pairs of hexadecimal digits"))
}

/// Prints a template, so that [`parse`] reads the same.
pub(crate) fn print(template: &Template, scenario: &Scenario) -> String {
    let mut out = String::new();
    for part in &template.parts {
        match part {
            Part::Literal(bytes) => literal(&mut out, bytes),
            Part::Var(var) => out.push_str(&format!("{{{{{}}}}}", name(*var, None, scenario))),
            Part::Element(var, index) => {
                out.push_str(&format!("{{{{{}}}}}", name(*var, Some(*index), scenario)));
            }
            Part::Value(value) => out.push_str(&format!("{{{{{}}}}}", generated(value, scenario))),
        }
    }
    out
}

fn literal(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.find("{{") {
            let end = at + rest[at..].bytes().take_while(|byte| *byte == b'{').count();
            out.push_str(&rest[..at]);
            out.push_str(&format!("{{{{\"{}\"}}}}", &rest[at..end]));
            rest = &rest[end..];
        }
        out.push_str(rest);
        if !chunk.invalid().is_empty() {
            let hex = chunk.invalid().iter().map(|byte| format!("{byte:02x}"));
            out.push_str(&format!("{{{{bytes {}}}}}", hex.collect::<String>()));
        }
    }
}

/// A variable as [`part`] parses it.
fn name(var: VarId, element: Option<u32>, scenario: &Scenario) -> String {
    let name = scenario.vars.get(usize::from(var.0)).map_or("", String::as_str);
    match element {
        None if is_plain(name) && reserved(name).is_none() => name.to_owned(),
        None => format!("var {}", quoted(name)),
        Some(element) if is_plain(name) => format!("{name}[{element}]"),
        Some(element) => format!("var {} {element}", quoted(name)),
    }
}

pub(super) fn is_plain(name: &str) -> bool {
    let plain = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.' | ':');
    !name.is_empty() && name.chars().all(plain)
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn generated(value: &Generated, scenario: &Scenario) -> String {
    let file = |index: u16| {
        let name = scenario.files.get(usize::from(index)).map_or("", |file| file.name.as_str());
        if is_plain(name) { name.to_owned() } else { quoted(name) }
    };
    match value {
        Generated::RandomNumber(first, last) => format!("random_number {first} {last}"),
        Generated::RandomString(length) => format!("random_string {length}"),
        Generated::NextLine(index) => format!("line {}", file(*index)),
        Generated::RandomLine(index) => format!("random_line {}", file(*index)),
        Generated::Md5(template) => format!("md5 {}", quoted(&print(template, scenario))),
        Generated::HmacSha256(both) => {
            let [key, text] = [&both.0, &both.1].map(|inner| quoted(&print(inner, scenario)));
            format!("hmac_sha256 {key} {text}")
        }
        alone => {
            let word = WORDS.iter().find(|(_, it)| it.as_ref() == Some(alone));
            word.map_or_else(String::new, |(word, _)| (*word).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl Names for Two {
        fn var(&self, name: &str) -> Result<VarId, String> {
            let names = ["room", "stamp", "a \"b\"[1]"];
            let at = names.iter().position(|known| *known == name);
            at.map(|at| VarId(at as u16)).ok_or_else(|| format!("{name} is never set"))
        }

        fn file(&self, name: &str) -> Result<u16, String> {
            if name == "users" { Ok(0) } else { Err(format!("no file {name}")) }
        }
    }

    fn lit(text: &str) -> Part {
        Part::Literal(text.as_bytes().to_vec())
    }

    #[test]
    fn template_replaces_text_in_braces_and_leaves_the_rest() {
        use Part::{Element, Value, Var};
        for (text, parts) in [
            ("", vec![]),
            (r#"{"a":{"b":{}}}"#, vec![lit(r#"{"a":{"b":{}}}"#)]),
            (r#"{"n":{{room}}}"#, vec![lit("{\"n\":"), Var(VarId(0)), lit("}")]),
            ("{{{room}}}", vec![lit("{"), Var(VarId(0)), lit("}")]),
            ("{{ room[3] }}", vec![Element(VarId(0), 3)]),
            ("{{stamp}}{{var stamp}}", vec![Value(Generated::Stamp), Var(VarId(1))]),
            (r#"{{var "a \"b\"[1]" 2}}"#, vec![Element(VarId(2), 2)]),
            (r#"a{{"{{"}}b"#, vec![lit("a{{b")]),
            ("a{{bytes 6263}}d", vec![lit("abcd")]),
            ("{{random_number -1 6}}", vec![Value(Generated::RandomNumber(-1, 6))]),
            ("{{line users}}", vec![Value(Generated::NextLine(0))]),
            (
                r#"{{md5 "x{{room}}"}}"#,
                vec![Value(Generated::Md5(Box::new(Template {
                    parts: vec![lit("x"), Var(VarId(0))],
                })))],
            ),
        ] {
            assert_eq!(parse(text, &Two), Ok(Template { parts }), "{text}");
        }
    }

    #[test]
    fn template_errors_name_the_mistake() {
        for (text, word) in [
            ("{{room", "not closed"),
            ("{{}}", "empty"),
            ("{{rom}}", "rom is never set"),
            ("{{random_number 6 1}}", "smaller"),
            ("{{random_number 6}}", "random_number FIRST LAST"),
            ("{{random_string x}}", "\"x\" is not a number"),
            ("{{line user}}", "no file user"),
            ("{{room[x]}}", "name[0]"),
            ("{{bytes 0g}}", "hexadecimal"),
            ("{{what 1 2}}", "not known"),
            ("{{\"a", "not closed"),
            ("{{\"a\" room}}", "alone"),
        ] {
            let error = parse(text, &Two).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
