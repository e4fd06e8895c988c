//! [`Distribution`]: how large the values of a model are, counted by powers of two. Each value is
//! read once: of one model by itself, of two while they are compared.

use std::collections::HashMap;

use super::diff::{Observer, Schedule};
use super::inspect::{class_name, for_each_value};
use crate::convert::pair::{PairScratch, TensorPair};
use crate::convert::progress::ProgressSum;
use crate::{AnamnesisError, DiffOptions, DiffReport, Dtype, ParsedModel, Result};

/// Counts by powers of two: one for each exponent of F32. What is smaller than F32's normal numbers
/// is in the first, what is larger than its largest in the last.
const OCTAVES: usize = 256;

/// The power of two that octave 0 stands for.
const LOWEST: i32 = -127;

/// Classes of modules that are counted apart; those that come later are counted together. It bounds
/// the memory, whatever the names are.
const MOST_CLASSES: usize = 512;

/// Name of the classes that are counted together.
const OTHERS: &str = "(other classes)";

/// Counts of values by magnitude.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Magnitudes {
    /// Number of values of any kind.
    pub values: u64,
    /// Number of zeros, of either sign.
    pub zeros: u64,
    /// Number of NaN.
    pub nan: u64,
    /// Number of infinities, of either sign.
    pub infinite: u64,
    octaves: [u64; OCTAVES],
}

impl Default for Magnitudes {
    fn default() -> Self {
        Self { values: 0, zeros: 0, nan: 0, infinite: 0, octaves: [0; OCTAVES] }
    }
}

impl Magnitudes {
    /// The powers of two that have values, each with the number of values `x` for which `2^power <=
    /// |x| < 2^(power + 1)`.
    pub fn octaves(&self) -> impl Iterator<Item = (i32, u64)> {
        let counts = (LOWEST..).zip(self.octaves);
        counts.filter(|(_, count)| *count > 0)
    }

    fn add(&mut self, x: f64) {
        self.values += 1;
        match x {
            _ if x == 0.0 => self.zeros += 1,
            _ if x.is_nan() => self.nan += 1,
            _ if x.is_infinite() => self.infinite += 1,
            _ => {
                let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
                let octave = (exponent - LOWEST).clamp(0, OCTAVES as i32 - 1);
                self.octaves[octave as usize] += 1;
            }
        }
    }

    /// Adds the values of `dtype` in `bytes`. Complex values and blocks are no single numbers, and
    /// do not count.
    fn add_bytes(&mut self, dtype: Dtype, bytes: &[u8]) {
        let _ = for_each_value("", dtype, bytes, |x| self.add(x));
    }

    /// Adds the counts of other values.
    pub fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.infinite += other.infinite;
        for (count, other) in self.octaves.iter_mut().zip(other.octaves) {
            *count += other;
        }
    }
}

/// The magnitudes of the values of one class of modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMagnitudes {
    /// Name of the class, as in [`ModuleClass`](crate::ModuleClass).
    pub class: String,
    /// Number of tensors.
    pub tensors: usize,
    /// The values of the first model.
    pub a: Magnitudes,
    /// The values of the second model; without one there are none.
    pub b: Magnitudes,
}

/// The magnitudes of a model's values, or of those of two models, by class of modules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The classes in the order of their first tensors.
    pub classes: Vec<ClassMagnitudes>,
    /// Names of the tensors whose values could not be read, with the reasons; no name if none could
    /// be.
    pub unread: Vec<(String, String)>,
    at: HashMap<String, usize>,
}

impl Distribution {
    /// Name of the class of modules that a tensor belongs to, with `#` for each number:
    /// `model.layers.#.mlp.up_proj`.
    #[must_use]
    pub fn class_of(name: &str) -> String {
        class_name(name)
    }

    /// Reads the values of `model` that `options` select. What is wrong with the model is no error: it
    /// is in `unread`.
    ///
    /// # Errors
    /// `Io` if a file has changed since it was parsed; `Usage` if a pattern matches no tensor;
    /// `Cancelled`.
    pub fn of_model(model: &ParsedModel, options: &DiffOptions) -> Result<Self> {
        use AnamnesisError::{Cancelled, Io, Usage};

        let run = &options.run;
        let conversion = match model.plan(options.conversion()) {
            Err(error @ (Cancelled | Io(_) | Usage { .. })) => return Err(error),
            Err(error) => {
                let unread = vec![(String::new(), error.to_string())];
                return Ok(Self { unread, ..Self::default() });
            }
            Ok(conversion) => conversion,
        };
        let names: Vec<&str> = conversion.outputs().map(|output| output.name).collect();
        let tensors: Vec<TensorPair<'_, '_, '_>> = (0..names.len())
            .map(|i| TensorPair::single(&conversion, i))
            .collect();
        let jobs: Vec<usize> = tensors.iter().map(TensorPair::jobs).collect();
        let total = tensors.iter().map(TensorPair::byte_len).sum();
        let done = ProgressSum::new(run, total, tensors.len());
        let (mut jobs_left, mut found) = (jobs.clone(), Self::default());
        Schedule::new(jobs.into_iter()).run(
            run,
            |i, job, scratch: &mut PairScratch| {
                let mut counts = Magnitudes::default();
                let dtype = tensors[i].dtypes().0;
                let read = tensors[i].run(job, scratch, |_, a, _| counts.add_bytes(dtype, a));
                match read {
                    Err(AnamnesisError::Cancelled) => Err(AnamnesisError::Cancelled),
                    Err(error) => Ok(Err(error.to_string())),
                    Ok(()) => Ok(Ok([counts, Magnitudes::default()])),
                }
            },
            |i, counts| {
                jobs_left[i] -= 1;
                let is_last = jobs_left[i] == 0;
                done.add(tensors[i].bytes_of_job(jobs_left[i]), usize::from(is_last), 0);
                match counts {
                    Ok(counts) => found.fold(names[i], counts, is_last),
                    // A tensor has one reason, the first.
                    Err(_)
                        if found
                            .unread
                            .last()
                            .is_some_and(|(name, _)| name == names[i]) => {}
                    Err(reason) => found.unread.push((names[i].to_owned(), reason)),
                }
            },
        )?;
        model.require_unchanged()?;
        Ok(found)
    }

    /// Compares two models as [`ParsedModel::diff`] does, and counts the values of the tensors that
    /// both have, in one pass.
    ///
    /// # Errors
    /// Those of [`ParsedModel::diff`].
    pub fn of_diff(
        a: &ParsedModel,
        b: &ParsedModel,
        options: &DiffOptions,
    ) -> Result<(DiffReport, Self)> {
        let mut found = Self::default();
        let report = a.diff_observed(b, options, &mut found)?;
        Ok((report, found))
    }
}

impl Observer for Distribution {
    type Counts = [Magnitudes; 2];

    const READS_ALL: bool = true;

    fn count([a, b]: &mut Self::Counts, dtypes: (Dtype, Dtype), values: (&[u8], &[u8])) {
        a.add_bytes(dtypes.0, values.0);
        b.add_bytes(dtypes.1, values.1);
    }

    fn fold(&mut self, name: &str, [a, b]: Self::Counts, is_last: bool) {
        let mut class = class_name(name);
        if self.classes.len() >= MOST_CLASSES && !self.at.contains_key(&class) {
            OTHERS.clone_into(&mut class);
        }
        let at = *self.at.entry(class).or_insert_with_key(|class| {
            self.classes.push(ClassMagnitudes {
                class: class.clone(),
                tensors: 0,
                a: Magnitudes::default(),
                b: Magnitudes::default(),
            });
            self.classes.len() - 1
        });
        let found = &mut self.classes[at];
        found.tensors += usize::from(is_last);
        found.a.merge(&a);
        found.b.merge(&b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_between_powers_of_two() {
        let mut found = Magnitudes::default();
        let values =
            [0.0, -0.0, 1.0, 1.5, -1.999, 2.0, 0.25, 1e-300, f64::MAX, f64::NAN, f64::INFINITY];
        for x in values {
            found.add(x);
        }
        assert_eq!((found.values, found.zeros, found.nan, found.infinite), (11, 2, 1, 1));
        let octaves: Vec<_> = found.octaves().collect();
        assert_eq!(octaves, [(LOWEST, 1), (-2, 1), (0, 3), (1, 1), (128, 1)]);
    }

    #[test]
    fn memory_is_bounded_whatever_the_names_are() {
        let mut found = Distribution::default();
        for i in 0..5000 {
            found.fold(&format!("name{i}"), Default::default(), true);
        }
        assert_eq!(found.classes.len(), MOST_CLASSES + 1);
        let others = found.classes.last().unwrap();
        assert_eq!((others.class.as_str(), others.tensors), (OTHERS, 5000 - MOST_CLASSES));
    }
}
