//! Slices of real models decoded by the canonical libraries (tests/data/slices/README.md). Each is
//! put into a file in its model's layout, and must be decoded bit for bit, also by the functions
//! for single tensors.

#[cfg_attr(not(all(feature = "gguf", feature = "pth")), allow(unused_imports))]
mod containers;

use anamnesis::{Dtype, TargetDtype};
use safetensors::SafeTensors;

use crate::common::{Raw, data, file, first_difference, raw};

/// A slice file: little-endian u32 fields, then blobs.
struct Slice {
    bytes: Vec<u8>,
    at: usize,
}

impl Slice {
    fn open(name: &str, magic: &[u8; 4]) -> Self {
        let bytes = std::fs::read(data().join("slices").join(name)).unwrap();
        assert_eq!(&bytes[..4], magic, "{name}");
        let mut slice = Self { bytes, at: 4 };
        assert_eq!(slice.field(), 2, "{name}: version");
        slice
    }

    fn field(&mut self) -> usize {
        self.blob(4).try_into().map(u32::from_le_bytes).unwrap() as usize
    }

    fn fields<const N: usize>(&mut self) -> [usize; N] {
        std::array::from_fn(|_| self.field())
    }

    fn blob(&mut self, len: usize) -> Vec<u8> {
        self.at += len;
        self.bytes[self.at - len..self.at].to_vec()
    }
}

/// Recovers the file made of `tensors` and compares `X.weight`.
fn check(
    name: &str,
    tensors: &[Raw],
    metadata: &[(&str, &str)],
    shape: &[usize],
    bf16: &[u8],
    f32: &[u8],
) {
    check_file(name, file(tensors, metadata), shape, bf16, f32);
}

fn check_file(name: &str, file: Vec<u8>, shape: &[usize], bf16: &[u8], f32: &[u8]) {
    let model = anamnesis::parse_bytes(file).unwrap();
    for (target, dtype, golden) in
        [(TargetDtype::BF16, Dtype::BF16, bf16), (TargetDtype::F32, Dtype::F32, f32)]
    {
        let bytes = model
            .remember_to_bytes(target)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.names(), ["X.weight"], "{name}");
        let weight = read.tensor("X.weight").unwrap();
        assert_eq!(weight.shape(), shape, "{name}");
        assert_eq!(first_difference(dtype, golden, weight.data()), None, "{name} {target}");
    }
}

const FLOATS: [&str; 3] = ["F32", "BF16", "F16"];

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// Compares the result of a function for single tensors.
fn check_single(name: &str, golden: &[u8], made: anamnesis::Result<Vec<u8>>) {
    assert_eq!(first_difference(Dtype::BF16, golden, &made.unwrap()), None, "{name}, by itself");
}

/// Transposes elements of `size` bytes from `[k, n]` to `[n, k]`.
fn transposed(bytes: &[u8], k: usize, n: usize, size: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|c| (0..k).flat_map(move |r| bytes[(r * n + c) * size..][..size].to_vec()))
        .collect()
}

/// A single number as F32.
fn widened(bytes: &[u8], dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Dtype::BF16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    }
}

#[test]
fn fp8() {
    for name in ["exaone_fine_grained", "llama_dynamic_per_channel", "ministral_per_tensor"] {
        let mut s = Slice::open(&format!("fp8/{name}.bin"), b"AMNF");
        let [scheme, dtype, rows, cols, weight, scale, bf16, f32] = s.fields();
        let (weight, scale) = (s.blob(weight), s.blob(scale));
        let (scale_name, scale_shape) = match scheme {
            0 => ("X.weight_scale_inv", vec![rows.div_ceil(128), cols.div_ceil(128)]),
            1 => ("X.weight_scale", vec![]),
            _ => ("X.weight_scale", vec![rows, 1]),
        };
        let (bf16, f32) = (s.blob(bf16), s.blob(f32));
        let made = match scheme {
            0 => anamnesis::dequantize_fp8_to_bf16(&weight, &scale, rows, cols, DTYPES[dtype]),
            1 => anamnesis::dequantize_per_tensor_fp8_to_bf16(
                &weight,
                widened(&scale, DTYPES[dtype]),
            ),
            _ => anamnesis::dequantize_per_channel_fp8_to_bf16(
                &weight,
                &scale,
                rows,
                cols,
                DTYPES[dtype],
            ),
        };
        check_single(name, &bf16, made);
        let tensors = [
            raw("X.weight", "F8_E4M3", &[rows, cols], weight),
            raw(scale_name, FLOATS[dtype], &scale_shape, scale),
        ];
        check(name, &tensors, &[], &[rows, cols], &bf16, &f32);
    }
}

#[test]
fn gptq() {
    for name in ["falcon3_1b_int4", "llama_3_2_1b_gptqmodel_int8"] {
        let mut s = Slice::open(&format!("gptq/{name}.bin"), b"AMNQ");
        let [bits, group_size, k, n, dtype, has_g_idx, qweight, scales, qzeros, g_idx, bf16, f32] =
            s.fields();
        let groups = k / group_size;
        let mut tensors = vec![
            raw("X.qweight", "I32", &[k * bits / 32, n], s.blob(qweight)),
            raw("X.scales", FLOATS[dtype], &[groups, n], s.blob(scales)),
            raw("X.qzeros", "I32", &[groups, n * bits / 32], s.blob(qzeros)),
        ];
        let g_idx = s.blob(g_idx);
        if has_g_idx == 1 {
            tensors.push(raw("X.g_idx", "I32", &[k], g_idx));
        }
        let (bf16, f32) = (s.blob(bf16), s.blob(f32));
        let [q, scales, zeros] = [0, 1, 2].map(|i| tensors[i].bytes.as_slice());
        let index = tensors.get(3).map(|t| t.bytes.as_slice());
        let of = DTYPES[dtype];
        let made = anamnesis::dequantize_gptq_to_bf16(
            q, scales, zeros, index, k, n, group_size, bits as u8, of,
        );
        check_single(name, &bf16, made);
        let (bf16, f32) = (transposed(&bf16, k, n, 2), transposed(&f32, k, n, 4));
        let (bits, group_size) = (bits.to_string(), group_size.to_string());
        let metadata = [
            ("gptq_bits", bits.as_str()),
            ("gptq_group_size", &group_size),
            ("gptq_checkpoint_format", "gptq"),
        ];
        check(name, &tensors, &metadata, &[n, k], &bf16, &f32);
    }
}

#[test]
fn awq() {
    let name = "llama_3_2_1b_awq";
    let mut s = Slice::open(&format!("awq/{name}.bin"), b"AMNA");
    let [bits, group_size, k, n, dtype, qweight, scales, qzeros, bf16, f32] = s.fields();
    assert_eq!(bits, 4);
    let tensors = [
        raw("X.qweight", "I32", &[k, n / 8], s.blob(qweight)),
        raw("X.scales", FLOATS[dtype], &[k / group_size, n], s.blob(scales)),
        raw("X.qzeros", "I32", &[k / group_size, n / 8], s.blob(qzeros)),
    ];
    let (bf16, f32) = (s.blob(bf16), s.blob(f32));
    let [q, scales, zeros] = [0, 1, 2].map(|i| tensors[i].bytes.as_slice());
    let made = anamnesis::dequantize_awq_to_bf16(
        q,
        scales,
        zeros,
        k,
        n,
        group_size,
        bits as u8,
        DTYPES[dtype],
    );
    check_single(name, &bf16, made);
    let (bf16, f32) = (transposed(&bf16, k, n, 2), transposed(&f32, k, n, 4));
    check(name, &tensors, &[], &[n, k], &bf16, &f32);
}

#[test]
fn bnb_4bit() {
    for (name, kind) in [("llama_1b_fp4", "fp4"), ("llama_1b_nf4_double_quant", "nf4")] {
        let mut s = Slice::open(&format!("bnb/{name}.bin"), b"AMNB");
        let [format, total, block, weight, absmax, map, nested, nested_map, bf16, f32] = s.fields();
        let offset = f32::from_le_bytes(s.blob(4).try_into().unwrap());
        let mut state = serde_json::json!({"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [total]});
        let mut tensors = vec![
            raw("X.weight", "U8", &[weight, 1], s.blob(weight)),
            raw(
                "X.weight.absmax",
                if format == 2 { "U8" } else { "F32" },
                &[total / block],
                s.blob(absmax),
            ),
            raw("X.weight.quant_map", "F32", &[16], s.blob(map)),
        ];
        let (nested, nested_map) = (s.blob(nested), s.blob(nested_map));
        let (bf16, f32) = (s.blob(bf16), s.blob(f32));
        let [codes, absmax, map] = [0, 1, 2].map(|i| tensors[i].bytes.as_slice());
        if format == 2 {
            let count = nested.len() / 4;
            let nested_block = (total / block).div_ceil(count);
            let made = anamnesis::dequantize_bnb4_double_quant_to_bf16(
                codes,
                absmax,
                map,
                &nested,
                &nested_map,
                offset,
                total,
                block,
                nested_block,
            );
            check_single(name, &bf16, made);
            state["nested_blocksize"] = nested_block.into();
            state["nested_offset"] = offset.into();
            tensors.push(raw("X.weight.nested_absmax", "F32", &[count], nested));
            tensors.push(raw("X.weight.nested_quant_map", "F32", &[256], nested_map));
        } else {
            let made = anamnesis::dequantize_bnb4_to_bf16(codes, absmax, map, total, block);
            check_single(name, &bf16, made);
        }
        let state = state.to_string().into_bytes();
        tensors.push(raw(
            &format!("X.weight.quant_state.bitsandbytes__{kind}"),
            "U8",
            &[state.len()],
            state,
        ));
        check(name, &tensors, &[], &[total], &bf16, &f32);
    }
}

#[test]
fn bnb_int8() {
    let mut s = Slice::open("bnb/llama_1b_int8.bin", b"AMNB");
    let [format, n, k, weight, scb, bf16, f32] = s.fields();
    assert_eq!(format, 1);
    let tensors =
        [raw("X.weight", "I8", &[n, k], s.blob(weight)), raw("X.SCB", "F32", &[n], s.blob(scb))];
    let (bf16, f32) = (s.blob(bf16), s.blob(f32));
    let made = anamnesis::dequantize_bnb_int8_to_bf16(&tensors[0].bytes, &tensors[1].bytes, n, k);
    check_single("int8", &bf16, made);
    check("int8", &tensors, &[], &[n, k], &bf16, &f32);
}
