//! The mode of a layer whose config does not tell it, by how its variables are stored.

use super::kernel::KerasKernel;
use crate::model::TensorInfo;
use crate::source::Source;
use crate::{Dtype, Result};

/// Values of an index of blocks that are read at most.
const MAX_INDEX: usize = 1 << 20;

/// The number of rows that share a block, by the index that tells the block of each row; `None` if
/// it is no such index.
///
/// # Errors
/// Those of reading it.
pub(super) fn block_of(
    index: &TensorInfo,
    source: &Source,
    readable: &mut u64,
) -> Result<Option<usize>> {
    let [rows] = index.shape[..] else {
        return Ok(None);
    };
    let is_plain = index.source == 0 && !index.big_endian && index.dtype == Dtype::F32;
    if !is_plain || rows == 0 || rows > MAX_INDEX || index.len > *readable {
        return Ok(None);
    }
    *readable -= index.len;
    let mut bytes = vec![0; rows * 4];
    source.read_at(index.offset, &mut bytes)?;
    let (blocks, _) = bytes.as_chunks::<4>();
    let block = blocks
        .iter()
        .position(|&b| f32::from_le_bytes(b) != 0.0)
        .unwrap_or(rows);
    let fits = |(row, &b): (usize, &[u8; 4])| f32::from_le_bytes(b) == (row / block) as f32;
    Ok((block > 0 && blocks.iter().enumerate().all(fits)).then_some(block))
}

/// The bits of the codes of GPTQ: a byte for each, or half of one, along the columns. A column alone
/// does not tell; that of fewer bits than eight lies as that of eight.
fn indexed_bits(variables: &[&TensorInfo]) -> Option<usize> {
    let ([codes, scale, zero_point, index] | [_, codes, scale, zero_point, index]) = variables
    else {
        return None;
    };
    let (&[stored, rows], &[cols, _]) = (&*codes.shape, &*scale.shape) else {
        return None;
    };
    let are_codes = [codes, zero_point].iter().all(|t| t.dtype == Dtype::U8);
    if !are_codes || zero_point.shape != scale.shape || *index.shape != [rows] {
        return None;
    }
    match stored {
        _ if cols < 2 => None,
        _ if stored == cols => Some(8),
        _ if stored == cols.div_ceil(2) => Some(4),
        _ => None,
    }
}

impl KerasKernel {
    /// The mode by how the variables of a layer are stored; `block` reads the block of an index.
    pub(super) fn mode_of(
        &self,
        variables: &[&TensorInfo],
        block: impl FnOnce(&TensorInfo) -> Result<Option<usize>>,
    ) -> Result<Option<String>> {
        if let Some(bits) = indexed_bits(variables) {
            return Ok(Some(format!("gptq/{bits}")));
        }
        let [codes, .., last] = variables else {
            return Ok(None);
        };
        if codes.dtype != Dtype::I8 || self.shape.len() < 3 {
            return Ok(None);
        }
        // Codes of four bits are a matrix, and had half of the rows in Keras 3.11 to 3.13.
        let known: Option<Vec<usize>> = self.shape.iter().copied().collect();
        Ok(match (codes.shape.len(), known) {
            (2, _) if last.shape.len() == 1 && variables.len() > 3 => {
                block(last)?.map(|block| format!("int4/{block}"))
            }
            (2, _) => Some("int4/-1".to_owned()),
            (_, Some(shape)) if *codes.shape != *shape => Some("int4".to_owned()),
            (_, Some(shape)) if shape[0] > 1 => Some("int8".to_owned()),
            _ => None,
        })
    }
}
