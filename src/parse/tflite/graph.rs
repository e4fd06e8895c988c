//! Walks over the subgraphs of a model: which tensors have data, and what they say of it.

use std::collections::HashMap;
use std::ops::Range;

use super::quantized::{self, Quantization};
use super::wrong;
use crate::limits::{Budget, cap};
use crate::parse::flatbuffer::{FlatBuffer, FlatTable, FlatVector};
use crate::{AnamnesisError, Dtype, Result};

/// Most dimensions of a tensor.
const MAX_DIMS: u64 = 64;

/// A tensor that has data.
pub(super) struct LiteTensor {
    pub subgraph: usize,
    /// Its number among the tensors of its subgraph.
    pub number: u64,
    pub name: String,
    /// The element type, or what the elements are that no tensor can hold.
    pub dtype: std::result::Result<Dtype, String>,
    pub dims: Vec<i32>,
    /// Where its data is in the file.
    pub data: Range<u64>,
    pub quantization: Option<Quantization>,
    /// How the values of a sparse tensor lie in the dense one.
    pub sparsity: Option<FlatTable>,
}

/// What tells whether tensors of two subgraphs are the same one: where the data begins, the type, the
/// shape.
type SameData = (u64, u8, Vec<i32>);

/// The tensors of a model.
pub(super) struct SubgraphWalk<'a> {
    pub file: FlatBuffer<'a>,
    pub budget: &'a Budget,
    buffers: FlatVector,
    pub found: Vec<LiteTensor>,
    /// Names of the subgraphs.
    pub subgraphs: Vec<String>,
    /// Numbers of the tensors in `found` by their data.
    by_data: HashMap<SameData, usize>,
    /// By subgraph and number, the tensors with scales of blocks.
    pub scales: HashMap<(usize, u64), usize>,
    /// How many tensors are those of earlier subgraphs once more.
    pub repeated: usize,
}

impl<'a> SubgraphWalk<'a> {
    pub(super) fn new(
        mut file: FlatBuffer<'a>,
        model: &FlatTable,
        budget: &'a Budget,
    ) -> Result<Self> {
        let buffers = file.vector(model, 4, 4)?;
        Ok(Self {
            file,
            budget,
            buffers,
            found: Vec::new(),
            subgraphs: Vec::new(),
            by_data: HashMap::new(),
            scales: HashMap::new(),
            repeated: 0,
        })
    }

    pub(super) fn all(&mut self, model: &FlatTable) -> Result<()> {
        let subgraphs = self.file.vector(model, 2, 4)?;
        if subgraphs.len == 0 {
            return Err(wrong("it has no graph"));
        }
        for i in 0..subgraphs.len {
            let graph = self.file.item(subgraphs, i)?;
            let name = self.file.text(&graph, 4)?;
            self.count(&name)?;
            self.subgraphs.push(name);
            let tensors = self.file.vector(&graph, 0, 4)?;
            for number in 0..tensors.len {
                let tensor = self.file.item(tensors, number)?;
                let name = self.file.text(&tensor, 3)?;
                self.count(&name)?;
                let added = self.tensor(&tensor, number, &name);
                added.map_err(|error| error.in_tensor(&name))?;
            }
        }
        Ok(())
    }

    /// Counts a table that many vectors may have, with its name.
    fn count(&self, name: &str) -> Result<()> {
        self.budget.items(1, "tensors")?;
        // Of long names there are a few copies.
        self.budget.tables(1, name.len() as u64 / 64, 0)
    }

    /// Adds a tensor if it has data.
    fn tensor(&mut self, tensor: &FlatTable, number: u64, name: &str) -> Result<()> {
        if self.file.int(tensor, 10)? > 0 {
            return Err(AnamnesisError::unsupported(
                "LiteRT",
                "its data is in another file, or in another section of a bundle",
            ));
        }
        let buffer = self.file.int(tensor, 2)? as u32;
        let Some(data) = self.data(buffer)? else {
            return Ok(());
        };
        let subgraph = self.subgraphs.len() - 1;
        let dims = self.file.vector(tensor, 0, 4)?;
        cap("MAX_TENSOR_DIMS", dims.len, MAX_DIMS, "dimensions of a tensor")?;
        let dims = self.file.numbers(dims)?;
        let dims: Vec<i32> = dims.into_iter().map(i32::from_le_bytes).collect();
        let type_number = self.file.byte(tensor, 1)?;
        let dtype = dtype(type_number);
        let quantization = match &dtype {
            Ok(dtype) if dtype.is_integer() => quantized::read(&mut self.file, tensor, &dims)?,
            _ => None,
        };
        if let Some(Quantization::Blocks { scales, zero_points, .. }) = &quantization {
            for part in [Some(scales), zero_points.as_ref()].into_iter().flatten() {
                *self.scales.entry((subgraph, *part)).or_default() += 1;
            }
        }
        let key = (data.start, type_number, dims.clone());
        match self.by_data.get(&key).map(|&i| &self.found[i]) {
            Some(first) if first.subgraph < subgraph => {
                let first = first.quantization.clone();
                if quantized::are_same(&mut self.file, first.as_ref(), quantization.as_ref())? {
                    self.repeated += 1;
                    return Ok(());
                }
            }
            Some(_) => {}
            None => {
                self.by_data.insert(key, self.found.len());
            }
        }
        let sparsity = self.file.child(tensor, 6)?;
        let name = name.to_owned();
        let found =
            LiteTensor { subgraph, number, name, dtype, dims, data, quantization, sparsity };
        self.found.push(found);
        Ok(())
    }

    /// Where the data of buffer number `i` is; `None` if it has none.
    fn data(&mut self, i: u32) -> Result<Option<Range<u64>>> {
        if i == 0 {
            // By definition the empty one.
            return Ok(None);
        }
        let buffer = self.file.item(self.buffers, i.into())?;
        let bytes = self.file.vector(&buffer, 0, 1)?;
        if bytes.len > 0 {
            return Ok(Some(bytes.at..bytes.at + bytes.len));
        }
        let offset = self.file.number(&buffer, 1)?.map_or(0, u64::from_le_bytes);
        let len = self.file.number(&buffer, 2)?.map_or(0, u64::from_le_bytes);
        if offset <= 1 || len == 0 {
            return Ok(None);
        }
        let (start, whole) = self.file.place();
        match offset.checked_add(len) {
            Some(end) if end <= whole => Ok(Some(start + offset..start + end)),
            _ => Err(wrong(format!("{len} bytes of data at {offset}, and it has {whole}"))),
        }
    }
}

/// The element type with a number of LiteRT, or what the elements are that no tensor can hold.
fn dtype(number: u8) -> std::result::Result<Dtype, String> {
    Ok(match number {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::I32,
        3 => Dtype::U8,
        4 => Dtype::I64,
        5 => return Err("text (STRING)".to_owned()),
        6 => Dtype::Bool,
        7 => Dtype::I16,
        8 => Dtype::C64,
        9 => Dtype::I8,
        10 => Dtype::F64,
        11 => return Err("COMPLEX128".to_owned()),
        12 => Dtype::U64,
        13 => return Err("a resource".to_owned()),
        14 => return Err("a variant".to_owned()),
        15 => Dtype::U32,
        16 => Dtype::U16,
        17 => Dtype::I4,
        18 => Dtype::BF16,
        19 => Dtype::I2,
        20 => Dtype::U4,
        21 => Dtype::F8E4M3,
        22 => Dtype::F8E5M2,
        other => return Err(format!("element type {other} of LiteRT")),
    })
}
