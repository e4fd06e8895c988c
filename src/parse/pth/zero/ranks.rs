//! Whether the file of a process holds the part of that process: files that were copied over each
//! other, or exchanged, have parts of the right sizes.
//!
//! Of stages 1 and 2 the files say where parameters lie in them, which tells processes apart unless
//! both are within one parameter. Then the module in 16 bits tells, which the weights in F32 are
//! rounded to. Of stage 3 only a file that is there twice is noticed.
//!
//! Format: DeepSpeed `deepspeed/runtime/zero/stage_1_and_2.py`, `_create_param_mapping`, and
//! `deepspeed/utils/tensor_fragment.py`, `get_hp_fragment_mapping`.

use std::collections::{HashMap, HashSet};

use super::join::Joined;
use super::reader::Fragment;
use super::states::OptimizerState;
use crate::model::TensorInfo;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// Elements of each run that is compared: one at the beginning, in the middle and at the end of a
/// piece.
const RUN: u64 = 16;

/// Bytes of a part that are looked at for whether all values are the same.
const LOOKED_AT: u64 = 4096;

/// The processes of a checkpoint, and the names of their files.
pub(super) struct Ranks<'a> {
    pub parts: &'a [OptimizerState],
    pub names: &'a [String],
    pub opened: &'a [Source],
}

impl Ranks<'_> {
    /// Refuses a file that is there twice under two names.
    ///
    /// # Errors
    /// `Parse` with both names; `Io`.
    pub(super) fn require_different_files(&self) -> Result<()> {
        let mut seen = HashMap::new();
        for (at, part) in self.parts.iter().enumerate() {
            let sums = part.groups.iter().map(|group| {
                let check = group.check.as_ref()?;
                Some((group.len, check.crc))
            });
            // A writer may leave checksums out.
            let Some(sums) = sums.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let Some(other) = seen.insert(sums, at) else {
                continue;
            };
            if self.has_different_values(part)? {
                let what = format!(
                    "it holds the same values as `{}`: one is a copy of the other",
                    self.names[other]
                );
                return Err(self.wrong(at, &what));
            }
        }
        Ok(())
    }

    /// Whether values of a part differ from each other. Processes may well have the same part of
    /// zeros.
    fn has_different_values(&self, part: &OptimizerState) -> Result<bool> {
        for group in part.groups.iter().filter(|group| group.len > 0) {
            let mut bytes = vec![0; group.len.min(LOOKED_AT) as usize];
            self.opened[group.source].read_at(group.offset, &mut bytes)?;
            let size = (group.dtype.bits() / 8).max(1);
            let mut values = bytes.chunks_exact(size);
            let first = values.next();
            if values.any(|value| Some(value) != first) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compares what the files of stages 1 and 2 say about where parameters lie with `joined`, the
    /// parameters of each group.
    ///
    /// # Errors
    /// `Parse` with the file whose part lies elsewhere.
    pub(super) fn require_fragments(&self, joined: &[Vec<Joined>]) -> Result<()> {
        let of_source: HashMap<usize, usize> = self.sources();
        // DeepSpeed deals parameters out to the processes in turn then, and its `param_slice_mappings`
        // have the names in the order from before.
        let is_reordered = self.parts.iter().any(|part| part.is_reordered);
        for (group, tensors) in joined.iter().enumerate().filter(|_| !is_reordered) {
            let mut counts = vec![0; self.parts.len()];
            let places = |part: &OptimizerState| -> HashSet<Fragment> {
                let fragments = part.fragments.get(group).into_iter().flatten();
                fragments.map(|(_, &place)| place).collect()
            };
            let places: Vec<_> = self.parts.iter().map(places).collect();
            for tensor in tensors {
                for piece in tensor.pieces.iter().map(|piece| &piece.piece) {
                    let Some(&at) = of_source.get(&piece.source) else {
                        continue;
                    };
                    let size = tensor.dtype.bits() as u64 / 8;
                    let start = (piece.offset - self.parts[at].groups[group].offset) / size;
                    let expected =
                        Fragment { start: start as usize, len: (piece.sizes[0] / size) as usize };
                    counts[at] += 1;
                    let Some(fragments) = self.parts[at].fragments.get(group) else {
                        continue;
                    };
                    // The files may have another name for it.
                    let is_there = match fragments.get(&tensor.name) {
                        Some(found) => *found == expected,
                        None => places[at].contains(&expected),
                    };
                    if !is_there {
                        let what = format!(
                            "elements {} to {} of it are not those of `{}` by its own `param_slice_mappings`: it is the part of another process",
                            expected.start,
                            expected.start + expected.len,
                            tensor.name
                        );
                        return Err(self.wrong(at, &what));
                    }
                }
            }
            for (at, count) in counts.into_iter().enumerate() {
                let Some(fragments) = self.parts[at].fragments.get(group) else {
                    continue;
                };
                if fragments.values().filter(|found| found.len > 0).count() != count {
                    let what = "its `param_slice_mappings` have parameters that its part does not: it is the part of another process";
                    return Err(self.wrong(at, what));
                }
            }
        }
        // Only the last part of a group is padded.
        let others = self.parts.len().saturating_sub(1);
        let is_padded = |part: &OptimizerState| part.ends.iter().any(|&n| n > 0);
        match self.parts[..others].iter().position(is_padded) {
            Some(at) => Err(self.wrong(
                at,
                "its `group_paddings` are those of the last process: it is the part of another process",
            )),
            None => Ok(()),
        }
    }

    /// Compares some values of each part with the module, which has them in 16 bits.
    ///
    /// # Errors
    /// `Parse` with the file whose values are others; `Io`.
    pub(super) fn require_module_values(
        &self,
        joined: &[Vec<Joined>],
        module: &HashMap<String, TensorInfo>,
    ) -> Result<()> {
        let of_source = self.sources();
        let mut counts = vec![(0, 0); self.parts.len()];
        for tensor in joined.iter().flatten() {
            let Some(stored) = module.get(&tensor.name) else {
                continue;
            };
            let is_plain = stored.strides.is_none() && !stored.big_endian;
            if tensor.dtype != Dtype::F32 || !is_plain || *stored.shape != *tensor.shape {
                continue;
            }
            for piece in tensor.pieces.iter().map(|piece| &piece.piece) {
                let Some(&at) = of_source.get(&piece.source) else {
                    continue;
                };
                let (first, n) = (piece.start[0] / 4, piece.sizes[0] / 4);
                let run = n.min(RUN);
                for skipped in [0, (n - run) / 2, n - run] {
                    let master =
                        self.values(Dtype::F32, piece.source, piece.offset + 4 * skipped, run)?;
                    let size = stored.dtype.bits() as u64 / 8;
                    let offset = stored.offset + size * (first + skipped);
                    let rounded = self.values(stored.dtype, stored.source, offset, run)?;
                    for (a, b) in master.iter().zip(&rounded) {
                        let tolerance = b.abs() / 128.0 + 1e-6;
                        let is_same = (a - b).abs() <= tolerance || !b.is_finite();
                        counts[at].0 += usize::from(!is_same);
                        counts[at].1 += 1;
                    }
                }
            }
        }
        match counts.iter().position(|(other, all)| 2 * other > *all) {
            Some(at) => {
                let (other, all) = counts[at];
                let what = format!(
                    "{other} of {all} values of it are not those of the module in `*_model_states.pt`: it is the part of another process, or of another step"
                );
                Err(self.wrong(at, &what))
            }
            None => Ok(()),
        }
    }

    /// `n` values from `offset` on of a file; none if they are of a type that is not compared.
    fn values(&self, dtype: Dtype, source: usize, offset: u64, n: u64) -> Result<Vec<f32>> {
        let mut bytes = vec![0; (n * dtype.bits() as u64 / 8) as usize];
        self.opened[source].read_at(offset, &mut bytes)?;
        let halves = bytes.as_chunks::<2>().0.iter();
        Ok(match dtype {
            Dtype::BF16 => halves
                .map(|&b| half::bf16::from_le_bytes(b).to_f32())
                .collect(),
            Dtype::F16 => halves
                .map(|&b| half::f16::from_le_bytes(b).to_f32())
                .collect(),
            Dtype::F32 => {
                let values = bytes.as_chunks::<4>().0.iter();
                values.map(|&b| f32::from_le_bytes(b)).collect()
            }
            _ => vec![],
        })
    }

    /// The number of the process by that of its file.
    fn sources(&self) -> HashMap<usize, usize> {
        let sources = self.parts.iter().enumerate();
        let source = |(at, part): (usize, &OptimizerState)| Some((part.groups.first()?.source, at));
        sources.filter_map(source).collect()
    }

    fn wrong(&self, at: usize, what: &str) -> AnamnesisError {
        AnamnesisError::parse(format!("`{}`: {what}", self.names[at]))
    }
}
