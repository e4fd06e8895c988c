//! The error for a directory that has no weights: what is there in their place.

use std::path::Path;

use super::MAX_NAMED;
use super::shards::is_weights;
use crate::AnamnesisError;
use crate::limits::join_first;
use crate::parse::listing::list;

/// Endings of files of models that are not read, and what they are.
const OTHER_MODELS: &[(&str, &str)] = &[
    ("saved_model.pb", "a SavedModel of TensorFlow, which is not read"),
    (".mlpackage", "a package of Core ML; give that"),
    (
        ".mlmodelc",
        "a compiled model of Core ML, which is not read; give the package that it was made from",
    ),
    (
        "coremldata.bin",
        "a compiled model of Core ML, which is not read; give the package that it was made from",
    ),
];

/// The error for the directory `dir` of `names` without weights; it names subdirectories that have
/// some.
pub(super) fn no_weights(dir: &Path, names: &[String]) -> AnamnesisError {
    let has_weights = |name: &&String| {
        list(&dir.join(name)).is_ok_and(|inner| inner.iter().any(|n| is_weights(n)))
    };
    let below: Vec<&str> = names
        .iter()
        .filter(has_weights)
        .map(String::as_str)
        .collect();
    let is_other = |(ending, _): &&(&str, &str)| names.iter().any(|name| name.ends_with(ending));
    let hint = match OTHER_MODELS.iter().find(is_other) {
        _ if !below.is_empty() && names.iter().any(|name| name == PIPELINE) => {
            format!("; {}", of_pipeline(dir, &below))
        }
        _ if !below.is_empty() => format!("; there are some in {}", join_first(&below, MAX_NAMED)),
        Some((_, what)) => format!("; there is {what}"),
        None => String::new(),
    };
    AnamnesisError::parse(format!(
        "{}: there are no weights in this directory{hint}",
        dir.display()
    ))
}

/// The file of diffusers that lists the components of a pipeline.
const PIPELINE: &str = "model_index.json";

/// What to give in place of the pipeline in `dir`, whose components `below` have weights.
fn of_pipeline(dir: &Path, below: &[&str]) -> String {
    // The component that is quantized and exchanged.
    let main = ["transformer", "unet"];
    let main = main.into_iter().find(|name| below.contains(name));
    let example = dir.join(main.or(below.first().copied()).unwrap_or_default());
    format!(
        "it is a pipeline of diffusers ({PIPELINE}), and each of its components is a model: {}; give one of them, such as `{}`",
        join_first(below, MAX_NAMED),
        example.display()
    )
}
