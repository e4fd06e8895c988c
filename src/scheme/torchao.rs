//! torchao in safetensors: the parameter `M.P` is in parts `M._P_qdata`, `M._P_scale` and so on. The file's metadata
//! have a JSON for each parameter: `{"_type": class, "_data": {…}, "_tensor_data_names": [part, …]}`. Shards may name
//! parameters of other shards.
//!
//! Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor: a byte a code, scales with a dimension for each of the
//! weight's, `(q - zero) * scale`. Int4Tensor, Int4PlainInt32Tensor: rows of nibbles, low first, scales
//! `[groups, out]`; `q * scale + zero` and `(q - zero) * scale`. NVFP4Tensor, MXTensor: scales of short blocks, plain
//! or in tiles. Int4TilePackedTo4dTensor: see `torchao/tiles.rs`.
//!
//! Names: torchao `prototype/safetensors` (`flatten_tensor_state_dict`). Formulas: the classes' `dequantize`.

mod metadata;
mod tiles;

use std::collections::HashMap;

use serde_json::Value;

use self::metadata::{TorchaoDescription, TorchaoParameter, TorchaoParts, base};
use crate::config::QuantMethod;
use crate::containers::model::Tensor;
use crate::kernels::remember::fp8::ScaleGrid;
use crate::kernels::remember::grouped::{E2M1, Int};
use crate::scheme::layout::tiled::{self, TiledScales};
use crate::scheme::seam::fit::{by_dimension, granularity, per_tensor, rows_and_cols};
use crate::scheme::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::scheme::seam::numbers::{
    Integers, Matrix, NestedOp, NestedScales, ScaleMatrix, Transposed,
};
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme, Scheme,
    TensorRole, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Torchao;

/// What listings call it.
const FAMILY: &str = "torchao";

/// Names of parts for activations, which are quantized as they come.
const ACTIVATION_PARTS: &[&str] = &[
    "act_quant_scale",
    "act_quant_zero_point",
    "act_per_tensor_scale",
];

static IDENTITY: Identity = Identity {
    name: FAMILY,
    methods: &[QuantMethod::Torchao],
    codes: &["_qdata"],
    companions: &[],
    optional: &[],
    activations: ACTIVATION_PARTS,
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Torchao {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        let parts = TorchaoParts::new(&all.model.metadata);
        (!parts.0.is_empty()).then(|| Box::new(parts) as Prepared)
    }

    fn descriptions(&self, metadata: &HashMap<String, String>) -> Vec<String> {
        metadata::described(metadata)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let parts = all.prepared::<TorchaoParts>();
        let Some(parameter) = parts.and_then(|parts| parts.0.get(t.name())) else {
            if t.name().ends_with("_qdata") && t.name().contains("._") {
                return Err(refused(
                    t,
                    FAMILY,
                    "the metadata of its file do not say what it is",
                ));
            }
            return Ok(None);
        };
        let TorchaoParameter { name, description } = &**parameter;
        if description.parts.iter().all(|part| part != "qdata") {
            return Err(refused(
                t,
                FAMILY,
                format!("a {} is not decoded by this version", description.class),
            ));
        }
        let base = base(name);
        let codes = all.need(t, &base, "qdata")?;
        if codes.name() != t.name() {
            return Ok(None);
        }
        let mut layer = TorchaoLayer {
            t: *t,
            name,
            base,
            description,
            all,
            parts: vec![(TensorRole::Quantized, *t)],
        };
        let TorchaoDecoder {
            codes,
            scales,
            shape,
            mut decoder,
        } = layer.decoded()?;
        decoder.columns = layer.columns(decoder.cols)?;
        layer.check_unused_parts()?;
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes,
            scales,
        };
        Ok(Some(Group::new(
            name.clone(),
            shape,
            scheme,
            layer.parts,
            Box::new(decoder),
        )))
    }
}

/// A decoder, and what to say of it.
pub(super) struct TorchaoDecoder<'m> {
    pub codes: CodeType,
    pub scales: Granularity,
    pub shape: Vec<usize>,
    pub decoder: Grouped<'m>,
}

/// A parameter, with the parts that were found useful so far.
struct TorchaoLayer<'a, 'm> {
    t: Tensor<'m>,
    name: &'a str,
    base: String,
    description: &'a TorchaoDescription,
    all: &'a Index<'m>,
    parts: Vec<(TensorRole, Tensor<'m>)>,
}

impl<'m> TorchaoLayer<'_, 'm> {
    fn decoded(&mut self) -> Result<TorchaoDecoder<'m>> {
        match self.description.class.as_str() {
            "Float8Tensor" if self.t.dtype() != Dtype::I8 => self.bytes(CodeType::Fp8),
            "Int8Tensor" | "IntxUnpackedToInt8Tensor" if self.t.dtype() == Dtype::I8 => {
                self.bytes(CodeType::Int(8))
            }
            "Int4Tensor" if matches!(self.t.dtype(), Dtype::I8 | Dtype::U8) => self.nibbles(true),
            "Int4PlainInt32Tensor" if self.t.dtype() == Dtype::I32 => self.nibbles(false),
            "Int4TilePackedTo4dTensor" => {
                let scales = self.need(TensorRole::Scale, "scale_and_zero")?;
                tiles::decoded(&self.t, &scales, &self.dims("shape"), self.group()?)
            }
            "NVFP4Tensor" => self.nvfp4(),
            "MXTensor" => self.mx(),
            class => Err(refused(
                &self.t,
                FAMILY,
                format!("a {class} of such codes is not decoded by this version"),
            )),
        }
    }

    /// A part, if there is one. One that the metadata name has to be there.
    fn part(&mut self, role: TensorRole, part: &str) -> Result<Option<Tensor<'m>>> {
        let found = match self.description.parts.iter().any(|name| name == part) {
            true => Some(self.all.need(&self.t, &self.base, part)?),
            false => self.all.at(&self.base, part),
        };
        self.parts.extend(found.map(|t| (role, t)));
        Ok(found)
    }

    fn need(&mut self, role: TensorRole, part: &str) -> Result<Tensor<'m>> {
        let found = self.part(role, part)?;
        found.ok_or_else(|| wrong(&self.t, format!("its `{}{part}` is missing", self.base)))
    }

    /// TorchaoParts that are named and mean nothing here might change the weight.
    fn check_unused_parts(&self) -> Result<()> {
        let used = |part: &str| {
            self.parts
                .iter()
                .any(|(_, t)| t.name().strip_prefix(&self.base) == Some(part))
        };
        match self
            .description
            .parts
            .iter()
            .find(|part| !used(part) && !ACTIVATION_PARTS.contains(&part.as_str()))
        {
            Some(part) => Err(refused(
                &self.t,
                FAMILY,
                format!("its part `{part}` is not understood"),
            )),
            None => Ok(()),
        }
    }

    /// The inputs are multiplied by these before the weight is; so the weight is, column by column.
    fn columns(&mut self, cols: usize) -> Result<Option<Floats<'m>>> {
        let Some(scale) = self.part(TensorRole::Scale, "act_pre_scale")? else {
            return Ok(None);
        };
        if scale.elements() != cols {
            return Err(wrong(
                &scale,
                format!("`{}` has {cols} columns", self.t.name()),
            ));
        }
        Floats::ieee(&scale).map(Some)
    }

    /// A list of sizes; empty if there is none.
    fn dims(&self, key: &str) -> Vec<usize> {
        let dim = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let list = self.description.data.get(key).and_then(Value::as_array);
        list.and_then(|list| list.iter().map(dim).collect())
            .unwrap_or_default()
    }

    /// Columns of a group.
    fn group(&self) -> Result<usize> {
        let (size, list) = (
            self.description.data.get("block_size"),
            self.dims("block_size"),
        );
        let size = size
            .and_then(Value::as_u64)
            .and_then(|size| usize::try_from(size).ok());
        let leading_ones = list.iter().rev().skip(1).all(|&size| size == 1);
        let size = size
            .or_else(|| list.last().copied().filter(|_| leading_ones))
            .filter(|&size| size > 0);
        size.ok_or_else(|| wrong(&self.t, "its metadata do not say how large its groups are"))
    }

    /// A torch dtype.
    fn dtype(&self, key: &str) -> Option<&str> {
        self.description.data.get(key)?.get("_data")?.as_str()
    }

    fn flag(&self, key: &str) -> bool {
        self.description
            .data
            .get(key)
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    fn misfit(&self, part: &Tensor<'_>) -> crate::AnamnesisError {
        wrong(
            &self.t,
            format!("its `{}` {:?} does not fit", part.name(), part.shape()),
        )
    }

    /// A byte a code.
    fn bytes(&mut self, codes: CodeType) -> Result<TorchaoDecoder<'m>> {
        let code_format = CodeFormat::of_bytes(self.t.dtype());
        let code_format = code_format
            .ok_or_else(|| wrong(&self.t, "its codes are neither I8 nor eight-bit floats"))?;
        let (scale, shape) = (self.need(TensorRole::Scale, "scale")?, self.t.shape());
        let (rows, cols) = rows_and_cols(shape);
        let grid = match scale.elements() {
            1 => Some(per_tensor(shape)),
            _ => by_dimension(shape, scale.shape()),
        };
        let grid =
            grid.filter(|_| codes == CodeType::Fp8 || self.agrees_with_block_size(scale.shape()));
        let grid = grid.ok_or_else(|| self.misfit(&scale))?;
        let stored = Codes::Rows {
            part: self.t.part(),
            row_bytes: cols,
        };
        let scales = Box::new(Matrix {
            floats: Floats::ieee(&scale)?,
            cols: grid.cols,
        });
        let mut decoder = Grouped::scaled(stored, 8, code_format, [rows, cols], grid, scales);
        let zero = if codes == CodeType::Fp8 {
            None
        } else {
            self.part(TensorRole::ZeroPoint, "zero_point")?
        };
        if let Some(zero) = zero {
            if zero.elements() != scale.elements() {
                return Err(self.misfit(&zero));
            }
            let zero_points = if zero.dtype().is_floating_point() {
                let matrix = Box::new(Matrix {
                    floats: Floats::ieee(&zero)?,
                    cols: grid.cols,
                });
                // The difference is no integer, and is rounded.
                GroupOffsets::new(matrix).computed_in(self.compute_dtype(&scale))
            } else {
                GroupOffsets::new(Box::new(Integers::new(&zero, grid.cols, 0.0)?))
            };
            decoder.formula = GroupFormula::ShiftScale(zero_points);
        }
        Ok(TorchaoDecoder {
            codes,
            scales: granularity(&grid, cols),
            shape: shape.to_vec(),
            decoder,
        })
    }

    /// The type in which the library computes.
    fn compute_dtype(&self, scale: &Tensor<'_>) -> Option<TargetDtype> {
        match self.dtype("dtype") {
            Some("bfloat16") => Some(TargetDtype::BF16),
            Some("float16") => Some(TargetDtype::F16),
            Some(_) => None,
            None => TargetDtype::of(scale.dtype()),
        }
    }

    /// Whether the metadata agree that the weight has so many blocks in each dimension.
    fn agrees_with_block_size(&self, counts: &[usize]) -> bool {
        let (size, shape) = (self.dims("block_size"), self.t.shape());
        let fits = |((&size, &dim), &n): ((&usize, &usize), &usize)| {
            size.min(dim).checked_mul(n) == Some(dim)
        };
        size.len() != shape.len()
            || counts.len() != shape.len()
            || size.iter().zip(shape).zip(counts).all(fits)
    }

    /// Two codes a byte, with the scales of a column in a row. `signed`: two's complement, and a zero point that is
    /// added.
    fn nibbles(&mut self, signed: bool) -> Result<TorchaoDecoder<'m>> {
        let size = self.t.dtype().bits() / 8;
        let row_bytes = self.t.shape().last().and_then(|&n| n.checked_mul(size));
        let (shape, row_bytes) = self.unpacked_shape(row_bytes)?;
        let (rows, cols) = rows_and_cols(&shape);
        let said = self.dims("shape");
        if !said.is_empty() && said != shape {
            return Err(wrong(
                &self.t,
                format!("its metadata say that its shape is {said:?}"),
            ));
        }
        let (group, outputs) = (
            self.group()?,
            shape.iter().nth_back(1).copied().unwrap_or(1),
        );
        let (scale, zero) = (
            self.need(TensorRole::Scale, "scale")?,
            self.need(TensorRole::ZeroPoint, "zero_point")?,
        );
        let groups = cols.div_ceil(group);
        let leading = shape.iter().rev().skip(2).rev().copied();
        let expected: Vec<usize> = leading.chain([groups, outputs]).collect();
        for part in [&scale, &zero] {
            if part.shape() != expected {
                return Err(self.misfit(part));
            }
        }
        let transposed = |inner| {
            Box::new(Transposed {
                inner,
                rows: outputs,
                cols: groups,
            }) as Box<dyn ScaleMatrix + 'm>
        };
        let floats = |t: &Tensor<'m>| {
            Floats::ieee(t).map(|floats| {
                Box::new(Matrix {
                    floats,
                    cols: outputs,
                })
            })
        };
        let code_format = CodeFormat::Int(if signed {
            Int::signed(4)
        } else {
            Int::UNSIGNED
        });
        let stored = Codes::Rows {
            part: self.t.part(),
            row_bytes,
        };
        let grid = row_groups(cols, group);
        let mut decoder = Grouped::scaled(
            stored,
            4,
            code_format,
            [rows, cols],
            grid,
            transposed(floats(&scale)?),
        );
        decoder.formula = if signed {
            GroupFormula::ScaleShift(GroupOffsets::new(transposed(floats(&zero)?)))
        } else if zero.dtype().is_floating_point() {
            let what = format!(
                "the zero points of `{}` are floats: Ascend's packing, which is not published",
                self.name
            );
            return Err(refused(&self.t, FAMILY, what));
        } else {
            let zero_points = transposed(Box::new(Integers::new(&zero, outputs, 0.0)?));
            GroupFormula::ShiftScale(GroupOffsets::new(zero_points))
        };
        Ok(TorchaoDecoder {
            codes: CodeType::Int(4),
            scales: Granularity::Group(group),
            shape,
            decoder,
        })
    }

    /// The shape of what lies two to a byte in rows of so many bytes, and these.
    fn unpacked_shape(&self, row_bytes: Option<usize>) -> Result<(Vec<usize>, usize)> {
        let row = row_bytes.and_then(|n| Some((n, n.checked_mul(2)?)));
        let Some(((row_bytes, cols), rows)) =
            row.zip(self.t.shape().split_last().map(|(_, rows)| rows))
        else {
            return Err(wrong(&self.t, "its rows cannot be counted"));
        };
        if rows.is_empty() {
            return Err(wrong(&self.t, "weights have two dimensions or more"));
        }
        Ok((rows.iter().copied().chain([cols]).collect(), row_bytes))
    }

    fn nvfp4(&mut self) -> Result<TorchaoDecoder<'m>> {
        let scale = self.need(TensorRole::Scale, "scale")?;
        if self.t.dtype() != Dtype::U8 || scale.dtype() != Dtype::F8E4M3 {
            return Err(wrong(&self.t, "NVFP4 is U8 with scales that are F8_E4M3"));
        }
        let (shape, row_bytes) = self.unpacked_shape(self.t.shape().last().copied())?;
        let (rows, cols) = rows_and_cols(&shape);
        let group = self.group()?;
        let (mut scales, grid) = self.blocks(&scale, Floats::fp8(&scale)?, &shape, group)?;
        if let Some(outer) = self.part(TensorRole::Scale, "per_tensor_scale")? {
            let stack = rows / shape.iter().nth_back(1).copied().unwrap_or(1).max(1);
            let count = outer.elements();
            if count == 0 || count != 1 && count != stack {
                return Err(self.misfit(&outer));
            }
            let (outer, rows_each) = (Floats::ieee(&outer)?, rows.div_ceil(count));
            scales = Box::new(NestedScales {
                inner: scales,
                outer,
                count,
                rows_each,
                op: NestedOp::Multiply,
                unit: 1.0,
            });
        }
        let stored = Codes::Rows {
            part: self.t.part(),
            row_bytes,
        };
        let decoder = Grouped::scaled(stored, 4, FP4, [rows, cols], grid, scales);
        Ok(TorchaoDecoder {
            codes: CodeType::Nvfp4,
            scales: Granularity::Group(group),
            shape,
            decoder,
        })
    }

    fn mx(&mut self) -> Result<TorchaoDecoder<'m>> {
        let scale = self.need(TensorRole::Scale, "scale")?;
        if scale.dtype() != Dtype::F8E8M0 {
            return Err(wrong(&scale, "scales of these blocks are F8_E8M0"));
        }
        let (codes, bits, code_format) = match (self.dtype("elem_dtype"), self.t.dtype()) {
            (Some("float8_e4m3fn"), Dtype::F8E4M3) => (CodeType::Mxfp8, 8, CodeFormat::E4M3),
            (Some("float8_e5m2"), Dtype::F8E5M2) => (CodeType::Mxfp8, 8, CodeFormat::E5M2),
            (Some("float4_e2m1fn_x2"), Dtype::U8) => (CodeType::Mxfp4, 4, FP4),
            (says, _) => {
                let what = format!(
                    "codes that its metadata call {} are not decoded",
                    says.unwrap_or("nothing")
                );
                return Err(refused(&self.t, FAMILY, what));
            }
        };
        let bytes = self.t.shape().last().copied();
        let (unpacked_shape, row_bytes) = self.unpacked_shape(bytes)?;
        let shape = if bits == 4 {
            unpacked_shape
        } else {
            self.t.shape().to_vec()
        };
        let (rows, cols) = rows_and_cols(&shape);
        let group = self.group()?;
        let (scales, grid) = self.blocks(&scale, Floats::new(&scale)?, &shape, group)?;
        let stored = Codes::Rows {
            part: self.t.part(),
            row_bytes,
        };
        let decoder = Grouped::scaled(stored, bits, code_format, [rows, cols], grid, scales);
        Ok(TorchaoDecoder {
            codes,
            scales: Granularity::Group(group),
            shape,
            decoder,
        })
    }

    /// Scales of blocks of a row, plain or in tiles over all rows.
    fn blocks(
        &self,
        scale: &Tensor<'m>,
        floats: Floats<'m>,
        shape: &[usize],
        group: usize,
    ) -> Result<(Box<dyn ScaleMatrix + 'm>, ScaleGrid)> {
        let (rows, cols) = rows_and_cols(shape);
        let blocks = cols / group;
        let plain =
            scale.shape().split_last() == shape.split_last().map(|(_, rows)| (&blocks, rows));
        let swizzled = self.flag("is_swizzled_scales");
        let fits = if swizzled {
            tiled::stored_len(rows, blocks) == Some(scale.elements())
        } else {
            plain
        };
        if !(fits && cols.is_multiple_of(group)) {
            return Err(self.misfit(scale));
        }
        let scales: Box<dyn ScaleMatrix + 'm> = if swizzled {
            Box::new(TiledScales {
                floats,
                rows,
                cols: blocks,
            })
        } else {
            Box::new(Matrix {
                floats,
                cols: blocks,
            })
        };
        Ok((scales, row_groups(cols, group)))
    }
}

const FP4: CodeFormat = CodeFormat::E2M1(E2M1 {
    factor: 1.0,
    plain_zero: false,
});
