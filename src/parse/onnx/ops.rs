//! Operators that tell something of quantized weights.

/// A node that tells something of codes.
pub(super) struct QuantNode {
    pub op: String,
    pub kept: NodeUse,
    /// The graph that it is in.
    pub scope: usize,
    /// Names of the first inputs; empty for those that it lacks.
    pub inputs: Vec<String>,
    /// The first output.
    pub output: String,
    pub integers: Vec<(String, i64)>,
}

impl QuantNode {
    /// Name of input `i`, if the node has it.
    pub(super) fn input(&self, i: usize) -> Option<&str> {
        let name = self.inputs.get(i).map(String::as_str);
        name.filter(|name| !name.is_empty())
    }
}

/// What a node tells of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeUse {
    /// It takes them, by a row of [`OPS`].
    Takes(&'static OpRow),
    /// It quantizes activations.
    Quantizes,
    /// It passes on the elements of its first input in another order or shape.
    Moves,
    /// It makes floats of integers, which are codes then.
    Casts,
    /// It takes bits of integers: several codes lie in one.
    Unpacks,
    /// It multiplies by a scale.
    Product,
    /// An operator of onnxruntime, which may take codes of eight bits or fewer.
    Unknown,
    /// One of a domain that nothing is known of, which may take codes in any integers.
    Foreign,
}

/// Which inputs of an operator are codes of a weight, their scales and their zero points.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpRow {
    pub op: &'static str,
    pub codes: usize,
    pub scale: Option<usize>,
    pub zero_point: Option<usize>,
    /// Maps of columns to groups.
    pub more: &'static [usize],
    /// Scales and zero points of activations.
    pub activations: &'static [usize],
    /// Integers that are added to the product, and the scale of the activations, by which that of the
    /// codes is multiplied.
    pub bias: Option<(usize, usize)>,
    /// Another weight that the operator takes.
    pub other: Option<&'static Self>,
}

const fn row(
    op: &'static str,
    [codes, scale, zero_point]: [usize; 3],
    activations: &'static [usize],
) -> OpRow {
    let (scale, zero_point) = (Some(scale), Some(zero_point));
    OpRow { op, codes, scale, zero_point, more: &[], activations, bias: None, other: None }
}

/// Operators of ONNX and of onnxruntime (`docs/ContribOperators.md`).
static OPS: &[OpRow] = &[
    row("DequantizeLinear", [0, 1, 2], &[]),
    OpRow { more: &[4], ..row("MatMulNBits", [1, 2, 3], &[]) },
    row("GatherBlockQuantized", [0, 2, 3], &[]),
    OpRow { zero_point: None, ..row("MatMulBnb4", [1, 2, 0], &[]) },
    row("QLinearMatMul", [3, 4, 5], &[1, 2, 6, 7]),
    OpRow { bias: Some((8, 1)), ..row("QLinearConv", [3, 4, 5], &[1, 2, 6, 7]) },
    OpRow { bias: Some((6, 1)), ..row("QGemm", [3, 4, 5], &[1, 2, 7, 8]) },
    row("MatMulIntegerToFloat", [1, 3, 5], &[2, 4]),
    row("DynamicQuantizeMatMul", [1, 2, 3], &[]),
    row("QAttention", [1, 4, 7], &[3, 6]),
    OpRow { other: Some(&RECURRENCE), ..row("DynamicQuantizeLSTM", [1, 8, 9], &[]) },
    OpRow { scale: None, ..row("MatMulInteger", [1, 0, 3], &[2]) },
    OpRow { scale: None, ..row("ConvInteger", [1, 0, 3], &[2]) },
];

static RECURRENCE: OpRow = row("DynamicQuantizeLSTM", [2, 10, 11], &[]);

/// Operators that pass on the elements of their first input.
const MOVES: [&str; 9] = [
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Ends of the names of codes and of their scales, by which onnxruntime's `quantize_dynamic` tells which
/// belong together.
pub(super) const CODES: &str = "_quantized";
pub(super) const SCALE: &str = "_scale";

/// What a node of this operator tells of codes; `None`: nothing.
pub(super) fn node_use(op: &str, domain: &str) -> Option<NodeUse> {
    if let Some(row) = OPS.iter().find(|row| row.op == op) {
        return Some(NodeUse::Takes(row));
    }
    match op {
        "QuantizeLinear" => Some(NodeUse::Quantizes),
        _ if matches!(domain, "com.microsoft" | "ai.onnx.ml") => Some(NodeUse::Unknown),
        _ if !is_standard(domain) => Some(NodeUse::Foreign),
        "BitShift" | "BitwiseAnd" => Some(NodeUse::Unpacks),
        "Cast" => Some(NodeUse::Casts),
        "Mul" => Some(NodeUse::Product),
        _ if MOVES.contains(&op) => Some(NodeUse::Moves),
        _ => None,
    }
}

/// Whether `domain` is that of ONNX itself.
pub(super) fn is_standard(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}
