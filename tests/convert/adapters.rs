//! Adapters: what `merge_and_unload` of PEFT, `fuse` of mlx-lm and `fuse_lora` of diffusers make of
//! them.

mod gguf;
mod image;
mod image_peft;
mod layers;
mod refused;
mod stacks;
mod sums;
mod tied;
mod to_gguf;

use std::path::{Path, PathBuf};

use anamnesis::{
    Adapter, ConvertOptions, ErrorKind, FloatCast, ForgetScheme, ModelScope, ParsedModel,
    RememberOptions, TargetDtype, parse, parse_bytes,
};
use serde_json::json;

use crate::common::{Raw, data, f32s, file, raw};

fn adapters() -> PathBuf {
    data().join("adapters")
}

/// A model, an adapter or what is expected of both, of image models if they have one of the name.
fn adapter_data(name: &str) -> PathBuf {
    let of_images = [format!("{name}.safetensors"), format!("models/{name}.safetensors")];
    let mut of_images = of_images
        .iter()
        .map(|file| data().join("adapters_image").join(file));
    of_images
        .find(|path| path.exists())
        .unwrap_or_else(|| adapters().join(name))
}

fn open(name: &str) -> Adapter {
    Adapter::open(adapter_data(name)).unwrap()
}

/// The adapters of a case, with their weights.
fn case(name: &str) -> Vec<Adapter> {
    match name {
        "lycoris-half" => vec![open("lycoris").with_weight(0.5)],
        "two" => vec![open("plain").with_weight(0.5), open("patterns").with_weight(-1.25)],
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
    if base.extension().is_some_and(|ending| ending == "gguf") {
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

const CASES: [(&str, &str); 56] = [
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
    ("base-layers", "conv"),
    ("base-layers", "conv-dora"),
    ("base-layers", "conv-transposed"),
    ("base-layers", "lora-bias"),
    ("base-layers", "bias-all"),
    ("base-layers", "bias-lora-only"),
    ("base-layers", "experts"),
    ("base-layers", "experts-transposed"),
    ("base-layers", "conv1d"),
    ("base-layers", "conv1d-dora"),
    ("base-layers", "embedding-dora"),
    ("base-layers", "loha"),
    ("base-layers", "loha-flat"),
    ("base-layers", "lokr"),
    ("base-layers", "lokr-flat"),
    ("base-layers", "lycoris"),
    ("base-layers", "lycoris-half"),
    ("base-layers", "lycoris-flat"),
    ("base-layers", "lycoris-dora"),
    ("base-layers", "lycoris-dora-in"),
    ("base-experts", "experts-apart"),
    ("base-experts", "experts-apart-up"),
    ("base", "mlx"),
    ("base", "mlx-dora"),
    ("base", "mlx-full"),
    ("qwen3_moe", "mlx-experts"),
    ("mixtral", "mlx-experts-numbered"),
    ("unet", "kohya"),
    ("unet", "processors"),
    ("unet", "peft"),
    ("unet", "norms"),
    ("text_encoder", "kohya"),
    ("flux", "metadata"),
    ("flux", "flux-all"),
    ("flux", "flux-kohya"),
    ("flux", "flux-lokr"),
    ("flux-original", "metadata"),
    ("flux-original", "flux-all"),
    ("flux-original", "flux-kohya"),
    ("flux-original", "flux-lokr"),
];

fn base(name: &str) -> PathBuf {
    match name {
        "gpt2" | "mixtral" | "qwen3_moe" => data().join("whole").join(name).join("hf"),
        name => adapter_data(name),
    }
}

fn expected(base: &str, case: &str) -> ParsedModel {
    let base = base.trim_end_matches(".gguf");
    let name = format!("expected-{base}-{case}");
    let of_image = adapter_data(&name);
    match of_image.is_file() {
        true => parse(of_image).unwrap(),
        false => parse(adapters().join(format!("{name}.safetensors"))).unwrap(),
    }
}

/// Every tensor that the library changes has its values within one unit in the last place, and every other
/// those without the adapter.
#[test]
fn values_are_those_of_the_library() {
    let root = crate::common::tempdir().unwrap();
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
                assert!(ulps(*want, *got) <= 1, "{context}: {}: {want} {got}", t.name());
                differing += usize::from(want.to_bits() != got.to_bits());
                all += 1;
            }
        }
        for t in before
            .tensors()
            .filter(|t| !changed.iter().any(|name| name == t.name()))
        {
            let same = got.tensor(t.name()).unwrap();
            assert_eq!((t.dtype(), t.shape()), (same.dtype(), same.shape()), "{context}");
            assert!(t.bytes().unwrap() == same.bytes().unwrap(), "{context}: {}", t.name());
        }
    }
    // peft's sum of squares in F64 has another order, and so may the products.
    assert!(differing * 1000 <= all, "{differing} of {all}");
}

/// BF16 is F32 rounded once, also where a GGUF base's rows move.
#[test]
fn narrower_types_are_rounded_once() {
    let root = crate::common::tempdir().unwrap();
    for name in ["base-nf4", "base-q8_0.gguf"] {
        let wide =
            merged(&base(name), "plain", TargetDtype::F32, &root.path().join(format!("{name}-32")));
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
    let root = crate::common::tempdir().unwrap();
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
    let root = crate::common::tempdir().unwrap();
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

/// An unfinished directory is not continued with another adapter, and the adapter's directory is no
/// output.
#[test]
fn adapters_are_inputs() {
    let root = crate::common::tempdir().unwrap();
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

/// A file that is no model by itself is called what it is.
#[test]
fn kinds_of_files() {
    for (file, kind) in [
        ("adapters/plain", Some("LoRA adapter of PEFT")),
        ("adapters/mlx", Some("LoRA adapter of mlx-lm")),
        ("adapters/plain.gguf", Some("LoRA adapter of llama.cpp")),
        ("adapters_image/kohya.safetensors", Some("LoRA adapter of an image or video model")),
        ("adapters_image/processors.safetensors", Some("LoRA adapter of an image or video model")),
        ("adapters_image/lycoris.safetensors", Some("LoRA adapter of an image or video model")),
        ("adapters_image/models/unet.safetensors", None),
        ("adapters/base", None),
        ("demo/model-q4_k.gguf", None),
    ] {
        assert_eq!(parse(data().join(file)).unwrap().describe().kind, kind, "{file}");
    }
}
