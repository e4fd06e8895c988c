//! [`TensorRole`], what a stored tensor is for.

use std::fmt;

/// The use of a stored tensor in the weight that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[non_exhaustive]
pub enum TensorRole {
    /// Codes of a quantized weight.
    Quantized,
    /// Scales, of any level.
    Scale,
    /// Not quantized; copied as it is.
    Passthrough,
    /// Zero points.
    ZeroPoint,
    /// Offsets that are added to scaled codes: MLX's `biases`.
    Offset,
    /// Column-to-group map.
    GroupIndex,
    /// Codebook of codes or of scales.
    QuantMap,
    /// Scale of double-quantized scales.
    NestedScale,
    /// Description of the quantization, and markers.
    QuantState,
    /// Factor of a product of low rank that is part of the weight.
    LowRank,
    /// Scale of activations or of the KV cache; no part of any weight.
    Activation,
}

impl fmt::Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Quantized => "quantized",
            Self::Scale => "scale",
            Self::Passthrough => "passthrough",
            Self::ZeroPoint => "zero-point",
            Self::Offset => "offset",
            Self::GroupIndex => "g_idx",
            Self::QuantMap => "quant-map",
            Self::NestedScale => "nested",
            Self::QuantState => "quant-state",
            Self::LowRank => "low-rank",
            Self::Activation => "activation",
        })
    }
}
