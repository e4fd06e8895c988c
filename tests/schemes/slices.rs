//! Slices of real models decoded by the canonical libraries (tests/data/slices/README.md): each is put into
//! a file as its model has it, and must come out bit for bit; so must it from the functions for single tensors.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use anamnesis::{Dtype, TargetDtype};
use common::{Raw, assert_same, data, file, first_difference, raw};
use safetensors::SafeTensors;

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
    for (target, dtype, golden) in [
        (TargetDtype::BF16, Dtype::BF16, bf16),
        (TargetDtype::F32, Dtype::F32, f32),
    ] {
        let bytes = model
            .remember_to_bytes(target)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.names(), ["X.weight"], "{name}");
        let weight = read.tensor("X.weight").unwrap();
        assert_eq!(weight.shape(), shape, "{name}");
        assert_eq!(
            first_difference(dtype, golden, weight.data()),
            None,
            "{name} {target}"
        );
    }
}

const FLOATS: [&str; 3] = ["F32", "BF16", "F16"];
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// Compares what a function for single tensors made.
fn check_single(name: &str, golden: &[u8], made: anamnesis::Result<Vec<u8>>) {
    assert_eq!(
        first_difference(Dtype::BF16, golden, &made.unwrap()),
        None,
        "{name}, by itself"
    );
}

/// `[k, n]` as `[n, k]`.
#[cfg(any(feature = "gptq", feature = "awq"))]
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
    for name in [
        "exaone_fine_grained",
        "llama_dynamic_per_channel",
        "ministral_per_tensor",
    ] {
        let mut s = Slice::open(&format!("fp8/{name}.bin"), b"AMNF");
        let [scheme, dtype, rows, cols, weight, scale, bf16, f32] = s.fields();
        let (weight, scale) = (s.blob(weight), s.blob(scale));
        let (scale_name, scale_shape) = match scheme {
            0 => (
                "X.weight_scale_inv",
                vec![rows.div_ceil(128), cols.div_ceil(128)],
            ),
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

#[cfg(feature = "gptq")]
#[test]
fn gptq() {
    for name in ["falcon3_1b_int4", "llama_3_2_1b_gptqmodel_int8"] {
        let mut s = Slice::open(&format!("gptq/{name}.bin"), b"AMNQ");
        let [
            bits,
            group_size,
            k,
            n,
            dtype,
            has_g_idx,
            qweight,
            scales,
            qzeros,
            g_idx,
            bf16,
            f32,
        ] = s.fields();
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

#[cfg(feature = "awq")]
#[test]
fn awq() {
    let name = "llama_3_2_1b_awq";
    let mut s = Slice::open(&format!("awq/{name}.bin"), b"AMNA");
    let [
        bits,
        group_size,
        k,
        n,
        dtype,
        qweight,
        scales,
        qzeros,
        bf16,
        f32,
    ] = s.fields();
    assert_eq!(bits, 4);
    let tensors = [
        raw("X.qweight", "I32", &[k, n / 8], s.blob(qweight)),
        raw(
            "X.scales",
            FLOATS[dtype],
            &[k / group_size, n],
            s.blob(scales),
        ),
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

#[cfg(feature = "bnb")]
#[test]
fn bnb_4bit() {
    for (name, kind) in [
        ("llama_1b_fp4", "fp4"),
        ("llama_1b_nf4_double_quant", "nf4"),
    ] {
        let mut s = Slice::open(&format!("bnb/{name}.bin"), b"AMNB");
        let [
            format,
            total,
            block,
            weight,
            absmax,
            map,
            nested,
            nested_map,
            bf16,
            f32,
        ] = s.fields();
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
        if format == 2 {
            let count = nested.len() / 4;
            state["nested_blocksize"] = (total / block).div_ceil(count).into();
            state["nested_offset"] = offset.into();
            tensors.push(raw("X.weight.nested_absmax", "F32", &[count], nested));
            tensors.push(raw("X.weight.nested_quant_map", "F32", &[256], nested_map));
        }
        let (bf16, f32) = (s.blob(bf16), s.blob(f32));
        if format != 2 {
            let [codes, absmax, map] = [0, 1, 2].map(|i| tensors[i].bytes.as_slice());
            check_single(
                name,
                &bf16,
                anamnesis::dequantize_bnb4_to_bf16(codes, absmax, map, total, block),
            );
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

#[cfg(feature = "bnb")]
#[test]
fn bnb_int8() {
    let mut s = Slice::open("bnb/llama_1b_int8.bin", b"AMNB");
    let [format, n, k, weight, scb, bf16, f32] = s.fields();
    assert_eq!(format, 1);
    let tensors = [
        raw("X.weight", "I8", &[n, k], s.blob(weight)),
        raw("X.SCB", "F32", &[n], s.blob(scb)),
    ];
    let (bf16, f32) = (s.blob(bf16), s.blob(f32));
    let made = anamnesis::dequantize_bnb_int8_to_bf16(&tensors[0].bytes, &tensors[1].bytes, n, k);
    check_single("int8", &bf16, made);
    check("int8", &tensors, &[], &[n, k], &bf16, &f32);
}

/// The tiny files whose header `expected.json` describes: the same header must be read, and they decode.
#[test]
fn tiny_files() {
    for name in ["fp8", "gptq"] {
        let path = data().join(format!("slices/safetensors/{name}.safetensors"));
        let expected = std::fs::read(path.with_extension("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let header =
            anamnesis::parse_safetensors_header_from_reader(std::fs::File::open(&path).unwrap())
                .unwrap();
        assert_eq!(header.header_size as u64, expected["header_size"]);
        for want in expected["tensors"].as_array().unwrap() {
            let got = header
                .tensors
                .iter()
                .find(|t| want["name"] == t.name.as_str())
                .unwrap();
            assert_eq!(want["dtype"], got.dtype.name());
            assert_eq!(want["shape"], serde_json::json!(got.shape));
            assert_eq!(want["data_offsets"], serde_json::json!(got.data_offsets));
        }
        if cfg!(feature = "gptq") || name == "fp8" {
            let bytes = anamnesis::parse(&path)
                .unwrap()
                .remember_to_bytes(TargetDtype::F32)
                .unwrap();
            assert!(
                SafeTensors::deserialize(&bytes)
                    .unwrap()
                    .tensor("model.layers.0.weight")
                    .is_ok()
            );
            assert_same(&bytes, &bytes, name);
        }
    }
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    let directory = data().join("slices/gguf");
    let names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 11);
    for name in names.iter().map(|name| name.to_str().unwrap()) {
        let mut s = Slice::open(&format!("gguf/{name}"), b"AMNG");
        let [kind, n, raw, bf16, f32] = s.fields();
        let raw = s.blob(raw);
        let file = common::gguf::Gguf::default()
            .tensor("X.weight", kind as u32, &[n as u64], &raw)
            .file();
        let (bf16, f32) = (s.blob(bf16), s.blob(f32));
        let header =
            anamnesis::parse_gguf_front_matter_from_reader(std::io::Cursor::new(&file)).unwrap();
        check_single(
            name,
            &bf16,
            anamnesis::dequantize_gguf_to_bf16(&raw, header.tensor_infos[0].dtype, n),
        );
        check_file(name, file, &[n], &bf16, &f32);
    }
}

#[cfg(feature = "npz")]
#[test]
fn npz() {
    const DTYPES: [&str; 13] = [
        "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64",
    ];
    let model = anamnesis::parse(data().join("slices/npz/gemma_scope_small.npz")).unwrap();
    let bytes = std::fs::read(data().join("slices/npz/gemma_scope_reference.bin")).unwrap();
    let mut s = Slice { bytes, at: 0 };
    let arrays = s.field();
    assert_eq!(model.tensors().len(), arrays);
    for _ in 0..arrays {
        let name = s.field();
        let name = String::from_utf8(s.blob(name)).unwrap();
        // The shape is the whole model's; the slice has the first values of each array.
        let rank = s.field();
        s.blob(8 * rank);
        let (dtype, len) = (s.field(), s.field());
        let tensor = model.tensor(&name).unwrap();
        assert_eq!(tensor.dtype().name(), DTYPES[dtype], "{name}");
        assert_eq!(tensor.bytes().unwrap(), s.blob(len), "{name}");
    }
}

#[cfg(feature = "pth")]
#[test]
fn pth() {
    for name in ["algzoo_rnn_small", "algzoo_transformer_small"] {
        let model = anamnesis::parse(data().join(format!("slices/pth/{name}.pth"))).unwrap();
        let text = std::fs::read(data().join(format!("slices/pth/{name}_reference.json"))).unwrap();
        let reference: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let tensors = reference["tensors"].as_array().unwrap();
        assert_eq!(model.tensors().len(), tensors.len());
        for want in tensors {
            let got = model.tensor(want["name"].as_str().unwrap()).unwrap();
            assert_eq!(
                serde_json::json!(got.shape()),
                want["shape"],
                "{name} {}",
                got.name()
            );
            let hex: String = got
                .bytes()
                .unwrap()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            assert_eq!(
                Some(hex.as_str()),
                want["data_hex"].as_str(),
                "{name} {}",
                got.name()
            );
        }
    }
}
