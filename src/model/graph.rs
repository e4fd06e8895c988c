//! What the graph of a model says of its tensors.

/// The use of a tensor in the graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "onnx"), allow(dead_code))]
pub(crate) enum GraphRole {
    /// A weight, or whatever else has values of its own.
    #[default]
    Plain,
    /// Scale or zero point of activations.
    Activation,
    /// Scale or zero point of codes; of several tensors of codes if it is shared.
    Companion {
        is_shared: bool,
    },
    Codes(Box<GraphCodes>),
}

/// Codes, with the operator that takes them and what it takes besides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "remember"), allow(dead_code))]
pub(crate) struct GraphCodes {
    /// The operator, or the first of several; empty if none is known. Graphs whose tensors have scales
    /// themselves have `DequantizeLinear`, as ONNX has it.
    pub op: String,
    /// Names of the tensors with scales and zero points.
    pub scale: Option<Box<str>>,
    pub zero_point: Option<Box<str>>,
    /// Name of another scale, by which the first is multiplied.
    pub factor: Option<Box<str>>,
    /// Name of the values that codes pick, before they are multiplied.
    pub codebook: Option<Box<str>>,
    /// Name of the group of each row.
    pub index: Option<Box<str>>,
    /// Shape that the graph gives the decoded weight, if it is another than that of the codes.
    pub shape: Option<Vec<usize>>,
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

impl GraphCodes {
    /// The attribute of unsigned codes that are stored with this much added, in place of zero points.
    #[cfg_attr(not(any(feature = "remember", feature = "executorch")), allow(dead_code))]
    pub(crate) const OFFSET: &str = "offset";

    /// The attributes of codes that are a matrix of so many rows and columns, each row in whole bytes, of
    /// so many bits, and that are divided by their scales.
    #[cfg_attr(not(any(feature = "remember", feature = "hdf5")), allow(dead_code))]
    pub(crate) const ROWS: &str = "rows";
    #[cfg_attr(not(any(feature = "remember", feature = "hdf5")), allow(dead_code))]
    pub(crate) const COLS: &str = "cols";
    #[cfg_attr(not(any(feature = "remember", feature = "hdf5")), allow(dead_code))]
    pub(crate) const BITS: &str = "bits";
    #[cfg_attr(not(any(feature = "remember", feature = "hdf5")), allow(dead_code))]
    pub(crate) const DIVIDES: &str = "divides";
    /// The attribute of such codes of four bits of which a byte has two of a column, the lower row's in its
    /// low bits: how far these rows are apart.
    #[cfg_attr(not(any(feature = "remember", feature = "hdf5")), allow(dead_code))]
    pub(crate) const PAIRED: &str = "paired";

    /// The operator of codes that lie as `[out, in]`, with the groups of an index.
    #[cfg_attr(not(any(feature = "remember", feature = "hdf5")), allow(dead_code))]
    pub(crate) const INDEXED: &str = "Indexed";

    /// Codes with neither companions nor attributes.
    #[cfg_attr(
        not(any(
            feature = "onnx",
            feature = "tflite",
            feature = "openvino",
            feature = "executorch",
            feature = "hdf5"
        )),
        allow(dead_code)
    )]
    pub(crate) fn new(op: &str) -> Self {
        Self {
            op: op.to_owned(),
            scale: None,
            zero_point: None,
            factor: None,
            codebook: None,
            index: None,
            shape: None,
            is_transposed: false,
            is_moved: false,
            has_more: false,
            integers: Vec::new(),
        }
    }

    /// Codes with scales along `axis`, one for each `block` values of it, or one for each index if
    /// `block` is 0.
    #[cfg_attr(
        not(any(feature = "tflite", feature = "executorch", feature = "hdf5")),
        allow(dead_code)
    )]
    pub(crate) fn along(axis: i64, block: i64) -> Self {
        let integers = vec![("axis".to_owned(), axis), ("block_size".to_owned(), block)];
        Self { integers, ..Self::new("DequantizeLinear") }
    }

    /// The integer attribute `name`, or `default` if the operator does not have it.
    #[cfg_attr(not(feature = "remember"), allow(dead_code))]
    pub(crate) fn integer(&self, name: &str, default: i64) -> i64 {
        let found = self.integers.iter().find(|(key, _)| key == name);
        found.map_or(default, |(_, value)| *value)
    }
}
