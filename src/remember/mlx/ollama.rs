//! Ollama's layers of tensors: `W` U32 in MLX's packing, with `W.scale`, `W.bias` and
//! `W.global_scale`, where `W` is the weight's full name. Metadata say what a weight is:
//! `W.quant_type` and `W.group_size`, or `quant_type` and `group_size` for all weights of a file.
//!
//! The global scale of NVFP4 multiplies the decoded value: `(E2M1[q] * E4M3[s]) * global`.
//!
//! Source: Ollama `x/quant/quant.go`, `x/mlxrunner/model/root.go`; `Dequantize` in
//! `x/mlxrunner/mlx/ops_extra.go`.

use std::collections::HashMap;

use super::CompanionNames;
use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::scale_matrix::{Repeated, ScaleMatrix};
use crate::remember::seam::{CodeType, Floats, Index, refused, wrong};

/// Names of the companions, behind the name of the weight.
pub(super) const NAMES: &CompanionNames = &CompanionNames {
    scales: ".scale",
    biases: ".bias",
    global: ".global_scale",
    is_of_ollama: true,
};

const QUANT_TYPE: &str = "quant_type";
const GROUP_SIZE: &str = "group_size";

/// Names of a quantization, with its codes, bits and default group (`byType` and `Canonical`).
const QUANT_TYPES: &[(&[&str], CodeType, usize, usize)] = &[
    (&["nvfp4"], CodeType::Nvfp4, 4, 16),
    (&["mxfp4"], CodeType::Mxfp4, 4, 32),
    (&["mxfp8"], CodeType::Mxfp8, 8, 32),
    (&["int4", "fp4", "q4"], CodeType::Int(4), 4, 64),
    (&["int8", "fp8", "q8"], CodeType::Int(8), 8, 64),
];

/// What metadata say of a weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OllamaQuant {
    /// As it is written.
    quant_type: String,
    codes: CodeType,
    bits: usize,
    group: usize,
}

impl OllamaQuant {
    /// What the metadata say of `t`; `None` if they say nothing.
    ///
    /// # Errors
    /// `Unsupported` for a type that is not known: Ollama takes it for 8 bits, which is a guess.
    /// `Parse` if the group size is no number.
    pub(super) fn of(t: &Tensor<'_>, all: &Index<'_>) -> Result<Option<Self>> {
        let metadata = &all.model.metadata;
        let stated = |key: &str| {
            let of_tensor = metadata.get(&format!("{}.{key}", t.name()));
            let text = |text: &&String| !text.trim().is_empty();
            of_tensor
                .filter(text)
                .or_else(|| metadata.get(key).filter(text))
        };
        let Some(quant_type) = stated(QUANT_TYPE) else {
            return Ok(None);
        };
        let name = quant_type.trim().to_ascii_lowercase();
        let known = QUANT_TYPES
            .iter()
            .find(|(names, ..)| names.contains(&name.as_str()));
        let Some(&(_, codes, bits, default)) = known else {
            let what = format!("the metadata say quant_type `{quant_type}`, which is not known");
            return Err(refused(t, "MLX of Ollama", what));
        };
        let group = match stated(GROUP_SIZE) {
            None => default,
            Some(text) => match text.trim().parse::<usize>() {
                // Ollama takes 0 for "not stated".
                Ok(0) => default,
                Ok(group) => group,
                Err(_) => {
                    let what = format!("the metadata say group_size `{text}`, which is no number");
                    return Err(wrong(t, what));
                }
            },
        };
        Ok(Some(Self { quant_type: quant_type.clone(), codes, bits, group }))
    }

    /// Bits and group size.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.bits, self.group)
    }

    /// Checks the size against what the shapes prove: the bits of all codes that share a scale.
    ///
    /// # Errors
    /// They are others.
    pub(super) fn check_size(&self, t: &Tensor<'_>, bits_per_group: usize) -> Result<()> {
        if self.bits.checked_mul(self.group) == Some(bits_per_group) {
            return Ok(());
        }
        let Self { quant_type, group, .. } = self;
        let what = format!(
            "the metadata say {quant_type} in groups of {group}, and by the shapes a scale is for {bits_per_group} bits of codes"
        );
        Err(wrong(t, what))
    }

    /// Checks that the weight is of the stated kind: `codes` is what the dtype of its scales and
    /// the shapes say.
    ///
    /// # Errors
    /// It is another.
    pub(super) fn check_mode(&self, t: &Tensor<'_>, codes: CodeType) -> Result<()> {
        if codes == self.codes {
            return Ok(());
        }
        let what = format!("the metadata say {}, and by its scales it is {codes}", self.quant_type);
        Err(wrong(t, what))
    }
}

/// The factor of all values of a weight, whose one number is `global`.
///
/// # Errors
/// It is not one number.
pub(super) fn global_factor<'m>(global: &Tensor<'m>) -> Result<Box<dyn ScaleMatrix + 'm>> {
    match global.elements() {
        1 => Ok(Box::new(Repeated(Floats::ieee(global)?))),
        n => Err(wrong(global, format!("a weight has one global scale, not {n}"))),
    }
}

/// Keys of metadata that say how weights are quantized.
pub(super) fn description_keys(metadata: &HashMap<String, String>) -> Vec<String> {
    let is_of = |key: &str, what: &str| {
        let rest = key.strip_suffix(what);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    // A group size alone can be another producer's.
    if !metadata.keys().any(|key| is_of(key, QUANT_TYPE)) {
        return Vec::new();
    }
    let keys = metadata.keys();
    keys.filter(|key| is_of(key, QUANT_TYPE) || is_of(key, GROUP_SIZE))
        .cloned()
        .collect()
}
