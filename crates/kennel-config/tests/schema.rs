//! The published schema.

use kennel_config::schema;
use serde_json::Value;

/// Asserts that the schema has all keys of a value. The types of values are not compared.
fn knows(schema: &Value, value: &Value, path: &str) {
    let Some(entries) = value.as_object() else { return };
    let forms: Vec<&Value> = match schema["anyOf"].as_array() {
        Some(forms) => forms.iter().collect(),
        None => vec![schema],
    };
    for (key, value) in entries {
        let known = forms.iter().find_map(|form| {
            let named = form["properties"].get(key);
            named.or_else(|| form.get("additionalProperties").filter(|any| any.is_object()))
        });
        knows(known.unwrap_or_else(|| panic!("{path}.{key} is not in the schema")), value, &format!("{path}.{key}"));
    }
}

fn described(schema: &Value, path: &str) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()), "{path} has no description");
        described(property, &path);
        described(&property["additionalProperties"], &path);
    }
}

#[test]
fn the_schema_has_every_key_of_the_examples() {
    let schema = schema();
    let project: Value = serde_json::from_str(include_str!("fixtures/openagents-project.json")).unwrap();
    knows(&schema["properties"]["sandbox"], &project["sandbox"], "sandbox");
    knows(&schema, &serde_json::from_str(include_str!("fixtures/opencode.json")).unwrap(), "");
    for (text, format) in [
        (include_str!("fixtures/relay-config.yaml"), kennel_config::Format::Yaml),
        (include_str!("fixtures/virtual-machine.yaml"), kennel_config::Format::Yaml),
        (include_str!("fixtures/everything.toml"), kennel_config::Format::Toml),
        (include_str!("fixtures/docker-tool.toml"), kennel_config::Format::Toml),
    ] {
        let node = kennel_config::parse(text, format, kennel_config::Source::BuiltIn).unwrap();
        knows(&schema, &node.to_json(), "");
    }
}

#[test]
fn the_schema_describes_every_key_and_has_no_internal_marks() {
    let schema = schema();
    described(&schema, "");
    assert!(!schema.to_string().contains("\"x-"), "{schema}");
    assert_eq!(schema["additionalProperties"], false);
    let providers = schema["properties"]["sandbox"]["properties"]["provider"]["oneOf"].as_array().unwrap();
    assert!(providers.iter().any(|one| one["const"] == "macos-container"));
    assert_eq!(schema["properties"]["sandbox"]["properties"]["timeoutMs"]["description"], "Same as timeout.");
}
