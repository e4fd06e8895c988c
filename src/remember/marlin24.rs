//! marlin-24 of compressed-tensors: integers of four or eight bits of which two of each four inputs
//! are zero. `X.weight_packed` I32 `[in / 32, out * bits / 2]` has the others in Marlin tiles,
//! `X.meta` I16 `[in / 32, 2 * out]` their places, and `X.scale_packed` F16 `[groups, out]` the
//! scales. The weight is `X.weight` `[out, in]`: `q * s`.
//!
//! A tile of 16 stored inputs × 64 outputs is 1024 adjacent codes: 32 lanes of 32 codes. The places
//! of its codes are 128 numbers of 16 bits, each for 16 inputs of an output; a nibble has the two
//! places of four inputs, the lower bits those of the first.
//!
//! Layout: compressed-tensors 0.9.4 `marlin_24.py` (`pack_weight_24`, `pack_scales_24`),
//! `permutations_24.py`, `semi_structured_conversions.py`
//! (`_calculate_meta_reordering_scatter_offsets`).

use crate::config::{Module, QuantMethod};
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::marlin::{
    MarlinTiles, OutputOrder, SparsePlaces, TILE_OUTPUTS, TileOrder,
};
use crate::remember::layout::marlin_tiles::{PermutedScales, ScaleOrder};
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::remember::seam::scale_matrix::{ScaleMatrix, Transposed};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, StoredRows,
    TensorRole, Tile, base_of, read, refused, require_shape, wrong,
};
use crate::simd::Level;
use crate::{Dtype, Result};

pub(super) struct Marlin24;

/// Name in listings.
const FAMILY: &str = "marlin-24";

/// Inputs of the weight that a tile covers, and inputs that it stores.
const TILE_INPUTS: usize = 32;
const STORED_INPUTS: usize = TILE_INPUTS / 2;
const TILE_CODES: usize = TILE_OUTPUTS * STORED_INPUTS;

/// Rows of tiles that are unpacked together: their inputs fill two cache lines, which CPUs fetch
/// together.
const TOGETHER: usize = 4;

/// Numbers of a tile with the places of its codes.
const TILE_PLACES: usize = 2 * TILE_OUTPUTS;

/// Inputs that share a scale, if there are several groups (`validate_quant_compatability`).
const GROUP: usize = 128;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["not decoded"],
    methods: &[QuantMethod::CompressedTensors],
    codes: &["_packed"],
    companions: &[(Ends(".scale_packed"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Marlin24 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "weight_packed") else {
            return Ok(None);
        };
        let Some(scales) = all.at(base, "scale_packed") else {
            return Ok(None);
        };
        let meta = all.need(t, base, "meta")?;
        let module = all.config.at(base.trim_end_matches('.'));
        check_scheme(&module, t)?;
        let weight = Marlin24Weight::new(t, &meta, &scales)?;
        weight.check_bits(&module, t)?;
        let shape = vec![weight.codes.outputs, weight.inputs];
        let scheme = weight.scheme();
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, scales),
            (TensorRole::QuantState, meta),
        ];
        let decoder = weight.decoder(&scales)?;
        let name = format!("{base}weight");
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// Checks that the config says of a module nothing that its tensors cannot have.
fn check_scheme(module: &Module<'_>, t: &Tensor<'_>) -> Result<()> {
    if let Some(place) = module.reorders_groups() {
        let what = format!("{place} says `actorder: group`, and no tensor has the order");
        return Err(refused(t, FAMILY, what));
    }
    if module.flag("symmetric") == Some(false) {
        let what = "the config says that it is asymmetric, and marlin-24 has no zero points";
        return Err(wrong(t, what));
    }
    Ok(())
}

/// What the shapes of a weight's tensors prove.
struct Marlin24Weight<'m> {
    codes: Marlin24Codes<'m>,
    inputs: usize,
    /// Inputs that share a scale.
    group: usize,
}

impl<'m> Marlin24Weight<'m> {
    fn new(t: &Tensor<'m>, meta: &Tensor<'m>, scales: &Tensor<'m>) -> Result<Self> {
        let misfit = || {
            let (packed, scales) = (t.shape(), scales.shape());
            let what = format!(
                "marlin-24 is I32 [in / 32, out * bits / 2] with scales [groups, out], here {packed:?} and {scales:?}"
            );
            wrong(t, what)
        };
        let (&[depth, words], &[groups, outputs]) = (t.shape(), scales.shape()) else {
            return Err(misfit());
        };
        let is_words = matches!(t.dtype(), Dtype::I32 | Dtype::U32);
        let has_tiles = depth > 0 && outputs > 0 && outputs.is_multiple_of(TILE_OUTPUTS);
        let widths = [4, 8].into_iter();
        let bits = widths
            .filter(|bits| outputs.checked_mul(bits / 2) == Some(words))
            .find(|_| is_words && has_tiles);
        let (Some(bits), Some(inputs)) = (bits, depth.checked_mul(TILE_INPUTS)) else {
            return Err(misfit());
        };
        let group = match groups {
            1 => inputs,
            _ if groups.checked_mul(GROUP) == Some(inputs) => GROUP,
            _ => return Err(misfit()),
        };
        if meta.dtype() != Dtype::I16 {
            return Err(wrong(meta, "places of codes are I16"));
        }
        require_shape(t, meta, &[depth, 2 * outputs])?;
        let codes = Marlin24Codes { codes: t.part(), meta: *meta, outputs, bits };
        Ok(Self { codes, inputs, group })
    }

    /// Checks that the config states no other width than the shapes have.
    fn check_bits(&self, module: &Module<'_>, t: &Tensor<'_>) -> Result<()> {
        let bits = self.codes.bits;
        if let Some((stated, place)) = module.int(&["num_bits"])
            && usize::try_from(stated) != Ok(bits)
        {
            let what = format!("{place} says {stated} bits, and its shape has {bits} bits a code");
            return Err(wrong(t, what));
        }
        Ok(())
    }

    fn scheme(&self) -> QuantScheme {
        QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Int(if self.codes.bits == 4 { 4 } else { 8 }),
            scales: if self.group == self.inputs {
                Granularity::Channel
            } else {
                Granularity::Group(self.group)
            },
        }
    }

    fn decoder(self, scales: &Tensor<'m>) -> Result<Grouped<'m>> {
        let Self { codes, inputs, group } = self;
        let (outputs, bits) = (codes.outputs, codes.bits);
        let floats = Floats::ieee(scales)?;
        // The library takes the stored inputs for all of them (`pack_scales_24`).
        let stored: Box<dyn ScaleMatrix + 'm> = if group < inputs / 2 {
            Box::new(PermutedScales { floats, n: outputs, order: ScaleOrder::SparseGroups })
        } else {
            Box::new(Transposed::of_floats(floats, outputs, inputs / group))
        };
        Ok(Grouped::scaled(
            Codes::Unpacked(Box::new(codes)),
            bits,
            CodeFormat::Int(Int::offset_binary(bits)),
            [outputs, inputs],
            row_groups(inputs, group),
            stored,
        ))
    }
}

/// Codes in tiles, with their places.
struct Marlin24Codes<'m> {
    codes: Part<'m>,
    meta: Tensor<'m>,
    outputs: usize,
    bits: usize,
}

impl<'m> Marlin24Codes<'m> {
    fn tile_bytes(&self) -> usize {
        TILE_CODES * self.bits / 8
    }

    /// Unpacks rows of tiles to `rows`, which have `width` codes for an output, 16 for each row of
    /// tiles.
    fn unpack_tiles(&self, tiles: &[u8], rows: &mut [u8], width: usize) {
        let pitch = rows.len() / width.max(1) / TILE_OUTPUTS * self.tile_bytes();
        if self.bits == 4 {
            let tiles = MarlinTiles {
                order: TileOrder::Halves,
                outputs: OutputOrder::SPARSE,
                tiles,
                pitch,
                rows,
                width,
                left: 0,
            };
            return tiles.unpack(Level::detect());
        }
        for (depth, tiles) in tiles.chunks_exact(pitch.max(1)).enumerate() {
            let rows = rows.chunks_exact_mut(TILE_OUTPUTS * width.max(1));
            for (tile, rows) in tiles.chunks_exact(self.tile_bytes()).zip(rows) {
                unpack_bytes(tile, rows, width, depth * STORED_INPUTS);
            }
        }
    }
}

impl<'m> Unpack for Marlin24Codes<'m> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        let tiles = tile.rows.start / TILE_OUTPUTS..tile.rows.end.div_ceil(TILE_OUTPUTS);
        let depths = tile.cols.start / TILE_INPUTS..tile.cols.end.div_ceil(TILE_INPUTS);
        let all = self.outputs / TILE_OUTPUTS;
        let (mut places, mut codes) = (Vec::new(), Vec::new());
        for first in depths.clone().step_by(TOGETHER) {
            let together = first..(first + TOGETHER).min(depths.end);
            let load = |part: &Part<'m>, size: usize, out: &mut Vec<u8>| {
                let bytes = tiles.start * size..tiles.end * size;
                read(part, all * size, together.clone(), bytes, out)
            };
            load(&self.codes, self.tile_bytes(), staging)?;
            load(&self.meta.part(), 2 * TILE_PLACES, &mut places)?;
            let stored = together.len() * STORED_INPUTS;
            codes.resize(tile.rows.len() * stored, 0);
            self.unpack_tiles(staging, &mut codes, stored);
            let placed = SparsePlaces {
                codes: &codes,
                stored,
                places: &places,
                // What is not stored is zero, whose code is in the middle.
                zero: 1 << (self.bits - 1),
                rows: out,
                width,
                left: (first - depths.start) * TILE_INPUTS,
                are_ordered: true,
            };
            if !placed.put(Level::detect()) {
                let what = "it has places of two codes that are one or in no order";
                return Err(wrong(&self.meta, what));
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (TILE_OUTPUTS, TILE_INPUTS)
    }

    fn transposed(&self) -> Option<StoredRows> {
        let bits = (self.tile_bytes() + 2 * TILE_PLACES) * 8 / TILE_OUTPUTS;
        Some(StoredRows::of_one(bits, TILE_INPUTS))
    }
}

/// Unpacks a tile of codes of eight bits to 16 columns of `rows`, which are `width` wide, from
/// `left` on.
fn unpack_bytes(tile: &[u8], rows: &mut [u8], width: usize, left: usize) {
    // A lane has four pieces of eight codes. A piece has two outputs, four apart, and of each two
    // adjacent inputs and those eight after them.
    for (i, bytes) in tile.as_chunks::<8>().0.iter().enumerate() {
        let (lane, piece) = (i / 4, i % 4);
        let output = lane / 8 * 16 + lane / 4 % 2 * 8 + piece;
        let [a, b, c, d, e, f, g, h] = *bytes;
        for (four, codes) in [[a, c, b, d], [e, g, f, h]].into_iter().enumerate() {
            let at = (output + four * 4) * width + left + lane % 4 * 2;
            let [a, b, c, d] = codes;
            rows[at..at + 2].copy_from_slice(&[a, b]);
            rows[at + 8..at + 10].copy_from_slice(&[c, d]);
        }
    }
}
