//! Any bytes as a term of Erlang.
use simurgh_token::etf;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let value = match etf::decode(data) {
        Ok(value) => value,
        Err(error) => {
            assert!(error.at() <= data.len(), "{error}");
            return;
        }
    };
    // A decoded term can be encoded, unless integer keys of a map became texts.
    let bytes = etf::encode(&value).expect("it is no deeper than what was read");
    assert_eq!(etf::decode(&bytes).as_ref(), Ok(&value));
    // It is the same when it is encoded again, and not a term when it is cut.
    assert_eq!(etf::encode(&value).as_ref(), Ok(&bytes));
    for cut in 0..bytes.len().min(64) {
        assert!(etf::decode(&bytes[..cut]).is_err(), "{cut} of {} bytes", bytes.len());
    }
    // A float may come back as its neighbour: serde_json trades that for speed.
    let json = serde_json::to_string(&value).expect("it is JSON");
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
}
