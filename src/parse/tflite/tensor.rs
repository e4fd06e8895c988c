//! Adds the tensors of a model, with their scales and zero points beside them.

use std::collections::{HashMap, HashSet};

use super::graph::{LiteTensor, SubgraphWalk};
use super::quantized::Quantization;
use super::{names, sparse, wrong};
use crate::limits::Budget;
use crate::model::{GraphCodes, GraphRole, Shape, Skipped, TensorInfo};
use crate::parse::flatbuffer::{FlatBuffer, FlatVector};
use crate::source::Source;
use crate::{Dtype, ParsedModel, Result};

/// Ends of the names of scales and zero points, which the file does not name.
const SCALE: &str = ".scale";
const ZERO_POINT: &str = ".zero_point";

/// Adds what `walk` has found in `source` to `contents`, under names behind `before`.
pub(super) fn add_all(
    contents: &mut ParsedModel,
    walk: SubgraphWalk<'_>,
    source: &Source,
    before: &str,
) -> Result<()> {
    let SubgraphWalk { mut file, budget, found, subgraphs, scales, .. } = walk;
    let names = names::of_tensors(&found, &subgraphs, before)?;
    let known = names.iter().map(String::as_str).collect();
    let companions = Companions { found: &found, names: &names, known, uses: &scales };
    for (t, name) in found.iter().zip(&names) {
        let added = match add(contents, t, name, &mut file, source, budget) {
            Ok(true) => add_role(contents, t, name, &companions, budget),
            other => other.map(|_| ()),
        };
        added.map_err(|error| error.in_tensor(name))?;
    }
    Ok(())
}

/// Adds a tensor, or notes that no tensor can hold it and returns `false`.
fn add(
    contents: &mut ParsedModel,
    t: &LiteTensor,
    name: &str,
    file: &mut FlatBuffer<'_>,
    source: &Source,
    budget: &Budget,
) -> Result<bool> {
    let dtype = match &t.dtype {
        Ok(dtype) => *dtype,
        Err(what) => {
            let skipped = Skipped { name: name.to_owned(), what: what.clone() };
            contents.skipped.push(skipped);
            return Ok(false);
        }
    };
    let (shape, len) = size(&t.dims, dtype)?;
    let stored = t.data.end - t.data.start;
    let (at, offset) = match &t.sparsity {
        Some(sparsity) => {
            let whole = (dtype, &*shape, len);
            let values = sparse::values(file, sparsity, whole, &t.data, source, budget)?;
            contents.sources.push(values);
            (contents.sources.len() - 1, 0)
        }
        None if stored != len => {
            let what = format!("{stored} bytes of data, and its type and shape need {len}");
            return Err(wrong(what));
        }
        None => (0, t.data.start),
    };
    contents
        .tensors
        .push(TensorInfo::plain(name, (dtype, shape), (at, offset, len)));
    Ok(true)
}

/// The shape, and the bytes of so many elements.
fn size(dims: &[i32], dtype: Dtype) -> Result<(Shape, u64)> {
    let shape: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let shape = shape.ok_or_else(|| wrong(format!("a dimension is negative ({dims:?})")))?;
    let bytes = dtype.packed_len(&shape);
    let bytes = bytes.ok_or_else(|| wrong(format!("its size overflows ({dims:?})")))?;
    Ok((shape.into(), bytes))
}

/// The tensors that others may have their scales in.
struct Companions<'a> {
    found: &'a [LiteTensor],
    names: &'a [String],
    /// The names.
    known: HashSet<&'a str>,
    /// How many tensors have those with this subgraph and number.
    uses: &'a HashMap<(usize, u64), usize>,
}

impl Companions<'_> {
    /// Tensor `number` of the subgraph of `t`: it, and its name.
    fn find(&self, t: &LiteTensor, number: u64) -> Result<(&LiteTensor, &str)> {
        let place = self
            .found
            .binary_search_by_key(&(t.subgraph, number), |t| (t.subgraph, t.number));
        let place = place.map_err(|_| wrong("the tensor of its scales has no data"))?;
        Ok((&self.found[place], &self.names[place]))
    }
}

/// Adds the role of the tensor called `name`, which was added last, and its companions.
fn add_role(
    contents: &mut ParsedModel,
    t: &LiteTensor,
    name: &str,
    companions: &Companions<'_>,
    budget: &Budget,
) -> Result<()> {
    let uses = companions.uses.get(&(t.subgraph, t.number));
    let role = match &t.quantization {
        None => match uses {
            None => GraphRole::Plain,
            Some(&uses) => GraphRole::Companion { is_shared: uses > 1 },
        },
        Some(Quantization::Other(what)) => GraphRole::Codes(Box::new(GraphCodes::new(what))),
        Some(Quantization::Axis { scales, zero_points, axis }) => {
            let mut add = |vector: &FlatVector, dtype, end| {
                budget.tables(1, 0, 0)?;
                let name = format!("{name}{end}");
                match companions.known.contains(name.as_str()) {
                    true => Err(wrong(format!("two tensors are called `{name}`"))),
                    false => Ok(add_companion(contents, vector, dtype, name.into())),
                }
            };
            let codes = GraphCodes {
                scale: Some(add(scales, Dtype::F32, SCALE)?),
                zero_point: zero_points
                    .as_ref()
                    .map(|zero| add(zero, Dtype::I64, ZERO_POINT))
                    .transpose()?,
                ..GraphCodes::along(*axis, 0)
            };
            GraphRole::Codes(Box::new(codes))
        }
        Some(Quantization::Blocks { scales, zero_points, block }) => {
            let (scale, scale_name) = companions.find(t, *scales)?;
            let zero = zero_points
                .map(|zero| companions.find(t, zero))
                .transpose()?;
            let codes = GraphCodes {
                scale: Some(scale_name.into()),
                zero_point: zero.map(|(_, name)| name.into()),
                ..GraphCodes::along(axis_of_blocks(&t.dims, &scale.dims, *block)?, *block)
            };
            GraphRole::Codes(Box::new(codes))
        }
    };
    contents.graph.push(role);
    contents.graph.resize(contents.tensors.len(), COMPANION);
    Ok(())
}

const COMPANION: GraphRole = GraphRole::Companion { is_shared: false };

/// Adds the numbers of `vector` as a tensor called `name`, and returns the name.
fn add_companion(
    contents: &mut ParsedModel,
    vector: &FlatVector,
    dtype: Dtype,
    name: Box<str>,
) -> Box<str> {
    contents.tensors.push(TensorInfo::plain(
        name.clone(),
        (dtype, [vector.len as usize]),
        (0, vector.at, vector.len * dtype.byte_size() as u64),
    ));
    name
}

/// The axis along which a tensor of `dims` has blocks of `block` values with scales of `scales`.
fn axis_of_blocks(dims: &[i32], scales: &[i32], block: i64) -> Result<i64> {
    let blocks = |dim: i32| (i64::from(dim) + block - 1) / block;
    let is_axis = |axis: &usize| {
        let mut both = dims.iter().zip(scales).enumerate();
        dims.len() == scales.len()
            && both.all(|(d, (&dim, &scales))| match d == *axis {
                true => i64::from(scales) == blocks(dim),
                false => scales == dim,
            })
    };
    // The last one first: with blocks of one value, all fit.
    let axis = (0..dims.len()).rev().find(is_axis);
    let misfit = || wrong(format!("scales {scales:?} for blocks of {block} do not fit {dims:?}"));
    axis.map(|axis| axis as i64).ok_or_else(misfit)
}
