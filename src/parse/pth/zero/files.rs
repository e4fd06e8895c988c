//! The files of a checkpoint, by their names.

use std::collections::BTreeMap;
use std::path::Path;

use super::states::OptimizerState;
use crate::parse::listing::list;
use crate::{AnamnesisError, Result};

/// Names of the files of a checkpoint, by process.
pub(super) struct CheckpointFiles {
    /// The states of the model. The first is that of process 0, or the only one in stages 1 and 2.
    pub model_states: Vec<String>,
    pub optimizers: Vec<String>,
    /// Whether each process has a state of the model, as in stage 3.
    has_model_states_by_process: bool,
}

impl CheckpointFiles {
    /// The files beside `path`, the state of the model.
    ///
    /// # Errors
    /// `Parse` if the file of a process is missing, or there are two; `Unsupported` if there are
    /// files of tensor, pipeline or expert parallelism, each of which has a part of the weights;
    /// `Io`.
    pub(super) fn find(path: &Path) -> Result<Self> {
        let first = path.file_name().and_then(|name| name.to_str());
        let first = first.unwrap_or_default().to_owned();
        let (mut model_states, mut optimizers) = (BTreeMap::new(), BTreeMap::new());
        for name in list(path.parent().unwrap_or(path))? {
            let files = match &*name {
                "mp_rank_00_model_states.pt" if name == first => continue,
                name if name.ends_with("optim_states.pt") => &mut optimizers,
                name if name.ends_with("model_states.pt") => &mut model_states,
                _ => continue,
            };
            let Some(process) = process(&name) else {
                let what = format!(
                    "`{name}` is a file of tensor, pipeline or expert parallelism, which are not joined"
                );
                return Err(AnamnesisError::unsupported("checkpoint of DeepSpeed", what));
            };
            if let Some(other) = files.insert(process, name.clone()) {
                let what = format!("`{other}` and `{name}` are of one process");
                return Err(AnamnesisError::parse(what));
            }
        }
        let optimizers = in_order(optimizers, "_optim_states.pt")?;
        let has_model_states_by_process = model_states.values().any(|name| *name == first);
        let model_states = match (has_model_states_by_process, model_states.is_empty()) {
            (true, _) => in_order(model_states, "_model_states.pt")?,
            (false, true) => vec![first],
            (false, false) => {
                let what = format!(
                    "`{first}` is of stage 1 or 2, and other files *_model_states.pt are of stage 3"
                );
                return Err(AnamnesisError::parse(what));
            }
        };
        Ok(Self { model_states, optimizers, has_model_states_by_process })
    }

    /// The stage of the checkpoint, whose optimizers have the states `parts`.
    ///
    /// # Errors
    /// `Parse` if the file of a process is missing, or the processes contradict each other;
    /// `Unsupported` for another stage.
    pub(super) fn require_complete(&self, parts: &[OptimizerState]) -> Result<u8> {
        let Some(first) = parts.first() else {
            return Err(AnamnesisError::parse("there are no states of optimizers"));
        };
        if let Some(at) = parts
            .iter()
            .position(|part| (part.stage, part.processes) != (first.stage, first.processes))
        {
            let what = format!(
                "`{}` is of another stage or number of processes than `{}`",
                self.optimizers[at], self.optimizers[0]
            );
            return Err(AnamnesisError::parse(what));
        }
        let missing = |found: usize, what: &str| {
            let what =
                format!("{found} files *{what}.pt of {} processes are there", first.processes);
            Err(AnamnesisError::parse(what))
        };
        if parts.len() != first.processes {
            return missing(parts.len(), "_optim_states");
        }
        match (first.stage, self.has_model_states_by_process) {
            (3, true) if self.model_states.len() != first.processes => {
                missing(self.model_states.len(), "_model_states")
            }
            (1 | 2, false) => Ok(first.stage as u8),
            (3, true) => Ok(3),
            (1..=3, _) => {
                let what = format!("`{}` is not of stage {}", self.model_states[0], first.stage);
                Err(AnamnesisError::parse(what))
            }
            (stage, _) => {
                let what = format!("stage {stage}; stages 1 to 3 are read");
                Err(AnamnesisError::unsupported("checkpoint of DeepSpeed", what))
            }
        }
    }
}

/// The process of `[bf16_|fp16_]zero_pp_rank_R_mp_rank_00_optim_states.pt`, or of
/// `zero_pp_rank_R_mp_rank_00_model_states.pt`.
fn process(name: &str) -> Option<usize> {
    let model = name.strip_suffix("_model_states.pt");
    let optimizer = name.strip_suffix("_optim_states.pt").map(|stem| {
        let stem = stem.strip_prefix("bf16_").unwrap_or(stem);
        stem.strip_prefix("fp16_").unwrap_or(stem)
    });
    let stem = model.or(optimizer)?;
    let number = stem
        .strip_prefix("zero_pp_rank_")?
        .strip_suffix("_mp_rank_00")?;
    number.parse().ok()
}

/// The names by process, of which none is missing.
fn in_order(files: BTreeMap<usize, String>, ending: &str) -> Result<Vec<String>> {
    if let Some((n, _)) = files.keys().enumerate().find(|&(n, process)| n != *process) {
        let what = format!("the file *zero_pp_rank_{n}_mp_rank_00{ending} is missing");
        return Err(AnamnesisError::parse(what));
    }
    Ok(files.into_values().collect())
}
