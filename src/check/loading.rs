//! Whether llama.cpp loads a GGUF model.

use super::{Finding, Severity};
use crate::arch::{GraphProblem, problems};
use crate::containers::model::gguf::Gguf;
use crate::{GgufMetadataValue, ParsedModel};

/// Adds why llama.cpp does not load the model `gguf`, each kind of fault once.
pub(super) fn check(model: &ParsedModel, gguf: &Gguf, findings: &mut Vec<Finding>) {
    let Some(architecture) = gguf.architecture() else {
        return;
    };
    let metadata = gguf.metadata();
    let prefix = format!("{architecture}.");
    let is_kind = |kind: &str| matches!(metadata.get("general.type"), Some(GgufMetadataValue::String(found)) if found == kind);
    // Files with tensors alone, parts of models and adapters have no architecture's keys.
    let has_keys = metadata.keys().any(|key| key.starts_with(&prefix));
    let is_end = |name: &str| matches!(name, "token_embd.weight" | "output_norm.weight");
    let has_ends = model.tensors().any(|t| is_end(t.name()));
    if !has_keys || !has_ends || is_kind("adapter") || is_kind("mmproj") {
        return;
    }
    let tensors = model.tensors().map(|t| (t.name(), t.shape()));
    let found = problems(&architecture, metadata.iter(), tensors);
    let mut rest = found.as_slice();
    while let Some((first, others)) = rest.split_first() {
        let alike = others
            .iter()
            .take_while(|other| first.is_alike(other))
            .count();
        findings.push(finding(first, alike));
        rest = &others[alike..];
    }
}

/// The finding of `problem`, and of `alike` others of its kind.
fn finding(problem: &GraphProblem, alike: usize) -> Finding {
    let others = match alike {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    // Forks of llama.cpp know more tensors.
    let severity = match problem {
        GraphProblem::NoPlace { .. } => Severity::Warning,
        _ => Severity::Error,
    };
    Finding {
        tensor: problem.tensor().map(str::to_owned),
        ..Finding::new(severity, format!("{problem}{others}"))
    }
}
