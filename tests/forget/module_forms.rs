//! Weights that libraries have in their quantized modules otherwise than in the model: those of
//! `Conv1D` (GPT-2), and a head that has the matrix of the embedding.

use anamnesis::{ForgetScheme, TargetDtype, parse};
use serde_json::{Value, json};

use crate::common::directory::{write_files, write_shards};
use crate::common::forget::stored_at;
use crate::common::{data, f32s, raw};

/// Weights of GPT-2 that are decoded, `[in, out]`, are encoded as the library has stored them,
/// `[out, in]`.
#[test]
fn weights_of_conv1d_are_encoded_as_their_libraries_store_them() {
    let root = crate::common::tempdir().unwrap();
    for (case, scheme, group, is_exact) in [
        ("bnb4", "nf4", None, true),
        ("bnb8", "int8", None, true),
        // AutoRound chooses other scales.
        ("gptq", "gptq", Some(32), false),
    ] {
        let golden = data().join("conv1d").join(case).join("model");
        let (plain, out) = (root.path().join(case), root.path().join(format!("{case}-out")));
        let model = parse(&golden).unwrap();
        model.remember(&plain, TargetDtype::F32).unwrap();
        let scheme: ForgetScheme = scheme.parse().unwrap();
        let scheme = match group {
            Some(group) => scheme.with_group_size(group),
            None => scheme,
        };
        let report = parse(&plain).unwrap().forget(&out, scheme).unwrap();
        assert_eq!(report.encoded.len(), 4, "{case}: {:?}", report.kept);
        let (golden, made) = (stored_at(&golden), stored_at(&out));
        for encoded in &report.encoded {
            let base = encoded.name.strip_suffix("weight").unwrap();
            let is_part = |name: &str| name.starts_with(base) && !name.ends_with("bias");
            let parts: Vec<_> = golden.iter().filter(|(name, _)| is_part(name)).collect();
            assert!(!parts.is_empty(), "{case}: {base}");
            for (name, (dtype, shape, bytes)) in parts {
                let Some((made_dtype, made_shape, made_bytes)) = made.get(name) else {
                    panic!("{case}: no `{name}`");
                };
                let is_state = name.contains(".quant_state.");
                assert_eq!((made_dtype, made_shape), (dtype, shape), "{case}: {name}");
                assert!(!is_exact || is_state || made_bytes == bytes, "{case}: {name}");
            }
        }
    }
}

/// GPTQModel 7.7 loads AWQ of GPT-2 as it does GPTQ: eight outputs to a word, a row of words for
/// each input.
#[test]
fn weights_of_conv1d_are_transposed_for_awq() {
    let root = crate::common::tempdir().unwrap();
    let [plain, out, back] = ["plain", "out", "back"].map(|name| root.path().join(name));
    let golden = data().join("conv1d/gptq/model");
    parse(&golden)
        .unwrap()
        .remember(&plain, TargetDtype::F32)
        .unwrap();
    let scheme: ForgetScheme = "awq".parse().unwrap();
    let made = parse(&plain).unwrap();
    let report = made.forget(&out, scheme.with_group_size(32)).unwrap();
    assert_eq!(report.encoded.len(), 4, "{:?}", report.kept);
    parse(&out)
        .unwrap()
        .remember(&back, TargetDtype::F32)
        .unwrap();
    let [plain, out, back] = [plain, out, back].map(|path| stored_at(&path));
    for encoded in &report.encoded {
        let (_, shape, _) = &plain[&encoded.name];
        let words = &out[&encoded.name.replace("weight", "qweight")].1;
        assert_eq!(words, &[shape[0], shape[1] / 8], "{}", encoded.name);
        assert_eq!(&back[&encoded.name].1, shape, "{}", encoded.name);
    }
}

/// Libraries build a quantized module for every linear layer that the config does not name, and a
/// head that is tied to the embedding is in no file.
#[test]
fn a_tied_head_is_named_among_what_is_not_encoded() {
    let root = crate::common::tempdir().unwrap();
    let skipped = |head: &str, scheme: &str, list: &str| {
        let (input, output) = (root.path().join("model"), root.path().join("out"));
        let matrix = |name: &str| raw(name, "F32", &[128, 128], f32s(&[0.5; 128 * 128]));
        let mut tensors =
            vec![matrix("model.embed_tokens.weight"), matrix("model.layers.0.mlp.up_proj.weight")];
        if !head.is_empty() {
            tensors.push(matrix(&format!("{head}.weight")));
        }
        write_shards(&input, &[tensors]);
        write_files(&input, &[("config.json", r#"{"model_type": "llama"}"#)]);
        let scheme: ForgetScheme = scheme.parse().unwrap();
        parse(&input).unwrap().forget(&output, scheme).unwrap();
        let config = std::fs::read(output.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let list = config["quantization_config"][list].clone();
        std::fs::remove_dir_all(&input).unwrap();
        std::fs::remove_dir_all(&output).unwrap();
        list
    };
    let both = json!(["model.embed_tokens", "lm_head"]);
    for (scheme, list) in [
        ("nf4", "llm_int8_skip_modules"),
        ("int8", "llm_int8_skip_modules"),
        ("w4a16", "ignore"),
        ("fp8-block", "modules_to_not_convert"),
    ] {
        assert_eq!(skipped("", scheme, list), both, "{scheme}, tied");
        let count = |head: &str| skipped(head, scheme, list).as_array().unwrap().len();
        assert_eq!(count("lm_head"), 2, "{scheme}");
        // GPT-NeoX's in files; its class in transformers 5 calls it `lm_head`.
        assert_eq!(count("embed_out"), 3, "{scheme}");
        let of_roberta = json!(["model.embed_tokens", "lm_head.decoder"]);
        assert_eq!(skipped("lm_head.dense", scheme, list), of_roberta, "{scheme}");
    }
}
