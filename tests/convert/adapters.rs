//! Adapters of PEFT: what `merge_and_unload` makes of them, and what is refused.

mod gguf;

use std::path::{Path, PathBuf};

use anamnesis::{
    Adapter, ConvertOptions, ErrorKind, FloatCast, ForgetScheme, ModelScope, ParsedModel,
    RememberOptions, TargetDtype, parse,
};
use serde_json::json;

use crate::common::{Raw, data, f32s, file, raw};

fn adapters() -> PathBuf {
    data().join("adapters")
}

fn open(name: &str) -> Adapter {
    Adapter::open(adapters().join(name)).unwrap()
}

/// The adapters of a case, with their weights.
fn case(name: &str) -> Vec<Adapter> {
    match name {
        "two" => vec![
            open("plain").with_weight(0.5),
            open("patterns").with_weight(-1.25),
        ],
        name => vec![open(name)],
    }
}

fn options(to: TargetDtype, adapters: Vec<Adapter>) -> ConvertOptions {
    let cast = match to {
        TargetDtype::F32 => FloatCast::Checked,
        _ => FloatCast::Keep,
    };
    let run = RememberOptions::new(to).with_threads(2).with_cast(cast);
    ConvertOptions::from(run).with_adapters(adapters)
}

/// The model `base` with the adapters of `case`, written to `out`.
fn merged(base: &Path, case_name: &str, to: TargetDtype, out: &Path) -> ParsedModel {
    let mut options = options(to, case(case_name));
    if base.extension().is_some() {
        options.scope = ModelScope::Model;
    }
    parse(base).unwrap().convert(out, options).unwrap();
    parse(out).unwrap()
}

fn values(model: &ParsedModel, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let bytes = tensor.bytes().unwrap();
    let number = |bytes: &[u8]| match tensor.dtype() {
        anamnesis::Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        anamnesis::Dtype::BF16 => {
            f32::from_bits(u32::from(u16::from_le_bytes(bytes.try_into().unwrap())) << 16)
        }
        other => panic!("{name}: {other}"),
    };
    let size = bytes.len() / tensor.elements();
    bytes.chunks_exact(size).map(number).collect()
}

/// Distance in units of the last place.
fn ulps(a: f32, b: f32) -> u32 {
    let ordered = |x: f32| {
        let bits = x.to_bits() as i32;
        if bits < 0 {
            i32::MIN.wrapping_sub(bits)
        } else {
            bits
        }
    };
    ordered(a).abs_diff(ordered(b))
}

const CASES: [(&str, &str); 16] = [
    ("base", "plain"),
    ("base", "patterns"),
    ("base", "embedding"),
    ("base", "saved"),
    ("base", "dora"),
    ("base", "two"),
    ("base-fp8", "plain"),
    ("base-fp8", "dora"),
    ("base-fp8", "two"),
    ("base-nf4", "plain"),
    ("base-nf4", "dora"),
    ("base-nf4", "two"),
    ("base-q8_0.gguf", "plain"),
    ("base-q8_0.gguf", "dora"),
    ("base-q8_0.gguf", "two"),
    ("gpt2", "gpt2"),
];

fn base(name: &str) -> PathBuf {
    match name {
        "gpt2" => data().join("whole/gpt2/hf"),
        name => adapters().join(name),
    }
}

fn expected(base: &str, case: &str) -> ParsedModel {
    let base = base.trim_end_matches(".gguf");
    parse(adapters().join(format!("expected-{base}-{case}.safetensors"))).unwrap()
}

/// Every tensor that peft changes has its values within one unit in the last place, and every other those without the adapter.
#[test]
fn values_are_those_of_peft() {
    let root = tempfile::tempdir().unwrap();
    let (mut differing, mut all) = (0, 0);
    for (base_name, case_name) in CASES {
        let context = format!("{base_name} {case_name}");
        let out = root.path().join(&context);
        let got = merged(&base(base_name), case_name, TargetDtype::F32, &out);
        let plain = root.path().join(base_name);
        if !plain.exists() {
            let mut options = options(TargetDtype::F32, vec![]);
            if base_name.ends_with("gguf") {
                options.scope = ModelScope::Model;
            }
            parse(base(base_name))
                .unwrap()
                .convert(&plain, options)
                .unwrap();
        }
        let (before, want) = (parse(&plain).unwrap(), expected(base_name, case_name));
        assert_eq!(before.tensors().len(), got.tensors().len(), "{context}");
        // The base without its head calls tensors otherwise than the whole model.
        let stored = |name: &str| match got.tensor(name) {
            Some(_) => name.to_owned(),
            None => name.trim_start_matches("transformer.").to_owned(),
        };
        let changed: Vec<String> = want.tensors().map(|t| stored(t.name())).collect();
        for t in want.tensors() {
            let (want, got) = (values(&want, t.name()), values(&got, &stored(t.name())));
            assert_eq!(want.len(), got.len(), "{context}: {}", t.name());
            for (want, got) in want.iter().zip(&got) {
                assert!(
                    ulps(*want, *got) <= 1,
                    "{context}: {}: {want} {got}",
                    t.name()
                );
                differing += usize::from(want.to_bits() != got.to_bits());
                all += 1;
            }
        }
        for t in before
            .tensors()
            .filter(|t| !changed.iter().any(|name| name == t.name()))
        {
            let same = got.tensor(t.name()).unwrap();
            assert_eq!(
                (t.dtype(), t.shape()),
                (same.dtype(), same.shape()),
                "{context}"
            );
            assert!(
                t.bytes().unwrap() == same.bytes().unwrap(),
                "{context}: {}",
                t.name()
            );
        }
    }
    // peft's sum of squares in F64 has another order, and so may the products.
    assert!(differing * 1000 <= all, "{differing} of {all}");
}

/// BF16 is F32 rounded once, also where a GGUF base's rows move.
#[test]
fn narrower_types_are_rounded_once() {
    let root = tempfile::tempdir().unwrap();
    for name in ["base-nf4", "base-q8_0.gguf"] {
        let wide = merged(
            &base(name),
            "plain",
            TargetDtype::F32,
            &root.path().join(format!("{name}-32")),
        );
        let narrow = merged(
            &base(name),
            "plain",
            TargetDtype::BF16,
            &root.path().join(format!("{name}-16")),
        );
        for t in expected(name, "plain").tensors() {
            let (wide, narrow) = (values(&wide, t.name()), values(&narrow, t.name()));
            for (wide, narrow) in wide.iter().zip(&narrow) {
                let bits = wide.to_bits();
                let rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
                assert_eq!(rounded, narrow.to_bits(), "{name} {}", t.name());
            }
        }
    }
}

/// One pass to a scheme or to GGUF is the same as two.
#[test]
fn what_is_merged_is_encoded() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let model = parse(base("base")).unwrap();
    merged(&base("base"), "two", TargetDtype::F32, &at("merged"));
    let two = parse(at("merged")).unwrap();
    for (scheme, one, other) in [
        (ForgetScheme::NF4, "one", "other"),
        ("gguf:q8_0".parse().unwrap(), "one.gguf", "other.gguf"),
    ] {
        let mut options = ConvertOptions::from(scheme);
        options.run.to = TargetDtype::F32;
        two.convert(at(other), &options).unwrap();
        model
            .convert(at(one), options.with_adapters(case("two")))
            .unwrap();
        let (one, other) = (parse(at(one)).unwrap(), parse(at(other)).unwrap());
        assert_eq!(one.tensors().len(), other.tensors().len());
        for t in one.tensors() {
            let same = other.tensor(t.name()).unwrap();
            assert_eq!(t.dtype(), same.dtype(), "{}", t.name());
            assert!(t.bytes().unwrap() == same.bytes().unwrap(), "{}", t.name());
        }
    }
}

/// Blocks of GGUF are copied to GGUF, but not those that an adapter changes.
#[test]
fn gguf_blocks_are_not_copied() {
    let root = tempfile::tempdir().unwrap();
    let tensors = root.path().join("tensors.gguf");
    let mut scheme = ConvertOptions::from("gguf:q8_0".parse::<ForgetScheme>().unwrap());
    scheme.scope = ModelScope::Tensors;
    parse(base("base"))
        .unwrap()
        .convert(&tensors, &scheme)
        .unwrap();
    let out = root.path().join("out.gguf");
    for encodes in [false, true] {
        let mut options = match encodes {
            true => scheme.clone(),
            false => ConvertOptions::new(anamnesis::ConvertTarget::Gguf),
        };
        options.run.to = TargetDtype::F32;
        if let Some(forget) = options.forget.as_mut() {
            forget.exclude = vec!["*q_proj*".to_owned()];
        }
        let model = parse(&tensors).unwrap();
        model
            .convert(&out, options.with_adapters(case("plain")))
            .unwrap();
        let name = "model.layers.0.self_attn.q_proj.weight";
        let want = values(&expected("base-q8_0", "plain"), name);
        let got = parse(&out).unwrap();
        assert_eq!(got.tensor(name).unwrap().dtype(), anamnesis::Dtype::F32);
        for (want, got) in want.iter().zip(values(&got, name)) {
            assert!(ulps(*want, got) <= 1, "{want} {got}");
        }
    }
}

/// An unfinished directory is not continued with another adapter, and the adapter's directory is no output.
#[test]
fn adapters_are_inputs() {
    let root = tempfile::tempdir().unwrap();
    let copy = root.path().join("adapter");
    std::fs::create_dir(&copy).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(adapters().join("plain").join(name), copy.join(name)).unwrap();
    }
    let model = parse(base("base")).unwrap();
    let with = |weight| {
        let adapter = Adapter::open(&copy).unwrap().with_weight(weight);
        options(TargetDtype::F32, vec![adapter])
    };
    let error = model.convert(&copy, with(1.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let mut single = with(1.0);
    single.single_file = true;
    let weights = copy.join("adapter_model.safetensors");
    let error = model.convert(&weights, single).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let out = root.path().join("out");
    let part = |weight| {
        let options = with(weight).with_part(1, 2);
        options.with_max_shard_size(64 << 10)
    };
    model.convert(&out, part(1.0)).unwrap();
    let mut other = part(2.0);
    other.resume = true;
    let error = model.convert(&out, other).unwrap_err().to_string();
    assert!(error.contains("adapters"), "{error}");
}

/// A base of one matrix, and an adapter of these tensors and settings.
fn refusal(tensors: &[Raw], settings: &serde_json::Value) -> String {
    let root = tempfile::tempdir().unwrap();
    let base = file(
        &[
            raw("a.q.weight", "F32", &[3, 2], f32s(&[1.0; 6])),
            raw("n", "I64", &[1], vec![0; 8]),
        ],
        &[],
    );
    let base_path = root.path().join("base.safetensors");
    std::fs::write(&base_path, base).unwrap();
    let mut config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1});
    config
        .as_object_mut()
        .unwrap()
        .extend(settings.as_object().unwrap().clone());
    std::fs::write(root.path().join("adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(
        root.path().join("adapter_model.safetensors"),
        file(tensors, &[]),
    )
    .unwrap();
    let out = root.path().join("out.safetensors");
    let run = || {
        let adapter = Adapter::open(root.path())?;
        let options = options(TargetDtype::F32, vec![adapter]);
        parse(&base_path)?.convert(&out, options)
    };
    match run() {
        Ok(_) => String::new(),
        Err(error) => {
            assert!(!out.exists());
            error.to_string()
        }
    }
}

fn a(shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    raw(
        "base_model.model.a.q.lora_A.weight",
        "F32",
        shape,
        f32s(&vec![0.5; n]),
    )
}

fn b(shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    raw(
        "base_model.model.a.q.lora_B.weight",
        "F32",
        shape,
        f32s(&vec![0.5; n]),
    )
}

fn named(name: &str, shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    raw(
        &format!("base_model.model.{name}"),
        "F32",
        shape,
        f32s(&vec![0.5; n]),
    )
}

#[test]
fn what_does_not_fit_is_an_error() {
    let pair = || vec![a(&[1, 2]), b(&[3, 1])];
    let none = || json!({});
    assert_eq!(refusal(&pair(), &none()), "");
    let with = |more: Raw| [pair(), vec![more]].concat();
    let half = |t: Raw| vec![t];
    let nan = raw(
        "base_model.model.a.q.lora_B.weight",
        "F32",
        &[3, 1],
        f32s(&[1.0, f32::NAN, 1.0]),
    );
    let integers = raw(
        "base_model.model.a.q.lora_B.weight",
        "I32",
        &[3, 1],
        vec![0; 12],
    );
    for (tensors, settings, what) in [
        (half(a(&[1, 2])), none(), "one of the two factors"),
        (half(b(&[3, 1])), none(), "one of the two factors"),
        (vec![], none(), "no tensors"),
        (vec![a(&[2, 2]), b(&[3, 2])], none(), "rank is 2, and 1"),
        (
            vec![a(&[1, 2]), b(&[3, 2])],
            none(),
            "rank is 1, and that of",
        ),
        (
            vec![a(&[1, 3]), b(&[2, 1])],
            none(),
            "`a.q.weight` is [3, 2]",
        ),
        (
            pair(),
            json!({"fan_in_fan_out": true}),
            "`a.q.weight` is [3, 2]",
        ),
        (
            vec![a(&[1, 2, 1, 1]), b(&[3, 1, 1, 1])],
            none(),
            "matrices alone",
        ),
        (
            vec![a(&[1, 2]), nan],
            none(),
            "`a.q.weight`: what an adapter adds",
        ),
        (vec![a(&[1, 2]), integers], none(), "F32, F16 or BF16"),
        (
            with(named("a.k.lora_A.weight", &[1, 2])),
            none(),
            "one of the two factors",
        ),
        (
            [
                pair(),
                vec![
                    named("a.k.lora_A.weight", &[1, 2]),
                    named("a.k.lora_B.weight", &[3, 1]),
                ],
            ]
            .concat(),
            none(),
            "no `a.k.weight`",
        ),
        (with(named("a.q.bias", &[3])), none(), "no `a.q.bias`"),
        (
            with(named("a.q.lora_B.bias", &[3])),
            none(),
            "`base_model.model.a.q.lora_B.bias`",
        ),
        (
            with(named("a.q.weight", &[2, 3])),
            none(),
            "of the model is [3, 2]",
        ),
        (
            with(named("a.q.hada_w1_a", &[2, 3])),
            none(),
            "a.q.hada_w1_a",
        ),
        (
            with(raw("a.q.lora_A.weight", "F32", &[1, 2], f32s(&[1.0; 2]))),
            none(),
            "does not begin with",
        ),
        (with(named("n", &[1])), none(), "tensor `n`: it is I64"),
        (
            with(named("a.q.lora_magnitude_vector", &[3])),
            none(),
            "`use_dora`",
        ),
        (
            pair(),
            json!({"use_dora": true}),
            "no `lora_magnitude_vector`",
        ),
        (
            with(named("a.q.lora_magnitude_vector", &[2])),
            json!({"use_dora": true}),
            "has 3 rows",
        ),
        (pair(), json!({"peft_type": "LOHA"}), "LOHA"),
        (pair(), json!({"peft_type": "IA3"}), "IA3"),
        (pair(), json!({"bias": "all"}), "`bias` is \"all\""),
        (pair(), json!({"init_lora_weights": "pissa"}), "pissa"),
        (
            pair(),
            json!({"target_parameters": ["a.q.weight"]}),
            "target_parameters",
        ),
    ] {
        let error = refusal(&tensors, &settings);
        assert!(error.contains(what), "{what}: {settings}: `{error}`");
    }
}

#[test]
fn adapters_that_exclude_each_other() {
    let model = parse(base("base")).unwrap();
    for (adapters, what) in [
        (vec![open("dora"), open("plain")], "is DoRA"),
        (vec![open("dora").with_weight(0.5)], "with weight 1"),
        (vec![open("saved"), open("embedding")], "replaces it"),
        (vec![open("saved").with_weight(2.0)], "must be 1"),
        (vec![open("plain").with_weight(f64::NAN)], "weight is NaN"),
        (vec![open("gpt2")], "h.0.attn.c_attn.weight"),
    ] {
        let error = model
            .recovery(options(TargetDtype::F32, adapters))
            .err()
            .unwrap();
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    let error = Adapter::open(data().join("demo")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// Programs load one of two tied weights for both, so that the other's change would be lost.
#[test]
fn tied_weights_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(base("base").join(name), root.path().join(name)).unwrap();
    }
    let path = root.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let tied = text.replace(
        "\"tie_word_embeddings\": false",
        "\"tie_word_embeddings\": true",
    );
    assert_ne!(text, tied);
    std::fs::write(&path, tied).unwrap();
    let model = parse(root.path()).unwrap();
    let run = |name: &str| model.recovery(options(TargetDtype::F32, case(name))).err();
    assert!(run("plain").is_none());
    let error = run("saved").unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
}
