//! Codes of up to eight bits in groups that have a codebook each: a value is the entry that the
//! code picks.
//!
//! Formula: sdnq `dequantize_codebook`.

use crate::element::Element;
use crate::simd::{Kernel, zip};

/// Most entries of a codebook.
const MAX_ENTRIES: usize = 256;

/// Rows of codes, a byte each, with the codebooks of their groups.
pub(crate) struct CodebookGroups<'a> {
    pub codes: &'a [u8],
    /// Codes of a row.
    pub width: usize,
    /// Place of a row's first code in its group.
    pub start: usize,
    /// Codes of a group.
    pub group: usize,
    /// Codebooks of `entries` numbers, those of a row after those of the row before; or those of
    /// one row, for all.
    pub codebooks: &'a [f32],
    /// Codebooks of a row.
    pub groups: usize,
    pub entries: usize,
    pub has_row_codebooks: bool,
}

impl Kernel for CodebookGroups<'_> {
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        false
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let width = self.width.max(1);
        let row_entries = self.groups * self.entries;
        let rows = zip(self.codes.chunks_exact(width), out.chunks_exact_mut(width));
        for (r, (mut codes, mut out)) in rows.enumerate() {
            let first = if self.has_row_codebooks {
                r * row_entries
            } else {
                0
            };
            let codebooks = &self.codebooks[first..first + row_entries];
            let mut left = self.group - self.start;
            for codebook in codebooks.chunks_exact(self.entries) {
                let n = left.min(out.len());
                let (now, rest) = codes.split_at(n);
                let (target, tail) = out.split_at_mut(n);
                look_up(codebook, now, target);
                (codes, out, left) = (rest, tail, self.group);
            }
        }
    }
}

/// Looks up `codes`, each of which is below the number of entries.
#[inline(always)]
fn look_up<E: Element>(codebook: &[f32], codes: &[u8], out: &mut [E]) {
    // Entries are rounded once for a group that has more codes than they are.
    if codes.len() < codebook.len() {
        for (out, &code) in zip(&mut out[..], codes) {
            *out = E::from_f32(codebook[usize::from(code)]);
        }
        return;
    }
    let mut rounded = [E::from_f32(0.0); MAX_ENTRIES];
    E::store(codebook, &mut rounded);
    for (out, &code) in zip(&mut out[..], codes) {
        *out = rounded[usize::from(code)];
    }
}
