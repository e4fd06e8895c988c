//! [`Side`]: a model of a comparison, with the tensors that are compared.
//!
//! Models of one program have the names that they have. The same model as transformers and as
//! llama.cpp or mlx-lm store it has other names, shapes and orders of rows: both are compared as
//! transformers has them.

#[cfg(feature = "models")]
use std::collections::HashSet;

use crate::convert::asked::Asked;
#[cfg(feature = "models")]
use crate::convert::items_of_whole;
use crate::remember::ResolvedItem;
use crate::report::diff::DiffOptions;
#[cfg(feature = "models")]
use crate::{AnamnesisError, ConvertOptions, ModelScope};
use crate::{Conversion, ParsedModel, Result};

/// The name of a tensor in the language model alone: classes with images, and classes with a head,
/// have it below modules of their own.
pub(super) fn name_in_class(name: &str) -> String {
    let name = name.replacen("language_model.", "", 1);
    let outer = ["model.", "transformer."];
    let inner = outer.iter().find_map(|outer| name.strip_prefix(outer));
    inner.map_or(name.clone(), str::to_owned)
}

/// What is said of two models that are compared as transformers has them.
#[cfg(feature = "models")]
const NOTE: &str = "A and B are of different programs: tensors are compared under the names of transformers, by shapes and values alone";

/// The output tensors of a model, and the items that they are made of.
pub(super) struct Side<'m> {
    pub plan: Conversion<'m>,
    pub items: Vec<ResolvedItem<'m>>,
}

impl<'m> Side<'m> {
    /// The tensors as they are called in the model.
    ///
    /// # Errors
    /// The first tensor that is asked for and cannot be decoded.
    pub(super) fn as_stored(
        model: &'m ParsedModel,
        options: &DiffOptions,
        asked: &Asked,
    ) -> Result<Self> {
        let plan = model.plan(options.conversion())?;
        let (resolution, _) = model.resolve().of_asked(|name| asked.has(name))?;
        Ok(Self { plan, items: resolution.items })
    }
}

/// Both models under the names of transformers, if they are of different programs and have more
/// names in common then; `None`: both are compared as they are stored. A note says what was done,
/// or why it could not be.
///
/// # Errors
/// The errors of reading.
#[cfg(feature = "models")]
pub(super) fn as_of_transformers<'m>(
    [a, b]: [&'m ParsedModel; 2],
    options: &DiffOptions,
) -> Result<(Option<[Side<'m>; 2]>, Option<String>)> {
    if a.is_gguf() == b.is_gguf() && (a.is_gguf() || is_of_mlx(a) == is_of_mlx(b)) {
        return Ok((None, None));
    }
    let side = |model: &'m ParsedModel| {
        let mut plan = ConvertOptions::for_values(&options.run);
        plan.single_file = model.is_gguf();
        plan.scope = match model.is_gguf() {
            true => ModelScope::Model,
            false => ModelScope::Auto,
        };
        Ok(Side { items: items_of_whole(model, &plan)?, plan: model.plan(plan)? })
    };
    let stored = [a, b].map(|model| model.resolve().items);
    let in_common_stored = in_common([&stored[0], &stored[1]]);
    match side(a).and_then(|a| Ok([a, side(b)?])) {
        Ok(named) => {
            let [of_a, of_b] = &named;
            let in_common = in_common([&of_a.items, &of_b.items]);
            let is_closer = in_common > 0 && in_common >= in_common_stored;
            Ok(if is_closer {
                (Some(named), Some(NOTE.to_owned()))
            } else {
                (None, None)
            })
        }
        // A GGUF file of tensors alone, a class that is not known, a model that contradicts its
        // config.
        Err(error @ (AnamnesisError::Unsupported { .. } | AnamnesisError::Parse { .. })) => {
            let note = format!(
                "they are compared as they are stored, for the names of transformers are not to be had: {error}"
            );
            Ok((None, (in_common_stored == 0).then_some(note)))
        }
        Err(error) => Err(error),
    }
}

/// Number of names that both have.
#[cfg(feature = "models")]
fn in_common([a, b]: [&[ResolvedItem<'_>]; 2]) -> usize {
    let names: HashSet<String> = a.iter().map(|item| name_in_class(item.name())).collect();
    b.iter()
        .filter(|item| names.contains(&name_in_class(item.name())))
        .count()
}

#[cfg(not(feature = "models"))]
pub(super) fn as_of_transformers<'m>(
    _models: [&'m ParsedModel; 2],
    _options: &DiffOptions,
) -> Result<(Option<[Side<'m>; 2]>, Option<String>)> {
    Ok((None, None))
}

/// Whether mlx-lm wrote the model.
#[cfg(feature = "models")]
fn is_of_mlx(model: &ParsedModel) -> bool {
    let format = model.metadata().get("format");
    model.directory.is_some() && format.is_some_and(|format| format == "mlx")
}
