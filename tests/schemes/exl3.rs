//! EXL3's layers that are incomplete, contradictory, or not the whole weight with its own values.

use anamnesis::{QuantScheme, TargetDtype};

use crate::common::verdict::{Unsupported, check, parse_beside, tensors, verdict};
use crate::common::{Raw, file};

const LAYER: [(&str, &str); 3] =
    [("{t}", "X.trellis I16 16,8,32"), ("{u}", "X.suh F16 256"), ("{v}", "X.svh F16 128")];

fn spelled_out(text: &str) -> String {
    let replace = |text: String, (short, long): &(&str, &str)| text.replace(short, long);
    LAYER.iter().fold(text.to_owned(), replace)
}

/// The tensors in `text`, of the module `module`.
fn layer(text: &str, module: &str) -> Vec<Raw> {
    let rename = |t: Raw| Raw { name: t.name.replacen('X', module, 1), ..t };
    tensors(&spelled_out(text))
        .into_iter()
        .map(rename)
        .collect()
}

#[test]
fn exl3() {
    let table = r#"
        {t}; {u} |  | Parse: `X.trellis` & X.svh
        {t}; {v} |  | Parse: `X.trellis` & X.suh
        {u}; {v} |  | Parse: `X.suh`
        X.mcg I32 () |  | Parse: `X.mcg`
        X.mul1 I32 () |  | Parse: `X.mul1`
        X.trellis I16 16,8,0; {u}; {v} |  | Parse: `X.trellis` & 0 words
        X.trellis I16 16,8,36; {u}; {v} |  | Parse: `X.trellis` & 36 words
        X.trellis I16 16,8,8; {u}; {v}; X.mul1 I32 () |  | Parse: `X.trellis` & 8 words
        X.trellis I16 16,8,72; {u}; {v}; X.mul1 I32 () |  | Parse: `X.trellis` & 72 words
        X.trellis I16 16,8,40; {u}; {v} |  | Parse: `X.trellis` & 2.5 bits & `mul1`
        X.trellis I16 16,8,24; {u}; {v}; X.mcg I32 () |  | Parse: `X.trellis` & 1.5 bits & `mul1`
        X.trellis I16 16,8,144; {u}; {v} |  | Parse: `X.trellis` & 144 words
        X.trellis I16 16,8; {u}; {v} |  | Parse: `X.trellis` & three dimensions
        X.trellis I16 16,65; X.signs F16 2,256 |  | Parse: `X.trellis` & 2 rings
        X.trellis I16 16,66; X.signs F16 1,256 |  | Parse: `X.trellis` & 1 rings
        X.trellis I16 16,145; X.signs F16 1,256 |  | Parse: `X.trellis` & 1 rings
        X.trellis I16 16,1; X.signs F16 1,256 |  | Parse: `X.trellis` & 1 rings
        X.trellis I16 16,65; X.signs F16 0,256 |  | Parse: `X.trellis` & 0 rings
        X.trellis I32 16,65; X.signs F16 1,256 |  | Parse: `X.trellis` & I16
        X.trellis I16 16,65; X.signs F16 256 |  | Parse: `X.signs` & [groups, 256]
        X.trellis I16 16,65; X.signs F16 1,128 |  | Parse: `X.signs` & [groups, 256]
        X.trellis I16 16,65; X.signs I16 1,256 |  | Parse: `X.signs`
        X.signs F16 1,256 | {"quant_method":"exl3"} | Parse: `X.signs` & `X.trellis` is missing
        X.trellis I16 16,65 |  | Unsupported: `X.trellis` & table of embeddings
        X.shard_0.trellis I16 16,41 |  | Unsupported: `X.shard_0.trellis` & table of embeddings
        X.trellis I32 16,8,32; {u}; {v} |  | Parse: `X.trellis` & I16
        X.trellis I16 16,7,32; {u}; X.svh F16 112 |  | Parse: `X.trellis` & 128
        X.trellis I16 9,8,32; X.suh F16 144; {v} |  | Parse: `X.trellis` & 128
        X.trellis I16 1152921504606846976,8,0; {u}; {v} |  | Parse: `X.trellis`
        X.trellis I16 0,1152921504606846976,32; X.suh F16 0; {v} |  | Parse: `X.trellis` & 128
        X.trellis I16 0,1152921504606846968,32; X.suh F16 0; {v} |  | Parse: `X.svh`
        {t}; X.suh F16 128; {v} |  | Parse: `X.suh` & 256
        {t}; X.suh F16 1,256; {v} |  | Parse: `X.suh` & 256
        {t}; X.suh BF16 256; {v} |  | Parse: `X.suh` & F16
        {t}; {u}; X.svh F32 128 |  | Parse: `X.svh` & F16
        {t}; {u}; X.sv I16 128 |  | Parse: `X.sv` & I16 [8]
        {t}; {u}; X.sv F16 8 |  | Parse: `X.sv` & I16 [8]
        {t}; {u}; {v}; X.sv I16 8 |  | Parse: `X.trellis` & `X.sv`
        {t}; {u}; {v}; X.su I16 16 |  | Parse: `X.trellis` & `X.su`
        {t}; {u}; {v}; X.mcg I32 (); X.mul1 I32 () |  | Parse: `X.trellis` & two codebooks
        {t}; {u}; {v}; X.mcg I32 2 |  | Parse: `X.mcg` & one I32
        {t}; {u}; {v}; X.mcg F32 () |  | Parse: `X.mcg` & one I32
        # The multiplier is 0.
        {t}; {u}; {v}; X.mcg I32 () |  | Unsupported: `X.mcg` & 0x00000000
        {t}; {u}; {v}; X.mul1 I32 () |  | Unsupported: `X.mul1` & 0x00000000
        {t}; {u}; {v} | {"quant_method":"exl3","codebook":"mcg"} | Parse: `X.trellis` & `mcg` & `3inst`
        {t}; {u}; {v}; X.mcg I32 () | {"quant_method":"exl3","codebook":"mul1"} | Parse: `X.trellis` & `mul1` & `mcg`
        {t}; {u}; {v}; X.scale F32 () |  | Unsupported: `X.trellis` & `X.scale`
        {t}; {u}; {v}; X.weight F16 128,256 |  | Parse: `X.trellis` & `X.weight`
        {t}; {u}; {v}; X.bias F16 129 |  | Parse: `X.trellis` & 129 values
        {t}; {u}; {v}; X.bias F16 0 |  | Parse: `X.trellis` & 0 values
        X.up_proj.slice.0.trellis I16 8,8,32; X.up_proj.slice.0.suh F16 128; X.up_proj.slice.0.svh F16 128 |  | Unsupported: `X.up_proj.slice.0.trellis` & slice
    "#;
    check(&spelled_out(table));
}

/// exllamav3 stores the `up_proj` of two architectures' routed experts divided by 128.
#[test]
fn divided_experts() {
    let [laguna, mistral] = [
        r#"{"model_type":"laguna"}"#,
        r#"{"model_type":"mistral3","text_config":{"model_type":"mistral4"}}"#,
    ];
    for (module, config, is_refused) in [
        ("l.0.mlp.experts.3.up_proj", laguna, true),
        ("l.0.mlp.experts.3.up_proj", mistral, true),
        ("l.0.mlp.experts.3.up_proj", r#"{"model_type":"qwen3_moe"}"#, false),
        ("l.0.mlp.experts.3.gate_proj", laguna, false),
        ("model.layers.47.mlp.experts.3.up_proj", r#"{"model_type":"mimo_v2"}"#, true),
        ("model.layers.46.mlp.experts.3.up_proj", r#"{"model_type":"mimo_v2"}"#, false),
        ("l.0.mlp.shared_experts.up_proj", mistral, false),
    ] {
        let all = layer("{t}; {u}; {v}", module);
        let model = parse_beside(&file(&all, &[]), &[("config.json", config)]).unwrap();
        let result = model.remember_to_bytes(TargetDtype::BF16);
        if is_refused {
            assert_eq!(verdict(result, Unsupported, &[module, "divided"]), None);
        } else {
            assert!(result.is_ok(), "{module} {config}");
        }
    }
}

/// exllamav3 multiplies `o_proj` by the factor of values.
#[test]
fn scaled_values() {
    let (o, v) = ("model.layers.0.self_attn.o_proj", "l.0.self_attn.v_proj");
    for (module, config, is_refused) in [
        (o, r#"{"attention_value_scale":0.707}"#, true),
        (o, r#"{"dflash_config":{"attention_value_scale":0.5}}"#, true),
        (o, r#"{"attention_value_scale":1.0}"#, false),
        (v, r#"{"attention_value_scale":0.707}"#, false),
    ] {
        let all = layer("{t}; {u}; {v}", module);
        let model = parse_beside(&file(&all, &[]), &[("config.json", config)]).unwrap();
        let result = model.remember_to_bytes(TargetDtype::BF16);
        if is_refused {
            let words = [module, "attention_value_scale"];
            assert_eq!(verdict(result, Unsupported, &words), None);
        } else {
            assert!(result.is_ok(), "{module} {config}");
        }
    }
}

/// A padded bias loses its padding with the weight, and keeps its type; one of codes is an error.
#[test]
fn padded_bias() {
    let config = r#"{"hidden_size":136,"num_attention_heads":2,"head_dim":20}"#;
    for (bias, is_whole) in [("F32", true), ("I32", false)] {
        let all = layer(&format!("{{t}}; {{u}}; {{v}}; X.bias {bias} 128"), "l.q_proj");
        let model = parse_beside(&file(&all, &[]), &[("config.json", config)]).unwrap();
        let Ok(bytes) = model.remember_to_bytes(TargetDtype::BF16) else {
            assert!(!is_whole);
            continue;
        };
        let out = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let [weight, bias] =
            ["weight", "bias"].map(|part| out.tensor(&format!("l.q_proj.{part}")).unwrap());
        assert_eq!((weight.shape(), bias.shape()), ([40, 136].as_slice(), [40].as_slice()));
        assert_eq!(bias.dtype(), safetensors::Dtype::F32);
        assert_eq!(model.inspect().problems, Vec::<String>::new());
    }
}

/// A shard alone, whose mark is in another shard, is not decoded with another codebook.
#[test]
fn mark_in_another_shard() {
    let index = r#"{"weight_map":{"X.trellis":"model.safetensors","X.mul1":"other.safetensors"}}"#;
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, file(&layer("{t}; {u}; {v}", "X"), &[])).unwrap();
    std::fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
    let result =
        anamnesis::parse(path).and_then(|model| model.remember_to_bytes(TargetDtype::BF16));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("`X.trellis`") && error.contains("another shard"), "{error}");
}

/// Every tile that a conversion cuts has the values that the whole weight has, whatever its place.
#[test]
fn tiles_of_a_large_weight() {
    let (inputs, outputs) = (3 * 1024, 1280);
    let mut all = tensors(&format!(
        "X.trellis I16 {},{},16; X.suh F16 {inputs}; X.svh F16 {outputs}",
        inputs / 16,
        outputs / 16
    ));
    // Blocks repeat, and so do the factors.
    let tiles = all[0].bytes.chunks_exact_mut(32).enumerate();
    for (i, tile) in tiles {
        let (k, n) = (i / (outputs / 16) % 8, i % (outputs / 16) % 8);
        tile.iter_mut().zip(0..).for_each(|(byte, at): (_, usize)| {
            *byte = (at * 37 + k * 101 + n * 59 + at * at * (k + 3)) as u8;
        });
    }
    for factors in &mut all[1..] {
        let halves = factors.bytes.chunks_exact_mut(2).zip(0..);
        halves.for_each(|(half, i): (_, usize)| half.copy_from_slice(&[(i * 7 % 128) as u8, 0x3c]));
    }
    let bytes = file(&all, &[]);
    let model = anamnesis::parse_bytes(bytes).unwrap();
    assert_eq!(
        model.inspect().modules[0].scheme,
        QuantScheme::Exl3 { bits: 1, has_half_bit: false }
    );
    let bytes = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    let weight = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let weight = weight.tensor("X.weight").unwrap();
    assert_eq!(weight.shape(), [outputs, inputs]);
    let value = |n: usize, k: usize| &weight.data()[(n * inputs + k) * 2..][..2];
    for n in 0..outputs {
        for k in 0..inputs {
            assert_eq!(value(n, k), value(n % 128, k % 128), "{n} {k}");
        }
    }
    let distinct: std::collections::HashSet<&[u8]> = (0..128).map(|k| value(5, k)).collect();
    assert!(distinct.len() > 60, "{}", distinct.len());
}
