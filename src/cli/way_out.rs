//! What the user can do about a refusal: options with which the command would go on. Each is tried
//! before it is named.

use std::path::Path;

use super::CommandError;
use crate::error::printable;
use crate::{
    AnamnesisError, ConvertOptions, ErrorKind, ModelScope, ParseLimits, ParsedModel, PickleRisk,
    scan_pickles,
};

/// `error` of planning a conversion of `model` with `options`, and what helps: leaving out the tensor
/// at fault, or writing tensors instead of a model.
pub(super) fn of_plan(
    error: AnamnesisError,
    model: &ParsedModel,
    options: &ConvertOptions,
) -> CommandError {
    let is_of_model = matches!(error.kind(), ErrorKind::Parse | ErrorKind::Unsupported);
    if !is_of_model {
        return error.into();
    }
    // Messages of the library may name options themselves.
    let (text, mut ways) = (error.to_string(), Vec::new());
    if let Some(name) = error.tensor().filter(|_| !text.contains("--drop ")) {
        let mut options = options.clone();
        options.names.drop.push(name.to_owned());
        if model.plan(options).is_ok() {
            ways.push(format!("--drop {} leaves the tensor out", printable(name)));
        }
    }
    let skipping = options.clone().with_skip_unsupported(true);
    if !options.skip_unsupported && model.skipped_arrays().len() > 0 && model.plan(skipping).is_ok()
    {
        ways.push("--skip-unsupported leaves out what no tensor can hold".to_owned());
    }
    let writes_model = matches!(options.scope, ModelScope::Auto | ModelScope::Model)
        && !options.fuse_qkv
        && !options.fuse_gate_up_exps
        && !options.fp8_as_q8;
    let tensors = options.clone().with_scope(ModelScope::Tensors);
    let is_named = text.contains("tensors alone");
    if writes_model && !is_named && model.plan(tensors).is_ok() {
        ways.push("--tensors-only writes the tensors alone".to_owned());
    }
    let advice = (!ways.is_empty()).then(|| ways.join(", and "));
    CommandError { error, model: None, advice }
}

/// What helps if the pickle at `path` names a global that is not allowed: an option, or a list of all
/// such globals if this one is dangerous.
pub(super) fn of_global(error: &AnamnesisError, path: &Path) -> Option<String> {
    let AnamnesisError::DisallowedGlobal { module, name, .. } = error else {
        return None;
    };
    let scan = scan_pickles(path, &ParseLimits::default()).ok()?;
    let named = |global: &crate::PickleGlobal| global.module == *module && global.name == *name;
    let graded = scan.globals.iter().find(|graded| named(&graded.global))?;
    let (module, name) = (printable(module), printable(name));
    Some(match graded.risk {
        PickleRisk::Dangerous => {
            "no option allows it; `amn scan` lists what else the file names".to_owned()
        }
        _ => {
            format!("--allow-opaque {module}.{name} reads the file without what objects of it hold")
        }
    })
}
