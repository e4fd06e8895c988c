//! Adds the constants of a model.

use std::collections::{HashMap, HashSet};

use super::graph::{Constant, Net, NetGraph};
use super::wrong;
use crate::model::{Skipped, TensorInfo};
use crate::{Dtype, ParsedModel, Result};

/// Adds the constants of `net` to `contents`, and returns the place of each in its tensors by the
/// numbers of the graph and of the constant.
pub(super) fn add_all(
    contents: &mut ParsedModel,
    net: &Net,
) -> Result<HashMap<(usize, usize), usize>> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let constants = || {
        let graphs = net.graphs.iter().enumerate();
        graphs.flat_map(|(g, graph)| {
            graph
                .constants
                .iter()
                .enumerate()
                .map(move |(i, c)| ((g, i), graph, c))
        })
    };
    for (_, graph, constant) in constants() {
        *counts.entry(name_of(graph, constant)).or_default() += 1;
    }
    let (mut places, mut known) = (HashMap::new(), HashSet::new());
    for (number, graph, constant) in constants() {
        let mut name = name_of(graph, constant);
        if counts.get(&name) != Some(&1) {
            name = format!("{name}.{}", graph.layers[constant.layer].id);
        }
        if !known.insert(name.clone()) {
            return Err(wrong(format!("two constants are called `{name}`")));
        }
        let added = add(contents, constant, &name).map_err(|error| error.in_tensor(&name))?;
        if let Some(place) = added {
            places.insert(number, place);
        }
    }
    Ok(places)
}

/// The name of a constant, if no other has it.
fn name_of(graph: &NetGraph, constant: &Constant) -> String {
    format!("{}{}", graph.before, graph.layers[constant.layer].name)
}

/// Adds a constant; `None` if no tensor can hold it.
fn add(contents: &mut ParsedModel, constant: &Constant, name: &str) -> Result<Option<usize>> {
    let elements = constant
        .shape
        .iter()
        .fold(1usize, |n, &dim| n.wrapping_mul(dim));
    let dtype = dtype(&constant.element_type);
    let Some(dtype) = dtype.filter(|dtype| *dtype != Dtype::F4 || elements.is_multiple_of(2))
    else {
        let what = match constant.element_type.as_str() {
            "string" => "text (string)".to_owned(),
            "f4e2m1" => "an odd number of FP4 elements".to_owned(),
            other => format!("element type `{other:.32}` of OpenVINO"),
        };
        contents
            .skipped
            .push(Skipped { name: name.to_owned(), what });
        return Ok(None);
    };
    let need = dtype.packed_len(&constant.shape);
    let need = need.ok_or_else(|| wrong(format!("its size overflows ({:?})", constant.shape)))?;
    let Constant { offset, len, .. } = *constant;
    if len != need {
        return Err(wrong(format!("{len} bytes of data, and its type and shape need {need}")));
    }
    let have = contents
        .sources
        .get(1)
        .and_then(|data| data.len())
        .unwrap_or(0);
    if offset.checked_add(len).is_none_or(|end| end > have) && len > 0 {
        return Err(wrong(format!("its data is {len} bytes at {offset} of a file of {have}")));
    }
    contents.tensors.push(TensorInfo::plain(
        name,
        (dtype, constant.shape.clone()),
        (contents.sources.len() - 1, if len > 0 { offset } else { 0 }, len),
    ));
    Ok(Some(contents.tensors.len() - 1))
}

/// The element type with a name of OpenVINO. NF4 are integers, whose meaning `quantized` tells.
fn dtype(name: &str) -> Option<Dtype> {
    Some(match name {
        "f64" => Dtype::F64,
        "f32" => Dtype::F32,
        "f16" => Dtype::F16,
        "bf16" => Dtype::BF16,
        "f8e4m3" => Dtype::F8E4M3,
        "f8e5m2" => Dtype::F8E5M2,
        "f8e8m0" => Dtype::F8E8M0,
        "f4e2m1" => Dtype::F4,
        "i64" => Dtype::I64,
        "i32" => Dtype::I32,
        "i16" => Dtype::I16,
        "i8" => Dtype::I8,
        "i4" => Dtype::I4,
        "u64" => Dtype::U64,
        "u32" => Dtype::U32,
        "u16" => Dtype::U16,
        "u8" => Dtype::U8,
        "u4" | "nf4" => Dtype::U4,
        "u2" => Dtype::U2,
        "boolean" => Dtype::Bool,
        _ => return None,
    })
}
