//! What GPTQ and AWQ share on disk: `X.qweight`, `X.scales`, `X.qzeros` and their panels.

use std::ops::Range;

use super::{Floats, Index, base_of, read, refused, wrong};
use crate::model::{Part, Tensor};
use crate::{Dtype, Result};

/// The tensors of one packed linear layer.
pub(super) struct Packed<'m> {
    /// Name up to and with the last dot.
    pub base: &'m str,
    pub qweight: Tensor<'m>,
    pub scales: Tensor<'m>,
    pub qzeros: Option<Tensor<'m>>,
    /// Rows and columns of `qweight`.
    pub words: [usize; 2],
    pub groups: usize,
    /// Output features.
    pub n: usize,
}

/// How `qweight` is laid out, told from its shape and that of the scales `[groups, out]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[in * bits / 32, out]`.
    Gptq,
    /// `[in, out / 8]`.
    AwqGemm,
    /// Neither.
    Unknown,
}

impl<'m> Packed<'m> {
    /// Collects the tensors around `t` if it is a `qweight`.
    pub(super) fn find(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Self>> {
        let Some(base) = base_of(t.name(), "qweight") else { return Ok(None) };
        let scales = all.need(t, base, "scales")?;
        let &[rows, cols] = t.shape() else { return Err(wrong(t, "a qweight has two dimensions")) };
        let &[groups, n] = scales.shape() else { return Err(wrong(&scales, "scales have two dimensions")) };
        if t.elements() == 0 || scales.elements() == 0 {
            return Err(wrong(t, "there is nothing in it"));
        }
        let qzeros = all.at(base, "qzeros");
        for words in [Some(*t), qzeros].into_iter().flatten() {
            if !matches!(words.dtype(), Dtype::I32 | Dtype::U32) {
                return Err(refused(&words, "packed integers", "words are I32"));
            }
        }
        Ok(Some(Self { base, qweight: *t, scales, qzeros, words: [rows, cols], groups, n }))
    }

    /// The layout that the shapes prove.
    pub(super) fn layout(&self) -> Layout {
        let [_, cols] = self.words;
        if cols == self.n {
            Layout::Gptq
        } else if cols.checked_mul(8) == Some(self.n) {
            Layout::AwqGemm
        } else {
            Layout::Unknown
        }
    }

    /// The group size: configured, or implied by the number of groups of `k` input features. Where an index
    /// has the group of each input, several sizes may fit.
    pub(super) fn group_size(&self, k: usize, indexed: bool, all: &Index<'m>) -> Result<usize> {
        let (t, groups) = (&self.qweight, self.groups);
        if let Some((size, place)) = all.config.int(&["group_size", "q_group_size"]) {
            let size = if size == -1 { k } else { usize::try_from(size).unwrap_or(0) };
            if size > 0 && k.div_ceil(size) == groups {
                return Ok(size);
            }
            if !all.config.has("dynamic") && !all.config.has("extra_config") {
                return Err(wrong(t, format!("{place} says groups of {size} inputs, and {groups} groups cover {k}")));
            }
        }
        let exact = k.is_multiple_of(groups).then(|| k / groups);
        let ragged = [16, 32, 64, 128, 256, 512, 1024].into_iter().find(|&p| k.div_ceil(p) == groups);
        match (exact, ragged) {
            (Some(size), None) | (None, Some(size)) => Ok(size),
            (Some(exact), Some(ragged)) if exact == ragged || groups == 1 || indexed => Ok(exact),
            _ => Err(wrong(t, format!("how {groups} groups divide {k} inputs, no config tells"))),
        }
    }
}

/// Makes `out` the scales of groups `groups`, columns `cols`, a row for each column:
/// `out[c * groups.len() + g]`.
pub(super) fn load_scales(
    scales: &Floats<'_>,
    stride: usize,
    groups: &[usize],
    cols: Range<usize>,
    staging: &mut Vec<u8>,
    row: &mut Vec<f32>,
    out: &mut Vec<f32>,
) -> Result<()> {
    let count = groups.len();
    out.resize(count * cols.len(), 0.0);
    for (g, &group) in groups.iter().enumerate() {
        row.clear();
        scales.extend(stride, group..group + 1, cols.clone(), staging, row)?;
        for (out, &scale) in out.chunks_exact_mut(count).zip(row.iter()) {
            out[g] = scale;
        }
    }
    Ok(())
}

/// Calls `each(group, words)` with words `cols` of each group's packed zero points.
pub(super) fn for_each_zeros(
    qzeros: &Part<'_>,
    stride: usize,
    groups: &[usize],
    cols: Range<usize>,
    staging: &mut Vec<u8>,
    words: &mut Vec<u32>,
    mut each: impl FnMut(usize, &mut [u32]),
) -> Result<()> {
    for (g, &group) in groups.iter().enumerate() {
        read(qzeros, stride * 4, group..group + 1, cols.start * 4..cols.end * 4, staging)?;
        words.clear();
        words.extend(staging.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)));
        each(g, words);
    }
    Ok(())
}
