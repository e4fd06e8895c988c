//! What a walk over the graphs finds.

use super::fields::TensorFields;

/// Longest name that may be put before those of tensors, in bytes.
pub(super) const MAX_NAME: usize = 1024;

/// What names of weights begin with whose own names the exporter has lost, with a number behind it:
/// it has transposed the weight of a linear layer.
pub(super) const LOST: &str = "onnx::MatMul_";

/// A tensor with data, and the graph that it is in.
pub(super) struct GraphTensor {
    pub name: String,
    /// Index of its [`GraphScope`].
    pub scope: usize,
    pub data: TensorData,
}

/// Where the data of a tensor is.
pub(super) enum TensorData {
    Dense(TensorFields),
    /// Values, indices and dimensions.
    Sparse(Box<(TensorFields, TensorFields, Vec<u64>)>),
}

/// A graph: of the model, of an attribute of a node, or of a function.
pub(super) struct GraphScope {
    /// The graph whose names this one sees, too.
    pub parent: Option<usize>,
    /// Name of the node that has it and of the attribute, or of the function; empty for the model's
    /// graph.
    pub label: String,
}

/// The use of a weight that has lost its name.
#[derive(Default)]
pub(super) struct LostUse {
    /// How many inputs of nodes it is.
    pub count: usize,
    /// Name of the `MatMul` whose second input it is, without what quantizers have added, and whether
    /// the product takes the weight transposed.
    pub node: Option<(String, bool)>,
}
