//! [`GgufRequest`]: what a GGUF file is asked to be.

use std::path::Path;

use crate::TargetDtype;
use crate::limits::ParseLimits;

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
}
