//! Outputs that are stored beside the embedding, which they are by the config.

use std::path::{Path, PathBuf};

use anamnesis::{
    Adapter, ConvertOptions, ConvertTarget, Forget, ForgetScheme, ModelScope, TargetDtype, parse,
};

use super::{Tensors, copy, json, metadata, models, tensors, to_hf, write};
use crate::canonical::canonical_gguf;
use crate::common::forget::every_scheme;
use crate::common::{Random, data, effort, f32s, file, raw};

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
    let tried = effort([1, 2, 2]);
    for (number, model) in models().iter().enumerate() {
        let name = output_of(model);
        let directory = crate::common::tempdir().unwrap();
        let all = [(false, "equal"), (true, "other")].into_iter().cycle();
        for (differs, at) in all.skip(number).take(tried) {
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
    let directory = crate::common::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let make = |name: &str, differs| {
        std::fs::create_dir(path(name)).unwrap();
        with_output(&data().join("whole/qwen3/hf"), "lm_head.weight", differs, &path(name))
    };
    let (equal, other) = (make("equal", false), make("other", true));
    assert_eq!(converted(&equal, &path("mlx"), mlx()).unwrap(), "");
    let error = converted(&other, &path("mlx-other"), mlx()).unwrap_err();
    assert!(error.contains(DIFFERS) && error.contains("lm_head.weight"), "{error}");
    let error = converted(
        &other,
        &path("q8.gguf"),
        ConvertOptions::from("gguf:q8_0".parse::<ForgetScheme>().unwrap()),
    );
    assert!(error.unwrap_err().contains(DIFFERS));
    // Directories keep both.
    for (to, options) in [
        ("copy", ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Auto)),
        ("fp8", ConvertOptions::from("fp8".parse::<ForgetScheme>().unwrap())),
    ] {
        let notes = converted(&other, &path(to), options.clone()).unwrap();
        assert!(notes.contains(DIFFERS) && notes.contains("both are written"), "{to}: {notes}");
        assert!(tensors(&path(to)).contains_key("lm_head.weight"));
        let equal = converted(&equal, &path(&format!("{to}-equal")), options).unwrap();
        assert!(!equal.contains(DIFFERS), "{equal}");
    }
}

/// A config that is silent says what its class says.
#[test]
fn other_outputs_of_classes_that_are_tied() {
    for (model, is_tied) in [("gemma", true), ("cohere", true), ("llama", false), ("qwen3", false)]
    {
        let directory = crate::common::tempdir().unwrap();
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
    let canonical = canonical_gguf(data().join("whole").join(model));
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
            let directory = crate::common::tempdir().unwrap();
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
    let directory = crate::common::tempdir().unwrap();
    let made = gguf_with_output("gemma3", true, directory.path());
    let back = to_hf(&made, directory.path());
    let mut all = tensors(&back);
    all.remove("lm_head.weight");
    write(&all, &back);
    let error = gguf(&back, directory.path());
    assert!(error.contains("`lm_head.weight`: there is none"), "{error}");
}

/// Embedding and output in the codes of every scheme, which the config of a directory ties: they are
/// compared as they are decoded.
#[test]
fn quantized_outputs() {
    let mut random = Random(1);
    let values: Vec<f32> = random.floats(256 * 256);
    let others: Vec<f32> = values.iter().map(|x| x * 1.5 + 0.1).collect();
    let config = |is_tied: bool| {
        let sizes = r#""hidden_size": 256, "vocab_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4"#;
        format!(
            r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", {sizes}, "tie_word_embeddings": {is_tied}}}"#
        )
    };
    let mut compared = 0;
    for (head, differs) in [(&values, false), (&others, true)] {
        let directory = crate::common::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("plain")).unwrap();
        let matrix = |name, values: &[f32]| raw(name, "F32", &[256, 256], f32s(values));
        let all = [
            matrix("model.embed_tokens.weight", &values),
            matrix("lm_head.weight", head),
            matrix("model.layers.0.self_attn.q_proj.weight", &values),
        ];
        std::fs::write(path("plain/model.safetensors"), file(&all, &[])).unwrap();
        std::fs::write(path("plain/config.json"), config(false)).unwrap();
        let plain = parse(path("plain")).unwrap();
        // In the gate each scheme with both outputs, otherwise with either.
        let tried = effort([1, 2, 2]);
        for (at, name) in every_scheme().into_iter().enumerate() {
            if (at + usize::from(differs)) % 2 >= tried {
                continue;
            }
            if name.starts_with("gguf:") || name.starts_with("mlx") || name.starts_with("qnat") {
                continue;
            }
            let mut forget = Forget::from(name.parse::<ForgetScheme>().unwrap());
            forget.include = vec!["*weight".to_owned()];
            let coded = path(&name);
            if plain.convert(&coded, ConvertOptions::from(forget)).is_err() {
                assert_eq!(name, "mxfp4-gpt-oss");
                continue;
            }
            let mut edited = json(&coded.join("config.json"));
            edited["tie_word_embeddings"] = true.into();
            std::fs::write(coded.join("config.json"), edited.to_string()).unwrap();
            let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Auto);
            let notes = converted(&coded, &path("decoded"), options).unwrap();
            assert_eq!(notes.contains(DIFFERS), differs, "{name}: {notes}");
            std::fs::remove_dir_all(path("decoded")).unwrap();
            compared += 1;
        }
    }
    assert!(compared >= effort([28, 60, 60]), "{compared}");
}

/// Adapters of a model whose config ties an output that is stored.
#[test]
fn outputs_of_merged_models() {
    let directory = crate::common::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let make = |name: &str, differs| {
        std::fs::create_dir(path(name)).unwrap();
        let from = data().join("whole/qwen3/hf");
        with_output(&from, "lm_head.weight", differs, &path(name))
    };
    let (equal, other) = (make("equal", false), make("other", true));
    let shape = parse(&equal).unwrap();
    let shape = shape
        .tensor("model.layers.0.self_attn.q_proj.weight")
        .unwrap();
    let [rows, cols] = shape.shape() else {
        panic!("no matrix");
    };
    std::fs::create_dir(path("adapter")).unwrap();
    let settings =
        r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}"#;
    std::fs::write(path("adapter/adapter_config.json"), settings).unwrap();
    let module = "base_model.model.model.layers.0.self_attn.q_proj.lora";
    let factors = [
        raw(&format!("{module}_A.weight"), "F32", &[1, *cols], f32s(&vec![0.5; *cols])),
        raw(&format!("{module}_B.weight"), "F32", &[*rows, 1], f32s(&vec![0.5; *rows])),
    ];
    std::fs::write(path("adapter/adapter_model.safetensors"), file(&factors, &[])).unwrap();
    let merge = |from: &Path, to: &str, options: ConvertOptions| {
        let adapter = Adapter::open(path("adapter")).unwrap();
        converted(from, &path(to), options.with_adapters(vec![adapter]))
    };
    let directories = || ConvertOptions::from(TargetDtype::BF16);
    let gguf = || ConvertOptions::new(ConvertTarget::Gguf);
    let q8 = || ConvertOptions::from("gguf:q8_0".parse::<ForgetScheme>().unwrap());
    let notes = merge(&other, "other-merged", directories()).unwrap();
    assert!(notes.contains(DIFFERS) && notes.contains("both are written"), "{notes}");
    for (to, options) in [("a.gguf", gguf()), ("b.gguf", q8()), ("c", mlx())] {
        let error = merge(&other, to, options.clone()).unwrap_err();
        assert!(error.contains(DIFFERS), "{to}: {error}");
        assert!(!path(to).exists());
        merge(&equal, to, options).unwrap();
    }
    merge(&equal, "equal-merged", directories()).unwrap();
    assert!(!tensors(&path("equal-merged")).contains_key("lm_head.weight"));
}

/// An adapter of the embedding changes the output, too, that is the embedding by the class of a silent
/// config, and one that is stored in codes.
#[test]
fn adapters_of_embeddings() {
    for (model, codes) in [("gemma", None), ("qwen3", Some("fp8-channel"))] {
        let directory = crate::common::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let from = data().join("whole").join(model).join("hf");
        let mut base = with_output(&from, "lm_head.weight", false, directory.path());
        let set_tied = |base: &Path, value: Option<bool>| {
            let mut config = json(&base.join("config.json"));
            let fields = config.as_object_mut().unwrap();
            fields.remove("tie_word_embeddings");
            fields.extend(value.map(|tied| ("tie_word_embeddings".to_owned(), tied.into())));
            std::fs::write(base.join("config.json"), config.to_string()).unwrap();
        };
        match codes {
            None => set_tied(&base, None),
            Some(scheme) => {
                set_tied(&base, Some(false));
                let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
                forget.include =
                    vec!["*embed_tokens.weight".to_owned(), "lm_head.weight".to_owned()];
                converted(&base, &path("coded"), forget.into()).unwrap();
                base = path("coded");
                assert!(tensors(&base).contains_key("lm_head.weight_scale"));
                set_tied(&base, Some(true));
            }
        }
        let plain = parse(&from).unwrap();
        let [rows, cols] = plain.tensor("model.embed_tokens.weight").unwrap().shape() else {
            panic!("no matrix");
        };
        std::fs::create_dir(path("adapter")).unwrap();
        let settings =
            r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["embed_tokens"]}"#;
        std::fs::write(path("adapter/adapter_config.json"), settings).unwrap();
        let module = "base_model.model.model.embed_tokens.lora_embedding";
        let factors = [
            raw(&format!("{module}_A"), "F32", &[1, *rows], f32s(&vec![0.5; *rows])),
            raw(&format!("{module}_B"), "F32", &[*cols, 1], f32s(&vec![0.5; *cols])),
        ];
        std::fs::write(path("adapter/adapter_model.safetensors"), file(&factors, &[])).unwrap();
        let adapter = Adapter::open(path("adapter")).unwrap();
        let options = ConvertOptions::from(TargetDtype::BF16).with_adapters(vec![adapter]);
        let notes = converted(&base, &path("merged"), options).unwrap();
        assert!(notes.contains("`lm_head.weight`"), "{model}: {notes}");
        assert!(!tensors(&path("merged")).contains_key("lm_head.weight"), "{model}");
    }
}
