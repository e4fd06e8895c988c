//! Walks over graphs: which tensors are in them, and the nodes that tell what the tensors are.

use std::collections::HashMap;
use std::ops::Range;

use super::fields::TensorFields;
use super::found::{GraphScope, GraphTensor, LOST, LostUse, MAX_NAME, TensorData};
use super::ops::{NodeUse, QuantNode, SCALE, is_standard, node_use};

use crate::limits::{Budget, cap};
use crate::parse::message::MessageReader;
use crate::{AnamnesisError, Result};

/// Most graphs inside of each other. Protocol Buffers' own limit allows about as many.
const MAX_DEPTH: u64 = 32;

/// Most inputs of a node that are looked at.
pub(super) const MAX_INPUTS: usize = 16;

/// What is found in the graphs of a model.
pub(super) struct GraphWalk<'a> {
    pub file: MessageReader<'a>,
    pub budget: &'a Budget,
    pub found: Vec<GraphTensor>,
    pub scopes: Vec<GraphScope>,
    pub nodes: Vec<QuantNode>,
    pub lost: HashMap<String, LostUse>,
}

/// The fields of a node that tell what it is.
#[derive(Default)]
struct NodeFields {
    op: String,
    domain: String,
    name: Range<u64>,
    inputs: Vec<Range<u64>>,
    output: Range<u64>,
}

impl<'a> GraphWalk<'a> {
    pub(super) fn new(file: MessageReader<'a>, budget: &'a Budget) -> Self {
        let (found, nodes, lost) = (Vec::new(), Vec::new(), HashMap::new());
        let scopes = vec![GraphScope { parent: None, label: String::new() }];
        Self { file, budget, found, scopes, nodes, lost }
    }

    /// Walks over a `GraphProto`, which has the scope `scope` and is in `depth` - 1 others.
    pub(super) fn graph(&mut self, mut rest: Range<u64>, scope: usize, depth: u64) -> Result<()> {
        cap("ONNX_MAX_GRAPH_DEPTH", depth, MAX_DEPTH, "graphs inside of each other")?;
        while let Some(field) = self.file.next(&mut rest)? {
            match (field.number, field.bytes()) {
                (1, Some(node)) => self.node(node, scope, depth)?,
                (5, Some(message)) => {
                    let tensor = TensorFields::read(&mut self.file, message)?;
                    let name = self.file.text(tensor.name.clone())?;
                    self.add(name, scope, TensorData::Dense(tensor))?;
                }
                (15, Some(message)) => {
                    let (name, data) = self.sparse(message)?;
                    self.add(name, scope, data)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Walks over a `FunctionProto`.
    pub(super) fn function(&mut self, message: Range<u64>) -> Result<()> {
        let (mut rest, mut label) = (message.clone(), String::new());
        while let Some(field) = self.file.next(&mut rest)? {
            if let (1, Some(name)) = (field.number, field.bytes()) {
                label = self.file.text(name)?;
            }
        }
        let scope = self.add_scope(None, label)?;
        let mut rest = message;
        while let Some(field) = self.file.next(&mut rest)? {
            if let (7, Some(node)) = (field.number, field.bytes()) {
                self.node(node, scope, 1)?;
            }
        }
        Ok(())
    }

    fn add_scope(&mut self, parent: Option<usize>, label: String) -> Result<usize> {
        // A node may have many graphs, each of which has a copy of the name.
        cap("ONNX_MAX_PATH_BYTES", label.len() as u64, MAX_NAME as u64, "bytes of a name")?;
        self.budget.tables(1, 0, 0)?;
        self.budget.grow(label.len() as u64, "names of graphs")?;
        self.scopes.push(GraphScope { parent, label });
        Ok(self.scopes.len() - 1)
    }

    fn add(&mut self, name: String, scope: usize, data: TensorData) -> Result<()> {
        if name.is_empty() {
            return Err(AnamnesisError::parse("ONNX: a tensor has no name"));
        }
        self.budget.items(1, "tensors")?;
        self.budget.tables(1, 0, 0)?;
        self.budget.grow(name.len() as u64, "names of tensors")?;
        self.found.push(GraphTensor { name, scope, data });
        Ok(())
    }

    /// Reads a `SparseTensorProto`: its name, which its values have, and its parts.
    fn sparse(&mut self, mut rest: Range<u64>) -> Result<(String, TensorData)> {
        let (mut values, mut indices, mut dims) = (None, None, Vec::new());
        while let Some(field) = self.file.next(&mut rest)? {
            match (field.number, field.bytes()) {
                (1, Some(message)) => values = Some(TensorFields::read(&mut self.file, message)?),
                (2, Some(message)) => indices = Some(TensorFields::read(&mut self.file, message)?),
                (3, _) => TensorFields::read_dims(&mut self.file, &field, &mut dims)?,
                _ => {}
            }
        }
        let (Some(values), Some(indices)) = (values, indices) else {
            return Err(AnamnesisError::parse("a sparse tensor has no values or no indices"));
        };
        let name = self.file.text(values.name.clone())?;
        Ok((name, TensorData::Sparse(Box::new((values, indices, dims)))))
    }

    /// Walks over a `NodeProto`: first its own fields, which may come in any order, then the
    /// attributes.
    fn node(&mut self, message: Range<u64>, scope: usize, depth: u64) -> Result<()> {
        let node = self.node_fields(message.clone())?;
        let is_constant = node.op == "Constant" && is_standard(&node.domain);
        let (mut integers, first) = (Vec::new(), self.found.len());
        let kept = self.use_of(&node)?;
        let mut rest = message;
        while let Some(field) = self.file.next(&mut rest)? {
            let (5, Some(attribute)) = (field.number, field.bytes()) else {
                continue;
            };
            if let Some(number) = self.attribute(attribute, &node, is_constant, scope, depth)?
                && kept.is_some()
                && integers.len() < MAX_INPUTS
            {
                integers.push(number);
            }
            if is_constant && self.found.len() > first + 1 {
                return Err(AnamnesisError::parse("a Constant node has two values"));
            }
        }
        if let Some(kept) = kept {
            self.budget.tables(0, 1, 0)?;
            let inputs = node.inputs.iter();
            let inputs = inputs.map(|input| self.file.text(input.clone()));
            let inputs = inputs.collect::<Result<_>>()?;
            let output = self.file.text(node.output.clone())?;
            let op = node.op;
            // Nodes that say the same may say it in another order.
            integers.sort_unstable();
            self.nodes
                .push(QuantNode { op, kept, scope, inputs, output, integers });
        }
        Ok(())
    }

    /// What `node` may tell of codes. Of products only those with something that is called a scale
    /// do.
    fn use_of(&mut self, node: &NodeFields) -> Result<Option<NodeUse>> {
        let found = node_use(&node.op, &node.domain);
        if found != Some(NodeUse::Product) {
            return Ok(found);
        }
        for input in &node.inputs {
            if self.file.text(input.clone())?.ends_with(SCALE) {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn node_fields(&mut self, mut rest: Range<u64>) -> Result<NodeFields> {
        let mut node = NodeFields::default();
        let (mut inputs, mut outputs) = (0, 0);
        let mut lost = None;
        while let Some(field) = self.file.next(&mut rest)? {
            let Some(text) = field.bytes() else {
                continue;
            };
            match field.number {
                1 => {
                    if let Some(name) = self.lost_name(&text)? {
                        self.lost.entry(name.clone()).or_default().count += 1;
                        if inputs == 1 {
                            lost = Some(name);
                        }
                    }
                    inputs += 1;
                    if node.inputs.len() < MAX_INPUTS {
                        node.inputs.push(text);
                    }
                }
                2 => {
                    if outputs == 0 {
                        node.output = text;
                    }
                    outputs += 1;
                }
                3 => node.name = text,
                4 => node.op = self.file.text(text)?,
                7 => node.domain = self.file.text(text)?,
                _ => {}
            }
        }
        if let Some(lost) = lost
            && let Some(product) = self.product(&node)?
        {
            self.lost.entry(lost).or_default().node = Some(product);
        }
        Ok(node)
    }

    /// The name of a `MatMul`, or of what onnxruntime's tools make of one, as [`LostUse`] has it.
    fn product(&mut self, node: &NodeFields) -> Result<Option<(String, bool)>> {
        let is_transposed = match (&*node.op, is_standard(&node.domain)) {
            ("MatMul" | "MatMulInteger", true) => true,
            ("MatMulNBits", false) => false,
            _ => return Ok(None),
        };
        let name = self.file.text(node.name.clone())?;
        let ends = ["_quant", "_Q2", "_Q4", "_Q8"];
        let before = ends.iter().find_map(|end| name.strip_suffix(end));
        Ok(Some((before.unwrap_or(&name).to_owned(), is_transposed)))
    }

    /// The text in `range`, if it is a name that the exporter has made up.
    fn lost_name(&mut self, range: &Range<u64>) -> Result<Option<String>> {
        let len = range.end - range.start;
        let lost = LOST.len() as u64;
        if !(lost..lost + 32).contains(&len)
            || !self.file.bytes(range.clone())?.starts_with(LOST.as_bytes())
        {
            return Ok(None);
        }
        self.budget.tables(0, 1, 0)?;
        self.file.text(range.clone()).map(Some)
    }

    /// Walks over an `AttributeProto`. Returns its name and its number, if it is an integer.
    fn attribute(
        &mut self,
        message: Range<u64>,
        node: &NodeFields,
        is_constant: bool,
        scope: usize,
        depth: u64,
    ) -> Result<Option<(String, i64)>> {
        let (mut name, mut number, mut has_graphs) = (0..0, None, false);
        let mut rest = message.clone();
        while let Some(field) = self.file.next(&mut rest)? {
            match (field.number, field.bytes(), field.varint()) {
                (1, Some(text), _) => name = text,
                (3, _, Some(value)) => number = Some(value as i64),
                (6 | 11, Some(_), _) => has_graphs = true,
                _ => {}
            }
        }
        let name = self.file.text(name)?;
        if has_graphs {
            self.subgraphs(message, node, &name, scope, depth)?;
        } else if is_constant {
            self.constant(message, &name, node, scope)?;
        }
        Ok(number.map(|number| (name, number)))
    }

    /// Walks over the graphs of the attribute `name`.
    fn subgraphs(
        &mut self,
        message: Range<u64>,
        node: &NodeFields,
        name: &str,
        scope: usize,
        depth: u64,
    ) -> Result<()> {
        let called = match node.name.is_empty() {
            true => node.output.clone(),
            false => node.name.clone(),
        };
        let label = format!("{}.{name}", self.file.text(called)?);
        let mut rest = message;
        while let Some(field) = self.file.next(&mut rest)? {
            if let (6 | 11, Some(graph)) = (field.number, field.bytes()) {
                let inner = self.add_scope(Some(scope), label.clone())?;
                self.graph(graph, inner, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Adds the value of a `Constant` node, which its attribute `name` is. Texts are no tensors.
    fn constant(
        &mut self,
        message: Range<u64>,
        name: &str,
        node: &NodeFields,
        scope: usize,
    ) -> Result<()> {
        let output = self.file.text(node.output.clone())?;
        let data = match name {
            // Nothing reads an output without a name.
            _ if output.is_empty() => return Ok(()),
            "value" | "sparse_value" => match self.value(message)? {
                Some(data) => data,
                None => return Ok(()),
            },
            "value_float" | "value_floats" | "value_int" | "value_ints" => {
                TensorData::Dense(TensorFields::of_attribute(message, name))
            }
            _ => return Ok(()),
        };
        self.add(output, scope, data)
    }

    /// The tensor of an attribute; `None` if it is that of a function, whose callers have it.
    fn value(&mut self, mut rest: Range<u64>) -> Result<Option<TensorData>> {
        while let Some(field) = self.file.next(&mut rest)? {
            match (field.number, field.bytes()) {
                (5, Some(message)) => {
                    let tensor = TensorFields::read(&mut self.file, message)?;
                    return Ok(Some(TensorData::Dense(tensor)));
                }
                (22, Some(message)) => return Ok(Some(self.sparse(message)?.1)),
                _ => {}
            }
        }
        Ok(None)
    }
}
