//! What `amn inspect` says of whole models: architecture, parameters, context, tokenizer, shards;
//! and its labels.

use std::path::Path;

use serde_json::Value;

use crate::amn;
use crate::canonical::canonical_gguf;
use crate::common::{data, f32s, file, raw};

fn run(command: &str, path: &Path, arguments: &[&str]) -> String {
    let output = amn(&[&[command, path.to_str().unwrap()], arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{}: {error}", path.display());
    String::from_utf8(output.stdout).unwrap()
}

fn model_of(path: &Path) -> Value {
    let inspection: Value = serde_json::from_str(&run("inspect", path, &["--json"])).unwrap();
    inspection["model"].clone()
}

/// The fields of transformers' config and the keys that llama.cpp's converter made of them say the
/// same.
#[test]
fn a_model_and_its_gguf_are_described_alike() {
    for (name, gguf) in [
        ("llama", "llama"),
        ("mixtral", "llama"),
        ("qwen3_moe", "qwen3moe"),
        ("gpt_oss", "gpt-oss"),
    ] {
        let directory = data().join("whole").join(name);
        let hf = model_of(&directory.join("hf"));
        let canonical = model_of(&canonical_gguf(&directory));
        assert_eq!(canonical["architecture"], gguf);
        let config = std::fs::read(directory.join("hf/config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(hf["architecture"], config["architectures"][0]);
        assert_eq!(hf["context_length"], config["max_position_embeddings"]);
        for field in ["context_length", "experts", "experts_used", "chat_template"] {
            assert_eq!(hf[field], canonical[field], "{name}: {field}");
        }
        assert_eq!(hf["experts"].is_null(), name == "llama");
        let tokenizer = hf["tokenizer"].as_str().unwrap();
        assert!(tokenizer.starts_with("BPE (tokenizer.json"), "{tokenizer}");
    }
}

/// Values of experts count with the part of them that a router chooses.
#[test]
fn active_parameters_of_a_mixture() {
    let path = data().join("whole/mixtral/hf");
    let model = anamnesis::parse(&path).unwrap();
    let (mut all, mut of_experts) = (0, 0);
    for tensor in model.tensors() {
        all += tensor.elements();
        if tensor.name().contains(".experts.") {
            of_experts += tensor.elements();
        }
    }
    let config = std::fs::read(path.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let field = |name: &str| config[name].as_u64().unwrap() as usize;
    let (experts, used) = (field("num_local_experts"), field("num_experts_per_tok"));
    assert!(of_experts > 0 && used < experts);
    let found = model_of(&path);
    assert_eq!(found["parameters"], all);
    let active = all - of_experts / experts * (experts - used);
    assert_eq!(found["active_parameters"], active);
    let text = run("inspect", &path, &[]);
    assert!(text.contains(&format!("\nParameters:  {all}, {active} active (")), "{text}");
    assert!(text.contains(&format!("\nExperts:     {used} of {experts} for each token\n")));
    // The shared experts of GGUF's stacks are no choice.
    let gguf = model_of(&canonical_gguf(data().join("whole/qwen2_moe")));
    let hf = model_of(&data().join("whole/qwen2_moe/hf"));
    assert_eq!(gguf["active_parameters"], hf["active_parameters"]);
}

/// A single file has the files beside it; a shard is called one, and what it lacks is not counted.
#[test]
fn single_files_and_shards() {
    let directory = crate::common::tempdir().unwrap();
    let write =
        |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
    let tensors = [raw("a.weight", "F32", &[2, 2], f32s(&[1.0; 4]))];
    write("m.safetensors", &file(&tensors, &[]));
    write("model-00002-of-00003.safetensors", &file(&tensors, &[]));
    write("config.json", br#"{"model_type": "x", "text_config": {"max_position_embeddings": 77}}"#);
    write("tokenizer.model", b"");
    write(
        "tokenizer_config.json",
        br#"{"tokenizer_class": "T\u001b[31m", "chat_template": "{{ x }}"}"#,
    );
    let text = run("inspect", &directory.path().join("m.safetensors"), &[]);
    let expected = "Arch:        x\nParameters:  4 (32.00 bits each as stored)\nContext:     77 tokens\n\
                    Tokenizer:   SentencePiece (tokenizer.model, T\\u{1b}[31m), with a chat template\n";
    assert!(text.ends_with(expected), "{text}");
    let shard = directory.path().join("model-00002-of-00003.safetensors");
    let text = run("inspect", &shard, &[]);
    assert!(
        text.ends_with("Shard:       2 of 3; the model's other tensors are in the others\n"),
        "{text}"
    );
    // A broken file is a note, and the rest is said.
    write("tokenizer.json", b"{");
    let found = model_of(&shard);
    assert!(
        found["notes"][0]
            .as_str()
            .unwrap()
            .contains("tokenizer.json")
    );
    assert_eq!(found["chat_template"], true);
    assert_eq!(found["shard"], serde_json::json!({"number": 2, "of": 3}));
    let mixed = data().join("compressed_tensors/tiny_mixed/model/model-00001-of-00003.safetensors");
    let text = run("inspect", &mixed, &[]);
    assert!(text.contains("(without 2 tensors that cannot be decoded)\n"), "{text}");
}

/// A GGUF file that is not the first of a split model is refused as what it is.
#[test]
fn a_part_of_gguf_alone_is_named() {
    let parts = data().join("gguf-files");
    let second = std::fs::read_dir(&parts)
        .unwrap()
        .map(|e| e.unwrap().path());
    let is_second =
        |path: &std::path::PathBuf| path.to_string_lossy().ends_with("-00002-of-00003.gguf");
    let second = second.into_iter().find(is_second).unwrap();
    let output = amn(&["inspect", second.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(6));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("a part of a split GGUF"), "{error}");
}

#[test]
fn labels_are_true() {
    // MLX adds its biases to scaled codes: they are no zero points.
    let mlx = data().join("mlx/tiny_qwen3_moe/model");
    let text = run("parse", &mlx, &[]);
    assert!(text.contains("   10 offset      BF16\n") && !text.contains("zero-point"), "{text}");
    assert!(run("inspect", &mlx, &[]).contains("\nOffsets:     10 tensors\n"));
    // The groups of sorted maps are those of the columns.
    let gptq = |name: &str| data().join("gptq").join(name).join("model.safetensors");
    let text = run("parse", &gptq("b4_v1_act_order"), &[]);
    assert!(text.contains("1 zero-point  I32 (packed)\n"), "{text}");
    assert!(text.contains("1 g_idx       I32 (activation-order)\n"), "{text}");
    let text = run("inspect", &gptq("b4_v1_g32"), &[]);
    assert!(text.contains("Group index: 1 tensor (groups in the order of columns)\n"), "{text}");
    // Arrays called like norms are no norms of a language model.
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("a.npz");
    let array = std::fs::read(data().join("npz/bf16_little.npy")).unwrap();
    let member = crate::common::zip::Member::stored("encoder.norm.weight.npy", &array);
    std::fs::write(&path, crate::common::zip::Zip::of(&[member]).file()).unwrap();
    assert!(run("inspect", &path, &[]).contains("\nPassthrough: 1 tensor\n"));
}

/// The lines of the picture: share, size and name of each bar.
fn space(text: &str) -> Vec<&str> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("Space:"));
    let is_bar = |line: &&str| line.contains('█');
    lines.by_ref().take_while(is_bar).collect()
}

/// What takes the space, largest first, in lines of at most 80 characters.
#[test]
fn what_takes_the_space() {
    let text = run("inspect", &data().join("adapters/base-q8_0.gguf"), &[]);
    let expected = [
        "Space:       ████████████████  99 %    70.1 KB  GGUF Q8_0, 32-value blocks",
        "             █                  1 %      768 B  F32",
    ];
    assert_eq!(space(&text), expected);
    let text = run("inspect", &data().join("demo/model-q4_k.gguf"), &[]);
    assert!(!text.contains("Space:"), "one kind is no picture: {text}");
    // The schemes and types are those that `ls` lists, and more than eight are others.
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let dtypes = ["F64", "I64", "F32", "I32", "U32", "F16", "BF16", "I16", "I8", "U8"];
    let sizes = [8, 8, 4, 4, 4, 2, 2, 2, 1, 1];
    let tensors: Vec<_> = dtypes
        .iter()
        .enumerate()
        .map(|(i, dtype)| {
            let bytes = 8 * (200 - 20 * i);
            raw(dtype, dtype, &[bytes / sizes[i]], vec![0; bytes])
        })
        .collect();
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let text = run("inspect", &path, &[]);
    let lines = space(&text);
    assert_eq!(lines.len(), 8, "{text}");
    assert!(lines[0].ends_with("18 %     1.6 KB  F64"), "{text}");
    assert!(lines[7].ends_with("11 %      960 B  3 others"), "{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
}

/// Several models are a table, in which one that cannot be read has a row.
#[test]
fn several_models_are_a_table() {
    let demo = |name: &str| data().join(name).to_str().unwrap().to_owned();
    let models = [
        demo("demo/model-fp8.safetensors"),
        demo("README.md"),
        demo("gptq/b4_v1_hostile_f16/model.safetensors"),
        demo("adapters/base-q8_0.gguf"),
    ];
    let models = models.each_ref().map(String::as_str);
    let output = amn(&[&["inspect"], &models[..]].concat());
    assert_eq!(output.status.code(), Some(6));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = [
        "NAME                   FORMAT     ARCHITECTURE      PARAMETERS  BITS     SIZE   DECODED",
        "model-fp8.safetensors  FP8 E4M3   -                     65.5 K  8.00  64.0 KB  128.0 KB",
        "README.md              error: unsupported format `text`: give the file of weights, or the directory",
        "base-q8_0.gguf         GGUF Q8_0  llama                 67.8 K  8.57  70.9 KB  132.8 KB",
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!([lines[0], lines[1], lines[2], lines[4]], expected, "{text}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with(&format!("error: {}: unsupported", models[1])), "{error}");
    // JSON has what it has of each alone.
    let output = amn(&[&["inspect", "--json"], &models[..]].concat());
    let found = crate::json::assert_valid(&output.stdout, "inspected", "several models");
    let alone = amn(&["inspect", "--json", models[3]]).stdout;
    let alone: Value = serde_json::from_slice(&alone).unwrap();
    assert_eq!(found["models"][2], alone);
    assert_eq!(found["errors"][0]["file"], models[1]);
    assert_eq!(
        amn(&["inspect", "--globals", models[0], models[1]])
            .status
            .code(),
        Some(2)
    );
    // Names that are alike have their directories.
    let (a, b) = (demo("whole/llama/hf"), demo("whole/mixtral/hf"));
    let output = amn(&["inspect", &a, &b]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&a) && text.contains(&b), "{text}");
}
