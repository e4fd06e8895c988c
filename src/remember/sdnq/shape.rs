//! The shape of a weight of SDNQ, which the shapes of its scales tell. Packed codes have none.
//!
//! | shape of the scales | weight |
//! |---|---|
//! | `[out, 1]`, `[out, g, 1]` | matrix `[out, in]`, in `g` groups a row |
//! | `[1, out]` | matrix, stored transposed for a product of codes |
//! | `[out, 1, k…]`, `[out, g, 1, k…]` | convolution `[out, in, k…]`: a scale for each place of the kernel |
//! | ones | one scale |

use super::codes::StoredCodes;
use crate::Result;
use crate::config::SdnqSettings;
use crate::model::Tensor;
use crate::remember::seam::{refused, wrong};

use super::FAMILY;

/// Most places of a kernel. Real ones have some dozens; the scales of all are read for each tile.
const MAX_PLACES: usize = 65_536;

/// Dimensions of a kernel, at most.
const MOST_KERNEL_DIMENSIONS: usize = 3;

/// A weight, and how its scales lie.
#[derive(Debug, PartialEq)]
pub(super) struct SdnqShape {
    pub rows: usize,
    /// Inputs; of a convolution, channels.
    pub inputs: usize,
    /// The dimensions behind the inputs.
    pub kernel: Vec<usize>,
    /// Groups of inputs; 0 if there is one scale for all.
    pub groups: usize,
    /// Whether the codes are stored `[in, out]`.
    pub is_transposed: bool,
}

/// How the scales of a weight lie, before its size is known.
#[derive(Debug, PartialEq)]
enum ScaleLayout<'s> {
    One,
    Transposed(usize),
    Rows { rows: usize, groups: usize, kernel: &'s [usize] },
}

impl<'s> ScaleLayout<'s> {
    /// The layout that scales of `shape` have.
    fn of(shape: &'s [usize]) -> Option<Self> {
        let rows_of = |rows, groups, kernel: &'s [usize]| Self::Rows { rows, groups, kernel };
        Some(match shape {
            [1] | [1, 1] => Self::One,
            [1, rows] => Self::Transposed(*rows),
            [rows, 1] => rows_of(*rows, 1, &[]),
            [_, 0, ..] => return None,
            // A transposed convolution has its outputs in the second dimension.
            [1, _, _, _, ..] => return None,
            [rows, 1, kernel @ ..] => rows_of(*rows, 1, kernel),
            [rows, groups, 1, kernel @ ..] => rows_of(*rows, *groups, kernel),
            _ => return None,
        })
    }
}

impl SdnqShape {
    /// The shape of the weight `codes`, whose scales have the shape `scales`. Of packed codes with
    /// one scale, `rows` is the number of rows, if anything tells it.
    ///
    /// # Errors
    /// The shapes of codes and scales do not fit, or do not tell the shape of the weight.
    pub(super) fn new(
        codes: &StoredCodes<'_>,
        scales: &[usize],
        settings: &SdnqSettings,
        rows: Option<usize>,
    ) -> Result<Self> {
        let t = &codes.tensor;
        let misfit = || {
            let what = format!("its {} codes do not fit scales of shape {scales:?}", codes.count);
            wrong(t, what)
        };
        // Of a convolution whose codes are multiplied, the file has a matrix, and its kernel
        // nowhere.
        if settings.has_convolutions && settings.multiplies_convolutions && codes.has_shape() {
            let what = "it may be a convolution that is stored as a matrix (`use_quantized_matmul_conv`), whose kernel is not stored";
            return Err(refused(t, FAMILY, what));
        }
        let layout = ScaleLayout::of(scales).ok_or_else(misfit)?;
        let mut out = match layout {
            ScaleLayout::Rows { rows, groups, kernel } => {
                Self { kernel: kernel.to_vec(), ..Self::of_rows(rows, groups) }
            }
            ScaleLayout::Transposed(rows) if codes.has_shape() => {
                Self { is_transposed: true, ..Self::of_rows(rows, 1) }
            }
            ScaleLayout::Transposed(_) => return Err(misfit()),
            ScaleLayout::One if codes.has_shape() => {
                let found = Self::with_one_scale(t, settings).ok_or_else(misfit)?;
                return found.checked_outputs(t, rows);
            }
            ScaleLayout::One => Self::of_rows(packed_rows(t, settings, rows)?, 0),
        };
        // One output in groups, or a transposed convolution with a kernel of one place.
        let is_ambiguous = settings.has_convolutions && matches!(scales, [1, _, 1]);
        let has_odd_kernel = out.kernel.len() > MOST_KERNEL_DIMENSIONS
            || !settings.has_convolutions && !out.kernel.is_empty();
        if is_ambiguous || has_odd_kernel {
            return Err(misfit());
        }
        out.inputs = out.inputs_of(codes).ok_or_else(misfit)?;
        out.check_transposition(codes, scales, settings)?;
        Ok(out)
    }

    /// A matrix of `rows`, whose inputs are not known yet.
    fn of_rows(rows: usize, groups: usize) -> Self {
        Self { rows, inputs: 0, kernel: vec![], groups, is_transposed: false }
    }

    /// The weight, if it has `rows` outputs as far as that is known. Outputs that are neither
    /// dimension are those of another layer, as far as the config can tell.
    fn checked_outputs(self, t: &Tensor<'_>, rows: Option<usize>) -> Result<Self> {
        match rows.filter(|&n| n != self.rows && n == self.inputs) {
            Some(rows) => {
                let what = format!(
                    "by `use_quantized_matmul` it has {} outputs, and a bias, factors or config.json tell of {rows}",
                    self.rows
                );
                Err(wrong(t, what))
            }
            None => Ok(self),
        }
    }

    /// Inputs of the weight, whose other sizes are known; `None` if `codes` do not fit those.
    fn inputs_of(&self, codes: &StoredCodes<'_>) -> Option<usize> {
        let kernel = self
            .kernel
            .iter()
            .try_fold(1usize, |n, &k| n.checked_mul(k))?;
        let per_input = kernel.checked_mul(self.rows).filter(|&n| n > 0)?;
        let inputs = codes.count / per_input;
        let fits = codes.count.is_multiple_of(per_input)
            && inputs.is_multiple_of(self.groups.max(1))
            && (!codes.has_shape() || self.is_stored_as(inputs, codes.tensor.shape()));
        fits.then_some(inputs)
    }

    /// # Errors
    /// The weight could be a transposed one as well, or has too large a kernel.
    fn check_transposition(
        &self,
        codes: &StoredCodes<'_>,
        scales: &[usize],
        settings: &SdnqSettings,
    ) -> Result<()> {
        let t = &codes.tensor;
        // Shapes of a square matrix do not tell whether it is stored transposed, and its scales
        // alone may be wrong.
        let is_square = self.rows == self.inputs && self.groups == 1 && self.kernel.is_empty();
        if codes.has_shape()
            && is_square
            && !settings.has_convolutions
            && self.is_transposed != settings.transposes(self.rows, self.inputs)
        {
            let what = format!(
                "scales of shape {scales:?} and `use_quantized_matmul` contradict each other on whether it is stored transposed"
            );
            return Err(refused(t, FAMILY, what));
        }
        if self.kernel_size() > MAX_PLACES {
            let what = format!("its kernel has more than {MAX_PLACES} places");
            return Err(refused(t, FAMILY, what));
        }
        if self.may_be_transposed_convolution(settings) {
            let what = "its scales may be those of a transposed convolution in groups, which is not decoded \
                        (`group_size` -1 would exclude it)";
            return Err(refused(t, FAMILY, what));
        }
        Ok(())
    }

    /// The shape of codes that have their own, and one scale.
    fn with_one_scale(t: &Tensor<'_>, settings: &SdnqSettings) -> Option<Self> {
        let &[first, second] = t.shape() else {
            return None;
        };
        let is_transposed = settings.transposes(first, second);
        let (rows, inputs) = match is_transposed {
            true => (second, first),
            false => (first, second),
        };
        Some(Self { rows, inputs, kernel: vec![], groups: 0, is_transposed })
    }

    /// Whether a transposed convolution `[n, n, k…]` in `g` groups has scales of the same shape,
    /// `[n, 1, g, k…]`, as this convolution, whose kernel then begins with `g`. The library has no
    /// more groups than fit into its inputs.
    fn may_be_transposed_convolution(&self, settings: &SdnqSettings) -> bool {
        let (&[groups, _, ..], Some(least)) = (self.kernel.as_slice(), settings.least_group())
        else {
            return false;
        };
        self.groups == 1
            && groups > 1
            && self.rows == self.inputs * groups
            && groups.saturating_mul(least) <= self.rows
    }

    /// Whether codes that are not packed have this shape, with so many inputs.
    fn is_stored_as(&self, inputs: usize, stored: &[usize]) -> bool {
        if self.is_transposed {
            return stored == [inputs, self.rows];
        }
        let behind = |front: &[usize]| stored.strip_prefix(front) == Some(self.kernel.as_slice());
        let groups = self.groups.max(1);
        behind(&[self.rows, inputs]) || behind(&[self.rows, groups, inputs / groups])
    }

    /// Values at each input: those of the kernel.
    pub(super) fn kernel_size(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Values of a row.
    pub(super) fn cols(&self) -> usize {
        self.inputs * self.kernel_size()
    }

    /// The shape of the weight.
    pub(super) fn dims(&self) -> Vec<usize> {
        [&[self.rows, self.inputs], self.kernel.as_slice()].concat()
    }
}

/// Rows of packed codes with one scale. A weight of one row that has a scale for each row has one
/// scale as well.
fn packed_rows(t: &Tensor<'_>, settings: &SdnqSettings, rows: Option<usize>) -> Result<usize> {
    if !settings.has_one_scale() {
        return Ok(1);
    }
    rows.ok_or_else(|| {
        let what =
            "its packed codes have one scale, and neither a bias nor config.json tells its shape";
        refused(t, FAMILY, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_tell_the_layout() {
        let rows = |rows, groups, kernel| Some(ScaleLayout::Rows { rows, groups, kernel });
        for (shape, want) in [
            (&[1, 1][..], Some(ScaleLayout::One)),
            (&[1, 32], Some(ScaleLayout::Transposed(32))),
            (&[32, 1], rows(32, 1, &[])),
            (&[32, 4, 1], rows(32, 4, &[])),
            (&[1, 4, 1], rows(1, 4, &[])),
            (&[6, 1, 3, 3], rows(6, 1, &[3, 3])),
            (&[6, 4, 1, 3], rows(6, 4, &[3])),
            (&[6, 2, 1, 3, 3], rows(6, 2, &[3, 3])),
            (&[1, 6, 3, 3], None),
            (&[32, 4], None),
            (&[32, 4, 2], None),
            (&[32, 0, 1], None),
            (&[32], None),
            (&[], None),
        ] {
            assert_eq!(ScaleLayout::of(shape), want, "{shape:?}");
        }
    }
}
