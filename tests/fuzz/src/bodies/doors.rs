//! Whatever else a model comes in by, or is looked at with: whole models both ways with tokenizers
//! and cards, towers, adapters, importance matrices, edits of metadata, checks, comparisons, scans.
//!
//! An input is the number of a door, the id of a directory of `tests/data`, and edits of its files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anamnesis::{
    Adapter, CheckOptions, ConvertOptions, ConvertTarget, DiffOptions, EditOptions, Forget,
    ForgetScheme, ModelScope, RememberOptions, TargetDtype, parse_bytes, parse_with_limits,
};

use super::bytes::{Bytes, by_id, id};
use super::decode::edited;
use super::directory::place;
use super::golden::{File, Golden};
use super::model::limits;
use crate::common::data;
use crate::common::forget::{importance as matrix_of, whole};

/// A door: what it is given, below directories of the test data with this text in their path, and
/// what is done with the edited files.
struct Door {
    models: &'static str,
    enter: fn(&Path, &mut Bytes<'_>),
}

const DOORS: &[Door] = &[
    Door {
        models: "whole",
        enter: |from, input| convert(from, input, ConvertTarget::Gguf, ModelScope::Model),
    },
    Door {
        models: "towers",
        enter: |from, input| convert(from, input, ConvertTarget::Gguf, ModelScope::ImageTower),
    },
    Door { models: "whole", enter: back },
    Door {
        models: "mlx/",
        enter: |from, input| convert(from, input, ConvertTarget::Gguf, ModelScope::Model),
    },
    Door { models: "tokenizer", enter: tokenizer },
    Door { models: "adapters", enter: adapter },
    Door { models: "", enter: look },
    Door { models: "", enter: edit },
    Door { models: "imatrix", enter: importance },
];

/// The directories with small files below `tests/data`, by their ids.
fn directories() -> &'static [(u16, Golden)] {
    static FOUND: OnceLock<Vec<(u16, Golden)>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found = Vec::new();
        collect(&data(), &mut found);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
            .into_iter()
            .map(|golden| (id(&golden.name), golden))
            .collect()
    })
}

fn collect(directory: &Path, found: &mut Vec<Golden>) {
    let name = directory
        .strip_prefix(data())
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let mut golden = Golden { name, weights: vec![], configs: vec![], tree: None };
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            collect(&path, found);
        } else if !name.contains("expected") && !name.ends_with(".sums") {
            let file = (name, std::fs::read(&path).unwrap());
            match file.0.ends_with(".json") {
                true => golden.configs.push(file),
                false => golden.weights.push(file),
            }
        }
    }
    let len: usize = golden
        .weights
        .iter()
        .chain(&golden.configs)
        .map(|(_, bytes)| bytes.len())
        .sum();
    // Directories of hundreds of files are cases of a container, which has a target of its own.
    if (1..40).contains(&golden.weights.len()) && len < 1 << 18 {
        found.push(golden);
    }
}

/// Those that a door takes.
fn models_of(door: &'static Door) -> Vec<(u16, &'static Golden)> {
    let of_door = directories()
        .iter()
        .filter(|(_, golden)| golden.name.starts_with(door.models));
    of_door.map(|(id, golden)| (*id, golden)).collect()
}

pub fn run(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let door = &DOORS[input.below(DOORS.len())];
    let models = models_of(door);
    let golden = *by_id(&models, input.u16());
    let place = place();
    let from = place.path().join("in");
    std::fs::create_dir(&from).unwrap();
    // The edits end where the other choices begin.
    let (choices, edits) = input.0.split_at(input.0.len().min(8));
    let (weights, configs) = edited(golden, &mut Bytes(edits));
    write(&from, &weights);
    write(&from, &configs);
    (door.enter)(&from, &mut Bytes(choices));
}

fn write(directory: &Path, files: &[File]) {
    for (name, content) in files {
        std::fs::write(directory.join(name), content).unwrap();
    }
}

/// The files of a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    all.sort();
    all
}

/// The directory, or one of its files.
fn chosen(directory: &Path, input: &mut Bytes<'_>) -> PathBuf {
    let files = files(directory);
    match input.below(files.len() + 1) {
        0 => directory.to_owned(),
        i => files[i - 1].clone(),
    }
}

fn options(target: ConvertTarget, input: &mut Bytes<'_>) -> ConvertOptions {
    let run =
        RememberOptions::new(input.of(&[TargetDtype::F32, TargetDtype::BF16, TargetDtype::F16]))
            .with_threads(1);
    let mut options = ConvertOptions::new(target).with_run(run);
    options.skip_unsupported = input.u8() & 1 != 0;
    options
}

/// A whole model to the other side. With a card beside it, if the input says so.
fn convert(from: &Path, input: &mut Bytes<'_>, target: ConvertTarget, scope: ModelScope) {
    if input.u8() & 3 == 1 {
        let cards = include_str!("../../../data/model_cards.json");
        let cards: Vec<serde_json::Value> = serde_json::from_str(cards).unwrap();
        let mut card = cards[input.below(cards.len())][0]
            .as_str()
            .unwrap()
            .as_bytes()
            .to_vec();
        let at = input.below(card.len() + 1);
        card.insert(at, input.u8());
        std::fs::write(from.join("README.md"), card).unwrap();
    }
    let Ok(model) = parse_with_limits(from, &limits()) else {
        return;
    };
    let output = from.with_file_name("out");
    let written = model.convert(&output, options(target, input).with_scope(scope));
    assert_eq!(written.is_ok(), output.exists(), "{written:?}");
    if written.is_ok() {
        parse_with_limits(&output, &limits()).unwrap();
    }
}

/// A whole GGUF model, with bytes of its header changed, to a directory.
fn back(from: &Path, input: &mut Bytes<'_>) {
    let gguf = from.with_file_name("made.gguf");
    let whole = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Model);
    let made = parse_with_limits(from, &limits()).and_then(|model| model.convert(&gguf, whole));
    if made.is_err() {
        return;
    }
    let mut bytes = std::fs::read(&gguf).unwrap();
    let header = bytes.len().min(16 << 10);
    for _ in 0..=input.below(2) {
        let at = usize::from(input.u16()) % header;
        bytes[at] ^= input.u8();
    }
    std::fs::write(&gguf, bytes).unwrap();
    let Ok(model) = parse_with_limits(&gguf, &limits()) else {
        return;
    };
    let output = from.with_file_name("out");
    let written = model
        .convert(&output, options(ConvertTarget::Safetensors, input).with_scope(ModelScope::Model));
    assert_eq!(written.is_ok(), output.exists(), "{written:?}");
}

/// A tokenizer of the test data in the place of a model's own.
fn tokenizer(from: &Path, input: &mut Bytes<'_>) {
    let found = files(from);
    let file = &found[input.below(found.len())];
    let model = data().join("whole/llama/hf");
    let into = from.with_file_name("model");
    std::fs::create_dir(&into).unwrap();
    for path in files(&model) {
        std::fs::copy(&path, into.join(path.file_name().unwrap())).unwrap();
    }
    let names = [
        "tokenizer.json",
        "tokenizer.model",
        "tekken.json",
        "vocab.txt",
        "tiktoken.model",
        "spiece.model",
    ];
    let name = input.of(&names);
    if name != "tokenizer.json" {
        std::fs::remove_file(into.join("tokenizer.json")).unwrap();
    }
    std::fs::copy(file, into.join(name)).unwrap();
    convert(&into, input, ConvertTarget::Gguf, ModelScope::Model);
}

/// An adapter for one of the bases beside it.
fn adapter(from: &Path, input: &mut Bytes<'_>) {
    let path = chosen(from, input);
    let Ok(adapter) = Adapter::open_with_limits(path, &limits()) else {
        return;
    };
    let base = input.of(&[
        "base",
        "base-layers",
        "base-nf4",
        "base-experts",
        "base-fp8",
        "../adapters_image/models/unet.safetensors",
        "../adapters_image/models/checkpoint.safetensors",
        "../adapters_image/models/flux.safetensors",
    ]);
    let Ok(model) = parse_with_limits(data().join("adapters").join(base), &limits()) else {
        return;
    };
    let options = options(ConvertTarget::Safetensors, input).with_adapters(vec![adapter]);
    let _ = model
        .plan(options)
        .and_then(|conversion| conversion.to_bytes());
}

/// Every report on a file or a directory.
fn look(from: &Path, input: &mut Bytes<'_>) {
    let path = chosen(from, input);
    let _ = anamnesis::scan_pickles(&path, &limits());
    let _ = anamnesis::pickle_globals_with_limits(&path, &limits());
    let Ok(model) = parse_with_limits(&path, &limits()) else {
        return;
    };
    let _ = model.inspect().to_string();
    let mut options = CheckOptions::default();
    options.data = input.u8() & 1 != 0;
    let _ = model.check(&options);
    let other = chosen(from, input);
    if let Ok(other) = parse_with_limits(other, &limits()) {
        let _ = model.diff(&other, &DiffOptions::default());
    }
}

/// A change of metadata in a file, which then says it.
fn edit(from: &Path, input: &mut Bytes<'_>) {
    let path = chosen(from, input);
    let keys = [
        "general.name",
        "general.alignment",
        "format",
        "a.b",
        "__metadata__",
        "quantization_config.bits",
        "tokenizer.ggml.tokens",
    ];
    let key = input.of(&keys);
    let mut options = EditOptions::in_place();
    options.limits = limits();
    match input.below(3) {
        0 => options
            .set
            .push(format!("{key}={}", input.of(&["1", "x", "\"y\"", "[1,2]", "{}", "null", "\0"]))),
        1 => options.unset.push(key.to_owned()),
        _ => options
            .rename
            .push((key.to_owned(), input.of(&keys).to_owned())),
    }
    options.output = Some(from.with_file_name("edited"));
    let was_model = parse_with_limits(&path, &limits()).is_ok() && path.is_file();
    let edited = anamnesis::edit(&path, &options);
    if edited.is_ok() && was_model && path.extension().is_none_or(|ending| ending != "json") {
        parse_with_limits(from.with_file_name("edited"), &limits()).unwrap();
    }
}

/// An importance matrix for an encoder: one that fits the model with a few bytes changed, or any file.
fn importance(from: &Path, input: &mut Bytes<'_>) {
    let model = parse_bytes(whole(1, 64, 64)).unwrap();
    let mut matrix = matrix_of(&model);
    let path = match input.u8() & 3 {
        0 => chosen(from, input),
        _ => {
            for _ in 0..=input.below(2) {
                let at = input.below(matrix.len());
                matrix[at] ^= input.u8();
            }
            let path = from.with_file_name("importance.dat");
            std::fs::write(&path, matrix).unwrap();
            path
        }
    };
    let scheme = input.of(&["gguf:q4_0", "gguf:q8_0", "nf4", "gptq"]);
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    forget.imatrix = Some(path);
    forget.search = input.u8() & 1 != 0;
    let _ = model.forget(from.with_file_name("out"), forget);
}
