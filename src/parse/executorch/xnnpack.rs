//! Weights in graphs of XNNPACK, which say what they are. Their names are those of named data,
//! which are hashes, or numbers.
//!
//! Format: [`schema.fbs`](https://github.com/pytorch/executorch/blob/main/backends/xnnpack/serialization/schema.fbs).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::reader::{NamedData, ProgramReader};
use super::{Result, count, wrong};
use crate::limits::cap;
use crate::model::{GraphCodes, GraphRole, Skipped, TensorInfo};
use crate::parse::flatbuffer::{FlatBuffer, FlatTable};
use crate::source::Source;
use crate::{Dtype, ParsedModel};

/// Bytes of the header.
const HEADER: u64 = 30;

/// Most dimensions of a tensor.
const MAX_DIMS: u64 = 64;

/// A graph, and what its values are called before their numbers.
struct XnnGraph<'a, 'b> {
    file: FlatBuffer<'a>,
    graph: FlatTable,
    /// Where constants are that the graph holds itself.
    data: Range<u64>,
    name: &'b str,
}

/// A constant: its data and its name, if it has one.
struct XnnConstant {
    data: Range<u64>,
    key: String,
}

/// A constant as the graph describes it.
#[derive(PartialEq, Eq)]
struct XnnTensor {
    /// The number of the data type.
    kind: i16,
    dims: Vec<u32>,
    scales: XnnScales,
}

/// Scales of codes.
#[derive(PartialEq, Eq)]
enum XnnScales {
    None,
    /// One for all, which is a number in the tables at this place; and a zero point.
    Tensor {
        place: u64,
        zero_point: i32,
    },
    /// One for each index of an axis, or for groups of so many values along the one behind it.
    Axis {
        axis: i32,
        group: u32,
        data: Range<u64>,
        count: u32,
    },
    /// Those of a version that is not read.
    Unknown,
}

/// Tensors in graphs by their names: data with one name may be in several.
#[derive(Default)]
pub(super) struct XnnTensors(HashMap<String, XnnTensor>);

impl XnnTensors {
    /// Reads the weights of a graph in `blob` of the file. Returns `false` if it is of another
    /// version.
    pub(super) fn read(
        &mut self,
        reader: &mut ProgramReader<'_>,
        blob: Range<u64>,
        name: &str,
        named: &mut NamedData,
    ) -> Result<bool> {
        let source = reader.contents.sources[0].share();
        let mut head = [0; HEADER as usize];
        if blob.end - blob.start < HEADER {
            return Ok(false);
        }
        source.read_at(blob.start, &mut head)?;
        if &head[4..8] != b"XH00" {
            return Ok(false);
        }
        let int =
            |at: usize| u64::from(u32::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 4])));
        let size = super::number(&head, 22);
        let part = |offset: u64, size: u64| {
            let start = blob.start.checked_add(offset)?;
            let end = start.checked_add(size).filter(|&end| end <= blob.end)?;
            Some(start..end)
        };
        let (tables, data) = (part(int(10), int(14)), part(int(18), size));
        let (Some(tables), Some(data)) = (tables, data) else {
            return Err(wrong(format!("`{name}`: its graph and its data are not in it")));
        };
        let mut file = FlatBuffer::new(&source, tables);
        let graph = file.root()?;
        let mut graph = XnnGraph { file, graph, data, name };
        let values = graph.file.vector(&graph.graph, 2, 4)?;
        for i in 0..values.len {
            reader.look()?;
            let value = graph.file.item(values, i)?;
            let kind = graph.file.byte(&value, 0)?;
            let Some(value) = graph.file.child(&value, 1)? else {
                continue;
            };
            let (tensor, quantized) = match kind {
                2 => (graph.file.child(&value, 0)?, Some(value)),
                _ => (Some(value), None),
            };
            if let Some(tensor) = tensor {
                graph.value(self, reader, &tensor, quantized.as_ref(), named)?;
            }
        }
        Ok(true)
    }
}

impl XnnGraph<'_, '_> {
    /// Adds a value if it is a constant.
    fn value(
        &mut self,
        tensors: &mut XnnTensors,
        reader: &mut ProgramReader<'_>,
        tensor: &FlatTable,
        quantized: Option<&FlatTable>,
        named: &mut NamedData,
    ) -> Result<()> {
        let number = self.file.int(tensor, 3)? as u32;
        if number == 0 {
            return Ok(());
        }
        let id = self.file.int(tensor, 6)? as u32;
        let numbered = format!("{}.value_{id}", self.name);
        let Some(constant) = self.constant(number, named, reader, &numbered)? else {
            return Ok(());
        };
        let name = match constant.key.as_str() {
            "" => numbered.clone(),
            key => key.to_owned(),
        };
        let scales = match quantized {
            Some(quantized) => self.scales(quantized, named, reader, &name)?,
            None => XnnScales::None,
        };
        let kind = self.file.number(tensor, 0)?.map_or(0, i16::from_le_bytes);
        let dims = self.file.vector(tensor, 2, 4)?;
        cap("MAX_TENSOR_DIMS", dims.len, MAX_DIMS, "dimensions of a tensor")?;
        let dims = self.file.numbers(dims)?.into_iter().map(u32::from_le_bytes);
        let tensor = XnnTensor { kind, dims: dims.collect(), scales };
        // Data with one name may be in several graphs.
        let name = match tensors.0.get(&name) {
            Some(known) if *known == tensor => return Ok(()),
            Some(_) => numbered,
            None => name,
        };
        if !reader.take_name(&name) {
            return Err(wrong(format!("two tensors are called `{name}`")));
        }
        let added = tensor.add(&mut reader.contents, &name, constant.data);
        added.map_err(|error| error.in_tensor(&name))?;
        tensors.0.insert(name, tensor);
        Ok(())
    }

    /// Constant number `i`; `None` if it is in another file, which is noted under `name`.
    fn constant(
        &mut self,
        i: u32,
        named: &mut NamedData,
        reader: &mut ProgramReader<'_>,
        name: &str,
    ) -> Result<Option<XnnConstant>> {
        let constants = self.file.vector(&self.graph, 8, 4)?;
        let constant = self.file.item(constants, i.into())?;
        let offset = self
            .file
            .number(&constant, 0)?
            .map_or(0, u64::from_le_bytes);
        let size = self
            .file
            .number(&constant, 1)?
            .map_or(0, u64::from_le_bytes);
        let key = self.file.text(&constant, 2)?;
        count(&key, reader.budget)?;
        if offset == u64::MAX {
            let found = named.take(&key);
            if found.is_none() && reader.take_name(name) {
                reader.skip(name, "data of XNNPACK in another file");
            }
            return Ok(found.map(|data| XnnConstant { data, key }));
        }
        let start = self.data.start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(size));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.data.end => {
                Ok(Some(XnnConstant { data: start..end, key: String::new() }))
            }
            _ => Err(wrong(format!("`{name}`: {size} bytes at {offset} are not in its data"))),
        }
    }
}

impl XnnGraph<'_, '_> {
    /// The scales of the codes called `name`.
    fn scales(
        &mut self,
        quantized: &FlatTable,
        named: &mut NamedData,
        reader: &mut ProgramReader<'_>,
        name: &str,
    ) -> Result<XnnScales> {
        let kind = self.file.byte(quantized, 1)?;
        let Some(table) = self.file.child(quantized, 2)? else {
            return Ok(XnnScales::Unknown);
        };
        // Number of the axis, values of a group, and the field with the number of the scales' data.
        let (group, place) = match kind {
            1 => (0, 2),
            2 => {
                let zero_point = self.file.int(&table, 1)?;
                let place = self.file.number_place::<4>(&table, 0)?;
                return Ok(place
                    .map_or(XnnScales::Unknown, |place| XnnScales::Tensor { place, zero_point }));
            }
            4 => (self.file.int(&table, 2)? as u32, 4),
            _ => return Ok(XnnScales::Unknown),
        };
        let axis = self.file.int(&table, 1)?;
        let (data, count) = match self.file.int(&table, place)? as u32 {
            0 => {
                let inline = self.file.vector(&table, 0, 4)?;
                let count =
                    u32::try_from(inline.len).map_err(|_| wrong("its scales are too many"))?;
                (inline.at..inline.at + 4 * inline.len, count)
            }
            number => {
                let Some(constant) = self.constant(number, named, reader, &scale_name(name))?
                else {
                    return Ok(XnnScales::Unknown);
                };
                (constant.data, self.file.int(&table, place + 1)? as u32)
            }
        };
        match count {
            0 => Ok(XnnScales::Unknown),
            _ => Ok(XnnScales::Axis { axis, group, data, count }),
        }
    }
}

fn scale_name(name: &str) -> String {
    format!("{name}.scale")
}

/// The role of what is beside codes.
const COMPANION: GraphRole = GraphRole::Companion { is_shared: false };

impl XnnTensor {
    /// Adds the tensor with its data, and its scales beside it.
    fn add(&self, contents: &mut ParsedModel, name: &str, data: Range<u64>) -> Result<()> {
        let (dtype, is_quantized) = match self.kind {
            1 => (Dtype::F32, false),
            2 => (Dtype::F16, false),
            14 => (Dtype::BF16, false),
            12 => (Dtype::I32, false),
            3 | 6 => (Dtype::I8, true),
            4 => (Dtype::U8, true),
            5 | 7 => (Dtype::I32, true),
            8 | 10 if self.dims.last().is_none_or(|n| n.is_multiple_of(2)) => (Dtype::U4, true),
            8 | 10 => return skip(contents, name, "rows of 4-bit codes that end within a byte"),
            other => return skip(contents, name, &format!("data type {other} of XNNPACK")),
        };
        let shape: Vec<usize> = self.dims.iter().map(|&n| n as usize).collect();
        push(contents, name, dtype, shape, (0, data))?;
        if is_quantized {
            let codes = self.codes(contents, name)?;
            let at = contents.tensors.iter().rposition(|t| *t.name == *name);
            contents
                .graph
                .resize(contents.tensors.len(), GraphRole::Plain);
            if let Some(at) = at {
                contents.graph[at] = GraphRole::Codes(Box::new(codes));
                contents.graph[at + 1..].fill(COMPANION);
            }
        }
        Ok(())
    }

    /// What codes mean; adds their scales and zero points.
    fn codes(&self, contents: &mut ParsedModel, name: &str) -> Result<GraphCodes> {
        let scale = scale_name(name);
        let mut codes = match &self.scales {
            XnnScales::Tensor { place, zero_point } => {
                let range = *place..place + 4;
                push(contents, &scale, Dtype::F32, vec![1], (0, range))?;
                let zero_point = match zero_point {
                    0 => None,
                    n => Some(push_zero_point(contents, name, *n)?),
                };
                GraphCodes { zero_point, ..GraphCodes::along(0, 0) }
            }
            XnnScales::Axis { axis, group, data, count } => {
                let count = *count as usize;
                let dtype = match (data.end - data.start) as usize {
                    n if n == 4 * count => Dtype::F32,
                    n if n == 2 * count => Dtype::BF16,
                    n => return Err(wrong(format!("{count} scales have {n} bytes"))),
                };
                let (axis, group) = (i64::from(*axis), i64::from(*group));
                // Groups lie along rows: the axis is that of the rows.
                let (shape, axis) = match (group, &*self.dims) {
                    (0, _) => (vec![count], axis),
                    (_, &[rows, _]) if axis == 0 && count.is_multiple_of(rows.max(1) as usize) => {
                        (vec![rows as usize, count / rows.max(1) as usize], 1)
                    }
                    _ => return Err(wrong("its groups do not lie along rows")),
                };
                push(contents, &scale, dtype, shape, (0, data.clone()))?;
                GraphCodes::along(axis, group)
            }
            XnnScales::None | XnnScales::Unknown => {
                return Ok(GraphCodes::new("XNNPACK's, without scales that are read"));
            }
        };
        codes.scale = Some(scale.into());
        if matches!(self.kind, 8 | 10) {
            codes.integers.push((GraphCodes::OFFSET.to_owned(), 8));
        }
        Ok(codes)
    }
}

fn skip(contents: &mut ParsedModel, name: &str, what: &str) -> Result<()> {
    contents
        .skipped
        .push(Skipped { name: name.to_owned(), what: what.to_owned() });
    Ok(())
}

/// Adds a tensor with bytes of a source, which must be as many as it has.
fn push(
    contents: &mut ParsedModel,
    name: &str,
    dtype: Dtype,
    shape: Vec<usize>,
    (source, data): (usize, Range<u64>),
) -> Result<()> {
    let len = dtype.packed_len(&shape);
    let len = len.ok_or_else(|| wrong(format!("its size overflows ({shape:?})")))?;
    let stored = data.end.saturating_sub(data.start);
    if stored != len {
        return Err(wrong(format!("{stored} bytes of data, and its type and shape need {len}")));
    }
    contents
        .tensors
        .push(TensorInfo::plain(name, (dtype, shape), (source, data.start, len)));
    Ok(())
}

/// Adds the zero point of the codes called `name`, and returns its name.
fn push_zero_point(contents: &mut ParsedModel, name: &str, n: i32) -> Result<Box<str>> {
    let bytes = i64::from(n).to_le_bytes().to_vec();
    let range = 0..bytes.len() as u64;
    contents.sources.push(Source::Bytes(Arc::new(bytes)));
    let (name, source) = (format!("{name}.zero_point"), contents.sources.len() - 1);
    push(contents, &name, Dtype::I64, vec![1], (source, range))?;
    Ok(name.into())
}
