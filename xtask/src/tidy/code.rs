//! The paths that a file names, without its tests, comments, strings and attributes. They are read
//! from tokens, because `syn`'s tree does not parse the inside of a macro call.

use std::iter;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use super::File;

/// All that the rules need from a file.
#[derive(Default)]
pub(super) struct Code {
    pub(super) paths: Vec<Path>,
}

/// One path as written; each leaf of a `use` is one, and so is a single name.
pub(super) struct Path {
    pub(super) segments: Vec<String>,
    pub(super) line: usize,
    /// The number of modules within the file around it.
    pub(super) inline: usize,
    /// For a leaf of a `use`: the name it gets here.
    pub(super) import: Option<String>,
}

impl Path {
    /// The path from the root of the crate, seen from module `own` (`a/b`; the root is empty);
    /// `None` outside of the crate, or if only rustc can resolve it.
    pub(super) fn resolved<'p>(
        &'p self,
        own: &'p str,
        is_module: impl Fn(&str) -> bool,
    ) -> Option<Vec<&'p str>> {
        let own = own.split('/').filter(|part| !part.is_empty());
        let mut at: Vec<&str> = own.chain(iter::repeat_n("{", self.inline)).collect();
        let mut rest = self.segments.iter().map(String::as_str).peekable();
        match *rest.peek()? {
            "crate" => {
                rest.next();
                at.clear();
            }
            "self" | "super" => {
                while let Some(step) = rest.next_if(|word| matches!(*word, "self" | "super")) {
                    if step == "super" {
                        at.pop()?;
                    }
                }
            }
            child => {
                at.push(child);
                if !is_module(&at.join("/")) {
                    return None;
                }
                rest.next();
            }
        }
        at.extend(rest);
        Some(at)
    }
}

/// First words of items; an item ends with `;` or a block, all else with `,` too.
const OPENS_ITEM: &[&str] = &[
    "async", "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait",
    "type", "union", "unsafe", "use",
];

pub(super) fn read(file: &File) -> Result<Code, String> {
    let stream: TokenStream =
        file.text.parse().map_err(|error| format!("{}: {error}", file.path))?;
    let mut tokens = Vec::new();
    flatten(stream, 0, &mut tokens);
    let mut reader = Reader { tokens, at: 0, code: Code::default() };
    reader.read();
    Ok(reader.code)
}

struct Token {
    kind: Kind,
    line: usize,
    inline: usize,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Word(String),
    /// `::`
    Path,
    Mark(char),
    Open(Delimiter),
    Close,
    Literal,
}

/// Collects the tokens in a row, without tests and attributes.
fn flatten(stream: TokenStream, inline: usize, tokens: &mut Vec<Token>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut rest = &trees[..];
    while let [first, after @ ..] = rest {
        if let Some(after) = behind_no_code(rest) {
            rest = after;
            continue;
        }
        let line = first.span().start().line;
        let token = |kind| Token { kind, line, inline };
        rest = match (first, after) {
            (TokenTree::Punct(one), [TokenTree::Punct(two), after @ ..])
                if (one.as_char(), one.spacing(), two.as_char()) == (':', Spacing::Joint, ':') =>
            {
                tokens.push(token(Kind::Path));
                after
            }
            (
                TokenTree::Ident(word),
                [TokenTree::Ident(_), TokenTree::Group(group), after @ ..],
            ) if word == "mod" && group.delimiter() == Delimiter::Brace => {
                flatten(group.stream(), inline + 1, tokens);
                after
            }
            (TokenTree::Group(group), _) => {
                tokens.push(token(Kind::Open(group.delimiter())));
                flatten(group.stream(), inline, tokens);
                tokens.push(token(Kind::Close));
                after
            }
            (TokenTree::Ident(word), _) => {
                tokens.push(token(Kind::Word(word.to_string())));
                after
            }
            (TokenTree::Punct(mark), _) => {
                tokens.push(token(Kind::Mark(mark.as_char())));
                after
            }
            (TokenTree::Literal(_), _) => {
                tokens.push(token(Kind::Literal));
                after
            }
        };
    }
}

/// The rest after an attribute (with the item, when that is for tests), a lifetime, or a
/// visibility, which names a module without using it; `None` when `trees` begin with code.
fn behind_no_code(trees: &[TokenTree]) -> Option<&[TokenTree]> {
    match trees {
        [TokenTree::Punct(mark), TokenTree::Punct(inner), TokenTree::Group(group), after @ ..]
            if (mark.as_char(), inner.as_char()) == ('#', '!') && is_bracket(group) =>
        {
            Some(after)
        }
        [TokenTree::Punct(mark), TokenTree::Group(group), after @ ..]
            if mark.as_char() == '#' && is_bracket(group) =>
        {
            Some(if is_for_tests(group) { behind_item(after) } else { after })
        }
        [TokenTree::Punct(tick), TokenTree::Ident(_), after @ ..] if tick.as_char() == '\'' => {
            Some(after)
        }
        [TokenTree::Ident(word), TokenTree::Group(group), after @ ..]
            if word == "pub" && is_visibility(group) =>
        {
            Some(after)
        }
        _ => None,
    }
}

fn is_bracket(group: &Group) -> bool {
    group.delimiter() == Delimiter::Bracket
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|one| one == word)
}

fn is_for_tests(group: &Group) -> bool {
    let words = group.stream().to_string();
    words == "test"
        || (words.starts_with("cfg") && has_word(&words, "test") && !has_word(&words, "not"))
}

/// Whether `(…)` after `pub` is a visibility, and not the type of a field.
fn is_visibility(group: &Group) -> bool {
    let words: Vec<String> = group.stream().into_iter().map(|tree| tree.to_string()).collect();
    let first = words.first().map(String::as_str);
    group.delimiter() == Delimiter::Parenthesis
        && (first == Some("in")
            || (words.len() == 1 && matches!(first, Some("crate" | "self" | "super"))))
}

/// The rest after the item (or field, arm, statement) that begins with `trees`.
fn behind_item(mut trees: &[TokenTree]) -> &[TokenTree] {
    let mut is_item = None;
    while let [first, after @ ..] = trees {
        trees = after;
        match first {
            TokenTree::Ident(word) if word != "pub" => {
                is_item.get_or_insert_with(|| OPENS_ITEM.contains(&word.to_string().as_str()));
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            TokenTree::Punct(mark) if mark.as_char() == ';' => break,
            TokenTree::Punct(mark) if mark.as_char() == ',' && is_item != Some(true) => break,
            _ => {}
        }
    }
    trees
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    code: Code,
}

impl Reader {
    fn read(&mut self) {
        while self.at < self.tokens.len() {
            match self.word(self.at) {
                None => self.at += 1,
                // `use<'a>` is part of a type.
                Some("use") if !self.is(self.at + 1, &Kind::Mark('<')) => self.import(),
                // The name of an item or a variable is no path.
                Some("fn" | "let" | "mut") => self.at += 1,
                Some(_) => self.path(),
            }
        }
    }

    fn import(&mut self) {
        self.at += 1;
        if self.is(self.at, &Kind::Path) {
            self.at += 1;
        }
        self.tree(&[]);
    }

    /// One branch of a `use`, with its subtree.
    fn tree(&mut self, trunk: &[String]) {
        let mut segments = trunk.to_vec();
        while let Some(token) = self.tokens.get(self.at) {
            match &token.kind {
                Kind::Word(word) if word == "as" => break,
                Kind::Word(word) => segments.push(word.clone()),
                Kind::Mark('*') => segments.push("*".into()),
                Kind::Open(_) => {
                    self.at += 1;
                    while self.at < self.tokens.len() && !self.is(self.at, &Kind::Close) {
                        if self.is(self.at, &Kind::Mark(',')) {
                            self.at += 1;
                        } else {
                            self.tree(&segments);
                        }
                    }
                    self.at += 1;
                    return;
                }
                _ => break,
            }
            self.at += 1;
            if self.is(self.at, &Kind::Path) {
                self.at += 1;
            } else {
                break;
            }
        }
        self.leaf(trunk.len(), segments);
    }

    fn leaf(&mut self, trunk: usize, mut segments: Vec<String>) {
        let (line, inline) = self.here(self.at.saturating_sub(1));
        // Without a name here, continue anyway.
        if segments.len() == trunk {
            self.at += 1;
            return;
        }
        // `{self}` is the trunk itself.
        if trunk > 0 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let mut name = segments.last().cloned();
        if self.word(self.at) == Some("as") {
            name = self.word(self.at + 1).map(str::to_owned);
            self.at += 2;
        }
        let import = Some(name.unwrap_or_default());
        self.code.paths.push(Path { segments, line, inline, import });
    }

    fn path(&mut self) {
        let start = self.at;
        let (line, inline) = self.here(start);
        let mut segments = Vec::new();
        while let Some(word) = self.word(self.at).map(str::to_owned) {
            segments.push(word);
            self.at += 1;
            if !self.is(self.at, &Kind::Path) || self.word(self.at + 1).is_none() {
                break;
            }
            self.at += 1;
        }
        self.code.paths.push(Path { segments, line, inline, import: None });
    }

    fn word(&self, at: usize) -> Option<&str> {
        match &self.tokens.get(at)?.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    fn is(&self, at: usize, kind: &Kind) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == *kind)
    }

    /// The line, and the modules within the file.
    fn here(&self, at: usize) -> (usize, usize) {
        self.tokens.get(at).map_or((1, 0), |token| (token.line, token.inline))
    }
}
