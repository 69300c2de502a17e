//! Data files of scenarios.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A row of a data file. Its bytes are sent as they are, in whatever encoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Row {
    /// UTF-8, which is short in JSON.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Row {
    /// The row's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Row {
    fn from(row: &[u8]) -> Self {
        match str::from_utf8(row) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(row.to_vec()),
        }
    }
}

impl From<String> for Row {
    fn from(row: String) -> Self {
        Self::Text(row)
    }
}

impl PartialEq<&str> for Row {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

/// The lines of a file, without empty ones at its end.
#[must_use]
pub fn rows_of(file: &[u8]) -> Vec<Row> {
    let mut rows: Vec<Row> = file.split(|byte| *byte == b'\n').map(Row::from).collect();
    while rows.last().is_some_and(|row| row.as_bytes().is_empty()) {
        rows.pop();
    }
    rows
}

/// The rows of the data file of a TOML scenario. An error says why it cannot be read, to be put
/// after the name of the key.
pub fn read_rows(base: &Path, path: &str) -> Result<Vec<Row>, String> {
    let whole = base.join(path);
    let file = std::fs::read(&whole)
        .map_err(|error| format!("cannot read {}: {error}", whole.display()))?;
    // Byte order marks and line ends of Windows belong to no row here; Tsung sends them.
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&file);
    let lines = file.trim_ascii_end().split(|byte| *byte == b'\n');
    let lines = lines.map(|line| Row::from(line.strip_suffix(b"\r").unwrap_or(line)));
    let rows: Vec<Row> = lines.filter(|_| !file.trim_ascii().is_empty()).collect();
    match rows.is_empty() {
        true => Err(format!("{} has no rows", whole.display())),
        false => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_rows_keep_their_bytes_unchanged() {
        let rows = rows_of(b"a;1\r\n\xe9\n\n \n\n");
        assert_eq!(rows[..1], ["a;1\r"]);
        assert_eq!(
            rows[1..],
            [Row::Bytes(b"\xe9".to_vec()), Row::from(&b""[..]), Row::from(&b" "[..])]
        );
        let text = serde_json::to_string(&rows).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Row>>(&text).unwrap(), rows);
    }
}
