//! What adapters change of a weight.

use super::peft_tensors::Replacement;
use super::tensor::AdapterTensor;
use crate::remember::layout::adapted::{AddedMatrix, Lengths};

/// What adapters change of one weight.
#[derive(Default)]
pub(super) struct WeightChange {
    pub products: Vec<AddedMatrix>,
    /// Rows and columns of the weight as the products see it, once there is one.
    pub size: Option<[usize; 2]>,
    pub replacement: Option<Replacement>,
    /// Rows that replace those of the weight, after the replacement of the whole.
    pub rows: Vec<TokenRows>,
    /// The shape of the replacement, if it is another than the weight's.
    pub shape: Option<Vec<usize>>,
    pub lengths: Option<Lengths>,
    /// Number of the last adapter that changes it, and how many do.
    pub last: Option<usize>,
    pub adapters: usize,
}

/// Rows that replace those of a weight.
pub(super) struct TokenRows {
    pub tokens: Vec<usize>,
    pub tensor: AdapterTensor,
}
