//! Encodings by the canonical libraries (`tests/data/generate/fp_encode.py`) against ours, cut in several ways, at
//! every level; and what decodes from them against what the encoder said would.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::fp8::{Fp8, Fp8Layout};
use super::mx::{Mx, MxLayout, ScaleRule};
#[cfg(feature = "nvfp4")]
use super::nvfp4::Nvfp4;
use super::{Encode, Method, StoredTensor, Survey, TileValues, WeightInfo};
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::scheme::{Granularity, Tile};
use crate::simd::Level;
use crate::{Dtype, TargetDtype};

fn granularity(text: &str) -> Granularity {
    match text {
        "tensor" => Granularity::Tensor,
        "channel" => Granularity::Channel,
        block => {
            let (rows, cols) = block.split_once('x').unwrap();
            Granularity::Block {
                rows: rows.parse().unwrap(),
                cols: cols.parse().unwrap(),
            }
        }
    }
}

/// The method of a case; none if this build leaves it out.
fn method_of(text: &str) -> Option<Box<dyn Method>> {
    let words: Vec<&str> = text.split(' ').collect();
    let transformers = |powers, ragged| Fp8Layout::Transformers { powers, ragged };
    let fp8 = |layout, text| {
        Some(Box::new(Fp8 {
            layout,
            granularity: granularity(text),
        }) as Box<dyn Method>)
    };
    match words[..] {
        ["fp8", "transformers", "float", block] => fp8(transformers(false, false), block),
        ["fp8", "transformers", "ue8m0", block] => fp8(transformers(true, false), block),
        ["fp8", "transformers", "ragged", block] => fp8(transformers(false, true), block),
        ["fp8", "compressed_tensors", of] => fp8(Fp8Layout::CompressedTensors, of),
        ["fp8", "comfy", format] => fp8(
            Fp8Layout::ComfyUi {
                wide: format == "e5m2",
            },
            "tensor",
        ),
        #[cfg(feature = "nvfp4")]
        ["nvfp4", whose] => Some(Box::new(if whose == "model_opt" {
            Nvfp4::ModelOpt
        } else {
            Nvfp4::CompressedTensors
        })),
        ["mxfp4" | "mxfp8", layout, rule] => {
            let layout = match layout {
                "compressed_tensors" => MxLayout::CompressedTensors,
                "model_opt" => MxLayout::ModelOpt,
                _ => MxLayout::GptOss,
            };
            let rule = match rule {
                "floor" => ScaleRule::Floor,
                "ceil" => ScaleRule::Ceil,
                "even" => ScaleRule::Even,
                "rceil" => ScaleRule::Rceil,
                "ggml" => ScaleRule::Ggml,
                _ => ScaleRule::LayoutDefault,
            };
            Some(Box::new(Mx {
                layout,
                rule,
                is_mxfp8: words[0] == "mxfp8",
            }))
        }
        _ => None,
    }
}

/// The values of an input tensor.
fn widened(view: &safetensors::tensor::TensorView<'_>) -> (TargetDtype, Vec<f32>) {
    let halves = || {
        view.data()
            .as_chunks()
            .0
            .iter()
            .map(|&b| u16::from_le_bytes(b))
    };
    match view.dtype() {
        safetensors::Dtype::BF16 => (TargetDtype::BF16, halves().map(f32_from_bf16).collect()),
        safetensors::Dtype::F16 => (TargetDtype::F16, halves().map(f32_from_f16).collect()),
        _ => (
            TargetDtype::F32,
            view.data()
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
        ),
    }
}

/// What is stored, and the values that decoding should give.
struct Encoded {
    stored: Vec<(StoredTensor, Vec<u8>)>,
    back: Vec<f32>,
}

/// Encodes all of `values`, in tiles of `rows` × `cols` alignments.
fn encode(encoder: &dyn Encode, values: &[f32], level: Level, [rows, cols]: [usize; 2]) -> Encoded {
    let grid = encoder.grid();
    assert_eq!(grid.rows * grid.cols, values.len());
    let survey = match encoder.survey() {
        Some(Survey::MaxAbs) => values
            .iter()
            .fold(0.0, |max: f64, &x| max.max(f64::from(x).abs())),
        Some(other) => panic!("{other:?}"),
        None => 0.0,
    };
    let empty = |stored: StoredTensor| {
        let bytes = stored.shape.iter().product::<usize>() * stored.dtype.bits() / 8;
        (stored, vec![0xa5; bytes])
    };
    let mut encoded = Encoded {
        stored: encoder.stored().into_iter().map(empty).collect(),
        back: vec![0.0; values.len()],
    };
    let step = |n: usize, align: usize, all: usize| n.saturating_mul(align).clamp(1, all);
    let (height, width) = (
        step(rows, grid.row_align, grid.rows),
        step(cols, grid.col_align, grid.cols),
    );
    let mut put_bytes = 0;
    for top in (0..grid.rows).step_by(height) {
        for left in (0..grid.cols).step_by(width) {
            let tile = Tile {
                rows: top..(top + height).min(grid.rows),
                cols: left..(left + width).min(grid.cols),
            };
            let row = |r: usize| r * grid.cols + tile.cols.start..r * grid.cols + tile.cols.end;
            let part: Vec<f32> = tile
                .rows
                .clone()
                .flat_map(|r| &values[row(r)])
                .copied()
                .collect();
            let mut back = vec![f32::NAN; part.len()];
            let stored = &mut encoded.stored;
            let mut put = |part: usize, at: u64, bytes: &[u8]| {
                put_bytes += bytes.len();
                stored[part].1[at as usize..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            encoder
                .encode(
                    &TileValues {
                        tile: &tile,
                        values: &part,
                        survey,
                        level,
                    },
                    &mut back,
                    &mut put,
                )
                .unwrap();
            for (r, back) in tile.rows.clone().zip(back.chunks(tile.cols.len())) {
                encoded.back[row(r)].copy_from_slice(back);
            }
        }
    }
    assert_eq!(
        put_bytes,
        encoded
            .stored
            .iter()
            .map(|(_, bytes)| bytes.len())
            .sum::<usize>(),
        "each byte once"
    );
    encoded
}

/// What our decoder makes of it.
fn decoded(encoded: &Encoded, method: &dyn Method) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    let view = |(stored, bytes): &(StoredTensor, Vec<u8>)| {
        let dtype = [
            safetensors::Dtype::U8,
            safetensors::Dtype::F8_E4M3,
            safetensors::Dtype::F8_E5M2,
            safetensors::Dtype::F8_E8M0,
            safetensors::Dtype::BF16,
            safetensors::Dtype::F16,
            safetensors::Dtype::F32,
        ];
        let dtype = dtype
            .into_iter()
            .find(|&d| Dtype::try_from(d).unwrap() == stored.dtype)
            .unwrap();
        let view =
            safetensors::tensor::TensorView::new(dtype, stored.shape.clone(), bytes).unwrap();
        (stored.name.clone(), owned(&view))
    };
    let tensors: BTreeMap<String, Owned> = encoded.stored.iter().map(view).collect();
    let model = dir.path().join("model.safetensors");
    std::fs::write(&model, safetensors::serialize(tensors, None).unwrap()).unwrap();
    if let Some(config) = method.config(&[]) {
        let config = serde_json::json!({ "quantization_config": config });
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    }
    let bytes = crate::parse(&model)
        .unwrap()
        .remember_to_bytes(TargetDtype::F32)
        .unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), 1, "{:?}", tensors.names());
    widened(&tensors.iter().next().unwrap().1).1
}

/// A tensor that owns its bytes.
struct Owned {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn owned(view: &safetensors::tensor::TensorView<'_>) -> Owned {
    Owned {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    }
}

impl safetensors::View for Owned {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Checks a case, and returns the number of its values and of stored bytes that differ.
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
    let weight = WeightInfo {
        name: &metadata["name"],
        shape: input.shape(),
        dtype,
    };
    assert_eq!(method.objection(&weight), None);
    let encoder = method.encoder(&weight).unwrap();
    let whole = encode(
        &*encoder,
        &values,
        Level::detect(),
        [usize::MAX, usize::MAX],
    );
    assert_eq!(whole.stored.len(), tensors.len() - 1);
    let mut different = 0;
    for (stored, bytes) in &whole.stored {
        let expected = tensors.tensor(&stored.name).unwrap();
        assert_eq!(
            Dtype::try_from(expected.dtype()).unwrap(),
            stored.dtype,
            "{}",
            stored.name
        );
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
        for cut in [
            [usize::MAX, usize::MAX],
            [1, 1],
            [3, 2],
            [1, usize::MAX],
            [2, 3],
        ] {
            let other = encode(&*encoder, &values, level, cut);
            assert!(other.stored == whole.stored, "{level:?} {cut:?}");
            assert!(
                other.back.iter().zip(&whole.back).all(same),
                "{level:?} {cut:?}"
            );
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
    println!(
        "{} files, {} values, {} bytes differ",
        files.len(),
        sums.0,
        sums.1
    );
    assert_eq!(sums.1, 0);
    files.len()
}

#[test]
fn what_does_not_fit() {
    let objects = |method: &str, name: &str, shape: &[usize]| {
        let method = method_of(method);
        method.is_some_and(|method| {
            method
                .objection(&WeightInfo {
                    name,
                    shape,
                    dtype: TargetDtype::BF16,
                })
                .is_some()
        })
    };
    for (method, name, shape) in [
        (
            "fp8 transformers float 128x128",
            "a.weight",
            &[100, 128][..],
        ),
        ("fp8 transformers float 128x128", "a.weight", &[128]),
        (
            "fp8 transformers ragged 128x128",
            "a.experts.up",
            &[2, 100, 128],
        ),
        (
            "fp8 transformers float tensor",
            "a.experts.up",
            &[2, 128, 128],
        ),
        ("fp8 transformers float channel", "a.weight", &[128, 128]),
        ("fp8 compressed_tensors channel", "a.weight", &[2, 1 << 20]),
        ("fp8 compressed_tensors tensor", "a.bias", &[2, 2]),
        ("mxfp4 compressed_tensors own", "a.weight", &[32, 48]),
        ("mxfp4 gpt_oss own", "a.weight", &[32, 32]),
        ("mxfp4 gpt_oss own", "a.weight", &[2, 32, 48]),
        ("mxfp4 compressed_tensors own", "a.experts.up", &[2, 32, 32]),
        ("mxfp4 gpt_oss own", "a.experts.up", &[2, 48, 32]),
        ("mxfp8 gpt_oss own", "a.experts.up", &[2, 32, 32]),
        ("mxfp8 model_opt ggml", "a.weight", &[32, 32]),
    ] {
        assert!(objects(method, name, shape), "{method} {name} {shape:?}");
    }
    for (method, name, shape) in [
        (
            "fp8 transformers ragged 128x128",
            "a.weight",
            &[100, 130][..],
        ),
        (
            "fp8 transformers float 128x128",
            "a.experts.up",
            &[2, 128, 256],
        ),
        ("fp8 compressed_tensors 128x128", "a.weight", &[1, 1]),
        ("mxfp4 gpt_oss own", "a.experts.up", &[2, 32, 7]),
        ("mxfp4 gpt_oss own", "a.weight", &[2, 7, 32]),
        ("mxfp4 compressed_tensors own", "a.weight", &[2, 7, 32]),
    ] {
        assert!(!objects(method, name, shape), "{method} {name} {shape:?}");
    }
}

#[test]
fn configs_name_what_stays() {
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
fn as_the_libraries() {
    assert!(check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fp_encode")) > 50);
    // More of them, made with arguments of the script.
    if let Some(dir) = std::env::var_os("FP_ENCODE") {
        check_all(Path::new(&dir));
    }
}
