//! Inputs that are otherwise than `tests/data/whole`: other forms of a model, parts of one,
//! quantized ones.

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};

use super::{json, metadata, named, tensors, to_gguf, to_hf, write};
use crate::canonical::canonical_gguf;
use crate::common::data;

/// Gemma 4 as it is published: a class with towers for images and sounds, and other fields for the
/// sizes of single layers.
#[test]
fn gemma4_with_towers() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/gemma4_moe"), directory.path());
    let mut text = json(&from.join("config.json"));
    let fields = text.as_object_mut().unwrap();
    for field in ["per_layer_config", "architectures"] {
        fields.remove(field).unwrap();
    }
    fields.insert("global_head_dim".to_owned(), 16.into());
    fields.insert("num_global_key_value_heads".to_owned(), 1.into());
    let config = serde_json::json!({
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 7, "num_hidden_layers": 9},
    });
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let path = from.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let renamed = |(name, view): (String, _)| {
        let rest = name.strip_prefix("model.").unwrap();
        (format!("model.language_model.{rest}"), view)
    };
    let mut all: Vec<_> = file.tensors().into_iter().map(renamed).collect();
    let view = || safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, vec![1], &[0, 0]);
    for tower in ["vision_tower.a", "embed_vision.a", "audio_tower.a", "embed_audio.a"] {
        all.push((format!("model.{tower}.weight"), view().unwrap()));
    }
    std::fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
    let found = tensors(&to_gguf(&from, directory.path()));
    assert!(found == tensors(&canonical_gguf(data().join("whole/gemma4_moe"))));
}

/// Old checkpoints have numbers of positions, which are integers. They are left out.
#[test]
fn buffers_of_integers() {
    let directory = crate::common::tempdir().unwrap();
    let model = data().join("whole/bert");
    let from = named(&model, directory.path());
    let mut all = tensors(&from);
    let numbers = (0..4i64).flat_map(i64::to_le_bytes).collect();
    let name = "embeddings.position_ids".to_owned();
    all.insert(name, ("I64".to_owned(), vec![1, 4], numbers));
    write(&all, &from);
    let found = tensors(&to_gguf(&from, directory.path()));
    assert!(found == tensors(&canonical_gguf(&model)));
}

/// transformers 5 says of every T5 that its output is the embedding, and stores another one all the
/// same.
#[test]
fn t5_of_transformers_5() {
    let directory = crate::common::tempdir().unwrap();
    let model = data().join("whole/t5");
    let from = named(&model, directory.path());
    let mut config = json(&from.join("config.json"));
    config["tie_word_embeddings"] = true.into();
    config["scale_decoder_outputs"] = false.into();
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let found = tensors(&to_gguf(&from, directory.path()));
    assert!(found == tensors(&canonical_gguf(&model)));
}

/// Checkpoints whose experts are one tensor for all, as transformers 5 has them in memory, become
/// the same as those with a tensor for each.
#[test]
fn fused_experts() {
    for name in ["qwen3_5_moe", "qwen3_next", "qwen3_moe", "qwen2_moe"] {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&data().join("whole").join(name), directory.path());
        let path = from.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let layers = file
            .names()
            .iter()
            .filter(|name| name.ends_with("experts.0.up_proj.weight"))
            .count();
        let mut made: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        for layer in 0..layers {
            let prefix = format!("model.layers.{layer}.mlp.experts");
            let part = |expert: usize, part: &str| {
                let view = file.tensor(&format!("{prefix}.{expert}.{part}.weight"));
                view.map(|view| (view.shape().to_vec(), view.data().to_vec()))
            };
            let (mut rows, mut down) = (Vec::new(), Vec::new());
            let mut count = 0;
            while let Ok((_, gate)) = part(count, "gate_proj") {
                rows.extend(gate);
                rows.extend(part(count, "up_proj").unwrap().1);
                down.extend(part(count, "down_proj").unwrap().1);
                count += 1;
            }
            let shape = part(0, "gate_proj").unwrap().0;
            made.push((
                format!("{prefix}.gate_up_proj"),
                vec![count, 2 * shape[0], shape[1]],
                rows,
            ));
            made.push((format!("{prefix}.down_proj"), vec![count, shape[1], shape[0]], down));
        }
        let view = |(name, shape, bytes)| {
            let dtype = safetensors::Dtype::BF16;
            (name, safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap())
        };
        let fused = || {
            made.iter()
                .map(|(name, shape, bytes)| view((name.clone(), shape.clone(), &bytes[..])))
        };
        let is_rest = |(name, _): &(String, _)| !name.contains(".mlp.experts.");
        let all: Vec<_> = file
            .tensors()
            .into_iter()
            .filter(is_rest)
            .chain(fused())
            .collect();
        let fused_only = safetensors::serialize(all, None).unwrap();
        let both = safetensors::serialize(
            file.tensors()
                .into_iter()
                .chain(fused())
                .collect::<Vec<_>>(),
            None,
        );
        std::fs::write(&path, fused_only).unwrap();
        let found = tensors(&to_gguf(&from, directory.path()));
        let expected = tensors(&canonical_gguf(data().join("whole").join(name)));
        assert!(found == expected, "{name}");
        // Of two answers none is right.
        std::fs::write(&path, both.unwrap()).unwrap();
        let output = directory.path().join("both.gguf");
        let error = parse(&from)
            .unwrap()
            .convert(&output, ConvertTarget::Gguf)
            .unwrap_err();
        assert!(error.to_string().contains("experts"), "{error}");
    }
}

/// Only the tensors, under their own names, as long as a caller says so or names a file.
#[test]
fn tensors_alone() {
    let directory = crate::common::tempdir().unwrap();
    let model = data().join("whole/llama");
    let output = directory.path().join("tensors.gguf");
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Tensors);
    parse(model.join("hf"))
        .unwrap()
        .convert(&output, options)
        .unwrap();
    let names = |path: &Path| tensors(path).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&output), names(&model.join("hf")));
    let output = directory.path().join("tensors.safetensors");
    parse(canonical_gguf(&model))
        .unwrap()
        .remember(&output, TargetDtype::BF16)
        .unwrap();
    assert_eq!(names(&output), names(&canonical_gguf(&model)));
}

/// One file of weights with its config beside it is a whole model as well.
#[test]
fn a_file_with_a_config() {
    let directory = crate::common::tempdir().unwrap();
    let model = data().join("whole/qwen2");
    let found = to_gguf(&model.join("hf/model.safetensors"), directory.path());
    assert!(tensors(&found) == tensors(&canonical_gguf(&model)));
}

/// A file of the model that changes while it is converted leaves no output.
#[test]
fn a_tokenizer_that_changes() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/llama"), directory.path());
    let (model, output) = (parse(&from).unwrap(), directory.path().join("model.gguf"));
    let conversion = model.plan(ConvertTarget::Gguf).unwrap();
    let path = from.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text} ")).unwrap();
    let error = conversion.write(&output).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
    assert!(!output.exists());
}

/// Encoding a directory gives the blocks that encoding its GGUF file gives, also where rows are
/// moved and experts are stacked.
#[test]
fn encoded_in_one_pass() {
    use anamnesis::ForgetScheme;

    for (name, scheme) in [
        ("mixtral", "gguf:q8_0"),
        ("llama", "gguf:q4_0"),
        ("qwen3_moe", "gguf:iq4_nl"),
        ("gpt_oss", "gguf:q5_0"),
        ("deepseek_v3", "gguf:q8_0"),
        ("qwen3_next", "gguf:q8_0"),
        ("qwen3_5", "gguf:q4_0"),
        ("granitemoe", "gguf:iq4_nl"),
    ] {
        let directory = crate::common::tempdir().unwrap();
        let model = data().join("whole").join(name);
        let scheme: ForgetScheme = scheme.parse().unwrap();
        let [once, twice] = ["once.gguf", "twice.gguf"].map(|name| directory.path().join(name));
        parse(model.join("hf"))
            .unwrap()
            .forget(&once, scheme.clone())
            .unwrap();
        parse(canonical_gguf(&model))
            .unwrap()
            .forget(&twice, scheme)
            .unwrap();
        assert!(tensors(&once) == tensors(&twice), "{name}");
        assert_eq!(metadata(&once)["general.file_type"], metadata(&twice)["general.file_type"]);
    }
}

/// What is quantized is decoded on the way, from decoders of every layout: rows, flat blocks, and
/// words down columns.
#[test]
fn quantized_directories() {
    use anamnesis::ForgetScheme;

    let schemes = ["fp8-block", "bnb-nf4", "int8", "mlx-4bit", "w4a16"];
    let all = schemes
        .into_iter()
        .flat_map(|scheme| [(scheme, "llama"), (scheme, "mixtral")]);
    // Heads that are turned or in another order, of codes in blocks, in words down columns and in
    // flat runs.
    let moved = ["fp8-block", "bnb-nf4", "w4a16"].into_iter();
    let moved = moved.flat_map(|scheme| [(scheme, "deepseek_v3"), (scheme, "qwen3_5")]);
    for (scheme, name) in all.chain(moved).chain([("mxfp4-gpt-oss", "gpt_oss")]) {
        let directory = crate::common::tempdir().unwrap();
        let model = data().join("whole").join(name);
        let scheme: ForgetScheme = scheme.parse().unwrap();
        let [quantized, decoded] = ["quantized", "decoded"].map(|n| directory.path().join(n));
        parse(model.join("hf"))
            .unwrap()
            .forget(&quantized, scheme.clone())
            .unwrap();
        parse(&quantized)
            .unwrap()
            .remember(&decoded, TargetDtype::BF16)
            .unwrap();
        let [a, b] = ["a", "b"].map(|n| directory.path().join(n));
        for path in [&a, &b] {
            std::fs::create_dir(path).unwrap();
        }
        let (a, b) = (to_gguf(&quantized, &a), to_gguf(&decoded, &b));
        assert!(tensors(&a) == tensors(&b), "{name} from {scheme}");
    }
}

/// A Unigram vocabulary of tokenizer.json, without the file of SentencePiece, has the tokens and
/// flags of that file.
#[test]
fn unigram_without_its_model() {
    let directory = crate::common::tempdir().unwrap();
    let model = data().join("whole/xlm_roberta");
    let from = named(&model, directory.path());
    std::fs::remove_file(from.join("sentencepiece.bpe.model")).unwrap();
    let found = metadata(&to_gguf(&from, directory.path()));
    let expected = metadata(&canonical_gguf(&model));
    for key in
        ["add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap", "unknown_token_id"]
    {
        let key = format!("tokenizer.ggml.{key}");
        assert_eq!(found[&key], expected[&key], "{key}");
    }
    let texts = |metadata: &BTreeMap<String, GgufMetadataValue>| match &metadata["tokenizer.ggml.tokens"]
    {
        GgufMetadataValue::Array(array) => match &**array {
            anamnesis::GgufMetadataArray::String(texts) => texts.clone(),
            _ => unreachable!(),
        },
        _ => unreachable!(),
    };
    let (found, expected) = (texts(&found), texts(&expected));
    assert_eq!(found.len(), expected.len());
    // SentencePiece's model has no token for what is masked, the last one.
    let mask = found.iter().position(|token| token == "<mask>").unwrap();
    assert!(mask > 40 && expected[mask].starts_with("[PAD"));
    assert_eq!(found[..mask], expected[..mask]);
}

/// Kimi K2.5 as it is published: Kimi K2 with a tower for images.
#[test]
fn kimi_k2_with_a_tower() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/kimi_k2"), directory.path());
    let mut text = json(&from.join("config.json"));
    let path = from.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors_of = file.tensors().into_iter();
    let mut all: Vec<_> = tensors_of
        .map(|(name, view)| (format!("language_model.{name}"), view))
        .collect();
    let view = || safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, vec![1], &[0, 0]);
    for tower in ["vision_tower.a", "mm_projector.a"] {
        all.push((format!("{tower}.weight"), view().unwrap()));
    }
    std::fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
    let expected = tensors(&canonical_gguf(data().join("whole/kimi_k2")));
    for names_class in [true, false] {
        if !names_class {
            text.as_object_mut().unwrap().remove("architectures");
        }
        let config = serde_json::json!({
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": text,
            "vision_config": {"hidden_size": 7, "num_hidden_layers": 9},
        });
        std::fs::write(from.join("config.json"), config.to_string()).unwrap();
        assert!(tensors(&to_gguf(&from, directory.path())) == expected);
    }
}

/// llama.cpp does not read the bounds of YaRN of DeepSeek's class, which Kimi K2 has otherwise.
#[test]
fn bounds_of_yarn_are_noted() {
    for (name, is_noted) in [("kimi_k2", true), ("deepseek_v3", false)] {
        let directory = crate::common::tempdir().unwrap();
        let model = parse(data().join("whole").join(name).join("hf")).unwrap();
        let output = directory.path().join("model.gguf");
        let report = model.convert(&output, ConvertTarget::Gguf).unwrap();
        let has_note = report
            .notes
            .iter()
            .any(|note| note.contains("`beta_fast` is 1"));
        assert_eq!(has_note, is_noted, "{name}: {:?}", report.notes);
        let key = "deepseek2.rope.scaling.yarn_beta_fast";
        let expected = if is_noted { 1.0 } else { 32.0 };
        let found = &metadata(&output)[key];
        assert_eq!(*found, GgufMetadataValue::F32(expected), "{name}");
    }
}

/// The source of a class in Python counts, wherever tokenizer_config.json says that it is known.
#[test]
fn a_class_with_another_regex() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/hunyuan_moe"), directory.path());
    let path = from.join("tokenization_hy.py");
    let source = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, source.replace(r"\p{N}|", r"\p{N}{1,3}|")).unwrap();
    let output = directory.path().join("model.gguf");
    let convert = |options| parse(&from).unwrap().convert(&output, options);
    let error = convert(ConvertOptions::new(ConvertTarget::Gguf)).unwrap_err();
    assert!(error.to_string().contains("tokenization_hy.py"), "{error}");
    assert!(!output.exists());
}

/// Files of diffusion models have the embedding of an encoder twice, or the encoder of UMT5 alone,
/// of which llama.cpp's converter knows no class; and modules of sentence-transformers behind the
/// pooling are named.
#[test]
fn encoders_as_they_are_published() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/t5_encoder"), directory.path());
    let mut all = tensors(&from);
    let shared = all["shared.weight"].clone();
    all.insert("encoder.embed_tokens.weight".to_owned(), shared);
    write(&all, &from);
    let canonical = canonical_gguf(data().join("whole/t5_encoder"));
    assert!(tensors(&to_gguf(&from, directory.path())) == tensors(&canonical));

    let from = named(&data().join("whole/umt5"), directory.path());
    let mut all = tensors(&from);
    all.retain(|name, _| !name.starts_with("decoder.") && name != "lm_head.weight");
    write(&all, &from);
    let mut config = json(&from.join("config.json"));
    config["architectures"] = serde_json::json!(["UMT5EncoderModel"]);
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let gguf = to_gguf(&from, directory.path());
    let mut expected = tensors(&canonical_gguf(data().join("whole/umt5")));
    expected.retain(|name, _| name.starts_with("enc.") || name == "token_embd.weight");
    assert!(tensors(&gguf) == expected);
    let back = to_hf(&gguf, directory.path());
    assert!(tensors(&back) == tensors(&from));
    let found = json(&back.join("config.json"));
    assert_eq!(found["architectures"], config["architectures"]);

    let from = named(&data().join("whole/gemma_embedding"), directory.path());
    let mut modules = json(&from.join("modules.json"));
    let dense =
        serde_json::json!({"path": "2_Dense", "type": "sentence_transformers.models.Dense"});
    modules.as_array_mut().unwrap().push(dense);
    std::fs::write(from.join("modules.json"), modules.to_string()).unwrap();
    let output = directory.path().join("embedding.gguf");
    let report = parse(&from).unwrap().convert(&output, ConvertTarget::Gguf);
    let notes = report.unwrap().notes;
    assert!(notes.iter().any(|note| note.ends_with("2_Dense (Dense)")), "{notes:?}");
}

/// Tokens of images have no input of each layer in transformers, and rows of zeros in GGUF.
#[test]
fn inputs_of_tokens_are_padded() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/gemma3n"), directory.path());
    let (name, rows, all) = ("model.embed_tokens_per_layer.weight", 256, 288);
    let mut stored = tensors(&from);
    let inputs = stored.get_mut(name).unwrap();
    assert_eq!(inputs.1[0], all);
    let width = inputs.2.len() / all;
    inputs.1[0] = rows;
    inputs.2.truncate(rows * width);
    write(&stored, &from);
    let mut config = json(&from.join("config.json"));
    config["vocab_size_per_layer_input"] = rows.into();
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let found = tensors(&to_gguf(&from, directory.path()));
    let mut expected = tensors(&canonical_gguf(data().join("whole/gemma3n")));
    let inputs = expected.get_mut("per_layer_token_embd.weight").unwrap();
    inputs.2[rows * width..].fill(0);
    assert!(found == expected);
}
