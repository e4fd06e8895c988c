//! Adapters in GGUF files, as llama.cpp's converter makes them of PEFT's.

use anamnesis::{ConvertTarget, ErrorKind};

use super::*;
use crate::common::gguf::Gguf;

/// The model `base` as one F32 file of GGUF, with adapters.
fn whole_gguf(base: &Path, adapters: Vec<Adapter>, out: &Path) -> ParsedModel {
    let mut options = options(TargetDtype::F32, adapters);
    options.target = ConvertTarget::Gguf;
    parse(base).unwrap().convert(out, options).unwrap();
    parse(out).unwrap()
}

/// An adapter in GGUF gives the bits that it gives as PEFT has it, merged into a GGUF file, into a
/// model that becomes one, and into a GGUF file that becomes a directory.
#[test]
fn both_forms_are_the_same() {
    let root = crate::common::tempdir().unwrap();
    let plain = root.path().join("plain.gguf");
    whole_gguf(&base("base"), vec![], &plain);
    for (name, changed) in [("plain", 3), ("embedding", 2)] {
        let adapter = || vec![open(&format!("{name}.gguf"))];
        let file = |what: &str| root.path().join(format!("{name}-{what}.gguf"));
        let want = whole_gguf(&base("base"), vec![open(name)], &file("peft"));
        let into_file = whole_gguf(&plain, adapter(), &file("file"));
        let into_directory = whole_gguf(&base("base"), adapter(), &file("directory"));
        let before = parse(&plain).unwrap();
        let mut differing = 0;
        for t in want.tensors() {
            let bytes = |model: &ParsedModel| {
                let t = model.tensor(t.name()).unwrap();
                t.bytes().unwrap().into_owned()
            };
            differing += usize::from(bytes(&before) != bytes(&want));
            assert_eq!(bytes(&want), bytes(&into_file), "{name}: {}", t.name());
            assert_eq!(bytes(&want), bytes(&into_directory), "{name}: {}", t.name());
        }
        assert_eq!(differing, changed, "{name}");
        // As a directory, they are within one unit in the last place of peft's.
        let mut back = options(TargetDtype::F32, adapter());
        back.scope = ModelScope::Model;
        let out = root.path().join(name);
        parse(&plain).unwrap().convert(&out, back).unwrap();
        let (got, want) = (parse(&out).unwrap(), expected("base", name));
        for t in want.tensors() {
            let pairs = values(&want, t.name())
                .into_iter()
                .zip(values(&got, t.name()));
            for (want, got) in pairs {
                assert!(ulps(want, got) <= 1, "{name}: {}: {want} {got}", t.name());
            }
        }
    }
}

/// Factors in blocks of Q8_0, of which gguf-py's `dequantize` makes the F32 values of the other
/// file.
#[test]
fn factors_in_blocks() {
    let root = crate::common::tempdir().unwrap();
    let [blocks, floats] = ["plain-q8_0", "plain-q8_0-f32"].map(|name| {
        let out = root.path().join(format!("{name}.gguf"));
        whole_gguf(&base("base"), vec![open(&format!("{name}.gguf"))], &out);
        std::fs::read(out).unwrap()
    });
    assert!(blocks == floats);
}

/// The error of merging the adapter `adapter` into a GGUF file with the weights
/// `blk.0.attn_q.weight` of three rows and two columns and `token_embd.weight` of two rows and
/// three columns; empty if there is none.
fn gguf_refusal(adapter: &Gguf) -> String {
    let root = crate::common::tempdir().unwrap();
    let base = Gguf::default()
        .text("general.architecture", "llama")
        .tensor("blk.0.attn_q.weight", 0, &[2, 3], &f32s(&[1.0; 6]))
        .tensor("token_embd.weight", 0, &[3, 2], &f32s(&[1.0; 6]));
    let [base_path, path, out] =
        ["base.gguf", "adapter.gguf", "out.gguf"].map(|name| root.path().join(name));
    std::fs::write(&base_path, base.file()).unwrap();
    std::fs::write(&path, adapter.file()).unwrap();
    let run = || {
        let mut options = options(TargetDtype::F32, vec![Adapter::open(&path)?]);
        options.target = ConvertTarget::Gguf;
        parse(&base_path)?.convert(&out, options)
    };
    match run() {
        Ok(_) => String::new(),
        Err(error) => {
            assert!(!out.exists());
            assert!(matches!(error.kind(), ErrorKind::Parse | ErrorKind::Unsupported));
            error.to_string()
        }
    }
}

fn adapter(alpha: Option<f32>) -> Gguf {
    let gguf = Gguf::default()
        .text("general.architecture", "llama")
        .text("general.type", "adapter")
        .text("adapter.type", "lora");
    match alpha {
        Some(alpha) => gguf.key("adapter.lora.alpha", 6, &alpha.to_le_bytes()),
        None => gguf,
    }
}

fn pair(gguf: Gguf, weight: &str, a: [u64; 2], b: [u64; 2]) -> Gguf {
    let zeros = |shape: [u64; 2]| vec![0; (shape[0] * shape[1] * 4) as usize];
    gguf.tensor(&format!("{weight}.lora_a"), 0, &a, &zeros(a))
        .tensor(&format!("{weight}.lora_b"), 0, &b, &zeros(b))
}

#[test]
fn gguf_adapters_that_do_not_fit_are_errors() {
    let q = |a, b| pair(adapter(Some(2.0)), "blk.0.attn_q.weight", a, b);
    assert_eq!(gguf_refusal(&q([2, 4], [4, 3])), "");
    let embedding = |a, b| pair(adapter(None), "token_embd.weight", a, b);
    assert_eq!(gguf_refusal(&embedding([4, 2], [4, 3])), "");
    let whole = || q([2, 4], [4, 3]);
    let typed = |general: &str, kind: &str, architecture: &str| {
        let gguf = Gguf::default()
            .text("general.architecture", architecture)
            .text("general.type", general)
            .text("adapter.type", kind);
        pair(gguf, "blk.0.attn_q.weight", [2, 4], [4, 3])
    };
    let a = f32s(&[0.0; 2]);
    let cases = [
        (q([2, 4], [5, 3]), "rank is 4, and that of"),
        (q([3, 4], [4, 2]), "[3, 2]"),
        (embedding([2, 4], [3, 4]), "rank is 2"),
        (adapter(Some(1.0)), "it has no tensors"),
        (adapter(Some(-1.0)), "adapter.lora.alpha"),
        (adapter(Some(f32::NAN)), "adapter.lora.alpha"),
        (adapter(None).text("adapter.lora.alpha", "8"), "adapter.lora.alpha"),
        (typed("model", "lora", "llama"), "`general.type` is `model`"),
        (typed("adapter", "control_vector", "llama"), "`adapter.type`"),
        (typed("adapter", "lora", "qwen2"), "architecture is `llama`, and the adapter's `qwen2`"),
        (
            whole().key("adapter.alora.invocation_tokens", 4, &[0; 4]),
            "adapter.alora.invocation_tokens",
        ),
        (adapter(None).tensor("blk.0.attn_q.weight.lora_a", 0, &[2, 1], &a), "is missing"),
        (whole().tensor("blk.0.attn_norm.weight", 0, &[2], &a), "none of a LoRA"),
        (
            pair(adapter(None), "blk.0.attn_k.weight", [2, 4], [4, 3]),
            "the model has no `blk.0.attn_k.weight`",
        ),
    ];
    for (gguf, what) in cases {
        let error = gguf_refusal(&gguf);
        assert!(error.contains(what), "{what}: {error}");
    }
}

/// Weights of a model that stays as it is are not found under llama.cpp's names, and the two kinds
/// are not merged at once.
#[test]
fn gguf_adapters_need_the_names_of_gguf() {
    let root = crate::common::tempdir().unwrap();
    let out = root.path().join("out.safetensors");
    let refused = |adapters| {
        let model = parse(base("base")).unwrap();
        let error = model.convert(&out, options(TargetDtype::F32, adapters));
        error.unwrap_err().to_string()
    };
    let error = refused(vec![open("plain.gguf")]);
    assert!(error.contains("become GGUF (--to gguf)"), "{error}");
    let error = refused(vec![open("plain.gguf"), open("plain")]);
    assert!(error.contains("not merged at once"), "{error}");
}

/// A model whose class has another order of rows, under the same names and with the same shapes.
#[test]
fn gguf_adapters_of_another_architecture_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let path = root.path().join("adapter.gguf");
    let mut bytes = std::fs::read(adapters().join("plain.gguf")).unwrap();
    let at = bytes
        .windows(5)
        .position(|bytes| bytes == b"llama")
        .unwrap();
    bytes[at..at + 5].copy_from_slice(b"qwen2");
    std::fs::write(&path, bytes).unwrap();
    let mut options = options(TargetDtype::F32, vec![Adapter::open(&path).unwrap()]);
    options.target = ConvertTarget::Gguf;
    let model = parse(base("base")).unwrap();
    let error = model.convert(root.path().join("out.gguf"), options);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("architecture is `llama`, and the adapter's `qwen2`"), "{error}");
}

/// A file beside the weights of an adapter is not taken for it.
#[test]
fn other_files_are_no_adapters() {
    for (file, what) in [
        ("base/model.safetensors", "an adapter is a directory"),
        ("expected-base-plain.safetensors", "an adapter is a directory"),
        ("base/config.json", "give the file of weights"),
    ] {
        let error = Adapter::open(adapters().join(file))
            .unwrap_err()
            .to_string();
        assert!(error.contains(what), "{error}");
    }
    assert!(Adapter::open(adapters().join("plain/adapter_config.json")).is_ok());
}
