//! A presence table, using only its published crate.

use std::error::Error;

use simurgh_presence::{Meta, Owner, PhxRefs, Table};

#[test]
fn presence_table_encodes_its_members() -> Result<(), Box<dyn Error>> {
    let mut refs = PhxRefs::new(Owner(1));
    let mut table: Table<u8> = Table::alone(Owner(1), 1);
    table.track(1, "zoë", Meta::parse("{}")?, refs.next(42))?;
    let diff = table.take_diff().ok_or("no diff")?;
    assert_eq!((diff.joins.len(), diff.leaves.len()), (1, 0));
    let mut out = Vec::new();
    table.encode_state(&mut out);
    assert_eq!(out, r#"{"zoë":{"metas":[{"phx_ref":"AAAAAAAqAAABAAAA"}]}}"#.as_bytes());
    Ok(())
}
