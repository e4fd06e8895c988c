//! ModelSlim of Ascend (msmodelslim): `quant_model_description.json` has the type of every tensor.
//! The types that are decoded:
//!
//! | type | `P.weight` | scales |
//! |---|---|---|
//! | `W8A8` | I8 `[out, in]` | `P.deq_scale` `[out]` over `P.input_scale` |
//! | `W8A8_DYNAMIC`, `W8A16`, `W8A8_MIX`, `W4A4_DYNAMIC` | I8 `[out, in]` | `P.weight_scale`, `P.weight_offset` F32 `[out, 1]` |
//! | `W4A8_DYNAMIC` | I8 `[out / 2, in]`, two rows a byte, the first in the low nibble | the same |
//! | `WFP8AFP8_DYNAMIC` | F8_E4M3 `[out, in]` | the same |
//! | `W8A8_MXFP8` | F8_E4M3 `[out, in]` | `P.weight_scale` U8 `[out, in / 32]`, exponents |
//! | `W4A4_MXFP4`, `W4A8_MXFP` | U8 `[out, in / 2]`, FP4, low nibble first | the same |
//!
//! Formulas: msmodelslim `ir/api/impl` (`int_dequantize`, `fp8_dequantize`,
//! `mxfp_per_block_dequantize`): `(q - offset) * scale`. Layout: `save/ascendv1.py`,
//! `save/utils/pack.py`.

mod input;

use serde_json::Value;

use self::input::{StaticScales, has_bias};
use super::mxfp4::{BLOCK, mx_rows};
use crate::config::MODELSLIM_FILE;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::strided::RowPairs;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole,
    base_of, is_plain_float, refused, require_shape, wrong,
};
use crate::{Dtype, Result};

pub(super) struct ModelSlim;

/// Name in listings.
const FAMILY: &str = "ModelSlim";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["FP8", "INT8", "not decoded"],
    methods: &[],
    codes: &[],
    companions: &[
        (Ends(".weight_offset"), TensorRole::ZeroPoint),
        (Ends(".deq_scale"), TensorRole::Activation),
        (Ends(".quant_bias"), TensorRole::Activation),
    ],
    optional: &[],
    activations: &["kv_cache_scale", "kv_cache_offset"],
    markers: &[],
    sidecars: &[Is(MODELSLIM_FILE)],
    container: None,
};

/// How the codes of a type are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stored {
    /// A byte each, of which so many bits count; a scale for each row.
    Bytes(u8),
    /// Two rows of integers of four bits in a byte; a scale for each row.
    RowPairs,
    /// E4M3; a scale for each row.
    Fp8,
    /// E4M3; an exponent for 32.
    Mxfp8,
    /// E2M1; an exponent for 32.
    Mxfp4,
}

/// The type of integers in bytes whose scales may be stored with that of the input alone.
const STATIC: &str = "W8A8";

/// Types of weights that are decoded. The rest, or these with more in their names, add rotations,
/// sums of low rank, or scales that are not stored.
const TYPES: &[(&str, Stored)] = &[
    (STATIC, Stored::Bytes(8)),
    ("W8A8_DYNAMIC", Stored::Bytes(8)),
    ("W8A8_MIX", Stored::Bytes(8)),
    ("W8A16", Stored::Bytes(8)),
    ("W4A4_DYNAMIC", Stored::Bytes(4)),
    ("W4A8_DYNAMIC", Stored::RowPairs),
    ("WFP8AFP8_DYNAMIC", Stored::Fp8),
    ("W8A8_MXFP8", Stored::Mxfp8),
    ("W4A8_MXFP", Stored::Mxfp4),
    ("W4A4_MXFP4", Stored::Mxfp4),
];

/// Types of tensors that are not quantized.
const PLAIN: &[&str] = &["FLOAT", "W16A16S"];

/// Tensors beside a weight that are about its input, and of no use without it.
const UNUSED: &[&str] = &["deq_scale", "quant_bias", "scale_bias", "input_offset"];

/// Last parts of the names of a layer's tensors that are claimed with its weight, or dropped, or
/// floats.
const KNOWN: &[&str] =
    &["weight_scale", "weight_offset", "input_scale", "kv_cache_scale", "kv_cache_offset", "bias"];

/// Rotations of a layer's input, which the description does not list.
const ROTATIONS: &[&str] = &[".heads_rotation", ".kronecker_rotation_m", ".kronecker_rotation_n"];

impl Scheme for ModelSlim {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let is_rotation = ROTATIONS.iter().any(|end| t.name().ends_with(end));
        if is_rotation && all.config.has_file(MODELSLIM_FILE) {
            let what = "inputs of layers are rotated, which no weight shows";
            return Err(refused(t, FAMILY, what));
        }
        let describe = |name| all.config.in_file(MODELSLIM_FILE, name);
        let Some(kind) = describe(t.name()).and_then(Value::as_str) else {
            return Ok(None);
        };
        if PLAIN.contains(&kind) {
            return Ok(None);
        }
        let Some(base) = base_of(t.name(), "weight") else {
            let is_known = |part: &&str| base_of(t.name(), part).is_some();
            if UNUSED.iter().chain(KNOWN).any(is_known) {
                return Ok(None);
            }
            let what = format!("`{MODELSLIM_FILE}` says `{kind}`, and nobody knows what it is for");
            return Err(refused(t, FAMILY, what));
        };
        // Norms of quantized layers have the layers' type.
        if is_plain_float(t.dtype()) {
            return Ok(None);
        }
        check_layer(t, base, all)?;
        let layer = ModelSlimLayer { t: *t, base, kind, all };
        // Older versions store the scales of `W8A8`, too.
        if kind == STATIC && all.at(base, "weight_scale").is_none() {
            return layer.static_rows().map(Some);
        }
        let Some(&(_, stored)) = TYPES.iter().find(|(name, _)| *name == kind) else {
            let what = format!("its type `{kind}` in `{MODELSLIM_FILE}` is not decoded");
            return Err(refused(t, FAMILY, what));
        };
        layer.claimed(stored).map(Some)
    }
}

/// Checks that the layer of the codes `t` multiplies its input by them alone. `base` is their name
/// without `weight`.
fn check_layer(t: &Tensor<'_>, base: &str, all: &Index<'_>) -> Result<()> {
    // The matrices may lie in another shard.
    let metadata = all.config.in_file(MODELSLIM_FILE, "metadata");
    if metadata.is_some_and(|metadata| metadata.get("quarot").is_some()) {
        let what = format!("`{MODELSLIM_FILE}` says that inputs of layers are rotated (`quarot`)");
        return Err(refused(t, FAMILY, what));
    }
    // A global rotation is in all weights of the model, which computes the same. Others are of
    // inputs.
    let optional = all.config.in_file(MODELSLIM_FILE, "optional");
    let rotations = optional.and_then(|optional| optional.pointer("/quarot/rotation_map"));
    let other = |map: &Value| match map {
        Value::Null => None,
        Value::Object(map) => map.keys().find(|key| *key != "global_rotation").cloned(),
        _ => Some("rotation_map".to_owned()),
    };
    if let Some(rotation) = rotations.and_then(other) {
        let what =
            format!("`{MODELSLIM_FILE}` says that inputs of layers are rotated (`{rotation}`)");
        return Err(refused(t, FAMILY, what));
    }
    let smoothed = base.strip_suffix("linear.");
    let factors = smoothed.and_then(|outer| all.at(outer, "div.mul_scale"));
    let others = ["weight_scale_second", "weight_dual_scale", "svd_lowrank_l1"];
    let mut others = others.iter().filter_map(|part| all.at(base, part));
    if let Some(other) = factors.or_else(|| others.next()) {
        let what = format!("its `{}` is not decoded", other.name());
        return Err(refused(t, FAMILY, what));
    }
    Ok(())
}

/// A layer that is being claimed.
struct ModelSlimLayer<'a, 'm> {
    t: Tensor<'m>,
    /// The name of its weight without the last part.
    base: &'m str,
    /// Its type in the description.
    kind: &'a str,
    all: &'a Index<'m>,
}

impl<'m> ModelSlimLayer<'_, 'm> {
    fn claimed(&self, stored: Stored) -> Result<Group<'m>> {
        let t = &self.t;
        let dtype = match stored {
            Stored::Bytes(_) | Stored::RowPairs => Dtype::I8,
            Stored::Fp8 | Stored::Mxfp8 => Dtype::F8E4M3,
            Stored::Mxfp4 => Dtype::U8,
        };
        let [lines, cols] = self.matrix(dtype)?;
        let scale = self.all.need(t, self.base, "weight_scale")?;
        let rows = Codes::Rows { part: t.part(), row_bytes: cols };
        let size = [lines, cols];
        if self.kind == STATIC {
            self.check_bias(size)?;
        }
        let mut group = match stored {
            Stored::Bytes(bits) => {
                let format = CodeFormat::Int(Int::signed(8));
                self.of_rows(rows, 8, (format, CodeType::Int(bits)), size, &scale)?
            }
            Stored::Fp8 => {
                self.of_rows(rows, 8, (CodeFormat::E4M3, CodeType::Fp8), size, &scale)?
            }
            Stored::RowPairs => {
                let height = lines.checked_mul(2);
                let height = height.ok_or_else(|| wrong(t, "it has more rows than any memory"))?;
                let codes = Codes::Unpacked(Box::new(RowPairs { part: t.part(), cols, apart: 1 }));
                let format = CodeFormat::Int(Int::signed(4));
                self.of_rows(codes, 4, (format, CodeType::Int(4)), [height, cols], &scale)?
            }
            Stored::Mxfp8 | Stored::Mxfp4 if scale.dtype() != Dtype::U8 => {
                return Err(wrong(&scale, "exponents are U8"));
            }
            Stored::Mxfp8 => self.mxfp8(rows, size, &scale)?,
            Stored::Mxfp4 => {
                // Other numbers of exponents would make FP6 of the codes.
                require_shape(t, &scale, &[lines, cols / (BLOCK / 2)])?;
                mx_rows(t, t.name(), &scale, FAMILY)?
            }
        };
        group.parts.extend(self.unused());
        Ok(group)
    }

    /// The group of codes in bytes whose scales are stored with that of the input alone.
    fn static_rows(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let [rows, cols] = self.matrix(Dtype::I8)?;
        let need = |part| self.all.need(t, self.base, part);
        let (products, input) = (need("deq_scale")?, need("input_scale")?);
        self.check_bias([rows, cols])?;
        let scales = StaticScales::new(t, &products, &input, rows)?;
        let codes = Codes::Rows { part: t.part(), row_bytes: cols };
        let format = CodeFormat::Int(Int::signed(8));
        let grid = row_groups(cols, cols);
        let decoder = Grouped::scaled(codes, 8, format, [rows, cols], grid, Box::new(scales));
        let mut parts = vec![(TensorRole::Quantized, *t)];
        parts.extend(self.unused());
        let shown = CodeType::Int(8);
        Ok(self.group(shown, Granularity::Channel, [rows, cols], parts, decoder))
    }

    /// Checks that a bias in `quant_bias` is stored by itself, too.
    fn check_bias(&self, size: [usize; 2]) -> Result<()> {
        let t = &self.t;
        if self.all.at(self.base, "bias").is_some() {
            return Ok(());
        }
        let need = |part| self.all.need(t, self.base, part);
        if has_bias(t, &need("quant_bias")?, &need("input_offset")?, size)? {
            let what = "its `quant_bias` has a bias, and there is no `bias` beside it";
            return Err(refused(t, FAMILY, what));
        }
        Ok(())
    }

    /// Rows and columns of the stored weight.
    ///
    /// # Errors
    /// It is no matrix of `dtype`.
    fn matrix(&self, dtype: Dtype) -> Result<[usize; 2]> {
        let t = &self.t;
        let size = <[usize; 2]>::try_from(t.shape()).ok();
        size.filter(|_| t.dtype() == dtype).ok_or_else(|| {
            let what = format!("weights of type `{}` are matrices of {dtype}", self.kind);
            wrong(t, what)
        })
    }

    /// The tensors of the layer that are about its input.
    fn unused(&self) -> impl Iterator<Item = (TensorRole, Tensor<'m>)> {
        let found = UNUSED
            .iter()
            .filter_map(|part| self.all.at(self.base, part));
        found.map(|t| (TensorRole::Activation, t))
    }

    /// The group of `codes` with a scale and an offset for each row.
    fn of_rows(
        &self,
        codes: Codes<'m>,
        bits: usize,
        (format, shown): (CodeFormat, CodeType),
        [rows, cols]: [usize; 2],
        scale: &Tensor<'m>,
    ) -> Result<Group<'m>> {
        let t = &self.t;
        let offset = self.all.need(t, self.base, "weight_offset")?;
        require_shape(t, scale, &[rows, 1])?;
        require_shape(t, &offset, &[rows, 1])?;
        let matrix = |t| Floats::ieee(t).map(|floats| Box::new(Matrix { floats, cols: 1 }));
        let grid = row_groups(cols, cols);
        let mut decoder = Grouped::scaled(codes, bits, format, [rows, cols], grid, matrix(scale)?);
        decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(matrix(&offset)?));
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, *scale),
            (TensorRole::ZeroPoint, offset),
        ];
        Ok(self.group(shown, Granularity::Channel, [rows, cols], parts, decoder))
    }

    /// The group of codes in `rows`, with an exponent for each 32.
    fn mxfp8(&self, rows: Codes<'m>, size: [usize; 2], scale: &Tensor<'m>) -> Result<Group<'m>> {
        let t = &self.t;
        let [height, cols] = size;
        if !cols.is_multiple_of(BLOCK) {
            let what = format!("its {cols} inputs are not blocks of {BLOCK}");
            return Err(refused(t, FAMILY, what));
        }
        require_shape(t, scale, &[height, cols / BLOCK])?;
        let scales = Box::new(Matrix { floats: Floats::new(scale)?, cols: cols / BLOCK });
        let grid = row_groups(cols, BLOCK);
        let decoder = Grouped::scaled(rows, 8, CodeFormat::E4M3, size, grid, scales);
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
        Ok(self.group(CodeType::Mxfp8, Granularity::Group(BLOCK), size, parts, decoder))
    }

    fn group(
        &self,
        codes: CodeType,
        scales: Granularity,
        size: [usize; 2],
        parts: Vec<(TensorRole, Tensor<'m>)>,
        decoder: Grouped<'m>,
    ) -> Group<'m> {
        let scheme = QuantScheme::Grouped { family: FAMILY, codes, scales };
        let name = self.t.name();
        Group::new(name, size.to_vec(), scheme, parts, Box::new(decoder))
    }
}
