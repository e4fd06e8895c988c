//! Sparse tensors: values in the order of a walk over the dense tensor, dimension by dimension, of
//! which some are stored whole and some as the indices that have values. Dimensions may be divided
//! into blocks.
//!
//! Walk: `FormatConverter::Populate` of LiteRT (`tflite/kernels/internal/utils/sparsity_format_converter.cc`).

use std::ops::Range;

use super::wrong;
use crate::limits::{Budget, cap};
use crate::parse::flatbuffer::{FlatBuffer, FlatTable};
use crate::source::{Derived, Source, SparseValues};
use crate::{AnamnesisError, Dtype, Result};

/// Most dimensions that are walked over, blocks included.
const MAX_LEVELS: u64 = 128;

/// Bytes of a dense tensor that may be made of any values, and for each byte of them: few indices tell
/// a shape of any size.
const FREE_BYTES: u64 = 16 << 20;
const MAX_RATIO: u64 = 128;

/// A dimension of the walk.
enum Level {
    /// All indices below this size.
    Dense(u64),
    /// Those in `indices` from one of `segments` to the next.
    Sparse { segments: Vec<u64>, indices: Vec<u64> },
}

/// For a level, the dimension of the dense tensor and how many elements of it one index stands for.
type Step = (usize, u64);

/// What the walk needs, and where it has been.
struct Walk<'a> {
    levels: Vec<Level>,
    /// That of each level.
    steps: Vec<Step>,
    shape: &'a [usize],
    /// How many values there are.
    count: u64,
    /// Indices on the way, of the dense tensor.
    index: Vec<u64>,
    places: Vec<u64>,
}

/// The dense tensor of a dtype, a shape and a length in bytes whose values are `data` of `source`.
///
/// # Errors
/// `Parse` if the parts contradict each other; `Unsupported` if values have less than a byte, or do not
/// follow each other as in the dense tensor; `LimitExceeded`.
pub(super) fn values(
    file: &mut FlatBuffer<'_>,
    sparsity: &FlatTable,
    (dtype, shape, len): (Dtype, &[usize], u64),
    data: &Range<u64>,
    source: &Source,
    budget: &Budget,
) -> Result<Source> {
    if dtype.bits() < 8 {
        return Err(AnamnesisError::unsupported("LiteRT", format!("a sparse tensor of {dtype}")));
    }
    let (width, stored) = (dtype.byte_size() as u64, data.end - data.start);
    let most = FREE_BYTES + MAX_RATIO * stored;
    cap("TFLITE_MAX_SPARSE_BYTES", len, most, "bytes of a sparse tensor")?;
    budget.decompress(stored, len, "a sparse tensor")?;
    let count = stored / width;
    budget.alloc(count.saturating_mul(8), "places of sparse values")?;
    let (levels, steps) = read_levels(file, sparsity, shape, budget)?;
    let index = vec![0; shape.len()];
    let mut walk = Walk { levels, steps, shape, count, index, places: Vec::new() };
    walk.level(0, 0)?;
    let places = walk.places;
    if places.len() as u64 != count || stored % width != 0 {
        return Err(wrong(format!("{} sparse values, and places for {}", count, places.len())));
    }
    if !places.is_sorted() {
        let what = "a sparse tensor whose values do not follow each other in rows";
        return Err(AnamnesisError::unsupported("LiteRT", what));
    }
    let elements = len / width;
    let values = SparseValues::new(source.share(), data.start, width as usize, places, elements)?;
    Ok(Source::Derived(Box::new(Derived::Sparse(values))))
}

/// Reads the levels, and what each means for the dense tensor of `shape`.
fn read_levels(
    file: &mut FlatBuffer<'_>,
    sparsity: &FlatTable,
    shape: &[usize],
    budget: &Budget,
) -> Result<(Vec<Level>, Vec<Step>)> {
    let [order, map, levels] = [0, 1, 2].map(|id| file.vector(sparsity, id, 4));
    let (order, map, levels) = (order?, map?, levels?);
    cap("TFLITE_MAX_LEVELS", levels.len, MAX_LEVELS, "levels of a sparse tensor")?;
    let malformed = || wrong("its sparsity does not fit its shape");
    if order.len != levels.len || order.len != shape.len() as u64 + map.len {
        return Err(malformed());
    }
    let number = |bytes: [u8; 4]| i32::from_le_bytes(bytes) as usize;
    let order: Vec<usize> = file.numbers(order)?.into_iter().map(number).collect();
    let map: Vec<usize> = file.numbers(map)?.into_iter().map(number).collect();
    let mut seen = vec![false; order.len()];
    for &dim in &order {
        match seen.get_mut(dim) {
            Some(seen @ false) => *seen = true,
            _ => return Err(malformed()),
        }
    }
    let (mut out, mut sizes) = (Vec::new(), Vec::new());
    for i in 0..levels.len {
        let level = file.item(levels, i)?;
        let (level, size) = read_level(file, &level, budget)?;
        out.push(level);
        sizes.push(size);
    }
    // Of a divided dimension, an index before the blocks stands for a whole block.
    let mut steps = vec![(0, 1); order.len()];
    for (level, &dim) in order.iter().enumerate() {
        steps[level] = match dim.checked_sub(shape.len()) {
            None => (dim, 1),
            Some(block) => (*map.get(block).ok_or_else(malformed)?, 1),
        };
    }
    for (block, &dim) in map.iter().enumerate() {
        let of = |wanted: usize| order.iter().position(|&dim| dim == wanted);
        let (Some(outer), Some(inner)) = (of(dim), of(shape.len() + block)) else {
            return Err(malformed());
        };
        if dim >= shape.len() || outer > inner || map[..block].contains(&dim) {
            return Err(malformed());
        }
        steps[outer].1 = sizes[inner].ok_or_else(malformed)?;
    }
    Ok((out, steps))
}

/// Reads a level, and its size if it is a dense one.
fn read_level(
    file: &mut FlatBuffer<'_>,
    level: &FlatTable,
    budget: &Budget,
) -> Result<(Level, Option<u64>)> {
    match file.byte(level, 0)? {
        0 => {
            let size = u64::try_from(file.int(level, 1)?)
                .ok()
                .filter(|&size| size > 0);
            let size = size.ok_or_else(|| wrong("a dimension of its sparsity has no size"))?;
            Ok((Level::Dense(size), Some(size)))
        }
        1 => {
            let segments = read_indices(file, level, 2, budget)?;
            let indices = read_indices(file, level, 4, budget)?;
            if !segments.is_sorted() || segments.last().is_some_and(|&n| n > indices.len() as u64) {
                return Err(wrong("segments of its sparsity do not fit its indices"));
            }
            Ok((Level::Sparse { segments, indices }, None))
        }
        other => Err(wrong(format!("format {other} of a dimension of its sparsity"))),
    }
}

/// Reads the indices whose type is field `id` of `level`, and whose table is the next field.
fn read_indices(
    file: &mut FlatBuffer<'_>,
    level: &FlatTable,
    id: u64,
    budget: &Budget,
) -> Result<Vec<u64>> {
    let kind = file.byte(level, id)?;
    let missing = || wrong("indices of its sparsity are missing");
    let table = file.child(level, id + 1)?.ok_or_else(missing)?;
    let mut read = |width| {
        let vector = file.vector(&table, 0, width)?;
        budget.alloc(vector.len * 8, "indices of a sparse tensor")?;
        Ok::<_, AnamnesisError>(vector)
    };
    Ok(match kind {
        1 => {
            let vector = read(4)?;
            let numbers = file.numbers(vector)?;
            numbers
                .into_iter()
                .map(|b| u64::from(u32::from_le_bytes(b)))
                .collect()
        }
        2 => {
            let vector = read(2)?;
            let numbers = file.numbers(vector)?;
            numbers
                .into_iter()
                .map(|b| u64::from(u16::from_le_bytes(b)))
                .collect()
        }
        3 => {
            let vector = read(1)?;
            let numbers = file.numbers(vector)?;
            numbers
                .into_iter()
                .map(|b| u64::from(u8::from_le_bytes(b)))
                .collect()
        }
        _ => return Err(missing()),
    })
}

impl Walk<'_> {
    /// Walks over level number `n`, which is the one with `number` among those of its kind. There is a
    /// value behind each index, or a segment, so that the work is that of these.
    fn level(&mut self, n: usize, number: u64) -> Result<()> {
        let Some(level) = self.levels.get(n) else {
            return self.value();
        };
        match level {
            Level::Dense(size) => {
                let size = *size;
                for i in 0..size {
                    self.step(n, i, number.saturating_mul(size).saturating_add(i))?;
                }
            }
            Level::Sparse { segments, .. } => {
                let segment = usize::try_from(number)
                    .ok()
                    .and_then(|i| Some(*segments.get(i)?..*segments.get(i.checked_add(1)?)?));
                let segment =
                    segment.ok_or_else(|| wrong("a segment of its sparsity is missing"))?;
                for at in segment {
                    let index = match &self.levels[n] {
                        Level::Sparse { indices, .. } => indices.get(at as usize).copied(),
                        Level::Dense(_) => None,
                    };
                    let index =
                        index.ok_or_else(|| wrong("an index of its sparsity is missing"))?;
                    self.step(n, index, at)?;
                }
            }
        }
        Ok(())
    }

    /// Takes index `i` of level `n` and walks over the next level.
    fn step(&mut self, n: usize, i: u64, number: u64) -> Result<()> {
        let (dim, each) = self.steps[n];
        let before = self.index[dim];
        let now = i.checked_mul(each).and_then(|i| before.checked_add(i));
        self.index[dim] = now.ok_or_else(|| wrong("an index of its sparsity overflows"))?;
        self.level(n + 1, number)?;
        self.index[dim] = before;
        Ok(())
    }

    /// Adds the place of a value.
    fn value(&mut self) -> Result<()> {
        if self.places.len() as u64 >= self.count {
            return Err(wrong("it has fewer values than its sparsity has places"));
        }
        let mut dims = self.index.iter().zip(self.shape);
        let place = dims.try_fold(0u64, |at, (&i, &dim)| {
            let i = Some(i).filter(|&i| i < dim as u64)?;
            at.checked_mul(dim as u64)?.checked_add(i)
        });
        self.places
            .push(place.ok_or_else(|| wrong("an index is past the end of the tensor"))?);
        Ok(())
    }
}
