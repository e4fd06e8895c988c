//! What is stored of 4-bit and INT8 weights, against the files of bitsandbytes and transformers.

use super::*;
use crate::TargetDtype;
use crate::lethe::WeightInfo;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::codebook::absmax;
use crate::lethe::kernels::mean::mean;
use crate::lethe::tests_support::{by_name, bytes_of, decoded, encode, file, values_of};
use crate::lethe::{Method, Survey, TileValues};
use crate::remember::bnb::{MAX_FLOAT_LEN, python_float};
use crate::simd::Level;

/// The mean of the scales, as torch has it.
fn survey(values: &[f32], block: usize) -> f64 {
    f64::from(mean(&values.chunks(block).map(absmax).collect::<Vec<_>>()))
}

/// The method that a case of tests/data/bnb_encode is named after.
fn method_of(name: &str) -> Box<dyn Method> {
    let parts: Vec<&str> = name.split('-').collect();
    match parts[..] {
        ["int8", _] => Box::new(BnbInt8),
        [kind, block, double, _] => Box::new(Bnb4 {
            quant_type: if kind == "nf4" {
                Bnb4QuantType::Nf4
            } else {
                Bnb4QuantType::Fp4
            },
            block: block.parse().unwrap(),
            double_quant: double == "double",
            compute_dtype: TargetDtype::F32,
        }),
        _ => panic!("{name}"),
    }
}

#[test]
fn what_bitsandbytes_saves() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let [input, expected] = ["input", "expected"]
        .map(|file| crate::parse(data.join(format!("bnb_encode/{file}.safetensors"))).unwrap());
    let expected = by_name(&expected);
    let mut seen = 0;
    for t in input.tensors() {
        let dtype = TargetDtype::of(t.dtype()).unwrap();
        let (weight, values) =
            (WeightInfo { name: t.name(), shape: t.shape(), dtype }, values_of(&t));
        let method = method_of(t.name());
        assert_eq!(method.objection(&weight), None, "{}", t.name());
        let encoder = method.encoder(&weight).unwrap();
        let surveyed = match encoder.survey() {
            Some(Survey::MeanOfBlockMaxAbs(block)) => survey(&values, block),
            _ => 0.0,
        };
        let encoded = encode(&*encoder, &values, surveyed);
        for (s, bytes) in &encoded.stored {
            let want = expected
                .get(&s.name)
                .unwrap_or_else(|| panic!("{} is stored", s.name));
            let (mut bytes, wanted) = (bytes.clone(), bytes_of(want));
            let mut shape = s.shape.clone();
            if s.name.contains("quant_state") {
                bytes.truncate(bytes.trim_ascii_end().len());
                shape = vec![bytes.len()];
            }
            assert_eq!((s.dtype, &shape[..]), (want.dtype(), want.shape()), "{}", s.name);
            let differing = bytes.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "{}: {:?} is not {:?}", s.name, bytes, wanted);
        }
        seen += encoded.stored.len();
        assert_eq!(decoded(file(&encoded.stored)), encoded.back, "{}", t.name());
    }
    assert_eq!(seen, expected.len());
}

/// Weights that were decoded become the same codes again, but for code 8 of FP4: it decodes to -0,
/// which gets code 0.
#[test]
fn decoded_weights_return() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    for case in [
        "nf4",
        "fp4",
        "nf4_odd",
        "fp4_odd",
        "nf4_partial",
        "nf4_blocksize_128",
        "nf4_zeros",
        "int8",
    ] {
        let stored = crate::parse(data.join(format!("bnb/{case}/model.safetensors"))).unwrap();
        let stored = by_name(&stored);
        let model =
            crate::parse(data.join(format!("bnb/{case}/expected-f32.safetensors"))).unwrap();
        for t in model.tensors() {
            let state = stored.iter().find(|(name, _)| {
                name.strip_prefix(t.name())
                    .is_some_and(|rest| rest.starts_with(".quant_state"))
            });
            let method: Box<dyn Method> = match state {
                None if t.name().ends_with("weight")
                    && stored.contains_key(&t.name().replace("weight", "SCB")) =>
                {
                    Box::new(BnbInt8)
                }
                None => continue,
                Some((name, state)) => {
                    let json: serde_json::Value = serde_json::from_slice(&bytes_of(state)).unwrap();
                    Box::new(Bnb4 {
                        quant_type: if name.ends_with("nf4") {
                            Bnb4QuantType::Nf4
                        } else {
                            Bnb4QuantType::Fp4
                        },
                        block: json["blocksize"].as_u64().unwrap() as usize,
                        double_quant: false,
                        compute_dtype: TargetDtype::F32,
                    })
                }
            };
            let weight = WeightInfo { name: t.name(), shape: t.shape(), dtype: TargetDtype::F32 };
            let encoded = encode(&*method.encoder(&weight).unwrap(), &values_of(&t), 0.0);
            let mut codes = bytes_of(&stored[t.name()]);
            if state.is_some_and(|(name, _)| name.ends_with("fp4")) {
                let without = |code: u8| if code == 8 { 0 } else { code };
                codes
                    .iter_mut()
                    .for_each(|byte| *byte = without(*byte >> 4) << 4 | without(*byte & 15));
            }
            let differing = codes
                .iter()
                .zip(&encoded.stored[0].1)
                .filter(|(a, b)| a != b)
                .count();
            assert_eq!(differing, 0, "{case} {}", t.name());
        }
    }
}

#[test]
fn floats_as_python_has_them() {
    for (x, text) in [
        (0.0, "0.0"),
        (1.0, "1.0"),
        (0.1, "0.10000000149011612"),
        (1e-4, "9.999999747378752e-05"),
        (1.5e-4, "0.0001500000071246177"),
        (1e-45, "1.401298464324817e-45"),
        (65504.0, "65504.0"),
        (1e16, "1.0000000272564224e+16"),
        (1.5e15, "1500000014041088.0"),
        (f32::MAX, "3.4028234663852886e+38"),
    ] {
        assert_eq!(python_float(x), text);
        assert!(text.len() <= MAX_FLOAT_LEN);
    }
}

#[test]
fn objections_say_why() {
    let method = |block| Bnb4 {
        quant_type: Bnb4QuantType::Nf4,
        block,
        double_quant: false,
        compute_dtype: TargetDtype::BF16,
    };
    let objection = |method: &dyn Method, name, shape: &[usize]| {
        method
            .objection(&WeightInfo { name, shape, dtype: TargetDtype::BF16 })
            .unwrap_or_default()
    };
    assert_eq!(objection(&method(64), "a.weight", &[3, 5]), "");
    assert_eq!(objection(&method(64), "weight", &[3, 5]), "");
    assert!(objection(&method(48), "a.weight", &[3, 5]).contains("48"));
    assert!(objection(&method(64), "a.weight", &[2, 3, 5]).contains("3 dimensions"));
    assert!(objection(&method(64), "a.bias", &[3, 5]).contains("weight"));
    assert!(objection(&BnbInt8, "a.weight", &[3, 0]).contains("no values"));
    let weight = WeightInfo { name: "a.weight", shape: &[2, 2], dtype: TargetDtype::F32 };
    let (tile, mut back) = (crate::remember::Tile { rows: 0..2, cols: 0..2 }, [0.0; 4]);
    let values = TileValues {
        tile: &tile,
        values: &[1.0, 2.0, 3.0, 65520.0],
        survey: 0.0,
        maxima: &[],
        activations: Activations::default(),
        level: Level::Baseline,
    };
    let error = BnbInt8
        .encoder(&weight)
        .unwrap()
        .encode(&values, &mut crate::lethe::EncodeBuffers::default(), &mut back, &mut |_, _, _| {
            Ok(())
        })
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a row has values that F16 does not reach"),
        "{error}"
    );
}

/// Both as transformers wrote them.
#[test]
fn configs_of_transformers() {
    let four = Bnb4 {
        quant_type: Bnb4QuantType::Nf4,
        block: 64,
        double_quant: true,
        compute_dtype: TargetDtype::BF16,
    };
    let config = four.config(&["lm_head".to_owned()]).unwrap().to_string();
    let want = r#"{"_load_in_4bit":true,"_load_in_8bit":false,"bnb_4bit_compute_dtype":"bfloat16","bnb_4bit_quant_storage":"uint8","bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true,"llm_int8_enable_fp32_cpu_offload":false,"llm_int8_has_fp16_weight":false,"llm_int8_skip_modules":["lm_head"],"llm_int8_threshold":6.0,"load_in_4bit":true,"load_in_8bit":false,"quant_method":"bitsandbytes"}"#;
    assert_eq!(config, want);
    let config = BnbInt8.config(&[]).unwrap().to_string();
    let want = r#"{"_load_in_4bit":false,"_load_in_8bit":true,"bnb_4bit_compute_dtype":"float32","bnb_4bit_quant_storage":"uint8","bnb_4bit_quant_type":"fp4","bnb_4bit_use_double_quant":false,"llm_int8_enable_fp32_cpu_offload":false,"llm_int8_has_fp16_weight":false,"llm_int8_skip_modules":[],"llm_int8_threshold":6.0,"load_in_4bit":false,"load_in_8bit":true,"quant_method":"bitsandbytes"}"#;
    assert_eq!(config, want);
}
