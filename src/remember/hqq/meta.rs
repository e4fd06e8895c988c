//! The description of an HQQ weight, read from tensors of a safetensors file or from the values of
//! a pickle.

use std::collections::HashSet;

use super::nested::{MetaGroups, NestedNumbers};
use crate::model::Tensor;
use crate::remember::compressed_tensors::read_shape;
use crate::remember::seam::NamePattern::{self, Ends};
use crate::remember::seam::{Floats, Index, TensorRole, refused, wrong};
use crate::{Dtype, Result, TargetDtype};

/// Name in listings.
pub(super) const FAMILY: &str = "HQQ";

/// Tensors that hqq stores with a weight in safetensors, by the ends of their names. They are parts
/// of the weight even where the decoder reads none of them. `scale` and `shape` are not listed:
/// tensors of other models have these names.
pub(super) const COMPANIONS: &[(NamePattern, TensorRole)] = &[
    (Ends(".nbits"), TensorRole::QuantState),
    (Ends(".unpack_view_dtype"), TensorRole::QuantState),
    (Ends(".offload_meta"), TensorRole::QuantState),
    (Ends(".encoded_state_dict"), TensorRole::QuantState),
    (Ends(".stores_quant_config"), TensorRole::QuantState),
    (Ends(".channel_wise"), TensorRole::QuantState),
    (Ends(".optimize"), TensorRole::QuantState),
    (Ends(".round_zero"), TensorRole::QuantState),
    (Ends(".group_size"), TensorRole::QuantState),
    (Ends(".view_as_float"), TensorRole::QuantState),
    (Ends(".quant_scale"), TensorRole::QuantState),
    (Ends(".quant_zero"), TensorRole::QuantState),
    (Ends(".compute_dtype"), TensorRole::QuantState),
    (Ends(".packing"), TensorRole::QuantState),
    (Ends(".axis"), TensorRole::QuantState),
    (Ends(".zero"), TensorRole::ZeroPoint),
];

/// Largest number of characters, or other elements, of a tensor that is read as a value.
const MAX_TEXT: usize = 64;

/// Reader of the description of one weight. It notes the tensors that it has read.
pub(super) struct HqqMeta<'a, 'm> {
    t: Tensor<'m>,
    /// Prefix of the names of the description: `X.`, `X.meta.`, or that of double-quantized scales
    /// or zero points.
    base: String,
    all: &'a Index<'m>,
    used: Vec<(TensorRole, Tensor<'m>)>,
}

impl<'a, 'm> HqqMeta<'a, 'm> {
    /// The description of the weight with codes `t`, which are `X.W_q`. `base` is `X.`.
    pub(super) fn of_weight(t: &Tensor<'m>, base: &str, all: &'a Index<'m>) -> Self {
        let mut meta = Self { t: *t, base: base.to_owned(), all, used: Vec::new() };
        let unused = COMPANIONS.iter().filter_map(|&(name, role)| match name {
            Ends(end) => Some((role, all.at(base, end.trim_start_matches('.'))?)),
            _ => None,
        });
        // Entered even if nothing reads them: a part without an owner would be copied into the
        // output.
        meta.used.extend(unused);
        // Old pickles: a dictionary `meta` beside the codes.
        let old = format!("{base}meta.");
        // `packing` is in every description, so its place tells the place of all of them.
        if all.model.facts.contains_key(&format!("{old}packing")) {
            meta.base = old;
        }
        meta
    }

    /// The tensors that make up the weight, each once, its codes first.
    pub(super) fn into_parts(mut self, codes: Tensor<'m>) -> Vec<(TensorRole, Tensor<'m>)> {
        self.used.insert(0, (TensorRole::Quantized, codes));
        let mut seen = HashSet::new();
        // A tensor can be listed as unused and be read as well.
        self.used.retain(|(_, t)| seen.insert(t.index));
        self.used
    }

    /// The value `key` as text, from the pickle or from a small tensor; `None` if neither has it.
    ///
    /// # Errors
    /// The tensor cannot be read, is too large, or has an unexpected dtype.
    pub(super) fn read_text(&mut self, key: &str) -> Result<Option<String>> {
        // A pickle's values are facts of the model; in safetensors the same values are small
        // tensors.
        if let Some(text) = self.all.model.facts.get(&format!("{}{key}", self.base)) {
            return Ok(Some(text.clone()));
        }
        let Some(t) = self.all.at(&self.base, key) else {
            return Ok(None);
        };
        self.used.push((TensorRole::QuantState, t));
        // Bounded before the read. The values are names such as `torch.bfloat16` or a single
        // number.
        if t.elements() > MAX_TEXT || t.elements() == 0 {
            return Err(wrong(&t, "it describes a weight, and is no small value"));
        }
        let mut bytes = vec![0; t.elements() * t.dtype().bits() / 8];
        t.part().read_at(0, &mut bytes)?;
        let text = match (t.dtype(), bytes.as_slice()) {
            // hqq stores numbers and flags as tensors without a dimension, and texts as vectors of
            // characters.
            (Dtype::U8 | Dtype::Bool, &[byte]) if t.shape().is_empty() => byte.to_string(),
            (Dtype::U8, text) => String::from_utf8_lossy(text).into_owned(),
            (Dtype::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).to_string(),
            (Dtype::I64, _) if t.elements() == 1 => {
                i64::from_le_bytes(bytes.as_chunks().0[0]).to_string()
            }
            _ => {
                return Err(wrong(&t, "it describes a weight, and is no value that is understood"));
            }
        };
        Ok(Some(text))
    }

    /// The value `key` as text.
    ///
    /// # Errors
    /// It is missing or cannot be read.
    pub(super) fn need_text(&mut self, key: &str) -> Result<String> {
        let found = self.read_text(key)?;
        found.ok_or_else(|| wrong(&self.t, format!("its `{}{key}` is missing", self.base)))
    }

    fn invalid_value(&self, key: &str, text: &str) -> crate::AnamnesisError {
        wrong(&self.t, format!("its `{}{key}` is {text:?}", self.base))
    }

    /// The value `key` as a positive number, if there is one.
    pub(super) fn read_size(&mut self, key: &str) -> Result<Option<usize>> {
        let Some(text) = self.read_text(key)? else {
            return Ok(None);
        };
        let size = text.parse().ok().filter(|&size: &usize| size > 0);
        size.map(Some).ok_or_else(|| self.invalid_value(key, &text))
    }

    /// The value `key` as a flag; false if it is missing.
    pub(super) fn read_flag(&mut self, key: &str) -> Result<bool> {
        match self.read_text(key)?.as_deref() {
            None | Some("0" | "False") => Ok(false),
            Some("1" | "True") => Ok(true),
            Some(text) => Err(self.invalid_value(key, text)),
        }
    }

    /// Checks that `nbits`, if it is a whole number, is one that hqq packs as `bits` bits
    /// (`Quantizer.bit_to_packing`).
    pub(super) fn check_bits(&mut self, bits: usize) -> Result<()> {
        // 1.58 bits are stored as a float, and packed as 2.
        let is_whole = |t: &Tensor<'_>| !t.dtype().is_floating_point();
        if !self
            .all
            .at(&self.base, "nbits")
            .is_none_or(|t| is_whole(&t))
        {
            return Ok(());
        }
        let Some(text) = self.read_text("nbits")? else {
            return Ok(());
        };
        let packed = match text.as_str() {
            "5" | "6" => "8",
            "1.58" => "2",
            same => same,
        };
        if packed == bits.to_string() {
            Ok(())
        } else {
            Err(self.invalid_value("nbits", &text))
        }
    }

    /// Whether groups are columns of the packed matrix. A wrong guess would decode to garbage, so
    /// the axis is required.
    pub(super) fn read_is_axis_0(&mut self) -> Result<bool> {
        match self.need_text("axis")?.as_str() {
            "0" => Ok(true),
            "1" => Ok(false),
            text => Err(self.invalid_value("axis", text)),
        }
    }

    pub(super) fn read_shape(&mut self) -> Result<Vec<usize>> {
        if let Some(t) = self.all.at(&self.base, "shape") {
            self.used.push((TensorRole::QuantState, t));
            return read_shape(&t);
        }
        let text = self.need_text("shape")?;
        let dims: Option<Vec<usize>> = text.split(',').map(|dim| dim.parse().ok()).collect();
        dims.ok_or_else(|| self.invalid_value("shape", &text))
    }

    /// The type in which the library computes, if that is not F32. Without a value it is the type
    /// of the scales.
    pub(super) fn read_compute_dtype(&mut self) -> Result<Option<TargetDtype>> {
        let text = self.read_text("compute_dtype")?;
        match text.as_deref() {
            Some("torch.bfloat16") => Ok(Some(TargetDtype::BF16)),
            Some("torch.float16") => Ok(Some(TargetDtype::F16)),
            Some("torch.float32") => Ok(None),
            Some(text) => Err(self.invalid_value("compute_dtype", text)),
            None => Ok(self
                .all
                .at(&self.base, "scale")
                .and_then(|t| TargetDtype::of(t.dtype()))),
        }
    }

    /// The tensor `name` of scales or zero points, noted as a part of the weight.
    pub(super) fn need_tensor(&mut self, name: &str) -> Result<Tensor<'m>> {
        let t = self.all.need(&self.t, &self.base, name)?;
        self.used.push((
            if name == "zero" {
                TensorRole::ZeroPoint
            } else {
                TensorRole::Scale
            },
            t,
        ));
        Ok(t)
    }

    /// Runs `f` on the description of the double-quantized scales or zero points `name`.
    fn with_nested<T>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        // The second level has its own `packing`, `axis` and so on under a longer prefix. It is
        // restored whatever `f` returns.
        let outer = std::mem::take(&mut self.base);
        self.base = format!("{outer}{name}.");
        let result = f(self);
        self.base = outer;
        result
    }

    /// The double-quantized numbers `what` (`scale` or `zero`), `count` of them, `cols` in a row.
    pub(super) fn read_nested(
        &mut self,
        what: &str,
        count: usize,
        cols: usize,
        round: Option<TargetDtype>,
    ) -> Result<NestedNumbers<'m>> {
        let codes = self.need_tensor(&format!("{what}_q"))?;
        self.with_nested(&format!("meta_{what}"), |meta| {
            let packing = meta.need_text("packing")?;
            if packing != "8bit_u8" || codes.dtype() != Dtype::U8 {
                return Err(refused(
                    &codes,
                    FAMILY,
                    format!("numbers that are packed as {packing} are not decoded"),
                ));
            }
            let (scale, zero) = (meta.need_tensor("scale")?, meta.need_tensor("zero")?);
            let group = meta.read_size("group_size")?;
            let groups = match (group, scale.elements()) {
                (None, 1) => MetaGroups::Single,
                (Some(group), n) if group.checked_mul(n) == Some(count) => {
                    if meta.read_is_axis_0()? {
                        MetaGroups::Strided(n)
                    } else {
                        MetaGroups::Adjacent(group)
                    }
                }
                // A single scale has no group size; a group size that does not cover `count` leaves
                // the layout open.
                _ => {
                    return Err(wrong(
                        &scale,
                        format!("it does not fit the groups of `{}`", codes.name()),
                    ));
                }
            };
            if codes.elements() != count || zero.elements() != scale.elements() {
                return Err(wrong(
                    &codes,
                    format!("it does not hold {count} numbers, or has other scales than zeros"),
                ));
            }
            let (scale, zero) = (Floats::ieee(&scale)?, Floats::ieee(&zero)?);
            Ok(NestedNumbers {
                codes: codes.part(),
                scale,
                zero,
                is_zero_added: false,
                groups,
                cols,
                round,
            })
        })
    }
}
