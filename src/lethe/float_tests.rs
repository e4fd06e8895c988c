//! FP8, MX and NVFP4 against the encodings of their libraries (`tests/data/generate/fp_encode.py`),
//! in tiles of several sizes, at every CPU level; and the values that decoding gives against those
//! that the encoder returns.

mod harness;

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use self::harness::{decoded, encode, widened};
use super::comfy::{ComfyBlocks, ComfyConvRot};
use super::fp8::{Fp8, Fp8Layout};
use super::mx::{Mx, MxCodes, MxLayout, ScaleRule};
use super::nvfp4::Nvfp4;
use super::{Method, WeightInfo};
use crate::lethe::kernels::mx::ScaleMode;
use crate::remember::Granularity;
use crate::simd::Level;
use crate::{Dtype, TargetDtype};

fn granularity(text: &str) -> Granularity {
    match text {
        "tensor" => Granularity::Tensor,
        "channel" => Granularity::Channel,
        block => {
            let (rows, cols) = block.split_once('x').unwrap();
            Granularity::Block { rows: rows.parse().unwrap(), cols: cols.parse().unwrap() }
        }
    }
}

/// The method of a case. None if its feature is not in this build.
fn method_of(text: &str) -> Option<Box<dyn Method>> {
    let words: Vec<&str> = text.split(' ').collect();
    let transformers =
        |is_ue8m0, allows_edge_blocks| Fp8Layout::Transformers { is_ue8m0, allows_edge_blocks };
    let fp8 = |layout, text| {
        Some(Box::new(Fp8 { layout, granularity: granularity(text) }) as Box<dyn Method>)
    };
    match words[..] {
        ["fp8", "transformers", "float", block] => fp8(transformers(false, false), block),
        ["fp8", "transformers", "ue8m0", block] => fp8(transformers(true, false), block),
        ["fp8", "transformers", "ragged", block] => fp8(transformers(false, true), block),
        ["fp8", "compressed_tensors", of] => fp8(Fp8Layout::CompressedTensors, of),
        ["fp8", "comfy", format] => fp8(Fp8Layout::ComfyUi { is_e5m2: format == "e5m2" }, "tensor"),
        ["comfy", format] => Some(Box::new(if format == "int8" {
            ComfyConvRot::Int8
        } else {
            ComfyConvRot::W4A4
        })),
        ["nvfp4", "comfy"] => Some(Box::new(ComfyBlocks::Nvfp4)),
        ["mxfp8", "comfy", _] => Some(Box::new(ComfyBlocks::Mxfp8)),
        ["nvfp4", whose] => Some(Box::new(if whose == "model_opt" {
            Nvfp4::ModelOpt
        } else {
            Nvfp4::CompressedTensors
        })),
        ["mxfp4" | "mxfp6" | "mxfp8", layout, rule] => {
            let layout = match layout {
                "compressed_tensors" => MxLayout::CompressedTensors,
                "model_opt" => MxLayout::ModelOpt,
                _ => MxLayout::GptOss,
            };
            let rule = match rule {
                "floor" => ScaleRule::TorchAo(ScaleMode::Floor),
                "ceil" => ScaleRule::TorchAo(ScaleMode::Ceil),
                "even" => ScaleRule::TorchAo(ScaleMode::Even),
                "rceil" => ScaleRule::TorchAo(ScaleMode::Rceil),
                "ggml" => ScaleRule::Ggml,
                _ => ScaleRule::LayoutDefault,
            };
            let codes = match words[0] {
                "mxfp4" => MxCodes::Fp4,
                "mxfp6" => MxCodes::Fp6,
                _ => MxCodes::Fp8,
            };
            Some(Box::new(Mx { layout, rule, codes }))
        }
        _ => None,
    }
}

/// Compares a case with the library's file, and returns the number of its values and of stored
/// bytes that differ.
fn check(file: &Path) -> (usize, usize) {
    let bytes = std::fs::read(file).unwrap();
    let metadata = SafeTensors::read_metadata(&bytes)
        .unwrap()
        .1
        .metadata()
        .clone()
        .unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let Some(method) = method_of(&metadata["method"]) else {
        return (0, 0);
    };
    let input = tensors.tensor("weights").unwrap();
    let (dtype, values) = widened(&input);
    let weight = WeightInfo { name: &metadata["name"], shape: input.shape(), dtype };
    assert_eq!(method.objection(&weight), None);
    let encoder = method.encoder(&weight).unwrap();
    let whole = encode(&*encoder, &values, Level::detect(), [usize::MAX, usize::MAX]);
    assert_eq!(whole.stored.len(), tensors.len() - 1);
    let mut different = 0;
    for (stored, bytes) in &whole.stored {
        let expected = tensors.tensor(&stored.name).unwrap();
        assert_eq!(Dtype::try_from(expected.dtype()).unwrap(), stored.dtype, "{}", stored.name);
        assert_eq!(expected.shape(), stored.shape, "{}", stored.name);
        let differ = bytes
            .iter()
            .zip(expected.data())
            .filter(|(a, b)| a != b)
            .count();
        if differ > 0 {
            let first = bytes
                .iter()
                .zip(expected.data())
                .position(|(a, b)| a != b)
                .unwrap();
            let (ours, theirs) = (bytes[first], expected.data()[first]);
            println!(
                "{}: {}: {differ} of {}, first at {first}: {ours:02x} for {theirs:02x}",
                file.display(),
                stored.name,
                bytes.len()
            );
        }
        different += differ;
    }
    let back = decoded(&whole, &*method);
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let first = back
        .iter()
        .zip(&whole.back)
        .position(|(a, b)| !same((a, b)));
    assert!(
        first.is_none(),
        "{}: decoding gives {:e} for {:e} at {first:?}",
        file.display(),
        back[first.unwrap()],
        whole.back[first.unwrap()]
    );
    for level in Level::available() {
        for cut in [[usize::MAX, usize::MAX], [1, 1], [3, 2], [1, usize::MAX], [2, 3]] {
            let other = encode(&*encoder, &values, level, cut);
            assert!(other.stored == whole.stored, "{level:?} {cut:?}");
            assert!(other.back.iter().zip(&whole.back).all(same), "{level:?} {cut:?}");
        }
        if values.len() > 100_000 {
            break;
        }
    }
    (values.len(), different)
}

fn check_all(dir: &Path) -> usize {
    let files = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    let sums = files
        .iter()
        .map(|file| check(file))
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{} files, {} values, {} bytes differ", files.len(), sums.0, sums.1);
    assert_eq!(sums.1, 0);
    files.len()
}

#[test]
fn objections_to_shapes() {
    let objects = |method: &str, name: &str, shape: &[usize]| {
        let method = method_of(method);
        method.is_some_and(|method| {
            method
                .objection(&WeightInfo { name, shape, dtype: TargetDtype::BF16 })
                .is_some()
        })
    };
    for (method, name, shape) in [
        ("fp8 transformers float 128x128", "a.weight", &[100, 128][..]),
        ("fp8 transformers float 128x128", "a.weight", &[128]),
        ("fp8 transformers ragged 128x128", "a.experts.up", &[2, 100, 128]),
        ("fp8 transformers float tensor", "a.experts.up", &[2, 128, 128]),
        ("fp8 transformers float channel", "a.weight", &[128, 128]),
        ("fp8 compressed_tensors channel", "a.weight", &[2, 1 << 20]),
        ("fp8 compressed_tensors 1x1", "a.weight", &[2, 32]),
        ("fp8 transformers float 1x1", "a.weight", &[2, 32]),
        ("fp8 transformers float 0x0", "a.weight", &[2, 32]),
        ("fp8 compressed_tensors tensor", "a.bias", &[2, 2]),
        ("mxfp4 compressed_tensors own", "a.weight", &[32, 48]),
        ("mxfp4 gpt_oss own", "a.weight", &[32, 32]),
        ("mxfp4 gpt_oss own", "a.weight", &[2, 32, 48]),
        ("mxfp4 compressed_tensors own", "a.experts.up", &[2, 32, 32]),
        ("mxfp4 gpt_oss own", "a.experts.up", &[2, 48, 32]),
        ("mxfp8 gpt_oss own", "a.experts.up", &[2, 32, 32]),
        ("mxfp8 model_opt ggml", "a.weight", &[32, 32]),
        ("comfy int8", "a.bias", &[2, 2]),
        ("comfy int8", "a.weight", &[2, 1 << 20]),
        ("comfy w4a4", "a.weight", &[2, 96]),
        ("comfy w4a4", "a.weight", &[2, 2, 64]),
        ("nvfp4 comfy", "a.weight", &[16, 24]),
        ("nvfp4 comfy", "a.weight", &[24, 16]),
        ("mxfp8 comfy own", "a.weight", &[48, 32]),
        ("mxfp8 comfy own", "a.weight", &[2, 32, 32]),
    ] {
        assert!(objects(method, name, shape), "{method} {name} {shape:?}");
    }
    for (method, name, shape) in [
        ("fp8 transformers ragged 128x128", "a.weight", &[100, 130][..]),
        ("fp8 transformers float 128x128", "a.experts.up", &[2, 128, 256]),
        ("fp8 compressed_tensors 128x128", "a.weight", &[1, 1]),
        ("mxfp4 gpt_oss own", "a.experts.up", &[2, 32, 7]),
        ("mxfp4 gpt_oss own", "a.weight", &[2, 7, 32]),
        ("mxfp4 compressed_tensors own", "a.weight", &[2, 7, 32]),
    ] {
        assert!(!objects(method, name, shape), "{method} {name} {shape:?}");
    }
}

#[test]
fn configs_name_skipped_modules() {
    let skipped = ["lm_head".to_owned()];
    for (method, key) in [
        ("fp8 transformers ue8m0 128x128", "modules_to_not_convert"),
        ("fp8 compressed_tensors channel", "ignore"),
        ("mxfp4 gpt_oss own", "modules_to_not_convert"),
        ("mxfp8 model_opt own", "ignore"),
    ] {
        let config = method_of(method).unwrap().config(&skipped).unwrap();
        assert_eq!(config[key], serde_json::json!(skipped), "{method}");
    }
    let config = method_of("fp8 compressed_tensors 64x32")
        .unwrap()
        .config(&[])
        .unwrap();
    assert_eq!(
        config["config_groups"]["group_0"]["weights"]["block_structure"],
        serde_json::json!([64, 32])
    );
}

#[test]
fn encodings_equal_their_libraries() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    assert!(check_all(&data.join("fp_encode")) > 50);
    assert_eq!(check_all(&data.join("comfy_encode")), 4);
    // More cases, which the script makes on demand.
    if let Some(dir) = std::env::var_os("FP_ENCODE") {
        check_all(Path::new(&dir));
    }
}
