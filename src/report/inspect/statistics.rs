//! [`TensorStatistics`]: range, moments and counts of a tensor's decoded values, in constant
//! memory.

use super::element_values::for_each_value;
use crate::convert::Conversion;
use crate::error::InTensor;
use crate::{AnamnesisError, Dtype, Result};

/// Values that are summed together before they are merged with those before them. It is a fixed
/// number, so the result does not depend on the pieces in which a tensor is decoded, and with them
/// on the number of threads.
const CHUNK: usize = 1024;

/// Range, moments and counts of a tensor's values.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct TensorStatistics {
    /// Name of the tensor.
    pub name: String,
    /// Element type of the decoded tensor.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Number of values.
    pub values: u64,
    /// Smallest finite value; `None` if there is no finite value, as for the next three.
    pub min: Option<f64>,
    /// Largest finite value.
    pub max: Option<f64>,
    /// Mean of the finite values.
    pub mean: Option<f64>,
    /// Standard deviation of the finite values: the root of the mean squared deviation (NumPy's
    /// `std`).
    pub std: Option<f64>,
    /// Number of zeros, of either sign.
    pub zeros: u64,
    /// Number of NaN.
    pub nan: u64,
    /// Number of infinities, of either sign.
    pub infinite: u64,
    /// How the finite values are distributed, if that was asked for.
    pub histogram: Option<Histogram>,
}

/// Number of finite values in parts of equal width between the smallest and the largest.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Histogram {
    /// Lower bound of the first part.
    pub from: f64,
    /// Upper bound of the last part, which it belongs to.
    pub to: f64,
    /// Number of values in each part, from the lowest.
    pub counts: Vec<u64>,
}

impl Conversion<'_> {
    /// Computes statistics of the output tensor called `name`, and with `bins` parts a histogram,
    /// for which the tensor is decoded a second time. Holds some MiB for each thread, whatever the
    /// size of the tensor.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let conversion = model.plan(anamnesis::TargetDtype::F32)?;
    /// let weight = conversion.statistics("layers.0.attention.wq.weight", 10)?;
    /// assert!(weight.nan == 0 && weight.min <= weight.mean);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: the element type is complex, or of less than a byte.
    /// - The errors of [`for_each_panel`](Self::for_each_panel).
    pub fn statistics(&self, name: &str, bins: usize) -> Result<TensorStatistics> {
        let Some(output) = self.output(name) else {
            let what = format!("{}: the output has no tensor of this name", InTensor(&name));
            return Err(AnamnesisError::parse(what));
        };
        let mut sums = Sums::default();
        self.for_each_panel(name, |panel| {
            for_each_value(name, panel.dtype, panel.bytes, |x| sums.add(x))
        })?;
        sums.merge_chunk();
        let known = |x: f64| (sums.finite > 0).then_some(x);
        let mut found = TensorStatistics {
            name: name.to_owned(),
            dtype: output.dtype,
            shape: output.shape.to_vec(),
            values: sums.finite + sums.nan + sums.infinite,
            min: known(sums.min),
            max: known(sums.max),
            mean: known(sums.mean),
            std: known((sums.squares / sums.finite as f64).sqrt()),
            zeros: sums.zeros,
            nan: sums.nan,
            infinite: sums.infinite,
            histogram: None,
        };
        if let (Some(from), Some(to), true) = (found.min, found.max, bins > 0) {
            let mut histogram = Histogram { from, to, counts: vec![0; bins] };
            self.for_each_panel(name, |panel| {
                for_each_value(name, panel.dtype, panel.bytes, |x| histogram.add(x))
            })?;
            found.histogram = Some(histogram);
        }
        Ok(found)
    }
}

impl Histogram {
    /// The part that `x` lies in. Halves keep the differences finite, whatever the range.
    fn add(&mut self, x: f64) {
        if !x.is_finite() {
            return;
        }
        let width = self.to / 2.0 - self.from / 2.0;
        let at = match width > 0.0 {
            true => (x / 2.0 - self.from / 2.0) / width * self.counts.len() as f64,
            false => 0.0,
        };
        let last = self.counts.len() - 1;
        self.counts[(at as usize).min(last)] += 1;
    }

    /// Lower bound of part `i`.
    #[must_use]
    pub fn bound(&self, i: usize) -> f64 {
        let share = i as f64 / self.counts.len() as f64;
        self.from * (1.0 - share) + self.to * share
    }
}

/// Mean and sum of squared deviations of the finite values so far, and counts.
struct Sums {
    chunk: Vec<f64>,
    finite: u64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
    zeros: u64,
    nan: u64,
    infinite: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            chunk: Vec::with_capacity(CHUNK),
            finite: 0,
            mean: 0.0,
            squares: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            zeros: 0,
            nan: 0,
            infinite: 0,
        }
    }
}

impl Sums {
    fn add(&mut self, x: f64) {
        if !x.is_finite() {
            match x.is_nan() {
                true => self.nan += 1,
                false => self.infinite += 1,
            }
            return;
        }
        self.chunk.push(x);
        if self.chunk.len() == CHUNK {
            self.merge_chunk();
        }
    }

    /// Merges the chunk by the formula of Chan, Golub and LeVeque for the variance of two sets,
    /// which does not subtract large sums of squares from each other.
    fn merge_chunk(&mut self) {
        let (n, before) = (self.chunk.len() as f64, self.finite as f64);
        if self.chunk.is_empty() {
            return;
        }
        let (mut sum, mut zeros) = (0.0, 0);
        for &x in &self.chunk {
            sum += x;
            self.min = self.min.min(x);
            self.max = self.max.max(x);
            zeros += u64::from(x == 0.0);
        }
        let mean = sum / n;
        let squares: f64 = self.chunk.iter().map(|x| (x - mean) * (x - mean)).sum();
        let delta = mean - self.mean;
        self.squares += squares + delta * delta * (before * n / (before + n));
        self.mean += delta * (n / (before + n));
        self.finite += self.chunk.len() as u64;
        self.zeros += zeros;
        self.chunk.clear();
    }
}
