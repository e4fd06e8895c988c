//! ParoQuant: AWQ's tensors (GEMM, four bits), and rotations of the columns within each group:
//! `X.theta` `[rotations, in / 2]`, `X.pairs` I16 `[rotations, in]`, `X.channel_scales` `[1, in]`.
//! Entries 2p and 2p + 1 of a row of `X.pairs` are the columns, counted within their group, that
//! entry p of `X.theta` turns.
//!
//! Experts `E.0.gate_proj`, `E.0.up_proj`, … share one rotation, `E.gate_up_weight_theta` and so
//! on, and all `down_proj` another.
//!
//! Layout: gptqmodel `nn_modules/qlinear/paroquant.py`, `utils/paroquant.py`; paroquant
//! `cli/convert.py`.

mod shared;

use std::ops::Range;

use self::shared::{Rotation, SharedRotations};
use super::awq::{AwqWeight, gemm_layer};
use crate::config::QuantMethod;
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::awq::PER_WORD;
use crate::remember::kernels::paroquant::{MAX_GROUP, ParoRows};
use crate::remember::packed::PackedLayer;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::load::{StoredWords, read_transposed};
use crate::remember::seam::{
    Buffers, CodeType, Decode, Floats, Granularity, Grid, Group, Identity, Index, Prepared,
    QuantScheme, Scheme, Sibling, TensorRole, Tile, base_of, read, refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(super) struct ParoQuant;

/// Name in listings.
const FAMILY: &str = "ParoQuant";

/// Most rotations of a layer. Quantizers make 8. Each is applied to every value, so that their
/// number times that of the values has to stay linear in the file.
const MAX_ROTATIONS: usize = 64;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["GPTQ"],
    methods: &[QuantMethod::ParoQuant],
    codes: &[],
    // `theta` and `pairs` could be parameters of any model; files that have them have these
    // factors.
    companions: &[
        (Ends(".channel_scales"), TensorRole::Scale),
        (Ends(".gate_up_weight_channel_scales"), TensorRole::Scale),
        (Ends(".down_weight_channel_scales"), TensorRole::Scale),
        // Stacks of experts in memory of paroquant's MLX backend, which are not decoded: without
        // these they would look like MLX's own.
        (Ends(".gate_up_rot_channel_scales"), TensorRole::Scale),
        (Ends(".down_rot_channel_scales"), TensorRole::Scale),
    ],
    optional: &[
        Sibling::OfModule("theta"),
        Sibling::OfModule("pairs"),
        Sibling::OfModule("channel_scales"),
    ],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for ParoQuant {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        SharedRotations::of(all).map(|shared| Box::new(shared) as Prepared)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "qweight") else {
            return Ok(None);
        };
        let is_its = all.config.quant_method() == Some(&QuantMethod::ParoQuant);
        let rotation = Rotation::find(base, all);
        if !is_its && rotation.is_none() {
            return Ok(None);
        }
        // Without one of the three the rest would be AWQ, and decode to a weight that was never
        // used.
        let rotation = rotation.unwrap_or_else(|| Rotation::own(base));
        let [theta, pairs, factors] = rotation.tensors(t, all)?;
        let packed = PackedLayer::find(t, all)?;
        let layer = packed.map(|packed| gemm_layer(&packed, all)).transpose()?;
        let Some((inner, mut parts)) = layer.flatten() else {
            return Err(wrong(t, "ParoQuant has AWQ's layout GEMM of 4 bits, and it is another"));
        };
        let [rows, cols] = [inner.n, inner.k];
        let rotations = rotations(t, [&theta, &pairs, &factors], cols)?;
        let module = all.config.at(base.trim_end_matches('.'));
        if let Some((number, place)) = module.int(&["krot"])
            && usize::try_from(number) != Ok(rotations)
        {
            let what = format!("{place} says {number} rotations, and its tensors have {rotations}");
            return Err(wrong(t, what));
        }
        let size = inner.group_size;
        if size > MAX_GROUP || !size.is_multiple_of(2) {
            let what = format!(
                "its groups have {size} inputs, and those that are decoded an even number up to {MAX_GROUP}"
            );
            return Err(refused(t, FAMILY, what));
        }
        if rotation.is_owned_by(t, all) {
            parts.extend([
                (TensorRole::Scale, theta),
                (TensorRole::GroupIndex, pairs),
                (TensorRole::Scale, factors),
            ]);
        }
        let decoder = ParoWeight {
            theta: Floats::ieee(&theta)?,
            factors: Floats::ieee(&factors)?,
            pairs,
            rotations,
            inner,
        };
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Uint(4),
            scales: Granularity::Group(size),
        };
        let name = format!("{base}weight");
        Ok(Some(Group::new(name, vec![rows, cols], scheme, parts, Box::new(decoder))))
    }
}

/// The number of rotations of a layer of `cols` inputs.
///
/// # Errors
/// The shapes of angles, pairs and factors are not those of the same rotations.
fn rotations(
    t: &Tensor<'_>,
    [theta, pairs, factors]: [&Tensor<'_>; 3],
    cols: usize,
) -> Result<usize> {
    if pairs.dtype() != Dtype::I16 {
        return Err(wrong(pairs, "pairs of columns are I16"));
    }
    let &[rotations, width] = pairs.shape() else {
        return Err(wrong(pairs, "pairs have two dimensions"));
    };
    if width != cols || theta.shape() != [rotations, cols / 2] {
        let what = format!(
            "its `{}` {:?} and `{}` {:?} are not for {cols} inputs",
            theta.name(),
            theta.shape(),
            pairs.name(),
            pairs.shape()
        );
        return Err(wrong(t, what));
    }
    if factors.shape() != [1, cols] && factors.shape() != [cols] {
        return Err(wrong(factors, format!("it is not one for each of {cols} inputs")));
    }
    if !(1..=MAX_ROTATIONS).contains(&rotations) {
        let what = format!("it has {rotations} rotations; up to {MAX_ROTATIONS} are decoded");
        return Err(refused(t, FAMILY, what));
    }
    Ok(rotations)
}

/// The decoder of a linear layer.
struct ParoWeight<'m> {
    inner: AwqWeight<'m>,
    theta: Floats<'m>,
    pairs: Tensor<'m>,
    factors: Floats<'m>,
    rotations: usize,
}

impl ParoWeight<'_> {
    /// Appends the places of the pairs of rotation `rotation` in columns `cols` to the buffer,
    /// group by group, each at its place in the order of application.
    fn load_pairs(
        &self,
        rotation: usize,
        cols: &Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<()> {
        let size = self.inner.group_size;
        let bytes = cols.start * 2..cols.end * 2;
        read(&self.pairs.part(), self.inner.k * 2, rotation..rotation + 1, bytes, staging)?;
        let places = staging.as_chunks::<2>().0.chunks_exact(size);
        for (g, (places, out)) in places
            .zip(out.chunks_exact_mut(self.rotations * size))
            .enumerate()
        {
            let at = (self.rotations - 1 - rotation) * size;
            let mut is_taken = [false; MAX_GROUP];
            for (out, &place) in out[at..at + size].iter_mut().zip(places) {
                let place = i16::from_le_bytes(place);
                // A column in two pairs of a rotation is turned twice in an order that nobody
                // defines.
                let free = usize::try_from(place)
                    .ok()
                    .filter(|&i| i < size && !is_taken[i]);
                let Some(i) = free else {
                    let what = format!(
                        "rotation {rotation} of group {} has column {place}, which is outside of its {size} columns or there twice",
                        cols.start / size + g
                    );
                    return Err(wrong(&self.pairs, what));
                };
                is_taken[i] = true;
                *out = i as u8;
            }
        }
        Ok(())
    }
}

impl Decode for ParoWeight<'_> {
    fn grid(&self) -> Grid {
        let inner = self.inner.grid();
        Grid {
            // Pairs lie anywhere in a group.
            col_align: self.inner.group_size,
            ..inner
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.inner.load_numbers(tile, buffers)?;
        let Buffers { words, bytes, staging, row, factors, .. } = buffers;
        // The kernel takes words, whose eight rows it rotates together.
        let runs = AwqWeight::words(&tile.rows);
        words.resize(tile.cols.len() * runs.len(), 0);
        read_transposed::<4>(
            StoredWords { part: &self.inner.qweight, stride: self.inner.row_words(), ahead: None },
            [tile.cols.clone(), runs],
            staging,
            tile.cols.len(),
            words,
        )?;
        let (cols, size) = (&tile.cols, self.inner.group_size);
        let pairs = bytes.buffer();
        pairs.clear();
        pairs.resize(self.rotations * cols.len(), 0);
        factors.clear();
        factors.resize(self.rotations * cols.len(), 0.0);
        for rotation in 0..self.rotations {
            self.load_pairs(rotation, cols, staging, pairs)?;
            row.clear();
            let halves = cols.start / 2..cols.end / 2;
            self.theta
                .extend(self.inner.k / 2, rotation..rotation + 1, halves, staging, row)?;
            let at = (self.rotations - 1 - rotation) * size;
            let groups = factors.chunks_exact_mut(self.rotations * size);
            for (angles, out) in row.chunks_exact(size / 2).zip(groups) {
                let out = out[at..at + size].as_chunks_mut::<2>().0;
                for (&angle, out) in angles.iter().zip(out) {
                    let (sin, cos) = f64::from(angle).sin_cos();
                    *out = [cos as f32, sin as f32];
                }
            }
        }
        row.clear();
        self.factors
            .extend(self.inner.k, 0..1, cols.clone(), staging, row)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let first = rows.start - tile.rows.start;
        let groups = buffers.scales.len() / tile.rows.len().max(1);
        let range = first * groups..(first + rows.len()) * groups;
        let kernel = ParoRows {
            words: &buffers.words[first / PER_WORD * tile.cols.len()..],
            first: first % PER_WORD,
            cols: tile.cols.len(),
            scales: &buffers.scales[range.clone()],
            zeros: &buffers.zeros[range],
            group_size: self.inner.group_size,
            rotations: self.rotations,
            pairs: &buffers.bytes,
            angles: &buffers.factors,
            factors: &buffers.row,
        };
        dispatch(level, &kernel, out);
    }
}
