//! Terms that Erlang does not write, and edge cases of those it does.

use super::*;
use serde_json::json;

fn why(bytes: &[u8]) -> String {
    decode(bytes).unwrap_err().to_string()
}

#[test]
fn announced_but_missing_data_allocates_nothing() {
    // Four thousand million elements, in six bytes.
    for tag in [LIST, LARGE_TUPLE, MAP, BINARY, LARGE_BIG] {
        let error = decode(&[VERSION, tag, 255, 255, 255, 255]).unwrap_err();
        assert!(error.to_string().ends_with("it is incomplete"), "{error}");
    }
    assert_eq!(why(&[]), "Erlang term, byte 0: it is incomplete");
    assert_eq!(why(&[130]), "Erlang term, byte 0: it does not begin with byte 131");
    assert_eq!(why(&[VERSION, NIL, NIL]), "Erlang term, byte 2: there are bytes after the term");
    assert_eq!(why(&[VERSION, 200]), "Erlang term, byte 1: no term begins with this byte");
}

#[test]
fn nesting_is_limited_in_both_directions() {
    let deep = |levels| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    let bytes = encode(&deep(DEPTH_MAX)).unwrap();
    assert_eq!(decode(&bytes).unwrap(), deep(DEPTH_MAX));
    assert!(encode(&deep(DEPTH_MAX + 1)).unwrap_err().to_string().contains("more than 32 levels"));
    let lists = [[LIST, 0, 0, 0, 1]; 5_000].concat();
    assert_eq!(
        why(&[&[VERSION], lists.as_slice()].concat()).split(": ").nth(1),
        Some("it is nested more than 32 levels deep")
    );
}

#[test]
fn integers_keep_their_value_or_are_refused() {
    let big = |sign, digits: &[u8]| {
        decode(&[&[VERSION, SMALL_BIG, digits.len() as u8, sign], digits].concat())
    };
    assert_eq!(big(0, &[1, 0, 0]), Ok(json!(1)));
    assert_eq!(big(1, &[]), Ok(json!(0)));
    assert_eq!(big(0, &[255; 8]), Ok(json!(u64::MAX)));
    assert_eq!(big(1, &[0, 0, 0, 0, 0, 0, 0, 128]), Ok(json!(i64::MIN)));
    assert!(big(1, &[1, 0, 0, 0, 0, 0, 0, 128]).is_err());
    // Leading zeros are legal and do not count.
    assert_eq!(big(0, &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(json!(7)));
    assert!(big(0, &[0, 0, 0, 0, 0, 0, 0, 0, 1]).is_err());
}

#[test]
fn floats_are_finite() {
    let float =
        |float: f64| decode(&[&[VERSION, NEW_FLOAT], float.to_be_bytes().as_slice()].concat());
    assert_eq!(float(-0.5), Ok(json!(-0.5)));
    assert!(float(f64::NAN).is_err() && float(f64::INFINITY).is_err());
}

#[test]
fn older_atoms_are_latin_1() {
    assert_eq!(decode(b"\x83d\x00\x02\xfcb"), Ok(json!("üb")));
    assert_eq!(decode(b"\x83s\x03nil"), Ok(json!(null)));
    assert!(why(b"\x83w\x02\xfcb").contains("not UTF-8"));
}
