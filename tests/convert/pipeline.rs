//! The pipeline: any tiling and thread count, metadata, and every dtype.

mod output_file;

use anamnesis::{AnamnesisError, RememberOptions, TargetDtype, parse_bytes};
use safetensors::SafeTensors;

use crate::common::{Random, Raw, TARGETS, assert_same, data, effort, f32s, file, raw};

fn demo() -> std::path::PathBuf {
    data().join("demo/model-fp8.safetensors")
}

/// Random FP8 codes other than NaN.
fn codes(random: &mut Random, n: usize) -> Vec<u8> {
    random.bytes(n).iter().map(|b| b & 0xf7).collect()
}

/// Tensors of several schemes, each larger than a tile in at least one dimension.
fn mixed() -> Vec<Raw> {
    let mut random = Random(42);
    let mut tensors = vec![
        raw("tall.weight", "F8_E4M3", &[5000, 130], codes(&mut random, 5000 * 130)),
        raw("tall.weight_scale_inv", "F32", &[40, 2], f32s(&random.floats(80))),
        raw("wide.weight", "F8_E4M3", &[3, 150_001], codes(&mut random, 450_003)),
        raw("wide.weight_scale", "F32", &[3, 1], f32s(&random.floats(3))),
        raw("norm.weight", "BF16", &[7], random.bytes(14)),
        raw("ids", "I64", &[100_000], random.bytes(800_000)),
        raw("empty", "F16", &[0, 4], vec![]),
    ];
    for (name, k, n, groups) in [("deep", 150_000, 32, 3000), ("square", 768, 800, 12)] {
        tensors.extend([
            raw(&format!("{name}.qweight"), "I32", &[k / 8, n], random.bytes(k * n / 2)),
            raw(&format!("{name}.qzeros"), "I32", &[groups, n / 8], random.bytes(groups * n / 2)),
            raw(&format!("{name}.scales"), "F32", &[groups, n], f32s(&random.floats(groups * n))),
        ]);
    }
    {
        let (k, n) = (140_000, 8);
        tensors.extend([
            raw("awq.qweight", "I32", &[k, n / 8], random.bytes(k * n / 2)),
            raw("awq.qzeros", "I32", &[k / 80, n / 8], random.bytes(k / 80 * n / 2)),
            raw("awq.scales", "F32", &[k / 80, n], f32s(&random.floats(k / 80 * n))),
        ]);
    }
    tensors.extend([
        raw("fp4.weight", "U8", &[3, 75_000], random.bytes(225_000)),
        raw("fp4.weight_scale", "F8_E4M3", &[3, 9375], codes(&mut random, 28_125)),
        raw("fp4.weight_scale_2", "F32", &[], f32s(&[0.25])),
    ]);
    {
        let state =
            br#"{"quant_type":"nf4","blocksize":64,"dtype":"float32","shape":[701,1003]}"#.to_vec();
        let (total, blocks) = (701 * 1003usize, (701 * 1003usize).div_ceil(64));
        tensors.extend([
            raw("nf4.weight", "U8", &[total.div_ceil(2), 1], random.bytes(total.div_ceil(2))),
            raw("nf4.weight.absmax", "F32", &[blocks], f32s(&random.floats(blocks))),
            raw("nf4.weight.quant_map", "F32", &[16], f32s(&random.floats(16))),
            raw("nf4.weight.quant_state.bitsandbytes__nf4", "U8", &[state.len()], state),
        ]);
    }
    tensors
}

#[test]
fn thread_count_does_not_matter() {
    let model = parse_bytes(file(&mixed(), &[("a", "b")])).unwrap();
    // In the gate each type has all numbers of threads, otherwise another one of them.
    let count = effort([1, 3, 3]);
    for (at, (target, name)) in TARGETS.into_iter().enumerate() {
        let one = model
            .remember_to_bytes(RememberOptions::new(target).with_threads(1))
            .unwrap();
        for threads in [2, 16, 3].into_iter().cycle().skip(at).take(count) {
            let many = model
                .remember_to_bytes(RememberOptions::new(target).with_threads(threads))
                .unwrap();
            assert!(one == many, "{name} with {threads} threads");
        }
    }
}

/// Tiles narrower than a row must give the values that a decoder without tiles gives.
#[test]
fn tiles_within_rows_match_an_untiled_decoder() {
    let tensors = mixed();
    let by_name = |name: &str| tensors.iter().find(|t| t.name == name).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        by_name(name)
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect()
    };
    let bytes = parse_bytes(file(&tensors, &[]))
        .unwrap()
        .remember_to_bytes(TargetDtype::F32)
        .unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let value = |t: &safetensors::tensor::TensorView<'_>, i: usize| {
        f32::from_le_bytes(t.data()[i * 4..][..4].try_into().unwrap())
    };

    let (wide, scale) = (read.tensor("wide.weight").unwrap(), floats("wide.weight_scale"));
    for (i, &code) in by_name("wide.weight").bytes.iter().enumerate() {
        let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
        let magnitude = if e == 0 {
            m * 2f32.powi(-6)
        } else {
            (1.0 + m) * 2f32.powi(e - 7)
        };
        let expected = if code < 128 { magnitude } else { -magnitude } * scale[i / 150_001];
        assert_eq!(value(&wide, i), expected, "wide[{i}]");
    }
    {
        let (deep, scale) = (read.tensor("deep.weight").unwrap(), floats("deep.scales"));
        let nibble = |name: &str, word: usize, shift: usize| {
            u32::from_le_bytes(by_name(name).bytes[word * 4..][..4].try_into().unwrap())
                >> (shift * 4)
                & 15
        };
        let zeros: Vec<u32> = by_name("deep.qzeros")
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|&w| u32::from_le_bytes(w))
            .collect();
        assert_eq!(deep.shape(), [32, 150_000]);
        for i in (0..32 * 150_000).step_by(997) {
            let (n, k) = (i / 150_000, i % 150_000);
            let q = nibble("deep.qweight", k / 8 * 32 + n, k % 8) as f32;
            let z =
                (zeros[k / 50 * 4 + n / 8].wrapping_add(0x1111_1111) >> (n % 8 * 4) & 15) as f32;
            assert_eq!(value(&deep, i), (q - z) * scale[k / 50 * 32 + n], "deep[{n},{k}]");
        }
    }
}

#[test]
fn the_first_error_wins_at_any_thread_count() {
    let mut tensors = Vec::new();
    for i in 0..20 {
        let group = if i == 7 || i == 12 { 99i32 } else { 1 };
        tensors.extend([
            raw(&format!("{i:02}.qweight"), "I32", &[64, 64], vec![3; 64 * 64 * 4]),
            raw(&format!("{i:02}.qzeros"), "I32", &[8, 8], vec![0x77; 256]),
            raw(&format!("{i:02}.scales"), "F32", &[8, 64], f32s(&[0.5; 512])),
            raw(&format!("{i:02}.g_idx"), "I32", &[512], group.to_le_bytes().repeat(512)),
        ]);
    }
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    for threads in [1, 2, 8] {
        let error = model
            .remember_to_bytes(RememberOptions::new(TargetDtype::BF16).with_threads(threads))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "parse error: tensor `07.g_idx`: group 99 of 8",
            "{threads} threads"
        );
    }
}

#[test]
fn metadata_and_order_are_kept() {
    let tensors = [
        raw("z.weight", "F8_E4M3", &[4, 4], vec![0x38; 16]),
        raw("z.weight_scale", "F32", &[], f32s(&[2.0])),
        raw("a", "BF16", &[2], vec![0, 1, 2, 3]),
        raw("z.input_scale", "F32", &[], f32s(&[1.0])),
        raw("m", "F32", &[1], f32s(&[5.0])),
    ];
    let model =
        parse_bytes(file(&tensors, &[("modelspec.title", "é\u{1b}"), ("format", "np")])).unwrap();
    let conversion = model.plan(TargetDtype::BF16).unwrap();
    assert_eq!(conversion.report().dropped, ["z.input_scale"]);
    let bytes = conversion.to_bytes().unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.offset_keys(), ["z.weight", "a", "m"]);
    let metadata = header.metadata().clone().unwrap();
    assert_eq!(metadata.get("modelspec.title").map(String::as_str), Some("é\u{1b}"));
    assert_eq!(metadata.get("format").map(String::as_str), Some("np"));
    let weight = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(weight.tensor("z.weight").unwrap().data(), 0x4000u16.to_le_bytes().repeat(16));

    let plain = parse_bytes(file(&tensors[2..3], &[]))
        .unwrap()
        .remember_to_bytes(TargetDtype::BF16)
        .unwrap();
    let (_, header) = SafeTensors::read_metadata(&plain).unwrap();
    assert_eq!(
        header
            .metadata()
            .clone()
            .unwrap()
            .get("format")
            .map(String::as_str),
        Some("pt")
    );
}

#[test]
fn every_dtype_passes_through() {
    // FP8 is left out: without a scale it would be decoded.
    let plain = crate::common::DTYPES.iter().filter(|(dtype, _)| {
        !matches!(*dtype, "F8_E4M3" | "F8_E5M2" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ")
    });
    let tensors: Vec<Raw> = plain
        .enumerate()
        .map(|(i, (dtype, bits))| {
            raw(&format!("{i:02}"), dtype, &[2, 4], Random(i as u64 + 1).bytes(*bits))
        })
        .collect();
    let source = file(&tensors, &[]);
    let model = parse_bytes(source.clone()).unwrap();
    assert!(model.inspect().problems.is_empty());
    let out = model.remember_to_bytes(TargetDtype::F32).unwrap();
    assert_same(&source, &out, "dtypes");
    for (tensor, want) in model.tensors().zip(&tensors) {
        assert_eq!((tensor.name(), tensor.dtype().name()), (want.name.as_str(), want.dtype));
        assert_eq!(tensor.bytes().unwrap(), want.bytes);
    }
}

/// A reader that counts the bytes that are requested.
struct Counting<'a> {
    bytes: &'a [u8],
    read: usize,
}

impl std::io::Read for Counting<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(self.bytes.len() - self.read);
        out[..n].copy_from_slice(&self.bytes[self.read..][..n]);
        self.read += n;
        Ok(n)
    }
}

#[test]
fn a_header_is_read_to_its_end_and_no_further() {
    let source = file(&mixed(), &[]);
    let mut reader = Counting { bytes: &source, read: 0 };
    let header = anamnesis::parse_safetensors_header_from_reader(&mut reader).unwrap();
    assert_eq!(reader.read, 8 + header.header_size);
    let info = anamnesis::InspectInfo::from(&header);
    assert_eq!(info.tensor_count, mixed().len());
    let cut =
        anamnesis::parse_safetensors_header_from_reader(&source[..header.header_size]).unwrap_err();
    assert!(matches!(cut, AnamnesisError::Io(_)), "{cut}");
}
