//! A sample of models with one fault, and what can be said of them without another program: there is
//! a model or an error that says what is wrong with the input, and never a panic; an error leaves no
//! output, and a model says the same again. `tests/compare_programs --mutants` compares many more
//! with those of another program.

use std::path::Path;

use anamnesis::{
    AnamnesisError, ConvertOptions, ConvertTarget, ErrorKind, ModelScope, TargetDtype,
};
use serde_json::{Value, json};

use super::{Tensors, copy, models, tensors, write};
use crate::canonical::canonical_gguf;
use crate::common::{Random, effort};

/// How many faults are tried of each kind of file.
fn count() -> usize {
    effort([24, 400, 4000])
}

/// What a value of a config becomes: absent, another type, another number, an unknown word.
fn wrong(value: &Value) -> Vec<Option<Value>> {
    let mut all = vec![None, Some(Value::Null), Some(json!(0)), Some(json!(-1))];
    all.extend([Some(json!("unknown")), Some(json!([])), Some(json!({})), Some(json!(true))]);
    if let Some(n) = value.as_i64() {
        all.extend([Some(json!(n + 1)), Some(json!(n * 2)), Some(json!(n as f64 + 0.5))]);
    }
    if let Some(list) = value.as_array().filter(|list| !list.is_empty()) {
        all.extend([Some(json!(list[1..])), Some(json!([list.clone(), list.clone()].concat()))]);
    }
    all.retain(|new| new.as_ref() != Some(value));
    all
}

/// The paths of all values below `value`.
fn places(value: &Value, path: &str, out: &mut Vec<String>) {
    let mut below = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        let path = format!("{path}/{key}");
        places(value, &path, out);
        out.push(path);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| below(key, value)),
        Value::Array(list) => {
            let first = list.iter().take(1);
            first.for_each(|value| below("0", value));
        }
        _ => {}
    }
}

/// Puts `new` into the place of a value, or takes it out.
fn put(whole: &mut Value, place: &str, new: Option<Value>) {
    let (above, key) = place.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/").replace("~0", "~");
    match (whole.pointer_mut(above).unwrap(), new) {
        (Value::Object(map), Some(new)) => drop(map.insert(key, new)),
        (Value::Object(map), None) => drop(map.remove(&key)),
        (Value::Array(list), Some(new)) => list[0] = new,
        (Value::Array(list), None) => drop(list.remove(0)),
        _ => unreachable!(),
    }
}

/// The result of a conversion that is the same again.
fn converted(from: &Path, to: &Path, options: &ConvertOptions, what: &str) -> bool {
    let run = || {
        let result = anamnesis::parse(from).and_then(|model| model.convert(to, options));
        let is_there = to.exists();
        assert_eq!(result.is_ok(), is_there, "{what}: {:?}", result.err());
        let found = is_there.then(|| anamnesis::parse(to).map(|_| tensors(to)));
        if is_there && to.is_dir() {
            std::fs::remove_dir_all(to).unwrap();
        } else if is_there {
            std::fs::remove_file(to).unwrap();
        }
        result.map(|_| found.unwrap().unwrap())
    };
    match (run(), run()) {
        (Ok(first), Ok(second)) => {
            assert!(first == second, "{what}");
            true
        }
        (Err(first), Err(second)) => {
            assert_eq!(first.to_string(), second.to_string(), "{what}");
            check_error(&first, what);
            false
        }
        (first, second) => panic!("{what}: {:?}, then {:?}", first.err(), second.err()),
    }
}

/// An error is about the input, and says what.
fn check_error(error: &AnamnesisError, what: &str) {
    use ErrorKind::{LimitExceeded, Parse, Unsupported};
    let is_of_input = [Parse, Unsupported, LimitExceeded].contains(&error.kind());
    assert!(is_of_input, "{what}: {error:?}");
    let text = error.to_string();
    assert!(text.len() > 20 && !text.contains("panicked"), "{what}: {text}");
}

fn pick<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[(random.next() >> 20) as usize % all.len()]
}

#[test]
fn fields_of_configs() {
    let (mut random, models) = (Random(52), models());
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..count() {
        let model = pick(&mut random, &models);
        let directory = tempdir();
        let [from, to] = ["model", "out.gguf"].map(|name| directory.path().join(name));
        copy(&model.join("hf"), &from);
        let path = from.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut all = Vec::new();
        places(&config, "", &mut all);
        let place = pick(&mut random, &all);
        let new = pick(&mut random, &wrong(config.pointer(place).unwrap())).clone();
        let what = format!("{} {place} {new:?}", model.display());
        put(&mut config, place, new);
        std::fs::write(&path, config.to_string()).unwrap();
        match converted(&from, &to, &ConvertTarget::Gguf.into(), &what) {
            true => accepted += 1,
            false => refused += 1,
        }
    }
    assert!(refused > count() / 6 && accepted > count() / 24, "{refused} {accepted}");
}

/// One tensor that is absent, has another name, one row more or less, or another type.
fn edit(all: &mut Tensors, kind: usize, name: &str) {
    let (mut dtype, mut shape, mut bytes) = all[name].clone();
    match kind {
        0 => return drop(all.remove(name)),
        1 => {
            let tensor = all.remove(name).unwrap();
            return drop(all.insert(format!("{name}_unknown"), tensor));
        }
        2 | 3 if shape.first().is_some_and(|rows| *rows > 1) => {
            let row = bytes.len() / shape[0];
            shape[0] = shape[0] + 1 - (kind - 2) * 2;
            bytes.resize(shape[0] * row, 0);
        }
        4 if shape.len() == 2 => shape.reverse(),
        _ if dtype == "BF16" => {
            dtype = "F32".to_owned();
            bytes = bytes.chunks(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
        }
        _ => shape.push(1),
    }
    all.insert(name.to_owned(), (dtype, shape, bytes));
}

#[test]
fn tensors_of_models() {
    let (mut random, models) = (Random(53), models());
    let (mut accepted, mut refused) = (0, 0);
    for at in 0..count() {
        let model = pick(&mut random, &models);
        let directory = tempdir();
        let [from, to] = ["model", "out.gguf"].map(|name| directory.path().join(name));
        copy(&model.join("hf"), &from);
        let mut all = tensors(&from);
        let names: Vec<String> = all.keys().cloned().collect();
        let name = pick(&mut random, &names);
        edit(&mut all, at % 6, name);
        write(&all, &from);
        let what = format!("{} {name} {}", model.display(), at % 6);
        match converted(&from, &to, &ConvertTarget::Gguf.into(), &what) {
            true => accepted += 1,
            false => refused += 1,
        }
    }
    assert!(refused > count() / 4 && accepted > count() / 24, "{refused} {accepted}");
}

/// Bytes of the header of a GGUF file, where names, types, sizes and values are.
#[test]
fn headers_of_gguf() {
    let (mut random, models) = (Random(54), models());
    let (mut accepted, mut refused) = (0, 0);
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    for at in 0..count() {
        let model = pick(&mut random, &models);
        let directory = tempdir();
        let [from, to] = ["model.gguf", "out"].map(|name| directory.path().join(name));
        let mut bytes = std::fs::read(canonical_gguf(model)).unwrap();
        // Most headers begin with the model's keys, which its vocabulary follows.
        let place = (random.next() >> 20) as usize % 3000.min(bytes.len());
        bytes[place] = [bytes[place] ^ 1, bytes[place].wrapping_add(1), 0, 0xff][at % 4];
        std::fs::write(&from, bytes).unwrap();
        match converted(&from, &to, &options, &format!("{} byte {place}", model.display())) {
            true => accepted += 1,
            false => refused += 1,
        }
    }
    assert!(refused > count() / 6 && accepted > count() / 24, "{refused} {accepted}");
}

fn tempdir() -> tempfile::TempDir {
    crate::common::tempdir().unwrap()
}
