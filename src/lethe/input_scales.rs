//! Scales of the inputs of layers, as AWQ has them: a column whose activations are large is
//! multiplied with a number before it is rounded, and the norm that the activations come from is
//! divided by it. The model computes what it did, and the column loses less.
//!
//! The scales are powers of the roots of the mean squares of the activations. The exponent is that
//! of a few which costs the outputs of some rows least.
//!
//! Source: Lin et al., AWQ (arXiv 2306.00978), section 3.2; AutoAWQ `awq/quantize/quantizer.py`
//! (`_search_best_scale`, `_compute_best_scale`).

use std::sync::Arc;

use half::{bf16, f16};

use super::imatrix::Imatrix;
use super::llama_names::llama_name;
use super::{Encode, EncodeBuffers, Survey, TileValues};
use crate::element::Element;
use crate::lethe::kernels::activations::{Activations, OutputSquares};
use crate::remember::Tile;
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// Exponents that are tried, beside no scale at all. On language models 0.3 loses least in most layers.
const EXPONENTS: [f32; 4] = [0.2, 0.3, 0.4, 0.5];

/// No column is multiplied with more, or divided by more.
const LARGEST: f32 = 64.0;

/// Some rows of a matrix that is to be encoded, or as many of each matrix of a stack.
pub(crate) struct SampledRows {
    /// Number of matrices.
    pub matrices: usize,
    pub cols: usize,
    pub values: Vec<f32>,
    /// Mean squares of the activations of the columns, of each matrix.
    pub squares: Vec<f32>,
    pub means: Vec<f32>,
}

/// A matrix that reads a norm: some of its rows, with the encoder of a matrix of these alone.
pub(crate) struct InputReader {
    pub rows: SampledRows,
    pub encoder: Box<dyn Encode>,
}

/// A norm's values as they are stored, with what the model adds to them.
pub(crate) struct NormValues {
    pub values: Vec<f32>,
    pub offset: f32,
    /// Type that they are stored in.
    pub dtype: TargetDtype,
}

/// What columns are multiplied with, and the norm that is divided by it.
pub(crate) struct InputScales {
    pub columns: Arc<[f32]>,
    pub norm: Arc<[f32]>,
}

/// The scales of the inputs that all `readers` share; `None` if all cost more than none.
///
/// # Errors
/// Those of encoding.
pub(crate) fn find_input_scales(
    readers: &[InputReader],
    norm: &NormValues,
    level: Level,
) -> Result<Option<InputScales>> {
    let Some(squares) = readers.first().map(|reader| &reader.rows.squares) else {
        return Ok(None);
    };
    let mut best = (cost(readers, None, level)?, None);
    for exponent in EXPONENTS {
        let scales = norm.divided_by(&powers(squares, exponent));
        let found = cost(readers, Some(&scales.columns), level)?;
        if found < best.0 {
            best = (found, Some(scales));
        }
    }
    Ok(best.1)
}

/// The root of each of `squares` to the power `exponent`, so that the largest and the smallest are
/// each other's inverse.
fn powers(squares: &[f32], exponent: f32) -> Vec<f32> {
    let largest = squares.iter().copied().fold(0.0, f32::max);
    // What is never active has no scale of its own.
    let least = largest * 1e-8;
    let scales = squares
        .iter()
        .map(|&square| square.max(least).sqrt().powf(exponent));
    let scales: Vec<f32> = scales.collect();
    let ends = scales
        .iter()
        .fold((f32::MAX, 0.0), |(low, high), &scale| (scale.min(low), scale.max(high)));
    let middle = (ends.0 * ends.1).sqrt();
    let fitting = |scale: f32| match (scale / middle).clamp(1.0 / LARGEST, LARGEST) {
        scale if scale.is_finite() => scale,
        _ => 1.0,
    };
    scales.into_iter().map(fitting).collect()
}

impl NormValues {
    /// The norm divided by about `scales`, and what it is divided by exactly: the quotient is rounded
    /// to the type of the norm, and columns are multiplied with what that makes of the scale.
    fn divided_by(&self, scales: &[f32]) -> InputScales {
        let divided = self.values.iter().zip(scales).map(|(&value, &scale)| {
            let factor = f64::from(value) + f64::from(self.offset);
            let quotient = (factor / f64::from(scale)) as f32 - self.offset;
            let stored = match self.dtype {
                TargetDtype::F32 => quotient,
                TargetDtype::F16 => f16::rounded(quotient),
                TargetDtype::BF16 => bf16::rounded(quotient),
            };
            let exact = (factor / (f64::from(stored) + f64::from(self.offset))) as f32;
            // A factor of 0, or near the least that the type has.
            let is_near = (0.5..2.0).contains(&(exact / scale));
            if is_near {
                (exact, stored)
            } else {
                (1.0, value)
            }
        });
        let (columns, norm): (Vec<f32>, Vec<f32>) = divided.unzip();
        InputScales { columns: columns.into(), norm: norm.into() }
    }
}

/// What encoding costs the outputs of all readers, if their columns are multiplied with `scales`.
fn cost(readers: &[InputReader], scales: Option<&[f32]>, level: Level) -> Result<f64> {
    let mut sum = 0.0;
    for reader in readers {
        let how = (&*reader.encoder, true);
        sum += reader.rows.outputs(scales, how, level)?.errors;
    }
    Ok(sum)
}

impl SampledRows {
    /// Matrices, rows of each, columns.
    pub(crate) fn shape(&self) -> [usize; 3] {
        let all = self.matrices.max(1) * self.cols.max(1);
        [self.matrices, self.values.len() / all, self.cols]
    }

    /// What part is lost by encoding: of the squares of the outputs, as if errors of columns added up by
    /// chance, or of those of the weights, whichever is more. `searches`: scales are searched.
    ///
    /// # Errors
    /// Those of encoding.
    pub(crate) fn loss(
        &self,
        (encoder, searches): (&dyn Encode, bool),
        level: Level,
    ) -> Result<f64> {
        let no_means = vec![0.0; self.means.len()];
        let mut loss = 0.0f64;
        for squares in [&self.squares, &vec![1.0; self.squares.len()]] {
            let statistics = (squares.clone(), no_means.clone());
            let found = self.outputs_of(statistics, None, (encoder, searches), level)?;
            if found.values > 0.0 {
                loss = loss.max(found.errors / found.values);
            }
        }
        Ok(loss)
    }

    /// The outputs, and their errors, if columns are multiplied with `scales`.
    fn outputs(
        &self,
        scales: Option<&[f32]>,
        how: (&dyn Encode, bool),
        level: Level,
    ) -> Result<OutputSquares> {
        self.outputs_of((self.squares.clone(), self.means.clone()), scales, how, level)
    }

    /// As [`outputs`](Self::outputs), with other mean squares and means of the activations.
    fn outputs_of(
        &self,
        (mut squares, mut means): (Vec<f32>, Vec<f32>),
        scales: Option<&[f32]>,
        (encoder, searches): (&dyn Encode, bool),
        level: Level,
    ) -> Result<OutputSquares> {
        let [matrices, rows, cols] = self.shape();
        let mut values = self.values.clone();
        if let Some(scales) = scales {
            for row in values.chunks_exact_mut(cols.max(1)) {
                row.iter_mut().zip(scales).for_each(|(x, s)| *x *= s);
            }
            divide(&mut squares, &mut means, scales);
        }
        let variances = squares
            .iter()
            .zip(&means)
            .map(|(square, mean)| (square - mean * mean).max(0.0));
        let variances: Vec<f32> = variances.collect();
        let of_rows = |of_matrices: Vec<f32>| -> Vec<f32> {
            let of_matrix = of_matrices.chunks_exact(cols.max(1));
            of_matrix.flat_map(|of_row| of_row.repeat(rows)).collect()
        };
        let [variances, means] = [variances, means].map(of_rows);
        let activations = Activations { variances: &variances, means: &means, row: cols };
        let searched = if searches {
            activations
        } else {
            Activations::default()
        };
        let back = encoded(encoder, [matrices * rows, cols], (&values, searched), level)?;
        Ok(activations.outputs(&values, &back, level))
    }
}

/// Divides statistics of activations by the scales that columns are multiplied with.
fn divide(squares: &mut [f32], means: &mut [f32], scales: &[f32]) {
    for ((square, mean), scale) in squares.iter_mut().zip(means).zip(scales) {
        *square /= scale * scale;
        *mean /= scale;
    }
}

/// What `values` are decoded to once they are encoded.
fn encoded(
    encoder: &dyn Encode,
    [rows, cols]: [usize; 2],
    (values, activations): (&[f32], Activations<'_>),
    level: Level,
) -> Result<Vec<f32>> {
    let magnitude = |values: &[f32]| values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let survey = match encoder.survey() {
        None => 0.0,
        Some(Survey::MaxAbs) => f64::from(magnitude(values)),
        Some(Survey::MeanOfBlockMaxAbs(run)) => {
            let blocks = values.chunks(run.max(1));
            let n = blocks.len().max(1) as f64;
            blocks.map(|block| f64::from(magnitude(block))).sum::<f64>() / n
        }
        Some(Survey::Steps) => encoder.step_errors(values, level).steps(values.len()) as f64,
    };
    let tile = match encoder.grid() {
        grid if grid.cols == cols => Tile { rows: 0..rows, cols: 0..cols },
        // One flat run of blocks.
        grid => Tile { rows: 0..grid.rows, cols: 0..grid.cols },
    };
    let (mut buffers, mut back) = (EncodeBuffers::default(), vec![0.0; values.len()]);
    let values = TileValues { tile: &tile, values, survey, maxima: &[], activations, level };
    encoder.encode(&values, &mut buffers, &mut back, &mut |_, _, _| Ok(()))?;
    Ok(back)
}

impl Imatrix {
    /// The matrix of a model whose tensors `scaled` (name and shape) have columns that are multiplied
    /// with such scales, and inputs that are divided by them.
    pub(crate) fn with_scaled_inputs(&self, scaled: &[(&str, &[usize], &[f32])]) -> Result<Self> {
        let mut matrix = self.clone();
        for (name, shape, scales) in scaled {
            let statistics = (self.of_tensor(name, shape)?, self.means_of_tensor(name, shape)?);
            let (Some(squares), means) = statistics else {
                continue;
            };
            // Under the name that the entry has.
            let key = match self.get(name) {
                Some(_) => (*name).to_owned(),
                None => llama_name(name).name,
            };
            let mut squares = squares.to_vec();
            let mut means = means.map_or_else(|| vec![0.0; squares.len()], <[f32]>::to_vec);
            divide(&mut squares, &mut means, scales);
            matrix.means.insert(key.clone(), means);
            matrix.entries.insert(key, squares);
        }
        Ok(matrix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product of a norm and of what columns are multiplied with stays, whatever the type rounds.
    #[test]
    fn norms_are_divided_exactly() {
        let values = vec![1.0, -0.5, 0.0, 1e-40, 3.0e38, 0.0078125, -1.0, 17.0];
        let scales = [3.0, 0.3, 2.0, 7.0, 0.1, 1.7, 0.9, 1.0];
        for dtype in [TargetDtype::BF16, TargetDtype::F16, TargetDtype::F32] {
            for offset in [0.0, 1.0] {
                let norm = NormValues { values: values.clone(), offset, dtype };
                let scaled = norm.divided_by(&scales);
                for (i, value) in values.iter().enumerate() {
                    let (column, stored) = (scaled.columns[i], scaled.norm[i]);
                    assert!(column.is_finite() && column != 0.0, "{dtype} {value}");
                    let product = (f64::from(stored) + f64::from(offset)) * f64::from(column);
                    let wanted = f64::from(*value) + f64::from(offset);
                    assert!((product - wanted).abs() <= wanted.abs() * 1e-6, "{dtype} {value}");
                }
            }
        }
        let zero = NormValues { values: vec![0.0], offset: 0.0, dtype: TargetDtype::BF16 };
        assert_eq!(
            (zero.divided_by(&[2.0]).columns[0], zero.divided_by(&[2.0]).norm[0]),
            (1.0, 0.0)
        );
    }

    #[test]
    fn powers_of_what_is_never_active() {
        assert_eq!(powers(&[0.0, 0.0], 0.5), [1.0, 1.0]);
        let found = powers(&[0.0, 1.0, 16.0], 0.5);
        assert!(
            found
                .iter()
                .all(|scale| (1.0 / LARGEST..=LARGEST).contains(scale)),
            "{found:?}"
        );
        assert!((found[2] / found[1] - 2.0).abs() < 1e-5, "{found:?}");
        assert_eq!(powers(&[4.0, 4.0], 0.3), [1.0, 1.0]);
    }
}
