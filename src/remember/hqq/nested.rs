//! Scales and zero points that are quantized in turn.

use std::ops::Range;

use crate::element::Element;
use crate::model::Part;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Floats, read};
use crate::{Result, TargetDtype};

/// Which scale of the second level belongs to a value of the first.
pub(in crate::remember) enum MetaGroups {
    /// One for all values.
    Single,
    /// This many adjacent values share one.
    Adjacent(usize),
    /// Values at a distance of this many share one.
    Strided(usize),
}

/// Scales or zero points that are quantized to eight bits: `(code - zero) * scale`, or `code *
/// scale + zero`.
pub(in crate::remember) struct NestedNumbers<'m> {
    pub codes: Part<'m>,
    pub scale: Floats<'m>,
    pub zero: Floats<'m>,
    /// Whether the zero is added last, rather than subtracted first.
    pub is_zero_added: bool,
    pub groups: MetaGroups,
    /// Values in a row of the grid of groups.
    pub cols: usize,
    /// The type that the result of each operation is rounded to; `None`: F32.
    pub round: Option<TargetDtype>,
}

impl NestedNumbers<'_> {
    /// Appends the values `range` of the flattened grid. In a strided grouping the range must not
    /// cross a multiple of the stride, so that the scales it uses are adjacent.
    fn piece(&self, range: Range<usize>, staging: &mut Vec<u8>, out: &mut Vec<f32>) -> Result<()> {
        let group = |i: usize| match self.groups {
            MetaGroups::Single => 0,
            MetaGroups::Adjacent(n) => i / n,
            MetaGroups::Strided(n) => i % n,
        };
        let used = group(range.start)..group(range.end - 1) + 1;
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        self.scale
            .extend(used.end, 0..1, used.clone(), staging, &mut scales)?;
        self.zero
            .extend(used.end, 0..1, used.clone(), staging, &mut zeros)?;
        read(&self.codes, range.end, 0..1, range.clone(), staging)?;
        // Rounded after each step, as torch computes in T. Without T both steps are left in F32.
        let round = |x: f32| match self.round {
            Some(TargetDtype::BF16) => <half::bf16 as Element>::rounded(x),
            Some(TargetDtype::F16) => <half::f16 as Element>::rounded(x),
            _ => x,
        };
        out.extend(range.zip(staging.iter()).map(|(i, &code)| {
            let at = group(i) - used.start;
            match self.is_zero_added {
                true => round(round(f32::from(code) * scales[at]) + zeros[at]),
                false => round(round(f32::from(code) - zeros[at]) * scales[at]),
            }
        }));
        Ok(())
    }
}

impl ScaleMatrix for NestedNumbers<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // Whole rows are adjacent, and read as one.
        let whole = cols.len() == self.cols;
        let lines = if whole {
            rows.start..rows.start + usize::from(!rows.is_empty())
        } else {
            rows.clone()
        };
        for row in lines {
            let n = if whole {
                rows.len() * self.cols
            } else {
                cols.len()
            };
            let mut at = row * self.cols + cols.start;
            let end = at + n;
            while at < end {
                // Strided scales start again at each multiple of the stride.
                let wrap = match self.groups {
                    MetaGroups::Strided(n) => at - at % n + n,
                    _ => end,
                };
                self.piece(at..wrap.min(end), staging, out)?;
                at = wrap.min(end);
            }
        }
        Ok(())
    }
}
