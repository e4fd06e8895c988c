//! Tensors of plain floats that become another type of float: which, and the body that rounds them.

use zerocopy::IntoBytes;

use super::bodies::put_rows;
use super::cut::SLAB_VALUES;
use super::options::{ConvertOptions, FloatCast};
use super::output::{Body, Job, Worker};
use crate::element::Out;
use crate::error::InTensor;
use crate::remember::image_models::ImageModel;
use crate::remember::kernels::cast::{Cast, CastValues, largest};
use crate::remember::{Decode, ResolvedItem, is_plain_float};
use crate::simd::dispatch;
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// The type that a tensor of `dtype` and rank `rank` is cast to; `None` if it keeps its own.
pub(super) fn cast_target(
    dtype: Dtype,
    rank: usize,
    options: &ConvertOptions,
) -> Option<TargetDtype> {
    if options.run.cast == FloatCast::Keep || !is_plain_float(dtype) {
        return None;
    }
    let writer = options.target.container().writer();
    let is_widened = rank < 2 && writer.is_some_and(|writer| writer.widens_vectors);
    let to = match is_widened {
        true => TargetDtype::F32,
        false => options.run.to,
    };
    (to.dtype() != dtype).then_some(to)
}

/// The type that `item` is cast to; `None` if it is quantized or keeps its type. `is_of_class`: the
/// tables of a model's class have given the groups their types.
pub(super) fn cast_of_item(
    item: &ResolvedItem<'_>,
    is_of_class: bool,
    options: &ConvertOptions,
) -> Option<TargetDtype> {
    let (dtype, rank) = match item {
        ResolvedItem::Plain(t) => (t.stored.dtype(), t.stored.shape().len()),
        ResolvedItem::Group(_) if is_of_class => return None,
        ResolvedItem::Group(group) if group.is_copied => {
            let (_, t) = group.parts.first()?;
            (t.dtype(), t.shape().len())
        }
        ResolvedItem::Group(group) => (group.keeps?.dtype(), group.shape.len()),
    };
    cast_target(dtype, rank, options)
}

/// Whether a tensor becomes F32 in a GGUF file of an image model or of encoded weights. Programs
/// decode BF16 in weights of layers alone, as ComfyUI-GGUF and diffusers; vectors and other
/// parameters (`scale_shift_table`, `x_pad_token`) they take as they are.
pub(super) fn is_widened(name: &str, dtype: Dtype, rank: usize) -> bool {
    let is_parameter = !name.ends_with("weight") && dtype == Dtype::BF16;
    rank < 2 || is_parameter
}

/// Whether `items` become a GGUF file of an image model, so that [`is_widened`] holds for them.
pub(super) fn widens_parameters(items: &[ResolvedItem<'_>], options: &ConvertOptions) -> bool {
    let writer = options.target.container().writer();
    writer.is_some_and(|writer| writer.widens_vectors)
        && ImageModel::of(items.iter().map(ResolvedItem::name)).is_some()
}

/// Makes F32 of an `item` of an image model that [`is_widened`]. Returns the type that it is cast to,
/// which is `cast` for all others.
pub(super) fn widen_parameter(
    item: &mut ResolvedItem<'_>,
    cast: Option<TargetDtype>,
    options: &ConvertOptions,
) -> Option<TargetDtype> {
    match item {
        ResolvedItem::Plain(t) => {
            let stored = t.stored.dtype();
            let dtype = cast.map_or(stored, TargetDtype::dtype);
            let becomes_f32 =
                is_plain_float(stored) && is_widened(t.name(), dtype, t.stored.shape().len());
            match becomes_f32 {
                true => Some(TargetDtype::F32).filter(|_| stored != Dtype::F32),
                false => cast,
            }
        }
        ResolvedItem::Group(group) => {
            let dtype = cast.or(group.keeps).unwrap_or(options.run.to).dtype();
            if is_widened(&group.name, dtype, group.shape.len()) {
                group.keeps = Some(TargetDtype::F32);
                return None;
            }
            cast
        }
    }
}

/// Whether a finite value of `from` can be infinite in `to`. BF16 holds every F16, rounded.
pub(super) fn can_overflow(from: Dtype, to: TargetDtype) -> bool {
    match from {
        Dtype::F64 => true,
        Dtype::F32 => to != TargetDtype::F32,
        Dtype::BF16 => to == TargetDtype::F16,
        _ => false,
    }
}

/// Rounds floats to `target`, of a smaller range than theirs.
pub(super) struct CastBody<'m> {
    /// Its values are exact in F32, or it is [`PlainFloats`](crate::remember::PlainFloats) of F64.
    pub decoder: Box<dyn Decode + 'm>,
    pub is_f64: bool,
    pub target: TargetDtype,
    /// Whether values beyond the range become the largest finite one. Otherwise the first is an
    /// error.
    pub saturates: bool,
}

impl<'m> Body<'m> for CastBody<'m> {
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let tile = &job.output().cut.tile(job.no);
        let Worker { input, output, values, .. } = worker;
        self.decoder.load(tile, input)?;
        let (width, level) = (tile.cols.len(), job.options.level);
        let slab_rows = (SLAB_VALUES / width.max(1)).max(1);
        let element_size = self.target.byte_size();
        for first in tile.rows.clone().step_by(slab_rows) {
            let rows = first..(first + slab_rows).min(tile.rows.end);
            let count = rows.len() * width;
            let slab = match self.is_f64 {
                // F32 does not have the range of F64, so these are taken as they are stored.
                true => {
                    let start = (rows.start - tile.rows.start) * width * size_of::<f64>();
                    CastValues::F64(&input.bytes[start..start + count * size_of::<f64>()])
                }
                false => {
                    values.resize(count, 0.0);
                    let out = Out::F32(&mut values[..]);
                    self.decoder.decode(tile, rows.clone(), input, level, out);
                    CastValues::F32(values)
                }
            };
            output.resize((count * element_size).div_ceil(4), 0);
            let cast = Cast::new(slab, self.saturates);
            dispatch(level, &cast, Out::new(self.target, output).first(count));
            if cast.has_overflow()
                && let Some((i, value)) = slab.first_overflow(self.target)
            {
                let (row, col) = (rows.start + i / width, tile.cols.start + i % width);
                let index = row as u64 * job.output().cut.cols as u64 + col as u64;
                return Err(self.overflow(job, index, value));
            }
            let bytes = &output.as_bytes()[..count * element_size];
            put_rows(job, tile, rows, bytes, element_size)?;
        }
        Ok((tile.values() * element_size) as u64)
    }
}

impl CastBody<'_> {
    /// The error that `value`, element `index` of the tensor, is beyond the range.
    fn overflow(&self, job: &Job<'_, '_>, index: u64, value: f64) -> AnamnesisError {
        let (output, target) = (job.output(), self.target);
        let index = coordinates(index, &output.shape);
        // F32 is exact in F64, but its shortest text is its own.
        let value = match self.is_f64 {
            true => format!("{value:?}"),
            false => format!("{:?}", value as f32),
        };
        AnamnesisError::unsupported(
            target.to_string(),
            format!(
                "{}: {value} at {index:?} is beyond its range, which ends at {:?}; saturating would make it that",
                InTensor(&output.name),
                largest(target)
            ),
        )
    }
}

/// Coordinates of element `index` of a tensor of `shape`.
pub(crate) fn coordinates(mut index: u64, shape: &[usize]) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::with_capacity(shape.len());
    for &dim in shape.iter().rev() {
        let dim = (dim as u64).max(1);
        out.push(index % dim);
        index /= dim;
    }
    out.reverse();
    out
}
