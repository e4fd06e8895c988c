//! Modules that were trained with an adapter and that its base does not have, such as the head of a
//! classifier (`modules_to_save`).

use std::collections::HashSet;

use super::Adapter;
use super::heads::is_head;
use super::peft_tensors::Replacement;
use super::sorted::SortedTensors;
use super::tensor::AdapterTensor;
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::{Result, TargetDtype};

/// Adds the weights of such modules to `items`. Returns a note that names them. A head that is the
/// embedding (`has_tied_head`) is there already.
///
/// # Errors
/// `Unsupported` if a tensor is not F32, F16 or BF16.
pub(super) fn modules<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    adapters: &[(&Adapter, &SortedTensors)],
    has_tied_head: bool,
) -> Result<Option<String>> {
    let mut names: HashSet<String> = items.iter().map(|item| item.name().to_owned()).collect();
    let mut added = vec![];
    for (adapter, sorted) in adapters {
        let Some(config) = adapter.peft() else {
            continue;
        };
        for (weight, &index) in &sorted.replacements {
            let is_new = config.is_copied(weight) && !(has_tied_head && is_head(weight));
            if !is_new || !names.insert(weight.clone()) {
                continue;
            }
            let model = adapter.files.tensors.clone();
            let tensor = AdapterTensor { model, index };
            let (dtype, shape) = (tensor.get().dtype(), tensor.get().shape().to_vec());
            let decoder = Replacement::new(tensor);
            let decoder = decoder.map_err(|e| e.about(adapter.path().display()))?;
            let group = Group {
                keeps: TargetDtype::of(dtype),
                ..Group::new(
                    weight.clone(),
                    shape,
                    QuantScheme::Unquantized,
                    vec![],
                    Box::new(decoder),
                )
            };
            items.push(group.into());
            added.push(format!("`{weight}`"));
        }
    }
    if added.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!(
        "{} of the adapter, which BASE lacks, is added; config.json still names the class of BASE: set the class and the labels that it was trained with, or leave it out with --exclude",
        added.join(", ")
    )))
}
