//! Which golden models come out the same when they are decoded and encoded again, and how near the
//! others come.

mod floats;
mod ggml;
mod integers;

/// The expected result of a case.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// The stored bytes are the same: codes, scales, zero points.
    Bytes,
    /// The stored bytes may differ, but decode to the same values.
    Values,
    /// No error exceeds this fraction of the largest magnitude that shares the value's scale.
    Near(f64),
    /// Encoding is refused, because a value is not finite; the error names it.
    Refused,
    /// The scheme does not encode tensors of this kind, so they stay.
    Kept,
    /// Encoding is refused without an importance matrix.
    Importance,
    /// No tensor is encoded, because none is quantized or can be decoded.
    Nothing,
    /// No encoder writes this layout.
    NoEncoder,
}
pub use Verdict::{Bytes, Importance, Kept, Near, NoEncoder, Nothing, Refused, Values};

/// How many values share a scale.
#[derive(Debug, Clone, Copy)]
pub enum Share {
    Columns(usize),
    Row,
    Tensor,
}
pub use Share::{Columns, Row, Tensor as Whole};

/// Half a step of E4M3, and of E5M2, at the upper end of a binade.
const E4M3: Verdict = Near(1.0 / 16.0);
const E5M2: Verdict = Near(1.0 / 8.0);

/// Half a step of 4 and of 8 bits with the scales 2 max / 15 and 2 max / 255, and a margin for
/// rounding.
const INT4: Verdict = Near(1.001 / 15.0);
const INT8: Verdict = Near(1.001 / 255.0);

/// One step of 4 bits between the smallest and the largest value: half a step for the code, half
/// for the zero point, and a margin, because the scale is rounded to F16.
const ZERO_POINT: Verdict = Near(2.05 / 15.0);

/// FP4: half the step from 4 to 6, relative to 4, the least that the largest scaled value can be;
/// or 8 that is clipped to 6.
const FP4: Verdict = Near(1.0 / 4.0);

/// Directory, cases, scheme, group size (0 for the scheme's default), what shares a scale, verdict.
/// A `*` at an end of a case's name stands for anything. Several rows may be about one case.
pub type Case = (&'static str, &'static str, &'static str, usize, Share, Verdict);

/// Every row.
pub fn table() -> impl Iterator<Item = &'static Case> {
    [floats::TABLE, integers::TABLE, ggml::TABLE]
        .into_iter()
        .flatten()
}

/// Directories whose layouts have no encoder, or one that takes no F32: `dfloat11.rs` has the trips
/// of that.
pub const FOREIGN: &[&str] = &[
    "bitnet",
    "gemma_qat",
    "marlin",
    "marlin24",
    "qqq",
    "eetq",
    "aqlm",
    "vptq",
    "quanto",
    "quark",
    "dfloat11",
    "exl2",
    "exl3",
    "fp_quant",
    "higgs",
    "mlx_more",
    "mlx_towers",
    "coreml_quantized",
    "onnx_quantized",
    "openvino_quantized",
    "tflite_quantized",
    "executorch_quantized",
    "ggml_bin",
    "mlc",
    "keras_quantized",
    "modelslim",
    "paroquant",
    "rotations",
    "sglang",
    "sinq",
    "torchao_checkpoints",
    "spqr",
    "torchao",
    "transforms",
    "awq_more",
    "comfy_banks",
    "comfy_more",
    "comfy_squares",
    "nunchaku",
    "ollama",
    "ik_llama",
    "ik_interleaved",
    "prism",
    "uqff",
    "vllm",
    // Only a config tells that they are GPT-2: `module_forms.rs` has the trips of that.
    "conv1d",
];

/// Directories in which cases may be missing from the table: their layouts have no encoder, or are
/// mixtures of several.
pub const MIXED: &[&str] = &["comfy", "gptq_more", "modelopt", "sdnq"];
