//! Items of a model as encoders take them.

use crate::convert::encode::dtype_of;
use crate::lethe::{Candidate, WeightInfo};
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::{Dtype, TargetDtype};

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
