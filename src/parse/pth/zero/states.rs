//! What the pickles of a checkpoint say: the state of the model, and that of a process's optimizer.

use std::collections::HashMap;

use super::super::archive::{OpenedArchive, run_archive_allowing};
use super::super::globals::Global;
use super::super::pickle::wrong;
use super::super::records::Record;
use super::super::state::StateReader;
use super::super::storage::StoragePlace;
use super::reader::{Fragment, ModuleTensors, Shapes};
use crate::Result;
use crate::limits::Budget;
use crate::model::TensorInfo;
use crate::parse::zip::ZipArchive;
use crate::source::Source;

/// The state of the model, as one process has written it.
pub(super) struct ModelState {
    /// The parameters of each group of the optimizer.
    pub groups: Vec<Shapes>,
    /// The parameters that are not trained, and this process's part of each by its name.
    pub frozen: Shapes,
    pub fragments: HashMap<String, TensorInfo>,
    pub module: ModuleTensors,
    /// The trained parameters as the module has them.
    pub weights: HashMap<String, TensorInfo>,
    /// Names of parameters that share the values of another, and that.
    pub shared: Vec<(String, String)>,
    /// Bytes of the pickle.
    pub header_size: usize,
}

/// The state of a process's optimizer.
pub(super) struct OptimizerState {
    pub stage: usize,
    /// Number of processes that share the groups.
    pub processes: usize,
    /// The process's part of each group, in F32.
    pub groups: Vec<TensorInfo>,
    /// Elements behind each parameter of each group that belong to none; empty where there are
    /// none.
    pub paddings: Vec<Vec<usize>>,
    /// Where parameters lie in the process's part of each group; empty if the file does not say.
    pub fragments: Vec<HashMap<String, Fragment>>,
    /// Elements at the end of the process's part of each group that belong to no parameter; empty
    /// if the file does not say.
    pub ends: Vec<usize>,
    /// Whether parameters lie in another order than `fragments` say (`round_robin_gradients`).
    pub is_reordered: bool,
}

/// Globals of DeepSpeed in the states of optimizers.
fn globals_of_deepspeed(module: &str, name: &str) -> Option<Global> {
    match (module, name) {
        ("deepspeed.runtime.zero.config", "ZeroStageEnum") => Some(Global::Number),
        (
            "deepspeed.runtime.fp16.loss_scaler",
            "LossScaler" | "DynamicLossScaler" | "LossScaleConfig" | "LossScaleProfile",
        ) => Some(Global::Opaque),
        ("deepspeed.utils.tensor_fragment", "fragment_address") => {
            Some(Global::Record(Record::Fragment))
        }
        _ => None,
    }
}

/// Reads the state of the model in the file `source`, which has this number, and adds the storages
/// of its tensors to `places`.
///
/// # Errors
/// `Parse` if it is none, or malformed; `Unsupported` for parallelism that leaves parts of weights
/// in other files; `DisallowedGlobal`; `LimitExceeded`; `Io`.
pub(super) fn read_model_state(
    source: &Source,
    number: usize,
    places: &mut Vec<StoragePlace>,
    budget: &Budget,
) -> Result<ModelState> {
    let archive = ZipArchive::read(&mut &*source, budget)?;
    let opened = open(source, &archive, budget)?;
    let mut reader = StateReader::new(&opened, (source, number), (&archive, budget), places);
    let root = opened.root;
    reader.require_whole_weights(root)?;
    let groups = reader.required(root, "param_shapes")?;
    let groups: Vec<Shapes> = (reader.items(groups)?.iter())
        .map(|&group| reader.shapes(group))
        .collect::<Result<_>>()?;
    let frozen = match reader.optional(root, "frozen_param_shapes")? {
        Some(shapes) => reader.shapes(shapes)?,
        None => vec![],
    };
    let fragments = reader.fragments(root)?;
    let mut shared = vec![];
    if let Some(found) = reader.optional(root, "shared_params")? {
        for &(key, value) in reader.entries(found)? {
            shared.push((reader.name(key)?, reader.name(value)?));
        }
    }
    let parameters = groups.iter().flatten().chain(&frozen);
    let parameters = parameters.map(|(name, _)| name.as_str());
    let others = shared
        .iter()
        .map(|(name, _): &(String, String)| name.as_str());
    let module = reader.module(root, &parameters.chain(others).collect())?;
    let trained = groups.iter().flatten().map(|(name, _)| name.as_str());
    let weights = reader.module_weights(root, &trained.collect())?;
    Ok(ModelState {
        groups,
        frozen,
        fragments,
        module,
        weights,
        shared,
        header_size: opened.machine.input.at,
    })
}

/// Reads the parts of parameters that are not trained in the file `source`, as [`read_model_state`]
/// does.
///
/// # Errors
/// As [`read_model_state`].
pub(super) fn read_fragments(
    source: &Source,
    number: usize,
    places: &mut Vec<StoragePlace>,
    budget: &Budget,
) -> Result<HashMap<String, TensorInfo>> {
    let archive = ZipArchive::read(&mut &*source, budget)?;
    let opened = open(source, &archive, budget)?;
    let mut reader = StateReader::new(&opened, (source, number), (&archive, budget), places);
    reader.require_whole_weights(opened.root)?;
    reader.fragments(opened.root)
}

/// Reads the state of an optimizer in the file `source`, which has this number.
///
/// # Errors
/// As [`read_model_state`].
pub(super) fn read_optimizer_state(
    source: &Source,
    number: usize,
    places: &mut Vec<StoragePlace>,
    budget: &Budget,
) -> Result<OptimizerState> {
    let archive = ZipArchive::read(&mut &*source, budget)?;
    let opened = open(source, &archive, budget)?;
    let mut reader = StateReader::new(&opened, (source, number), (&archive, budget), places);
    let state = reader.required(opened.root, "optimizer_state_dict")?;
    let values = &opened.machine.values;
    let stage = reader.required(state, "zero_stage")?;
    let stage = values
        .size(stage)
        .ok_or_else(|| wrong("`zero_stage` is no number"))?;
    let processes = reader.required(state, "partition_count")?;
    // Groups may have counts of their own, of which the largest is that of the processes.
    let processes = match values.size(processes) {
        Some(processes) => Some(processes),
        None => (values.sizes(processes)).and_then(|counts| counts.into_iter().max()),
    };
    let processes = processes.ok_or_else(|| wrong("`partition_count` is no number"))?;
    let key = match stage {
        3 => "fp32_flat_groups",
        _ => "single_partition_of_fp32_groups",
    };
    let groups = reader.required(state, key)?;
    let groups = reader.items(groups)?;
    // A list may have one tensor many times, in a byte or two each.
    budget.tables(groups.len() as u64, 0, 0)?;
    let groups = (groups.iter())
        .map(|&group| reader.readable(key, group))
        .collect::<Result<_>>()?;
    let mut paddings = vec![];
    if let Some(found) = reader.optional(state, "param_alignment_paddings")? {
        for &group in reader.items(found)? {
            // As the tensors: a list may be there many times.
            budget.tables(reader.items(group)?.len() as u64, 0, 0)?;
            let what = "`param_alignment_paddings` are no numbers of elements";
            paddings.push(values.sizes(group).ok_or_else(|| wrong(what))?);
        }
    }
    let fragments = match reader.optional(state, "param_slice_mappings")? {
        Some(found) => reader.fragment_lists(found)?,
        None => vec![],
    };
    let ends = reader.optional(state, "group_paddings")?;
    let ends = ends.and_then(|id| values.sizes(id)).unwrap_or_default();
    Ok(OptimizerState {
        is_reordered: reader.is_reordered(opened.root)?,
        stage,
        processes,
        groups,
        paddings,
        fragments,
        ends,
    })
}

fn open<'b>(
    source: &Source,
    archive: &ZipArchive,
    budget: &'b Budget,
) -> Result<OpenedArchive<'b>> {
    run_archive_allowing(
        globals_of_deepspeed,
        &mut &*source,
        archive,
        false,
        &mut Vec::new(),
        budget,
    )
}
