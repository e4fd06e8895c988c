//! Expressions in configs: thousands of them, and such as take much time or memory to compile.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::Trial;
use crate::common::{data, effort};

/// Copies the model in `from` to `to` with another `quantization_config`, and returns the length of
/// its files.
fn copy(from: &Path, to: &Path, edit: &dyn Fn(&mut Value)) -> usize {
    let mut len = 0;
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if path.ends_with("config.json") {
            let mut config: Value = serde_json::from_slice(&bytes).unwrap();
            edit(&mut config["quantization_config"]);
            bytes = serde_json::to_vec(&config).unwrap();
        }
        len += bytes.len();
        fs::write(to.join(path.file_name().unwrap()), bytes).unwrap();
    }
    len
}

#[test]
fn expressions_of_configs() {
    let mut trial = Trial::new();
    let model = data().join("compressed_tensors/pack_old_b5/model");
    let expressions: [&dyn Fn(usize) -> String; 6] = [
        &|i| format!(r"re:(?=\w{{200}}x)(?!y)a{i}"),
        &|i| format!(r"re:(?=[a-z]{{1000}}x)a{i}"),
        &|i| format!(r"re:(?=\w{{30}}x)(?=[^a]{{30}})(?!\p{{Lu}}{{3}})a{i}"),
        &|i| format!(r"re:(?=(a|a)*b)(\w*)*a{i}"),
        &|i| format!(r"re:\w{{300}}a{i}"),
        &|i| format!("*{i}*"),
    ];
    for (number, expression) in expressions.into_iter().enumerate() {
        let all: Vec<String> = (0..10_000).map(expression).collect();
        let what = format!("expressions {number}: {}", all[0]);
        // In the gate both lists of each kind, otherwise either.
        let lists = [false, true].into_iter().cycle();
        for is_target in lists.skip(number).take(effort([1, 2, 2])) {
            let place = crate::common::tempdir().unwrap();
            let len = copy(&model, place.path(), &|config| match is_target {
                false => config["ignore"] = json!(all),
                true => config["config_groups"]["group_0"]["targets"] = json!(all),
            });
            // What it says is not at issue: an expression that cannot be read may be an error.
            let read = || anamnesis::parse(place.path()).map(|m| m.inspect()).is_ok();
            trial.measure(&what, len, read);
        }
    }
    trial.end();
}
