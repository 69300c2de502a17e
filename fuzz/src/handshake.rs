//! Any bytes as the head of a request and of a response.
//!
//! The first byte chooses the limits. A verdict must not change when more bytes follow, and the
//! client must accept the answer to an accepted request.
use simurgh_proto::ws::handshake::{
    HeadLimits, Request, accept_deflate, check_response, check_upgrade, negotiate, write_accept,
    write_refusal,
};

/// The most cuts of one input that are tried.
const CUTS_MAX: usize = 64;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [choice, bytes @ ..] = data else { return };
    let limits = match choice % 3 {
        0 => HeadLimits::default(),
        1 => HeadLimits { bytes_max: 200, headers_max: 4, target_bytes_max: 60 },
        _ => HeadLimits { bytes_max: 0, headers_max: 0, target_bytes_max: 0 },
    };
    verdicts_last(bytes, |bytes| match Request::parse(bytes, &limits) {
        Ok(parsed) => parsed.map(|(request, head_bytes)| {
            assert!(head_bytes <= bytes.len().min(limits.bytes_max));
            Ok((head_bytes, request.target.to_owned()))
        }),
        Err(error) => Some(Err(error)),
    });
    verdicts_last(bytes, |bytes| match check_response(bytes, "", &["phoenix"], true) {
        Ok(parsed) => parsed.map(|(response, head_bytes)| {
            assert!(head_bytes <= bytes.len());
            Ok((head_bytes, response.status))
        }),
        Err(error) => Some(Err(error)),
    });
    if let Ok(Some((request, _))) = Request::parse(bytes, &limits) {
        let framing = request.framing();
        assert!(framing.is_ok() || framing.is_err_and(|error| error.status() >= 400));
        answer(&request);
    }
}

fn verdicts_last<T: PartialEq + std::fmt::Debug>(bytes: &[u8], judge: impl Fn(&[u8]) -> Option<T>) {
    let mut verdict = None;
    let step = bytes.len() / CUTS_MAX + 1;
    for cut in (0..bytes.len()).step_by(step).chain([bytes.len()]) {
        let next = judge(&bytes[..cut]);
        assert!(verdict.is_none() || next == verdict, "{verdict:?} became {next:?} at {cut}");
        verdict = next;
    }
}

fn answer(request: &Request<'_>) {
    let (path, query) = (request.path(), request.query());
    assert!(!path.is_empty() && !path.contains('?'));
    assert!(request.target.contains(query));
    let named = request.headers().all(|(name, _)| request.header(name).is_some());
    assert!(named, "every header is found by its name");
    let mut out = Vec::new();
    let Ok(upgrade) = check_upgrade(request) else {
        write_refusal(400, &[("x-path", path)], query, &mut out);
        let refused = check_response(&out, "", &[], false).expect("well-formed").expect("whole");
        assert_eq!((refused.0.status, refused.1 + query.len()), (400, out.len()));
        return;
    };
    for auth_token in [false, true] {
        let Ok(negotiated) = negotiate(request, &["phoenix", "other"], auth_token) else {
            continue;
        };
        out.clear();
        let deflate = accept_deflate(request);
        write_accept(&upgrade, negotiated.subprotocol, deflate, &mut out);
        let opened = check_response(&out, upgrade.key, &["phoenix", "other"], true);
        let (response, head_bytes) = opened.expect("accepted").expect("whole");
        assert_eq!((response.status, head_bytes), (101, out.len()));
        assert_eq!(response.subprotocol, negotiated.subprotocol);
        assert_eq!(response.deflate, deflate.is_some());
    }
}
