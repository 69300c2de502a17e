//! plain_chat
fn main() {}
