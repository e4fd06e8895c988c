//! Types of the tensors of a GGUF file: llama.cpp's mixtures, or one for all.

pub(crate) mod imatrix;
pub(crate) mod mixture;

use std::collections::HashMap;
use std::sync::Arc;

use self::imatrix::Imatrix;
use self::mixture::{Mixture, ModelFacts, Shape};
use super::ggml::Ggml;
use super::{Forget, Method};
use crate::config::read_small;
use crate::forget::choice::{Choice, Choices, Subject, Wishes, encode};
use crate::kernels::lethe::ggml::requires_importance;
use crate::limits::Budget;
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Settles the type of each tensor.
pub(crate) fn choose(
    model: &ParsedModel,
    subjects: &[Subject<'_>],
    forget: &Forget,
    wishes: &Wishes,
) -> Result<Choices> {
    let Some((file_type, pure)) = forget.scheme.file_type() else {
        return Ok(Choices {
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
    let shapes = subjects.iter().map(|s| Shape {
        name: s.weight.name,
        dims: s.weight.shape,
        dtype: dtype_of(s),
    });
    let shapes: Vec<Shape<'_>> = shapes.collect();
    let chosen = mixture.choose(&facts(model), &shapes)?;
    let (mut methods, mut notes) = (
        Methods {
            imatrix,
            all: HashMap::new(),
        },
        Vec::new(),
    );
    let mut choice = |(subject, chosen): (&Subject<'_>, mixture::Choice)| -> Result<Choice> {
        let kept = match &chosen {
            mixture::Choice::Keep(reason) => Some(reason.clone()),
            mixture::Choice::Type { .. } => None,
        };
        if let Some(reason) = wishes.objection(subject, |_| kept) {
            return Ok(Choice::Keep(reason));
        }
        let dtype = match chosen {
            mixture::Choice::Type { dtype, note } => {
                notes.extend(note.map(|note| format!("tensor `{}`: {note}", subject.weight.name)));
                dtype
            }
            // It was asked for.
            mixture::Choice::Keep(_) => file_type.dtype,
        };
        if dtype == dtype_of(subject) {
            return Ok(Choice::Keep(format!("it is {dtype} already")));
        }
        let choice = encode(&methods.of(dtype), &dtype.to_string(), subject);
        if matches!(choice, Choice::Encode { .. }) {
            methods.check(&mixture, subject, dtype)?;
        }
        Ok(choice)
    };
    let all = subjects
        .iter()
        .zip(chosen)
        .map(&mut choice)
        .collect::<Result<_>>()?;
    Ok(Choices { all, notes })
}

/// The type that a tensor has where its blocks are not decoded. What other schemes store as integers or floats are codes.
fn dtype_of(subject: &Subject<'_>) -> Dtype {
    let is_own = !subject.is_group || subject.stored.is_ggml_block();
    if is_own {
        subject.stored
    } else {
        subject.weight.dtype.dtype()
    }
}

/// A method for each type.
struct Methods {
    imatrix: Option<Arc<Imatrix>>,
    all: HashMap<Dtype, Arc<dyn Method>>,
}

impl Methods {
    /// Whether what is known of the columns' importance will do for `subject`.
    fn check(&self, mixture: &Mixture, subject: &Subject<'_>, dtype: Dtype) -> Result<()> {
        let name = subject.weight.name;
        if !mixture.requires_imatrix(name, dtype) && !requires_importance(dtype) {
            return Ok(());
        }
        let what = match &self.imatrix {
            None => "it takes an importance matrix (--imatrix)",
            Some(imatrix) if imatrix.of_tensor(name, subject.weight.shape)?.is_none() => {
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
