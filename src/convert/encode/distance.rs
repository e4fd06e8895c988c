//! The error that encoding introduced, from the sums over all tiles.

use crate::convert::output::BoxedOutput;
use crate::convert::plan::Plan;
use crate::convert::report::{Distance, Errors, TensorErrors};
use crate::error::InTensor;
use crate::lethe::kernels::distance::DistanceSums;
use crate::sort::sort_by;

/// Number of tensors with the largest errors that a report names.
const WORST: usize = 5;

/// The error over all encoded tensors of `plan`, and the tensors with the largest errors. Tensors
/// that are not done, because another part makes them, do not count. `None` if no value was
/// compared.
pub(in crate::convert) fn distance(plan: &Plan<'_>) -> Option<Distance> {
    let (mut all, mut tensors) = (DistanceSums::default(), Vec::new());
    for output in &plan.outputs {
        if let Some(encoding) = output.body.encoding()
            && let Some(sums) = encoding.distance.total_of(encoding.input.cut.tiles())
        {
            all += sums;
            tensors.push(TensorErrors { name: encoding.input.name.clone(), errors: errors(&sums) });
        }
    }
    sort_by(&mut tensors, |a, b| b.errors.relative.total_cmp(&a.errors.relative));
    tensors.truncate(WORST);
    (all.count > 0).then(|| Distance { all: errors(&all), worst: tensors })
}

/// The warnings of the encoders of `plan`, with the names of their tensors.
pub(in crate::convert) fn warnings(plan: &Plan<'_>) -> Vec<String> {
    let warning = |output: &BoxedOutput<'_>| {
        let encoding = output.body.encoding()?;
        Some(format!("{}: {}", InTensor(&encoding.input.name), encoding.encoder.warning()?))
    };
    plan.outputs.iter().filter_map(warning).collect()
}

fn errors(sums: &DistanceSums) -> Errors {
    let n = (sums.count as f64).max(1.0);
    Errors {
        values: sums.count,
        mean_absolute: sums.absolute / n,
        rmse: (sums.square / n).sqrt(),
        maximum: f64::from(sums.largest),
        relative: if sums.norm > 0.0 {
            (sums.square / sums.norm).sqrt()
        } else {
            0.0
        },
    }
}
