//! GGUF files made in memory: byte orders, NVFP4 scales, and tensors in unusual places.

use anamnesis::{GgufMetadataValue as V, TargetDtype, parse_bytes};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::common::gguf::{Gguf, string};
use crate::common::verdict::{Unsupported, recover, verdict};
use crate::common::{Random, f32s};

/// A big-endian file, which `common::gguf` cannot make.
fn big_endian(tensors: &[(&str, u32, u64, usize)]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_be_bytes(), text.as_bytes()].concat();
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for &(name, kind, values, bytes) in tensors {
        infos.extend(
            [&string(name)[..], &1u32.to_be_bytes(), &values.to_be_bytes(), &kind.to_be_bytes()]
                .concat(),
        );
        infos.extend((data.len() as u64).to_be_bytes());
        data.extend(Random(9).bytes(bytes.next_multiple_of(32)));
    }
    let (counts, value) =
        ([tensors.len() as u64, 1].map(u64::to_be_bytes).concat(), (-2i32).to_be_bytes());
    let mut out =
        [&b"GGUF\0\0\0\x03"[..], &counts, &string("k"), &5u32.to_be_bytes(), &value, &infos]
            .concat();
    out.resize(out.len().next_multiple_of(32), 0);
    [out, data].concat()
}

/// Scales of types that gguf-py 0.19.0 does not swap, and its later versions do.
#[test]
fn big_endian_scales() {
    let file = big_endian(&[("signs", 41, 128, 18), ("ternary", 35, 256, 66)]);
    let model = parse_bytes(file.clone()).unwrap();
    for (name, place, scale) in [("signs", 0..18, 0), ("ternary", 32..98, 64)] {
        let data = file.len() - 128;
        let mut want = file[data + place.start..data + place.end].to_vec();
        want.swap(scale, scale + 1);
        assert!(*model.tensor(name).unwrap().bytes().unwrap() == *want, "{name}");
    }
    recover(file, "").unwrap();
}

/// For some types no big-endian form is defined: their tensors are listed, but not decoded.
#[test]
fn big_endian_types_without_a_byte_order() {
    recover(big_endian(&[("a", 0, 4, 16), ("q", 8, 64, 68)]), "").unwrap();
    let odd = [
        ("Q4_1", 3, 160),
        ("Q5_K", 13, 176),
        ("Q8_K", 15, 292),
        ("IQ4_XS", 23, 136),
        ("TQ1_0", 34, 54),
    ];
    for (dtype, kind, bytes) in odd {
        let file = big_endian(&[("a", 0, 4, 16), ("X.weight", kind, 256, bytes), ("z", 30, 3, 6)]);
        let model = parse_bytes(file.clone()).unwrap();
        assert_eq!(model.gguf().unwrap().metadata().get("k"), Some(V::I32(-2)));
        let (info, words) = (model.inspect(), ["`X.weight`", dtype, "byte order"]);
        assert_eq!((info.tensor_count, info.quantized, info.problems.len()), (3, 1, 1), "{dtype}");
        assert!(words.iter().all(|w| info.problems[0].contains(w)), "{}", info.problems[0]);
        assert_eq!(verdict(recover(file, ""), Unsupported, &words), None);
        assert_eq!(verdict(model.tensor("X.weight").unwrap().bytes(), Unsupported, &words), None);
        assert!(
            ["a", "z"]
                .iter()
                .all(|name| model.tensor(name).unwrap().bytes().is_ok())
        );
    }
}

/// The global scale of an NVFP4 tensor: one value, or one for each matrix of a stack.
#[test]
fn nvfp4_scales() {
    let (codes, scales) = (Random(5).bytes(3 * 2 * 36), [0.37f32, -3.0, 1e-3]);
    let values = |file: Gguf| {
        let bytes = recover(file.file(), "").unwrap();
        let all = SafeTensors::deserialize(&bytes).unwrap();
        let weight = all.tensor("X.weight").unwrap();
        assert_eq!((all.len(), weight.shape()), (1, &[3, 2, 64][..]));
        weight
            .data()
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let plain = values(Gguf::default().tensor("X.weight", 40, &[64, 2, 3], &codes));
    let names: [(&str, &[u64]); 5] = [
        ("X.scale", &[3]),
        ("X.weight.scale", &[3]),
        ("X.scale", &[1]),
        ("X.weight.scale", &[]),
        ("X.scale", &[1, 3]),
    ];
    for (name, shape) in names {
        let n = shape.iter().product::<u64>() as usize;
        let file = Gguf::default().tensor(name, 0, shape, &f32s(&scales[..n]));
        let file = file.tensor("X.weight", 40, &[64, 2, 3], &codes).tensor(
            "X.input_scale",
            0,
            &[1],
            &[1; 4],
        );
        let want: Vec<f32> = plain
            .iter()
            .enumerate()
            .map(|(i, x)| x * scales[i / 128 % n])
            .collect();
        assert_eq!(values(file), want, "{name} {shape:?}");
    }
}

/// The values of a tensor of F32 or F16.
fn floats_of(t: &TensorView<'_>) -> Vec<f32> {
    match t.dtype() {
        Dtype::F16 => {
            let halves = t.data().as_chunks().0.iter();
            halves
                .map(|b| half::f16::from_le_bytes(*b).to_f32())
                .collect()
        }
        _ => {
            let singles = t.data().as_chunks().0.iter();
            singles.map(|b| f32::from_le_bytes(*b)).collect()
        }
    }
}

/// Factors that llama.cpp multiplies by whatever the type of the weight, and `.scale`s that are
/// parameters of the model. Types are F16, Q4_0, MXFP4, one of ik_llama.cpp whose rows have a scale
/// (IQ4_KS), and one whose rows are interleaved (Q4_0_R8).
#[test]
fn factors_beside_other_types() {
    let factors = [0.37f32, -3.0, 1e-3];
    let values = |architecture: &str, file: Gguf| {
        let file = file.key("general.architecture", 8, &string(architecture));
        let bytes = parse_bytes(file.file()).unwrap();
        let bytes = bytes.remember_to_bytes(TargetDtype::F32).unwrap();
        let all = SafeTensors::deserialize(&bytes).unwrap();
        let name = all.names().into_iter().find(|n| n.ends_with(".weight"));
        let weight = all.tensor(name.unwrap()).unwrap();
        (all.len(), floats_of(&weight))
    };
    let types = [(1, 2 * 256), (2, 18 * 8), (39, 17 * 8), (144, 4 + 136), (202, 18 * 8)];
    let rows: [(&str, &str, u64, bool); 12] = [
        ("llama", "blk.7.attn_q", 1, true),
        ("qwen3moe", "blk.0.ffn_down_exps", 3, true),
        ("qwen3moe", "blk.0.ffn_up_exps", 1, true),
        ("qwen35", "blk.0.ssm_alpha", 1, true),
        ("qwen35", "blk.0.nextn.eh_proj", 1, true),
        ("llama", "output", 1, true),
        ("dflash", "fc", 1, true),
        ("gemma4", "blk.0.ffn_up_exps", 3, true),
        ("gemma4", "blk.0.ffn_down_exps", 3, false),
        ("talkie", "blk.0.attn_output", 1, false),
        ("llama", "token_embd", 1, false),
        ("llama", "v.blk.0.attn_q", 1, false),
    ];
    for (kind, row_bytes) in types {
        for (architecture, base, n, is_factor) in rows {
            let mut codes = Random(9).bytes(24 * row_bytes);
            // Finite F16 and exponents.
            codes.iter_mut().for_each(|byte| *byte &= 0x3b);
            let shape: &[u64] = if n == 3 { &[256, 8, 3] } else { &[256, 24] };
            let what = format!("{kind} {architecture} {base}");
            let weight = || {
                let name = format!("{base}.weight");
                Gguf::default().tensor(&name, kind, shape, &codes)
            };
            let (_, plain) = values(architecture, weight());
            let scale = f32s(&factors[..n as usize]);
            let both = weight().tensor(&format!("{base}.scale"), 0, &[n], &scale);
            let both = both.tensor(&format!("{base}.input_scale"), 0, &[n], &scale);
            let (count, scaled) = values(architecture, both);
            let factor = |i: usize| match is_factor {
                true => factors[i / 2048 % n as usize],
                false => 1.0,
            };
            let rounded = |x: f32| match kind {
                1 => half::f16::from_f32(x).to_f32(),
                _ => x,
            };
            let want = plain
                .iter()
                .enumerate()
                .map(|(i, x)| rounded(x * factor(i)));
            assert_eq!(scaled, want.collect::<Vec<_>>(), "{what}");
            assert_eq!(count, if is_factor { 1 } else { 3 }, "{what}");
        }
    }
}

/// stable-diffusion.cpp widens codes of FP8 and keeps their scales beside them: one, or one for
/// each row.
#[test]
fn scales_of_what_was_fp8() {
    let scales: Vec<f32> = (0..24).map(|i| 0.37 * i as f32 - 3.0).collect();
    // F16, Q4_0, MXFP4, IQ4_KS and Q4_0_R8.
    for (kind, row_bytes) in [(1, 512), (2, 18 * 8), (39, 17 * 8), (144, 4 + 136), (202, 18 * 8)] {
        let mut codes = Random(10).bytes(24 * row_bytes);
        codes.iter_mut().for_each(|byte| *byte &= 0x3b);
        let weight = || Gguf::default().tensor("x.0.qkv.weight", kind, &[256, 24], &codes);
        let values = |file: Gguf| {
            let bytes = parse_bytes(file.file()).unwrap();
            let bytes = bytes.remember_to_bytes(TargetDtype::F32).unwrap();
            let all = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(all.len(), 1);
            floats_of(&all.tensor("x.0.qkv.weight").unwrap())
        };
        let plain = values(weight());
        for (name, shape) in [
            ("x.0.qkv.weight_scale", &[24u64][..]),
            ("x.0.qkv.weight_scale", &[1, 24]),
            ("x.0.qkv.weight_scale", &[1]),
            ("x.0.qkv.scale_weight", &[1]),
        ] {
            let n = shape.iter().product::<u64>() as usize;
            let scaled = values(weight().tensor(name, 0, shape, &f32s(&scales[..n])));
            let rounded = |x: f32| match kind {
                1 => half::f16::from_f32(x).to_f32(),
                _ => x,
            };
            let rows = plain.chunks(256).enumerate();
            let want = rows.flat_map(|(r, row)| row.iter().map(move |x| (x, r % n)));
            let want = want.map(|(x, r)| rounded(x * scales[r]));
            assert_eq!(scaled, want.collect::<Vec<_>>(), "{kind} {name} {shape:?}");
        }
    }
}

/// Bytes may follow the last tensor if its size is known for certain; tensors may be listed in any
/// order.
#[test]
fn unusual_tensor_offsets() {
    let (block, more) = (Random(6).bytes(34), vec![7; 1000]);
    let (first, both) =
        (|| Gguf::default().tensor("a", 8, &[32], &block), [&block[..], &more].concat());
    // The size of `b` is certain: `a` proves the one of type 8, and no fork numbers type 24
    // otherwise.
    for file in
        [first().tensor("b", 8, &[32], &both).file(), first().tensor("b", 24, &[34], &both).file()]
    {
        assert!(
            parse_bytes(file.clone())
                .unwrap()
                .tensor("b")
                .unwrap()
                .bytes()
                .unwrap()
                == block
        );
        recover(file, "").unwrap();
    }
    let reversed = Gguf::default()
        .tensor_at("b", 24, &[5], 64, &block)
        .tensor_at("a", 24, &[34], 0, &more[..5]);
    let model = parse_bytes(reversed.file()).unwrap();
    assert_eq!(model.tensors().map(|t| t.name()).collect::<Vec<_>>(), ["a", "b"]);
    let bytes = |name| model.tensor(name).unwrap().bytes().unwrap();
    assert!(*bytes("a") == block && *bytes("b") == more[..5]);
}
