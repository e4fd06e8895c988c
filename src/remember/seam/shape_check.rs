//! What the bias of a layer and `config.json` say of the shape of a weight. Scales alone may fit
//! several shapes.

use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::{CodeType, Group, Index, QuantScheme, base_of, module_of, wrong};

/// Norms of the residual stream of a block, or behind its last block, by their names in the module
/// that has them.
const NORMS: [&str; 21] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    ".norm.weight",
    ".norm1.weight",
    ".norm2.weight",
    ".layer_norm1.weight",
    ".layer_norm2.weight",
    ".self_attn_layer_norm.weight",
    ".final_layer_norm.weight",
    ".attention_norm.weight",
    ".attn_norm.weight",
    ".ffn_norm.weight",
    ".mlp_norm.weight",
    ".operator_norm.weight",
    ".pre_norm.weight",
    ".layer_norm.weight",
    ".ln_1.weight",
    ".ln_2.weight",
    ".ln1.weight",
    ".ln2.weight",
    ".model.norm.weight",
];

/// Norms behind the last block of a language model, which have the width of its residual stream.
const FINAL_NORMS: [&str; 8] = [
    "model.norm.weight",
    "norm.weight",
    "language_model.model.norm.weight",
    "model.language_model.norm.weight",
    "language_model.norm.weight",
    "model.final_layernorm.weight",
    "transformer.ln_f.weight",
    "backbone.norm_f.weight",
];

/// Modules above a layer among which that with the norms of its block is:
/// `block.mlp.experts.0.up_proj`.
const LEVELS: usize = 4;

impl Index<'_> {
    /// Whether the layer `module` with the shape `[rows, cols]` is of another model than
    /// `config.json` gives the sizes of.
    ///
    /// A file may hold a second model, whose layers have the same names: an encoder, or the small
    /// decoder of a model for speech. The norms of a block have the width of its residual stream,
    /// which is a side of its layers.
    pub(crate) fn is_of_other_model(&self, module: &str, shape: [usize; 2]) -> bool {
        let Some(hidden) = self.config.hidden_size() else {
            return false;
        };
        let mut level = module;
        for _ in 0..LEVELS {
            let Some((above, _)) = level.rsplit_once('.') else {
                return false;
            };
            level = above;
            let norms = NORMS.iter().filter_map(|norm| self.at(level, norm));
            let mut widths = norms
                .filter(|norm| norm.shape().len() == 1)
                .map(|norm| norm.elements())
                .peekable();
            if widths.peek().is_some() {
                return widths.any(|width| width != hidden && shape.contains(&width));
            }
        }
        false
    }

    /// The norm behind the last block of a language model, if it has another width than
    /// `hidden_size` in `config.json`.
    pub(crate) fn norm_of_other_width(&self) -> Option<Tensor<'_>> {
        let hidden = self.config.hidden_size()?;
        let norms = FINAL_NORMS.iter().filter_map(|name| self.get(name));
        let mut norms = norms.filter(|norm| norm.shape().len() == 1);
        norms.find(|norm| norm.elements() != hidden)
    }

    /// Whether the inputs of `module` are two residual streams side by side: those of the
    /// projections of the first layer of an EAGLE-3 draft model, where each stream has a norm.
    pub(crate) fn has_joined_inputs(&self, module: &str) -> bool {
        let attention = ["q_proj", "k_proj", "v_proj"]
            .iter()
            .find_map(|name| base_of(module, name));
        attention.is_some_and(|attention| {
            let block = module_of(attention.trim_end_matches('.'));
            self.at(block, ".hidden_norm.weight").is_some()
        })
    }
}

/// Checks the shape of `group` against the bias of its layer and the sizes in `config.json`.
///
/// # Errors
/// One of them says another shape.
pub(super) fn check_shape(group: &Group<'_>, all: &Index<'_>) -> Result<()> {
    let Some(base) = base_of(&group.name, "weight") else {
        return Ok(());
    };
    check_bias(group, base, all)?;
    check_sizes(group, base.trim_end_matches('.'), all)
}

/// Checks that the bias has a value for each output.
fn check_bias(group: &Group<'_>, base: &str, all: &Index<'_>) -> Result<()> {
    let bias = all.at(base, "bias").filter(|bias| bias.shape().len() == 1);
    let (Some(bias), [outputs, inner, rest @ ..]) = (bias, &*group.shape) else {
        return Ok(());
    };
    // Transposed convolutions and GPT-2's `Conv1D` (`c_attn`, `c_fc`, `c_proj`) have their outputs
    // in the second dimension.
    let last = base.trim_end_matches('.').rsplit('.').next();
    let is_conv_1d = last.is_some_and(|part| part.starts_with("c_"));
    let n = bias.elements();
    // ComfyUI pads the rows of blocks to whole tiles of the product, and not the bias (comfy-kitchen
    // `nvfp4` and `mxfp8`).
    let tile = match group.scheme {
        QuantScheme::Grouped { family: "ComfyUI", codes: CodeType::Nvfp4, .. } => 16,
        QuantScheme::Grouped { family: "ComfyUI", codes: CodeType::Mxfp8, .. } => 32,
        _ => 1,
    };
    let is_padded = n.checked_next_multiple_of(tile) == Some(*outputs);
    // exllamav2 and exllamav3 pad both, and the weight is without its padding.
    let pads_bias = match group.scheme {
        QuantScheme::Exl2 => outputs.checked_next_multiple_of(32) == Some(n),
        QuantScheme::Exl3 { .. } => outputs.checked_next_multiple_of(128) == Some(n),
        _ => false,
    };
    let is_padded = is_padded || pads_bias;
    if is_padded || n == *outputs || n == *inner && (!rest.is_empty() || is_conv_1d) {
        return Ok(());
    }
    let what =
        format!("its shape is {:?}, and its bias `{}` has {n} values", group.shape, bias.name());
    Err(wrong(&group.parts[0].1, what))
}

/// Checks that a weight with as many values as `config.json` says has them in the rows and columns
/// that it says.
///
/// Another number of values is no error: layers of unusual models have other sizes than those that
/// their names suggest.
fn check_sizes(group: &Group<'_>, module: &str, all: &Index<'_>) -> Result<()> {
    let ([Some(outputs), Some(inputs)], &[rows, cols]) =
        (all.config.layer_sizes(module), &*group.shape)
    else {
        return Ok(());
    };
    if [rows, cols] == [outputs, inputs] || outputs.checked_mul(inputs) != rows.checked_mul(cols) {
        return Ok(());
    }
    if all.is_of_other_model(module, [rows, cols]) {
        return Ok(());
    }
    let what =
        format!("its shape is {:?}, and config.json says [{outputs}, {inputs}]", group.shape);
    Err(wrong(&group.parts[0].1, what))
}
