//! Image towers of multimodal models, against llama.cpp's converter.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::Value;

use super::{Tensors, check_metadata, copy, json as read_json, metadata, tensors, write};
use crate::canonical::{canonical_gguf, restored};
use crate::common::{data, effort};

fn towers() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data().join("towers")).unwrap();
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(all.len() >= 20);
    all
}

fn options() -> ConvertOptions {
    ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::ImageTower)
}

/// Writes the tower of the directory `from` to a file in `directory`.
fn to_mmproj(from: &Path, directory: &Path, options: ConvertOptions) -> PathBuf {
    let output = directory.join("mmproj.gguf");
    parse(from).unwrap().convert(&output, options).unwrap();
    output
}

#[test]
fn towers_are_those_of_llama_cpp() {
    let files = [
        ("canonical", None),
        ("f16", Some(TargetDtype::F16)),
        ("f32", Some(TargetDtype::F32)),
        #[cfg(feature = "lethe")]
        ("q8_0", None),
    ];
    for (model, (file, dtype)) in towers().iter().flat_map(|m| files.map(|f| (m, f))) {
        let sums = model.join(file).with_extension("sums");
        if !sums.exists() {
            assert_ne!(file, "canonical", "{}", model.display());
            continue;
        }
        let canonical = restored(&sums);
        let mut options = options();
        if let Some(dtype) = dtype {
            options.decode = true;
            options.run.to = dtype;
        }
        #[cfg(feature = "lethe")]
        if file == "q8_0" {
            let scheme: anamnesis::ForgetScheme = "gguf:q8_0".parse().unwrap();
            options = ConvertOptions::from(scheme).with_scope(ModelScope::ImageTower);
        }
        let directory = crate::common::tempdir().unwrap();
        let output = to_mmproj(&model.join("hf"), directory.path(), options);
        let (found, expected) = (tensors(&output), tensors(&canonical));
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{}", canonical.display());
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{} `{name}`", canonical.display());
        }
        let mut metadata = metadata(&output);
        // The converter leaves it out, so that llama.cpp computes another function than
        // transformers.
        if ["gemma4", "gemma4_large"].contains(&file_name(model)) {
            assert!(metadata.remove("clip.use_gelu") == Some(GgufMetadataValue::Bool(true)));
        }
        check_metadata(metadata, &canonical);
    }
}

/// Language models have tables of integers, which change nothing of the tower.
#[test]
fn towers_beside_integers() {
    let directory = crate::common::tempdir().unwrap();
    let (model, from) = (data().join("towers/qwen3_5"), directory.path().join("model"));
    copy(&model.join("hf"), &from);
    let mut all = tensors(&from);
    let name = "model.language_model.layers.1.ple.ple_embedding.layer_multipliers".to_owned();
    all.insert(name, ("I64".to_owned(), vec![1], 3_u64.to_le_bytes().to_vec()));
    write(&all, &from);
    let output = to_mmproj(&from, directory.path(), options());
    assert!(tensors(&output) == tensors(&canonical_gguf(&model)));
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Edits that llama.cpp would compute otherwise, or could not load: the model, the place in
/// `config.json` (or the whole of `preprocessor_config.json`), its new value, and words of the
/// error.
const EDITS: &str = include_str!("towers.jsonl");

#[test]
fn what_llama_cpp_computes_otherwise_is_refused() {
    for line in EDITS.lines() {
        type Edit = (String, String, Value, Vec<String>);
        let (model, pointer, value, words): Edit = serde_json::from_str(line).unwrap();
        let directory = crate::common::tempdir().unwrap();
        let from = directory.path().join("hf");
        copy(&data().join("towers").join(&model).join("hf"), &from);
        let path = match pointer.as_str() {
            "/preprocessor" => from.join("preprocessor_config.json"),
            _ => from.join("config.json"),
        };
        let mut config = read_json(&path);
        match pointer.as_str() {
            "/preprocessor" => config = value,
            _ => set(&mut config, &pointer, value),
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let what = format!("{model} {pointer}");
        let output = directory.path().join("mmproj.gguf");
        let result = parse(&from).unwrap().convert(&output, options());
        let error = result.map(|_| what.clone()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(&word), "{what}: {error}");
        }
        assert!(!output.exists(), "{what}");
    }
}

/// Sets the value at `pointer`, whose last field may be new.
fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap() {
        Value::Array(all) => all[field.parse::<usize>().unwrap()] = value,
        parent => parent[field] = value,
    }
}

/// Every tensor of a tower is needed, and none may be more.
#[test]
fn missing_and_unknown_tensors_are_refused() {
    // Another one of so many tensors of each model.
    let step = effort([4, 1, 1]);
    for (number, model) in towers().into_iter().enumerate() {
        let all = tensors(&model.join("hf"));
        let directory = crate::common::tempdir().unwrap();
        let from = directory.path().join("hf");
        copy(&model.join("hf"), &from);
        let try_with = |tensors: &Tensors| {
            write(tensors, &from);
            let output = directory.path().join("mmproj.gguf");
            let result = parse(&from).unwrap().convert(&output, options());
            std::fs::remove_file(output).ok();
            result.map(drop)
        };
        // What GGUF does not get.
        let unread = match file_name(&model) {
            "phi4_v" => [".post_layernorm.", ".encoder.layers.3."],
            // A model may have none.
            "deepseek_v4" => ["patch_embed.proj.bias"; 2],
            _ => ["audio_bos_eos_token"; 2],
        };
        let is_of_tower = |name: &&String| {
            !name.contains("language_model")
                && !name.contains("lm_head")
                && !name.contains("text_model")
                && !unread.iter().any(|part| name.contains(part))
        };
        let names = all.keys().filter(is_of_tower);
        for name in names.skip(number % step).step_by(step) {
            let mut some = all.clone();
            some.remove(name);
            assert!(try_with(&some).is_err(), "{} without `{name}`", model.display());
        }
        let mut more = all.clone();
        let is_read = |(name, _): &(&String, _)| !unread.iter().any(|part| name.contains(part));
        let (name, tensor) = all.iter().rev().find(is_read).unwrap();
        let (module, parameter) = name.rsplit_once('.').unwrap_or((name, "weight"));
        more.insert(format!("{module}.other.{parameter}"), tensor.clone());
        assert!(try_with(&more).is_err(), "{} with one more", model.display());
        try_with(&all).unwrap();
    }
}

#[test]
fn towers_are_no_other_outputs() {
    let model = data().join("towers/gemma3");
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out");
    let refused = |from: &Path, options: ConvertOptions| {
        let result = parse(from).unwrap().convert(&output, options);
        result.map(drop).unwrap_err().to_string()
    };
    let safetensors = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::ImageTower);
    assert!(refused(&model.join("hf"), safetensors).contains("image tower"));
    assert!(refused(&canonical_gguf(&model), options()).contains("image tower"));
}

/// Of each tower the model of `tests/data/whole` that is its language model, and what names of the
/// language model's tensors begin with in place of `model.`.
const LANGUAGE_MODELS: &[(&str, &str, &str)] = &[
    ("audio_flamingo3", "qwen2", "language_model.model."),
    ("deepseek_ocr", "deepseek_ocr", "model."),
    ("deepseek_ocr2", "deepseek_ocr", "model."),
    ("dots_ocr", "qwen2", "model."),
    ("exaone4_5", "exaone4", "model.language_model."),
    ("gemma3", "gemma3", "language_model.model."),
    ("gemma3_pool2", "gemma3", "language_model.model."),
    ("gemma4", "gemma4", "model.language_model."),
    ("gemma4_large", "gemma4", "model.language_model."),
    ("gemma4_unified", "gemma4", "model.language_model."),
    ("glm4v", "glm4", "model.language_model."),
    ("glm5_next", "glm5_next", "model.language_model."),
    ("glm_ocr", "glm4", "model.language_model."),
    ("hunyuan_vl", "hunyuan_vl", "model."),
    ("idefics3", "llama_bias", "model.text_model."),
    ("internvl", "qwen2", "language_model.model."),
    ("kimi_k25", "deepseek_v3", "language_model.model."),
    ("kimi_vl", "deepseek_v3", "language_model.model."),
    ("lfm2_vl", "lfm2", "model.language_model."),
    ("lighton_ocr", "qwen3", "model.language_model."),
    ("llama4", "llama4", "language_model.model."),
    ("minicpmv4_6", "qwen3_5", "model.language_model."),
    ("minimax_m3", "minimax_m3", "language_model.model."),
    ("mistral3", "mistral", "language_model.model."),
    ("paddleocr_vl", "ernie4_5", "model."),
    ("pixtral", "mistral", "language_model.model."),
    ("qwen2_5_omni", "qwen2", "model."),
    ("qwen2_5_vl", "qwen2", "model."),
    ("qwen2_audio", "qwen2", "language_model.model."),
    ("qwen2_vl", "qwen2", "model."),
    ("qwen3_5", "qwen3_5", "model.language_model."),
    ("qwen3_asr", "qwen3", "model.language_model."),
    ("qwen3_omni_moe", "qwen3_moe", "model."),
    ("qwen3_vl", "qwen3", "model.language_model."),
    ("smolvlm", "llama_bias", "model.text_model."),
    ("step_vl", "qwen3", "model."),
    ("unlimited_ocr", "deepseek_ocr", "model."),
    ("voxtral", "llama_bias", "language_model.model."),
    ("youtu_vl", "youtu", "model."),
];

/// Towers of which GGUF has not all that a model has.
const ONE_WAY: &[&str] = &[
    "cogvlm",
    "deepseek_v4",
    "dots3_note",
    "glm5v",
    "glmasr",
    "janus",
    "meralion2",
    "phi4_v",
    "sarashina2",
    "ultravox",
];

/// Length of a hidden state of the language models of `tests/data/towers`.
const NARROW: usize = 24;

/// The directory of the language model `like`, which is made in `directory` if it is one of
/// `tests/data/whole_classes.jsonl`.
fn language_model(like: &str, directory: &Path) -> PathBuf {
    let whole = data().join("whole").join(like).join("hf");
    match whole.exists() {
        true => whole,
        false => super::classes::written(&super::classes::models()[like], directory),
    }
}

/// Fields of the configs of the towers.
fn sections_of(config: &Value) -> impl Iterator<Item = &'static str> {
    let all = ["vision_config", "audio_config"].into_iter();
    all.filter(|section| config[section].is_object())
}

/// The config of a model whose part that thinks is the whole, and its names of tensors.
fn without_thinker(config: &mut Value, tensors: Tensors) -> Tensors {
    let Some(thinker) = config.get_mut("thinker_config").map(Value::take) else {
        return tensors;
    };
    let class = config["architectures"][0].as_str().unwrap();
    let thinking = match class {
        "Qwen2_5OmniModel" => "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration" => "Qwen3OmniMoeThinkerForConditionalGeneration",
        other => other,
    };
    // transformers has a projector of its own there.
    let is_asr = class == thinking;
    let renamed = |name: &str| match name.strip_prefix("thinker.").unwrap() {
        name if is_asr => {
            format!("model.{name}").replace("audio_tower.proj", "multi_modal_projector.linear_")
        }
        name => name.to_owned(),
    };
    let tensors = tensors
        .iter()
        .map(|(name, tensor)| (renamed(name), tensor.clone()));
    *config = serde_json::json!({"architectures": [thinking], "model_type": thinker["model_type"]});
    for section in ["vision_config", "audio_config"] {
        config[section] = thinker[section].clone();
    }
    tensors.collect()
}

/// Joins the language model `like` to the tower `name`, in the directory `from`.
fn join(name: &str, like: &str, inner: &str, from: &Path) {
    let directory = crate::common::tempdir().unwrap();
    let text = language_model(like, directory.path());
    let tower = data().join("towers").join(name).join("hf");
    copy(&text, from);
    let mut own = read_json(&text.join("config.json"));
    for nested in ["language_config", "text_config"] {
        own = own.get(nested).cloned().unwrap_or(own);
    }
    let (narrow, wide) = (NARROW, own["hidden_size"].as_u64().unwrap() as usize);
    let mut all = Tensors::new();
    let mut config = read_json(&tower.join("config.json"));
    for (tensor, (dtype, shape, bytes)) in without_thinker(&mut config, tensors(&tower)) {
        if tensor.contains("embed_tokens") {
            continue;
        }
        let size = shape.iter().product::<usize>().max(1);
        // GLM-OCR has three times the width in its projector, MiniMax M3 four times.
        let is_merged = tensor.starts_with("patch_merge_mlp.");
        let widened = |n: &usize| match n / narrow {
            1 | 3 if n.is_multiple_of(narrow) => n / narrow * wide,
            4 if is_merged && n.is_multiple_of(narrow) => n / narrow * wide,
            _ => *n,
        };
        let shape: Vec<_> = shape.iter().map(widened).collect();
        let wanted = bytes.len() / size * shape.iter().product::<usize>().max(1);
        all.insert(tensor, (dtype, shape, bytes.iter().copied().cycle().take(wanted).collect()));
    }
    let outer = inner
        .strip_suffix("model.")
        .filter(|outer| *outer != "model.text_");
    let outer = outer
        .filter(|outer| outer.ends_with('.'))
        .unwrap_or_default();
    let of_language = |name: &String| {
        !["vit.", "sam_", "image_", "vision_", "view_", "projector.", "visual."]
            .iter()
            .any(|part| name.contains(part))
    };
    for (tensor, value) in tensors(&text) {
        if !of_language(&tensor) {
            continue;
        }
        let tensor = tensor.replace("model.language_model.", "model.");
        let tensor = match tensor.strip_prefix("model.") {
            Some(rest) => format!("{inner}{rest}"),
            None => format!("{outer}{tensor}"),
        };
        all.insert(tensor, value);
    }
    write(&all, from);
    // Some have the fields of the language model beside those of the whole.
    if config.get("vocab_size").is_some() {
        let of_whole = ["architectures", "model_type", "vision_config"];
        let fields = config.as_object_mut().unwrap();
        fields.retain(|field, _| of_whole.contains(&field.as_str()));
    }
    let has_axes = ["qwen2_5_omni", "qwen2_5_vl", "qwen2_vl", "qwen3_asr", "qwen3_omni_moe"]
        .iter()
        .chain(&["qwen3_vl", "glm4v", "glm_ocr"])
        .any(|other| *other == name);
    if has_axes || name == "paddleocr_vl" {
        // The class of the whole says how heads rotate.
        own.as_object_mut().unwrap().remove("architectures");
        let half = own["head_dim"].as_u64().unwrap_or(8) / 2;
        let half = if name.starts_with("glm") {
            half / 2
        } else {
            half
        };
        own["rope_scaling"] =
            serde_json::json!({"rope_type": "default", "mrope_section": [half - 2, 1, 1]});
    }
    if name == "mistral3" {
        own["rms_norm_eps"] = 1e-5.into();
    }
    if name.starts_with("gemma4") {
        own["use_bidirectional_attention"] = "vision".into();
    }
    config["tie_word_embeddings"] = own["tie_word_embeddings"].clone();
    let field = if name == "internvl" {
        "llm_config"
    } else {
        "text_config"
    };
    for section in sections_of(&config).collect::<Vec<_>>() {
        for field in ["hidden_size", "out_hidden_size", "text_hidden_size", "output_dim"] {
            let size = config[section].get_mut(field);
            if let Some(size) = size.filter(|size| **size == narrow) {
                *size = wide.into();
            }
        }
    }
    config[field] = own;
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    for file in ["preprocessor_config.json", "processor_config.json"] {
        if tower.join(file).exists() {
            std::fs::copy(tower.join(file), from.join(file)).unwrap();
        }
    }
}

/// Names the token whose row of the embedding the tower has, too, in `directory` of the model `name`.
fn name_break(name: &str, directory: &Path) {
    if ["mistral3", "pixtral"].contains(&name) {
        let tokens = r#"{"added_tokens_decoder": {"5": {"content": "[IMG_BREAK]"}}}"#;
        std::fs::write(directory.join("tokenizer_config.json"), tokens).unwrap();
    }
}

/// A language model and its tower come back as the multimodal model: every tensor with its bytes, and
/// each field of the tower.
#[test]
fn towers_come_back_with_their_language_models() {
    assert_eq!(LANGUAGE_MODELS.len() + ONE_WAY.len(), towers().len());
    for (name, like, inner) in LANGUAGE_MODELS {
        let directory = crate::common::tempdir().unwrap();
        let from = directory.path().join(name);
        join(name, like, inner, &from);
        let language = directory.path().join("model.gguf");
        // Of InternVL, the language model is converted from a directory of its own.
        let of_language = match *name {
            "internvl" => data().join("whole").join(like).join("hf"),
            _ => from.clone(),
        };
        parse(of_language)
            .unwrap()
            .convert(&language, ConvertTarget::Gguf)
            .unwrap();
        name_break(name, &from);
        let tower = to_mmproj(&from, directory.path(), options());
        let back = directory.path().join("back");
        let joined = parse(&language)
            .unwrap()
            .with_mmproj(parse(&tower).unwrap())
            .unwrap();
        let whole = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
        joined.convert(&back, whole).unwrap();
        let (found, expected) = (tensors(&back), tensors(&from));
        for (tensor, value) in &expected {
            assert!(found.get(tensor) == Some(value), "{name}: `{tensor}`");
        }
        assert_eq!(found.len(), expected.len(), "{name}");
        let [found, expected] = [&back, &from].map(|path| read_json(&path.join("config.json")));
        for section in sections_of(&expected) {
            for (field, value) in expected[section].as_object().unwrap() {
                let other = &found[section][field];
                let is_same = other == value
                    || other.is_null()
                    || field == "model_type"
                    || field.ends_with("rope_parameters");
                assert!(is_same, "{name}: {field}: {other} is not {value}");
            }
        }
        name_break(name, &back);
        assert_eq!(
            tensors(&to_mmproj(&back, directory.path(), options())),
            tensors(&tower),
            "{name}"
        );
    }
}

/// A tower of which something is lost does not come back.
#[test]
fn towers_of_which_something_is_lost_stay() {
    for name in ONE_WAY {
        let language = parse(canonical_gguf(data().join("whole/llama_bias"))).unwrap();
        let tower = parse(canonical_gguf(data().join("towers").join(name))).unwrap();
        let joined = language.with_mmproj(tower).unwrap();
        let directory = crate::common::tempdir().unwrap();
        let whole = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
        let result = joined.convert(directory.path().join("back"), whole);
        let error = result.map(drop).unwrap_err().to_string();
        let is_told = ["no class of transformers", "no directory comes back: it lacks"]
            .iter()
            .chain(&[
                "no directory comes back: transformers has no",
                "its language model is no class",
            ])
            .any(|words| error.contains(words));
        assert!(is_told, "{name}: {error}");
    }
}

/// A tower alone is no model, and one of another model is refused.
#[test]
fn only_a_model_and_its_tower_are_joined() {
    let [gemma, qwen] = ["gemma3", "qwen2_vl"].map(|name| data().join("towers").join(name));
    let language = canonical_gguf(data().join("whole/gemma3"));
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out");
    let tower = parse(canonical_gguf(&gemma)).unwrap();
    let whole = || ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let error = tower
        .convert(&output, whole())
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(error.contains("amn remember MODEL.gguf --mmproj"), "{error}");
    let refused = |tower: &Path, options: ConvertOptions| {
        let joined = parse(&language).unwrap().with_mmproj(parse(tower).unwrap());
        let result = joined.and_then(|joined| joined.convert(&output, options));
        result.map(drop).unwrap_err().to_string()
    };
    let error = refused(&canonical_gguf(&gemma), whole());
    assert!(error.contains("the tower is another model's"), "{error}");
    let error = refused(&canonical_gguf(&qwen), whole());
    assert!(error.contains("beside a language model `gemma3`"), "{error}");
    let error = refused(&language, whole());
    assert!(error.contains("it is no tower"), "{error}");
    let error = refused(&canonical_gguf(&gemma), ConvertOptions::from(TargetDtype::BF16));
    assert!(error.contains("a Hugging Face directory"), "{error}");
    assert!(!output.exists());
}
