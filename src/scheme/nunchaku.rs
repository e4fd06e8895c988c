//! Nunchaku Lite: SVDQuant of nunchaku in modules of diffusers (`quant_method: nunchaku_lite`).
//!
//! | tensor | |
//! |---|---|
//! | `X.qweight` | I8 `[out, in / 2]`: codes of four bits, signed or E2M1, in tiles (`tiles`) |
//! | `X.wscales` | floats `[in / 64, out]`, or F8_E4M3 `[in / 16, out]` |
//! | `X.wcscales`, `X.wtscale` | of E2M1: factors for each output, and for all |
//! | `X.smooth_factor` `[in]` | divides the input of the quantized part |
//! | `X.proj_down` `[in, r]`, `X.proj_up` `[out, r]` | product of low rank, which sees the input as it is |
//! | `X.bias` `[out]` | in tiles, too |
//!
//! Layers for few tokens are AWQ's: `X.qweight` I32 `[out / 4, in / 2]`, in runs of 64 columns of four rows, and `X.wscales` and
//! `X.wzeros` `[in / 64, out]`: `q * s + z`.
//!
//! nunchaku's own models (`method: svdquant`) have the same tensors in modules of its own: fused projections, modulations whose
//! outputs lie in another order, and layers behind a GELU whose bias makes up for a shift. They are refused.
//!
//! Layout: nunchaku `lora/flux/packer.py`, `models/linear.py`, `models/text_encoders/tinychat_utils.py` (`pack_w4`); diffusers
//! `quantizers/nunchaku`.

mod tiles;

use serde_json::Value;

use self::tiles::{CodeTiles, FactorPacks, MicroScales, PACK, ScaleLines, TILE, TileVector};
use super::awq::Quads;
use crate::config::QuantMethod;
use crate::containers::model::Tensor;
use crate::kernels::remember::grouped::{E2M1, Int};
use crate::kernels::remember::low_rank::ColumnStep;
use crate::scheme::layout::low_rank::{LowRankFactors, LowRankSum};
use crate::scheme::layout::vector::VectorValues;
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::scheme::seam::numbers::{ScaleMatrix, Transposed};
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole,
    base_of, refused, require_shape, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Nunchaku;

/// Name in listings.
const FAMILY: &str = "Nunchaku";

/// Inputs that share a scale, of integers and of E2M1.
const GROUPS: [usize; 2] = [64, 16];

static IDENTITY: Identity = Identity {
    name: FAMILY,
    methods: &[QuantMethod::NunchakuLite],
    codes: &[],
    companions: &[
        (Ends(".wscales"), TensorRole::Scale),
        (Ends(".wcscales"), TensorRole::Scale),
        (Ends(".wtscale"), TensorRole::Scale),
        (Ends(".wzeros"), TensorRole::Offset),
        (Ends(".smooth_factor_orig"), TensorRole::Scale),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Nunchaku {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "qweight") else {
            return Ok(None);
        };
        if all.config.quant_method() != Some(&QuantMethod::NunchakuLite) {
            return Ok(None);
        }
        let layer = NunchakuLayer { t: *t, base, all };
        let group = match t.dtype() {
            Dtype::I8 => layer.svdquant(),
            Dtype::I32 => layer.awq(),
            _ => Err(wrong(t, "its codes are neither I8 nor I32")),
        };
        group.map(Some)
    }
}

/// A layer that is being claimed.
struct NunchakuLayer<'a, 'm> {
    t: Tensor<'m>,
    /// Its name without the last part.
    base: &'m str,
    all: &'a Index<'m>,
}

impl<'m> NunchakuLayer<'_, 'm> {
    fn part(&self, part: &str, shape: &[usize]) -> Result<Tensor<'m>> {
        let part = self.all.need(&self.t, self.base, part)?;
        require_shape(&self.t, &part, shape)?;
        Ok(part)
    }

    /// Checks what the config says of the layers of a kind.
    ///
    /// # Errors
    /// It says nothing, something else, or what is not known.
    fn check_config(&self, key: &str, precision: &str, group: usize) -> Result<()> {
        let section = self.all.config.section(key).ok_or_else(|| {
            wrong(
                &self.t,
                format!("the config has no `{key}`, and it is a layer of that kind"),
            )
        })?;
        let known = ["precision", "group_size", "rank", "targets"];
        if let Some(unknown) = section.keys().find(|key| !known.contains(&key.as_str())) {
            let what = format!("the key `{unknown}` of the config's `{key}` is unknown");
            return Err(refused(&self.t, FAMILY, what));
        }
        let is_said = |name: &str, value: Value| match section.get(name) {
            Some(found) if *found == value => Ok(()),
            found => {
                let what = format!(
                    "the config's `{key}` has the {name} {found:?}, and its tensors have {value}"
                );
                Err(wrong(&self.t, what))
            }
        };
        is_said("precision", precision.into())?;
        is_said("group_size", group.into())
    }

    fn svdquant(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let (rows, cols) = match *t.shape() {
            [rows, bytes] => (rows, bytes.checked_mul(2)),
            _ => (0, None),
        };
        let is_whole = |n: &usize| *n > 0 && n.is_multiple_of(TILE);
        let (true, Some(cols)) = (is_whole(&rows), cols.filter(is_whole)) else {
            let what = format!("it is not [out, in / 2] of whole tiles of {TILE}");
            return Err(wrong(t, what));
        };
        let scale = self.all.need(t, self.base, "wscales")?;
        let is_float = scale.dtype() == Dtype::F8E4M3;
        let group = GROUPS[usize::from(is_float)];
        let precision = if is_float { "nvfp4" } else { "int4" };
        self.check_config("svdq_w4a4", precision, group)?;
        let scale = self.part("wscales", &[cols / group, rows])?;
        let smooth = self.part("smooth_factor", &[cols])?;
        let rank = self.all.need(t, self.base, "proj_down")?;
        let rank = rank.shape().get(1).copied().unwrap_or(0);
        let down = self.part("proj_down", &[cols, rank])?;
        let up = self.part("proj_up", &[rows, rank])?;
        if !rank.is_multiple_of(PACK) {
            return Err(wrong(
                t,
                format!("its rank {rank} is no multiple of {PACK}"),
            ));
        }
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
        parts.push((TensorRole::Scale, smooth));
        let scales: Box<dyn ScaleMatrix + 'm> = if is_float {
            let outputs = self.part("wcscales", &[rows])?;
            let all = self.part("wtscale", &[1])?;
            parts.extend([outputs, all].map(|t| (TensorRole::Scale, t)));
            Box::new(MicroScales {
                floats: Floats::fp8(&scale)?,
                groups: cols / group,
                outputs: Floats::ieee(&outputs)?,
                all: Floats::ieee(&all)?,
            })
        } else {
            let groups = cols / group;
            let floats = Floats::ieee(&scale)?;
            Box::new(ScaleLines { floats, groups })
        };
        let (format, code) = if is_float {
            let factor = 1.0;
            let plain_zero = false;
            (CodeFormat::E2M1(E2M1 { factor, plain_zero }), CodeType::Fp4)
        } else {
            (CodeFormat::Int(Int::signed(4)), CodeType::Int(4))
        };
        let codes = Codes::Unpacked(Box::new(CodeTiles {
            part: t.part(),
            cols,
        }));
        let grid = row_groups(cols, group);
        let quantized = Grouped::scaled(codes, 4, format, [rows, cols], grid, scales);
        let packs = |t, has_rank_rows| -> Result<_> {
            let floats = Floats::ieee(t)?;
            Ok(Box::new(FactorPacks {
                floats,
                rank,
                has_rank_rows,
            }))
        };
        let factors = LowRankFactors {
            tensors: [down, up],
            a: packs(&down, true)?,
            b: packs(&up, false)?,
            rank,
        };
        parts.extend(factors.parts());
        let smooth = Box::new(TileVector(Floats::ieee(&smooth)?));
        let decoder = LowRankSum {
            quantized: Box::new(quantized),
            factors,
            columns: Some((ColumnStep::DivideValue, smooth)),
        };
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: code,
            scales: Granularity::Group(group),
        };
        let bias = self.bias(rows)?;
        parts.extend(bias.iter().map(|bias| (TensorRole::Offset, bias.0)));
        let name = format!("{}weight", self.base);
        let mut group = Group::new(name, vec![rows, cols], scheme, parts, Box::new(decoder));
        if let Some((stored, values)) = bias {
            let parts = vec![(TensorRole::Offset, stored)];
            let name = stored.name().to_owned();
            let mut other = Group::new(name, vec![rows], scheme, parts, Box::new(values));
            other.keeps = TargetDtype::of(stored.dtype());
            group.others.push(other);
        }
        Ok(group)
    }

    /// The bias, whose values lie in tiles.
    fn bias(&self, rows: usize) -> Result<Option<(Tensor<'m>, VectorValues<'m>)>> {
        if self.all.at(self.base, "bias").is_none() {
            return Ok(None);
        }
        let bias = self.part("bias", &[rows])?;
        let matrix = Box::new(TileVector(Floats::ieee(&bias)?));
        Ok(Some((bias, VectorValues { matrix, len: rows })))
    }

    fn awq(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let size = match *t.shape() {
            [quads, words] => quads.checked_mul(4).zip(words.checked_mul(2)),
            _ => None,
        };
        let whole = |&(rows, cols): &(usize, usize)| {
            cols.is_multiple_of(GROUPS[0]) && rows.checked_mul(cols).is_some()
        };
        let Some((rows, cols)) = size.filter(whole) else {
            let what = "it is not [out / 4, in / 2] of whole groups of 64 inputs";
            return Err(wrong(t, what));
        };
        let group = GROUPS[0];
        self.check_config("awq_w4a16", "int4", group)?;
        let groups = cols / group;
        let scale = self.part("wscales", &[groups, rows])?;
        let zeros = self.part("wzeros", &[groups, rows])?;
        let across = |t| -> Result<_> {
            let floats = Floats::ieee(t)?;
            Ok(Box::new(Transposed::of_floats(floats, rows, groups)))
        };
        let codes = Codes::Unpacked(Box::new(Quads {
            part: t.part(),
            k: cols,
        }));
        let format = CodeFormat::Int(Int::UNSIGNED);
        let grid = row_groups(cols, group);
        let mut decoder = Grouped::scaled(codes, 4, format, [rows, cols], grid, across(&scale)?);
        decoder.formula = GroupFormula::ScaleShift(GroupOffsets::new(across(&zeros)?));
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Uint(4),
            scales: Granularity::Group(group),
        };
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, scale),
            (TensorRole::Offset, zeros),
        ];
        let name = format!("{}weight", self.base);
        Ok(Group::new(
            name,
            vec![rows, cols],
            scheme,
            parts,
            Box::new(decoder),
        ))
    }
}
