//! Layers of SVDQuant: codes in tiles, and a product of low rank.

use super::modules::ModuleKind;
use super::tiles::{CodeTiles, FactorPacks, MicroScales, PACK, ScaleLines, TILE, TileVector};
use super::{FAMILY, GROUPS, NunchakuLayer};
use crate::model::Tensor;
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::kernels::low_rank::ColumnStep;
use crate::remember::layout::low_rank::{LowRankFactors, LowRankSum};
use crate::remember::layout::shifted_bias::ShiftedBias;
use crate::remember::layout::vector::VectorValues;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{
    CodeType, Decode, Floats, Group, TensorRole, refused, require_shape, wrong,
};
use crate::{Dtype, Result};

/// The tensors of a layer of SVDQuant, of the right shapes.
struct SvdQuantLayer<'m> {
    t: Tensor<'m>,
    scale: Tensor<'m>,
    /// `wcscales` and `wtscale`, of E2M1.
    outer: [Option<Tensor<'m>>; 2],
    smooth: Tensor<'m>,
    down: Tensor<'m>,
    up: Tensor<'m>,
    rows: usize,
    cols: usize,
    rank: usize,
    /// Whether codes are E2M1 rather than integers.
    is_float: bool,
}

impl<'m> NunchakuLayer<'_, 'm> {
    pub(super) fn svdquant(&self) -> Result<Group<'m>> {
        let layer = self.svdquant_layer()?;
        let factors = layer.factors()?;
        let mut parts = vec![(TensorRole::Quantized, self.t)];
        let outer = layer.outer.into_iter().flatten();
        let scales = [layer.scale, layer.smooth].into_iter().chain(outer);
        parts.extend(scales.map(|t| (TensorRole::Scale, t)));
        parts.extend(factors.parts());
        parts.extend(self.unused_smooth(layer.cols)?);
        let smooth = Box::new(TileVector(Floats::ieee(&layer.smooth)?));
        let columns = (ColumnStep::DivideValue, smooth as _);
        let decoder = LowRankSum::new(Box::new(layer.quantized()?), factors, Some(columns));
        let codes = if layer.is_float {
            CodeType::Fp4
        } else {
            CodeType::Int(4)
        };
        let shape = [layer.rows, layer.cols];
        let mut group = self.group(codes, layer.group(), shape, parts, Box::new(decoder));
        self.push_bias(&layer, &mut group)?;
        Ok(group)
    }

    /// The layer's tensors.
    ///
    /// # Errors
    /// One is missing, or of another shape or dtype than the others or the config say.
    fn svdquant_layer(&self) -> Result<SvdQuantLayer<'m>> {
        let t = &self.t;
        if let Some(ModuleKind::Modulation(_)) = self.own {
            return Err(refused(t, FAMILY, "a modulation is of AWQ, and it is not"));
        }
        let [rows, cols] = self.tiled_shape()?;
        let scale = self.all.need(t, self.base, "wscales")?;
        let is_float = scale.dtype() == Dtype::F8E4M3;
        let group = GROUPS[usize::from(is_float)];
        let precision = if is_float { "nvfp4" } else { "int4" };
        self.check_config("svdq_w4a4", precision, group)?;
        require_shape(t, &scale, &[cols / group, rows])?;
        let named = |name, other| self.all.one_of(t, &[(self.base, name), (self.base, other)]);
        let smooth = named("smooth_factor", "smooth")?;
        require_shape(t, &smooth, &[cols])?;
        let (down, up) = (named("proj_down", "lora_down")?, named("proj_up", "lora_up")?);
        let rank = down.shape().get(1).copied().unwrap_or(0);
        require_shape(t, &down, &[cols, rank])?;
        require_shape(t, &up, &[rows, rank])?;
        if !rank.is_multiple_of(PACK) {
            let what = format!("its rank {rank} is no multiple of {PACK}");
            return Err(wrong(t, what));
        }
        let outer = if is_float {
            self.outer_scales(rows)?
        } else {
            [None; 2]
        };
        Ok(SvdQuantLayer { t: *t, scale, outer, smooth, down, up, rows, cols, rank, is_float })
    }

    fn tiled_shape(&self) -> Result<[usize; 2]> {
        let is_whole = |n: &usize| *n > 0 && n.is_multiple_of(TILE);
        let (rows, cols) = match *self.t.shape() {
            [rows, bytes] => (rows, bytes.checked_mul(2)),
            _ => (0, None),
        };
        match cols.filter(is_whole) {
            Some(cols) if is_whole(&rows) => Ok([rows, cols]),
            _ => {
                let what = format!("it is not [out, in / 2] of whole tiles of {TILE}");
                Err(wrong(&self.t, what))
            }
        }
    }

    /// The factors of the scales. nunchaku writes one of them: for each output of fused
    /// projections, for all elsewhere.
    fn outer_scales(&self, rows: usize) -> Result<[Option<Tensor<'m>>; 2]> {
        let outer = ["wcscales", "wtscale"].map(|part| self.all.at(self.base, part));
        if self.own.is_none() || outer.iter().all(Option::is_none) {
            self.part("wcscales", &[rows])?;
            self.part("wtscale", &[1])?;
        }
        for (scale, shape) in outer.iter().zip([[rows], [1]]) {
            if let Some(scale) = scale {
                require_shape(&self.t, scale, &shape)?;
            }
        }
        Ok(outer)
    }

    /// The smoothing factors before a part of them was moved to the layer before. nunchaku stores
    /// them, and does not use them.
    fn unused_smooth(&self, cols: usize) -> Result<Option<(TensorRole, Tensor<'m>)>> {
        if self.own.is_none() {
            return Ok(None);
        }
        let names = ["smooth_factor_orig", "smooth_orig"];
        let Some(found) = names.iter().find_map(|name| self.all.at(self.base, name)) else {
            return Ok(None);
        };
        require_shape(&self.t, &found, &[cols])?;
        Ok(Some((TensorRole::Scale, found)))
    }

    /// Adds the bias to the group of its layer, if there is one.
    fn push_bias(&self, layer: &SvdQuantLayer<'m>, group: &mut Group<'m>) -> Result<()> {
        // The kernel of E2M1 adds nothing.
        let is_shifted = self.own == Some(ModuleKind::AfterGelu) && !layer.is_float;
        if self.all.at(self.base, "bias").is_none() {
            if is_shifted {
                let what = "it is behind a GELU, which is shifted, and it has no bias that could make up for that";
                return Err(refused(&self.t, FAMILY, what));
            }
            return Ok(());
        }
        let stored = self.part("bias", &[layer.rows])?;
        let matrix = Box::new(TileVector(Floats::ieee(&stored)?));
        let decoder: Box<dyn Decode + 'm> = if is_shifted {
            Box::new(ShiftedBias {
                quantized: Box::new(layer.quantized()?),
                divisors: Box::new(TileVector(Floats::ieee(&layer.smooth)?)),
                bias: matrix,
            })
        } else {
            Box::new(VectorValues { matrix, len: layer.rows })
        };
        group.push_bias(stored, is_shifted, decoder);
        Ok(())
    }
}

impl<'m> SvdQuantLayer<'m> {
    /// Inputs that share a scale.
    fn group(&self) -> usize {
        GROUPS[usize::from(self.is_float)]
    }

    /// The decoder of the quantized part.
    fn quantized(&self) -> Result<Grouped<'m>> {
        let (part, cols, groups) = (self.t.part(), self.cols, self.cols / self.group());
        let codes = Codes::Arranged(Box::new(CodeTiles { part, cols }));
        let (format, scales): (_, Box<dyn ScaleMatrix + 'm>) = if self.is_float {
            let [outputs, all] = self.outer.map(|t| t.map(|t| Floats::ieee(&t)).transpose());
            let scales = MicroScales {
                floats: Floats::fp8(&self.scale)?,
                groups,
                outputs: outputs?,
                all: all?,
            };
            let format = E2M1 { factor: 1.0, plain_zero: false };
            (CodeFormat::E2M1(format), Box::new(scales))
        } else {
            let floats = Floats::ieee(&self.scale)?;
            let format = CodeFormat::Int(Int::signed(4));
            (format, Box::new(ScaleLines { floats, groups }))
        };
        let (shape, grid) = ([self.rows, cols], row_groups(cols, self.group()));
        Ok(Grouped::scaled(codes, 4, format, shape, grid, scales))
    }

    fn factors(&self) -> Result<LowRankFactors<'m>> {
        let packs = |t, has_rank_rows| -> Result<_> {
            Ok(Box::new(FactorPacks { floats: Floats::ieee(t)?, rank: self.rank, has_rank_rows }))
        };
        Ok(LowRankFactors {
            tensors: [self.down, self.up],
            a: packs(&self.down, true)?,
            b: packs(&self.up, false)?,
            rank: self.rank,
        })
    }
}
