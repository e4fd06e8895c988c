//! What the graph of an ONNX model says of its tensors.

/// The use of a tensor in the graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "onnx"), allow(dead_code))]
pub(crate) enum OnnxRole {
    /// A weight, or whatever else has values of its own.
    #[default]
    Plain,
    /// Scale or zero point of activations.
    Activation,
    /// Scale or zero point of codes; of several tensors of codes if it is shared.
    Companion {
        is_shared: bool,
    },
    Codes(Box<OnnxCodes>),
}

/// Codes, with the operator that takes them and what it takes besides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "remember"), allow(dead_code))]
pub(crate) struct OnnxCodes {
    /// The operator, or the first of several; empty if none is known.
    pub op: String,
    /// Names of the tensors with scales and zero points.
    pub scale: Option<Box<str>>,
    pub zero_point: Option<Box<str>>,
    /// Name of another scale, by which the first is multiplied.
    pub factor: Option<Box<str>>,
    /// Whether the operator takes the codes transposed, with regard to the tensor.
    pub is_transposed: bool,
    /// Whether the operator takes the codes in another order or shape than they are stored in.
    pub is_moved: bool,
    /// Whether the operator has other scales, zero points or maps, or takes one of these from
    /// another node: then there is more to the values than is known. Also true if operators do not agree.
    pub has_more: bool,
    /// Integer attributes of the operator.
    pub integers: Vec<(String, i64)>,
}

#[cfg_attr(not(feature = "remember"), allow(dead_code))]
impl OnnxCodes {
    /// The integer attribute `name`, or `default` if the operator does not have it.
    pub(crate) fn integer(&self, name: &str, default: i64) -> i64 {
        let found = self.integers.iter().find(|(key, _)| key == name);
        found.map_or(default, |(_, value)| *value)
    }
}
