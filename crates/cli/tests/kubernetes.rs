//! The Kubernetes manifest is one by the published schema, asks for no more rights than it says, and
//! its command line is one of `terrace`.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::binary;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

/// The manifest's documents as JSON.
fn documents() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/kubernetes/terrace-govern.yaml");
    let text = fs::read_to_string(path).unwrap();
    YamlLoader::load_from_str(&text).unwrap().iter().map(json).collect()
}

fn json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) => text.as_str().into(),
        Yaml::Integer(number) => (*number).into(),
        Yaml::Real(text) => text.parse::<f64>().unwrap().into(),
        Yaml::Boolean(is) => (*is).into(),
        Yaml::Array(list) => list.iter().map(json).collect(),
        Yaml::Hash(map) => {
            let pairs =
                map.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), json(value)));
            Value::Object(pairs.collect())
        }
        Yaml::Null => Value::Null,
        other => panic!("{other:?}"),
    }
}

/// What the published schema says, reduced; the file names its source.
fn schema() -> Value {
    serde_json::from_str(include_str!("kubernetes-1.33.json")).unwrap()
}

/// Everything of a value that is not as its type says, with where it is.
fn check(schema: &Value, kind: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let mut no = |what: &str| wrong.push(format!("{at}: {what}"));
    match kind {
        Value::Array(item) => match value.as_array() {
            None => no("is no list"),
            Some(list) => {
                for (i, one) in list.iter().enumerate() {
                    check(schema, &item[0], one, &format!("{at}[{i}]"), wrong);
                }
            }
        },
        Value::Object(of) => match value.as_object() {
            None => no("is no map"),
            Some(map) => {
                for (key, one) in map {
                    check(schema, &of["of"], one, &format!("{at}.{key}"), wrong);
                }
            }
        },
        Value::String(name) => match name.as_str() {
            "string" if !value.is_string() => no("is no text"),
            "integer" if !value.is_i64() => no("is no whole number"),
            "number" if !value.is_number() => no("is no number"),
            "boolean" if !value.is_boolean() => no("is neither true nor false"),
            "int-or-string" if !value.is_i64() && !value.is_string() => no("is no number or text"),
            "quantity" if !value.as_str().is_some_and(is_quantity) => no("is no quantity"),
            "string" | "integer" | "number" | "boolean" | "int-or-string" | "quantity" => {}
            name => {
                let known = &schema["types"][name];
                let (Some(fields), Some(map)) = (known["fields"].as_object(), value.as_object())
                else {
                    return no(&format!(
                        "is of the type {name}, which is not in the reduced schema"
                    ));
                };
                for needed in known["required"].as_array().into_iter().flatten() {
                    if !map.contains_key(needed.as_str().unwrap()) {
                        wrong.push(format!("{at}: lacks {needed}"));
                    }
                }
                for (key, one) in map {
                    match fields.get(key) {
                        None => wrong.push(format!("{at}: {name} has no field `{key}`")),
                        Some(kind) => check(schema, kind, one, &format!("{at}.{key}"), wrong),
                    }
                }
            }
        },
        other => panic!("the reduced schema: {other}"),
    }
}

/// A number with one of the suffixes of `resource.Quantity`.
fn is_quantity(text: &str) -> bool {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[number.len()..];
    let suffixes = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    number.parse::<f64>().is_ok() && suffixes.contains(&suffix)
}

fn wrong(document: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let kind = document["kind"].clone();
    check(&schema(), &kind, document, kind.as_str().unwrap_or("?"), &mut wrong);
    wrong
}

#[test]
fn the_manifest_is_one_by_the_published_schema() {
    let documents = documents();
    let kinds: Vec<_> = documents.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Namespace", "ServiceAccount", "DaemonSet"]);
    for document in &documents {
        assert_eq!(wrong(document), Vec::<String>::new());
        // By the schema's own names of definitions.
        let kind = document["kind"].as_str().unwrap();
        let definition = schema()["types"][kind]["definition"].as_str().unwrap().to_owned();
        let version = document["apiVersion"].as_str().unwrap().replace("apps/", "apps.");
        let version = if version == "v1" { "core.v1".to_owned() } else { version };
        assert_eq!(definition, format!("io.k8s.api.{version}.{kind}"));
    }
}

/// So that the test before this one can fail.
#[test]
fn what_is_not_in_the_schema_is_found() {
    let good = documents().pop().unwrap();
    let container = "/spec/template/spec/containers/0";
    for (at, key, value, said) in [
        ("/spec/template/spec", "hostPid", true.into(), "PodSpec has no field `hostPid`"),
        ("/spec", "selector", Value::Null, "not in the reduced schema"),
        (container, "args", "govern".into(), "is no list"),
        (container, "name", 7.into(), "is no text"),
        (
            "/spec/template/spec/containers/0/ports/0",
            "containerPort",
            "9464".into(),
            "whole number",
        ),
        ("/spec/template/spec/containers/0/resources/limits", "memory", "1 GB".into(), "quantity"),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(at).unwrap()[key] = value;
        let wrong = wrong(&bad);
        assert!(wrong.len() == 1 && wrong[0].contains(said), "{key}: {wrong:?}");
    }
    let mut bad = good;
    bad["spec"].as_object_mut().unwrap().remove("selector");
    assert_eq!(wrong(&bad), ["DaemonSet.spec: lacks \"selector\""]);
}

/// What it may do is what its head says.
#[test]
fn rights_are_the_least() {
    let documents = documents();
    let pod = &documents[2]["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    let rights = &containers[0]["securityContext"];
    assert_eq!(rights["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(rights["capabilities"]["add"], serde_json::json!(["DAC_OVERRIDE", "SYS_PTRACE"]));
    for (right, is) in [
        ("privileged", false),
        ("allowPrivilegeEscalation", false),
        ("readOnlyRootFilesystem", true),
    ] {
        assert_eq!(rights[right], is, "{right}");
    }
    assert_eq!(rights["seccompProfile"]["type"], "RuntimeDefault");
    for volume in containers[0]["volumeMounts"].as_array().unwrap() {
        assert_eq!(volume["readOnly"], true, "{volume}");
    }
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(documents[1]["automountServiceAccountToken"], false);
    for beyond in ["hostNetwork", "hostIPC", "initContainers"] {
        assert!(pod[beyond].is_null(), "{beyond}");
    }
    // Selector and labels go together, or the API server refuses it.
    let (set, labels) = (&documents[2]["spec"], &documents[2]["spec"]["template"]["metadata"]);
    assert_eq!(set["selector"]["matchLabels"], labels["labels"]);
}

/// Its options exist: what is refused is the group, which is not there.
#[test]
fn the_command_line_is_one_of_terrace() {
    let documents = documents();
    let container = &documents[2]["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    let arguments = arguments.map(|argument| match argument {
        "--cgroup=kubepods.slice" => "--cgroup=no-such-group.slice",
        argument => argument,
    });
    let output = Command::new(binary()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`no-such-group.slice` is no control group"), "{said}");
}
