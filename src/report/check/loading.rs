//! Whether llama.cpp loads a GGUF model.

use super::{Finding, Severity};
use crate::ParsedModel;
use crate::families::{GraphProblem, is_whole_model, problems};
use crate::model::gguf::Gguf;

/// Adds why llama.cpp does not load the model `gguf`, each kind of fault once.
pub(super) fn check(model: &ParsedModel, gguf: &Gguf, findings: &mut Vec<Finding>) {
    let Some(architecture) = gguf.architecture() else {
        return;
    };
    let metadata = gguf.metadata();
    if !is_whole_model(metadata.iter(), model.tensors().map(|t| t.name())) {
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
