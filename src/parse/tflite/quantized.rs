//! Scales and zero points of quantized tensors. They are listed as tensors beside the codes.

use super::wrong;
use crate::Result;
use crate::limits::cap;
use crate::parse::flatbuffer::{FlatBuffer, FlatTable, FlatVector};

/// How a tensor of integers is quantized.
#[derive(Debug, Clone)]
pub(super) enum Quantization {
    /// One scale, or one for each index of an axis. Zero points that are all 0 are left out.
    Axis { scales: FlatVector, zero_points: Option<FlatVector>, axis: i64 },
    /// A scale for each block of an axis, in another tensor of the subgraph, and so are zero points.
    Blocks { scales: u64, zero_points: Option<u64>, block: i64 },
    /// Something else, by its name.
    Other(&'static str),
}

/// Smallest and largest zero point: those of 16 bits.
const ZERO_POINTS: std::ops::RangeInclusive<i64> = -(1 << 15)..=(1 << 16) - 1;

/// Reads how `tensor` with the dimensions `dims` is quantized; `None` if it is not.
pub(super) fn read(
    file: &mut FlatBuffer<'_>,
    tensor: &FlatTable,
    dims: &[i32],
) -> Result<Option<Quantization>> {
    let Some(table) = file.child(tensor, 4)? else {
        return Ok(None);
    };
    match file.byte(&table, 4)? {
        0 => {}
        2 => return blocks(file, &table).map(Some),
        1 => return Ok(Some(Quantization::Other("CustomQuantization"))),
        3 => return Ok(Some(Quantization::Other("MultiAxisQuantization"))),
        _ => return Ok(Some(Quantization::Other("a quantization of a later version"))),
    }
    let scales = file.vector(&table, 2, 4)?;
    if scales.len == 0 {
        return Ok(None);
    }
    let axis = i64::from(file.int(&table, 6)?);
    // Vectors that are far too long are not read.
    let most = dims.iter().copied().max().unwrap_or(1).max(1);
    let zero_points = file.vector(&table, 3, 8)?;
    if scales.len.max(zero_points.len) > most as u64 {
        return Err(wrong("it has more scales or zero points than elements"));
    }
    let numbers = file.numbers(zero_points)?;
    let mut numbers = numbers.into_iter().map(i64::from_le_bytes);
    if numbers.clone().all(|zero| zero == 0) {
        return Ok(Some(Quantization::Axis { scales, zero_points: None, axis }));
    }
    if zero_points.len != scales.len {
        let (zeros, scales) = (zero_points.len, scales.len);
        return Err(wrong(format!("it has {zeros} zero points and {scales} scales")));
    }
    match numbers.find(|zero| !ZERO_POINTS.contains(zero)) {
        Some(zero) => Err(wrong(format!("zero point {zero} is out of range"))),
        None => Ok(Some(Quantization::Axis { scales, zero_points: Some(zero_points), axis })),
    }
}

fn blocks(file: &mut FlatBuffer<'_>, table: &FlatTable) -> Result<Quantization> {
    let missing = || wrong("its scales are missing");
    let details = file.child(table, 5)?.ok_or_else(missing)?;
    let scales = u64::try_from(file.int(&details, 0)?).map_err(|_| missing())?;
    // 0 is a tensor, too: as a default it stands for none.
    let zero_points = u64::try_from(file.int(&details, 1)?).ok();
    let zero_points = zero_points.filter(|&zero| zero > 0);
    if file.vector(&details, 3, 4)?.len > 0 {
        return Ok(Quantization::Other("blocks along several axes"));
    }
    let block = i64::from(file.int(&details, 2)?);
    cap("block_size", block as u64, i32::MAX as u64, "values in a block")?;
    match block {
        0 => Err(wrong("its blocks have no values")),
        _ => Ok(Quantization::Blocks { scales, zero_points, block }),
    }
}

/// Whether two tensors of different subgraphs with the same codes have the same values.
pub(super) fn are_same(
    file: &mut FlatBuffer<'_>,
    a: Option<&Quantization>,
    b: Option<&Quantization>,
) -> Result<bool> {
    use Quantization::Axis;
    match (a, b) {
        (None, None) => Ok(true),
        (
            Some(Axis { scales: a, zero_points: a_zero, axis: a_axis }),
            Some(Axis { scales: b, zero_points: b_zero, axis: b_axis }),
        ) => {
            let have_zero = a_zero.is_some() == b_zero.is_some();
            if !have_zero || (a.len, *a_axis) != (b.len, *b_axis) {
                return Ok(false);
            }
            let empty = FlatVector { at: a.at, len: 0 };
            let [a_zero, b_zero] = [a_zero, b_zero].map(|zero| zero.unwrap_or(empty));
            Ok(file.numbers::<4>(*a)? == file.numbers::<4>(*b)?
                && file.numbers::<8>(a_zero)? == file.numbers::<8>(b_zero)?)
        }
        _ => Ok(false),
    }
}
