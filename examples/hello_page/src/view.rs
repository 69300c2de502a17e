//! What the templates show.

use askama::Template;

/// What every page has: its head, its navigation, its flash message, its footer.
pub(crate) struct Page<'a> {
    pub(crate) title: &'a str,
    pub(crate) path: &'a str,
    pub(crate) csrf_token: String,
    pub(crate) flash: Option<&'a str>,
    pub(crate) links: &'a [Link],
    pub(crate) version: &'static str,
}

/// A link of the navigation.
pub(crate) struct Link {
    pub(crate) href: &'static str,
    pub(crate) text: &'static str,
}

/// A way on from here.
pub(crate) struct Guide {
    pub(crate) href: &'static str,
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
}

/// The page at `/`.
#[derive(Template)]
#[template(path = "index.html")]
pub(crate) struct Index<'a> {
    pub(crate) page: Page<'a>,
    pub(crate) guides: &'a [Guide],
}
