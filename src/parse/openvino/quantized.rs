//! Constants that are codes of a quantized weight: the graph converts them to floats, subtracts zero
//! points, multiplies by scales, and gives the values another shape.

use std::collections::HashMap;

use super::graph::{Constant, Net, NetGraph, NetLayer};
use super::wrong;
use crate::model::{GraphCodes, GraphRole, TensorInfo};
use crate::{Dtype, ParsedModel, Result};

/// Most layers from codes to their scale, and from another input of these to its constant.
const MAX_STEPS: usize = 6;

/// What the graph says of codes: numbers of constants, and the shape of the values.
struct Chain {
    scale: usize,
    zero_point: Option<usize>,
    codebook: Option<usize>,
    shape: Option<Vec<usize>>,
}

/// Fills in the role of each tensor of `contents`, whose places `places` are by graph and constant.
pub(super) fn mark(
    contents: &mut ParsedModel,
    net: &Net,
    places: &HashMap<(usize, usize), usize>,
) -> Result<()> {
    let tensors = &contents.tensors;
    let mut roles = vec![GraphRole::Plain; tensors.len()];
    let mut companions = vec![0; tensors.len()];
    let mut has_codes = false;
    for (g, graph) in net.graphs.iter().enumerate() {
        for (i, constant) in graph.constants.iter().enumerate() {
            let Some(&codes) = places.get(&(g, i)) else {
                continue;
            };
            if !is_narrow(&tensors[codes]) {
                continue;
            }
            let chain = match graph.chain(constant) {
                Some(Some(chain)) => chain,
                None if constant.element_type != "nf4" => continue,
                Some(None) if tensors[codes].dtype.is_integer() => continue,
                _ => {
                    roles[codes] = GraphRole::Codes(Box::new(GraphCodes::new("Multiply")));
                    continue;
                }
            };
            let find = |i: usize| {
                let place = places.get(&(g, i)).copied();
                let lost = || wrong("no tensor can hold its scales");
                place.ok_or_else(|| lost().in_tensor(&tensors[codes].name))
            };
            let scale = find(chain.scale)?;
            let zero_point = chain.zero_point.map(find).transpose()?;
            let codebook = chain.codebook.map(find).transpose()?;
            for part in [Some(scale), zero_point, codebook].into_iter().flatten() {
                companions[part] += 1;
            }
            let name = |place: usize| tensors[place].name.clone();
            let op = if constant.element_type == "nf4" {
                "NF4"
            } else {
                "Multiply"
            };
            has_codes = true;
            roles[codes] = GraphRole::Codes(Box::new(GraphCodes {
                scale: Some(name(scale)),
                zero_point: zero_point.map(name),
                codebook: codebook.map(name),
                shape: chain.shape,
                ..GraphCodes::new(op)
            }));
        }
    }
    for (i, role) in roles
        .iter_mut()
        .enumerate()
        .filter(|(_, role)| **role == GraphRole::Plain)
    {
        let t = &tensors[i];
        let may_be_codes = t.dtype.is_integer() && is_narrow(t) && t.shape.len() > 1;
        match companions[i] {
            0 if may_be_codes && (has_codes || t.dtype.bits() < 8) => {
                *role = GraphRole::Codes(Box::new(GraphCodes::new("")));
            }
            0 => {}
            uses => *role = GraphRole::Companion { is_shared: uses > 1 },
        }
    }
    contents.graph = roles;
    Ok(())
}

/// Whether a tensor has several integers or floats of at most eight bits, but for exponents of scales.
fn is_narrow(t: &TensorInfo) -> bool {
    let may_be_codes = !matches!(t.dtype, Dtype::Bool | Dtype::F8E8M0);
    t.dtype.bits() <= 8 && may_be_codes && t.shape.iter().product::<usize>() > 1
}

impl NetGraph {
    /// What the layers behind `codes` make of it; `None` if they multiply it by nothing, and `None` in it if
    /// that is no constant.
    fn chain(&self, codes: &Constant) -> Option<Option<Chain>> {
        let mut layer = &self.layers[codes.layer];
        let (mut zero_point, mut codebook, mut has_floats) = (None, None, false);
        for _ in 0..MAX_STEPS {
            let (next, input) = self.only_output(layer)?;
            match (next.kind.as_str(), input) {
                ("Convert", _) => has_floats = true,
                ("Subtract", 0) if zero_point.is_none() && has_floats => {
                    zero_point = Some(self.constant(next, 1)?);
                }
                ("Gather", 1) if codebook.is_none() && zero_point.is_none() => {
                    codebook = Some(self.constant(next, 0)?);
                }
                ("Multiply", 0 | 1) if has_floats => {
                    let Some(scale) = self.constant(next, 1 - input) else {
                        return Some(None);
                    };
                    let reshaped = self.only_output(next);
                    let reshaped = reshaped.filter(|(next, i)| next.kind == "Reshape" && *i == 0);
                    let shape = reshaped.and_then(|(next, _)| next.dims.clone());
                    let of =
                        |dims: &[usize]| dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
                    let shape = shape.filter(|shape| of(shape) == of(&codes.shape));
                    return Some(Some(Chain { scale, zero_point, codebook, shape }));
                }
                _ => return None,
            }
            layer = next;
        }
        None
    }

    /// The constant that input `i` of `layer` is, perhaps in another type.
    fn constant(&self, layer: &NetLayer, i: usize) -> Option<usize> {
        let mut layer = self.input(layer, i)?;
        for _ in 0..MAX_STEPS {
            if layer.constant.is_some() {
                return layer.constant;
            }
            layer = match layer.kind.as_str() {
                "Convert" => self.input(layer, 0)?,
                _ => return None,
            };
        }
        None
    }
}
