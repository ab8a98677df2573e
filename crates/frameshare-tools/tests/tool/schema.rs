// SPDX-License-Identifier: MIT OR Apache-2.0

//! The schema of the JSON output. Every output that a test parses is compared with it.
//!
//! The validator has the keywords that the schema uses, and refuses others: validators that have
//! all of them bring some thirty crates.

use serde_json::{Value, json};
use std::sync::LazyLock;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../../docs/tool.schema.json")).expect("the schema is JSON")
});

/// Keywords that constrain nothing.
const NOTES: [&str; 4] = ["$schema", "title", "description", "$defs"];

/// Asserts that a line is as the schema has it for a command.
#[track_caller]
pub fn assert_valid(command: &str, value: &Value) {
    let definition = &SCHEMA["$defs"][command];
    assert!(definition.is_object(), "docs/tool.schema.json has no {command}");
    if let Err(why) = validate(definition, value) {
        panic!("{command}: {why}\n{value}");
    }
}

fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    let keywords = schema.as_object().ok_or("a schema is an object")?;
    for (keyword, given) in keywords {
        match keyword.as_str() {
            "$ref" => validate(resolve(given)?, value)?,
            "type" => check_type(given, value)?,
            "enum" => {
                let all = given.as_array().ok_or("enum is a list")?;
                all.contains(value).then_some(()).ok_or_else(|| format!("{value} is none of {given}"))?;
            }
            "minimum" => {
                let (number, least) = (value.as_f64(), given.as_f64().ok_or("minimum is a number")?);
                let is_enough = number.is_none_or(|number| number >= least);
                is_enough.then_some(()).ok_or_else(|| format!("{value} is less than {least}"))?;
            }
            "anyOf" => {
                let all = given.as_array().ok_or("anyOf is a list")?;
                let errors: Vec<_> = all.iter().filter_map(|one| validate(one, value).err()).collect();
                (errors.len() < all.len()).then_some(()).ok_or_else(|| errors.join("; or "))?;
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(given, item).map_err(|why| format!("[{index}] {why}"))?;
                }
            }
            "properties" => {
                for (name, found) in value.as_object().into_iter().flatten() {
                    let Some(schema) = given.get(name) else { continue };
                    validate(schema, found).map_err(|why| format!(".{name} {why}"))?;
                }
            }
            "required" => {
                let names = given.as_array().ok_or("required is a list")?.iter().filter_map(Value::as_str);
                let missing: Vec<_> = names.filter(|name| value.get(name).is_none()).collect();
                missing.is_empty().then_some(()).ok_or_else(|| format!("lacks {missing:?}"))?;
            }
            "additionalProperties" if *given == false => {
                let known = &schema["properties"];
                let names = value.as_object().into_iter().flatten().map(|(name, _)| name);
                let other: Vec<_> = names.filter(|name| known.get(name).is_none()).collect();
                other.is_empty().then_some(()).ok_or_else(|| format!("has {other:?}"))?;
            }
            note if NOTES.contains(&note) => {}
            other => return Err(format!("the validator does not implement {other}")),
        }
    }
    Ok(())
}

fn resolve(reference: &Value) -> Result<&'static Value, String> {
    let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
    let found = pointer.and_then(|pointer| SCHEMA.pointer(pointer));
    found.ok_or_else(|| format!("{reference} leads nowhere"))
}

fn check_type(given: &Value, value: &Value) -> Result<(), String> {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        _ => false,
    };
    let names = match given {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => vec![name.as_str().unwrap_or_default()],
    };
    names.iter().any(|name| is(name)).then_some(()).ok_or_else(|| format!("is no {given}"))
}

/// Negative control.
#[test]
fn invalid_output_is_reported() {
    let good = json!({ "sequence": 1, "age": 0.5, "size": 3, "pts": null, "flags": ["gap"], "lost": 0 });
    assert_valid("watch", &good);
    let schema = &SCHEMA["$defs"]["watch"];
    for (field, bad, part) in [
        ("sequence", json!(-1), ".sequence -1 is less"),
        ("sequence", json!(1.5), ".sequence is no"),
        ("age", json!("old"), ".age is no"),
        ("flags", json!([7]), ".flags [0] is no"),
        ("speed", json!(1), "has [\"speed\"]"),
    ] {
        let mut value = good.clone();
        value[field] = bad;
        let why = validate(schema, &value).unwrap_err();
        assert!(why.contains(part), "{field}: {why}");
    }
    let mut value = good;
    value.as_object_mut().unwrap().remove("lost");
    assert!(validate(schema, &value).unwrap_err().contains("lacks [\"lost\"]"));
    assert!(validate(&json!({ "$ref": "#/$defs/policy" }), &json!("fast")).unwrap_err().contains("none of"));
    assert!(validate(&json!({ "pattern": "x" }), &json!("x")).unwrap_err().contains("pattern"));
    let either = json!({ "$ref": "#/$defs/hz" });
    assert!(validate(&either, &json!({ "histogram": [] })).is_ok());
    assert!(validate(&either, &json!({})).unwrap_err().contains("; or "));
}
