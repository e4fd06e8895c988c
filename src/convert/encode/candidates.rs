//! Items of a model as encoders take them.

use crate::lethe::{Candidate, WeightInfo};
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::{Dtype, TargetDtype};

/// Element type of an item's values: the type that a group is decoded to, or the stored type of a
/// plain tensor.
pub(super) fn dtype_of(item: &ResolvedItem<'_>, to: TargetDtype) -> TargetDtype {
    match item {
        ResolvedItem::Group(group) => group.keeps.unwrap_or(to),
        ResolvedItem::Plain(t) => TargetDtype::of(t.stored.dtype()).unwrap_or(to),
    }
}

/// Describes an item for [`decide`], in the form of `module` if there is one, or with the shape
/// `transposed`.
pub(super) fn candidate<'a>(
    item: &'a ResolvedItem<'_>,
    (module, transposed): (Option<&'a Group<'_>>, Option<&'a [usize; 2]>),
    to: TargetDtype,
) -> Candidate<'a> {
    let (name, shape, stored) = match item {
        ResolvedItem::Group(group) => {
            let group = module.unwrap_or(group);
            (
                &*group.name,
                &*group.shape,
                group.parts.first().map_or(Dtype::F32, |(_, t)| t.dtype()),
            )
        }
        ResolvedItem::Plain(t) => (t.name(), t.stored.shape(), t.stored.dtype()),
    };
    let weight = WeightInfo {
        name,
        shape: transposed.map_or(shape, |shape| shape),
        dtype: dtype_of(item, to),
    };
    Candidate {
        name: item.name(),
        weight,
        stored,
        encoded_as: item.encoded_as(),
        is_quantized: matches!(item, ResolvedItem::Group(group) if group.scheme != QuantScheme::Unquantized),
    }
}
