//! Any two lines as an allow-list entry and an Origin header.
use simurgh_proto::origin::{CheckOrigin, OriginPattern, OwnOrigin};

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (entry, origin) = text.split_once('\n').unwrap_or((&text, &text));
    let own = OwnOrigin { scheme: "https", host: "h.com", port: 443 };
    assert!(CheckOrigin::Off.allows(Some(origin), own));
    assert!(CheckOrigin::Conn.allows(None, own));
    assert!(!CheckOrigin::Local.allows(Some("null"), own));
    if CheckOrigin::Conn.allows(Some(origin), own) {
        assert!(CheckOrigin::Local.allows(Some(origin), own), "{origin} is the host's own");
        let origin = origin.to_ascii_lowercase();
        assert!(origin.starts_with("https://") && origin.contains("h.com"), "{origin}");
    }
    if let Ok(pattern) = OriginPattern::parse(entry) {
        let check = CheckOrigin::List([pattern].into());
        assert!(check.allows(None, own));
        assert!(!check.allows(Some("null"), own) && !check.allows(Some(""), own));
        // An entry without wildcard is an origin itself, and allows that one; an address of version
        // 6 allows the one way that browsers write it in.
        let is_other = entry.contains(['*', '[']);
        assert!(is_other || check.allows(Some(entry), own), "{entry} allows itself");
        if check.allows(Some(origin), own) {
            assert!(origin.contains("//"), "{origin} has a host");
        }
    }
    // A page of the same authority may open a socket there.
    if let Some(own) = OwnOrigin::from_host_header("http", origin)
        && !origin.contains(['/', '?', '#', '@'])
    {
        let page = format!("http://{origin}");
        assert!(CheckOrigin::Conn.allows(Some(&page), own), "{page} for {own:?}");
    }
}
