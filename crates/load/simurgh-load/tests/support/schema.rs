//! The part of JSON Schema that the published schema of `report.json` uses.

use serde_json::Value;

/// Checks a value against that part of JSON Schema; an unknown keyword is an error too.
pub(crate) fn check(
    root: &Value,
    schema: &Value,
    value: &Value,
    at: &str,
    faults: &mut Vec<String>,
) {
    for (keyword, rule) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "$id" | "title" | "description" | "$defs" => {}
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                check(root, root.pointer(pointer).unwrap(), value, at, faults);
            }
            "type" => {
                let allowed = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if !allowed.iter().any(|name| is(value, name.as_str().unwrap())) {
                    faults.push(format!("{at}: {value} is no {rule}"));
                }
            }
            "const" if value != rule => faults.push(format!("{at}: {value} is not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => {
                faults.push(format!("{at}: {value} is none of {rule}"));
            }
            "const" | "enum" => {}
            "minimum" => {
                if value.as_f64().is_some_and(|n| n < rule.as_f64().unwrap()) {
                    faults.push(format!("{at}: {value} is less than {rule}"));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
                    if value.is_object() && value.get(name).is_none() {
                        faults.push(format!("{at}: no {name}"));
                    }
                }
            }
            "properties" => {
                for (name, inner) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(root, inner, value, &format!("{at}.{name}"), faults);
                    }
                }
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (name, value) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    match rule {
                        Value::Bool(false) => faults.push(format!("{at}: {name} is not known")),
                        Value::Bool(true) => {}
                        rule => check(root, rule, value, &format!("{at}.{name}"), faults),
                    }
                }
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, value, &format!("{at}[{index}]"), faults);
                }
            }
            other => faults.push(format!("{at}: keyword {other} is not checked")),
        }
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("no type {other}"),
    }
}
