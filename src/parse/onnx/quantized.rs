//! Which tensors are codes of a quantized weight, by the nodes that take them. What codes mean is the
//! scheme's affair.

use std::collections::{HashMap, HashSet};

use super::found::{GraphScope, GraphTensor};
use super::names::TensorName;
use super::ops::{CODES, NodeUse, OpRow, QuantNode, SCALE};
use crate::model::{GraphCodes, GraphRole, TensorInfo};
use crate::{Dtype, ParsedModel};

/// Most operators that only move elements between codes and what takes them.
const MAX_MOVES: usize = 16;

/// Fills in the role of each tensor of `contents`.
pub(super) fn mark(
    contents: &mut ParsedModel,
    found: &[GraphTensor],
    scopes: &[GraphScope],
    names: &[TensorName],
    nodes: &[QuantNode],
) {
    let positions: HashMap<&str, usize> =
        contents.tensors.iter().map(|t| &*t.name).zip(0..).collect();
    let by_scope = found.iter().zip(names).filter_map(|(tensor, name)| {
        let position = positions.get(&*name.text)?;
        Some(((tensor.scope, tensor.name.as_str()), *position))
    });
    let transposed = names.iter().filter(|name| name.is_transposed);
    let transposed = transposed.filter_map(|name| positions.get(&*name.text).copied());
    let mut marks = Marks {
        tensors: &contents.tensors,
        scopes,
        stored: by_scope.collect(),
        moved: HashMap::new(),
        factors: HashSet::new(),
        scales: HashMap::new(),
        transposed: transposed.collect(),
        roles: vec![GraphRole::Plain; contents.tensors.len()],
    };
    for node in nodes {
        match (node.kept, node.inputs.first()) {
            (NodeUse::Moves, Some(input)) => {
                marks.moved.insert((node.scope, &node.output), input);
            }
            (NodeUse::Product, _) => {
                let factors = node.inputs.iter().map(|name| (node.scope, name.as_str()));
                marks.factors.extend(factors);
            }
            _ => {}
        }
    }
    let linear = nodes.iter().filter(|node| node.op == "DequantizeLinear");
    let used = linear
        .clone()
        .filter_map(|node| Some((node.scope, node.input(1)?)));
    let used: HashSet<_> = used.collect();
    linear.for_each(|node| marks.add_scale(node, &used));
    nodes.iter().for_each(|node| marks.add(node));
    marks.add_rest(nodes);
    contents.graph = marks.roles;
}

/// The stored tensors that an operator takes.
struct RowInputs {
    /// The codes, and whether others move them on their way.
    codes: Option<(usize, bool)>,
    scale: Option<usize>,
    zero_point: Option<usize>,
    /// What the scale is multiplied by.
    factor: Option<usize>,
    /// As of [`GraphCodes`].
    has_more: bool,
}

/// The roles of a model's tensors.
struct Marks<'a> {
    tensors: &'a [TensorInfo],
    scopes: &'a [GraphScope],
    /// The stored tensors, by graph and name.
    stored: HashMap<(usize, &'a str), usize>,
    /// What is an output of an operator that moves elements, with the input.
    moved: HashMap<(usize, &'a str), &'a str>,
    /// What is multiplied.
    factors: HashSet<(usize, &'a str)>,
    /// Scales that are decoded themselves: by the output, their codes and the scale of these.
    scales: HashMap<(usize, &'a str), (usize, usize)>,
    /// The tensors that operators take transposed.
    transposed: HashSet<usize>,
    roles: Vec<GraphRole>,
}

impl<'a> Marks<'a> {
    /// What `map` has for `name` in the graph `scope`, or in those around it, whose names it sees.
    fn find<T: Copy>(
        &self,
        map: &HashMap<(usize, &str), T>,
        scope: usize,
        name: &str,
    ) -> Option<T> {
        let mut scope = Some(scope);
        while let Some(i) = scope {
            if let Some(value) = map.get(&(i, name)) {
                return Some(*value);
            }
            scope = self.scopes[i].parent;
        }
        None
    }

    /// The stored tensor `name`, or the one whose elements it has: its position, its name in the file,
    /// and whether the elements are moved.
    fn source<'n>(&self, scope: usize, name: &'n str) -> Option<(usize, &'n str, bool)>
    where
        'a: 'n,
    {
        let mut name = name;
        for moves in 0..MAX_MOVES {
            if let Some(position) = self.find(&self.stored, scope, name) {
                return Some((position, name, moves > 0));
            }
            name = self.find(&self.moved, scope, name)?;
        }
        None
    }

    /// Adds what `node` says of the tensors that its inputs are.
    fn add(&mut self, node: &'a QuantNode) {
        match node.kept {
            NodeUse::Takes(_) if self.scales.contains_key(&(node.scope, &*node.output)) => {}
            NodeUse::Takes(row) => [Some(row), row.other]
                .into_iter()
                .flatten()
                .for_each(|row| self.add_row(node, row)),
            NodeUse::Quantizes => {
                let parts: Vec<usize> = (1..3).filter_map(|i| self.input(node, i)).collect();
                parts
                    .into_iter()
                    .for_each(|i| self.set(i, GraphRole::Activation));
            }
            NodeUse::Casts => {
                let to = node.integers.iter().find(|(name, _)| name == "to");
                // F32, F16, F64 and BF16.
                if to.is_some_and(|(_, to)| matches!(to, 1 | 10 | 11 | 16)) {
                    self.refuse(node, |t| is_narrow(t) && t.shape.len() > 1);
                }
            }
            NodeUse::Unpacks => self.refuse(node, |t| t.dtype.is_integer() && t.shape.len() > 1),
            NodeUse::Unknown => self.refuse(node, is_narrow),
            NodeUse::Foreign => {
                self.refuse(node, |t| is_narrow(t) || t.dtype.is_integer() && t.shape.len() > 1);
            }
            NodeUse::Moves | NodeUse::Product => {}
        }
    }

    /// Notes the inputs of `node` that `may_be_codes` as codes of which nothing is known.
    fn refuse(&mut self, node: &QuantNode, may_be_codes: impl Fn(&TensorInfo) -> bool) {
        for name in &node.inputs {
            if let Some((i, ..)) = self.source(node.scope, name)
                && may_be_codes(&self.tensors[i])
            {
                self.set_codes(i, unknown(&node.op));
            }
        }
    }

    /// Adds what an operator of a row of the table says of its inputs.
    fn add_row(&mut self, node: &'a QuantNode, row: &OpRow) {
        let activations: Vec<usize> = row
            .activations
            .iter()
            .filter_map(|&i| self.input(node, i))
            .collect();
        let inputs = self.inputs(node, row);
        let parts = [inputs.scale, inputs.zero_point, inputs.factor];
        let parts: Vec<usize> = parts.into_iter().flatten().collect();
        activations
            .into_iter()
            .for_each(|i| self.set(i, GraphRole::Activation));
        let Some((codes, is_moved)) = inputs.codes else {
            // The codes are activations.
            parts
                .into_iter()
                .for_each(|i| self.set(i, GraphRole::Activation));
            return;
        };
        let text = |i: usize| self.tensors[i].name.clone();
        let role = GraphCodes {
            scale: inputs.scale.map(text),
            zero_point: inputs.zero_point.map(text),
            factor: inputs.factor.map(text),
            is_transposed: self.transposed.contains(&codes),
            is_moved,
            has_more: inputs.has_more,
            integers: node.integers.clone(),
            ..GraphCodes::new(&node.op)
        };
        self.add_bias(node, row, &role);
        if self.set_codes(codes, role) {
            parts.into_iter().for_each(|i| self.set(i, COMPANION));
        }
    }

    /// The stored tensor that input `i` of `node` is.
    fn input(&self, node: &QuantNode, i: usize) -> Option<usize> {
        self.find(&self.stored, node.scope, node.input(i)?)
    }

    /// The codes of a weight that `node` takes, and their companions.
    fn inputs(&self, node: &QuantNode, row: &OpRow) -> RowInputs {
        let codes = node.input(row.codes);
        let found = codes.and_then(|name| self.source(node.scope, name));
        let codes = found.map(|(codes, _, is_moved)| (codes, is_moved));
        let at = |i: Option<usize>| self.input(node, i?);
        let (mut scale, zero_point, mut factor) = (at(row.scale), at(row.zero_point), None);
        match (row.scale, found) {
            (None, Some((_, name, _))) => scale = self.scale_by_name(node.scope, name),
            (Some(i), _) if scale.is_none() => {
                let made = node.input(i);
                let made = made.and_then(|name| self.find(&self.scales, node.scope, name));
                (scale, factor) = made.unzip();
            }
            _ => {}
        }
        let is_lost = |i: Option<usize>, found: Option<usize>| {
            found.is_none() && i.is_some_and(|i| node.input(i).is_some())
        };
        let has_more = row.more.iter().any(|&i| node.input(i).is_some())
            || is_lost(row.scale, scale)
            || is_lost(row.zero_point, zero_point);
        RowInputs { codes, scale, zero_point, factor, has_more }
    }

    /// Adds the integers that `node` adds to the product, if there are any. `codes` are those of the
    /// weight.
    fn add_bias(&mut self, node: &QuantNode, row: &OpRow, codes: &GraphCodes) {
        let Some((bias, factor)) = row
            .bias
            .and_then(|(bias, factor)| Some((self.input(node, bias)?, self.input(node, factor))))
        else {
            return;
        };
        let role = GraphCodes {
            op: format!("{} (bias)", node.op),
            zero_point: None,
            factor: factor.map(|i| self.tensors[i].name.clone()),
            is_transposed: false,
            is_moved: false,
            has_more: factor.is_none() || codes.scale.is_none(),
            ..codes.clone()
        };
        let scale = row.scale.and_then(|i| self.input(node, i));
        if self.set_codes(bias, role) {
            scale.into_iter().for_each(|i| self.set(i, COMPANION));
        }
    }

    /// Notes the scales that are codes themselves, with a scale of their own: `node` decodes them, and
    /// makes one of the outputs `used` of them.
    fn add_scale(&mut self, node: &'a QuantNode, used: &HashSet<(usize, &str)>) {
        let (codes, scale) = (self.input(node, 0), self.input(node, 1));
        let is_used = used.contains(&(node.scope, node.output.as_str()));
        if let (Some(codes), Some(scale), true, None) = (codes, scale, is_used, node.input(2))
            && self.tensors[scale].shape.iter().product::<usize>() == 1
        {
            self.scales
                .insert((node.scope, &node.output), (codes, scale));
        }
    }

    /// The scale of codes that `quantize_dynamic` has made: it has their name, and is multiplied by
    /// that of the activations.
    fn scale_by_name(&self, scope: usize, codes: &str) -> Option<usize> {
        let name = codes.strip_suffix(CODES)?;
        let scale = format!("{name}{SCALE}");
        let is_factor = self.factors.contains(&(scope, scale.as_str()));
        self.find(&self.stored, scope, &scale).filter(|_| is_factor)
    }

    /// In a model with codes, refuses whatever else may be some: a weight that reaches its operator
    /// in a way that is not followed here.
    fn add_rest(&mut self, nodes: &[QuantNode]) {
        let takes = |node: &QuantNode| matches!(node.kept, NodeUse::Takes(_));
        if !nodes.iter().any(takes) {
            return;
        }
        for i in 0..self.roles.len() {
            let t = &self.tensors[i];
            let is_plain = self.roles[i] == GraphRole::Plain && t.dtype.is_integer();
            if is_plain && is_narrow(t) && t.shape.len() > 1 {
                self.set_codes(i, unknown(""));
            }
        }
    }

    /// Sets the role of a companion, or of a tensor of activations. What says more of it counts.
    fn set(&mut self, i: usize, role: GraphRole) {
        let old = &mut self.roles[i];
        match (&*old, &role) {
            (GraphRole::Codes(_), _) | (GraphRole::Companion { .. }, GraphRole::Activation) => {}
            (GraphRole::Companion { .. }, _) => *old = GraphRole::Companion { is_shared: true },
            _ => *old = role,
        }
    }

    /// Sets the role of codes, and returns whether no node has said the same before.
    fn set_codes(&mut self, i: usize, codes: GraphCodes) -> bool {
        let old = &mut self.roles[i];
        match old {
            GraphRole::Codes(old) if **old == codes => false,
            // Shared by an embedding and an output layer: who takes them as they are tells what they
            // are.
            GraphRole::Codes(old) if codes.is_moved && !old.is_moved && !old.has_more => false,
            GraphRole::Codes(old) if codes.is_moved || !old.is_moved => {
                // Two operators take the same codes, and do not agree.
                old.has_more = true;
                false
            }
            _ => {
                *old = GraphRole::Codes(Box::new(codes));
                true
            }
        }
    }
}

/// Whether a tensor has several integers or floats of at most eight bits.
fn is_narrow(t: &TensorInfo) -> bool {
    t.dtype.bits() <= 8 && t.dtype != Dtype::Bool && t.shape.iter().product::<usize>() > 1
}

const COMPANION: GraphRole = GraphRole::Companion { is_shared: false };

/// Codes of which nothing is known but the operator `op` that takes them, or not even that.
fn unknown(op: &str) -> GraphCodes {
    GraphCodes { has_more: true, ..GraphCodes::new(op) }
}
