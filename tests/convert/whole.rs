//! Whole models between Hugging Face and GGUF, against llama.cpp's converter.

mod apart;
mod bases;
mod cards;
mod classes;
mod classifiers;
mod drafts;
mod edits;
mod glm;
mod inputs;
mod kept;
mod loading;
mod mutants;
mod nested;
mod parts;
mod predictions;
mod pruned;
mod refused;
mod rerankers;
mod rounds;
mod tied;
mod towers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{
    ConvertOptions, ConvertTarget, FloatCast, GgufMetadataArray, GgufMetadataValue, ModelScope,
    RememberOptions, TargetDtype, parse,
};
use serde_json::Value;

use crate::canonical::canonical_gguf;
use crate::common::{data, effort};

/// The directories of `tests/data/whole`, and of `tests/data/whole_prediction`, whose models have a
/// layer that predicts a further token.
pub fn models() -> Vec<PathBuf> {
    let directories = ["whole", "whole_prediction"].map(|name| data().join(name));
    let entries = directories.into_iter().flat_map(|directory| {
        let entries = std::fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().path())
    });
    let mut all: Vec<_> = entries.collect();
    all.sort();
    assert!(all.len() >= 96);
    all
}

/// In the gate all models, otherwise a fourth of them, other ones for another `part`.
pub fn some_models(part: usize) -> Vec<PathBuf> {
    let step = effort([4, 1, 1]);
    models()
        .into_iter()
        .skip(part % step)
        .step_by(step)
        .collect()
}

type Tensor = (String, Vec<usize>, Vec<u8>);
type Tensors = BTreeMap<String, Tensor>;

/// Every tensor of a file or directory: dtype, shape and bytes.
fn tensors(path: &Path) -> Tensors {
    let model = parse(path).unwrap();
    let all = model.tensors().map(|t| {
        let value = (t.dtype().to_string(), t.shape().to_vec(), t.bytes().unwrap().to_vec());
        (t.name().to_owned(), value)
    });
    all.collect()
}

fn metadata(path: &Path) -> BTreeMap<String, GgufMetadataValue> {
    let model = parse(path).unwrap();
    let metadata = model.gguf().unwrap().metadata();
    metadata
        .iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Makes `tensors`, which are BF16, F32 or I64, those of the directory `to`.
fn write(tensors: &Tensors, to: &Path) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let dtype = match dtype.as_str() {
            "F32" => safetensors::Dtype::F32,
            "I64" => safetensors::Dtype::I64,
            _ => safetensors::Dtype::BF16,
        };
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes);
        (name.as_str(), view.unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    std::fs::write(to.join("model.safetensors"), file).unwrap();
}

/// Converts `from` to GGUF in `directory`.
fn to_gguf(from: &Path, directory: &Path) -> PathBuf {
    let output = directory.join("model.gguf");
    parse(from)
        .unwrap()
        .convert(&output, ConvertTarget::Gguf)
        .unwrap();
    output
}

/// Converts `from` to a Hugging Face directory in `directory`.
fn to_hf(from: &Path, directory: &Path) -> PathBuf {
    let output = directory.join("back");
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    parse(from).unwrap().convert(&output, options).unwrap();
    output
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A copy of the directory `from` whose name is the model's, as the converter was told.
fn named(from: &Path, directory: &Path) -> PathBuf {
    let to = directory.join(from.file_name().unwrap());
    copy(&from.join("hf"), &to);
    to
}

/// Copies the directory `from` with all below it to `to`.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(std::fs::copy(&path, to).unwrap()),
        }
    }
}

#[test]
fn tensors_are_those_of_llama_cpp() {
    for model in models() {
        let directory = crate::common::tempdir().unwrap();
        let found = tensors(&to_gguf(&model.join("hf"), directory.path()));
        let expected = tensors(&canonical_gguf(&model));
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{}", model.display());
        for (name, tensor) in &expected {
            assert!(is_same(name, &found[name], tensor), "{} `{name}`", model.display());
        }
    }
}

/// Whether two tensors `name` are the same, or differ in one of two ways. Decays of Mamba are
/// `-exp(x)`, which is rounded correctly here, and which torch gets wrong by a bit of the last
/// place now and then. Routers are F32 here, also the one of Nemotron 3's prediction, which
/// llama.cpp's converter leaves in the model's type.
fn is_same(name: &str, a: &Tensor, b: &Tensor) -> bool {
    if name.ends_with(".ffn_gate_inp.weight") && (a.0.as_str(), b.0.as_str()) == ("F32", "BF16") {
        let narrow = b.2.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]);
        return a.1 == b.1 && narrow.eq(a.2.iter().copied());
    }
    let bits = |tensor: &Tensor| {
        let chunks = tensor.2.chunks_exact(4);
        let bits = chunks.map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        bits.collect::<Vec<_>>()
    };
    let is_near = || {
        let pairs: Vec<_> = bits(a).into_iter().zip(bits(b)).collect();
        let off = pairs.iter().filter(|(a, b)| a != b).count();
        off * 20 <= pairs.len() && pairs.iter().all(|(a, b)| (a - b).abs() <= 1)
    };
    let is_decay = name.ends_with(".ssm_a") && a.1 == b.1 && a.1.len() == 2 && a.0 == "F32";
    a == b || is_decay && b.0 == "F32" && is_near()
}

/// Keys that are written otherwise on purpose: names are made of the directory's alone, without
/// guesses at version and finetune.
const OTHERWISE: &[&str] =
    &["general.name", "general.basename", "general.finetune", "general.version"];

#[test]
fn metadata_is_that_of_llama_cpp() {
    for model in models() {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&model, directory.path());
        let mut found = metadata(&to_gguf(&from, directory.path()));
        // The converter leaves the file type of GPT-NeoX and of MPT out.
        if model.ends_with("gpt_neox") || model.ends_with("mpt") {
            found.remove("general.file_type");
        }
        // Without the key llama.cpp caps at 30, and a model whose field is null has no cap.
        if model.ends_with("gemma4") {
            let cap = found.remove("gemma4.final_logit_softcapping");
            assert!(cap == Some(GgufMetadataValue::F32(0.0)));
        }
        // The converter takes `<bos>` and `<unk>`, which no config of the model names, for normal
        // tokens, so that llama.cpp does not find them in a text.
        if model
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("gemma4")
        {
            let types = found.get_mut("tokenizer.ggml.token_type");
            let Some(GgufMetadataValue::Array(types)) = types else {
                panic!("no types");
            };
            let GgufMetadataArray::I32(types) = &mut **types else {
                panic!("types of another type");
            };
            assert_eq!(types[..4], [3, 3, 3, 3]);
            types[2..4].fill(1);
        }
        check_metadata(found, &canonical_gguf(&model));
    }
}

/// Compares the metadata `found` with that of the file `canonical`, but for what is written
/// otherwise on purpose.
fn check_metadata(mut found: BTreeMap<String, GgufMetadataValue>, canonical: &Path) {
    let mut expected = metadata(canonical);
    for key in OTHERWISE {
        found.remove(*key);
        expected.remove(*key);
    }
    let keys = |map: &BTreeMap<String, _>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&found), keys(&expected), "{}", canonical.display());
    for (key, value) in &expected {
        assert_eq!(found[key], *value, "{} `{key}`", canonical.display());
    }
}

#[test]
fn weights_come_back() {
    for model in models().into_iter().step_by(effort([2, 1, 1])) {
        let directory = crate::common::tempdir().unwrap();
        let back = to_hf(&canonical_gguf(&model), directory.path());
        let (found, mut expected) = (tensors(&back), tensors(&model.join("hf")));
        // llama.cpp's converter leaves the layer out that makes a vector of the first token's
        // state.
        expected.retain(|name, _| !name.contains("pooler.dense."));
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{}", model.display());
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{} `{name}`", model.display());
        }
    }
}

/// In models of F32 nothing is cast, so that most tensors are copied. They have the shapes of the
/// other side all the same.
#[test]
fn models_of_f32_have_the_same_shapes() {
    let shapes = |path: &Path| {
        let of = |(name, (_, shape, _))| (name, shape);
        tensors(path)
            .into_iter()
            .map(of)
            .collect::<BTreeMap<_, _>>()
    };
    for model in some_models(0) {
        let directory = crate::common::tempdir().unwrap();
        let single = directory.path().join("single");
        let to_f32 = RememberOptions::new(TargetDtype::F32).with_cast(FloatCast::Checked);
        let stored = parse(model.join("hf")).unwrap();
        stored
            .convert(&single, ConvertOptions::from(to_f32))
            .unwrap();
        let gguf = to_gguf(&single, directory.path());
        let want = shapes(&canonical_gguf(&model));
        assert!(shapes(&gguf) == want, "{}", model.display());
        let back = to_hf(&gguf, directory.path());
        let mut want = shapes(&model.join("hf"));
        want.retain(|name, _| !name.contains("pooler.dense."));
        assert!(shapes(&back) == want, "{}", model.display());
    }
}

/// Mistral's files are Llama's to llama.cpp, so they come back as that. Kimi K2 comes back as
/// DeepSeek 3, which it is.
#[test]
fn configs_come_back() {
    for model in models() {
        let directory = crate::common::tempdir().unwrap();
        let back = to_hf(&canonical_gguf(&model), directory.path());
        let (found, expected) =
            (json(&back.join("config.json")), json(&model.join("hf/config.json")));
        let is_other = model.ends_with("mistral") || model.ends_with("kimi_k2");
        for (field, value) in found.as_object().unwrap() {
            // transformers writes neither a field that has its default, nor the old name of
            // `dtype`.
            let Some(original) = expected.get(field).filter(|value| !value.is_null()) else {
                continue;
            };
            let is_class = matches!(field.as_str(), "architectures" | "model_type");
            let is_near = value
                .as_f64()
                .zip(original.as_f64())
                .is_some_and(|(a, b)| a == b);
            // The width that LFM 2 adjusts to comes back as one that needs no adjustment.
            let adjusted = ["intermediate_size", "block_auto_adjust_ff_dim"];
            if model.ends_with("lfm2") && adjusted.contains(&field.as_str()) {
                continue;
            }
            // An encoder has no output that could be tied.
            if model.ends_with("t5_encoder") && field == "tie_word_embeddings" {
                continue;
            }
            // llama.cpp has the epsilon of the other norms.
            if model.ends_with("falcon_mamba") && field == "mixer_rms_eps" {
                continue;
            }
            // Configs of Hunyuan name a byte; GGUF has the token that begins a text.
            if model.ends_with("hunyuan_moe") && field == "bos_token_id" {
                continue;
            }
            let is_same = is_near
                || is_other && is_class
                || is_rope(field, value, original)
                || is_part(field, value, original);
            assert!(is_same || value == original, "{} `{field}`: {value}", model.display());
        }
        let needed: [&[&str]; 4] = [
            &["vocab_size"],
            &["hidden_size", "n_embd", "d_model", "dim"],
            &["num_hidden_layers", "n_layer", "num_layers", "n_layers"],
            &["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"],
        ];
        for names in needed {
            assert!(names.iter().any(|field| found.get(field).is_some()));
        }
    }
}

/// Whether the config of MPT's attention has some fields of the original one, which has all that
/// transformers writes.
fn is_part(field: &str, found: &Value, expected: &Value) -> bool {
    let fields = found.as_object().filter(|_| field == "attn_config");
    fields.is_some_and(|fields| fields.iter().all(|(name, value)| expected[name] == *value))
}

/// Whether a scaling says the same.
fn is_rope(field: &str, found: &Value, expected: &Value) -> bool {
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64);
    field == "rope_scaling"
        && found["rope_type"] == expected["rope_type"]
        && number(found, "factor") == number(expected, "factor")
        && number(found, "original_max_position_embeddings")
            == number(expected, "original_max_position_embeddings")
}

/// From GGUF to a directory and back nothing is lost.
#[test]
fn gguf_comes_back() {
    for model in some_models(1) {
        let directory = crate::common::tempdir().unwrap();
        let canonical = canonical_gguf(&model);
        let again = to_gguf(&to_hf(&canonical, directory.path()), directory.path());
        let (found, expected) = (tensors(&again), tensors(&canonical));
        let is_same = |((a, tensor), (b, other)): ((&String, &Tensor), (&String, &Tensor))| {
            a == b && is_same(a, tensor, other)
        };
        let is_all = found.len() == expected.len() && found.iter().zip(&expected).all(is_same);
        assert!(is_all, "{}", model.display());
    }
}

/// transformers divides by 0 to find the kinds of layers that have no window, unless the config
/// says what they are.
#[test]
fn exaone_without_windows_has_kinds_of_layers() {
    let directory = crate::common::tempdir().unwrap();
    let gguf = canonical_gguf(data().join("whole/exaone4"));
    let config = json(&to_hf(&gguf, directory.path()).join("config.json"));
    let kinds = serde_json::json!(["full_attention", "full_attention"]);
    assert_eq!((&config["layer_types"], &config["sliding_window"]), (&kinds, &Value::Null));
}

/// What `--fuse-qkv` and `--fuse-gate-up-exps` of llama.cpp's converter have made one tensor is
/// taken apart.
#[test]
fn fused_tensors() {
    for (name, fused) in [
        // Queries with their gates; the other layers have a tensor of the same name that is none.
        ("qwen3_5", ["blk.1.attn_qkv.weight", "blk.2.attn_qkv.weight"]),
        ("llama_bias", ["blk.0.attn_qkv.weight", "blk.1.attn_qkv.bias"]),
        // Of layers of two sizes; only layers without a tensor of values have keys that are values.
        ("gemma4", ["blk.1.attn_qkv.weight", "blk.2.attn_qkv.weight"]),
        ("qwen3_5_moe", ["blk.0.ffn_gate_up_exps.weight", "blk.3.ffn_gate_up_exps.weight"]),
    ] {
        let gguf = data().join(format!("whole_fused/{name}.gguf"));
        let names = tensors(&gguf);
        assert!(fused.iter().all(|fused| names.contains_key(*fused)), "{name}");
        let directory = crate::common::tempdir().unwrap();
        let back = to_hf(&gguf, directory.path());
        let whole = if name == "qwen3_5" {
            "whole_prediction"
        } else {
            "whole"
        };
        let want = data().join(whole).join(name).join("hf");
        assert!(tensors(&back) == tensors(&want), "{name}");
    }
}
