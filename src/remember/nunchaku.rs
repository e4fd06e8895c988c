//! SVDQuant of nunchaku, in its own models (`method: svdquant`, in the file's metadata) and in
//! modules of diffusers, as Nunchaku Lite (`quant_method: nunchaku_lite`).
//!
//! | tensor | |
//! |---|---|
//! | `X.qweight` | I8 `[out, in / 2]`: codes of four bits, signed or E2M1, in tiles (`tiles`) |
//! | `X.wscales` | floats `[in / 64, out]`, or F8_E4M3 `[in / 16, out]` |
//! | `X.wcscales`, `X.wtscale` | of E2M1: factors for each output, and for all; nunchaku's own models have either |
//! | `X.smooth_factor` `[in]` | divides the input of the quantized part; in tiles, too |
//! | `X.smooth_factor_orig` `[in]` | of nunchaku's own models: used by nothing |
//! | `X.proj_down` `[in, r]`, `X.proj_up` `[out, r]` | product of low rank, which sees the input as it is |
//! | `X.bias` `[out]` | in tiles, too |
//!
//! The names are also `smooth`, `smooth_orig`, `lora_down` and `lora_up`.
//!
//! Layers for few tokens are AWQ's: `X.qweight` I32 `[out / 4, in / 2]`, in runs of 64 columns of
//! four rows, and `X.wscales` and `X.wzeros` `[in / 64, out]`: `q * s + z`.
//!
//! In nunchaku's own models, layers of AWQ are modulations, whose outputs lie in another order
//! (`modulation`), and the biases of layers behind a GELU make up for a shift. The class of the
//! model tells which layers these are (`modules`).
//!
//! Layout: nunchaku `lora/flux/packer.py`, `models/linear.py`,
//! `models/text_encoders/tinychat_utils.py` (`pack_w4`); diffusers `quantizers/nunchaku`.

mod config;
mod modulation;
mod modules;
mod svdquant;
mod tiles;

use std::collections::HashMap;

use self::modulation::{ModulationBias, ModulationCodes, ModulationOrder, ModulationScales};
use self::modules::{CLASS, ModuleKind, NunchakuModel};
use super::awq::Quads;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::vector::VectorValues;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, Unpack, row_groups,
};
use crate::remember::seam::scale_matrix::{ScaleMatrix, Transposed};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme, Scheme,
    TensorRole, base_of, refused, require_shape, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Nunchaku;

/// Name in listings.
const FAMILY: &str = "Nunchaku";

/// Inputs that share a scale, of integers and of E2M1.
const GROUPS: [usize; 2] = [64, 16];

/// Parts of layers of SVDQuant whose names say nothing in other models.
const PARTS: [&str; 8] = [
    "smooth_factor",
    "smooth_factor_orig",
    "proj_down",
    "proj_up",
    "smooth",
    "smooth_orig",
    "lora_down",
    "lora_up",
];

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["not decoded"],
    methods: &[QuantMethod::NunchakuLite, QuantMethod::SvdQuant],
    codes: &[],
    companions: &[
        (Ends(".wscales"), TensorRole::Scale),
        (Ends(".wcscales"), TensorRole::Scale),
        (Ends(".wtscale"), TensorRole::Scale),
        (Ends(".wzeros"), TensorRole::Offset),
        (Ends(".smooth_factor_orig"), TensorRole::Scale),
        (Ends(".smooth_orig"), TensorRole::Scale),
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

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        let is_own = all.config.quant_method() == Some(&QuantMethod::SvdQuant);
        is_own.then(|| Box::new(NunchakuModel::of(all.model)) as Prepared)
    }

    /// The class of nunchaku's quantized modules.
    fn descriptions(&self, metadata: &HashMap<String, String>) -> Vec<String> {
        let class = metadata.get(CLASS);
        let is_own = class.is_some_and(|class| class.starts_with("Nunchaku"));
        is_own.then(|| CLASS.to_owned()).into_iter().collect()
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let method = all.config.quant_method();
        let is_own = method == Some(&QuantMethod::SvdQuant);
        if !is_own && method != Some(&QuantMethod::NunchakuLite) {
            return Ok(None);
        }
        let Some(base) = base_of(t.name(), "qweight") else {
            return check_part(t, all).map(|()| None);
        };
        let mut layer = NunchakuLayer { t: *t, base, all, own: None };
        if let Some(model) = all.prepared::<NunchakuModel>().filter(|_| is_own) {
            layer.own = Some(model.kind(t, base.trim_end_matches('.'))?);
        }
        let group = match t.dtype() {
            Dtype::I8 => layer.svdquant(),
            Dtype::I32 => layer.awq(),
            _ => Err(wrong(t, "its codes are neither I8 nor I32")),
        };
        group.map(Some)
    }
}

/// Checks that a part of a layer has its codes beside it: without them it would be taken for a
/// parameter of its name.
fn check_part(t: &Tensor<'_>, all: &Index<'_>) -> Result<()> {
    let base = PARTS.iter().find_map(|part| base_of(t.name(), part));
    base.map_or(Ok(()), |base| all.need(t, base, "qweight").map(drop))
}

/// A layer that is being claimed.
struct NunchakuLayer<'a, 'm> {
    t: Tensor<'m>,
    /// Its name without the last part.
    base: &'m str,
    all: &'a Index<'m>,
    /// What it is in nunchaku's own model; `None`: a layer of Nunchaku Lite.
    own: Option<ModuleKind>,
}

impl<'m> NunchakuLayer<'_, 'm> {
    fn part(&self, part: &str, shape: &[usize]) -> Result<Tensor<'m>> {
        let part = self.all.need(&self.t, self.base, part)?;
        require_shape(&self.t, &part, shape)?;
        Ok(part)
    }

    /// Rows and columns of a layer of AWQ.
    fn awq_shape(&self) -> Result<[usize; 2]> {
        let size = match *self.t.shape() {
            [quads, words] => quads.checked_mul(4).zip(words.checked_mul(2)),
            _ => None,
        };
        let whole = |&(rows, cols): &(usize, usize)| {
            cols.is_multiple_of(GROUPS[0]) && rows.checked_mul(cols).is_some()
        };
        let size = size.filter(whole).map(|(rows, cols)| [rows, cols]);
        size.ok_or_else(|| {
            let what = "it is not [out / 4, in / 2] of whole groups of 64 inputs";
            wrong(&self.t, what)
        })
    }

    /// The order of the outputs of a layer of AWQ with `rows` of them, if it is not the usual one.
    ///
    /// # Errors
    /// No such layer is known: its tensors do not tell the order.
    fn awq_order(&self, rows: usize) -> Result<Option<ModulationOrder>> {
        let vectors = match self.own {
            None => return Ok(None),
            Some(ModuleKind::Modulation(vectors)) => vectors,
            Some(_) => {
                let what = "layers of AWQ are modulations, and this module is none";
                return Err(refused(&self.t, FAMILY, what));
            }
        };
        if rows == 0 || !rows.is_multiple_of(vectors) {
            let what = format!("its {rows} outputs are not {vectors} vectors");
            return Err(wrong(&self.t, what));
        }
        let len = rows / vectors;
        Ok(Some(ModulationOrder { vectors, len }))
    }

    fn awq(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let [rows, cols] = self.awq_shape()?;
        let group = GROUPS[0];
        let order = self.awq_order(rows)?;
        self.check_config("awq_w4a16", "int4", group)?;
        if let Some(part) = PARTS.iter().find_map(|p| self.all.at(self.base, p)) {
            let what = format!("it is of AWQ, and `{}` belongs to SVDQuant", part.name());
            return Err(refused(t, FAMILY, what));
        }
        let groups = cols / group;
        let scale = self.part("wscales", &[groups, rows])?;
        let zeros = self.part("wzeros", &[groups, rows])?;
        let across = |t| -> Result<Box<dyn ScaleMatrix + 'm>> {
            let stored = Box::new(Transposed::of_floats(Floats::ieee(t)?, rows, groups));
            Ok(match order {
                Some(order) => Box::new(ModulationScales { stored, order }),
                None => stored,
            })
        };
        let stored = Quads { part: t.part(), k: cols };
        let codes: Box<dyn Unpack + 'm> = match order {
            Some(order) => Box::new(ModulationCodes { stored, order }),
            None => Box::new(stored),
        };
        let format = CodeFormat::Int(Int::UNSIGNED);
        let (shape, grid) = ([rows, cols], row_groups(cols, group));
        let codes = Codes::Unpacked(codes);
        let mut decoder = Grouped::scaled(codes, 4, format, shape, grid, across(&scale)?);
        decoder.formula = GroupFormula::ScaleShift(GroupOffsets::new(across(&zeros)?));
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, scale),
            (TensorRole::Offset, zeros),
        ];
        let mut group = self.group(CodeType::Uint(4), group, shape, parts, Box::new(decoder));
        if let Some(order) = order {
            let bias = self.part("bias", &[rows])?;
            let stored = Floats::ieee(&bias)?;
            let matrix = Box::new(ModulationBias { stored, order });
            let decoder = VectorValues { matrix, len: rows };
            group.push_bias(bias, false, Box::new(decoder));
        }
        Ok(group)
    }

    fn group(
        &self,
        codes: CodeType,
        group: usize,
        shape: [usize; 2],
        parts: Vec<(TensorRole, Tensor<'m>)>,
        decoder: Box<dyn crate::remember::seam::Decode + 'm>,
    ) -> Group<'m> {
        let scheme =
            QuantScheme::Grouped { family: FAMILY, codes, scales: Granularity::Group(group) };
        let name = format!("{}weight", self.base);
        Group::new(name, shape.to_vec(), scheme, parts, decoder)
    }
}
