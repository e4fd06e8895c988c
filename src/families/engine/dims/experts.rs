//! Numbers of experts that contradict each other.

use crate::Result;
use crate::families::engine::fields::{EXPERTS_USED, Fields, wrong};

/// Fails unless a model of `experts` experts can use as many of them as `fields` say, and they can
/// be in such groups.
pub(super) fn check_experts(fields: &Fields, experts: usize) -> Result<()> {
    let outside = |names: &[&str], most: usize| -> Result<Option<usize>> {
        let Some(n) = fields.count(names)?.map(|n| n as usize) else {
            return Ok(None);
        };
        match n == 0 || n > most {
            true => Err(wrong(names[0], format!("{n} of {most}"))),
            false => Ok(Some(n)),
        }
    };
    outside(EXPERTS_USED, experts)?;
    // A class may have a name of its own, beside which transformers reads another.
    fields.agreed(EXPERTS_USED)?;
    if let Some(groups) = outside(&["n_group"], experts)? {
        outside(&["topk_group"], groups)?;
        if !experts.is_multiple_of(groups) {
            let what = format!("{groups} groups of {experts} experts");
            return Err(wrong("n_group", what));
        }
    }
    Ok(())
}
