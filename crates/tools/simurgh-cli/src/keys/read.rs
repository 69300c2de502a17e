//! How values of the file are read: as flags of the same names would be, with their places.

use toml::de::DeValue;

use super::{Value, Wrong};
use crate::layer::Layer;
use crate::units;

/// A text or a whole number, read as the flag of the same name would be.
pub(super) fn scalar<T>(
    slot: &mut Option<T>,
    value: &Value<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), Vec<Wrong>> {
    *slot = Some(read_one(value, read).map_err(|wrong| vec![wrong])?);
    Ok(())
}

fn read_one<T>(value: &Value<'_>, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Wrong> {
    let result = match value.get_ref() {
        DeValue::String(text) => read(text),
        DeValue::Integer(number) => read(&number.to_string()),
        other => Err(format!("is of the wrong type ({})", other.type_str())),
    };
    result.map_err(|why| Wrong { span: value.span(), why })
}

/// A list; every entry that is wrong is named.
pub(super) fn list<T>(
    slot: &mut Option<Vec<T>>,
    value: &Value<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), Vec<Wrong>> {
    let DeValue::Array(entries) = value.get_ref() else {
        let why = format!("is of the wrong type ({})", value.get_ref().type_str());
        return Err(vec![Wrong { span: value.span(), why }]);
    };
    let (mut read_entries, mut wrong) = (Vec::new(), Vec::new());
    for entry in entries.iter() {
        match read_one(entry, &read) {
            Ok(entry) => read_entries.push(entry),
            Err(why) => wrong.push(why),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    *slot = Some(read_entries);
    Ok(())
}

pub(super) fn boolean(slot: &mut Option<bool>, value: &Value<'_>) -> Result<(), Vec<Wrong>> {
    match value.get_ref() {
        DeValue::Boolean(on) => {
            *slot = Some(*on);
            Ok(())
        }
        other => {
            let why = format!("is of the wrong type ({})", other.type_str());
            Err(vec![Wrong { span: value.span(), why }])
        }
    }
}

/// One text as in the flag, or a list of entries.
pub(super) fn origins(layer: &mut Layer, value: &Value<'_>) -> Result<(), Vec<Wrong>> {
    if !value.get_ref().is_array() {
        return scalar(&mut layer.check_origin, value, units::check_origin);
    }
    let mut entries = None;
    list(&mut entries, value, |entry| match units::check_origin(entry)?.value() {
        Some(simurgh::CheckOrigin::List(entries)) => Ok(entries),
        _ => Err(format!("{entry:?} stands alone, not in a list")),
    })?;
    let entries = entries.unwrap_or_default().concat();
    if entries.is_empty() {
        let why = "is an empty list, which would refuse every page".to_owned();
        return Err(vec![Wrong { span: value.span(), why }]);
    }
    layer.check_origin = Some(units::Choice::Value(simurgh::CheckOrigin::List(entries)));
    Ok(())
}
