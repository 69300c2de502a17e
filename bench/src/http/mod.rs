//! HTTP: `hello_page` beside nginx (`page`), and `simurgh load http` beside wrk (`http-load`), both
//! in turn. README.md says how each figure comes about.

pub(crate) mod load;
mod nginx;
pub(crate) mod page;
mod tools;
mod wrk;
