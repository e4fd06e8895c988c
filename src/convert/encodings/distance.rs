//! The error that encoding introduced, from the sums over all tiles.

use crate::convert::output::BoxedOutput;
use crate::convert::report::{Distance, Errors, TensorErrors};
use crate::lethe::kernels::distance::DistanceSums;

/// Number of tensors with the largest errors that a report names.
const WORST: usize = 5;

/// The error over all encoded tensors of `outputs`, and the tensors with the largest errors. Tensors
/// that are not done, because another part makes them, do not count. `None` if no value was
/// compared.
pub(in crate::convert) fn distance(outputs: &[BoxedOutput<'_>]) -> Option<Distance> {
    let (mut all, mut tensors) = (DistanceSums::default(), Vec::new());
    for output in outputs {
        if let Some(encoding) = output.body.encoding()
            && let Some(sums) = encoding.distance()
        {
            all += sums;
            tensors.push(TensorErrors { name: encoding.name().to_owned(), errors: errors(&sums) });
        }
    }
    let mut worst = tensors.clone();
    let size = |errors: &Errors| errors.outputs.unwrap_or(errors.relative);
    worst.sort_by(|a, b| size(&b.errors).total_cmp(&size(&a.errors)));
    worst.truncate(WORST);
    (all.count > 0).then(|| Distance { all: errors(&all), worst, tensors })
}

/// The warnings of the encoders of `outputs`, with the names of their tensors.
pub(in crate::convert) fn warnings(outputs: &[BoxedOutput<'_>]) -> Vec<String> {
    let warning = |output: &BoxedOutput<'_>| output.body.encoding()?.warning();
    outputs.iter().filter_map(warning).collect()
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
        cosine: cosine(sums),
        outputs: (sums.outputs.values > 0.0)
            .then(|| (sums.outputs.errors / sums.outputs.values).sqrt()),
    }
}

/// The squares of decoded values are those of values, errors and products.
fn cosine(sums: &DistanceSums) -> f64 {
    let decoded = sums.square - sums.norm + 2.0 * sums.product;
    match (sums.norm * decoded.max(0.0)).sqrt() {
        length if length > 0.0 => (sums.product / length).min(1.0),
        _ if sums.square > 0.0 => 0.0,
        _ => 1.0,
    }
}
