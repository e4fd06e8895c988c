//! Which tensors are codes of a quantized weight, by the nodes that take them. What codes mean is the
//! scheme's affair.

use std::collections::HashMap;

use super::graph::{FoundTensor, Scope, is_standard};
use super::names::TensorName;
use crate::model::{OnnxCodes, OnnxRole};
use crate::{Dtype, ParsedModel};

/// A node that may take codes.
pub(super) struct QuantNode {
    pub op: String,
    pub domain: String,
    /// The graph that it is in.
    pub scope: usize,
    /// Names of the first inputs; empty for those that it lacks.
    pub inputs: Vec<String>,
    pub integers: Vec<(String, i64)>,
}

/// Which inputs of an operator are codes of a weight, their scales and their zero points.
struct OpRow {
    op: &'static str,
    codes: usize,
    scale: Option<usize>,
    zero_point: Option<usize>,
    /// Other scales, zero points or maps of the codes.
    more: &'static [usize],
    /// Scales and zero points of activations.
    activations: &'static [usize],
}

const fn row(
    op: &'static str,
    [codes, scale, zero_point]: [usize; 3],
    more: &'static [usize],
    activations: &'static [usize],
) -> OpRow {
    OpRow { op, codes, scale: Some(scale), zero_point: Some(zero_point), more, activations }
}

/// Operators of ONNX and of onnxruntime (`docs/ContribOperators.md`).
const OPS: &[OpRow] = &[
    row("DequantizeLinear", [0, 1, 2], &[], &[]),
    row("MatMulNBits", [1, 2, 3], &[4], &[]),
    row("GatherBlockQuantized", [0, 2, 3], &[], &[]),
    OpRow { zero_point: None, ..row("MatMulBnb4", [1, 2, 0], &[], &[]) },
    row("QLinearMatMul", [3, 4, 5], &[], &[1, 2, 6, 7]),
    row("QLinearConv", [3, 4, 5], &[], &[1, 2, 6, 7]),
    row("QGemm", [3, 4, 5], &[], &[1, 2, 7, 8]),
    row("MatMulIntegerToFloat", [1, 3, 5], &[], &[2, 4]),
    row("DynamicQuantizeMatMul", [1, 2, 3], &[], &[]),
    OpRow { scale: None, ..row("MatMulInteger", [1, 0, 3], &[], &[2]) },
    OpRow { scale: None, ..row("ConvInteger", [1, 0, 3], &[], &[2]) },
];

/// Whether the tensors of a node with this operator are looked at: operators of other domains may
/// take codes, too.
pub(super) fn is_quantized_op(op: &str, domain: &str) -> bool {
    !is_standard(domain) || op == "QuantizeLinear" || OPS.iter().any(|row| row.op == op)
}

/// Fills in the role of each tensor of `contents`, if any node takes codes.
pub(super) fn mark(
    contents: &mut ParsedModel,
    found: &[FoundTensor],
    scopes: &[Scope],
    names: &[TensorName],
    nodes: Vec<QuantNode>,
) {
    let positions: HashMap<&str, usize> = contents.tensors.iter().map(|t| &*t.name).zip(0..).collect();
    let by_scope = found.iter().zip(names).filter_map(|(tensor, name)| {
        let position = positions.get(&*name.text)?;
        Some(((tensor.scope, tensor.name.as_str()), *position))
    });
    let by_scope: HashMap<(usize, &str), usize> = by_scope.collect();
    let mut marks = Marks { roles: vec![OnnxRole::Plain; contents.tensors.len()] };
    for node in nodes {
        // A graph sees the names of those around it.
        let stored = |name: &String| {
            let mut scope = Some(node.scope);
            while let Some(i) = scope {
                if let Some(position) = by_scope.get(&(i, name.as_str())) {
                    return Some(*position);
                }
                scope = scopes[i].parent;
            }
            None
        };
        let inputs: Vec<Option<usize>> = node.inputs.iter().map(stored).collect();
        marks.add(node, &inputs, contents);
    }
    contents.onnx = marks.roles;
}

/// The roles of a model's tensors.
struct Marks {
    roles: Vec<OnnxRole>,
}

impl Marks {
    /// Adds what `node` says of the tensors that its `inputs` are.
    fn add(&mut self, node: QuantNode, inputs: &[Option<usize>], contents: &ParsedModel) {
        let at = |i: usize| inputs.get(i).copied().flatten();
        let Some(row) = OPS.iter().find(|row| row.op == node.op) else {
            match node.op == "QuantizeLinear" && is_standard(&node.domain) {
                true => (1..3).filter_map(at).for_each(|i| self.set(i, OnnxRole::Activation)),
                false => self.add_unknown(&node, inputs, contents),
            }
            return;
        };
        let activations = row.activations.iter().filter_map(|&i| at(i));
        activations.for_each(|i| self.set(i, OnnxRole::Activation));
        let (scale, zero_point) = (row.scale.and_then(at), row.zero_point.and_then(at));
        let Some(codes) = at(row.codes) else {
            // The codes are activations.
            let parts = scale.into_iter().chain(zero_point);
            parts.for_each(|i| self.set(i, OnnxRole::Activation));
            return;
        };
        let is_given = |i: usize| node.inputs.get(i).is_some_and(|name| !name.is_empty());
        let is_elsewhere = |i: Option<usize>| i.is_some_and(|i| is_given(i) && at(i).is_none());
        let has_more = row.more.iter().any(|&i| is_given(i))
            || is_elsewhere(row.scale)
            || is_elsewhere(row.zero_point);
        let name = |i: Option<usize>| i.map(|i| contents.tensors[i].name.clone());
        let role = OnnxCodes {
            op: node.op,
            scale: name(scale),
            zero_point: name(zero_point),
            has_more,
            integers: node.integers,
        };
        if self.set_codes(codes, role) {
            let parts = scale.into_iter().chain(zero_point);
            parts.for_each(|i| self.set(i, OnnxRole::Companion { is_shared: false }));
        }
    }

    /// Adds the inputs of an operator that is not known and takes integers of at most eight bits:
    /// more than one of them are codes.
    fn add_unknown(&mut self, node: &QuantNode, inputs: &[Option<usize>], contents: &ParsedModel) {
        for &i in inputs.iter().flatten() {
            let t = &contents.tensors[i];
            let is_narrow = t.dtype.bits() <= 8 && t.dtype != Dtype::Bool;
            if is_narrow && t.shape.iter().product::<usize>() > 1 {
                let op = node.op.clone();
                let (scale, zero_point, integers) = (None, None, Vec::new());
                self.set_codes(i, OnnxCodes { op, scale, zero_point, has_more: true, integers });
            }
        }
    }

    /// Sets the role of a companion, or of a tensor of activations. What says more of it counts.
    fn set(&mut self, i: usize, role: OnnxRole) {
        let old = &mut self.roles[i];
        match (&*old, &role) {
            (OnnxRole::Codes(_), _) | (OnnxRole::Companion { .. }, OnnxRole::Activation) => {}
            (OnnxRole::Companion { .. }, _) => *old = OnnxRole::Companion { is_shared: true },
            _ => *old = role,
        }
    }

    /// Sets the role of codes, and returns whether no node has said the same before.
    fn set_codes(&mut self, i: usize, codes: OnnxCodes) -> bool {
        let old = &mut self.roles[i];
        match old {
            OnnxRole::Codes(old) if **old == codes => false,
            OnnxRole::Codes(old) => {
                // Two operators take the same codes, and do not agree.
                if !old.op.split(", ").any(|op| op == codes.op) {
                    old.op = format!("{}, {}", old.op, codes.op);
                }
                old.has_more = true;
                false
            }
            _ => {
                *old = OnnxRole::Codes(Box::new(codes));
                true
            }
        }
    }
}
