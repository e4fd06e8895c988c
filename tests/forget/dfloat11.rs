//! DFloat11: BF16 that comes back bit for bit, and what is kept.

use anamnesis::{
    ConvertOptions, Forget, ForgetScheme, ParsedModel, TargetDtype, parse, parse_bytes,
};

use crate::common::forget::{bf16s, encoded, stored, weights};
use crate::common::{Random, Raw, data, f32s, file, raw};

/// `model` decoded to BF16.
fn decoded(model: &ParsedModel) -> ParsedModel {
    let mut options = ConvertOptions::from(TargetDtype::BF16);
    options.single_file = true;
    parse_bytes(model.plan(options).unwrap().to_bytes().unwrap()).unwrap()
}

fn bf16(name: &str, shape: &[usize], bits: impl Fn(usize) -> u16) -> Raw {
    let bytes = (0..shape.iter().product()).flat_map(|i| bits(i).to_le_bytes());
    raw(name, "BF16", shape, bytes.collect())
}

/// Streams of one weight in the golden models, byte for byte.
#[test]
fn bytes_of_the_library() {
    for (case, modules) in
        [("llama", &["lm_head", "model.embed_tokens"][..]), ("deep", &["lm_head"])]
    {
        let golden = parse(data().join("dfloat11").join(case).join("model")).unwrap();
        let (out, report) = encoded(&decoded(&golden), ForgetScheme::DFLOAT11.into()).unwrap();
        assert!(report.encoded.len() >= modules.len());
        let parts = [
            "encoded_exponent",
            "sign_mantissa",
            "luts",
            "output_positions",
            "gaps",
            "split_positions",
        ];
        for name in modules
            .iter()
            .flat_map(|m| parts.map(|part| format!("{m}.{part}")))
        {
            let tensors = [&golden, &out].map(|model| model.tensor(&name).unwrap());
            let [want, found] = tensors.each_ref().map(stored);
            assert_eq!(want.0, found.0, "{name}");
            // The shape of the weight is that of its signs.
            assert!(name.ends_with("sign_mantissa") || want.1 == found.1, "{name}");
            assert!(want.2 == found.2, "{name}");
        }
    }
}

/// Every finite BF16 below 2^113 comes back, zeros of both signs and subnormals too; so do the
/// tensors that cannot be encoded, which are kept with the reason.
#[test]
fn every_bit_comes_back() {
    let finite = |i: usize| (i % (240 << 7)) as u16 | if i % 7 < 3 { 0x8000 } else { 0 };
    let tensors = [
        bf16("model.layers.0.a.weight", &[240, 300], finite),
        bf16("model.layers.0.zeros.weight", &[77, 5], |i| (i as u16 & 1) << 15),
        bf16("model.layers.0.nan.weight", &[4, 6], |i| if i == 7 { 0x7f81 } else { 0x3f80 }),
        bf16("model.layers.0.inf.weight", &[4, 6], |i| if i == 7 { 0xff80 } else { 0x3f80 }),
        bf16("model.layers.0.huge.weight", &[4, 6], |i| if i == 7 { 240 << 7 } else { 0x3f80 }),
        // Codes of a bit, of which the library's kernel holds only so many.
        bf16("model.layers.0.same.weight", &[300, 100], |_| 0x3f80),
        bf16("model.norm.weight", &[6], |_| 0x3f80),
        raw("model.layers.0.f.weight", "F32", &[4, 6], f32s(&[0.1; 24])),
    ];
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    let (out, report) = encoded(&model, ForgetScheme::DFLOAT11.into()).unwrap();
    let names: Vec<&str> = report.encoded.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["model.layers.0.a.weight", "model.layers.0.zeros.weight"]);
    let reason = |name: &str| {
        let name = format!("model.layers.0.{name}.weight");
        report
            .kept
            .iter()
            .find(|kept| kept.name == name)
            .unwrap()
            .reason
            .clone()
    };
    assert!(reason("nan").contains("not finite") && reason("inf").contains("not finite"));
    assert!(reason("huge").contains("2^113") && reason("f").contains("BF16"));
    assert!(reason("same").contains("in a chunk"));
    let back = decoded(&out);
    for t in model
        .tensors()
        .filter(|t| t.dtype() == anamnesis::Dtype::BF16)
    {
        let is = back
            .tensor(t.name())
            .unwrap_or_else(|| panic!("no {}", t.name()));
        assert_eq!(stored(&is), stored(&t), "{}", t.name());
    }
}

/// Embeddings are encoded in a model that has an output layer, too.
#[test]
fn tied_embeddings_are_kept() {
    let matrix =
        |name: &str| raw(name, "BF16", &[40, 64], bf16s(&weights(&mut Random(3), 40 * 64)));
    let [embedding, head] = ["model.embed_tokens.weight", "lm_head.weight"];
    for (names, count) in [(&[embedding, head][..], 2), (&[embedding], 0)] {
        let tensors: Vec<Raw> = names.iter().map(|name| matrix(name)).collect();
        let model = parse_bytes(file(&tensors, &[])).unwrap();
        let (_, report) = encoded(&model, ForgetScheme::DFLOAT11.into()).unwrap();
        assert_eq!(report.encoded.len(), count);
    }
    let model = parse_bytes(file(&[matrix(embedding)], &[])).unwrap();
    let mut forget = Forget::from(ForgetScheme::DFLOAT11);
    forget.include = vec![embedding.to_owned()];
    assert_eq!(encoded(&model, forget.into()).unwrap().1.encoded.len(), 1);
}

/// config.json tells the sizes of most layers of a name, and there are others: queries with a gate,
/// experts that are shared.
#[test]
fn layers_of_unusual_sizes() {
    let names = [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
    ];
    let mut random = Random(5);
    let tensors =
        names.map(|name| raw(name, "BF16", &[96, 64], bf16s(&weights(&mut random, 96 * 64))));
    let directory = crate::common::tempdir().unwrap();
    let [plain, made] = ["plain", "made"].map(|name| directory.path().join(name));
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join("model.safetensors"), file(&tensors, &[])).unwrap();
    let config =
        r#"{"hidden_size":64,"num_attention_heads":4,"head_dim":12,"moe_intermediate_size":32}"#;
    std::fs::write(plain.join("config.json"), config).unwrap();
    let model = parse(&plain).unwrap();
    let report = model.forget(&made, ForgetScheme::DFLOAT11).unwrap();
    assert_eq!(report.encoded.len(), 2);
    let back = decoded(&parse(&made).unwrap());
    for t in model.tensors() {
        assert_eq!(stored(&back.tensor(t.name()).unwrap()), stored(&t));
    }
}

/// A directory gets a config that says how to decode it, and has the size of the streams in its
/// plan.
#[test]
fn directories() {
    let golden = data().join("dfloat11/llama/model");
    let directory = crate::common::tempdir().unwrap();
    let [plain, made] = ["plain", "made"].map(|name| directory.path().join(name));
    let model = parse(&golden).unwrap();
    model.remember(&plain, TargetDtype::BF16).unwrap();
    let model = parse(&plain).unwrap();
    let report = model.forget(&made, ForgetScheme::DFLOAT11).unwrap();
    assert_eq!(report.encoded.len(), 16);
    let config = std::fs::read_to_string(made.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let patterns = config["dfloat11_config"]["pattern_dict"]
        .as_object()
        .unwrap();
    assert_eq!(patterns.len(), 4);
    let (was, is) = (decoded(&model), decoded(&parse(&made).unwrap()));
    assert_eq!(was.tensors().len(), is.tensors().len());
    for t in was.tensors() {
        assert_eq!(stored(&is.tensor(t.name()).unwrap()), stored(&t), "{}", t.name());
    }
}
