//! Any bytes as a presence's meta, and as the members that an application adds to its key.
use serde_json::{Map, Value};
use simurgh_presence::{Extra, Meta, Owner, PhxRefs, Table};

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let meta = Meta::parse(data);
    let extra = Extra::parse(data);
    assert_eq!(meta.is_ok(), extra.is_ok(), "both are objects");
    let read = serde_json::from_slice::<Map<String, Value>>(data);
    let (Ok(meta), Ok(extra)) = (meta, extra) else {
        assert!(read.is_err(), "an object is a meta");
        return;
    };
    for text in [meta.as_str(), extra.as_str()] {
        assert!(text.len() <= data.len() && !has_blanks(text), "{text}");
    }
    assert_eq!(Meta::parse(meta.as_str()), Ok(meta.clone()), "read again it is the same");
    assert_eq!(Extra::parse(extra.as_str()), Ok(extra.clone()), "read again it is the same");
    // serde_json refuses larger numbers and deeper nesting.
    let Ok(read) = read else { return };
    let but = |names: &[&str]| {
        let kept = read.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>()
    };
    let same = |text: &str, kept: Map<String, Value>| {
        assert_eq!(serde_json::from_str::<Map<String, Value>>(text).unwrap(), kept);
    };
    same(meta.as_str(), but(&["phx_ref", "phx_ref_prev"]));
    same(extra.as_str(), but(&["metas"]));
    in_a_table(meta, extra, but(&["phx_ref", "phx_ref_prev"]), but(&["metas"]));
}

/// All members but refs and metas must be unchanged.
fn in_a_table(
    meta: Meta,
    extra: Extra,
    mut in_meta: Map<String, Value>,
    mut all: Map<String, Value>,
) {
    let mut refs = PhxRefs::new(Owner(1));
    let mut table: Table<u32> = Table::new(Owner(1), 1);
    let phx_ref = refs.next(1);
    assert_eq!(table.track(1, "__proto__", meta, phx_ref), Ok(()));
    assert!(table.enrich("__proto__", extra));
    let mut out = Vec::new();
    table.encode_state(&mut out);
    assert!(out.len() <= table.state_bytes(), "as long as it says");
    let state: Map<String, Value> = serde_json::from_slice(&out).unwrap();
    in_meta.insert("phx_ref".to_owned(), phx_ref.to_string().into());
    all.insert("metas".to_owned(), Value::Array(vec![in_meta.into()]));
    assert_eq!(state, Map::from_iter([("__proto__".to_owned(), Value::Object(all))]));
}

/// Whether there are any between tokens.
fn has_blanks(text: &str) -> bool {
    let (mut within, mut escaped) = (false, false);
    text.chars().any(|char| {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => within = !within,
            _ => {}
        }
        !within && char.is_whitespace()
    })
}
