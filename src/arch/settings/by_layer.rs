//! Which layers cut their activations, as the first ones of Gemma 3n.

use serde_json::Value;

/// The part of activations that are cut.
const PART: f64 = 0.95;
/// How many standard deviations are below that part of a normal distribution.
const DEVIATIONS: f32 = 1.644_853_6;

/// By how many standard deviations each of `layers` layers cuts, of which the first do.
pub(super) fn cuts(first: usize, layers: usize) -> Vec<f32> {
    let cut = |layer| {
        if layer < first {
            DEVIATIONS
        } else {
            f32::NEG_INFINITY
        }
    };
    (0..layers).map(cut).collect()
}

/// The parts that each of `layers` layers cuts.
pub(super) fn pattern(first: usize, layers: usize) -> Value {
    let part = |layer| if layer < first { PART } else { 0.0 };
    (0..layers).map(part).collect()
}

/// Whether `stated` are these parts.
pub(super) fn is_pattern(stated: &Value, first: usize, layers: usize) -> bool {
    let numbers = |value: &Value| -> Option<Vec<f64>> {
        value.as_array()?.iter().map(Value::as_f64).collect()
    };
    numbers(stated).is_some_and(|found| Some(found) == numbers(&pattern(first, layers)))
}
