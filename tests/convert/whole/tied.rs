//! Outputs that are stored beside the embedding, which they are by the config.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, ForgetScheme, ModelScope, TargetDtype, parse};

use super::{Tensors, copy, json, metadata, models, tensors, to_hf, write};
use crate::common::data;

/// Embedding and output in the models of all families, by the ends of their names.
const EMBEDDINGS: &[&str] = &[
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "shared.weight",
    "backbone.embeddings.weight",
];

fn embedding(all: &Tensors) -> String {
    let is_it = |name: &&String| {
        let ends = |end: &&str| {
            name.strip_suffix(*end)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        EMBEDDINGS.iter().any(ends) && !name.contains("encoder") && !name.contains("mtp")
    };
    all.keys().find(is_it).unwrap().clone()
}

/// A copy of `model` with a stored output whose first value is another one if `differs`, and that
/// the config ties.
fn with_output(model: &Path, name: &str, differs: bool, directory: &Path) -> PathBuf {
    let to = directory.join("tied");
    copy(model, &to);
    let mut all = tensors(&to);
    let mut output = all[&embedding(&all)].clone();
    if differs {
        let last = output.2.len() - 1;
        output.2[last] ^= 1;
    }
    all.insert(name.to_owned(), output);
    write(&all, &to);
    let mut config = json(&to.join("config.json"));
    config["tie_word_embeddings"] = true.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

/// What the families call their outputs, if not `lm_head`.
fn output_of(model: &Path) -> &'static str {
    match model.file_name().unwrap().to_str().unwrap() {
        "gpt_neox" => "embed_out.weight",
        "internlm2" => "output.weight",
        _ => "lm_head.weight",
    }
}

/// The error, or the notes, of converting `from` to GGUF.
fn gguf(from: &Path, directory: &Path) -> String {
    let output = directory.join("out.gguf");
    match parse(from).unwrap().convert(output, ConvertTarget::Gguf) {
        Ok(report) => report.notes.join("; "),
        Err(error) => error.to_string(),
    }
}

/// As [`gguf`], with `options`.
fn converted(
    from: &Path,
    to: &Path,
    options: ConvertOptions,
) -> std::result::Result<String, String> {
    let report = parse(from).unwrap().convert(to, options);
    report
        .map(|report| report.notes.join("; "))
        .map_err(|error| error.to_string())
}

const DIFFERS: &str = "it differs from the embedding";

#[test]
fn other_outputs_do_not_become_gguf() {
    for model in models() {
        let name = output_of(&model);
        let directory = tempfile::tempdir().unwrap();
        for (differs, at) in [(false, "equal"), (true, "other")] {
            let at = directory.path().join(at);
            std::fs::create_dir(&at).unwrap();
            let made = with_output(&model.join("hf"), name, differs, &at);
            let found = gguf(&made, &at);
            let is_named = found.contains(DIFFERS) && found.contains(name);
            assert_eq!(is_named, differs, "{} {differs}: {found}", model.display());
        }
    }
}

fn mlx() -> ConvertOptions {
    ConvertOptions::from(
        "mlx-8bit"
            .parse::<ForgetScheme>()
            .unwrap()
            .with_group_size(32),
    )
}

#[test]
fn other_outputs_in_all_directions() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let make = |name: &str, differs| {
        std::fs::create_dir(path(name)).unwrap();
        with_output(
            &data().join("whole/qwen3/hf"),
            "lm_head.weight",
            differs,
            &path(name),
        )
    };
    let (equal, other) = (make("equal", false), make("other", true));
    assert_eq!(converted(&equal, &path("mlx"), mlx()).unwrap(), "");
    let error = converted(&other, &path("mlx-other"), mlx()).unwrap_err();
    assert!(
        error.contains(DIFFERS) && error.contains("lm_head.weight"),
        "{error}"
    );
    let error = converted(
        &other,
        &path("q8.gguf"),
        ConvertOptions::from("gguf:q8_0".parse::<ForgetScheme>().unwrap()),
    );
    assert!(error.unwrap_err().contains(DIFFERS));
    // Directories keep both.
    for (to, options) in [
        (
            "copy",
            ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Auto),
        ),
        (
            "fp8",
            ConvertOptions::from("fp8".parse::<ForgetScheme>().unwrap()),
        ),
    ] {
        let notes = converted(&other, &path(to), options.clone()).unwrap();
        assert!(
            notes.contains(DIFFERS) && notes.contains("both are written"),
            "{to}: {notes}"
        );
        assert!(tensors(&path(to)).contains_key("lm_head.weight"));
        let equal = converted(&equal, &path(&format!("{to}-equal")), options).unwrap();
        assert!(!equal.contains(DIFFERS), "{equal}");
    }
}

/// A config that is silent says what its class says.
#[test]
fn other_outputs_of_classes_that_are_tied() {
    for (model, is_tied) in [
        ("gemma", true),
        ("cohere", true),
        ("llama", false),
        ("qwen3", false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let made = with_output(
            &data().join("whole").join(model).join("hf"),
            "lm_head.weight",
            true,
            directory.path(),
        );
        let mut config = json(&made.join("config.json"));
        config
            .as_object_mut()
            .unwrap()
            .remove("tie_word_embeddings");
        std::fs::write(made.join("config.json"), config.to_string()).unwrap();
        let found = gguf(&made, directory.path());
        assert_eq!(found.contains(DIFFERS), is_tied, "{model}: {found}");
    }
}

/// The GGUF file of `model` with an output beside the embedding, whose last value is another one if
/// `differs`.
fn gguf_with_output(model: &str, differs: bool, directory: &Path) -> PathBuf {
    let canonical = data().join("whole").join(model).join("canonical.gguf");
    let mut all = tensors(&canonical);
    let mut output = all["token_embd.weight"].clone();
    if differs {
        let last = output.2.len() - 1;
        output.2[last] ^= 1;
    }
    all.insert("output.weight".to_owned(), output);
    write(&all, directory);
    let made = directory.join("made.gguf");
    let options = ConvertOptions::new(ConvertTarget::Gguf)
        .with_gguf_metadata(metadata(&canonical).into_iter().collect());
    let plain = parse(directory.join("model.safetensors")).unwrap();
    plain.convert(&made, options).unwrap();
    made
}

/// Classes whose output is the embedding in all published models. transformers 5.24 loads an output
/// beside it if the config is not tied, and so does llama.cpp, of the last two.
#[test]
fn outputs_of_gguf() {
    for (model, is_loaded) in [
        ("gemma", false),
        ("gemma2", false),
        ("cohere", false),
        ("cohere2", false),
        ("gemma3", true),
        ("gemma3n", true),
    ] {
        for differs in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let made = gguf_with_output(model, differs, path);
            let back = path.join("back");
            let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
            let notes = converted(&made, &back, options).unwrap();
            assert_eq!(notes.contains(DIFFERS), differs, "{model}: {notes}");
            let config = json(&back.join("config.json"));
            assert_eq!(config["tie_word_embeddings"], !differs, "{model}");
            let found = tensors(&back);
            assert_eq!(found.contains_key("lm_head.weight"), differs, "{model}");
            let again = path.join("again.gguf");
            let result = parse(&back).unwrap().convert(&again, ConvertTarget::Gguf);
            match result {
                Err(error) => {
                    assert!(differs && !is_loaded, "{model}: {error}");
                    assert!(error.to_string().contains("tie_word_embeddings"), "{error}");
                }
                Ok(_) => {
                    assert!(!differs || is_loaded, "{model}");
                    let mut expected = tensors(&made);
                    if !differs {
                        expected.remove("output.weight");
                    }
                    assert!(tensors(&again) == expected, "{model}");
                }
            }
        }
    }
}

/// An output that is missing although the config has one.
#[test]
fn untied_models_have_an_output() {
    let directory = tempfile::tempdir().unwrap();
    let made = gguf_with_output("gemma3", true, directory.path());
    let back = to_hf(&made, directory.path());
    let mut all = tensors(&back);
    all.remove("lm_head.weight");
    write(&all, &back);
    let error = gguf(&back, directory.path());
    assert!(error.contains("`lm_head.weight`: there is none"), "{error}");
}
