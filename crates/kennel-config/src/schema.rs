//! The published JSON schema, with which editors check a settings file.

use crate::shape::{raw_schema, spelling};
use serde_json::{Map, Value as Json, json};

/// Returns the JSON schema of Kennel's settings file. It contains each key under all of its names.
pub fn schema() -> Json {
    let mut schema = raw_schema();
    publish(&mut schema);
    schema["title"] = "Kennel configuration".into();
    schema["properties"]["$schema"] = json!({ "type": "string", "description": "Where this schema is." });
    schema
}

/// Replaces Kennel's own `x-` keywords, which editors do not know, with plain properties and values.
fn publish(schema: &mut Json) {
    match schema {
        Json::Array(items) => items.iter_mut().for_each(publish),
        Json::Object(object) => {
            if let (Some(renames), Some(Json::Array(variants))) = (object.remove("x-renames"), object.get_mut("oneOf"))
            {
                let names = renames.as_object().into_iter().flatten();
                variants
                    .extend(names.map(|(from, to)| json!({ "const": from, "description": format!("Same as {to}.") })));
            }
            if let Some(Json::Object(properties)) = object.get_mut("properties") {
                let others: Vec<_> = properties.iter().flat_map(|(name, schema)| other_names(name, schema)).collect();
                properties.extend(others);
            }
            object.retain(|key, _| !key.starts_with("x-"));
            object.values_mut().for_each(publish);
        }
        _ => {}
    }
}

/// Returns the other names of a key, each with its schema: the aliases, and all names in snake_case and kebab-case.
fn other_names(name: &str, schema: &Json) -> Vec<(String, Json)> {
    let aliases = schema["x-aliases"].as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    let mut names: Vec<String> = Vec::new();
    for one in std::iter::once(name).chain(aliases) {
        let snake = spelling(one);
        names.extend([one.to_owned(), snake.replace('_', "-"), snake]);
    }
    names.sort();
    names.dedup();
    names.retain(|one| one != name);
    let same = |other: String| {
        let mut schema = schema.clone();
        schema["description"] = format!("Same as {name}.").into();
        (other, schema)
    };
    names.into_iter().map(same).collect()
}
