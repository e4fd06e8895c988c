//! Core ML: a model is one message of Protocol Buffers, alone (`.mlmodel`) or in a package
//! (`.mlpackage`), in which a program has its long constants in another file. They are not read here.
//!
//! - `spec`: what reads the message. `value`: values, and where their elements are. `weight`: adds a weight
//!   with what decodes it. `collect`: all weights, and their names.
//! - `program`: programs. `constants`: the constants of one. `compressed`: those that are made of others.
//! - `network`: neural networks. `layers`: their weights, in tables. `parameters`: what a weight is.
//!
//! Format: `mlmodel/format/Model.proto`, `MIL.proto` and `NeuralNetwork.proto` of coremltools.

mod collect;
mod compressed;
mod constants;
mod layers;
mod network;
mod parameters;
mod program;
mod spec;
mod value;
mod weight;

use std::ops::Range;
use std::path::Path;

use self::collect::CoreMlWeights;
use self::spec::Spec;
use crate::limits::{Budget, cap};
use crate::source::Source;
use crate::{AnamnesisError, ParsedModel, Result};

/// Most models inside of each other.
const MAX_DEPTH: u64 = 8;

/// Kinds of models that have no tensors, by the numbers of their fields, as the format calls them.
const OTHER_KINDS: &[(u64, &str)] = &[
    (300, "glmRegressor"),
    (301, "supportVectorRegressor"),
    (302, "treeEnsembleRegressor"),
    (304, "bayesianProbitRegressor"),
    (400, "glmClassifier"),
    (401, "supportVectorClassifier"),
    (402, "treeEnsembleClassifier"),
    (404, "kNearestNeighborsClassifier"),
    (501, "itemSimilarityRecommender"),
    (555, "customModel"),
    (556, "linkedModel"),
    (560, "classConfidenceThresholding"),
    (600, "oneHotEncoder"),
    (601, "imputer"),
    (602, "featureVectorizer"),
    (603, "dictVectorizer"),
    (604, "scaler"),
    (606, "categoricalMapping"),
    (607, "normalizer"),
    (609, "arrayFeatureExtractor"),
    (610, "nonMaximumSuppression"),
    (900, "identity"),
    (2000, "textClassifier"),
    (2001, "wordTagger"),
    (2002, "visionFeaturePrint"),
    (2003, "soundAnalysisPreprocessing"),
    (2004, "gazetteer"),
    (2005, "wordEmbedding"),
    (2006, "audioFeaturePrint"),
    (3000, "serializedModel"),
];

/// Reads a model.
///
/// # Errors
/// `Parse` if it is malformed, or data is not where it says; `Unsupported` for models without tensors,
/// and if data is in another file and the model was not given by a path; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let mut weights = CoreMlWeights::new(Spec::new(source, path, budget));
    let len = weights.spec.file.len;
    budget.tables(0, 0, len)?;
    let mut kinds = ModelKinds::default();
    model(&mut weights, 0..len, "", 1, &mut kinds)?;
    match kinds.other {
        // A pipeline mostly has some of these around its networks.
        Some(other) if !kinds.has_tensors => {
            let what = format!("it is a {other}, which has no tensors");
            Err(AnamnesisError::unsupported("Core ML", what))
        }
        _ if !kinds.has_tensors => Err(AnamnesisError::parse("Core ML: it has no model")),
        _ => weights.finish(),
    }
}

/// What models a file has.
#[derive(Default)]
struct ModelKinds {
    has_tensors: bool,
    /// One without tensors.
    other: Option<&'static str>,
}

/// Reads a `Model`, whose weights have names that begin with `before`.
fn model(
    weights: &mut CoreMlWeights<'_>,
    mut rest: Range<u64>,
    before: &str,
    depth: u64,
    kinds: &mut ModelKinds,
) -> Result<()> {
    cap("COREML_MAX_DEPTH", depth, MAX_DEPTH, "models inside of each other")?;
    while let Some(field) = weights.spec.file.next(&mut rest)? {
        if let (1, Some(version), true) = (field.number, field.varint(), depth == 1) {
            weights
                .spec
                .add_metadata("coreml.specification_version", version.to_string())?;
        }
        let Some(message) = field.bytes() else {
            continue;
        };
        match field.number {
            2 if depth == 1 => description(&mut weights.spec, message)?,
            200 | 201 => {
                let mut inner = message;
                while let Some(field) = weights.spec.file.next(&mut inner)? {
                    if let (1, Some(message)) = (field.number, field.bytes()) {
                        pipeline(weights, message, before, depth, kinds)?;
                    }
                }
            }
            202 => pipeline(weights, message, before, depth, kinds)?,
            303 | 403 | 500 => {
                kinds.has_tensors = true;
                network::read(weights, message, before, 1)?;
            }
            502 => {
                kinds.has_tensors = true;
                program::read(weights, message, before)?;
            }
            number => {
                let other = OTHER_KINDS.iter().find(|(other, _)| *other == number);
                kinds.other = kinds.other.or(other.map(|(_, name)| *name));
            }
        }
    }
    Ok(())
}

/// Reads a `Pipeline`: several models, whose names may tell them apart.
fn pipeline(
    weights: &mut CoreMlWeights<'_>,
    message: Range<u64>,
    before: &str,
    depth: u64,
    kinds: &mut ModelKinds,
) -> Result<()> {
    let (mut models, mut names) = (Vec::new(), Vec::new());
    let mut rest = message;
    while let Some(field) = weights.spec.file.next(&mut rest)? {
        match (field.number, field.bytes()) {
            (1, Some(message)) => models.push(message),
            (2, Some(name)) => names.push(weights.spec.file.text(name)?),
            _ => continue,
        }
        weights.spec.budget.tables(0, 1, 0)?;
    }
    for (i, message) in models.into_iter().enumerate() {
        let name = names.get(i).filter(|name| !name.is_empty());
        let before = match name {
            Some(name) => format!("{before}{name}."),
            None => format!("{before}{i}."),
        };
        model(weights, message, &before, depth + 1, kinds)?;
    }
    Ok(())
}

/// Reads what a `ModelDescription` says of the model.
fn description(spec: &mut Spec<'_>, mut rest: Range<u64>) -> Result<()> {
    while let Some(field) = spec.file.next(&mut rest)? {
        let (100, Some(mut metadata)) = (field.number, field.bytes()) else {
            continue;
        };
        while let Some(field) = spec.file.next(&mut metadata)? {
            let Some(text) = field.bytes() else {
                continue;
            };
            let key = match field.number {
                1 => "coreml.description",
                2 => "coreml.version",
                3 => "coreml.author",
                4 => "coreml.license",
                100 => {
                    let (key, value) = spec.file.entry(text)?;
                    spec.add_metadata(&key, value)?;
                    continue;
                }
                _ => continue,
            };
            let text = spec.file.text(text)?;
            spec.add_metadata(key, text)?;
        }
    }
    Ok(())
}

/// The error for a model that contradicts itself.
fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("Core ML: {what}"))
}
