//! Layers without experts in front of those with some, which `mlp_layer_types` names.

use serde_json::{Map, Value};

use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{Fields, LAYERS, wrong};
use crate::families::engine::rows::TensorShapes;

/// Field of the number of such layers.
pub(super) const DENSE: &str = "first_k_dense_replace";
pub(super) const SPARSE_KINDS: &str = "mlp_layer_types";

/// The list for `dense` of `layers` layers.
fn kinds(dense: usize, layers: usize) -> Value {
    let kind = |layer| if layer < dense { "dense" } else { "sparse" };
    (0..layers).map(kind).collect()
}

/// The layers without experts of such a list.
///
/// # Errors
/// `Parse` if one of them is not in front.
pub(super) fn in_front(kinds: &[Value]) -> Result<usize> {
    let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
    match kinds[dense..].iter().all(|kind| kind == "sparse") {
        true => Ok(dense),
        false => Err(wrong(SPARSE_KINDS, "a layer behind one with experts has none")),
    }
}

/// Counts the layers that the list names, if there is one.
pub(super) fn counted(fields: &mut Fields) -> Result<()> {
    let Some(found) = fields.0.get(SPARSE_KINDS) else {
        return Ok(());
    };
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    let list = found.as_array().filter(|list| list.len() == layers);
    let dense = list.and_then(|list| in_front(list).ok()).ok_or_else(|| {
        let what = format!("it is no list of `dense` and then `sparse` for {layers} layers");
        wrong(SPARSE_KINDS, what)
    })?;
    fields.0.insert(DENSE.to_owned(), dense.into());
    Ok(())
}

/// Names the layers that are counted.
pub(super) fn named(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let dense = config.remove(DENSE).and_then(|n| n.as_u64()).unwrap_or(0);
    config.insert(SPARSE_KINDS.to_owned(), kinds(dense as usize, dims.layers));
    Ok(())
}

/// Counts the layers in front of the first with a router, of files that do not say it.
pub(super) fn of_tensors(config: &mut Map<String, Value>, shapes: &TensorShapes<'_>) -> Result<()> {
    let layers = config.get(LAYERS[0]).and_then(Value::as_u64).unwrap_or(0);
    let has_router =
        |layer: &u64| shapes.contains_key(format!("blk.{layer}.ffn_gate_inp.weight").as_str());
    let dense = (0..layers.min(MOST_LAYERS.into()))
        .find(has_router)
        .unwrap_or(layers);
    config.insert(DENSE.to_owned(), dense.into());
    Ok(())
}
