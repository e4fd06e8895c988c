//! Tensors that the caller asks for by name: they are encoded whatever they are called, and a note
//! names those that cannot be.

use std::sync::Arc;

use super::candidates::candidate;
use crate::config::Selection;
use crate::convert::report::Report;
use crate::lethe::{Decision, Forget, Imatrix, decide};
use crate::limits::join_first;
use crate::model::ParsedModel;
use crate::remember::{Resolution, ResolvedItem};
use crate::{Result, TargetDtype};

/// Most names in a note.
const NAMED: usize = 3;

/// Encodes matrices that the caller asks for and that are not called as weights of modules are, as
/// arrays of NumPy: `W` as `W.weight`, if the scheme takes no other name.
///
/// # Errors
/// Those of [`decide`].
pub(super) fn encode_as_modules(
    model: &ParsedModel,
    (resolution, choices): (&mut Resolution<'_>, &mut [Decision]),
    (forget, imatrix): (&Forget, Option<&Arc<Imatrix>>),
    (to, report): (TargetDtype, &mut Report),
) -> Result<()> {
    let Some(selection) = requested(forget)? else {
        return Ok(());
    };
    let items = resolution.items.iter().zip(&*choices);
    let names = items.map(|(item, choice)| {
        let is_left = matches!(choice, Decision::Keep(_)) && !item.name().ends_with(".weight");
        (is_left && selection.has(item.name())).then(|| format!("{}.weight", item.name()))
    });
    let names: Vec<Option<String>> = names.collect();
    selection.check()?;
    if names.iter().all(Option::is_none) {
        return Ok(());
    }
    let items = resolution.items.iter().zip(&names);
    let candidates = items.map(|(item, name)| {
        let mut candidate = candidate(item, (None, None), to);
        candidate.weight.name = name.as_deref().unwrap_or(candidate.weight.name);
        candidate
    });
    let candidates: Vec<_> = candidates.collect();
    let others = decide(model, &candidates, (forget, imatrix), to)?.all;
    drop(candidates);
    let mut renamed = vec![];
    let items = resolution.items.iter_mut().zip(choices);
    for ((item, choice), (name, other)) in items.zip(names.into_iter().zip(others)) {
        if let (Some(name), Decision::Encode { .. }) = (name, &other) {
            renamed.push(format!("`{}` as `{name}`", item.name()));
            item.rename(name);
            *choice = other;
        }
    }
    if !renamed.is_empty() {
        let what = join_first(&renamed, NAMED);
        report.notes.push(format!(
            "{what}: weights of modules are called so, and the scheme has no other names"
        ));
    }
    Ok(())
}

/// Notes which of the tensors that the caller asks for are not encoded, and why.
///
/// # Errors
/// A pattern takes too many steps.
pub(super) fn note_left(
    items: &[ResolvedItem<'_>],
    choices: &[Decision],
    forget: &Forget,
    report: &mut Report,
) -> Result<()> {
    let Some(selection) = requested(forget)? else {
        return Ok(());
    };
    let mut reasons: Vec<(&str, Vec<String>)> = vec![];
    for (item, choice) in items.iter().zip(choices) {
        let Decision::Keep(reason) = choice else {
            continue;
        };
        if !selection.has(item.name()) {
            continue;
        }
        let name = format!("`{}`", item.name());
        match reasons.iter_mut().find(|(other, _)| other == reason) {
            Some((_, names)) => names.push(name),
            None => reasons.push((reason, vec![name])),
        }
    }
    selection.check()?;
    let notes = reasons.iter().map(|(reason, names)| {
        format!("asked for and not encoded: {} ({reason})", join_first(names, NAMED))
    });
    report.notes.extend(notes);
    Ok(())
}

/// The caller's patterns; `None`: without one, all tensors are meant and none is asked for.
fn requested(forget: &Forget) -> Result<Option<Selection>> {
    match forget.include.is_empty() {
        true => Ok(None),
        false => Selection::new(&forget.include, &forget.exclude).map(Some),
    }
}
