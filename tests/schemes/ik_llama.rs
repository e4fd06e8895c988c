//! Rows that begin with a scale, as those of ik_llama.cpp's types: cut into tiles, in slices,
//! without values, copied.

use anamnesis::{
    ConvertOptions, ConvertTarget, Dtype, TargetDtype, dequantize_gguf_blocks_to_bf16,
    dequantize_gguf_to_bf16, parse, parse_bytes,
};
use safetensors::SafeTensors;

use crate::common::gguf::Gguf;
use crate::common::verdict::{Parse, Unsupported, verdict};
use crate::common::{Random, TARGETS, data};

/// Types with headers of each size: number, values and bytes of a block, bytes of a header.
const TYPES: [(Dtype, u32, usize, usize, usize); 4] = [
    (Dtype::IQ2_KS, 145, 256, 70, 2),
    (Dtype::IQ4_KS, 144, 256, 136, 4),
    (Dtype::Q8_KV, 151, 32, 32, 8),
    (Dtype::IQ6_K, 141, 256, 212, 0),
];

/// `rows` rows of random blocks, each with a scale of its own.
fn rows(dtype: Dtype, rows: usize, cols: usize) -> (Vec<u8>, usize) {
    let (_, _, block, size, header) = TYPES.into_iter().find(|t| t.0 == dtype).unwrap();
    let row_bytes = header + cols / block * size;
    let mut bytes = Random(7).bytes(rows * row_bytes);
    for (n, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
        let scale = (n as f32 + 1.0) / 1024.0;
        match header {
            0 => row.chunks_exact_mut(size).for_each(|block| {
                block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            }),
            2 => row[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes()),
            _ => row[..4].copy_from_slice(&scale.to_le_bytes()),
        }
    }
    (bytes, row_bytes)
}

fn model_of(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let number = TYPES.into_iter().find(|t| t.0 == dtype).unwrap().1;
    let shape: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
    Gguf::default().tensor("w", number, &shape, bytes).file()
}

fn values(file: &[u8]) -> Vec<u8> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    tensors.tensor("w").unwrap().data().to_vec()
}

/// A row of more values than a tile has is decoded piece by piece, and only the first has the
/// header.
#[test]
fn rows_longer_than_a_tile() {
    let (n, cols) = (3, 300 << 10);
    for (dtype, ..) in TYPES {
        let (bytes, row_bytes) = rows(dtype, n, cols);
        let each = bytes
            .chunks_exact(row_bytes)
            .flat_map(|row| dequantize_gguf_to_bf16(row, dtype, cols).unwrap());
        let want: Vec<u8> = each.collect();
        let file = model_of(dtype, &[n, cols], &bytes);
        let in_memory = parse_bytes(file.clone()).unwrap();
        let path = crate::common::tempdir().unwrap();
        let path = path.path().join("model.gguf");
        std::fs::write(&path, file).unwrap();
        for model in [in_memory, parse(&path).unwrap()] {
            let decoded = model.remember_to_bytes(TargetDtype::BF16).unwrap();
            assert!(values(&decoded) == want, "{dtype}");
        }
    }
}

/// A slice has as many rows as it has headers.
#[test]
fn rows_in_slices() {
    for (dtype, ..) in TYPES {
        for (n, cols) in [(1, 256), (7, 768), (40, 4096)] {
            let (bytes, row_bytes) = rows(dtype, n, cols);
            let whole = dequantize_gguf_to_bf16(&bytes, dtype, n * cols).unwrap();
            let each = bytes
                .chunks_exact(row_bytes)
                .flat_map(|row| dequantize_gguf_to_bf16(row, dtype, cols).unwrap());
            assert!(whole == each.collect::<Vec<_>>(), "{dtype} {n} × {cols}");
            let mut blocks = Vec::new();
            dequantize_gguf_blocks_to_bf16(&bytes, dtype, n * cols, |block| {
                assert_eq!(block.len(), 2 * dtype.block_size());
                blocks.extend_from_slice(block);
                Ok(())
            })
            .unwrap();
            assert!(blocks == whole, "{dtype} {n} × {cols}");
            let file = model_of(dtype, &[n, cols], &bytes);
            let decoded = parse_bytes(file)
                .unwrap()
                .remember_to_bytes(TargetDtype::BF16);
            assert!(values(&decoded.unwrap()) == whole, "{dtype} {n} × {cols}");
            for wrong in [&bytes[1..], &bytes[..bytes.len() - row_bytes / 2], &[]] {
                let result = dequantize_gguf_to_bf16(wrong, dtype, n * cols);
                assert_eq!(verdict(result, Parse, &[dtype.name()]), None);
            }
        }
    }
    assert!(
        dequantize_gguf_to_bf16(&[], Dtype::IQ4_KS, 0)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn tensors_without_values() {
    for shape in [&[3, 0][..], &[0, 256], &[0], &[2, 0, 256]] {
        let model = parse_bytes(model_of(Dtype::IQ4_KS, shape, &[])).unwrap();
        for (target, name) in TARGETS {
            let decoded = model.remember_to_bytes(target).unwrap();
            assert!(values(&decoded).is_empty(), "{shape:?} {name}");
        }
    }
}

/// Blocks are copied into another GGUF file, with a note, and other containers get values.
#[test]
fn what_llama_cpp_does_not_read_is_noted() {
    let model = parse(data().join("ik_llama/iq4_ks/model.gguf")).unwrap();
    let options = ConvertOptions::new(ConvertTarget::Gguf);
    let conversion = model.plan(options).unwrap();
    let report = conversion.report();
    let note = "3 tensors in types of ik_llama.cpp (IQ4_KS), which llama.cpp does not read";
    assert_eq!(report.notes[0], note);
    let copied = parse_bytes(conversion.to_bytes().unwrap()).unwrap();
    for (t, copy) in model.tensors().zip(copied.tensors()) {
        assert_eq!((t.dtype(), t.shape()), (copy.dtype(), copy.shape()));
        assert!(t.bytes().unwrap() == copy.bytes().unwrap());
    }
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    let outputs = model.plan(options).unwrap();
    assert!(outputs.outputs().all(|t| t.dtype == Dtype::BF16));
}

/// Q8_0 with the bytes of each block of eight rows as Q8_0_R8 has them.
fn interleaved(bytes: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let row_bytes = cols / 32 * 34;
    let mut out = Vec::with_capacity(bytes.len());
    for first in (0..rows).step_by(8) {
        for block in 0..cols / 32 {
            let block = |row| &bytes[(first + row) * row_bytes + block * 34..][..34];
            (0..8).for_each(|row| out.extend_from_slice(&block(row)[..2]));
            for four in (2..34).step_by(4) {
                (0..8).for_each(|row| out.extend_from_slice(&block(row)[four..four + 4]));
            }
        }
    }
    out
}

/// Rows that are interleaved are decoded to what they were, also where a tensor is cut into tiles.
#[test]
fn interleaved_rows() {
    for shape in [&[8, 32][..], &[40, 4096], &[2, 16, 96], &[8, 300 << 10], &[0, 32]] {
        let cols = shape[shape.len() - 1];
        let rows = shape[..shape.len() - 1].iter().product();
        let mut bytes = Random(9).bytes(rows * cols / 32 * 34);
        for block in bytes.chunks_exact_mut(34) {
            block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
        }
        let dims: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        let decoded = |number, bytes: &[u8]| {
            let file = Gguf::default().tensor("w", number, &dims, bytes).file();
            let model = parse_bytes(file).unwrap();
            values(&model.remember_to_bytes(TargetDtype::BF16).unwrap())
        };
        let want = decoded(8, &bytes);
        assert!(decoded(208, &interleaved(&bytes, rows, cols)) == want, "{shape:?}");
    }
    // Other numbers of rows, also of the matrices of a stack, and rows alone.
    for shape in [&[12, 32][..], &[4, 12, 32], &[32]] {
        let dims: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        let bytes = vec![0; shape.iter().product::<usize>() / 32 * 34];
        let file = Gguf::default().tensor("w", 208, &dims, &bytes).file();
        let result = parse_bytes(file).and_then(|model| model.remember_to_bytes(TargetDtype::F32));
        assert_eq!(verdict(result, Parse, &["`w`", "8 rows"]), None, "{shape:?}");
    }
    let result = dequantize_gguf_to_bf16(&[0; 8 * 34], Dtype::Q8_0_R8, 256);
    assert_eq!(verdict(result, Unsupported, &["Q8_0_R8", "interleaved"]), None);
}

#[cfg(feature = "lethe")]
#[test]
fn nothing_is_encoded_to_them() {
    use anamnesis::{ForgetScheme, GgufTypes};

    for name in ["iq4_k", "gguf:IQ2_KT", "q8_kv"] {
        let result: Result<ForgetScheme, _> = name.parse();
        assert_eq!(verdict(result, Unsupported, &["ik_llama.cpp"]), None);
    }
    let result = GgufTypes::parse_type("iq4_ks");
    assert_eq!(verdict(result, Unsupported, &["IQ4_KS", "ik_llama.cpp"]), None);
    let result = GgufTypes::parse_type("iq9");
    let listed = result.unwrap_err().to_string();
    assert!(!listed.contains("IQ4_KS"), "{listed}");
}
