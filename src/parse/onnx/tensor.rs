//! Adds a tensor of a graph to the model.

use super::fields::TensorFields;
use super::found::{GraphTensor, TensorData};
use super::names::TensorName;
use super::place::{ElementPlace, ExternalPlaces};
use super::sparse;
use crate::limits::Budget;
use crate::model::{Skipped, TensorInfo};
use crate::parse::external::ExternalFiles;
use crate::source::Source;
use crate::{Dtype, ParsedModel, Result};

/// Adds `tensor` to `contents`, or to those that no tensor can hold.
///
/// # Errors
/// `Parse` if its type, its shape and its data contradict each other; those of other files.
pub(super) fn add(
    contents: &mut ParsedModel,
    tensor: &GraphTensor,
    name: &TensorName,
    source: &Source,
    external: &mut ExternalFiles,
    budget: &Budget,
) -> Result<()> {
    let mut fields = match &tensor.data {
        TensorData::Dense(fields) => fields.clone(),
        TensorData::Sparse(parts) => TensorFields { dims: parts.2.clone(), ..parts.0.clone() },
    };
    let dtype = match fields.dtype() {
        Ok(Dtype::F4) if fields.has_half_byte() => Err("an odd number of FP4 elements".to_owned()),
        dtype => dtype,
    };
    let dtype = match dtype {
        Ok(dtype) => dtype,
        Err(what) => {
            let skipped = Skipped { name: name.text.clone(), what };
            contents.skipped.push(skipped);
            return Ok(());
        }
    };
    fields.count_list(dtype, source)?;
    let (shape, len) = fields.size(dtype)?;
    let mut files = ExternalPlaces { external, contents };
    let place = match &tensor.data {
        TensorData::Dense(_) => fields.place(dtype, len, source, &mut files)?,
        TensorData::Sparse(parts) => {
            let parts = (&parts.0, &parts.1);
            sparse::place(parts, dtype, &shape, source, &mut files, budget)?
        }
    };
    let (source, offset) = match place {
        ElementPlace::Stored { source, offset } => (source, offset),
        ElementPlace::Derived(tensor) => {
            contents.sources.push(Source::Derived(Box::new(tensor)));
            (contents.sources.len() - 1, 0)
        }
    };
    let (shape, strides) = name.of_module(shape);
    contents.tensors.push(TensorInfo {
        strides,
        ..TensorInfo::plain(name.text.as_str(), (dtype, shape), (source, offset, len))
    });
    Ok(())
}
