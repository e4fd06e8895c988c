//! torchao in safetensors: the parameter `M.P` is stored in parts `M._P_qdata`, `M._P_scale` and so
//! on. The file's metadata describe each parameter in JSON: `{"_type": class, "_data": {…},
//! "_tensor_data_names": [part, …]}`. The metadata of a shard may describe parameters of other
//! shards.
//!
//! - Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor, AffineQuantizedTensor: one byte a code, scales with as many
//!   dimensions as the weight, `(q - zero) * scale`.
//! - Int4Tensor, Int4PlainInt32Tensor: see `torchao/int4.rs`.
//! - NVFP4Tensor, MXTensor: see `torchao/blocks.rs`.
//! - Int4TilePackedTo4dTensor: see `torchao/tiles.rs`.
//!
//! A checkpoint of PyTorch has the same parts and descriptions, which its reader makes of the
//! subclasses in its pickle.
//!
//! Names: torchao `prototype/safetensors` (`flatten_tensor_state_dict`). Formulas: the classes'
//! `dequantize`.

mod blocks;
mod description;
mod int4;
mod metadata;
mod renamed;
mod tiles;

use std::collections::HashMap;

use serde_json::Value;

use self::description::{TorchaoDescription, TorchaoParameter};
use self::metadata::{TorchaoParts, parts_prefix};
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped};
use crate::remember::seam::scale_layout::{by_dimension, granularity, per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{Integers, Matrix, ScaleMatrix};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme, Scheme,
    TensorRole, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Torchao;

/// Name in listings.
const FAMILY: &str = "torchao";

/// The class of torchao up to 0.15, which checkpoints alone have.
const AFFINE: &str = "AffineQuantizedTensor";

/// Parts that torchao uses to quantize activations at run time. They do not change the weight.
const ACTIVATION_PARTS: &[&str] =
    &["act_quant_scale", "act_quant_zero_point", "act_per_tensor_scale"];

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Torchao],
    codes: &["_qdata"],
    companions: &[
        (Ends("._weight_scale"), TensorRole::Scale),
        (Ends("._weight_scale_and_zero"), TensorRole::Scale),
        (Ends("._weight_per_tensor_scale"), TensorRole::Scale),
        (Ends("._weight_act_pre_scale"), TensorRole::Scale),
        (Ends("._weight_zero_point"), TensorRole::ZeroPoint),
        // Experts of transformers, which are parameters of one module.
        (Ends("._gate_up_proj_scale"), TensorRole::Scale),
        (Ends("._gate_up_proj_zero_point"), TensorRole::ZeroPoint),
        (Ends("._down_proj_scale"), TensorRole::Scale),
        (Ends("._down_proj_zero_point"), TensorRole::ZeroPoint),
    ],
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
        // From the metadata once: a look-up by the part's name is all that a claim then takes.
        let parts = TorchaoParts::new(all.model);
        (!parts.0.is_empty()).then(|| Box::new(parts) as Prepared)
    }

    fn descriptions(&self, metadata: &HashMap<String, String>) -> Vec<String> {
        metadata::description_keys(metadata)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let parts = all.prepared::<TorchaoParts>();
        let Some(parameter) = parts.and_then(|parts| parts.0.get(t.name())) else {
            // The naming is torchao's alone. Without a description the dtype says neither the class
            // nor the group.
            if t.name().ends_with("_qdata") && t.name().contains("._") {
                return Err(refused(t, FAMILY, "the metadata of its file do not say what it is"));
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
        let base = parts_prefix(name);
        let codes = all.need(t, &base, "qdata")?;
        // The codes claim for all parts. The others are left, and get their owner by this claim.
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
        let TorchaoDecoder { codes, scales, shape, mut decoder } = layer.decoder()?;
        decoder.columns = layer.column_factors(decoder.cols)?;
        layer.check_unused_parts()?;
        let scheme = QuantScheme::Grouped { family: FAMILY, codes, scales };
        Ok(Some(Group::new(name.clone(), shape, scheme, layer.parts, Box::new(decoder))))
    }
}

/// A parameter's decoder, its logical shape, and how listings describe it.
pub(super) struct TorchaoDecoder<'m> {
    pub codes: CodeType,
    pub scales: Granularity,
    pub shape: Vec<usize>,
    pub decoder: Grouped<'m>,
}

/// A parameter that is being claimed, with the parts that its decoder uses so far.
struct TorchaoLayer<'a, 'm> {
    t: Tensor<'m>,
    name: &'a str,
    base: String,
    description: &'a TorchaoDescription,
    all: &'a Index<'m>,
    parts: Vec<(TensorRole, Tensor<'m>)>,
}

impl<'m> TorchaoLayer<'_, 'm> {
    fn decoder(&mut self) -> Result<TorchaoDecoder<'m>> {
        match self.description.class.as_str() {
            // The class alone does not tell the layout: the dtype of the codes must go with it, or
            // a kernel would read other bytes.
            "Float8Tensor" if self.t.dtype() != Dtype::I8 => self.byte_codes(CodeType::Fp8),
            "Int8Tensor" | "IntxUnpackedToInt8Tensor" if self.t.dtype() == Dtype::I8 => {
                self.byte_codes(CodeType::Int(8))
            }
            AFFINE if matches!(self.t.dtype(), Dtype::I8 | Dtype::U8) => {
                self.byte_codes(CodeType::Int(8))
            }
            "Int4Tensor" if matches!(self.t.dtype(), Dtype::I8 | Dtype::U8) => self.int4(true),
            "Int4PlainInt32Tensor" if self.t.dtype() == Dtype::I32 => self.int4(false),
            "Int4TilePackedTo4dTensor" => {
                let scales = self.need_part(TensorRole::Scale, "scale_and_zero")?;
                tiles::decoder(&self.t, &scales, &self.dims("shape"), self.group_size()?)
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

    /// The part `part`, if there is one, noted as a part of the group.
    ///
    /// # Errors
    /// The metadata name the part, and it is missing.
    fn find_part(&mut self, role: TensorRole, part: &str) -> Result<Option<Tensor<'m>>> {
        // A part that the metadata name must exist. Others are optional.
        let found = match self.description.parts.iter().any(|name| name == part) {
            true => Some(self.all.need(&self.t, &self.base, part)?),
            false => self.all.at(&self.base, part),
        };
        self.parts.extend(found.map(|t| (role, t)));
        Ok(found)
    }

    fn need_part(&mut self, role: TensorRole, part: &str) -> Result<Tensor<'m>> {
        let found = self.find_part(role, part)?;
        found.ok_or_else(|| wrong(&self.t, format!("its `{}{part}` is missing", self.base)))
    }

    /// Refuses a parameter with a part that no decoder used: such a part might change the values of
    /// the weight.
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
            Some(part) => {
                Err(refused(&self.t, FAMILY, format!("its part `{part}` is not understood")))
            }
            None => Ok(()),
        }
    }

    /// `act_pre_scale`, which torchao multiplies the layer's inputs by. The same factors on the
    /// columns of the weight give the same product.
    fn column_factors(&mut self, cols: usize) -> Result<Option<Box<dyn ScaleMatrix + 'm>>> {
        let Some(scale) = self.find_part(TensorRole::Scale, "act_pre_scale")? else {
            return Ok(None);
        };
        if scale.elements() != cols {
            return Err(wrong(&scale, format!("`{}` has {cols} columns", self.t.name())));
        }
        Matrix::of_columns(&scale).map(Some)
    }

    /// The list of sizes `key` of the metadata; empty if there is none.
    fn dims(&self, key: &str) -> Vec<usize> {
        let dim = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let list = self.description.data.get(key).and_then(Value::as_array);
        list.and_then(|list| list.iter().map(dim).collect())
            .unwrap_or_default()
    }

    /// Columns of a group: `block_size`, a number or a list with a size for each dimension. A list
    /// is accepted if groups lie in one row.
    fn group_size(&self) -> Result<usize> {
        // A list such as `[1, 128]` has the group last; a block of several rows would be another
        // grid.
        let (size, list) = (self.description.data.get("block_size"), self.dims("block_size"));
        let size = size
            .and_then(Value::as_u64)
            .and_then(|size| usize::try_from(size).ok());
        let leading_ones = list.iter().rev().skip(1).all(|&size| size == 1);
        let size = size
            .or_else(|| list.last().copied().filter(|_| leading_ones))
            .filter(|&size| size > 0);
        size.ok_or_else(|| wrong(&self.t, "its metadata do not say how large its groups are"))
    }

    /// The name of the torch dtype `key` of the metadata.
    fn torch_dtype(&self, key: &str) -> Option<&str> {
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
        wrong(&self.t, format!("its `{}` {:?} does not fit", part.name(), part.shape()))
    }

    /// Decoder of one-byte codes.
    fn byte_codes(&mut self, codes: CodeType) -> Result<TorchaoDecoder<'m>> {
        let code_format = match self.t.dtype() {
            Dtype::U8 if self.description.class == AFFINE => Some(CodeFormat::Int(Int::UNSIGNED)),
            dtype => CodeFormat::of_bytes(dtype),
        };
        let code_format = code_format
            .ok_or_else(|| wrong(&self.t, "its codes are neither I8 nor eight-bit floats"))?;
        let (scale, shape) = (self.need_part(TensorRole::Scale, "scale")?, self.t.shape());
        let (rows, cols) = rows_and_cols(shape);
        let grid = match scale.elements() {
            1 => Some(per_tensor(shape)),
            _ => by_dimension(shape, scale.shape()),
        };
        let grid = grid.ok_or_else(|| self.misfit(&scale))?;
        self.check_block_size(&scale)?;
        let stored = Codes::Rows { part: self.t.part(), row_bytes: cols };
        let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: grid.cols });
        let mut decoder = Grouped::scaled(stored, 8, code_format, [rows, cols], grid, scales);
        // Float8Tensor has no zero points.
        let zero = if codes == CodeType::Fp8 {
            None
        } else {
            self.find_part(TensorRole::ZeroPoint, "zero_point")?
        };
        if let Some(zero) = zero {
            if zero.elements() != scale.elements() {
                return Err(self.misfit(&zero));
            }
            let zero_points = if zero.dtype().is_floating_point() {
                let matrix = Box::new(Matrix { floats: Floats::ieee(&zero)?, cols: grid.cols });
                // The difference of a code and a float is rounded to the compute dtype; that of two
                // integers is exact.
                GroupOffsets::new(matrix).computed_in(self.compute_dtype(&scale))
            } else if zero.dtype() == Dtype::I8 || self.description.class == AFFINE {
                GroupOffsets::new(Box::new(Integers::new(&zero, grid.cols, 0.0)?))
            } else {
                return Err(wrong(&zero, "zero points of signed codes are I8 or floats"));
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

    /// The type in which the library computes; `None`: F32.
    fn compute_dtype(&self, scale: &Tensor<'_>) -> Option<TargetDtype> {
        match self.torch_dtype("dtype") {
            Some("bfloat16") => Some(TargetDtype::BF16),
            Some("float16") => Some(TargetDtype::F16),
            Some(_) => None,
            None => TargetDtype::of(scale.dtype()),
        }
    }

    /// Checks that the weight has a block of `block_size`, which the metadata state with a size for
    /// each dimension, for each scale.
    fn check_block_size(&self, scale: &Tensor<'_>) -> Result<()> {
        let (size, shape) = (self.dims("block_size"), self.t.shape());
        if size.is_empty() {
            return Ok(());
        }
        // A single scale may be stored without dimensions.
        let ones = vec![1; shape.len()];
        let counts = if scale.elements() == 1 {
            &ones
        } else {
            scale.shape()
        };
        let fits =
            |((&size, &dim), &n): ((&usize, &usize), &usize)| size.checked_mul(n) == Some(dim);
        if size.len() == shape.len()
            && counts.len() == shape.len()
            && size.iter().zip(shape).zip(counts).all(fits)
        {
            return Ok(());
        }
        let what = format!(
            "its metadata say blocks of {size:?}, and its scales `{}` are {:?}",
            scale.name(),
            scale.shape()
        );
        Err(wrong(&self.t, what))
    }
}
