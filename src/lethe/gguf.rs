//! Types of the tensors of a GGUF file: by the mixture of a llama.cpp file type, or the same for
//! all.
//!
//! - `fit`: whether an importance matrix is that of the model.
//! - `mixture`: the ggml type of each tensor, by llama.cpp's rules.
//! - [`Ggml`] in `ggml.rs`: the encoder of one type.

mod fit;
pub(crate) mod mixture;

use std::collections::HashMap;
use std::sync::Arc;

use self::mixture::{Mixture, MixtureTensor, ModelFacts, TypeChoice, TypeOverrides};
use super::ggml::Ggml;
use super::{Forget, Method};
use crate::config::read_small;
use crate::error::{InTensor, counted};
use crate::lethe::decision::{Candidate, Decision, Decisions, TensorFilter, encode};
use crate::lethe::imatrix::Imatrix;
use crate::lethe::kernels::ggml::requires_importance;
use crate::limits::Budget;
use crate::remember::EncodedAs;
use crate::{AnamnesisError, Dtype, ParsedModel, Result, TargetDtype};

/// Decides on the type of each tensor.
///
/// The user's filter comes first: llama.cpp has no such option, so its own reasons to keep a tensor
/// count only where the user did not ask for it.
///
/// # Errors
/// `Unsupported` if a type needs an importance matrix that is not there or if the mixture fits no
/// layer.
pub(crate) fn decide(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    (forget, imatrix): (&Forget, Option<&Arc<Imatrix>>),
    filter: &TensorFilter,
) -> Result<Decisions> {
    // `decide` calls this for schemes without a single method, which are all GGUF file types.
    let Some((file_type, pure)) = forget.scheme.file_type() else {
        return Ok(Decisions { all: vec![], notes: vec![], gguf_keys: vec![] });
    };
    let overrides = TypeOverrides::new(&forget.types)?;
    let mixture =
        Mixture { file_type, overrides: overrides.as_ref(), pure, has_imatrix: imatrix.is_some() };
    let tensors = candidates.iter().map(|candidate| MixtureTensor {
        name: candidate.weight.name,
        dims: candidate.weight.shape,
        dtype: dtype_of(candidate),
    });
    let tensors: Vec<MixtureTensor<'_>> = tensors.collect();
    // Types are chosen for all tensors, also for those that the user excludes: the rules count
    // tensors.
    // Only towers of images and sounds say what is encoded of them.
    let is_tower = candidates
        .iter()
        .any(|candidate| candidate.encoded_as.is_some());
    let facts = if is_tower {
        ModelFacts::of_tower()
    } else {
        read_facts(model)
    };
    let choices = mixture.choose(&facts, &tensors)?;
    let mut methods = Methods { imatrix: imatrix.cloned(), all: HashMap::new() };
    let mut notes = FallbackNotes::default();
    // Choices come in the order of the candidates, whatever the order in which llama.cpp visits
    // them.
    let decisions = candidates.iter().zip(choices).map(|(candidate, choice)| {
        if candidate.encoded_as == Some(EncodedAs::Nothing) {
            let what = "llama.cpp's converter has it in one type, whatever the others";
            return Ok(Decision::Keep(what.to_owned()));
        }
        let dtype = match settle(choice, candidate, filter, file_type.dtype, &mut notes) {
            Ok(dtype) => dtype,
            Err(reason) => return Ok(Decision::Keep(reason)),
        };
        // Only for tensors that are encoded: a matrix need not know the others.
        let decision = encode(&methods.of(dtype), &dtype.to_string(), candidate);
        if matches!(decision, Decision::Encode { .. }) {
            methods.check_importance(&mixture, candidate, dtype)?;
        }
        Ok(decision)
    });
    let all: Vec<Decision> = decisions.collect::<Result<_>>()?;
    if forget.refuses_requantizing {
        require_unquantized(candidates, &all)?;
    }
    let gguf_keys = imatrix.zip(forget.imatrix.as_deref());
    let gguf_keys = gguf_keys.map_or(vec![], |(imatrix, path)| imatrix.gguf_keys(path));
    Ok(Decisions { all, notes: notes.lines(), gguf_keys })
}

/// Why tensors have other types than the rules give: of each reason one tensor and the number of
/// tensors, for a UNet has a hundred tensors with the same.
#[derive(Default)]
struct FallbackNotes(Vec<(String, String, usize)>);

impl FallbackNotes {
    fn add(&mut self, name: &str, reason: String) {
        match self.0.iter_mut().find(|(there, ..)| *there == reason) {
            Some((.., count)) => *count += 1,
            None => self.0.push((reason, name.to_owned(), 1)),
        }
    }

    fn lines(self) -> Vec<String> {
        let line = |(reason, name, count): (String, String, usize)| match count {
            1 => format!("{}: {reason}", InTensor(&name)),
            _ => format!("{count} tensors, e.g. `{name}`: {reason}"),
        };
        self.0.into_iter().map(line).collect()
    }
}

/// Fails if blocks of ggml would be encoded to others, as `llama-quantize` does: what the first
/// encoding lost stays lost, and the second loses more than it would of the original model.
fn require_unquantized(candidates: &[Candidate<'_>], decisions: &[Decision]) -> Result<()> {
    let is_lossy = |(candidate, decision): &(&Candidate<'_>, &Decision)| {
        let is_blocks = candidate.is_quantized && candidate.stored.is_ggml_block();
        is_blocks && matches!(decision, Decision::Encode { label, .. } if !is_float_type(label))
    };
    let mut again = candidates.iter().zip(decisions).filter(is_lossy);
    let Some((first, _)) = again.next() else {
        return Ok(());
    };
    let (n, name, dtype) = (1 + again.count(), first.name, first.stored);
    Err(AnamnesisError::unsupported(
        "quantizing twice",
        format!(
            "{} quantized already, e.g. `{name}` ({dtype}); take the original model, or --allow-requantize",
            counted(n, "tensor")
        ),
    ))
}

/// The type that `candidate` is encoded to, or the reason why it stays as it is. `main` is the type
/// of most tensors.
fn settle(
    choice: TypeChoice,
    candidate: &Candidate<'_>,
    filter: &TensorFilter,
    main: Dtype,
    notes: &mut FallbackNotes,
) -> std::result::Result<Dtype, String> {
    let kept = match &choice {
        TypeChoice::Keep(reason) => Some(reason.clone()),
        TypeChoice::Type { .. } => None,
    };
    // The filter knows nothing of llama.cpp. Its default reason is the mixture's, so that a request
    // overrides that one alone.
    if let Some(reason) = filter.objection(candidate, |_| kept) {
        return Err(reason);
    }
    let dtype = match choice {
        TypeChoice::Type { dtype, note } => {
            if let Some(reason) = note {
                notes.add(candidate.weight.name, reason);
            }
            dtype
        }
        // llama.cpp would keep it, but the user asked for it.
        TypeChoice::Keep(_) => main,
    };
    // Requantizing to the same type would cost accuracy and change no size.
    if dtype == dtype_of(candidate) {
        return Err(format!("it is {dtype}{ALREADY}"));
    }
    Ok(dtype)
}

/// End of the reason of a tensor that has its type before it is encoded.
pub(crate) const ALREADY: &str = " already";

/// The ggml type that `candidate` has already, or the type that it is decoded to. What other
/// schemes store as integers or floats are codes, whose type says nothing about the values.
fn dtype_of(candidate: &Candidate<'_>) -> Dtype {
    let has_ggml_type = !candidate.is_quantized || candidate.stored.is_ggml_block();
    if has_ggml_type {
        candidate.stored
    } else {
        candidate.weight.dtype.dtype()
    }
}

/// The methods of the types that occur in the model. All share one importance matrix.
struct Methods {
    imatrix: Option<Arc<Imatrix>>,
    all: HashMap<Dtype, Arc<dyn Method>>,
}

impl Methods {
    /// Checks that the importance of columns is known, if encoding `candidate` to `dtype` needs it.
    fn check_importance(
        &self,
        mixture: &Mixture<'_>,
        candidate: &Candidate<'_>,
        dtype: Dtype,
    ) -> Result<()> {
        let name = candidate.weight.name;
        if !mixture.requires_imatrix(name, dtype) && !requires_importance(dtype) {
            return Ok(());
        }
        let what = match &self.imatrix {
            None => "takes an importance matrix (--imatrix)",
            Some(imatrix) if imatrix.of_tensor(name, candidate.weight.shape)?.is_none() => {
                "takes importances of its columns, which the importance matrix (--imatrix) lacks"
            }
            Some(_) => return Ok(()),
        };
        Err(AnamnesisError::usage(format!("{}: encoding to {dtype} {what}", InTensor(name))))
    }

    fn of(&mut self, dtype: Dtype) -> Arc<dyn Method> {
        let imatrix = &self.imatrix;
        let make = || Arc::new(Ggml { dtype, imatrix: imatrix.clone() }) as Arc<dyn Method>;
        self.all.entry(dtype).or_insert_with(make).clone()
    }
}

/// Reads the facts that mixtures depend on: from the metadata of a GGUF file, or from `config.json`
/// beside the model. A config that is missing or cannot be read leaves facts unknown, which are
/// then counted from the tensors.
fn read_facts(model: &ParsedModel) -> ModelFacts {
    if let Some(gguf) = model.gguf() {
        return ModelFacts::from_metadata(gguf.metadata());
    }
    // Of a single file the config lies beside it.
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

/// Whether `label`, the name of a type that tensors are encoded to, is one of floats.
fn is_float_type(label: &str) -> bool {
    let found = Dtype::ALL.iter().find(|dtype| dtype.name() == label);
    found.is_some_and(|dtype| TargetDtype::of(*dtype).is_some())
}
