//! Types that the user gives to some tensors, whatever the mixture says.
//!
//! Source: llama.cpp 0.6.0 `src/llama-quant.cpp` (`llama_tensor_get_type`).

use super::rules::Category;
use super::{LlamaTensor, TypeChoice};
use crate::config::ByName;
use crate::error::InTensor;
use crate::lethe::GgufTypes;
use crate::{AnamnesisError, Dtype, Result};

/// [`GgufTypes`] with patterns that are compiled.
#[derive(Debug)]
pub(crate) struct TypeOverrides {
    tensors: ByName<Dtype>,
    token_embedding: Option<Dtype>,
    pub(super) output: Option<Dtype>,
}

impl TypeOverrides {
    /// `None` if no type is given.
    ///
    /// # Errors
    /// `Usage` if an expression does not compile.
    pub(crate) fn new(types: &GgufTypes) -> Result<Option<Self>> {
        if types.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            tensors: ByName::new("--tensor-type", types.tensors.iter().cloned())?,
            token_embedding: types.token_embedding,
            output: types.output,
        }))
    }

    /// The type that is given to the kind of a tensor, the embeddings or the output layer. It
    /// counts before patterns, even if the file type is one of floats.
    pub(super) fn of_kind(&self, tensor: &LlamaTensor<'_>, category: Category) -> Option<Dtype> {
        match category {
            // A large table by itself, which a pattern may name.
            Category::TokenEmbedding
                if tensor.name == "per_layer_token_embd.weight"
                    && self.of_name(tensor).is_some() =>
            {
                None
            }
            Category::TokenEmbedding => self.token_embedding,
            Category::Output => self.output,
            _ => None,
        }
    }

    /// The type of the first pattern that matches a name of the tensor.
    pub(super) fn of_name(&self, tensor: &LlamaTensor<'_>) -> Option<Dtype> {
        self.tensors.of([&tensor.name, tensor.shown]).copied()
    }

    /// Fails if a pattern matches no tensor of the model, or takes too many steps.
    pub(super) fn require_matches(&self, tensors: &[LlamaTensor<'_>]) -> Result<()> {
        let names = tensors.iter();
        self.tensors
            .require_matches(names.flat_map(|tensor| [&*tensor.name, tensor.shown]))
    }
}

/// The choice of a type that is given to a kind of tensors. llama.cpp has no other type for rows
/// that are not whole blocks then, and fails.
pub(super) fn fitting(dtype: Dtype, tensor: &LlamaTensor<'_>) -> Result<TypeChoice> {
    let (cols, block) = (tensor.dims.last().copied().unwrap_or(1), dtype.block_size());
    if cols.is_multiple_of(block) {
        return Ok(TypeChoice::Type { dtype, note: None });
    }
    let name = InTensor(tensor.shown);
    let what = format!("its {cols} columns are no multiple of the {block} values of a block");
    Err(AnamnesisError::usage(format!("{name}: it cannot get the type {dtype}: {what}")))
}
