//! JSON documents: what programs read.

use serde::Serialize;

use crate::failure::Failure;

/// Version of every JSON document that the commands print. It grows when a
/// field changes its meaning or goes away, not when one is added.
pub(crate) const SCHEMA: u32 = 1;

/// A JSON document of ours: what it is, in which version, then its fields.
#[derive(Serialize)]
struct Document<'a, T: Serialize> {
    schema: u32,
    kind: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

/// A body as a JSON document (`kind` names it), with a line feed at its end.
pub(crate) fn json<T: Serialize>(kind: &str, body: &T) -> Result<String, Failure> {
    let document = Document { schema: SCHEMA, kind, body };
    serde_json::to_string_pretty(&document)
        .map(|text| text + "\n")
        .map_err(|e| Failure::failed(format!("cannot write {kind} as JSON: {e}")))
}

/// The same on one line.
pub(crate) fn json_line<T: Serialize>(kind: &str, body: &T) -> Result<String, Failure> {
    let document = Document { schema: SCHEMA, kind, body };
    serde_json::to_string(&document)
        .map(|text| text + "\n")
        .map_err(|e| Failure::failed(format!("cannot write {kind} as JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_says_its_version_first() {
        #[derive(Serialize)]
        struct Body {
            answer: u32,
        }

        let text = json("terrace.test", &Body { answer: 42 }).unwrap();

        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["kind"], "terrace.test");
        assert_eq!(value["answer"], 42);
    }
}
