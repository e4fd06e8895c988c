//! Checkpoints of DeepSpeed's ZeRO, stages 1 to 3: the weights in F32 that the optimizer keeps,
//! joined from the files of all processes as DeepSpeed's own `zero_to_fp32.py` joins them.
//!
//! ```text
//! mp_rank_00_model_states.pt                     stages 1 and 2: names and shapes of parameters by group, buffers, frozen parameters
//! zero_pp_rank_R_mp_rank_00_model_states.pt      stage 3: the same, and process R's part of each frozen parameter
//! [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt   process R's part of each group, a flat tensor
//! ```
//!
//! In stages 1 and 2 the parts of a group are one vector, in which the parameters follow each
//! other. In stage 3 each parameter is divided among the processes by itself. The module in 16 bits
//! and the optimizer's own tensors are left out, except the parameters that the module alone has:
//! those that are not trained in stage 1.
//!
//! Format: DeepSpeed
//! [`zero_to_fp32.py`](https://github.com/deepspeedai/DeepSpeed/blob/edaa7221267243c7be7fb49c5d5f5c4fb97b4641/deepspeed/utils/zero_to_fp32.py).

mod files;
mod join;
mod ranks;
mod reader;
mod states;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use self::files::CheckpointFiles;
use self::join::{Joined, align_parts, join_frozen, join_groups, join_partitioned};
use self::ranks::Ranks;
use self::states::{ModelState, read_fragments, read_model_state, read_optimizer_state};
use super::not_empty;
use super::pickle::PickleMachine;
use super::value::{Node, NodeId};
use super::views::check_ratio;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::TensorInfo;
use crate::source::{FilePool, Pieced, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Reads the checkpoint with the model's state in `source`, at `path`, and all files beside it that
/// belong to it.
///
/// # Errors
/// `Parse` if the file of a process is missing, or the sizes in the files contradict each other;
/// `Unsupported` for a checkpoint of tensor, pipeline or expert parallelism; `DisallowedGlobal`;
/// `LimitExceeded`; `Io`.
pub(in crate::parse) fn read(source: &Source, path: &Path, budget: &Budget) -> Result<ParsedModel> {
    let files = CheckpointFiles::find(path)?;
    let pool = Arc::new(FilePool::default());
    let mut opened = vec![source.share()];
    let mut open = |name: &str| -> Result<usize> {
        // Number 0 is that of the file that the caller has opened, in a pool of its own.
        opened.push(Source::open_pooled(&pool, opened.len(), &path.with_file_name(name))?);
        Ok(opened.len() - 1)
    };
    let optimizers: Vec<usize> = files
        .optimizers
        .iter()
        .map(|name| open(name))
        .collect::<Result<_>>()?;
    let others: Vec<usize> = files
        .model_states
        .iter()
        .skip(1)
        .map(|name| open(name))
        .collect::<Result<_>>()?;
    // What the files list is counted against the length of all of them while it is read.
    budget.tables(0, 0, opened.iter().filter_map(Source::len).sum())?;
    let mut places = vec![];
    let state = read_model_state(&opened[0], 0, &mut places, budget);
    let state = state.map_err(|e| e.about(format_args!("`{}`", files.model_states[0])))?;
    let mut others_fragments = vec![];
    // Only frozen parameters lie in the files of the other processes.
    if !state.frozen.is_empty() {
        for (&number, name) in others.iter().zip(&files.model_states[1..]) {
            let fragments = read_fragments(&opened[number], number, &mut places, budget);
            others_fragments.push(fragments.map_err(|e| e.about(format_args!("`{name}`")))?);
        }
    }
    let mut parts = vec![];
    for (&number, name) in optimizers.iter().zip(&files.optimizers) {
        let part = read_optimizer_state(&opened[number], number, &mut places, budget);
        parts.push(part.map_err(|e| e.about(format_args!("`{name}`")))?);
    }
    let stage = files.require_complete(&parts)?;
    let ranks = Ranks { parts: &parts, names: &files.optimizers, opened: &opened };
    let joined = join(stage, (&state, &others_fragments), &ranks, budget)?;
    let only_in_module = note_on_module(&state.module.parameters);
    let mut model = assemble(joined, state, &opened, budget)?;
    check_ratio(&model.tensors, places.iter())?;
    let n = parts.len();
    model.notes.push(format!(
        "the weights in F32 of a DeepSpeed checkpoint (ZeRO stage {stage}, {n} processes); the state of the optimizer and the module in 16 bits are left out"
    ));
    model.notes.extend(only_in_module);
    not_empty(model)
}

/// Checks a checkpoint that is read by itself, whose pickle has the value `root` and whose tensors
/// are in `model`.
///
/// # Errors
/// `Unsupported` if it is the state of a process of stage 3. The parameters of its module are
/// empty: each process has a part of them, in another file.
pub(super) fn check_alone(
    root: NodeId,
    machine: &PickleMachine<'_>,
    model: &ParsedModel,
) -> Result<()> {
    let is_empty = |t: &TensorInfo| t.name.starts_with("module.") && *t.shape == [0];
    let Node::Dict(entries) = machine.values.node(root) else {
        return Ok(());
    };
    let is_key = |id: NodeId| matches!(machine.values.node(id), Node::Str(range) if machine.input.bytes(range) == b"param_shapes");
    if !entries.iter().any(|&(key, _)| is_key(key)) || !model.tensors.iter().any(is_empty) {
        return Ok(());
    }
    let what = "it is the state of one process in ZeRO stage 3, without the weights: they are in *_optim_states.pt, beside which a directory is read";
    Err(AnamnesisError::unsupported("checkpoint of DeepSpeed", what))
}

/// The note on parameters that are taken from the module.
fn note_on_module(names: &[String]) -> Option<String> {
    let first = names.first()?;
    let n = names.len();
    Some(format!(
        "{n} parameters that the optimizer does not have, e.g. `{first}`, are those of the module, as it stores them"
    ))
}

/// The tensors of frozen and of trained parameters, in this order, as `zero_to_fp32.py` has them.
fn join(
    stage: u8,
    (state, others): (&ModelState, &[HashMap<String, TensorInfo>]),
    ranks: &Ranks<'_>,
    budget: &Budget,
) -> Result<Vec<Joined>> {
    let parts = ranks.parts;
    let groups = align_parts(parts)?;
    ranks.require_different_files()?;
    let fragments: Vec<_> = std::iter::once(&state.fragments).chain(others).collect();
    let mut joined = join_frozen((stage, parts.len()), &state.frozen, &fragments, budget)?;
    joined.extend(match stage {
        3 => join_partitioned(&state.groups, &groups, budget)?,
        _ => {
            let paddings = parts.first().map_or(&[][..], |first| &first.paddings);
            if parts.iter().any(|part| part.paddings != paddings) {
                let what = "processes have different `param_alignment_paddings`";
                return Err(AnamnesisError::parse(what));
            }
            let joined = join_groups(&state.groups, &groups, paddings, budget)?;
            ranks.require_fragments(&joined)?;
            ranks.require_module_values(&joined, &state.weights)?;
            joined.into_iter().flatten().collect()
        }
    });
    Ok(joined)
}

/// Makes the model: buffers, joined tensors, and those that share the values of another.
fn assemble(
    joined: Vec<Joined>,
    state: ModelState,
    opened: &[Source],
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut model = ParsedModel::new(Container::Pth, state.header_size);
    model.sources = opened.iter().map(Source::share).collect();
    model.tensors = state.module.tensors;
    model.skipped = state.module.skipped;
    let count = (joined.len() + model.tensors.len() + state.shared.len()) as u64;
    budget.items(count, "tensors")?;
    let files: Arc<[Source]> = opened.iter().map(Source::share).collect();
    for tensor in joined {
        let info = tensor_of(tensor, &files, &mut model.sources)?;
        model.tensors.push(info);
    }
    let names: HashMap<Box<str>, usize> = model
        .tensors
        .iter()
        .enumerate()
        .map(|(at, t)| (t.name.clone(), at))
        .collect();
    for (name, other) in state.shared {
        let Some(&at) = names.get(&*other) else {
            let what =
                format!("{}: it has the values of `{other}`, which is not there", InTensor(&name));
            return Err(AnamnesisError::parse(what));
        };
        let same = model.tensors[at].clone();
        model.tensors.push(TensorInfo { name: name.into(), ..same });
    }
    let mut seen = HashSet::new();
    if let Some(twice) = model.tensors.iter().find(|t| !seen.insert(&*t.name)) {
        let what = format!("{}: the checkpoint has it twice", InTensor(&twice.name));
        return Err(AnamnesisError::parse(what));
    }
    Ok(model)
}

/// The tensor of `joined`: a part of a file if it is one piece, else with a source of its own.
fn tensor_of(
    joined: Joined,
    files: &Arc<[Source]>,
    sources: &mut Vec<Source>,
) -> Result<TensorInfo> {
    let Joined { name, dtype, shape, len, mut pieces } = joined;
    let (source, offset, check) = match pieces.as_mut_slice() {
        [] => (0, 0, None),
        [only] => (only.piece.source, only.piece.offset, only.check.take()),
        _ => {
            let pieces = pieces.into_iter().map(|piece| piece.piece).collect();
            let pieced =
                Pieced::new(files.clone(), vec![len], pieces).map_err(|e| e.in_tensor(&name))?;
            sources.push(Source::Pieced(Box::new(pieced)));
            (sources.len() - 1, 0, None)
        }
    };
    Ok(TensorInfo { check, ..TensorInfo::plain(name, (dtype, shape), (source, offset, len)) })
}
