//! Types, shapes and orders of dimensions.

use std::ops::Range;

use super::wrong;
use crate::limits::cap;
use crate::model::strided::row_major_strides;
use crate::model::{Skipped, TensorInfo};
use crate::parse::flatbuffer::{FlatBuffer, FlatTable};
use crate::{Dtype, ParsedModel, Result};

/// Most dimensions of a tensor.
const MAX_DIMS: u64 = 64;

/// What a tensor's elements are, and how they lie.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ValueLayout {
    /// The number of the element type.
    kind: u8,
    sizes: Vec<i32>,
    /// The dimensions from the outermost in memory to the innermost.
    order: Vec<u8>,
}

impl ValueLayout {
    /// Reads it from the fields of `table` with the type, the sizes and the order.
    pub(super) fn read(
        file: &mut FlatBuffer<'_>,
        table: &FlatTable,
        [kind, sizes, order]: [u64; 3],
    ) -> Result<Self> {
        let kind = file.byte(table, kind)?;
        let [sizes, order] = [(sizes, 4), (order, 1)].map(|(id, n)| file.vector(table, id, n));
        let (sizes, order) = (sizes?, order?);
        cap("MAX_TENSOR_DIMS", sizes.len.max(order.len), MAX_DIMS, "dimensions of a tensor")?;
        let sizes = file.numbers(sizes)?.into_iter().map(i32::from_le_bytes);
        let sizes = sizes.collect();
        let order = file.numbers(order)?.into_iter().map(u8::from_le_bytes);
        Ok(Self { kind, sizes, order: order.collect() })
    }

    /// Whether elements are integers of at most eight bits, which can be codes.
    pub(super) fn is_small_integer(&self) -> bool {
        matches!(self.kind, 0 | 1)
    }

    /// Adds a tensor with data in `data` of a source: all of it if `is_whole`, otherwise its
    /// beginning. Notes that no tensor can hold it if it is so.
    pub(super) fn add(
        &self,
        contents: &mut ParsedModel,
        name: &str,
        source: usize,
        data: Range<u64>,
        is_whole: bool,
    ) -> Result<()> {
        let dtype = match dtype(self.kind) {
            Ok(dtype) => dtype,
            Err(what) => {
                contents
                    .skipped
                    .push(Skipped { name: name.to_owned(), what });
                return Ok(());
            }
        };
        let dims = &self.sizes;
        let shape: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        let shape = shape.ok_or_else(|| wrong(format!("a dimension is negative ({dims:?})")))?;
        let len = dtype.packed_len(&shape);
        let len = len.ok_or_else(|| wrong(format!("its size overflows ({dims:?})")))?;
        let stored = data.end.saturating_sub(data.start);
        if stored < len || (is_whole && stored != len) {
            let what = format!("{stored} bytes of data, and its type and shape need {len}");
            return Err(wrong(what));
        }
        let strides = self.strides(&shape)?;
        contents.tensors.push(TensorInfo {
            strides: strides.map(|strides| Box::new(strides.into())),
            ..TensorInfo::plain(name, (dtype, shape), (source, data.start, len))
        });
        Ok(())
    }

    /// The strides, if the dimensions lie in another order than those of the shape.
    fn strides(&self, shape: &[usize]) -> Result<Option<Vec<usize>>> {
        let order: Vec<usize> = self.order.iter().map(|&d| d.into()).collect();
        if order.is_empty() || order.iter().copied().eq(0..shape.len()) {
            return Ok(None);
        }
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..shape.len()) {
            return Err(wrong(format!("its order of dimensions is {order:?}")));
        }
        let inner: Vec<usize> = order.iter().map(|&d| shape[d]).collect();
        let mut strides = vec![0; shape.len()];
        for (&d, stride) in order.iter().zip(row_major_strides(&inner)) {
            strides[d] = stride;
        }
        Ok((strides != row_major_strides(shape)).then_some(strides))
    }
}

/// The element type with a number of ExecuTorch, or what the elements are that no tensor can hold.
fn dtype(number: u8) -> std::result::Result<Dtype, String> {
    Ok(match number {
        0 => Dtype::U8,
        1 => Dtype::I8,
        2 => Dtype::I16,
        3 => Dtype::I32,
        4 => Dtype::I64,
        5 => Dtype::F16,
        6 => Dtype::F32,
        7 => Dtype::F64,
        11 => Dtype::Bool,
        15 => Dtype::BF16,
        23 => Dtype::F8E5M2,
        24 => Dtype::F8E4M3,
        25 => Dtype::F8E5M2Fnuz,
        26 => Dtype::F8E4M3Fnuz,
        27 => Dtype::U16,
        28 => Dtype::U32,
        29 => Dtype::U64,
        other => return Err(format!("element type {other} of ExecuTorch")),
    })
}
