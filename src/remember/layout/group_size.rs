//! How many inputs share a scale in GPTQ's, AWQ's and Marlin's layers: by the config, or by the
//! shapes.

use crate::Result;
use crate::config::Module;
use crate::model::Tensor;
use crate::remember::seam::wrong;

/// Whether the last group of a row may have fewer values than the others.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ShortGroup {
    /// AWQ's packers assert that groups divide the inputs.
    Never,
    /// GPTQ's do not.
    Possible,
    /// An index says the group of each input.
    Indexed,
}

/// The group sizes that quantizers offer.
const USUAL_SIZES: &[usize] = &[16, 32, 64, 128, 256, 512, 1024];

/// The group size: the configured one, or the one implied by the number of groups of `k` input
/// features. Several sizes can fit a ragged number of groups; with an index for each input any of
/// them serves.
pub(crate) fn group_size(
    t: &Tensor<'_>,
    groups: usize,
    k: usize,
    rest: ShortGroup,
    module: &Module<'_>,
) -> Result<usize> {
    if let Some((size, place)) = configured_group(k, module) {
        let is_allowed = |size: usize| match rest {
            ShortGroup::Never => false,
            // Sizes that quantizers offer. Of others a short group is the sign of a number that was
            // changed.
            ShortGroup::Possible | ShortGroup::Indexed => USUAL_SIZES.contains(&size),
        };
        // A zero is what `configured_group` makes of a negative or an absurd size; it must not
        // divide.
        if size > 0
            && k.div_ceil(size) == groups
            && (k.is_multiple_of(size) || size > k || is_allowed(size))
        {
            return Ok(size);
        }
        if !module.uncertain {
            return Err(wrong(
                t,
                format!("{place} says groups of {size} inputs, and {groups} groups cover {k}"),
            ));
        }
    }
    // Two candidates: the size that divides `k`, and a usual power of two whose last group is
    // short. Many sizes fit a ragged count, but quantizers only offer these.
    let exact = k.is_multiple_of(groups).then(|| k / groups);
    let ragged = USUAL_SIZES
        .iter()
        .copied()
        .find(|&p| k.div_ceil(p) == groups && (k.is_multiple_of(p) || rest != ShortGroup::Never));
    match (exact, ragged) {
        (Some(size), None) | (None, Some(size)) => Ok(size),
        // One group covers every input whatever its size is, and an index names the group of each
        // input, so in both cases the candidates decode alike.
        (Some(exact), Some(ragged))
            if exact == ragged || groups == 1 || rest == ShortGroup::Indexed =>
        {
            Ok(exact)
        }
        _ => Err(wrong(t, format!("how {groups} groups divide {k} inputs, no config tells"))),
    }
}

/// The group size in the config, with the place that says it: -1 is all `k` inputs, and 0 stands
/// for a senseless one.
pub(crate) fn configured_group<'c>(k: usize, module: &Module<'c>) -> Option<(usize, &'c str)> {
    let (size, place) = module.int(&["group_size", "q_group_size"])?;
    Some((
        if size == -1 {
            k
        } else {
            usize::try_from(size).unwrap_or(0)
        },
        place,
    ))
}
