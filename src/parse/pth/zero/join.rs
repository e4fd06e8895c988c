//! Which parts of which files a parameter consists of.

use std::collections::HashMap;

use super::reader::Shapes;
use super::states::OptimizerState;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::{Check, TensorInfo};
use crate::source::{StorageCheck, TensorPiece};
use crate::{AnamnesisError, Dtype, Result};

/// A tensor that consists of pieces, one after the other.
#[derive(Debug)]
pub(super) struct Joined {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Bytes.
    pub len: u64,
    pub pieces: Vec<JoinedPiece>,
}

#[derive(Debug)]
pub(super) struct JoinedPiece {
    pub piece: TensorPiece,
    /// The checksum of the storage, as that of a tensor of its own.
    pub check: Option<Box<Check>>,
}

/// The parts of a group, a vector of each process.
pub(super) type Parts<'a> = Vec<&'a TensorInfo>;

impl Joined {
    fn new(name: &str, dtype: Dtype, shape: &[usize]) -> Result<Self> {
        let len = dtype.byte_len(shape);
        let overflow = || AnamnesisError::parse(format!("{}: its size overflows", InTensor(&name)));
        Ok(Self {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            len: len.ok_or_else(overflow)? as u64,
            pieces: vec![],
        })
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Appends `n` elements of `part` from element `first` on, which it has.
    ///
    /// # Errors
    /// `LimitExceeded`: the pieces take more memory than the files warrant.
    fn push(&mut self, part: &TensorInfo, first: usize, n: usize, budget: &Budget) -> Result<()> {
        if n == 0 {
            return Ok(());
        }
        budget.tables(0, 1, 0)?;
        let size = self.dtype.bits() as u64 / 8;
        let start = self
            .pieces
            .last()
            .map_or(0, |last| last.piece.start[0] + last.piece.sizes[0]);
        let check = part.check.as_ref().map(|check| StorageCheck {
            crc: check.crc,
            offset: check.start,
            len: check.len,
        });
        self.pieces.push(JoinedPiece {
            piece: TensorPiece {
                start: vec![start],
                sizes: vec![n as u64 * size],
                source: part.source,
                offset: part.offset + first as u64 * size,
                check,
            },
            check: part.check.clone(),
        });
        Ok(())
    }
}

/// Elements of a part.
fn elements(part: &TensorInfo) -> usize {
    part.shape.iter().product()
}

/// Checks that a part is a run of numbers in a file, of the type `dtype`.
fn require_run(part: &TensorInfo, dtype: Dtype) -> Result<()> {
    if part.dtype == dtype && part.strides.is_none() && !part.big_endian && dtype.bits() >= 8 {
        return Ok(());
    }
    let what = format!(
        "`{}`: a part of it is {}, big-endian or not in the order of rows, where another is {dtype}",
        part.name, part.dtype
    );
    Err(AnamnesisError::unsupported("checkpoint of DeepSpeed", what))
}

/// The parts of each group, by process.
///
/// # Errors
/// `Parse` if processes have different groups; `Unsupported` if a part is no vector of one type.
pub(super) fn align_parts(processes: &[OptimizerState]) -> Result<Vec<Parts<'_>>> {
    let groups = processes.first().map_or(0, |first| first.groups.len());
    let mut parts: Vec<Parts<'_>> = vec![vec![]; groups];
    for process in processes {
        if process.groups.len() != groups {
            let what = "processes have different numbers of groups of parameters";
            return Err(AnamnesisError::parse(what));
        }
        for (all, part) in parts.iter_mut().zip(&process.groups) {
            let dtype = all.first().map_or(part.dtype, |first| first.dtype);
            require_run(part, dtype)?;
            if part.shape.len() != 1 {
                return Err(AnamnesisError::parse("a part of a group is no vector"));
            }
            all.push(part);
        }
    }
    Ok(parts)
}

/// The parameters of each group in stages 1 and 2: the parts of a group are one vector, with padding at its end
/// and, where `paddings` say so, behind each parameter.
///
/// # Errors
/// `Parse` if there are other groups than parts or paddings, or a group has another size than its
/// parts.
pub(super) fn join_groups(
    groups: &[Shapes],
    parts: &[Parts<'_>],
    paddings: &[Vec<usize>],
    budget: &Budget,
) -> Result<Vec<Vec<Joined>>> {
    require_same_number(groups, parts)?;
    let is_like = |of: &[Vec<usize>]| of.iter().map(Vec::len).eq(groups.iter().map(Vec::len));
    if !paddings.is_empty() && !is_like(paddings) {
        let what = "`param_alignment_paddings` are of other parameters";
        return Err(AnamnesisError::parse(what));
    }
    let mut all = vec![];
    for (number, (group, parts)) in groups.iter().zip(parts).enumerate() {
        let padding = |at: usize| paddings.get(number).map_or(0, |of_group| of_group[at]);
        let mut joined = vec![];
        let Some(first) = parts.first() else {
            continue;
        };
        let available: usize = parts.iter().map(|part| elements(part)).sum();
        let (mut process, mut inside, mut consumed) = (0, 0, 0);
        for (at, (name, shape)) in group.iter().enumerate() {
            let mut tensor = Joined::new(name, first.dtype, shape)?;
            let (mut left, mut unused) = (tensor.elements(), padding(at));
            consumed = left.saturating_add(unused).saturating_add(consumed);
            while left > 0 || unused > 0 {
                let Some(part) = parts.get(process) else {
                    return Err(wrong_sum(name, consumed, available));
                };
                let n = left.min(elements(part) - inside);
                tensor.push(part, inside, n, budget)?;
                (left, inside) = (left - n, inside + n);
                if left == 0 {
                    let n = unused.min(elements(part) - inside);
                    (unused, inside) = (unused - n, inside + n);
                }
                if inside == elements(part) {
                    (process, inside) = (process + 1, 0);
                }
            }
            joined.push(tensor);
        }
        // Groups are padded to a multiple of twice the number of processes.
        let align = 2 * parts.len();
        if consumed.div_ceil(align) != available.div_ceil(align) {
            let name = group.last().map_or("", |(name, _)| name);
            return Err(wrong_sum(name, consumed, available));
        }
        all.push(joined);
    }
    Ok(all)
}

/// The parameters of stage 3: each process has an equal part of each, with padding at the end of
/// the last.
///
/// # Errors
/// `Parse` if the parameters have another size than the parts, or processes have different parts.
pub(super) fn join_partitioned(
    groups: &[Shapes],
    parts: &[Parts<'_>],
    budget: &Budget,
) -> Result<Vec<Joined>> {
    let processes = parts.first().map_or(1, Vec::len);
    for group in parts {
        if group.iter().any(|part| part.len != group[0].len) {
            return Err(AnamnesisError::parse("processes have parts of different sizes"));
        }
    }
    let sizes: Vec<usize> = parts.iter().map(|group| elements(group[0])).collect();
    let available: usize = sizes.iter().sum();
    let dtype = parts.first().map_or(Dtype::F32, |group| group[0].dtype);
    if let Some(other) = parts.iter().find(|group| group[0].dtype != dtype) {
        require_run(other[0], dtype)?;
    }
    let (mut group, mut inside, mut consumed) = (0, 0, 0);
    let mut joined = vec![];
    for (name, shape) in groups.iter().flatten() {
        let mut tensor = Joined::new(name, dtype, shape)?;
        let (all, part) = (tensor.elements(), tensor.elements().div_ceil(processes));
        // The runs of the parameter in each process: it may begin in one group and end in another.
        let (mut runs, mut left) = (vec![], part);
        while left > 0 {
            let Some(&size) = sizes.get(group) else {
                return Err(wrong_sum(name, consumed + part, available));
            };
            let n = left.min(size - inside);
            runs.push((group, inside, n));
            (left, inside) = (left - n, inside + n);
            if inside == size {
                (group, inside) = (group + 1, 0);
            }
        }
        consumed += part;
        let mut missing = all;
        // Each turn of the loop takes elements of a file, so that it ends with those of the
        // parameter.
        let mut process = 0;
        while missing > 0 {
            for &(group, first, n) in &runs {
                let n = n.min(missing);
                tensor.push(parts[group][process], first, n, budget)?;
                missing -= n;
            }
            process += 1;
        }
        joined.push(tensor);
    }
    match consumed == available {
        true => Ok(joined),
        false => {
            let name = groups.iter().flatten().last();
            Err(wrong_sum(name.map_or("", |(name, _)| name), consumed, available))
        }
    }
}

/// The parameters that are not trained. In stage 3 each process has a part, else the state of the
/// model has them whole.
///
/// # Errors
/// `Parse` if a part is missing, or has another size; `Unsupported` if parts are of different
/// types.
pub(super) fn join_frozen(
    (stage, processes): (u8, usize),
    frozen: &[(String, Vec<usize>)],
    fragments: &[&HashMap<String, TensorInfo>],
    budget: &Budget,
) -> Result<Vec<Joined>> {
    let mut joined = vec![];
    for (name, shape) in frozen {
        let missing = || {
            let what = format!(
                "{}: a process has no part of it (`frozen_param_fragments`)",
                InTensor(&name)
            );
            AnamnesisError::parse(what)
        };
        let first = fragments.first().and_then(|first| first.get(name));
        let first = first.ok_or_else(missing)?;
        let mut tensor = Joined::new(name, first.dtype, shape)?;
        let all = tensor.elements();
        let expected = match stage {
            3 => all.div_ceil(processes),
            _ => all,
        };
        let mut left = all;
        for of_process in fragments {
            let part = of_process.get(name).ok_or_else(missing)?;
            require_run(part, first.dtype)?;
            if elements(part) != expected {
                return Err(wrong_sum(name, expected, elements(part)));
            }
            let n = expected.min(left);
            tensor.push(part, 0, n, budget)?;
            left -= n;
        }
        joined.push(tensor);
    }
    Ok(joined)
}

fn require_same_number(groups: &[Shapes], parts: &[Parts<'_>]) -> Result<()> {
    match groups.len() == parts.len() {
        true => Ok(()),
        false => Err(AnamnesisError::parse(format!(
            "the model has {} groups of parameters, and its optimizers {}",
            groups.len(),
            parts.len()
        ))),
    }
}

fn wrong_sum(name: &str, consumed: usize, available: usize) -> AnamnesisError {
    AnamnesisError::parse(format!(
        "{}: parameters take {consumed} elements, and the files have {available}",
        InTensor(&name)
    ))
}
