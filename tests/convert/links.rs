//! Links out of a model's directory: what they lead to gets into no output, whatever file of the
//! model it stands for.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, ModelScope, TargetDtype, parse};

use crate::common::data;

/// What a private file holds.
const SECRET: &str = "SECRET-OF-THE-USER";

/// Every file beside the weights that a converter may read, with a model that has it or could have
/// it.
const SIDECARS: &[(&str, &str)] = &[
    ("llama", "config.json"),
    ("llama", "generation_config.json"),
    ("llama", "tokenizer.json"),
    ("llama", "tokenizer_config.json"),
    ("llama", "special_tokens_map.json"),
    ("llama", "added_tokens.json"),
    ("llama", "vocab.json"),
    ("llama", "merges.txt"),
    ("llama", "vocab.txt"),
    ("llama", "tokenizer.model"),
    ("llama", "spiece.model"),
    ("llama", "sentencepiece.bpe.model"),
    ("llama", "tiktoken.model"),
    ("llama", "qwen.tiktoken"),
    ("llama", "tekken.json"),
    ("llama", "chat_template.jinja"),
    ("llama", "chat_template.json"),
    ("llama", "additional_chat_templates/tool.jinja"),
    ("llama", "README.md"),
    ("llama", "preprocessor_config.json"),
    ("llama", "processor_config.json"),
    ("llama", "modules.json"),
    ("llama", "1_Pooling/config.json"),
    ("llama", "params.json"),
    ("gemma", "tokenizer.model"),
    ("gemma", "added_tokens.json"),
    ("gemma", "tokenizer_config.json"),
    ("bert", "modules.json"),
    ("bert", "tokenizer.json"),
    ("xlm_roberta", "1_Pooling/config.json"),
    ("xlm_roberta", "sentencepiece.bpe.model"),
    ("t5", "spiece.model"),
    ("t5", "generation_config.json"),
];

/// A copy of the model `name` in `root`.
fn copy_of(name: &str, root: &Path) -> PathBuf {
    let to = root.join("model");
    copy(&data().join("whole").join(name).join("hf"), &to);
    to
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(std::fs::copy(&path, to).unwrap()),
        }
    }
}

/// Takes the chat template out of `tokenizer_config.json`: a file of its own is read without it.
fn without_template(model: &Path) {
    let config = model.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value.as_object_mut().unwrap().remove("chat_template");
    std::fs::write(&config, value.to_string()).unwrap();
}

/// The conversions that read files beside the weights.
fn conversions() -> Vec<(&'static str, ConvertOptions)> {
    let gguf = ConvertOptions::new(ConvertTarget::Gguf);
    let mut tower = gguf.clone();
    tower.scope = ModelScope::ImageTower;
    let mut all = vec![
        ("gguf", gguf),
        ("mmproj", tower),
        ("directory", ConvertOptions::from(TargetDtype::BF16)),
    ];
    if cfg!(feature = "lethe") {
        let scheme = "mlx-8bit";
        let forget = anamnesis::Forget::from(scheme.parse::<anamnesis::ForgetScheme>().unwrap());
        all.push((scheme, ConvertOptions::from(forget)));
    }
    all
}

/// All bytes of an output, which is a file or a directory.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    if path.is_file() {
        return BTreeMap::from([(PathBuf::new(), std::fs::read(path).unwrap())]);
    }
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        let below = contents(&path).into_iter();
        all.extend(below.map(|(rest, bytes)| (name.join(rest), bytes)));
    }
    all
}

/// Converts the model in every way; the outputs, or the errors.
fn convert_all(model: &Path, root: &Path) -> Vec<(&'static str, Result<Converted, String>)> {
    let convert = |(what, mut options): (&'static str, ConvertOptions)| {
        options.run.replace = anamnesis::Replace::Everything;
        let output = root.join(format!("out-{}", what.replace(':', "-")));
        let model = parse(model).map_err(|e| e.to_string());
        let report = model.and_then(|model| {
            let report = model.convert(&output, &options);
            report.map_err(|e| e.to_string())
        });
        (what, report.map(|report| (contents(&output), report.notes)))
    };
    conversions().into_iter().map(convert).collect()
}

type Converted = (BTreeMap<PathBuf, Vec<u8>>, Vec<String>);

/// A file that is a link out of the directory is as if it were missing, with a note, or an error.
#[test]
fn nothing_gets_out() {
    for (name, sidecar) in SIDECARS {
        let root = crate::common::tempdir().unwrap();
        let model = copy_of(name, root.path());
        let (file, outside) = (model.join(sidecar), root.path().join("private/file"));
        let itself = std::fs::read(&file).ok();
        std::fs::create_dir(root.path().join("private")).unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&file);
        let all_without = convert_all(&model, root.path());
        for is_text in [true, false] {
            // The file itself, which would fit, or one that is none. Of a file that the model has
            // not, JSON would be as good as nothing for a text.
            let linked = match (is_text, &itself) {
                (false, Some(itself)) => itself.clone(),
                (false, None) if !sidecar.ends_with(".json") => continue,
                (false, None) => {
                    format!("{{\"chat_template\": \"{SECRET}\", \"license\": \"{SECRET}\"}}").into()
                }
                (true, _) => format!("---\nlicense: {SECRET}\n---\n{SECRET}\n").into(),
            };
            std::fs::write(&outside, linked).unwrap();
            let _ = std::fs::remove_file(&file);
            symlink(&outside, &file).unwrap();
            let with = convert_all(&model, root.path());
            for ((what, without), (_, with)) in all_without.iter().zip(with) {
                let context = format!("{name}, {sidecar}, {what}");
                match (with, without) {
                    (Err(error), _) => assert!(!error.contains(SECRET), "{context}: {error}"),
                    (Ok((with, _)), Ok((without, _))) => {
                        assert!(with == *without, "{context}: it was read");
                    }
                    // A config says what is quantized, and is used for that alone.
                    (Ok((with, _)), Err(_)) => {
                        let held = |bytes: &Vec<u8>| {
                            bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes())
                        };
                        assert!(!with.values().any(held), "{context}");
                    }
                }
            }
        }
    }
}

/// What a note or an error says.
#[test]
fn the_link_is_named() {
    let linked = |sidecar: &str| {
        let root = crate::common::tempdir().unwrap();
        let model = copy_of("llama", root.path());
        let outside = root.path().join("private");
        std::fs::write(&outside, "{}").unwrap();
        without_template(&model);
        let _ = std::fs::remove_file(model.join(sidecar));
        symlink(&outside, model.join(sidecar)).unwrap();
        let output = root.path().join("out.gguf");
        let report = parse(&model).unwrap().convert(&output, ConvertTarget::Gguf);
        report.map_or_else(|e| e.to_string(), |report| report.notes.join("\n"))
    };
    for optional in ["chat_template.jinja", "README.md"] {
        let note = linked(optional);
        assert!(note.contains("links out of the model's directory"), "{note}");
        assert!(note.contains(optional), "{note}");
    }
    for required in ["config.json", "tokenizer.json", "generation_config.json"] {
        let error = linked(required);
        let words = format!("`{required}` is a link out of the model's directory");
        assert!(error.contains(&words), "{error}");
    }
}

/// A directory of links to directories leads out as well.
#[test]
fn directories_that_are_links() {
    let root = crate::common::tempdir().unwrap();
    let model = copy_of("llama", root.path());
    let outside = root.path().join("private");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("tool.jinja"), SECRET).unwrap();
    std::fs::write(model.join("chat_template.jinja"), "main").unwrap();
    symlink(&outside, model.join("additional_chat_templates")).unwrap();
    without_template(&model);
    let output = root.path().join("out.gguf");
    let report = parse(&model).unwrap().convert(&output, ConvertTarget::Gguf);
    let notes = report.unwrap().notes.join("\n");
    assert!(notes.contains("additional_chat_templates"), "{notes}");
    let bytes = std::fs::read(&output).unwrap();
    assert!(!bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes()));
}

/// Links within the directory, and those of the cache of the hub to its blobs, are followed, also
/// below a snapshot.
#[test]
fn links_of_the_model_are_followed() {
    let root = crate::common::tempdir().unwrap();
    let plain = copy_of("llama", root.path());
    let output = root.path().join("out.gguf");
    let gguf = |model: &Path| {
        let mut options = ConvertOptions::new(ConvertTarget::Gguf);
        options.run.replace = anamnesis::Replace::Everything;
        let report = parse(model).unwrap().convert(&output, &options).unwrap();
        let links = report
            .notes
            .iter()
            .filter(|note| note.contains("links out"));
        assert_eq!(links.count(), 0, "{:?}", report.notes);
        std::fs::read(&output).unwrap()
    };
    // The names of the directories are in no key: the metadata has the model's own.
    let expected = gguf(&plain).len();
    for below in ["", "text_encoder"] {
        let repository = root.path().join(format!("models--org--model{below}"));
        let snapshot = repository.join("snapshots/0123").join(below);
        std::fs::create_dir_all(repository.join("blobs")).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        for (i, entry) in std::fs::read_dir(&plain).unwrap().enumerate() {
            let path = entry.unwrap().path();
            let blob = repository.join(format!("blobs/{i:040x}"));
            std::fs::copy(&path, &blob).unwrap();
            symlink(&blob, snapshot.join(path.file_name().unwrap())).unwrap();
        }
        let found = gguf(&snapshot).len();
        assert!(found.abs_diff(expected) < 256, "{found} {expected}");
    }
    let inside = plain.join("files");
    std::fs::create_dir(&inside).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        std::fs::rename(plain.join(name), inside.join(name)).unwrap();
        symlink(format!("files/{name}"), plain.join(name)).unwrap();
    }
    assert_eq!(gguf(&plain).len(), expected);
}

/// A config that is a link out of the directory says how codes are decoded, and a note tells so,
/// of a directory and of a file by itself.
#[test]
fn configs_that_are_links_are_told() {
    let root = crate::common::tempdir().unwrap();
    let [plain, linked] = ["plain", "linked"].map(|name| root.path().join(name));
    copy(&data().join("gptq_more/ar_plain_b6/model"), &plain);
    copy(&plain, &linked);
    std::fs::rename(linked.join("config.json"), root.path().join("c.json")).unwrap();
    symlink("../c.json", linked.join("config.json")).unwrap();
    let of = |path: PathBuf| {
        let model = parse(path).unwrap();
        let tensors = model.inspect();
        let output = root.path().join("out.safetensors");
        std::fs::remove_file(&output).ok();
        let options = ConvertOptions::from(TargetDtype::BF16);
        let notes = model.convert(&output, &options).unwrap().notes;
        (tensors.notes.join("\n"), notes.join("\n"), std::fs::read(&output).unwrap())
    };
    let words = "links out of the model's directory say how it is decoded: config.json";
    let file = "model.safetensors";
    let (shown, noted, bytes) = of(plain.join(file));
    assert!(!shown.contains(words) && !noted.contains(words), "{shown}{noted}");
    let (shown, noted, same) = of(linked.join(file));
    assert!(shown.contains(words) && noted.contains(words), "{shown}{noted}");
    assert_eq!(bytes, same);
    assert!(
        parse(&linked)
            .unwrap()
            .inspect()
            .notes
            .join("")
            .contains(words)
    );
    assert!(
        !parse(&plain)
            .unwrap()
            .inspect()
            .notes
            .join("")
            .contains(words)
    );
}
