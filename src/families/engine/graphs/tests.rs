//! The tables, compared with what llama.cpp loads: of each model of `tests/data/whole`, files that
//! differ in one thing, as `generate/check_graphs.py` makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use serde_json::Value;

use super::{GraphProblem, graph_of, problems};
use crate::families::CLASSES;
use crate::{GgufMetadataArray, GgufMetadataValue, ParsedModel};

// Each file shares with the others what is the same.
type Keys<'a> = Vec<(&'a str, &'a GgufMetadataValue)>;
type Shapes = Vec<(Rc<str>, Rc<[usize]>)>;
type Metadata = BTreeMap<String, GgufMetadataValue>;

#[test]
fn every_architecture_has_a_table() {
    for class in CLASSES {
        assert!(graph_of(class.gguf).is_some(), "{}", class.gguf);
    }
}

/// What is wrong with a file.
fn found(architecture: &str, keys: &Keys<'_>, tensors: &Shapes) -> Vec<GraphProblem> {
    let keys = keys.iter().copied();
    let tensors = tensors.iter().map(|(name, shape)| (&**name, &shape[..]));
    problems(architecture, keys, tensors)
}

/// The name of a tensor without the numbers in it.
fn kind_of(name: &str) -> String {
    let mut kind = String::new();
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if kind.ends_with('#') => {}
            true => kind.push('#'),
            false => kind.push(c),
        }
    }
    kind
}

/// The files that differ from one with `keys` and `tensors` in one thing, by name.
fn variants<'a>(
    architecture: &str,
    keys: &Keys<'a>,
    tensors: &Shapes,
) -> Vec<(String, Keys<'a>, Shapes)> {
    let mut all = vec![("as it is".to_owned(), keys.clone(), tensors.clone())];
    let prefix = format!("{architecture}.");
    for (key, _) in keys {
        if key.starts_with(&prefix) || key.starts_with("xielu.") {
            let rest = keys.iter().filter(|(other, _)| other != key).copied();
            all.push((format!("without key {key}"), rest.collect(), tensors.clone()));
        }
    }
    let mut add = |what: String, tensors: Shapes| all.push((what, keys.clone(), tensors));
    let with = |name: &str, shape: Vec<usize>| {
        let mut tensors = tensors.clone();
        tensors.push((name.into(), shape.into()));
        tensors
    };
    let has = |name: &str| tensors.iter().any(|(other, _)| **other == *name);
    let mut seen = BTreeSet::new();
    for (at, (name, shape)) in tensors.iter().enumerate().rev() {
        if !seen.insert(kind_of(name)) {
            continue;
        }
        let mut rest = tensors.clone();
        rest.remove(at);
        add(format!("without {name}"), rest);
        for axis in 0..shape.len() {
            let mut longer = tensors.clone();
            let mut shape = shape.to_vec();
            shape[axis] += 1;
            longer[at].1 = shape.into();
            add(format!("longer axis {axis} of {name}"), longer);
        }
        if let Some(base) = name.strip_suffix(".weight")
            && !has(&format!("{base}.bias"))
        {
            let bias = format!("{base}.bias");
            let rows = &shape[..if shape.len() < 3 { 1 } else { 2 }];
            add(format!("with {bias}"), with(&bias, rows.to_vec()));
        }
    }
    let other = "blk.0.other.weight";
    add(format!("with {other}"), with(other, vec![8]));
    let embedding = tensors
        .iter()
        .find(|(name, _)| **name == *"token_embd.weight");
    if let (false, Some((_, shape))) = (has("output.weight"), embedding) {
        add("with output.weight".to_owned(), with("output.weight", shape.to_vec()));
    }
    all
}

/// Models that llama.cpp does not load for other reasons: of Gemma 3n it has the published sizes alone,
/// and it looks for tokens of Phi 3 that small tokenizers lack.
const NOT_LOADED: [&str; 3] = ["gemma3n", "phi3", "phi3_long"];

/// Files that llama.cpp loads and that are refused on purpose: a layer that predicts a further token
/// is only loaded if it is asked for, and these are parts of one; and the encoder of T5 is not built
/// with the context.
fn is_stricter(name: &str, what: &str) -> bool {
    let parts = [
        ("glm4_moe_mtp", "without blk.2."),
        ("deepseek_v32", "without blk.3.nextn.eh_proj"),
        ("glm_moe_dsa", "without blk.2.indexer."),
        ("t5", "without enc.blk.0.attn_rel_b"),
        ("t5_ungated", "without enc.blk.0.attn_rel_b"),
    ];
    parts
        .iter()
        .any(|(model, part)| name == *model && what.starts_with(part))
}

/// Files of image towers that llama.cpp loads, and that end the program when it computes an image.
fn is_not_computed(what: &str) -> bool {
    let name = what.strip_prefix("without ").unwrap_or_default();
    let is_of_layer = name.starts_with("v.blk.") || name.starts_with("a.blk.");
    let of_heads = is_of_layer && name.ends_with(".weight");
    let all = ["attn_q", "attn_k", "attn_v", "attn_qkv"].map(|part| format!(".{part}."));
    let in_front = ["v.patch_embd.weight", "v.patch_embd.weight.1", "v.patch_embd.bias"]
        .iter()
        .chain(&["v.class_embd", "v.position_embd.weight", "a.position_embd.weight"])
        .any(|other| *other == name);
    in_front || of_heads && all.iter().any(|part| name.contains(part))
}

/// The GGUF file of the model in `directory` with zeros for its data: the header is all that is
/// looked at, and all that is stored behind the line of JSON (`generate/sums.py`).
fn canonical(directory: &Path) -> ParsedModel {
    #[derive(serde::Deserialize)]
    struct Sums {
        header: usize,
        tensors: Vec<(String, usize, Option<String>)>,
    }
    let stored = std::fs::read(directory.join("canonical.sums")).unwrap();
    let line = stored.iter().position(|byte| *byte == b'\n').unwrap();
    let sums: Sums = serde_json::from_slice(&stored[..line]).unwrap();
    let data = sums
        .tensors
        .iter()
        .map(|(_, bytes, _)| bytes.next_multiple_of(32));
    let mut whole = stored[line + 1..][..sums.header].to_vec();
    whole.resize(whole.len() + data.sum::<usize>(), 0);
    crate::parse_bytes(whole).unwrap()
}

/// Compares the tables with the files that `recorded` in the tests' data names, of models in
/// `directory`. Returns the names of the models, and the number of files.
fn compare(
    (recorded, directory): (&str, &str),
    is_stricter: impl Fn(&str, &str) -> bool,
) -> Option<(BTreeSet<String>, usize)> {
    let data = crate::test_utils::test_data()?;
    let recorded = std::fs::read(data.join(recorded)).unwrap();
    let recorded: BTreeMap<String, BTreeSet<String>> = serde_json::from_slice(&recorded).unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, loaded) in &recorded {
        let model = canonical(&data.join(directory).join(name));
        let metadata = metadata_of(&model);
        let tensors: Shapes = model
            .tensors()
            .map(|t| (t.name().into(), t.shape().into()))
            .collect();
        let (problems, files) = compare_files((name, loaded), (&metadata, &tensors), &is_stricter);
        wrong.extend(problems);
        count += files;
    }
    assert!(wrong.is_empty(), "{count} {wrong:#?}");
    Some((recorded.into_keys().collect(), count))
}

fn metadata_of(model: &ParsedModel) -> Metadata {
    let metadata = model.gguf().unwrap().metadata();
    metadata
        .iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Compares the tables with the files `loaded` that differ in one thing from that of the model `name`.
/// Returns what differs, and the number of files.
fn compare_files(
    (name, loaded): (&str, &BTreeSet<String>),
    (metadata, tensors): (&Metadata, &Shapes),
    is_stricter: impl Fn(&str, &str) -> bool,
) -> (Vec<String>, usize) {
    let architecture = metadata["general.architecture"].as_string().unwrap();
    let keys: Keys<'_> = metadata
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    let all = variants(architecture, &keys, tensors);
    let count = all.len();
    let wrong = all.into_iter().filter_map(|(what, keys, tensors)| {
        let problems = found(architecture, &keys, &tensors);
        let is_same = problems.is_empty() == loaded.contains(&what) || is_stricter(name, &what);
        (!is_same).then(|| format!("{name} {what}: {problems:?}"))
    });
    (wrong.collect(), count)
}

#[test]
fn what_llama_cpp_loads() {
    if let Some((names, count)) = compare(("graphs.json", "whole"), is_stricter) {
        assert!(NOT_LOADED.iter().all(|name| !names.contains(*name)));
        assert!(count > 6000);
    }
}

#[test]
fn image_towers_that_llama_cpp_loads() {
    // The script changes no tensors in F16, as these are in some towers.
    let is_f16 = |what: &str| {
        let names = ["mm.input_projection", "a.conv1d.", "a.conv2d.", "a.conv_out."];
        names.iter().any(|name| what.contains(name)) && !what.starts_with("without")
    };
    // It is larger than the most that the small model has, if no key says it.
    let is_least = |name: &str, what: &str| {
        name == "hunyuan_vl" && what == "without key clip.vision.image_min_pixels"
    };
    // llama.cpp loads one of two towers, which is not what the file says.
    let is_half = |what: &str| what.starts_with("without key clip.has_");
    let is_stricter = |name: &str, what: &str| {
        is_not_computed(what) || is_f16(what) || is_least(name, what) || is_half(what)
    };
    if let Some((names, count)) = compare(("tower_graphs.json", "towers"), is_stricter) {
        assert!(names.len() == 49 && count > 3500, "{count}");
    }
}

/// Classes of `whole_classes.jsonl`, of which no file is stored.
#[test]
fn classes_that_llama_cpp_loads() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let recorded = std::fs::read(data.join("class_graphs.json")).unwrap();
    let recorded: BTreeMap<String, BTreeSet<String>> = serde_json::from_slice(&recorded).unwrap();
    let models = std::fs::read_to_string(data.join("whole_classes.jsonl")).unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for line in models.lines() {
        let model: Value = serde_json::from_str(line).unwrap();
        let name = model["name"].as_str().unwrap();
        let Some(loaded) = recorded.get(name) else {
            continue;
        };
        let like = data
            .join("whole")
            .join(model["tokenizer"].as_str().unwrap());
        let mut metadata = metadata_of(&canonical(&like));
        metadata.retain(|key, _| key.starts_with("tokenizer."));
        for keys in [&model["keys"], &model["here"]] {
            let stored = keys.as_object().into_iter().flatten();
            metadata.extend(
                stored.filter_map(|(key, stored)| Some((key.clone(), value(stored.get(1)?)))),
            );
        }
        let tensors = model["tensors"].as_object().unwrap().iter();
        let tensors: Shapes = tensors
            .map(|(name, stored)| (name.as_str().into(), shape(stored)))
            .collect();
        let (problems, files) = compare_files((name, loaded), (&metadata, &tensors), |_, _| false);
        wrong.extend(problems);
        count += files;
    }
    assert!(wrong.is_empty() && count > 1000, "{count} {wrong:#?}");
}

/// A value as the tables look at it.
fn value(stored: &Value) -> GgufMetadataValue {
    let number = |n: &Value| n.as_i64().unwrap_or(0) as i32;
    match stored {
        Value::Bool(flag) => GgufMetadataValue::Bool(*flag),
        Value::String(text) => GgufMetadataValue::String(text.clone()),
        Value::Array(all) if all.iter().all(Value::is_boolean) => {
            let all = all.iter().map(|flag| flag == &Value::Bool(true)).collect();
            GgufMetadataValue::Array(Box::new(GgufMetadataArray::Bool(all)))
        }
        Value::Array(all) if all.iter().any(Value::is_string) => {
            let all = all.iter().filter_map(Value::as_str).map(str::to_owned);
            GgufMetadataValue::Array(Box::new(GgufMetadataArray::String(all.collect())))
        }
        Value::Array(all) => GgufMetadataValue::Array(Box::new(GgufMetadataArray::I32(
            all.iter().map(number).collect(),
        ))),
        stored => match stored.as_u64() {
            Some(n) => GgufMetadataValue::U32(n as u32),
            None => GgufMetadataValue::F32(stored.as_f64().unwrap() as f32),
        },
    }
}

/// The shape in the description of a tensor: type, sizes, sum.
fn shape(stored: &Value) -> Rc<[usize]> {
    let sizes = stored.as_str().unwrap().split(' ').nth(1).unwrap();
    sizes
        .split('x')
        .map(|n| n.parse::<usize>().unwrap())
        .collect()
}
