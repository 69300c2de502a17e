//! Bytes of reports and records: little endian, each length before the bytes.

use simurgh_data::prelude::*;

use crate::key::{Key, Kind};

/// Bytes that are not a report or a record of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a report or record of this version")]
pub struct Malformed;

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, left) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = left;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        let count = usize::from(self.u16()?);
        let (taken, left) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = left;
        str::from_utf8(taken).map_err(|_| Malformed)
    }

    pub(crate) fn key(&mut self) -> Result<Key, Malformed> {
        let kind = Kind::from_repr(self.u8()?).ok_or(Malformed)?;
        Ok(Key::new(kind, self.text()?, self.text()?))
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Appends a text; what exceeds 65,535 bytes is cut. Topics and users are shorter.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = text.get(..text.floor_char_boundary(u16::MAX.into())).unwrap_or_default();
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn put_key(out: &mut Vec<u8>, key: &Key) {
    out.push(key.kind() as u8);
    put_text(out, key.topic());
    put_text(out, key.user());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}
