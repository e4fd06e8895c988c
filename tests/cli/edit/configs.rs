//! Directories and JSON files: fields keep their order and spelling, other files are not touched.

use serde_json::json;

use super::{edit, notes, place, refused};
use crate::amn;
use crate::common::directory::{CONFIG, make, shards, tree, write_files};

#[test]
fn fields_keep_their_order_and_spelling() {
    let (_root, path) = place("config.json");
    std::fs::write(&path, CONFIG).unwrap();
    let report = edit(
        &path,
        &[
            "--set",
            "rope_theta=1e6",
            "--set",
            "text_config.hidden_size=512",
            "--set",
            "architectures=[\"A\", \"B\"]",
            "--set",
            "rope_scaling={\"factor\": 8}",
            "--set",
            "rope_scaling.type=yarn",
            "--rename",
            "text_config.dtype=text_config.type",
            "--unset",
            "vocab_size",
        ],
    );
    let expected = CONFIG
        .replace("1.00E+4", "1e6")
        .replace("\"hidden_size\":384", "\"hidden_size\":512")
        .replace("[\"TestForCausalLM\"]", "[\"A\", \"B\"]")
        .replace("    \"dtype\": \"float8", "    \"type\": \"float8")
        .replace(
            ",\n  \"vocab_size\": 8",
            ",\n  \"rope_scaling\": {\"factor\": 8,\"type\": \"yarn\"}",
        );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    let before = json!({"type": "number", "value": 384});
    let change = report["changes"].as_array().unwrap().iter();
    let mut change = change.filter(|change| change["key"] == "text_config.hidden_size");
    assert_eq!(change.next().unwrap()["before"], before);
}

/// A directory's config, and nothing else of it.
#[test]
fn directories() {
    let root = crate::common::tempdir().unwrap();
    let directory = root.path().join("model");
    make(&directory, &shards(2, 128));
    let path = directory.to_string_lossy().into_owned();
    let mut before = tree(&directory);
    let done = amn(&["edit", &path, "--set", "use_cache=false", "-i"]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let mut after = tree(&directory);
    let config = after.remove("config.json").unwrap();
    assert!(
        String::from_utf8(config)
            .unwrap()
            .contains("\"use_cache\": false")
    );
    before.remove("config.json");
    assert!(before == after);
    let words = "config.json as MODEL writes a copy";
    refused(&path, &["--set", "a=1", "-o", &format!("{path}-new")], 2, words);
    refused(&path, &["--chat-template", &format!("{path}/config.json"), "-i"], 2, "chat_template");
    std::fs::remove_file(directory.join("config.json")).unwrap();
    refused(&path, &["--set", "a=1", "-i"], 2, "without a config.json");
}

/// A value of another type, and a section that says how weights are stored, are written and told.
#[test]
fn notes_on_values() {
    let (root, path) = place("config.json");
    write_files(root.path(), &[("config.json", r#"{"v": "4.5", "n": 1, "x": NaN, "z": null}"#)]);
    let told = |change: &str| notes(&edit(&path, &["--set", change]));
    assert!(told("v=5").contains("--set 'v=\"5\"' is a text"));
    assert!(told("n=text").contains("`n` was a number and is a string now"));
    assert_eq!(told("z=1") + &told("x=2"), "");
    assert!(told("quantization_config={}").contains("how the weights are stored"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, r#"{"v": 5, "n": "text", "x": 2, "z": 1, "quantization_config": {}}"#);
}

/// A text with what is no object, and keys that are not there or twice.
#[test]
fn texts_that_cannot_be_edited() {
    let (_root, path) = place("c.json");
    for (text, arguments, code, words) in [
        ("[{}]", ["--set", "a=1"], 2, "no JSON object"),
        ("{", ["--set", "a=1"], 3, "c.json"),
        (r#"{"a": 1, "a": 2}"#, ["--set", "a=3"], 2, "twice"),
        (r#"{"a": 1}"#, ["--set", "a.b=3"], 2, "`a` is no object"),
        (r#"{"a": 1}"#, ["--set", "b.c=3"], 2, "there is no object `b`"),
        (r#"{"a": 1}"#, ["--unset", "b"], 2, "there is no such key"),
        (r#"{"a": 1, "b": 2}"#, ["--rename", "a=b"], 2, "`b` is there already"),
        (r#"{"a": {"b": 1}}"#, ["--rename", "a.b=c"], 2, "not beside it"),
    ] {
        std::fs::write(&path, text).unwrap();
        refused(&path, &[&arguments[..], &["-i"]].concat(), code, words);
    }
}
