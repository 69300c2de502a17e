//! Any bytes as a record of the log of notices, and as a report to a coordinator.
//!
//! What is read must be written as so many bytes, which read the same. A report has one encoding;
//! so has a record, except that a dead letter has the number of its notice twice.
use simurgh_notices::{Entry, Record, Report};

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    if let Ok(report) = Report::decode(data) {
        assert_eq!(report.encode(), data);
        assert!(report.changes.iter().all(|change| change.key.partition() == report.partition));
    }
    let Ok(entry) = Entry::decode(data) else { return };
    let mut bytes = Vec::new();
    entry.encode(&mut bytes);
    assert_eq!(bytes.len(), data.len());
    if !matches!(entry.record, Record::Dead { .. }) {
        assert_eq!(bytes, data);
    }
    assert_eq!(Entry::decode(&bytes), Ok(entry));
}
