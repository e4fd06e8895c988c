//! SINQ: codes `X.W_q` as HQQ packs them, with a scale `X.meta.scale` and a zero point
//! `X.meta.zero` for each group, and a second scale `X.meta.scale2` for each column. Scales and
//! zero points may be quantized in turn: `X.meta.scale.x` U8, whose number i is `x * s + m` with
//! the entries i mod n of `X.meta.scale.s` and `.m`, of which there are n. What is no tensor is in
//! `model.safetensors.index.json.meta.json`, or among the values of a pickle.
//!
//! Formula: sinq `quantizer.py` (`Quantizer.dequantize`, `dq8`): `(q - z) * s * s2`. Layout:
//! `bitpack.py`, and `patch_model.py` (`save_weights_safetensors`).

use serde_json::Value;

use super::hqq::nested::{MetaGroups, NestedNumbers};
use super::hqq::packing;
use crate::config::{QuantMethod, SINQ_FILE};
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::strided::{RegroupedRows, StridedRows};
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, Unpack, row_groups,
};
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole,
    base_of, refused, require_shape, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Sinq;

/// Name in listings.
const FAMILY: &str = "SINQ";

/// Numbers that share a scale of the second level, unless all do (`rtn8`).
const PER_LANE: usize = 32;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["HQQ"],
    methods: &[QuantMethod::Sinq],
    codes: &[],
    companions: &[
        (Ends(".meta.scale"), TensorRole::Scale),
        (Ends(".meta.scale.x"), TensorRole::Scale),
        (Ends(".meta.scale.s"), TensorRole::NestedScale),
        (Ends(".meta.scale.m"), TensorRole::NestedScale),
        (Ends(".meta.zero.x"), TensorRole::ZeroPoint),
        (Ends(".meta.zero.s"), TensorRole::NestedScale),
        (Ends(".meta.zero.m"), TensorRole::NestedScale),
        (Ends(".meta.scale2"), TensorRole::Scale),
        (Ends(".meta.awq_scale"), TensorRole::Scale),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[Is(SINQ_FILE)],
    container: None,
};

impl Scheme for Sinq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if is_expert(t.name()) {
            let what = "codes of experts are not decoded: the library saves their scales as text";
            return Err(refused(t, FAMILY, what));
        }
        let Some(base) = base_of(t.name(), "W_q") else {
            return Ok(None);
        };
        let is_its = all.config.quant_method() == Some(&QuantMethod::Sinq)
            || ["meta.scale2", "scale2"]
                .iter()
                .any(|part| all.at(base, part).is_some());
        if !is_its {
            return Ok(None);
        }
        let layer = SinqLayer { t: *t, base, module: base.trim_end_matches('.'), all };
        layer.claimed().map(Some)
    }
}

/// Whether `name` is that of an expert's codes, `X.gate_up_W_q.0` (`SINQExperts.state_dict`).
fn is_expert(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(list, index)| {
        list.ends_with("_W_q") && index.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// A layer that is being claimed.
struct SinqLayer<'a, 'm> {
    t: Tensor<'m>,
    /// The name of its codes without the last part.
    base: &'m str,
    module: &'m str,
    all: &'a Index<'m>,
}

impl<'m> SinqLayer<'_, 'm> {
    fn claimed(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let method = self.decoded_method()?;
        let [rows, cols] = self.shape()?;
        let (codes, bits, group) = self.codes([rows, cols])?;
        let grid = row_groups(cols, group);
        let count = rows * grid.cols;
        let scale2 = self.second_scale(cols)?;
        let mut parts = vec![(TensorRole::Quantized, *t)];
        let is_nested = method.contains("quantaux");
        let mut numbers = |name| self.numbers(name, is_nested, count, grid.cols, &mut parts);
        let (scales, dtype) = numbers("scale")?;
        let (zeros, zero_dtype) = numbers("zero")?;
        if [zero_dtype, scale2.dtype()] != [dtype; 2] {
            let what = "its scales and zero points have several dtypes";
            return Err(refused(t, FAMILY, what));
        }
        parts.push((TensorRole::Scale, scale2));
        let format = CodeFormat::Int(Int::UNSIGNED);
        let mut decoder = Grouped::scaled(codes, bits, format, [rows, cols], grid, scales);
        // The library computes in F32 where codes and numbers have two dtypes.
        let compute = self
            .compute_dtype()?
            .filter(|compute| compute.dtype() == dtype);
        decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zeros).computed_in(compute));
        decoder.columns = Some(Matrix::of_columns(&scale2)?);
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Uint(u8::try_from(bits).unwrap_or(u8::MAX)),
            scales: Granularity::Group(group),
        };
        let (name, shape) = (format!("{}weight", self.base), vec![rows, cols]);
        Ok(Group::new(name, shape, scheme, parts, Box::new(decoder)))
    }

    /// The method of the layer, in lower case.
    ///
    /// # Errors
    /// The layer's description says something that is not decoded.
    fn decoded_method(&self) -> Result<String> {
        let t = &self.t;
        let method = self.need("method")?.to_lowercase();
        // What each part of the name changes: `quantize_dual_scale_shift`, `Quantizer.dequantize`.
        for (part, what) in [("nf", "codebooks"), ("noz", "one zero point for all")] {
            if method.contains(part) {
                let what = format!("its method `{method}` has {what}, which is not decoded");
                return Err(refused(t, FAMILY, what));
            }
        }
        for (key, decoded) in [("axis", "1"), ("view_as_float", "0")] {
            let found = self.need(key)?;
            if found != decoded {
                let what = format!("its `{key}` is {found}, and only {decoded} is decoded");
                return Err(refused(t, FAMILY, what));
            }
        }
        match self.all.at(self.base, "meta.awq_scale") {
            Some(awq) => {
                let what = "no version of the library applies it";
                Err(refused(&awq, FAMILY, what))
            }
            None => Ok(method),
        }
    }

    /// The scale of each of `cols` columns.
    fn second_scale(&self, cols: usize) -> Result<Tensor<'m>> {
        let t = &self.t;
        let scale2 = self.all.need(t, self.base, "meta.scale2")?;
        if scale2.shape().len() == 3 {
            let what = "blocks in two directions (`tiling_mode: 2D`) are not decoded";
            return Err(refused(t, FAMILY, what));
        }
        require_shape(t, &scale2, &[1, cols])?;
        Ok(scale2)
    }

    /// The value `key` of the layer's description, if it has one.
    fn find(&self, key: &str) -> Option<String> {
        let fact = || {
            let name = format!("{}meta.{key}", self.base);
            self.all.model.facts.get(&name).cloned()
        };
        let entry = self.all.config.in_file(SINQ_FILE, self.module);
        let value = entry.and_then(|entry| entry.get("meta")?.get(key));
        value.and_then(text).or_else(fact)
    }

    /// The value `key` of the layer's description.
    ///
    /// # Errors
    /// There is none.
    fn need(&self, key: &str) -> Result<String> {
        self.find(key).ok_or_else(|| {
            let what = format!("nothing in `{SINQ_FILE}` says what its `{key}` is");
            refused(&self.t, FAMILY, what)
        })
    }

    fn shape(&self) -> Result<[usize; 2]> {
        let stated = self.need("shape")?;
        let dims: Option<Vec<usize>> = stated.split(',').map(|dim| dim.parse().ok()).collect();
        let shape = dims.and_then(|dims| <[usize; 2]>::try_from(dims).ok());
        shape
            .filter(|[rows, cols]| rows.checked_mul(*cols).is_some_and(|n| n > 0))
            .ok_or_else(|| {
                let what = format!("its description says that its shape is {stated:?}");
                wrong(&self.t, what)
            })
    }

    /// The codes of a weight of `[rows, cols]`, the bits of a code, and the values of a group.
    fn codes(&self, [rows, cols]: [usize; 2]) -> Result<(Codes<'m>, usize, usize)> {
        let t = &self.t;
        let named = self.need("packing")?;
        let mut stored = self.packed_groups(&named)?;
        let (bits, group, packed) = (stored.bits, stored.cols, stored.stride);
        let groups = rows * cols / group.max(1);
        let is_stated = self.may_have_groups_of(group)?;
        if group == 0
            || !cols.is_multiple_of(group)
            || groups.div_ceil(stored.codes_per_word()) != packed
            || !is_stated
        {
            let what = format!("it does not hold [{rows}, {cols}] codes, packed as {named}");
            return Err(wrong(t, what));
        }
        let layout: Box<dyn Unpack + 'm> = match stored.reshape(cols) {
            true => Box::new(stored),
            false => Box::new(RegroupedRows { groups: stored, cols }),
        };
        Ok((Codes::Unpacked(layout), bits, group))
    }

    /// The codes as rows of a group each, in the packing `named`.
    fn packed_groups(&self, named: &str) -> Result<StridedRows<'m>> {
        let t = &self.t;
        let packing = match named {
            "5bit_32" => Some((4, 5, 25)),
            "6bit_32" => Some((4, 6, 24)),
            other => packing(other),
        };
        let Some((word_bytes, bits, first_shift)) = packing else {
            let what = format!("the packing {named} is not known");
            return Err(refused(t, FAMILY, what));
        };
        self.check_bits(bits, named)?;
        let dtype = match word_bytes {
            1 => Dtype::U8,
            _ => Dtype::I32,
        };
        match *t.shape() {
            [stride, cols] if t.dtype() == dtype => Ok(StridedRows {
                part: t.part(),
                stride,
                cols,
                word_bytes,
                bits,
                first_shift,
                is_low_first: false,
            }),
            _ => {
                let what = format!("codes that are packed as {named} are no such matrix");
                Err(wrong(t, what))
            }
        }
    }

    /// Checks that no other width is stated than `bits`, which the packing `named` has.
    fn check_bits(&self, bits: usize, named: &str) -> Result<()> {
        let config = self.all.config.at(self.module).int(&["nbits"]);
        let stated = [self.find("nbits"), config.map(|(nbits, _)| nbits.to_string())];
        let is_other = |n: &&String| **n != bits.to_string() && (n.as_str(), bits) != ("1.58", 2);
        match stated.iter().flatten().find(is_other) {
            Some(other) => {
                let what = format!("it is packed as {named}, and {other} bits are stated");
                Err(wrong(&self.t, what))
            }
            None => Ok(()),
        }
    }

    /// Whether `group` is the stated size of groups, or what the library makes of it: it halves
    /// groups until they divide a row (`tiled_quant_rectangle`).
    fn may_have_groups_of(&self, group: usize) -> Result<bool> {
        let stated: Option<usize> = self.need("group_size")?.parse().ok();
        let mut halves = std::iter::successors(stated, |n| Some(n / 2).filter(|&n| n > 0));
        Ok(halves.any(|n| n == group))
    }

    /// The numbers `name`, `count` of them in rows of `cols`, with the dtype in which the library
    /// has them.
    fn numbers(
        &self,
        name: &str,
        is_nested: bool,
        count: usize,
        cols: usize,
        parts: &mut Vec<(TensorRole, Tensor<'m>)>,
    ) -> Result<(Box<dyn ScaleMatrix + 'm>, Dtype)> {
        let t = &self.t;
        let role = match name {
            "zero" => TensorRole::ZeroPoint,
            _ => TensorRole::Scale,
        };
        let need = |part: &str| self.all.need(t, self.base, &format!("meta.{name}{part}"));
        if !is_nested {
            let numbers = need("")?;
            require_shape(t, &numbers, &[count, 1])?;
            parts.push((role, numbers));
            let floats = Floats::ieee(&numbers)?;
            return Ok((Box::new(Matrix { floats, cols }), numbers.dtype()));
        }
        let [codes, scale, zero] = [need(".x")?, need(".s")?, need(".m")?];
        let lanes = scale.elements();
        if codes.dtype() != Dtype::U8
            || codes.elements() != count
            || lanes == 0
            || !count.is_multiple_of(lanes)
            || codes.shape() != [count / lanes, lanes]
            || (lanes != 1 && count / lanes != PER_LANE)
        {
            let what = format!("it does not hold {count} numbers with {lanes} scales");
            return Err(wrong(&codes, what));
        }
        require_shape(t, &scale, &[1, lanes])?;
        require_shape(t, &zero, &[1, lanes])?;
        if zero.dtype() != scale.dtype() {
            return Err(wrong(&zero, "it has another dtype than the scales beside it"));
        }
        parts.extend([
            (role, codes),
            (TensorRole::NestedScale, scale),
            (TensorRole::NestedScale, zero),
        ]);
        let numbers = NestedNumbers {
            codes: codes.part(),
            scale: Floats::ieee(&scale)?,
            zero: Floats::ieee(&zero)?,
            is_zero_added: true,
            groups: match lanes {
                1 => MetaGroups::Single,
                lanes => MetaGroups::Strided(lanes),
            },
            cols,
            round: TargetDtype::of(scale.dtype()).filter(|&dtype| dtype != TargetDtype::F32),
        };
        Ok((Box::new(numbers), scale.dtype()))
    }

    /// The dtype that the description says the library computes in.
    fn compute_dtype(&self) -> Result<Option<TargetDtype>> {
        let stated = self.need("compute_dtype")?;
        match stated.as_str() {
            "torch.bfloat16" => Ok(Some(TargetDtype::BF16)),
            "torch.float16" => Ok(Some(TargetDtype::F16)),
            "torch.float32" => Ok(None),
            _ => Err(wrong(
                &self.t,
                format!("its description says that its `compute_dtype` is {stated:?}"),
            )),
        }
    }
}

/// A value of the description in the form of values from pickles: flags are 0 and 1, lists have
/// commas and no brackets.
fn text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Bool(flag) => u8::from(*flag).to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(list) => {
            let dims: Option<Vec<String>> = list
                .iter()
                .map(|dim| Some(dim.as_u64()?.to_string()))
                .collect();
            dims?.join(",")
        }
        Value::Null | Value::Object(_) => return None,
    })
}
