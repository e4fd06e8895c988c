//! The decision for each item of a model whether it is encoded.

use std::sync::Arc;

#[cfg(feature = "models")]
use super::budget::with_types_for;
#[cfg(feature = "models")]
use super::input_scales::ScaledInputs;
use super::layouts::{MetadataKeys, decide_in_layouts};
use super::requested;
use crate::Result;
use crate::convert::encode::count_exponents;
use crate::convert::options::ConvertOptions;
use crate::convert::report::{Encoded, Kept, Report};
use crate::lethe::{Decision, Forget, Imatrix, check};
use crate::model::ParsedModel;
use crate::records::debug;
use crate::remember::conv1d;
use crate::remember::{Resolution, ResolvedItem};

/// Decides for each item whether it is encoded, and reports it. Items that are encoded in another
/// layout than the model's are in `resolution` as they are encoded. Returns also what the metadata of a
/// GGUF file says of the encoding.
pub(super) fn decide_all(
    model: &ParsedModel,
    resolution: &mut Resolution<'_>,
    forget: &Forget,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<(Vec<Decision>, MetadataKeys)> {
    let to = options.run.to;
    let method = forget.scheme.method(to);
    let transposed = match method.is_some_and(|(method, _)| method.transposes_conv1d()) {
        true => conv1d::transposed_shapes(model, resolution),
        false => vec![None; resolution.items.len()],
    };
    check(forget)?;
    let imatrix = forget.imatrix.as_deref().map(Imatrix::open);
    let imatrix = imatrix.transpose()?.map(Arc::new);
    #[cfg(feature = "models")]
    let budgeted = match forget.has_budget() {
        true => {
            let parts = (&mut *resolution, &transposed[..]);
            Some(with_types_for(model, parts, (forget, imatrix.as_ref()), (options, report))?)
        }
        false => None,
    };
    #[cfg(feature = "models")]
    let forget = budgeted.as_ref().unwrap_or(forget);
    #[cfg(feature = "models")]
    let (imatrix, scaled) = match imatrix {
        Some(imatrix) if forget.scales_inputs => {
            let ways = (forget, &imatrix);
            let scaled = find_scaled(model, resolution, &transposed, ways, (options, report))?;
            (Some(Arc::new(scaled.imatrix(&imatrix, resolution)?)), scaled)
        }
        imatrix => (imatrix, ScaledInputs::default()),
    };
    let ways = (forget, imatrix.as_ref());
    let (mut choices, gguf_keys) =
        decide_in_layouts(model, resolution, &transposed, ways, (to, report))?;
    let parts = (&mut *resolution, &mut *choices);
    requested::encode_as_modules(model, parts, ways, (to, report))?;
    #[cfg(feature = "models")]
    scaled.apply(resolution, &mut choices);
    let encoded = resolution.items.iter_mut().zip(transposed).zip(&choices);
    let encoded = encoded.filter(|(_, choice)| matches!(choice, Decision::Encode { .. }));
    for ((item, transposed), _) in encoded {
        if transposed.is_some() {
            conv1d::transpose_item(item);
        } else if let Some(module) = item.take_module() {
            *item = ResolvedItem::from(module);
        }
    }
    count_exponents(&mut choices, resolution, &options.run)?;
    record(&choices, resolution, report);
    requested::note_left(&resolution.items, &choices, forget, report)?;
    Ok((choices, gguf_keys))
}

/// The scales of the inputs of what is encoded.
#[cfg(feature = "models")]
fn find_scaled(
    model: &ParsedModel,
    resolution: &mut Resolution<'_>,
    transposed: &[Option<[usize; 2]>],
    (forget, imatrix): (&Forget, &Arc<Imatrix>),
    (options, report): (&ConvertOptions, &mut Report),
) -> Result<ScaledInputs> {
    // All is decided once more, and noted then, with the importances of scaled inputs.
    let (ways, to) = ((forget, Some(imatrix)), options.run.to);
    let parts = (to, &mut Report::new(to));
    let (choices, _) = decide_in_layouts(model, resolution, transposed, ways, parts)?;
    ScaledInputs::find(model, (resolution, &choices), imatrix, options, report)
}

/// Reports the decisions.
fn record(choices: &[Decision], resolution: &Resolution<'_>, report: &mut Report) {
    for (choice, item) in choices.iter().zip(&resolution.items) {
        let name = item.name().to_owned();
        match choice {
            Decision::Encode { label, .. } => {
                debug!("tensor `{name}`: encoded to {label}");
                let scheme = label.clone();
                report.encoded.push(Encoded { name, scheme });
            }
            Decision::Keep(reason) => {
                debug!("tensor `{name}`: not encoded: {reason}");
                let reason = reason.clone();
                report.kept.push(Kept { name, reason });
            }
        }
    }
    report.passthrough = report.kept.len();
}
