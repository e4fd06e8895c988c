//! Writes the QNAT files of `tests/data/qnat` with qlora-rs's own writer, and what its own
//! dequantizer gives.
//!
//! ```sh
//! cd tests/data/generate/qnat && CARGO_TARGET_DIR=$(mktemp -d) cargo run --ignore-rust-version
//! ```
//!
//! A case is made twice, `v1_NAME` by qlora-rs 0.3.0 (QNAT 1) and `v2_NAME` by 1.3.0 (QNAT 2), from
//! one input. Runs give the same bytes on the same kind of CPU: a zero point that is NaN has the
//! sign the CPU gives it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{json, Value};

/// What one tensor is made of.
#[derive(Clone)]
enum Source {
    /// Through the crate's quantizer.
    Quantize(Quantize),
    /// Put together by hand: the fields of `QuantizedTensor` are public.
    Parts(Parts),
}

#[derive(Clone)]
struct Quantize {
    shape: Vec<usize>,
    values: Vec<f32>,
    block: usize,
    zero_point: bool,
    double_quant: bool,
    per_channel: bool,
    /// Goes through `pad_for_quantization` first: the file then holds one dimension.
    pad: bool,
}

#[derive(Clone, Default)]
struct Parts {
    shape: Vec<usize>,
    block: usize,
    data: Vec<u8>,
    scales: Vec<f32>,
    zero_points: Option<Vec<f32>>,
    scales_quantized: Option<Vec<u8>>,
    scales_scales: Option<Vec<f32>>,
}

#[derive(Clone, Copy)]
enum Compute {
    F32,
    F16,
    BF16,
}

enum Metadata {
    /// `export_native(.., None, ..)`
    Default,
    /// `export_native(.., Some(..), ..)`
    Given(String, String, Compute),
    /// `export_model` with `ExportConfig::new_native()` and its setters
    Unified(String, String),
}

struct Case {
    name: &'static str,
    metadata: Metadata,
    tensors: Vec<(String, Source)>,
    note: &'static str,
}

/// A tensor as the crate has it in memory, without the crate's type.
struct Made {
    shape: Vec<usize>,
    block: usize,
    per_channel: bool,
    data: Vec<u8>,
    scales: Vec<f32>,
    zero_points: Option<Vec<f32>>,
    double_quant: bool,
    /// What `dequantize_nf4` gives.
    values: Vec<f32>,
    /// What it gives block by block, each block a tensor of its own. Differs only where odd blocks
    /// are misread.
    by_block: Vec<f32>,
    /// What the quantizer was given.
    input: Option<(Vec<usize>, Vec<f32>)>,
}

macro_rules! with_crate {
    ($module:ident, $qlora:ident, $candle:ident, $keeps_scales:expr) => {
        mod $module {
            use super::*;
            use $candle::{Device, Tensor};
            use $qlora::formats::{export_model, ExportConfig};
            use $qlora::native::{export_native, NativeMetadata};
            use $qlora::quantization::{
                dequantize_nf4, pad_for_quantization, quantize_nf4_with_config, ComputeDType, QuantizationConfig,
                QuantizationStrategy, QuantizedTensor,
            };

            fn make(source: &Source) -> (QuantizedTensor, Option<(Vec<usize>, Vec<f32>)>) {
                match source {
                    Source::Quantize(q) => {
                        let mut tensor = Tensor::from_vec(q.values.clone(), q.shape.clone(), &Device::Cpu).unwrap();
                        if q.pad {
                            tensor = pad_for_quantization(&tensor, q.block, 0.0).unwrap();
                        }
                        let config = QuantizationConfig {
                            block_size: q.block,
                            double_quant: q.double_quant,
                            compute_dtype: ComputeDType::F32,
                            strategy: if q.per_channel {
                                QuantizationStrategy::PerChannel
                            } else {
                                QuantizationStrategy::PerTensor
                            },
                            use_zero_point: q.zero_point,
                        };
                        let input = (tensor.dims().to_vec(), tensor.flatten_all().unwrap().to_vec1().unwrap());
                        (quantize_nf4_with_config(&tensor, &config).unwrap(), Some(input))
                    }
                    Source::Parts(p) => {
                        let double = p.scales_quantized.is_some();
                        let tensor = QuantizedTensor {
                            data: p.data.clone(),
                            scales: if double && !$keeps_scales { Vec::new() } else { p.scales.clone() },
                            zero_points: p.zero_points.clone(),
                            scales_quantized: p.scales_quantized.clone(),
                            scales_scales: p.scales_scales.clone(),
                            shape: p.shape.clone(),
                            block_size: p.block,
                            double_quant_enabled: double,
                            strategy: QuantizationStrategy::PerTensor,
                        };
                        (tensor, None)
                    }
                }
            }

            pub fn values(tensor: &QuantizedTensor) -> Vec<f32> {
                let tensor = dequantize_nf4(tensor, &Device::Cpu).unwrap();
                tensor.flatten_all().unwrap().to_vec1().unwrap()
            }

            fn by_block(tensor: &QuantizedTensor) -> Vec<f32> {
                let bytes = tensor.block_size.div_ceil(2);
                let blocks = tensor.scales_quantized.as_ref().map_or(tensor.scales.len(), Vec::len);
                (0..blocks)
                    .flat_map(|b| {
                        values(&QuantizedTensor {
                            data: tensor.data[b * bytes..][..bytes].to_vec(),
                            scales: tensor.scales.get(b).copied().into_iter().collect(),
                            zero_points: tensor.zero_points.as_ref().map(|zp| vec![zp[b]]),
                            scales_quantized: tensor.scales_quantized.as_ref().map(|sq| vec![sq[b]]),
                            scales_scales: tensor.scales_scales.clone(),
                            shape: vec![tensor.block_size],
                            block_size: tensor.block_size,
                            double_quant_enabled: tensor.double_quant_enabled,
                            strategy: tensor.strategy,
                        })
                    })
                    .collect()
            }

            pub fn write(case: &Case, path: &Path) -> Vec<Made> {
                let made: Vec<_> = case.tensors.iter().map(|(_, source)| make(source)).collect();
                let named: Vec<_> =
                    case.tensors.iter().zip(&made).map(|((name, _), (tensor, _))| (name.as_str(), tensor)).collect();
                match &case.metadata {
                    Metadata::Default => export_native(&named, None, path).unwrap(),
                    Metadata::Given(name, kind, compute) => {
                        let metadata = NativeMetadata {
                            model_name: name.clone(),
                            model_type: kind.clone(),
                            compute_dtype: match compute {
                                Compute::F32 => ComputeDType::F32,
                                Compute::F16 => ComputeDType::F16,
                                Compute::BF16 => ComputeDType::BF16,
                            },
                        };
                        export_native(&named, Some(metadata), path).unwrap();
                    }
                    Metadata::Unified(name, kind) => {
                        let config =
                            ExportConfig::new_native().with_model_name(name.clone()).with_model_type(kind.clone());
                        export_model(&named, config, path).unwrap();
                    }
                }
                made.into_iter()
                    .map(|(tensor, input)| Made {
                        values: values(&tensor),
                        by_block: by_block(&tensor),
                        per_channel: tensor.strategy == QuantizationStrategy::PerChannel,
                        shape: tensor.shape,
                        block: tensor.block_size,
                        data: tensor.data,
                        scales: tensor.scales,
                        zero_points: tensor.zero_points,
                        double_quant: tensor.double_quant_enabled,
                        input,
                    })
                    .collect()
            }
        }
    };
}

with_crate!(v1, qlora_v1, candle_v1, true);
with_crate!(v2, qlora_v2, candle_v2, false);

// ---- inputs

/// Numbers from a name: splitmix64 over an FNV-1a hash. No floating-point functions, so the same
/// everywhere.
struct Random(u64);

impl Random {
    fn of(name: &str) -> Self {
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: twelve uniforms.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

fn normal(name: &str, n: usize, sigma: f32) -> Vec<f32> {
    let mut random = Random::of(name);
    (0..n).map(|_| random.normal() * sigma).collect()
}

/// Not centred, with another range in each block.
fn skewed(name: &str, n: usize, block: usize) -> Vec<f32> {
    let mut random = Random::of(name);
    (0..n)
        .map(|i| {
            let b = (i / block) as f32;
            (random.uniform() * 2.0 - 0.4) * (0.05 + 0.3 * b) + if i / block % 3 == 2 { -4.0 } else { 0.7 }
        })
        .collect()
}

/// Another scale in each block, from 1 down to 2^-23 and up again.
fn ranged(name: &str, n: usize, block: usize) -> Vec<f32> {
    let mut random = Random::of(name);
    (0..n)
        .map(|i| {
            let step = (i / block * 5 % 24) as i32;
            random.normal() / (1u32 << step) as f32
        })
        .collect()
}

fn q(shape: &[usize], values: Vec<f32>, block: usize) -> Quantize {
    assert_eq!(values.len(), shape.iter().product::<usize>());
    Quantize {
        shape: shape.to_vec(),
        values,
        block,
        zero_point: false,
        double_quant: false,
        per_channel: false,
        pad: false,
    }
}

impl Quantize {
    fn zp(self) -> Self {
        Self { zero_point: true, ..self }
    }
    fn dq(self) -> Self {
        Self { double_quant: true, ..self }
    }
    fn pc(self) -> Self {
        Self { per_channel: true, ..self }
    }
    fn padded(self) -> Self {
        Self { pad: true, ..self }
    }
}

impl From<Quantize> for Source {
    fn from(q: Quantize) -> Self {
        Source::Quantize(q)
    }
}

impl From<Parts> for Source {
    fn from(p: Parts) -> Self {
        Source::Parts(p)
    }
}

fn one(name: &'static str, source: impl Into<Source>, note: &'static str) -> Case {
    Case { name, metadata: Metadata::Default, tensors: vec![("weight".into(), source.into())], note }
}

fn several(name: &'static str, tensors: Vec<(&str, Source)>, note: &'static str) -> Case {
    Case {
        name,
        metadata: Metadata::Default,
        tensors: tensors.into_iter().map(|(n, s)| (n.to_owned(), s)).collect(),
        note,
    }
}

/// Codes 0 to 15 for every one of `blocks` blocks.
fn all_codes(blocks: usize) -> Vec<u8> {
    (0..blocks).flat_map(|_| (0..8u8).map(|i| ((2 * i + 1) << 4) | (2 * i))).collect()
}

/// Scales that break naive arithmetic.
const HOSTILE: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::from_bits(1),
    -f32::from_bits(3),
    f32::from_bits(0x007f_ffff),
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    0.1,
    -3.0e38,
    1.0e-30,
];

/// Blocks of 16 with values the quantizer has no rule for.
fn hostile_input() -> Vec<f32> {
    let ramp: Vec<f32> = (0..16).map(|i| (i as f32 - 7.3) * 0.11).collect();
    let with = |edits: &[(usize, f32)]| {
        let mut block = ramp.clone();
        for &(i, v) in edits {
            block[i] = v;
        }
        block
    };
    let scaled = |s: f32| ramp.iter().map(|v| v * s).collect::<Vec<_>>();
    [
        ramp.clone(),
        with(&[(3, f32::NAN)]),
        vec![f32::NAN; 16],
        with(&[(5, f32::INFINITY)]),
        with(&[(5, f32::NEG_INFINITY)]),
        with(&[(0, f32::INFINITY), (15, f32::NEG_INFINITY), (8, f32::NAN)]),
        vec![0.0; 16],
        vec![-0.0; 16],
        scaled(f32::from_bits(9)),
        scaled(f32::MIN_POSITIVE),
        scaled(3.4e38),
        with(&[(2, f32::MAX), (9, f32::MIN)]),
    ]
    .concat()
}

/// The levels themselves, the midpoints of neighbours and the floats beside them, times two scales.
fn around_midpoints() -> Vec<f32> {
    let levels = qlora_v2::quantization::NF4_LEVELS;
    let mut values = Vec::new();
    for pair in levels.windows(2) {
        let middle = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
        let rounded = (pair[0] + pair[1]) / 2.0;
        values.extend([middle.next_down(), middle, middle.next_up(), rounded]);
    }
    values.extend(levels.iter().flat_map(|&l| [l, l.next_up()]).filter(|v| v.abs() <= 1.0));
    while values.len() % 32 != 31 {
        values.push(0.0);
    }
    // A block of 32 begins with its absmax, then takes 31 values.
    let mut blocks = Vec::new();
    for scale in [1.0f32, 0.37] {
        for chunk in values.chunks(31) {
            let mut block = vec![-scale];
            block.extend(chunk.iter().map(|v| v * scale));
            block.resize(32, 0.0);
            blocks.extend(block);
        }
    }
    blocks
}

#[allow(clippy::too_many_lines)]
fn cases() -> Vec<Case> {
    let n = normal;
    let mixed = || -> Vec<(&str, Source)> {
        vec![
            ("model.layers.0.plain", q(&[4, 32], n("mixed plain", 128, 0.05), 32).into()),
            ("model.layers.0.zero_point", q(&[2, 48], skewed("mixed zp", 96, 16), 16).zp().into()),
            ("model.layers.0.double_quant", q(&[6, 16], ranged("mixed dq", 96, 8), 8).dq().into()),
            ("model.layers.0.both", q(&[64], skewed("mixed both", 64, 16), 16).zp().dq().into()),
            ("model.layers.0.channel", q(&[3, 10], n("mixed pc", 30, 1.0), 64).pc().into()),
            ("model.layers.0.channel_both", q(&[5, 2, 4], skewed("mixed pcb", 40, 8), 64).pc().zp().dq().into()),
            ("model.layers.1.plain", q(&[24], n("mixed plain 2", 24, 3.0), 8).into()),
        ]
    };
    let tiny = |name: &str| -> Vec<(String, Source)> { vec![("w".into(), q(&[8], n(name, 8, 1.0), 8).into())] };
    let given = |name: &'static str, model: &str, kind: &str, compute, note| Case {
        name,
        metadata: Metadata::Given(model.into(), kind.into(), compute),
        tensors: tiny(name),
        note,
    };

    let hostile = hostile_input();
    let finite: Vec<f32> = hostile.chunks(16).filter(|b| b.iter().all(|v| v.is_finite())).flatten().copied().collect();
    let zero_points: Vec<f32> = vec![
        -0.0,
        0.0,
        1.0,
        -1.0,
        0.696_192_8,
        f32::from_bits(1),
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -0.161,
    ];
    let pairs: Vec<(f32, f32)> = zero_points
        .iter()
        .enumerate()
        .flat_map(|(i, &z)| [(HOSTILE[(i * 5 + 2) % 16], z), (HOSTILE[(i * 7) % 16], z)])
        .collect();
    let double = |blocks: usize, s: f32| Parts {
        shape: vec![blocks, 2],
        block: 2,
        data: (0..blocks).map(|i| (i * 37 + 11) as u8).collect(),
        // Not what the eight bits say: whoever takes these is seen.
        scales: (0..blocks).map(|i| 1000.0 + i as f32).collect(),
        scales_quantized: Some((0..blocks).map(|i| (i * (256 / blocks)) as u8).collect()),
        scales_scales: Some(vec![s]),
        ..Parts::default()
    };
    let midpoints = around_midpoints();

    vec![
        // plain
        one("block64", q(&[6, 64], n("block64", 384, 0.02), 64), "the usual block size"),
        one("block32", q(&[4, 32], n("block32", 128, 1.0), 32), ""),
        one("block128", q(&[3, 128], n("block128", 384, 1.0), 128), ""),
        one("block16_across_rows", q(&[4, 12], n("block16", 48, 1.0), 16), "blocks run on across rows"),
        one("block2", q(&[3, 6], n("block2", 18, 1.0), 2), ""),
        one("block100", q(&[2, 50], n("block100", 100, 1.0), 100), "no power of two"),
        one("shape_1d", q(&[96], n("1d", 96, 1.0), 32), ""),
        one("shape_3d", q(&[2, 3, 16], n("3d", 96, 1.0), 32), ""),
        one("shape_4d", q(&[2, 1, 3, 4], n("4d", 24, 1.0), 4), ""),
        one(
            "padded",
            q(&[4, 10], n("padded", 40, 1.0), 64).padded(),
            "[4, 10] through pad_for_quantization: one dimension of 64, with 24 zeros that stay",
        ),
        one(
            "levels",
            q(&[midpoints.len() / 32, 32], midpoints.clone(), 32),
            "levels, midpoints and the floats beside them, at scales 1 and 0.37",
        ),
        one("zeros", q(&[2, 16], [vec![0.0; 16], vec![-0.0; 16]].concat(), 16), "the scale of a block of zeros is 1"),
        one("constant", q(&[4, 8], [[0.3f32; 8], [-0.3; 8], [1.0; 8], [1.0e-40; 8]].concat(), 8), ""),
        one("hostile", q(&[12, 16], hostile.clone(), 16), "NaN, infinities, subnormals, the largest floats"),
        one("hostile_zero_point", q(&[12, 16], hostile.clone(), 16).zp(), ""),
        one("hostile_double_quant", q(&[12, 16], hostile.clone(), 16).dq(), "an infinite scale among them"),
        one("hostile_both", q(&[12, 16], hostile.clone(), 16).dq().zp(), ""),
        one("hostile_finite_both", q(&[finite.len() / 16, 16], finite.clone(), 16).dq().zp(), ""),
        // zero points
        one(
            "zero_point",
            q(&[4, 64], skewed("zp", 256, 64), 64).zp(),
            "min, scaled, is added to the level: the crate gives x - min, not x",
        ),
        one("zero_point_block8", q(&[5, 8], skewed("zp8", 40, 8), 8).zp(), ""),
        one("zero_point_one_block", q(&[8], skewed("zp1", 8, 8), 8).zp(), "the second part is as long as the first"),
        // double quantization
        one(
            "double_quant",
            q(&[8, 64], ranged("dq", 512, 64), 64).dq(),
            "scales below a 127th of the largest become 0",
        ),
        one("double_quant_one_block", q(&[2, 8], n("dq1", 16, 1.0), 16).dq(), ""),
        one(
            "double_quant_300_blocks",
            q(&[300, 2], ranged("dq300", 600, 2), 2).dq(),
            "one scale of scales for all blocks",
        ),
        one("double_quant_zeros", q(&[2, 16], vec![0.0; 32], 16).dq(), ""),
        one(
            "double_quant_tiny",
            q(&[2, 8], vec![f32::from_bits(40); 16], 8).dq(),
            "the scale of scales underflows to 0",
        ),
        one("both", q(&[4, 64], skewed("both", 256, 32), 32).zp().dq(), "zero points and double quantization"),
        one("both_one_block", q(&[8], skewed("both1", 8, 8), 8).zp().dq(), ""),
        // per channel
        one("channel", q(&[6, 24], ranged("pc", 144, 24), 64).pc(), "block size is the channel's"),
        one("channel_3d", q(&[4, 3, 4], n("pc3d", 48, 1.0), 64).pc(), ""),
        one("channel_zero_point", q(&[3, 20], skewed("pczp", 60, 20), 64).pc().zp(), ""),
        one("channel_double_quant", q(&[8, 16], ranged("pcdq", 128, 16), 64).pc().dq(), ""),
        one("channel_both", q(&[5, 12], skewed("pcboth", 60, 12), 64).pc().zp().dq(), ""),
        // odd sizes
        one("odd_one_block", q(&[5], n("odd5", 5, 1.0), 5), "the last byte's high four bits are 0"),
        one("odd_one_block_both", q(&[3, 5], skewed("odd15", 15, 15), 15).zp().dq(), ""),
        one("odd_one_channel", q(&[1, 7], n("odd7", 7, 1.0), 64).pc(), ""),
        one("odd_scalar", q(&[], vec![-0.6], 1), "rank 0"),
        one(
            "odd_block1",
            q(&[6], n("odd1", 6, 1.0), 1),
            "every block has a byte of its own; dequantize_nf4 reads as if there were no padding",
        ),
        one(
            "odd_blocks",
            q(&[3, 5], n("odd3x5", 15, 1.0), 5),
            "blocks are padded to whole bytes; dequantize_nf4 reads as if they were not",
        ),
        one("odd_blocks_even", q(&[4, 3], n("odd4x3", 12, 1.0), 3), "the same, with an even number of elements"),
        one("odd_blocks_both", q(&[4, 7], skewed("odd4x7", 28, 7), 7).zp().dq(), "the same"),
        one("odd_channels", q(&[4, 9], n("oddpc", 36, 1.0), 64).pc(), "the same per channel"),
        // nothing
        several("empty_model", vec![], "no tensors"),
        several(
            "empty_tensors",
            vec![
                ("before", q(&[4], n("before", 4, 1.0), 4).into()),
                ("none", q(&[0, 64], vec![], 64).into()),
                ("none_both", q(&[3, 0], vec![], 8).zp().dq().into()),
                ("no_channels", q(&[0, 8], vec![], 8).pc().zp().into()),
                ("empty_channels", q(&[3, 0], vec![], 8).pc().into()),
                ("after", q(&[4], n("after", 4, 1.0), 4).into()),
            ],
            "tensors without elements; empty_channels has three scales and block size 0",
        ),
        // several tensors, metadata
        several("mixed", mixed(), "one tensor of each kind"),
        several("mixed_ends_both", mixed().into_iter().take(4).collect(), "the last tensor's end is the file's"),
        Case {
            name: "mixed_renamed",
            metadata: Metadata::Given("ünïcode/modèle 7B".into(), "llama".into(), Compute::BF16),
            tensors: mixed()
                .into_iter()
                .rev()
                .enumerate()
                .map(|(i, (name, source))| {
                    (["", "b", "名前"].get(i).map_or(format!("{name}.weight"), |s| (*s).into()), source)
                })
                .collect(),
            note: "names of other lengths than the writer takes them to have; one tensor's name is empty",
        },
        Case {
            name: "unified",
            metadata: Metadata::Unified("my-model".into(), "mistral".into()),
            tensors: tiny("unified"),
            note: "through export_model with ExportConfig",
        },
        given("meta_f32", "qlora-model", "qlora", Compute::F32, ""),
        given("meta_f16", "qlora-model", "qlora", Compute::F16, "dequantize_nf4 is F32 all the same"),
        given("meta_bf16", "qlora-model", "qlora", Compute::BF16, "dequantize_nf4 is F32 all the same"),
        given("meta_no_names", "", "", Compute::F32, ""),
        given(
            "meta_exact_v1",
            "exactly-right-offset",
            "nf4",
            Compute::F32,
            "the names make QNAT 1's offsets right by chance",
        ),
        given(
            "meta_exact_v2",
            "exactly-right-off",
            "nf4",
            Compute::F32,
            "the names make QNAT 2's offsets right by chance",
        ),
        given(
            "meta_long",
            "a model with a name that is rather longer than the writer takes it to be",
            "qlora",
            Compute::F16,
            "offsets too small",
        ),
        // by hand
        one(
            "parts_scales",
            Parts { shape: vec![16, 16], block: 16, data: all_codes(16), scales: HOSTILE.to_vec(), ..Parts::default() },
            "every code with scales the quantizer never makes",
        ),
        one(
            "parts_zero_points",
            Parts {
                shape: vec![pairs.len(), 16],
                block: 16,
                data: all_codes(pairs.len()),
                scales: pairs.iter().map(|p| p.0).collect(),
                zero_points: Some(pairs.iter().map(|p| p.1).collect()),
                ..Parts::default()
            },
            "every code with zero points the quantizer never makes",
        ),
        several(
            "parts_double_quant",
            vec![
                ("all", double(256, 0.0123).into()),
                ("negative", double(32, -7.0e-3).into()),
                ("zero", double(32, 0.0).into()),
                ("subnormal", double(32, f32::from_bits(5)).into()),
                ("largest", double(32, f32::MAX).into()),
                ("infinite", double(32, f32::NEG_INFINITY).into()),
                ("nan", double(32, f32::NAN).into()),
            ],
            "every eight-bit scale; QNAT 1 has F32 scales beside them that say something else",
        ),
    ]
}

// ---- writing

/// Bits to compare or to store: those of a NaN depend on the CPU.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

fn safetensors(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) {
    let bytes: BTreeMap<_, Vec<u8>> = tensors
        .iter()
        .map(|(name, (_, values))| (name.clone(), bits(values).into_iter().flat_map(u32::to_le_bytes).collect()))
        .collect();
    let views = tensors
        .iter()
        .map(|(name, (shape, _))| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Walks a file's headers: where the tensors' data begins, and per tensor the offset and number of
/// blocks it states.
fn headers(file: &[u8]) -> (u32, usize, Vec<(u64, u32, Option<u32>)>) {
    let mut at = 4;
    let u32_at = |at: &mut usize| {
        *at += 4;
        u32::from_le_bytes(file[*at - 4..*at].try_into().unwrap())
    };
    let u64_at = |at: &mut usize| {
        *at += 8;
        u64::from_le_bytes(file[*at - 8..*at].try_into().unwrap())
    };
    let version = u32_at(&mut at);
    assert_eq!((u32_at(&mut at), u64_at(&mut at)), (0, 0));
    let count = u32_at(&mut at);
    assert_eq!((u32_at(&mut at), at), (0, 28));
    for _ in 0..2 {
        at += u32_at(&mut at) as usize;
    }
    at += 1;
    let tensors = (0..count)
        .map(|_| {
            at += u32_at(&mut at) as usize;
            let rank = u32_at(&mut at);
            at += 8 * rank as usize + 4;
            let offset = u64_at(&mut at);
            let blocks = u32_at(&mut at);
            (offset, blocks, (version > 1).then(|| u32_at(&mut at)))
        })
        .collect();
    (version, at, tensors)
}

/// Reads a file back with the newest crate's own reader.
fn own_reader(path: &Path, expected: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) -> String {
    let model = match qlora_v2::native::load_native(path) {
        Ok(model) => model,
        Err(error) => return format!("error: {error}"),
    };
    let same = |name: &String, tensor: &qlora_v2::QuantizedTensor| {
        let (shape, want) = &expected[name];
        let got = std::panic::catch_unwind(|| v2::values(tensor));
        got.is_ok_and(|got| shape == &tensor.shape && bits(&got) == bits(want))
    };
    let wrong: Vec<_> =
        model.tensors.iter().filter(|(name, tensor)| !same(name, tensor)).map(|t| t.0.as_str()).collect();
    if wrong.is_empty() {
        "equal".into()
    } else {
        format!("differs: {}", wrong.join(", "))
    }
}

fn main() {
    std::panic::set_hook(Box::new(|info| {
        // What `own_reader` catches is not worth a line; everything else is.
        if !info.to_string().contains("dequantize") {
            eprintln!("{info}");
        }
    }));
    let to = std::env::args_os()
        .nth(1)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../qnat"), PathBuf::from);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(&to).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "qnat" || e == "safetensors") {
            fs::remove_file(path).unwrap();
        }
    }

    let mut index = Vec::new();
    for case in cases() {
        let mut decoded = Vec::new();
        for version in [1u32, 2] {
            let name = format!("v{version}_{}", case.name);
            let path = to.join(format!("{name}.qnat"));
            let made = if version == 1 { v1::write(&case, &path) } else { v2::write(&case, &path) };
            let file = fs::read(&path).unwrap();
            let (stated, start, stated_tensors) = headers(&file);
            assert_eq!(stated, version);

            let mut expected = BTreeMap::new();
            let mut by_block = BTreeMap::new();
            let mut input = BTreeMap::new();
            let mut tensors = Vec::new();
            let mut at = start;
            let mut errors = Vec::new();
            for (((name, source), made), &(offset, blocks, flags)) in
                case.tensors.iter().zip(&made).zip(&stated_tensors)
            {
                let count = blocks as usize;
                // The order of the parts, and their sizes.
                let begin = at;
                let mut part = |n: usize| {
                    at += n;
                    file[at - n..at].to_vec()
                };
                let floats = |f: &[f32]| f.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
                assert_eq!(part(made.data.len()), made.data);
                if version == 1 {
                    assert_eq!(part(4 * count), floats(&made.scales));
                    if let Some(zp) = &made.zero_points {
                        assert_eq!((part(4 * count), zp.len()), (floats(zp), count));
                    }
                }
                if made.double_quant {
                    part(count + if count == 0 { 0 } else { 4 });
                }
                if version == 2 {
                    if !made.double_quant {
                        assert_eq!(part(4 * count), floats(&made.scales));
                    }
                    if let Some(zp) = &made.zero_points {
                        assert_eq!((part(4 * count), zp.len()), (floats(zp), count));
                    }
                }
                assert_eq!(made.values.len(), count * made.block);
                errors.push(offset as i64 - begin as i64);

                let mut entry = json!({
                    "name": name,
                    "shape": made.shape,
                    "block_size": made.block,
                    "num_blocks": blocks,
                    "zero_points": made.zero_points.is_some(),
                    "double_quant": made.double_quant,
                    "per_channel": made.per_channel,
                    "offset": begin,
                    "code_bytes": made.data.len(),
                    "bytes": at - begin,
                });
                if let Some(flags) = flags {
                    entry["flags"] = json!(flags);
                }
                if matches!(source, Source::Parts(_)) {
                    entry["by_hand"] = json!(true);
                }
                // dequantize_nf4 takes block b from byte b * size / 2; the quantizer has put it at
                // b * ceil(size / 2).
                let misread = made.block % 2 == 1 && count > 1;
                if misread {
                    entry["misread"] = json!(true);
                    by_block.insert(name.clone(), (made.shape.clone(), made.by_block.clone()));
                } else {
                    assert_eq!(bits(&made.values), bits(&made.by_block));
                }
                tensors.push(entry);
                assert!(expected.insert(name.clone(), (made.shape.clone(), made.values.clone())).is_none());
                if let Some(given) = &made.input {
                    input.insert(name.clone(), given.clone());
                }
            }
            assert_eq!(at, file.len());
            assert!(errors.windows(2).all(|e| e[0] == e[1]));

            // What is misread is no expectation of anything.
            match by_block.is_empty() {
                true => safetensors(&to.join(format!("{name}.expected.safetensors")), &expected),
                false => safetensors(&to.join(format!("{name}.by_block.safetensors")), &by_block),
            }
            let input_name = format!("{}.input.safetensors", case.name);
            if !input.is_empty() {
                safetensors(&to.join(&input_name), &input);
            }
            let (model, kind, compute) = match &case.metadata {
                Metadata::Default => ("qlora-model", "qlora", Compute::F32),
                Metadata::Given(model, kind, compute) => (model.as_str(), kind.as_str(), *compute),
                Metadata::Unified(model, kind) => (model.as_str(), kind.as_str(), Compute::F32),
            };
            if let Some(&error) = errors.first() {
                let base = if version == 1 { 23 } else { 20 };
                assert_eq!(error, base - model.len() as i64 - kind.len() as i64);
            }
            index.push((
                json!({
                    "name": name,
                    "version": version,
                    "note": case.note,
                    "model_name": model,
                    "model_type": kind,
                    "compute_dtype": match compute { Compute::F32 => "F32", Compute::F16 => "F16", Compute::BF16 => "BF16" },
                    "input": (!input.is_empty()).then_some(input_name),
                    "data_start": start,
                    "offset_error": errors.first(),
                    "own_reader": own_reader(&path, &expected),
                }),
                tensors,
            ));
            decoded.push(expected);
        }
        // Both versions of the crate decode to the same bits.
        let comparable = |d: &BTreeMap<String, (Vec<usize>, Vec<f32>)>| {
            d.iter().map(|(n, (s, v))| (n.clone(), s.clone(), bits(v))).collect::<Vec<_>>()
        };
        assert_eq!(comparable(&decoded[0]), comparable(&decoded[1]), "{}", case.name);
    }

    // One line per tensor.
    let line = |v: &Value| serde_json::to_string(v).unwrap();
    let mut text = String::from("{\n\"qlora_rs\": {\"v1\": \"0.3.0\", \"v2\": \"1.3.0\"},\n\"cases\": [\n");
    for (i, (case, tensors)) in index.iter().enumerate() {
        let case = line(case);
        text += &case[..case.len() - 1];
        text += ",\"tensors\":[";
        for (j, tensor) in tensors.iter().enumerate() {
            text += if j == 0 { "\n  " } else { ",\n  " };
            text += &line(tensor);
        }
        text += if i + 1 == index.len() { "]}\n" } else { "]},\n" };
    }
    text += "]\n}\n";
    serde_json::from_str::<Value>(&text).unwrap();
    fs::write(to.join("index.json"), text).unwrap();
}
