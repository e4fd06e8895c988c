//! Tables of integers of layers: which experts each token gets. They are I64 in transformers, and I32
//! in GGUF.

use super::dims::Dims;
use super::names::{Place, fill, find};
use super::table::ModelClass;
use crate::error::InTensor;
use crate::model::Tensor;
use crate::remember::layout::assembled::ComputedIntegers;
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::{AnamnesisError, Dtype, Result, TensorRole};

/// Takes the tables of integers out of `items`, tensors of transformers or of GGUF, and makes those
/// of the other side.
///
/// # Errors
/// `Parse` if a table is missing or has another type or shape, or an integer is out of range.
pub(crate) fn take<'m>(
    class: &ModelClass,
    dims: &Dims,
    items: &mut Vec<ResolvedItem<'m>>,
    to_gguf: bool,
) -> Result<Vec<Group<'m>>> {
    let mut made = Vec::new();
    for table in class.traits.integers {
        let (from, to) = match to_gguf {
            true => (table.hf, table.gguf),
            false => (table.gguf, table.hf),
        };
        for layer in 0..dims.layers {
            let place = Place { layer: Some(layer), expert: None };
            let is_it =
                |item: &ResolvedItem<'_>| find(from, without_model(item.name())) == Some(place);
            let name = fill(from, place);
            let refused =
                |what: String| AnamnesisError::parse(format!("{}: {what}", InTensor(&name)));
            match (dims.has(table.need, layer), items.iter().position(is_it)) {
                (Some(true), Some(at)) => {
                    let item = items.remove(at);
                    if to_gguf {
                        let unread = fill(table.unread, place);
                        items.retain(|item| without_model(item.name()) != unread);
                    }
                    let (rows, columns) =
                        (dims.need_size(table.shape[0])?, dims.need_size(table.shape[1])?);
                    let values = values_of(&item, (rows, columns), dims.need_size(table.below)?);
                    let (stored, values) = values.map_err(refused)?;
                    let dtype = if to_gguf { Dtype::I32 } else { Dtype::I64 };
                    let decoder = Box::new(ComputedIntegers { dtype, values });
                    let parts = vec![(TensorRole::Passthrough, stored)];
                    let (name, shape) = (fill(to, place), vec![rows, columns]);
                    made.push(Group::new(name, shape, QuantScheme::Unquantized, parts, decoder));
                }
                (Some(true), None) => return Err(refused("there is none".to_owned())),
                _ => {}
            }
        }
    }
    Ok(made)
}

fn without_model(name: &str) -> &str {
    name.strip_prefix("model.").unwrap_or(name)
}

/// The stored tensor of `item` and its values, or what is wrong with it.
fn values_of<'m>(
    item: &ResolvedItem<'m>,
    (rows, columns): (usize, usize),
    below: usize,
) -> std::result::Result<(Tensor<'m>, Vec<i64>), String> {
    let ResolvedItem::Plain(plain) = item else {
        return Err("it is quantized".to_owned());
    };
    let table = plain.stored;
    if table.shape() != [rows, columns] {
        return Err(format!("its shape is {:?}, not [{rows}, {columns}]", table.shape()));
    }
    let most = rows.saturating_mul(columns).saturating_mul(8) as u64;
    let values = read(&table, most).map_err(|error| error.to_string())?;
    let other = || format!("{} is no type of integers here", table.dtype());
    let values = values.ok_or_else(other)?;
    let outside = |n: &i64| usize::try_from(*n).map_or(true, |n| n >= below);
    match values.iter().copied().find(outside) {
        Some(found) => Err(format!("{found} is no number below {below}")),
        None => Ok((table, values)),
    }
}

/// The integers of `table`, which has at most so many bytes; `None`: it is of another type than I64
/// and I32.
///
/// # Errors
/// Those of reading; `Parse` if it is larger.
pub(crate) fn read(table: &Tensor<'_>, most: u64) -> Result<Option<Vec<i64>>> {
    let bytes = table.part().read_small(most)?;
    Ok(match table.dtype() {
        Dtype::I64 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| i64::from_le_bytes(b))
                .collect(),
        ),
        Dtype::I32 => Some(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| i32::from_le_bytes(b).into())
                .collect(),
        ),
        _ => None,
    })
}
