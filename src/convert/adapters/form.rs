//! How the factors of a module are stored, as far as its weight tells.

use super::factors::FactorForm;
use crate::error::InTensor;
use crate::model::Tensor;
use crate::remember::conv1d::CONV1D_MODULES;
use crate::{AnamnesisError, Result};

/// The form that makes a product of `shape` of two matrices, if only one does: whoever stores a
/// weight as `[in, out]` has it from its class. PEFT goes by the class as well, and saves
/// `fan_in_fan_out` as the last module of the adapter has it.
pub(super) fn form_that_fits(
    shape: &[usize],
    a: &Tensor<'_>,
    b: &Tensor<'_>,
) -> Option<FactorForm> {
    let (&[_, inputs], &[outputs, _]) = (a.shape(), b.shape()) else {
        return None;
    };
    match (shape == [outputs, inputs], shape == [inputs, outputs]) {
        (true, false) => Some(FactorForm::OutIn),
        (false, true) => Some(FactorForm::InOut),
        _ => None,
    }
}

/// The form of `module`, whose weight is square and whose factor A is `a`. The settings say
/// `fan_in_fan_out` (`is_transposed`) for the last module of the adapter, which may be of another
/// class. `beside` is the shape of the weight `c_attn` beside the module.
///
/// # Errors
/// `Unsupported` if the settings say `fan_in_fan_out`, and the module is not known to be a
/// `Conv1D`.
pub(super) fn form_of_square(
    (module, a): (&str, &Tensor<'_>),
    is_transposed: bool,
    beside: Option<&[usize]>,
) -> Result<FactorForm> {
    let name = module.rsplit('.').next().unwrap_or(module);
    let may_be_conv1d = CONV1D_MODULES.contains(&name);
    // GPT-2's attention: a `Conv1D` has the weights of queries, keys and values side by side, a
    // linear layer has them below each other. It is one where the model is quantized, or of another
    // class. Modules of other names beside it are linear layers.
    match beside {
        Some(&[rows, cols]) if cols < rows => return Ok(FactorForm::OutIn),
        Some(&[rows, cols]) if cols > rows && may_be_conv1d => return Ok(FactorForm::InOut),
        _ => {}
    }
    match is_transposed {
        false => Ok(FactorForm::OutIn),
        true if may_be_conv1d => Ok(FactorForm::InOut),
        true => {
            let what = format!(
                "{}: its weight is square, and the settings say `fan_in_fan_out`, which PEFT saves as the last module has it: nothing tells whether this one is a `Conv1D`",
                InTensor(&a.name())
            );
            Err(AnamnesisError::unsupported("an adapter", what))
        }
    }
}
