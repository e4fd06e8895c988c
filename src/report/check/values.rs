//! What the values of a model show: every stored float, and every quantized tensor after decoding.

use std::collections::{HashMap, HashSet};

use super::tally::Tally;
use super::{Finding, Severity, unless_cancelled};
use crate::convert::pair::{PairScratch, TensorPair};
use crate::convert::progress::ProgressSum;
use crate::model::Tensor;
use crate::remember::{Resolution, ResolvedItem};
use crate::report::diff::{Schedule, jobs_of_bytes, pieces_of_job};
use crate::{
    Conversion, ConvertOptions, Dtype, ParsedModel, QuantScheme, RememberOptions, Result,
    TargetDtype, TensorRole,
};

/// A tensor that is being counted: its counts so far, or why it cannot be read.
type Outcome = std::result::Result<Tally, String>;

/// Adds what the values show. Errors of single tensors are findings. Returns the progress, to which
/// the caller adds `more_bytes` bytes.
///
/// # Errors
/// `Cancelled`.
pub(super) fn check(
    model: &ParsedModel,
    run: &RememberOptions,
    more_bytes: u64,
    findings: &mut Vec<Finding>,
) -> Result<ProgressSum> {
    let floats: Vec<Tensor<'_>> = model
        .tensors()
        .filter(|t| Tally::supports(t.dtype()) && (is_numbers(t.role()) || is_input_scale(t)))
        .collect();
    let resolution = model.resolve();
    let conversion = model
        .plan(ConvertOptions::for_values(&RememberOptions { to: TargetDtype::F32, ..run.clone() }));
    // What cannot be decoded is left out: the structure has shown it.
    let decoded = conversion
        .as_ref()
        .map_or(vec![], |r| decoded(&resolution, r));
    let bytes = floats.iter().map(|t| t.part().len()).sum::<u64>()
        + decoded.iter().map(|(_, t)| t.byte_len()).sum::<u64>();
    let done = ProgressSum::new(run, bytes + more_bytes, floats.len() + decoded.len());
    let jobs: Vec<usize> = floats
        .iter()
        .map(|t| jobs_of_bytes(t.part().len()))
        .collect();
    let outcomes = tally_all(&jobs, run, &done, |i, job, bytes| {
        let read = pieces_of_job(floats[i].part().len(), job).map(|piece| piece.end - piece.start);
        let tallied = tally_stored(&floats[i], job, run, bytes);
        Ok((read.sum(), unless_cancelled(tallied)?))
    })?;
    let signed = signed_scales(&resolution);
    for (t, outcome) in floats.iter().zip(outcomes) {
        match (outcome, t.role()) {
            (Ok(tally), TensorRole::Scale | TensorRole::NestedScale | TensorRole::Activation) => {
                judge_scales(t, signed.contains(&t.index), &tally, findings);
            }
            (Ok(tally), _) => judge(t, "values", &tally, findings),
            (Err(error), _) => findings.push(Finding::of_tensor(Severity::Error, t, error)),
        }
    }
    check_decoded(&decoded, run, &done, findings)?;
    Ok(done)
}

/// Indices of the scales that are negative in models that are fine: MLX makes a scale negative
/// where the bound of the larger magnitude is the upper one (`mlx/backend/cpu/quantized.cpp`,
/// `quantize`).
fn signed_scales(resolution: &Resolution<'_>) -> HashSet<usize> {
    let is_signed = |scheme| matches!(scheme, QuantScheme::Grouped { family: "MLX", .. });
    let groups = resolution.groups().filter(|group| is_signed(group.scheme));
    groups
        .flat_map(|group| group.parts.iter().map(|(_, t)| t.index))
        .collect()
}

/// Whether `t` is a scale of activations. Their zero points may be 0.
fn is_input_scale(t: &Tensor<'_>) -> bool {
    t.role() == TensorRole::Activation && t.name().ends_with("scale")
}

/// Whether a tensor of this role has values to be judged by themselves.
fn is_numbers(role: TensorRole) -> bool {
    matches!(
        role,
        TensorRole::Passthrough
            | TensorRole::Scale
            | TensorRole::NestedScale
            | TensorRole::QuantMap
            | TensorRole::LowRank
    )
}

/// The quantized tensors of a model: their codes, and their values as `conversion` decodes them.
fn decoded<'a, 'm>(
    resolution: &Resolution<'m>,
    conversion: &'a Conversion<'m>,
) -> Vec<(Tensor<'m>, TensorPair<'a, 'm, 'm>)> {
    let items = resolution.items.iter().filter_map(|item| match item {
        ResolvedItem::Group(group) if !group.is_copied => Some((&*group.name, group.parts[0].1)),
        _ => None,
    });
    let codes: HashMap<&str, Tensor<'m>> = items.collect();
    let outputs = conversion.outputs().enumerate();
    outputs
        .filter_map(|(i, output)| {
            let t = codes.get(output.name)?;
            Some((*t, TensorPair::single(conversion, i)))
        })
        .collect()
}

/// Decodes every quantized tensor.
fn check_decoded(
    decoded: &[(Tensor<'_>, TensorPair<'_, '_, '_>)],
    run: &RememberOptions,
    done: &ProgressSum,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let jobs: Vec<usize> = decoded.iter().map(|(_, tensor)| tensor.jobs()).collect();
    let outcomes = tally_all(&jobs, run, done, |i, job, scratch: &mut PairScratch| {
        let (tensor, mut tally) = (&decoded[i].1, Tally::default());
        let read = tensor.run(job, scratch, |_, bytes, _| {
            tally.add_bytes(tensor.dtypes().0, bytes, run.level);
        });
        let tallied = unless_cancelled(read.map(|()| tally))?;
        Ok((tensor.bytes_of_job(job), tallied))
    })?;
    for ((t, _), outcome) in decoded.iter().zip(outcomes) {
        match outcome {
            Ok(tally) => judge(t, "decoded values", &tally, findings),
            Err(error) => findings.push(Finding::of_tensor(Severity::Error, t, error)),
        }
    }
    Ok(())
}

/// Counts the values of tensors that are read in so many jobs each. `work` does a job of a tensor
/// and returns the bytes that it has read with what it has counted.
fn tally_all<S: Default>(
    jobs: &[usize],
    run: &RememberOptions,
    done: &ProgressSum,
    work: impl Fn(usize, usize, &mut S) -> Result<(u64, Outcome)> + Sync,
) -> Result<Vec<Outcome>> {
    let mut jobs_left = jobs.to_vec();
    let mut outcomes = vec![Outcome::Ok(Tally::default()); jobs.len()];
    Schedule::new(jobs.iter().copied()).run(run, work, |i, (read, outcome)| {
        jobs_left[i] -= 1;
        done.add(read, usize::from(jobs_left[i] == 0), 0);
        add(&mut outcomes[i], outcome);
    })?;
    Ok(outcomes)
}

/// Counts the piece of a stored tensor that job `job` covers.
fn tally_stored(
    t: &Tensor<'_>,
    job: usize,
    run: &RememberOptions,
    bytes: &mut Vec<u8>,
) -> Result<Tally> {
    let (part, mut tally) = (t.part(), Tally::default());
    for piece in pieces_of_job(part.len(), job) {
        bytes.resize((piece.end - piece.start) as usize, 0);
        part.read_at(piece.start, bytes)?;
        tally.add_bytes(t.dtype(), bytes, run.level);
    }
    Ok(tally)
}

/// Adds the outcome of a later job. The first error of a tensor stays.
fn add(total: &mut Outcome, later: Outcome) {
    match (&mut *total, later) {
        (Ok(total), Ok(later)) => total.add(&later),
        (Ok(_), Err(error)) => *total = Err(error),
        (Err(_), _) => {}
    }
}

/// Adds what is wrong with values: NaN, infinities, and a matrix of zeros. Vectors of zeros are
/// usual: biases begin as such.
fn judge(t: &Tensor<'_>, what: &str, tally: &Tally, findings: &mut Vec<Finding>) {
    let counts =
        [(Severity::Error, tally.nan, "NaN"), (Severity::Warning, tally.infinite, "infinite")];
    let all = tally.values;
    add_counts(t, &format!("{all} {what}"), &counts, findings);
    if all > 0 && tally.zero == all && t.shape().len() > 1 {
        let message = format!("all {all} {what} are zero");
        findings.push(Finding::of_tensor(Severity::Warning, t, message));
    }
}

/// Adds what is wrong with scales. Eight-bit scales are subnormal in models that are fine, for they
/// have a second scale.
fn judge_scales(t: &Tensor<'_>, is_signed: bool, tally: &Tally, findings: &mut Vec<Finding>) {
    let is_narrow = matches!(t.dtype(), Dtype::F8E4M3 | Dtype::F8E5M2);
    let subnormal = if is_narrow { 0 } else { tally.subnormal };
    let negative = if is_signed { 0 } else { tally.negative };
    let counts = [
        (Severity::Error, tally.nan, "NaN"),
        (Severity::Error, tally.infinite, "infinite"),
        (Severity::Warning, tally.zero, "zero"),
        (Severity::Warning, negative, "negative"),
        (Severity::Warning, subnormal, "subnormal"),
    ];
    add_counts(t, &format!("{} scales", tally.values), &counts, findings);
}

/// Adds a finding for each count that is not zero. `all` names the values that were counted, with
/// their number.
fn add_counts(
    t: &Tensor<'_>,
    all: &str,
    counts: &[(Severity, u64, &str)],
    findings: &mut Vec<Finding>,
) {
    for (severity, count, are) in counts.iter().filter(|(_, count, _)| *count > 0) {
        let message = format!("{count} of {all} are {are}");
        findings.push(Finding::of_tensor(*severity, t, message));
    }
}
