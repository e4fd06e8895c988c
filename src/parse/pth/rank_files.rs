//! Files of the processes of FSDP, as verl writes them: each has the whole `state_dict()`, and of
//! most tensors its part.
//!
//! ```text
//! model_world_size_4_rank_0.pt     name → DTensor: the part, the mesh of processes, and how it is divided; or a tensor that all processes have
//! ```
//!
//! Nothing says which part is whose but the coordinates of the process in the mesh. A dimension is
//! divided as `torch.chunk` divides it. Processes along a dimension that is not divided have copies,
//! which must be the same.
//!
//! Format: torch `torch/distributed/tensor/_api.py` and `placement_types.py`; verl
//! `verl/utils/checkpoint/fsdp_checkpoint_manager.py`.

mod copies;
mod division;
mod state;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use self::copies::require_same;
use self::division::MeshShape;
use self::state::{RankState, RankTensor, read_rank};
use super::not_empty;
use super::pieces::{Rectangle, assemble, stored_shape};
use super::views::check_ratio;
use crate::error::InTensor;
use crate::limits::{Budget, join_first};
use crate::model::{Skipped, TensorInfo};
use crate::parse::listing::{rank_file, rank_file_name};
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Most names that a note lists.
const MAX_NAMED: usize = 5;

/// Reads the checkpoint with the file `source` of the first process, at `path`, and the files of the
/// others beside it.
///
/// # Errors
/// `Parse` that names the tensor if a process lacks it, or has another size, part or copy of it than
/// the others say; `Unsupported` for other divisions; `DisallowedGlobal`; `LimitExceeded`; `Io`.
pub(in crate::parse) fn read(source: &Source, path: &Path, budget: &Budget) -> Result<ParsedModel> {
    let name = path.file_name().and_then(|name| name.to_str());
    let (world, _) = name.and_then(rank_file).unwrap_or((1, 0));
    let names: Vec<String> = (0..world).map(|rank| rank_file_name(world, rank)).collect();
    let pool = Arc::new(FilePool::default());
    let mut opened = vec![source.share()];
    for (number, name) in names.iter().enumerate().skip(1) {
        opened.push(Source::open_pooled(&pool, number, &path.with_file_name(name))?);
    }
    // What the files list is counted against the length of all of them while it is read.
    budget.tables(0, 0, opened.iter().filter_map(Source::len).sum())?;
    let mut places = vec![];
    let mut ranks = vec![];
    for (number, name) in names.iter().enumerate() {
        let state = read_rank(&opened[number], number, &mut places, budget);
        ranks.push(state.map_err(|e| e.about(format_args!("`{name}`")))?);
    }
    let mut model = ParsedModel::new(Container::Pth, 0);
    model.header_size = ranks.iter().map(|rank| rank.header_size).sum();
    model.sources = opened.iter().map(Source::share).collect();
    let files = RankFiles { names, opened: opened.into() };
    files.join(&ranks, &mut model, budget)?;
    check_ratio(&model.tensors, places.iter())?;
    model
        .notes
        .push(format!("joined from the parts of {world} processes (FSDP)"));
    let values = ranks.first().map_or(&[][..], |first| &first.values);
    if !values.is_empty() {
        let named = join_first(values, MAX_NAMED);
        model
            .notes
            .push(format!("left out, as they are no tensors: {named}"));
    }
    not_empty(model)
}

/// The files of all processes, in their order.
struct RankFiles {
    names: Vec<String>,
    opened: Arc<[Source]>,
}

impl RankFiles {
    /// Adds the tensors of all processes, in the order of the first.
    fn join(&self, ranks: &[RankState], model: &mut ParsedModel, budget: &Budget) -> Result<()> {
        let Some((first, others)) = ranks.split_first() else {
            return Ok(());
        };
        budget.items(first.tensors.len() as u64, "tensors")?;
        let known = first.numbered();
        let mut by_name = vec![];
        for (number, other) in others.iter().enumerate() {
            let names: HashMap<&str, usize> = other.numbered();
            if let Some(alone) = names.keys().find(|name| !known.contains_key(*name)) {
                return Err(self.missing(alone, 0));
            }
            by_name.push((number + 1, other, names));
        }
        for (name, tensor) in &first.tensors {
            let mut parts = vec![tensor];
            for (number, other, names) in &by_name {
                let at = names
                    .get(name.as_str())
                    .ok_or_else(|| self.missing(name, *number))?;
                parts.push(&other.tensors[*at].1);
            }
            let added = self.add(name, &parts, model);
            added.map_err(|e| match e.tensor() {
                Some(_) => e,
                None => e.in_tensor(name),
            })?;
        }
        Ok(())
    }

    fn missing(&self, name: &str, rank: usize) -> AnamnesisError {
        let what =
            format!("{}: it is not in `{}`, but in others", InTensor(&name), self.names[rank]);
        AnamnesisError::parse(what)
    }

    /// Adds the tensor `name` to the model, or to what it cannot hold. `parts` are those of all
    /// processes.
    fn add(
        &self,
        name: &str,
        parts: &[&std::result::Result<RankTensor, &'static str>],
        model: &mut ParsedModel,
    ) -> Result<()> {
        let mut read = vec![];
        for part in parts {
            match part {
                Ok(part) => read.push(part),
                Err(what) => {
                    let (name, what) = (name.to_owned(), (*what).to_owned());
                    model.skipped.push(Skipped { name, what });
                    return Ok(());
                }
            }
        }
        let rectangles = rectangles(&read)?;
        let mut pieces: Vec<(&Rectangle, TensorInfo)> = vec![];
        let mut known: HashMap<&Rectangle, usize> = HashMap::new();
        for (number, (rectangle, part)) in rectangles.iter().zip(&read).enumerate() {
            let shape = stored_shape(part.info.dtype, &rectangle.sizes);
            if shape.as_deref() != Some(&part.info.shape) {
                return Err(AnamnesisError::parse(format!(
                    "the part in `{}` is {:?}, where its coordinates say {:?}",
                    self.names[number], part.info.shape, rectangle.sizes
                )));
            }
            match known.get(rectangle) {
                Some(&other) => {
                    let files = [&*self.names[other], &*self.names[number]];
                    require_same([&read[other].info, &part.info], &self.opened, files)?;
                }
                None => {
                    known.insert(rectangle, number);
                    if part.info.len > 0 {
                        pieces.push((rectangle, part.info.clone()));
                    }
                }
            }
        }
        let Some(first) = read.first() else {
            return Ok(());
        };
        let (dtype, size) = (first.info.dtype, first.size());
        let is_whole = |(rectangle, _): &(&Rectangle, TensorInfo)| rectangle.sizes == size;
        let info = match pieces.iter().position(is_whole) {
            Some(at) if pieces.len() == 1 => pieces.swap_remove(at).1,
            _ => assemble((name, dtype, size), &pieces, &self.opened, model)?,
        };
        model.tensors.push(info);
        Ok(())
    }
}

/// The part of each process as a rectangle of the tensor.
///
/// # Errors
/// `Parse` if the processes say different things of the tensor, or their coordinates are not those of
/// a mesh.
fn rectangles(parts: &[&RankTensor]) -> Result<Vec<Rectangle>> {
    let Some(first) = parts.first() else {
        return Ok(vec![]);
    };
    let same = |part: &&RankTensor| {
        let division = |part: &RankTensor| part.division.as_ref().map(|d| d.placements.clone());
        part.info.dtype == first.info.dtype
            && part.size() == first.size()
            && division(part) == division(first)
    };
    if !parts.iter().all(same) {
        let what = "processes say different types, sizes or divisions of it";
        return Err(AnamnesisError::parse(what));
    }
    let Some(divisions) = parts
        .iter()
        .map(|part| part.division.as_ref())
        .collect::<Option<Vec<_>>>()
    else {
        let whole = Rectangle { start: vec![0; first.size().len()], sizes: first.size().to_vec() };
        return Ok(vec![whole; parts.len()]);
    };
    let coordinates = divisions
        .iter()
        .map(|division| division.coordinate.as_slice());
    let mesh = MeshShape::of(&coordinates.collect::<Vec<_>>())?;
    divisions
        .iter()
        .map(|division| mesh.rectangle(division))
        .collect()
}
