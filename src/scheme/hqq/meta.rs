//! What describes a weight of HQQ's, wherever it is written; and scales or zeros that are quantized themselves.

use std::collections::HashSet;
use std::ops::Range;

use crate::containers::model::{Part, Tensor};
use crate::element::Element;
use crate::scheme::compressed_tensors::read_shape;
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{Floats, Index, TensorRole, read, refused, wrong};
use crate::{Dtype, Result, TargetDtype};

/// What listings call it.
pub(super) const FAMILY: &str = "HQQ";

/// What else is stored with a weight in safetensors, and says nothing that is needed.
const UNUSED: &[&str] = &[
    "nbits",
    "unpack_view_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
    "group_size",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
];

/// Longest text that is a tensor of characters.
const MAX_TEXT: usize = 64;

/// The description of a weight, with the tensors that were used so far.
pub(super) struct HqqMeta<'a, 'm> {
    t: Tensor<'m>,
    /// What the names of all that is described begin with.
    base: String,
    all: &'a Index<'m>,
    used: Vec<(TensorRole, Tensor<'m>)>,
}

impl<'a, 'm> HqqMeta<'a, 'm> {
    /// Of the codes `t`, `X.W_q`, where `base` is `X.`.
    pub(super) fn of_weight(t: &Tensor<'m>, base: &str, all: &'a Index<'m>) -> Self {
        let mut meta = Self {
            t: *t,
            base: base.to_owned(),
            all,
            used: Vec::new(),
        };
        let unused = UNUSED.iter().filter_map(|name| all.at(base, name));
        meta.used
            .extend(unused.map(|t| (TensorRole::QuantState, t)));
        let old = format!("{base}meta.");
        if all.model.facts.contains_key(&format!("{old}packing")) {
            meta.base = old;
        }
        meta
    }

    /// All tensors that make up the weight, its codes first.
    pub(super) fn into_parts(mut self, codes: Tensor<'m>) -> Vec<(TensorRole, Tensor<'m>)> {
        self.used.insert(0, (TensorRole::Quantized, codes));
        let mut seen = HashSet::new();
        self.used.retain(|(_, t)| seen.insert(t.index));
        self.used
    }

    /// A value as text: of a pickle, or of a small tensor.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>> {
        if let Some(text) = self.all.model.facts.get(&format!("{}{key}", self.base)) {
            return Ok(Some(text.clone()));
        }
        let Some(t) = self.all.at(&self.base, key) else {
            return Ok(None);
        };
        self.used.push((TensorRole::QuantState, t));
        if t.elements() > MAX_TEXT || t.elements() == 0 {
            return Err(wrong(&t, "it describes a weight, and is no small value"));
        }
        let mut bytes = vec![0; t.elements() * t.dtype().bits() / 8];
        t.part().read_at(0, &mut bytes)?;
        let text = match (t.dtype(), bytes.as_slice()) {
            (Dtype::U8 | Dtype::Bool, &[byte]) if t.shape().is_empty() => byte.to_string(),
            (Dtype::U8, text) => String::from_utf8_lossy(text).into_owned(),
            (Dtype::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).to_string(),
            (Dtype::I64, _) if t.elements() == 1 => {
                i64::from_le_bytes(bytes.as_chunks().0[0]).to_string()
            }
            _ => {
                return Err(wrong(
                    &t,
                    "it describes a weight, and is no value that is understood",
                ));
            }
        };
        Ok(Some(text))
    }

    /// [`text`](Self::text), or an error that says what is missing.
    pub(super) fn need(&mut self, key: &str) -> Result<String> {
        let found = self.text(key)?;
        found.ok_or_else(|| wrong(&self.t, format!("its `{}{key}` is missing", self.base)))
    }

    fn invalid_value(&self, key: &str, text: &str) -> crate::AnamnesisError {
        wrong(&self.t, format!("its `{}{key}` is {text:?}", self.base))
    }

    /// A positive number, if there is one.
    pub(super) fn size(&mut self, key: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        let size = text.parse().ok().filter(|&size: &usize| size > 0);
        size.map(Some).ok_or_else(|| self.invalid_value(key, &text))
    }

    /// A flag; false if it is not there.
    pub(super) fn flag(&mut self, key: &str) -> Result<bool> {
        match self.text(key)?.as_deref() {
            None | Some("0" | "False") => Ok(false),
            Some("1" | "True") => Ok(true),
            Some(text) => Err(self.invalid_value(key, text)),
        }
    }

    pub(super) fn is_axis_0(&mut self) -> Result<bool> {
        match self.need("axis")?.as_str() {
            "0" => Ok(true),
            "1" => Ok(false),
            text => Err(self.invalid_value("axis", text)),
        }
    }

    pub(super) fn shape(&mut self) -> Result<Vec<usize>> {
        if let Some(t) = self.all.at(&self.base, "shape") {
            self.used.push((TensorRole::QuantState, t));
            return read_shape(&t);
        }
        let text = self.need("shape")?;
        let dims: Option<Vec<usize>> = text.split(',').map(|dim| dim.parse().ok()).collect();
        dims.ok_or_else(|| self.invalid_value("shape", &text))
    }

    /// The type in which the library computes, if that is not F32.
    pub(super) fn compute_dtype(&mut self) -> Result<Option<TargetDtype>> {
        let text = self.text("compute_dtype")?;
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

    /// A tensor of the weight.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Tensor<'m>> {
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

    /// Runs `f` with the description of a part that is quantized itself.
    fn with_nested<T>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = std::mem::take(&mut self.base);
        self.base = format!("{outer}{name}.");
        let result = f(self);
        self.base = outer;
        result
    }
}

/// Which scale belongs to a number.
enum MetaGroups {
    Single,
    /// So many numbers after each other.
    Adjacent(usize),
    /// Every so-manyth.
    Strided(usize),
}

/// Scales or zeros that are quantized to eight bits.
pub(super) struct DoubleQuantized<'m> {
    codes: Part<'m>,
    scale: Floats<'m>,
    zero: Floats<'m>,
    groups: MetaGroups,
    /// Numbers in a row of the grid that they belong to.
    cols: usize,
    /// The type that both steps are rounded to.
    round: Option<TargetDtype>,
}

impl<'m> DoubleQuantized<'m> {
    /// `count` numbers called `what`, `cols` in a row.
    pub(super) fn new(
        meta: &mut HqqMeta<'_, 'm>,
        what: &str,
        count: usize,
        cols: usize,
        round: Option<TargetDtype>,
    ) -> Result<Self> {
        let codes = meta.tensor(&format!("{what}_q"))?;
        meta.with_nested(&format!("meta_{what}"), |meta| {
            let packing = meta.need("packing")?;
            if packing != "8bit_u8" || codes.dtype() != Dtype::U8 {
                return Err(refused(
                    &codes,
                    FAMILY,
                    format!("numbers that are packed as {packing} are not decoded"),
                ));
            }
            let (scale, zero) = (meta.tensor("scale")?, meta.tensor("zero")?);
            let group = meta.size("group_size")?;
            let groups = match (group, scale.elements()) {
                (None, 1) => MetaGroups::Single,
                (Some(group), n) if group.checked_mul(n) == Some(count) => {
                    if meta.is_axis_0()? {
                        MetaGroups::Strided(n)
                    } else {
                        MetaGroups::Adjacent(group)
                    }
                }
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
            Ok(Self {
                codes: codes.part(),
                scale,
                zero,
                groups,
                cols,
                round,
            })
        })
    }

    /// The numbers from `range`, whose scales lie together.
    fn piece(&self, range: Range<usize>, staging: &mut Vec<u8>, out: &mut Vec<f32>) -> Result<()> {
        let group = |i: usize| match self.groups {
            MetaGroups::Single => 0,
            MetaGroups::Adjacent(n) => i / n,
            MetaGroups::Strided(n) => i % n,
        };
        let used = group(range.start)..group(range.end - 1) + 1;
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        self.scale
            .extend(used.end, 0..1, used.clone(), staging, &mut scales)?;
        self.zero
            .extend(used.end, 0..1, used.clone(), staging, &mut zeros)?;
        read(&self.codes, range.end, 0..1, range.clone(), staging)?;
        let round = |x: f32| match self.round {
            Some(TargetDtype::BF16) => Element::to_f32(<half::bf16 as Element>::from_f32(x)),
            Some(TargetDtype::F16) => Element::to_f32(<half::f16 as Element>::from_f32(x)),
            _ => x,
        };
        out.extend(range.zip(staging.iter()).map(|(i, &code)| {
            let at = group(i) - used.start;
            round(round(f32::from(code) - zeros[at]) * scales[at])
        }));
        Ok(())
    }
}

impl ScaleMatrix for DoubleQuantized<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // Whole rows follow each other.
        let whole = cols.len() == self.cols;
        let lines = if whole {
            rows.start..rows.start + usize::from(!rows.is_empty())
        } else {
            rows.clone()
        };
        for row in lines {
            let n = if whole {
                rows.len() * self.cols
            } else {
                cols.len()
            };
            let mut at = row * self.cols + cols.start;
            let end = at + n;
            while at < end {
                let wrap = match self.groups {
                    MetaGroups::Strided(n) => at - at % n + n,
                    _ => end,
                };
                self.piece(at..wrap.min(end), staging, out)?;
                at = wrap.min(end);
            }
        }
        Ok(())
    }
}
