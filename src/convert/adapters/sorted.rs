//! The tensors of an adapter, by what they change of the base.

use std::collections::BTreeMap;

use super::composed::ComposedTensors;
use super::factors::FactorForm;

/// Numbers of the tensors that an adapter has for a module, and what the file says of them.
#[derive(Default, Clone, Copy)]
pub(super) struct LoraTensors {
    pub a: Option<usize>,
    pub b: Option<usize>,
    /// What stands between both factors of a convolution.
    pub core: Option<usize>,
    /// Instead of factors: two matrices, of LoHa and LoKr.
    pub composed: Option<ComposedTensors>,
    /// What is added to the bias beside the weight, before it is scaled.
    pub bias: Option<usize>,
    pub lengths: Option<usize>,
    /// Whether the module is an embedding, whose weight has a row for each token: PEFT transposes
    /// its product.
    pub is_embedding: bool,
    /// Whether the factors are those of a stack of experts of mlx-lm.
    pub is_stack: bool,
    /// How the factors are stored; `None`: PEFT's settings and the shapes tell.
    pub form: Option<FactorForm>,
    /// What the product is multiplied by; `None`: PEFT's settings tell.
    pub scale: Option<f64>,
}

impl LoraTensors {
    /// All tensors.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        let Self { a, b, core, bias, lengths, .. } = *self;
        let composed = self.composed.iter().flat_map(ComposedTensors::all);
        let composed: Vec<usize> = composed.collect();
        [a, b, core, bias, lengths]
            .into_iter()
            .flatten()
            .chain(composed)
    }
}

/// Rows of a product that are rows of a weight.
pub(super) struct PlacedRows {
    /// The module of the weight.
    pub module: String,
    /// The first row of the product, and that of the weight.
    pub from: usize,
    pub to: usize,
    pub rows: usize,
}

/// The tensors of an adapter, sorted.
#[derive(Default)]
pub(super) struct SortedTensors {
    /// By the name of the module.
    pub lora: BTreeMap<String, LoraTensors>,
    /// Where the product of a module of `lora` belongs, if not to the weight of the module.
    pub placed: BTreeMap<String, Vec<PlacedRows>>,
    /// By the name of the weight that is replaced.
    pub replacements: BTreeMap<String, usize>,
    /// Rows of weights, by the name of the weight.
    pub rows: BTreeMap<String, usize>,
    /// Tensors that are added, by the name of what they are added to.
    pub sums: BTreeMap<String, usize>,
    /// What was left out.
    pub notes: Vec<String>,
}

impl SortedTensors {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        let Self { lora, replacements, rows, sums, .. } = self;
        lora.is_empty() && replacements.is_empty() && rows.is_empty() && sums.is_empty()
    }
}
