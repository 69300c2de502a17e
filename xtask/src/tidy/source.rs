//! Rules on Rust sources, read with `syn`: budgets of files and functions, the comment at the top
//! of a module, no explicit panics, `unsafe` only in the reactor and with an explanation.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Meta, Signature};

use super::{File, Finding};

/// Lines of a crate, without its tests.
const CRATE_LINES_MAX: usize = 12_000;

/// Lines of a file, without its inline test module.
const FILE_LINES_MAX: usize = 600;

/// Crates with a lower budget: their rooms are to be read in one sitting (see rooms.rs).
pub(super) const CHANNEL: &str = "crates/core/simurgh-channel/src/";
pub(super) const CORE: &str = "crates/core/simurgh-core/src/";
const CORE_FILE_LINES_MAX: usize = 400;

/// Lines of a function, signature and closing brace included.
const FN_LINES_MAX: usize = 70;

/// The only crate with `unsafe`.
const UNSAFE_HOME: &str = "crates/ground/simurgh-reactor/";

const PANICS: &[&str] = &["panic", "todo", "unimplemented"];
const PANIC_LINTS: &[&str] = &["unwrap_used", "expect_used", "panic"];

pub(super) fn check(parsed: &Parsed<'_>, tests: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, tree) in parsed {
        let mut scan = Scan {
            file,
            lines: file.text.lines().collect(),
            test: is_test(&file.path, tests),
            excused: false,
            findings: Vec::new(),
        };
        scan.visit_file(tree);
        scan.whole_file(product_lines(file, tree));
        findings.append(&mut scan.findings);
    }
    findings.extend(crates(parsed, tests).into_iter().filter_map(|(home, lines)| {
        let text = format!("{lines} lines without tests, at most {CRATE_LINES_MAX}");
        let manifest = File { path: format!("{home}/Cargo.toml"), text: String::new() };
        let found = manifest.finding("crate-lines", 1, text);
        (lines > CRATE_LINES_MAX).then_some(Finding { amount: lines, ..found })
    }));
    findings
}

pub(super) fn crates(parsed: &Parsed<'_>, tests: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let mut crates = BTreeMap::new();
    for (file, tree) in parsed {
        if let Some((home, _)) = file.path.split_once("/src/")
            && !is_test(&file.path, tests)
        {
            *crates.entry(home.to_owned()).or_default() += product_lines(file, tree);
        }
    }
    crates
}

fn product_lines(file: &File, tree: &syn::File) -> usize {
    let test_lines = tree.items.iter().map(|item| match item {
        syn::Item::Mod(module) if module.content.is_some() && for_tests(&module.attrs) => {
            let span = module.span();
            span.end().line - span.start().line + 1
        }
        _ => 0,
    });
    file.text.lines().count() - test_lines.sum::<usize>()
}

pub(super) type Parsed<'a> = Vec<(&'a File, syn::File)>;

/// All Rust sources, and the stems of those that have only tests.
pub(super) fn parse_all(files: &[File]) -> Result<(Parsed<'_>, BTreeSet<String>), String> {
    let sources = files.iter().filter(|file| file.has_extension(&["rs"]));
    let parsed = sources
        .map(|file| match syn::parse_file(&file.text) {
            Ok(tree) => Ok((file, tree)),
            Err(error) => Err(format!("{}: {error}", file.path)),
        })
        .collect::<Result<Parsed<'_>, _>>()?;
    let tests = parsed.iter().flat_map(|(file, tree)| test_modules(file, tree)).collect();
    Ok((parsed, tests))
}

/// Stems of the files that `#[cfg(test)] mod name;` declares (`src/a` for `src/a.rs` and `src/a/`).
fn test_modules(file: &File, tree: &syn::File) -> Vec<String> {
    let stem = file.path.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let home = if matches!(name, "mod" | "lib" | "main") { folder } else { stem };
    let declared = tree.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && for_tests(&module.attrs) => {
            Some(format!("{home}/{}", module.ident))
        }
        _ => None,
    });
    declared.collect()
}

/// Whether a file has only tests, or only runs beside the product.
pub(super) fn is_test(path: &str, modules: &BTreeSet<String>) -> bool {
    let folders = ["/tests/", "/benches/", "/examples/"];
    let declared = modules.iter().any(|stem| {
        path.strip_prefix(stem.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    });
    declared || path.ends_with("/tests.rs") || folders.iter().any(|folder| path.contains(folder))
}

pub(super) fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let words: Vec<String> = idents(list.tokens.clone());
            words.iter().any(|word| word == "test") && !words.iter().any(|word| word == "not")
        }
        _ => false,
    })
}

/// Whether an attribute allows a clippy panic lint here, with a reason.
fn excuses(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("allow") || list.path.is_ident("expect") => {
            let words = idents(list.tokens.clone());
            words.iter().any(|word| PANIC_LINTS.contains(&word.as_str()))
                && words.iter().any(|word| word == "reason")
        }
        _ => false,
    })
}

fn idents(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(ident) => vec![ident.to_string()],
            TokenTree::Group(group) => idents(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
        })
        .collect()
}

struct Scan<'a> {
    file: &'a File,
    lines: Vec<&'a str>,
    /// Inside tests, where panics are permitted.
    test: bool,
    /// Inside an item whose panics are allowed with a reason.
    excused: bool,
    findings: Vec<Finding>,
}

impl Scan<'_> {
    fn found(&mut self, rule: &'static str, span: Span, text: impl Into<String>) {
        let found = self.file.finding(rule, span.start().line, text);
        self.findings.push(found);
    }

    /// Rules on the file as a whole, which has this many lines without tests.
    fn whole_file(&mut self, lines: usize) {
        let core =
            [CHANNEL, CORE].iter().any(|home| self.file.path.starts_with(home)) && !self.test;
        let max = if core { CORE_FILE_LINES_MAX } else { FILE_LINES_MAX };
        if lines > max {
            let text = format!("{lines} lines without tests, at most {max}");
            let found = self.file.finding("file-lines", 1, text);
            self.findings.push(Finding { amount: lines, ..found });
        }
        let mut code = self.lines.iter().map(|line| line.trim());
        let first = code.find(|line| !line.is_empty() && !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            let text = "opens without a `//!` comment that says what it is";
            self.findings.push(self.file.finding("module-top", 1, text));
        }
    }

    /// Walks an item with the effects of its attributes.
    fn within(&mut self, attributes: &[Attribute], walk: impl FnOnce(&mut Self)) {
        let (test, excused) = (self.test, self.excused);
        self.test |= for_tests(attributes);
        self.excused |= excuses(attributes);
        walk(self);
        (self.test, self.excused) = (test, excused);
    }

    fn function(&mut self, signature: &Signature, body: &Block) {
        let first = signature.span().start().line;
        let lines = body.span().end().line - first + 1;
        if lines > FN_LINES_MAX {
            let subject = signature.ident.to_string();
            let text = format!("fn {subject} has {lines} lines, at most {FN_LINES_MAX}");
            let found = self.file.finding("fn-lines", first, text);
            self.findings.push(Finding { amount: lines, subject, ..found });
        }
    }

    fn panics(&mut self, span: Span, what: &str) {
        let product = self.file.path.starts_with("crates/");
        if product && !self.test && !self.excused {
            self.found("panic", span, format!("`{what}` outside tests"));
        }
    }

    /// `unsafe` at `span`; `documented` says that its doc comment has a `# Safety` section.
    fn unsafety(&mut self, span: Span, documented: bool) {
        if !self.file.path.starts_with(UNSAFE_HOME) {
            self.found("unsafe-home", span, format!("`unsafe` outside {UNSAFE_HOME}"));
        } else if !documented && !self.has_safety_comment(span.start().line) {
            self.found("safety-comment", span, "`unsafe` without a `// SAFETY:` comment");
        }
    }

    /// Searches the line itself and upwards: comments, attributes, the beginning of the statement.
    fn has_safety_comment(&self, line: usize) -> bool {
        let own = self.lines.get(line - 1).is_some_and(|own| own.contains("SAFETY:"));
        let above = self.lines.iter().take(line - 1).rev().map(|line| line.trim());
        let mut reach = above.take_while(|line| {
            line.starts_with("//") || !(line.is_empty() || line.ends_with([';', '{', '}']))
        });
        own || reach.any(|line| line.starts_with("//") && line.contains("SAFETY:"))
    }

    /// `syn` does not parse macros: their tokens are searched for `.unwrap(` and `.expect(`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut after_dot = false;
        for token in tokens {
            match &token {
                TokenTree::Ident(ident)
                    if after_dot && (ident == "unwrap" || ident == "expect") =>
                {
                    self.panics(ident.span(), &ident.to_string());
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                _ => {}
            }
            after_dot = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '.');
        }
    }
}

fn has_safety_section(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).any(|attribute| {
        let Meta::NameValue(doc) = &attribute.meta else { return false };
        matches!(&doc.value, syn::Expr::Lit(literal)
            if matches!(&literal.lit, syn::Lit::Str(text) if text.value().contains("# Safety")))
    })
}

/// `.expect("…")` of an Option or a Result, as opposed to a parser's own `expect`.
fn is_message(call: &syn::ExprMethodCall) -> bool {
    matches!(call.args.first(), Some(syn::Expr::Lit(literal))
        if matches!(literal.lit, syn::Lit::Str(_)))
}

impl<'ast> Visit<'ast> for Scan<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.within(&module.attrs, |scan| visit::visit_item_mod(scan, module));
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
        if let Some(token) = function.sig.unsafety {
            self.unsafety(token.span, has_safety_section(&function.attrs));
        }
        self.within(&function.attrs, |scan| visit::visit_item_fn(scan, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig, &function.block);
        if let Some(token) = function.sig.unsafety {
            self.unsafety(token.span, has_safety_section(&function.attrs));
        }
        self.within(&function.attrs, |scan| visit::visit_impl_item_fn(scan, function));
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.function(&function.sig, body);
        }
        self.within(&function.attrs, |scan| visit::visit_trait_item_fn(scan, function));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = item.unsafety {
            self.unsafety(token.span, false);
        }
        self.within(&item.attrs, |scan| visit::visit_item_impl(scan, item));
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        if let Some(token) = item.unsafety {
            self.unsafety(token.span, false);
        }
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.within(&item.attrs, |scan| visit::visit_item_const(scan, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.within(&item.attrs, |scan| visit::visit_item_static(scan, item));
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        self.within(&local.attrs, |scan| visit::visit_local(scan, local));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.within(&arm.attrs, |scan| visit::visit_arm(scan, arm));
    }

    fn visit_stmt_macro(&mut self, call: &'ast syn::StmtMacro) {
        self.within(&call.attrs, |scan| visit::visit_stmt_macro(scan, call));
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.unsafety(block.unsafe_token.span, false);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let unwraps = call.method == "unwrap" && call.args.is_empty();
        if unwraps || (call.method == "expect" && is_message(call)) {
            self.panics(call.method.span(), &call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last()
            && PANICS.contains(&last.ident.to_string().as_str())
        {
            self.panics(last.ident.span(), &format!("{}!", last.ident));
        }
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests;
