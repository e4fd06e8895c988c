//! `--sarif` of `check` and `scan`: the findings are those of `--json`.

use serde_json::Value;

use crate::amn;
use crate::common::{data, f32s, file, raw};

fn log(arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = amn(arguments);
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let results = run["results"].as_array().unwrap().clone();
    for result in &results {
        let rule = rules
            .iter()
            .find(|rule| rule["id"] == result["ruleId"])
            .unwrap();
        assert_eq!(rule["defaultConfiguration"]["level"], result["level"]);
        assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 1);
    }
    (output.status.code(), results)
}

fn uri(result: &Value) -> &str {
    let physical = &result["locations"][0]["physicalLocation"];
    physical["artifactLocation"]["uri"].as_str().unwrap()
}

#[test]
fn findings_are_those_of_check() {
    let place = crate::common::tempdir().unwrap();
    let name = "a b%\u{e4}.safetensors";
    let tensors = [
        raw("a.weight", "F32", &[2, 2], f32s(&[1.0, f32::NAN, f32::INFINITY, 0.0])),
        raw("b.weight", "F8_E4M3", &[4, 4], vec![0x38; 16]),
    ];
    std::fs::write(place.path().join(name), file(&tensors, &[])).unwrap();
    let path = place.path().join(name);
    let path = path.to_str().unwrap();
    let (code, results) = log(&["check", path, "--data", "--sarif"]);
    let json = amn(&["check", path, "--data", "--json"]);
    assert_eq!(code, json.status.code());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let findings = json["models"][0]["findings"].as_array().unwrap();
    assert!(findings.len() >= 2);
    assert_eq!(results.len(), findings.len());
    for (result, finding) in results.iter().zip(findings) {
        assert_eq!(result["message"]["text"], finding["message"]);
        assert_eq!(result["level"], finding["severity"]);
        let logical = &result["locations"][0]["logicalLocations"][0];
        assert_eq!(logical["fullyQualifiedName"], finding["tensor"]);
        let uri = uri(result);
        assert!(
            uri.starts_with("file:///") && uri.ends_with("/a%20b%25%C3%A4.safetensors"),
            "{uri}"
        );
    }
    let relative = std::process::Command::new(env!("CARGO_BIN_EXE_amn"))
        .current_dir(place.path())
        .args(["check", name, "--data", "--sarif"])
        .output()
        .unwrap();
    let relative = String::from_utf8(relative.stdout).unwrap();
    assert!(relative.contains("\"uri\": \"a%20b%25%C3%A4.safetensors\""), "{relative}");
    // A model that cannot be read is a result, too.
    let (code, results) = log(&["check", "missing", "--sarif"]);
    assert_eq!((code, results.len()), (Some(7), 1));
}

#[test]
fn grades_are_those_of_scan() {
    let at = |name: &str| data().join(name).to_str().unwrap().to_owned();
    let (attack, safe) = (at("pth/attack_eval.pt"), at("demo/checkpoint.pth"));
    let (code, results) = log(&["scan", &safe, &attack, "--sarif"]);
    assert_eq!((code, results.len()), (Some(8), 1));
    assert_eq!(results[0]["ruleId"], "dangerous");
    assert_eq!(results[0]["message"]["text"], "a pickle names `builtins.eval`");
    assert!(uri(&results[0]).ends_with("/pth/attack_eval.pt"));
    assert_eq!(amn(&["scan", &safe, "--sarif", "--json"]).status.code(), Some(2));
}
