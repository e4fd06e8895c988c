//! Where the data of a dataset is: in the object's header, in one piece, or in chunks.

use super::chunks::{self, ChunkIndex, ChunkShape};
use super::file::{Hdf5File, wrong};
use super::object::{Object, kind};
use crate::limits::cap;
use crate::source::{ChunkFilter, ChunkPlace};
use crate::{AnamnesisError, Result};

/// The place of the data.
pub(super) enum DataLayout {
    /// In one piece: the address, unless nothing was written, and the length.
    Whole(Option<u64>, u64),
    Chunked(ChunkedLayout),
}

/// Data in chunks.
pub(super) struct ChunkedLayout {
    /// Elements of a chunk in each dimension.
    pub chunk: Vec<u64>,
    pub chunks: Vec<ChunkPlace>,
    pub filters: Vec<ChunkFilter>,
    /// Whether chunks that reach over the end of the dataset are not filtered.
    pub keeps_partial: bool,
}

/// Reads the layout of the dataset `object` of a shape, whose dimensions may grow, and whose elements have `size` bytes. The inner
/// error says why data is not read.
///
/// # Errors
/// `Parse` if it is malformed; `LimitExceeded`; `Io`.
pub(super) fn read(
    file: &mut Hdf5File<'_>,
    object: &Object,
    (shape, grows): (&[u64], &[bool]),
    size: u64,
) -> Result<std::result::Result<DataLayout, String>> {
    let message = object.find(kind::LAYOUT);
    let message = message
        .ok_or_else(|| wrong("a dataset without a layout"))?
        .to_vec();
    let mut fields = file.fields(&message);
    let (version, second) = (fields.u8()?, fields.u8()?);
    // Old versions have the number of dimensions before the class, and sizes that say nothing more.
    let old_rank = matches!(version, 1 | 2).then_some(second);
    let class = match (version, old_rank) {
        (_, Some(_)) => {
            let class = fields.u8()?;
            fields.take(5)?;
            class
        }
        (3..=5, None) => second,
        _ => {
            let what = format!("HDF5 data layout version {version}");
            return Err(AnamnesisError::unsupported(what, "versions 1 to 5 are read"));
        }
    };
    if object.find(kind::EXTERNAL_FILES).is_some() {
        return Ok(Err("data in other files".to_owned()));
    }
    match class {
        0 => {
            let len = match old_rank {
                Some(rank) => {
                    fields.take(4 * usize::from(rank))?;
                    fields.u32()?.into()
                }
                None => fields.u16()?.into(),
            };
            let before = (message.len() - fields.rest.len()) as u64;
            let at = object.address_of(kind::LAYOUT).map(|at| at + before);
            Ok(Ok(DataLayout::Whole(at, len)))
        }
        1 => {
            let address = fields.address()?;
            let len = match old_rank {
                Some(_) => shape.iter().fold(size, |n, &dim| n.saturating_mul(dim)),
                None => fields.length()?,
            };
            Ok(Ok(DataLayout::Whole(address, len)))
        }
        2 => {
            let filters = match filters(file, object)? {
                Ok(filters) => filters,
                Err(what) => return Ok(Err(what)),
            };
            let (index, mut chunk, keeps_partial) = match (version, old_rank) {
                (_, Some(rank)) => chunks::in_a_tree(&mut fields, rank)?,
                (3, None) => {
                    let rank = fields.u8()?;
                    chunks::in_a_tree(&mut fields, rank)?
                }
                _ => chunks::of_version_4(&mut fields)?,
            };
            // A number alone is never in chunks.
            let fits = chunk.pop() == Some(size) && chunk.len() == shape.len();
            if !fits || chunk.is_empty() || chunk.contains(&0) {
                return Err(wrong("chunks that do not fit their dataset"));
            }
            let of = ChunkShape::new(shape, &chunk, size)?;
            let index = ChunkIndex { wide: version > 4, ..index };
            let chunks = index.places(file, &of, grows)?;
            Ok(Ok(DataLayout::Chunked(ChunkedLayout { chunk, chunks, filters, keeps_partial })))
        }
        _ => Ok(Err("data in other datasets".to_owned())),
    }
}

/// The filters of a dataset, in the order of writing.
fn filters(
    file: &mut Hdf5File<'_>,
    object: &Object,
) -> Result<std::result::Result<Vec<ChunkFilter>, String>> {
    let Some(message) = object.read_optional(file, kind::FILTERS)? else {
        return Ok(Ok(vec![]));
    };
    let mut fields = file.fields(&message);
    let (version, count) = (fields.u8()?, fields.u8()?);
    // A mask has a bit for each.
    cap("MAX_HDF5_FILTERS", count.into(), 32, "filters of a dataset")?;
    if version == 1 {
        fields.take(6)?;
    }
    let mut found = vec![];
    for _ in 0..count {
        let id = fields.u16()?;
        let name_len = if version == 1 || id >= 256 {
            fields.u16()?
        } else {
            0
        };
        let (_, values) = (fields.u16()?, usize::from(fields.u16()?));
        fields.take(name_len.into())?;
        let first = fields.take(4 * values)?;
        if version == 1 && values % 2 == 1 {
            fields.take(4)?;
        }
        let first = first.first_chunk().map(|&bytes| u32::from_le_bytes(bytes));
        found.push(match (id, first) {
            (1, _) => ChunkFilter::Deflate,
            (2, Some(size @ 1..)) => ChunkFilter::Shuffle(size as usize),
            (3, _) => ChunkFilter::Fletcher32,
            (32000, _) => return Ok(Err("data compressed by LZF".to_owned())),
            (32001, _) => return Ok(Err("data compressed by Blosc".to_owned())),
            (id, _) => return Ok(Err(format!("data that filter {id} of HDF5 has changed"))),
        });
    }
    Ok(Ok(found))
}
