//! Texts that may be templates.

use crate::{Part, Template};

/// Puts a user's values into a template and appends the result.
pub type Expand<'a> = dyn FnMut(&Template, &mut Vec<u8>) + 'a;

/// A text, or a template that is rendered for each user.
#[derive(Clone, Debug)]
pub(super) enum Expandable {
    Constant(Box<[u8]>),
    Template(Template),
}

impl Expandable {
    pub(super) fn new(template: &Template) -> Self {
        let mut bytes = Vec::new();
        for part in &template.parts {
            match part {
                Part::Literal(literal) => bytes.extend_from_slice(literal),
                _ => return Self::Template(template.clone()),
            }
        }
        Self::Constant(bytes.into())
    }

    pub(super) fn constant(&self) -> Option<&[u8]> {
        match self {
            Self::Constant(bytes) => Some(bytes),
            Self::Template(_) => None,
        }
    }

    pub(super) fn with<R>(&self, expand: &mut Expand<'_>, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Constant(bytes) => f(bytes),
            Self::Template(template) => {
                let mut bytes = Vec::new();
                expand(template, &mut bytes);
                f(&bytes)
            }
        }
    }
}
