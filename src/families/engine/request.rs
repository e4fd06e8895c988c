//! [`GgufRequest`]: what a GGUF file is asked to be.

use std::path::Path;

use crate::TargetDtype;
use crate::limits::ParseLimits;

/// The part of a model that a GGUF file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelPart {
    Whole,
    /// Settings and tokenizer. There may be no weights to read.
    Vocabulary,
    /// The layers that predict further tokens, with what they share with the others.
    Prediction,
    /// All but these layers.
    WithoutPrediction,
}

/// Which tensors of a layer become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FusedTensors {
    /// Queries, keys and values.
    pub qkv: bool,
    /// Gates and inner projections of all experts.
    pub gate_up_experts: bool,
}

/// What is asked of the GGUF file of a model.
pub(crate) struct GgufRequest<'a> {
    /// Directory of the model.
    pub directory: &'a Path,
    /// Directory of the target of a draft.
    pub target: Option<&'a Path>,
    pub limits: &'a ParseLimits,
    /// Element type of matrices; `None`: as they are stored, and of what is quantized as `decoded`.
    pub to: Option<TargetDtype>,
    /// Element type of what is quantized.
    pub decoded: TargetDtype,
    /// Whether tensors are encoded.
    pub encodes: bool,
    /// `general.file_type`; `None`: that of `to`.
    pub file_type: Option<u32>,
    /// Name of the pre-tokenizer; `None`: the one that fits.
    pub pre_tokenizer: Option<&'a str>,
    /// Whether what is FP8 with scales becomes Q8_0.
    pub fp8_as_q8: bool,
    pub part: ModelPart,
    pub fused: FusedTensors,
}
