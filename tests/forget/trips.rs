//! Which goldens of the decoders come out the same when they are encoded again, and how near the others do.

mod floats;
mod ggml;
mod integers;

/// What becomes of a case.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// What is stored is the same: codes, scales, zero points.
    Bytes,
    /// What is stored decodes to the same values; it may be written in another way.
    Values,
    /// No value is farther off than so much of the largest of those that share its scale.
    Near(f64),
    /// It has values that are not finite, and the error names one.
    Refused,
    /// The scheme is not for tensors of this kind, and they stay.
    Kept,
    /// It takes an importance matrix.
    Importance,
    /// Nothing in it is quantized, or it cannot be decoded.
    Nothing,
    /// No scheme has this layout.
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

/// Half a step of E4M3, and of E5M2, at the upper end.
const E4M3: Verdict = Near(1.0 / 16.0);
const E5M2: Verdict = Near(1.0 / 8.0);

/// Half a step of 4 and of 8 bits with a scale of 2 max / 15 and 2 max / 255, and a little for rounding.
const INT4: Verdict = Near(1.001 / 15.0);
const INT8: Verdict = Near(1.001 / 255.0);

/// A step of 4 bits between the smallest and the largest value: half of it, and half for the zero point. The scale is
/// rounded to F16.
const ZERO_POINT: Verdict = Near(2.05 / 15.0);

/// FP4: half of the step from 4 to 6, of which 4 is the least that the largest value can be; or 8 that becomes 6.
const FP4: Verdict = Near(1.0 / 4.0);

/// Directory, cases, scheme, group size (0 for the scheme's default), what shares a scale, verdict. A `*` at an end of a
/// case's name stands for anything. Several rows may be about one case.
pub type Case = (
    &'static str,
    &'static str,
    &'static str,
    usize,
    Share,
    Verdict,
);

/// Every row.
pub fn table() -> impl Iterator<Item = &'static Case> {
    [floats::TABLE, integers::TABLE, ggml::TABLE]
        .into_iter()
        .flatten()
}

/// Layouts that nothing is encoded to, whole directories of them.
pub const FOREIGN: &[&str] = &[
    "bitnet",
    "gemma_qat",
    "hqq",
    "marlin",
    "quanto",
    "quark",
    "torchao",
    "awq_more",
];

/// Of these the cases that are not in the table are such layouts, or mixtures of several.
pub const MIXED: &[&str] = &["comfy", "gptq_more", "modelopt"];
