//! Comparing two models: tensors by name, values after decoding, metadata and configs.

mod fields;
mod pairs;
mod report;
mod schedule;
mod sides;
mod values;

use self::pairs::{Pairing, StoredPair};
pub use self::report::{
    ComparedTensor, DiffReport, ElementValue, FieldDiff, FirstDifference, TensorDiff, ValueDiff,
};
pub(crate) use self::schedule::{Schedule, jobs_of_bytes, pieces_of_job};
use self::sides::Side;
use self::values::{Comparable, CompareRule, Sums};
use crate::convert::asked::Asked;
use crate::convert::pair::{PairScratch, TensorPair};
use crate::convert::progress::ProgressSum;
use crate::{Conversion, ConvertOptions, Dtype, ParsedModel, RememberOptions, Result, TargetDtype};

/// Options of [`ParsedModel::diff`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DiffOptions {
    /// Element type that quantized values are decoded to, threads, cancellation and progress. By
    /// default F32, which holds what most schemes decode to without rounding.
    pub run: RememberOptions,
    /// Largest absolute difference of two values that count as equal.
    pub tolerance: f64,
    /// Whether only names, shapes and values are compared: dtypes, schemes, metadata and configs
    /// may differ.
    pub values_only: bool,
    /// Names of the tensors to compare, as [`ConvertOptions::include`]. If empty, all are.
    pub include: Vec<String>,
    /// Names of the tensors to leave out. It takes precedence over `include`.
    pub exclude: Vec<String>,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            run: RememberOptions::new(TargetDtype::F32),
            tolerance: 0.0,
            values_only: false,
            include: Vec::new(),
            exclude: Vec::new(),
        }
    }
}

impl DiffOptions {
    /// Sets the element type that values are decoded to, threads, cancellation and progress.
    #[must_use]
    pub fn with_run(mut self, run: RememberOptions) -> Self {
        self.run = run;
        self
    }

    /// Sets the largest absolute difference of two values that count as equal.
    #[must_use]
    pub fn with_tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Sets whether only names, shapes and values are compared.
    #[must_use]
    pub fn with_values_only(mut self, values_only: bool) -> Self {
        self.values_only = values_only;
        self
    }

    /// The options of the conversions whose output tensors are compared.
    pub(crate) fn conversion(&self) -> ConvertOptions {
        let mut options = ConvertOptions::for_values(&self.run);
        (options.include, options.exclude) = (self.include.clone(), self.exclude.clone());
        options
    }
}

impl ParsedModel {
    /// Compares this model (`a`) with `other` (`b`): tensors that only one has, and what differs
    /// between tensors of one name. Values are compared after decoding, whatever they are stored
    /// in, and read in pieces: memory does not grow with the models.
    ///
    /// NaN equals NaN and differs from every number; 0 equals -0. Sums are in F64 and do not depend
    /// on the number of threads.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// # let directory = tempfile::tempdir()?;
    /// # let decoded = directory.path().join("model-bf16.safetensors");
    /// use anamnesis::{DiffOptions, TargetDtype};
    ///
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// model.remember(&decoded, TargetDtype::F32)?;
    /// let report = model.diff(&anamnesis::parse(&decoded)?, &DiffOptions::default())?;
    /// assert!(report.is_different()); // F8_E4M3 has become F32
    /// assert_eq!(report.changed[0].values.as_ref().unwrap().unequal, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded, or an invalid
    ///   pattern.
    /// - `Io`: an input cannot be read, or one of its files has changed since it was parsed.
    /// - `Cancelled`: the token of the options is set.
    pub fn diff(&self, other: &Self, options: &DiffOptions) -> Result<DiffReport> {
        self.diff_observed(other, options, &mut ())
    }

    /// [`diff`](Self::diff), with an observer of the values.
    pub(crate) fn diff_observed(
        &self,
        other: &Self,
        options: &DiffOptions,
        observer: &mut impl Observer,
    ) -> Result<DiffReport> {
        let asked = Asked::of_names(&options.include, &options.exclude)?;
        let models = [self, other];
        let (named, note) = sides::as_of_transformers(models, options)?;
        let mut report = DiffReport::new(options);
        report.notes = pairs::notes(self, other);
        report.notes.extend(note);
        report.values_only |= named.is_some();
        let key = match named {
            Some(_) => sides::name_in_class,
            None => str::to_owned,
        };
        let [a, b] = match named {
            Some(sides) => sides,
            None => {
                let side = |model| Side::as_stored(model, options, &asked);
                [side(self)?, side(other)?]
            }
        };
        let pairing = Pairing::new(models, [(&a.plan, a.items), (&b.plan, b.items)], &asked, key);
        if !report.values_only {
            report.metadata = fields::metadata(self, other);
            report.config = fields::configs(self, other)?;
        }
        let values = compare_values(&pairing, (&a.plan, &b.plan), options, observer)?;
        self.require_unchanged()?;
        other.require_unchanged()?;
        report.add_tensors(pairing, values);
        Ok(report)
    }
}

/// What comparing the values of a pair has shown.
enum Compared {
    /// The values are the same, for they are made of the same bytes in the same way.
    Same,
    Sums(Sums, Comparable),
    /// The shapes differ, or the values are of types that have no numbers.
    Incomparable,
}

/// Counts more of the values that a comparison reads.
pub(crate) trait Observer: Send {
    /// What is counted in one job.
    type Counts: Default + Send;

    /// Whether tensors that are stored with the same bytes are decoded, too.
    const READS_ALL: bool;

    /// Counts the consecutive values of both sides.
    fn count(counts: &mut Self::Counts, dtypes: (Dtype, Dtype), values: (&[u8], &[u8]));

    /// Adds the counts of a job of the tensor called `name`; its last job if `is_last`.
    fn fold(&mut self, name: &str, counts: Self::Counts, is_last: bool);
}

/// Counts nothing.
impl Observer for () {
    type Counts = ();

    const READS_ALL: bool = false;

    fn count((): &mut (), _: (Dtype, Dtype), _: (&[u8], &[u8])) {}

    fn fold(&mut self, _: &str, (): (), _: bool) {}
}

/// Compares the values of all pairs. Returns a result for each, in their order.
fn compare_values<O: Observer>(
    pairing: &Pairing<'_>,
    (a, b): (&Conversion<'_>, &Conversion<'_>),
    options: &DiffOptions,
    observer: &mut O,
) -> Result<Vec<Compared>> {
    let comparable = |pair: &StoredPair<'_>| {
        let tensors = TensorPair::new((a, pair.a.output), (b, pair.b.output));
        let tensors = tensors.filter(|_| pair.a.shape == pair.b.shape)?;
        let kind = Comparable::of(tensors.dtypes())?;
        Some((tensors, kind))
    };
    let all: Vec<_> = pairing.pairs.iter().map(comparable).collect();
    let decoded = all.iter().flatten().map(|(tensors, _)| tensors.byte_len());
    let alike = match O::READS_ALL {
        true => Vec::new(),
        false => pairing.stored_alike(),
    };
    let stored = alike.iter().map(|(a, b)| a.part().len() + b.part().len());
    let total_bytes = decoded.sum::<u64>() + stored.sum::<u64>();
    let done = ProgressSum::new(&options.run, total_bytes, all.iter().flatten().count());
    let same_bytes = match O::READS_ALL {
        true => vec![false; pairing.pairs.len()],
        false => pairing.same_bytes(&alike, &options.run, &done)?,
    };
    let mut results: Vec<Compared> = Vec::with_capacity(pairing.pairs.len());
    let mut pairs = Vec::new();
    for (pair, is_same) in all.into_iter().zip(same_bytes) {
        let Some((tensors, kind)) = pair else {
            results.push(Compared::Incomparable);
            continue;
        };
        if is_same {
            done.add(tensors.byte_len(), 1, 0);
            results.push(Compared::Same);
            continue;
        }
        pairs.push((results.len(), tensors, kind));
        results.push(Compared::Sums(Sums::default(), kind));
    }
    let rule = CompareRule { tolerance: options.tolerance, level: options.run.level };
    let mut jobs_left: Vec<usize> = pairs.iter().map(|(_, pair, _)| pair.jobs()).collect();
    let schedule = Schedule::new(pairs.iter().map(|(_, pair, _)| pair.jobs()));
    schedule.run(
        &options.run,
        |pair, job, scratch: &mut PairScratch| {
            let (_, tensors, kind) = &pairs[pair];
            let (mut sums, mut counts) = (Sums::default(), O::Counts::default());
            tensors.run(job, scratch, |first, a, b| {
                kind.compare(first, (a, b), &rule, &mut sums);
                O::count(&mut counts, tensors.dtypes(), (a, b));
            })?;
            Ok((sums, counts))
        },
        |pair, (sums, counts)| {
            let (result, tensors, _) = &pairs[pair];
            if let Compared::Sums(total, _) = &mut results[*result] {
                total.add(&sums);
            }
            jobs_left[pair] -= 1;
            observer.fold(&pairing.pairs[*result].a.name, counts, jobs_left[pair] == 0);
            done.add(tensors.bytes_of_job(jobs_left[pair]), usize::from(jobs_left[pair] == 0), 0);
        },
    )?;
    Ok(results)
}
