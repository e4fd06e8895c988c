//! Types of the tensors of a GGUF file: llama.cpp's mixtures, or one for all.

pub(crate) mod imatrix;
pub(crate) mod mixture;

use std::collections::HashMap;
use std::sync::Arc;

use self::imatrix::Imatrix;
use self::mixture::{Mixture, MixtureTensor, ModelFacts};
use super::ggml::Ggml;
use super::{Forget, Method};
use crate::config::read_small;
use crate::forget::decision::{Candidate, Decision, Decisions, TensorFilter, encode};
use crate::kernels::lethe::ggml::requires_importance;
use crate::limits::Budget;
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Settles the type of each tensor.
pub(crate) fn choose(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    forget: &Forget,
    filter: &TensorFilter,
) -> Result<Decisions> {
    let Some((file_type, pure)) = forget.scheme.file_type() else {
        return Ok(Decisions {
            all: vec![],
            notes: vec![],
        });
    };
    let imatrix = forget
        .imatrix
        .as_deref()
        .map(Imatrix::open)
        .transpose()?
        .map(Arc::new);
    let mixture = Mixture {
        file_type,
        pure,
        has_imatrix: imatrix.is_some(),
    };
    let shapes = candidates.iter().map(|s| MixtureTensor {
        name: s.weight.name,
        dims: s.weight.shape,
        dtype: dtype_of(s),
    });
    let shapes: Vec<MixtureTensor<'_>> = shapes.collect();
    let chosen = mixture.choose(&facts(model), &shapes)?;
    let (mut methods, mut notes) = (
        Methods {
            imatrix,
            all: HashMap::new(),
        },
        Vec::new(),
    );
    let mut choice =
        |(candidate, chosen): (&Candidate<'_>, mixture::TypeChoice)| -> Result<Decision> {
            let kept = match &chosen {
                mixture::TypeChoice::Keep(reason) => Some(reason.clone()),
                mixture::TypeChoice::Type { .. } => None,
            };
            if let Some(reason) = filter.objection(candidate, |_| kept) {
                return Ok(Decision::Keep(reason));
            }
            let dtype = match chosen {
                mixture::TypeChoice::Type { dtype, note } => {
                    notes.extend(
                        note.map(|note| format!("tensor `{}`: {note}", candidate.weight.name)),
                    );
                    dtype
                }
                // It was asked for.
                mixture::TypeChoice::Keep(_) => file_type.dtype,
            };
            if dtype == dtype_of(candidate) {
                return Ok(Decision::Keep(format!("it is {dtype} already")));
            }
            let choice = encode(&methods.of(dtype), &dtype.to_string(), candidate);
            if matches!(choice, Decision::Encode { .. }) {
                methods.check(&mixture, candidate, dtype)?;
            }
            Ok(choice)
        };
    let all = candidates
        .iter()
        .zip(chosen)
        .map(&mut choice)
        .collect::<Result<_>>()?;
    Ok(Decisions { all, notes })
}

/// The type that a tensor has where its blocks are not decoded. What other schemes store as integers or floats are codes.
fn dtype_of(candidate: &Candidate<'_>) -> Dtype {
    let is_own = !candidate.is_quantized || candidate.stored.is_ggml_block();
    if is_own {
        candidate.stored
    } else {
        candidate.weight.dtype.dtype()
    }
}

/// A method for each type.
struct Methods {
    imatrix: Option<Arc<Imatrix>>,
    all: HashMap<Dtype, Arc<dyn Method>>,
}

impl Methods {
    /// Whether what is known of the columns' importance will do for `candidate`.
    fn check(&self, mixture: &Mixture, candidate: &Candidate<'_>, dtype: Dtype) -> Result<()> {
        let name = candidate.weight.name;
        if !mixture.requires_imatrix(name, dtype) && !requires_importance(dtype) {
            return Ok(());
        }
        let what = match &self.imatrix {
            None => "it takes an importance matrix (--imatrix)",
            Some(imatrix) if imatrix.of_tensor(name, candidate.weight.shape)?.is_none() => {
                "the importance matrix does not have it"
            }
            Some(_) => return Ok(()),
        };
        Err(AnamnesisError::unsupported(
            format!("encoding to {dtype}"),
            format!("tensor `{name}`: {what}"),
        ))
    }

    fn of(&mut self, dtype: Dtype) -> Arc<dyn Method> {
        let imatrix = &self.imatrix;
        let make = || {
            Arc::new(Ggml {
                dtype,
                imatrix: imatrix.clone(),
            }) as Arc<dyn Method>
        };
        self.all.entry(dtype).or_insert_with(make).clone()
    }
}

/// What the mixtures want to know of the model.
fn facts(model: &ParsedModel) -> ModelFacts {
    if let Some(gguf) = model.gguf() {
        return ModelFacts::from_metadata(gguf.metadata());
    }
    let directory = match &model.directory {
        Some(directory) => Some(directory.path.as_path()),
        None => model.path().and_then(std::path::Path::parent),
    };
    let budget = Budget::new(&model.limits);
    let text = directory.and_then(|directory| {
        read_small(&directory.join("config.json"), &budget)
            .ok()
            .flatten()
    });
    let root = text
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    ModelFacts::from_config(&root)
}
