//! conformance
fn main() {}
