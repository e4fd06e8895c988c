//! Datasets: shape, element type, and the tensor that they become.

use std::sync::OnceLock;

use super::datatype::{Datatype, Untyped};
use super::file::{Hdf5File, wrong};
use super::heap::variable_text;
use super::layout::{self, ChunkedLayout, DataLayout};
use super::object::{Object, kind};
use crate::limits::{Budget, cap};
use crate::model::TensorInfo;
use crate::source::{ChunkedTensor, Derived, Source, check_runs};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Most dimensions; HDF5 has the same limit.
const MAX_DIMS: u64 = 32;

/// The dataset `object`, called `path`, as a tensor of `contents`; the inner error says why it is none.
///
/// # Errors
/// `Parse` if it is malformed, or its data is not in the file; `LimitExceeded`; `Io`.
pub(super) fn read(
    file: &mut Hdf5File<'_>,
    object: &Object,
    path: &str,
    budget: &Budget,
    contents: &mut ParsedModel,
) -> Result<std::result::Result<TensorInfo, String>> {
    let Some((shape, grows)) = dataspace(file, object)? else {
        return Ok(Err("dataset without elements".to_owned()));
    };
    let message = object.read_shared(file, kind::DATATYPE)?;
    let datatype = Datatype::read(file, &message)?;
    let (dtype, big_endian) = match datatype.element {
        Ok(element) => element,
        Err(Untyped::Opaque) if datatype.size == 2 && is_bfloat16(file, object)? => {
            (Dtype::BF16, false)
        }
        Err(what) => return Ok(Err(format!("array of {}", what.name()))),
    };
    let overflow = || wrong("a dataset whose size overflows");
    let sizes: Option<Vec<usize>> = shape.iter().map(|&n| usize::try_from(n).ok()).collect();
    let sizes = sizes.ok_or_else(overflow)?;
    let len = dtype.byte_len(&sizes).ok_or_else(overflow)? as u64;
    let layout = match layout::read(file, object, (&shape, &grows), datatype.size as u64)? {
        Ok(layout) => layout,
        Err(what) => return Ok(Err(what)),
    };
    let mut tensor =
        TensorInfo { big_endian, ..TensorInfo::plain(path, (dtype, sizes), (0, 0, len)) };
    let chunked = match layout {
        _ if len == 0 => return Ok(Ok(tensor)),
        DataLayout::Whole(Some(address), stored) => {
            if stored != len {
                return Err(wrong(&format!("a dataset of {len} bytes with {stored} of data")));
            }
            tensor.offset = file.data(address, len)?;
            return Ok(Ok(tensor));
        }
        DataLayout::Whole(None, _) => ChunkedLayout {
            chunk: shape.clone(),
            chunks: vec![],
            filters: vec![],
            keeps_partial: false,
        },
        DataLayout::Chunked(chunked) => chunked,
    };
    let stored: u64 = chunked.chunks.iter().map(|chunk| chunk.len).sum();
    // Chunks may be far larger than what the dataset has of them.
    let whole = (chunked.chunk.iter().product::<u64>() * datatype.size as u64)
        .saturating_mul(chunked.chunks.len() as u64);
    budget.decompress(stored, len.max(whole), format_args!("dataset `{path}`"))?;
    budget.tables(0, chunked.chunks.len() as u64 / 8, 0)?;
    check_runs(&shape, &chunked.chunk, len)?;
    let fill = fill_value(file, object, datatype.size)?;
    let ChunkedLayout { chunk, chunks, filters, keeps_partial } = chunked;
    let source = ChunkedTensor {
        base: contents.sources[0].share(),
        shape,
        chunk,
        size: datatype.size as u64,
        chunks,
        filters,
        keeps_partial,
        fill,
        spool: OnceLock::new(),
    };
    tensor.source = contents.sources.len();
    contents
        .sources
        .push(Source::Derived(Box::new(Derived::Chunked(Box::new(source)))));
    Ok(Ok(tensor))
}

/// Sizes, and which of them may grow; `None` if it has no elements at all.
fn dataspace(file: &mut Hdf5File<'_>, object: &Object) -> Result<Option<(Vec<u64>, Vec<bool>)>> {
    let message = object.read_shared(file, kind::DATASPACE)?;
    let mut fields = file.fields(&message);
    let (version, rank, flags) = (fields.u8()?, fields.u8()?, fields.u8()?);
    cap("MAX_HDF5_DIMS", rank.into(), MAX_DIMS, "dimensions of a dataset")?;
    match version {
        1 => drop(fields.take(5)?),
        2 if fields.u8()? == 2 => return Ok(None),
        2 => {}
        _ => {
            let what = format!("HDF5 dataspace version {version}");
            return Err(AnamnesisError::unsupported(what, "versions 1 and 2 are read"));
        }
    }
    let shape = (0..rank)
        .map(|_| fields.length())
        .collect::<Result<Vec<_>>>()?;
    let most = match flags & 1 {
        0 => shape.clone(),
        _ => (0..rank)
            .map(|_| fields.length())
            .collect::<Result<Vec<_>>>()?,
    };
    let grows = shape
        .iter()
        .zip(&most)
        .map(|(size, most)| size != most)
        .collect();
    Ok(Some((shape, grows)))
}

/// Whether Keras has called opaque elements BF16.
fn is_bfloat16(file: &mut Hdf5File<'_>, object: &Object) -> Result<bool> {
    Ok(text_attribute(file, object, b"dtype")?.is_some_and(|text| text == b"bfloat16"))
}

/// The text that is the attribute `wanted` of an object.
pub(super) fn text_attribute(
    file: &mut Hdf5File<'_>,
    object: &Object,
    wanted: &[u8],
) -> Result<Option<Vec<u8>>> {
    let attributes: Vec<Vec<u8>> = object.all(kind::ATTRIBUTE).map(<[u8]>::to_vec).collect();
    for attribute in attributes {
        let mut fields = file.fields(&attribute);
        let (version, _) = (fields.u8()?, fields.u8()?);
        let sizes = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
        if version == 3 {
            fields.take(1)?;
        }
        // Parts of version 1 are padded.
        let padded = |size: usize| {
            if version == 1 {
                size.next_multiple_of(8)
            } else {
                size
            }
        };
        let name = fields.take(padded(sizes[0]))?;
        let datatype = fields.take(padded(sizes[1]))?;
        fields.take(padded(sizes[2]))?;
        if name.split(|&byte| byte == 0).next() != Some(wanted) {
            continue;
        }
        let text = match Datatype::read(file, datatype)?.element {
            Err(Untyped::Text) => fields.rest.to_vec(),
            Err(Untyped::Variable) => variable_text(file, fields)?,
            _ => continue,
        };
        let text = text.trim_ascii_end().split(|&byte| byte == 0).next();
        return Ok(text.map(<[u8]>::to_vec));
    }
    Ok(None)
}

/// The element that stands where nothing was written; empty if it is zero.
fn fill_value(file: &mut Hdf5File<'_>, object: &Object, size: usize) -> Result<Vec<u8>> {
    let message = object.read_optional(file, kind::FILL_VALUE)?;
    let old = object.read_optional(file, kind::OLD_FILL_VALUE)?;
    let value = match &message {
        Some(message) => {
            let mut fields = file.fields(message);
            let version = fields.u8()?;
            let is_defined = match version {
                3 => fields.u8()? & 0x20 != 0,
                _ => {
                    let (_, _, is_defined) = (fields.u8()?, fields.u8()?, fields.u8()?);
                    version == 1 || is_defined != 0
                }
            };
            if is_defined { sized(&mut fields)? } else { &[] }
        }
        None => match &old {
            Some(message) => sized(&mut file.fields(message))?,
            None => &[],
        },
    };
    match value.len() {
        0 => Ok(vec![]),
        len if len == size => Ok(value.to_vec()),
        _ => Err(wrong("a fill value of another size than the elements")),
    }
}

/// Bytes with their number before them.
fn sized<'b>(fields: &mut super::file::StructureFields<'b>) -> Result<&'b [u8]> {
    let len = fields.u32()?;
    // Old writers have a negative number for none.
    match len as i32 {
        ..=0 => Ok(&[]),
        len => fields.take(len as usize),
    }
}
