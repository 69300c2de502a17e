//! The encoding of keys with their metas, in states and diffs alike.
use alloc::vec::Vec;

use simurgh_proto::serializer::json;

use crate::meta::{Extra, Meta};
use crate::phx_ref::PhxRef;

/// `{`, the output of `write` for each item with commas between them, `}`.
pub(crate) fn keys<T>(
    out: &mut Vec<u8>,
    all: impl IntoIterator<Item = T>,
    mut write: impl FnMut(T, &mut Vec<u8>),
) {
    out.push(b'{');
    for (n, one) in all.into_iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write(one, out);
    }
    out.push(b'}');
}

/// `"key":{"metas":[…],…extra}`
pub(crate) fn key<'a>(
    key: &str,
    metas: impl Iterator<Item = (&'a Meta, PhxRef, Option<PhxRef>)>,
    extra: Option<&Extra>,
    out: &mut Vec<u8>,
) {
    json::escape_into(out, key);
    out.extend_from_slice(b":{\"metas\":[");
    for (n, (meta, phx_ref, prev)) in metas.enumerate() {
        if n > 0 {
            out.push(b',');
        }
        meta.encode(phx_ref, prev, out);
    }
    out.push(b']');
    if let Some(members) = extra.map(Extra::members).filter(|members| !members.is_empty()) {
        out.push(b',');
        out.extend_from_slice(members.as_bytes());
    }
    out.push(b'}');
}

/// Bytes that [`key`] appends besides those of the metas, with a comma; escapes not counted.
pub(crate) fn key_bytes(key: &str, extra: Option<&Extra>) -> usize {
    key.len() + 16 + extra.map_or(0, |extra| extra.members().len() + 1)
}
