//! marlin-24 of compressed-tensors: integers of four or eight bits of which two of each four inputs are zero. `X.weight_packed` I32
//! `[in / 32, out * bits / 2]` has the others in Marlin tiles, `X.meta` I16 `[in / 32, 2 * out]` their places, and `X.scale_packed` F16
//! `[groups, out]` the scales. The weight is `X.weight` `[out, in]`: `q * s`.
//!
//! A tile of 16 stored inputs × 64 outputs is 1024 adjacent codes: 32 lanes of 32 codes. The places of its codes are 128 numbers
//! of 16 bits, each for 16 inputs of an output; a nibble has the two places of four inputs, the lower bits those of the first.
//!
//! Layout: compressed-tensors 0.9.4 `marlin_24.py` (`pack_weight_24`, `pack_scales_24`), `permutations_24.py`,
//! `semi_structured_conversions.py` (`_calculate_meta_reordering_scatter_offsets`).

use crate::config::{Module, QuantMethod};
use crate::containers::model::{Part, Tensor};
use crate::kernels::remember::grouped::Int;
use crate::scheme::layout::marlin_tiles::{PermutedScales, ScaleOrder};
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::scheme::seam::numbers::{ScaleMatrix, Transposed};
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, StoredRows,
    TensorRole, Tile, base_of, read, refused, require_shape, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Marlin24;

/// Name in listings.
const FAMILY: &str = "marlin-24";

/// Outputs of a tile, inputs of the weight that it covers, and inputs that it stores.
const TILE_OUTPUTS: usize = 64;
const TILE_INPUTS: usize = 32;
const STORED_INPUTS: usize = TILE_INPUTS / 2;
const TILE_CODES: usize = TILE_OUTPUTS * STORED_INPUTS;

/// Numbers of a tile with the places of its codes.
const TILE_PLACES: usize = 2 * TILE_OUTPUTS;

/// Inputs that share a scale, if there are several groups (`validate_quant_compatability`).
const GROUP: usize = 128;

static IDENTITY: Identity = Identity {
    name: FAMILY,
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
        Ok(Some(Group::new(
            name,
            shape,
            scheme,
            parts,
            Box::new(decoder),
        )))
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
        let codes = Marlin24Codes {
            codes: t.part(),
            meta: *meta,
            outputs,
            bits,
        };
        Ok(Self {
            codes,
            inputs,
            group,
        })
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
        let Self {
            codes,
            inputs,
            group,
        } = self;
        let (outputs, bits) = (codes.outputs, codes.bits);
        let floats = Floats::ieee(scales)?;
        // The library takes the stored inputs for all of them (`pack_scales_24`).
        let stored: Box<dyn ScaleMatrix + 'm> = if group < inputs / 2 {
            Box::new(PermutedScales {
                floats,
                n: outputs,
                order: ScaleOrder::SparseGroups,
            })
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

impl Marlin24Codes<'_> {
    fn tile_bytes(&self) -> usize {
        TILE_CODES * self.bits / 8
    }
}

impl Unpack for Marlin24Codes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        // What is not stored is zero, whose code is in the middle.
        let zero = 1 << (self.bits - 1);
        out.resize(tile.rows.len() * width, 0);
        let tiles = tile.rows.start / TILE_OUTPUTS..tile.rows.end.div_ceil(TILE_OUTPUTS);
        let (size, places_size) = (self.tile_bytes(), 2 * TILE_PLACES);
        let all = self.outputs / TILE_OUTPUTS;
        let (mut places, mut codes) = (Vec::new(), [0; TILE_CODES]);
        let depths = tile.cols.start / TILE_INPUTS..tile.cols.end.div_ceil(TILE_INPUTS);
        for (left, depth) in (0..).step_by(TILE_INPUTS).zip(depths) {
            let lines = depth..depth + 1;
            let bytes = |size: usize| tiles.start * size..tiles.end * size;
            read(&self.codes, all * size, lines.clone(), bytes(size), staging)?;
            let meta = self.meta.part();
            read(
                &meta,
                all * places_size,
                lines,
                bytes(places_size),
                &mut places,
            )?;
            let tiles = staging
                .chunks_exact(size)
                .zip(places.chunks_exact(places_size));
            let rows = out.chunks_exact_mut(TILE_OUTPUTS * width.max(1));
            for ((words, places), rows) in tiles.zip(rows) {
                unpack_tile(words, self.bits, &mut codes);
                let places = places.as_chunks().0;
                if !place_codes(&codes, places, zero, (rows, width), left) {
                    let what = "it has places of two codes that are one or in no order";
                    return Err(wrong(&self.meta, what));
                }
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

/// Unpacks a tile to `[outputs, stored inputs]`.
fn unpack_tile(words: &[u8], bits: usize, out: &mut [u8; TILE_CODES]) {
    // A lane has four pieces of eight codes, as many bytes as a code has bits. A piece has two outputs, four apart, and of each
    // two adjacent inputs and those eight after them.
    for (i, bytes) in words.chunks_exact(bits).enumerate() {
        let (lane, piece) = (i / 4, i % 4);
        let output = lane / 8 * 16 + lane / 4 % 2 * 8 + piece;
        let codes = piece_codes(bytes, bits);
        for (four, codes) in codes.into_iter().enumerate() {
            let at = (output + four * 4) * STORED_INPUTS + lane % 4 * 2;
            let [a, b, c, d] = codes;
            out[at..at + 2].copy_from_slice(&[a, b]);
            out[at + 8..at + 10].copy_from_slice(&[c, d]);
        }
    }
}

/// The eight codes of a piece, four of each of its outputs. Words have their codes 0, 2, 4, …, and then 1, 3, 5, ….
fn piece_codes(bytes: &[u8], bits: usize) -> [[u8; 4]; 2] {
    match *bytes {
        [a, b, c, d] if bits == 4 => [
            [a & 15, c & 15, a >> 4, c >> 4],
            [b & 15, d & 15, b >> 4, d >> 4],
        ],
        [a, b, c, d, e, f, g, h] => [[a, c, b, d], [e, g, f, h]],
        _ => [[0; 4]; 2],
    }
}

/// What becomes of four codes by their nibble of places: the bytes that keep the code of zero, and the bits by which the two codes
/// are moved. `None` in place of what is no two places in order.
const MOVES: [Option<(u32, u32, u32)>; 16] = {
    let mut moves = [None; 16];
    let mut nibble = 0;
    while nibble < 16 {
        let (a, b) = (nibble & 3, nibble >> 2);
        if a < b {
            let (a, b) = (a as u32 * 8, b as u32 * 8);
            moves[nibble] = Some((!(0xff << a | 0xff << b), a, b));
        }
        nibble += 1;
    }
    moves
};

/// Writes the codes of a tile to their places in 32 columns of `rows`, from `left` on, and `zero` to the others. False if places
/// are no two different ones in order.
fn place_codes(
    codes: &[u8; TILE_CODES],
    places: &[[u8; 2]],
    zero: u8,
    (rows, width): (&mut [u8], usize),
    left: usize,
) -> bool {
    let mut is_ordered = true;
    let zeros = u32::from_le_bytes([zero; 4]);
    let lines = rows
        .chunks_exact_mut(width)
        .zip(codes.as_chunks::<STORED_INPUTS>().0);
    for (output, (row, codes)) in lines.enumerate() {
        let row = row[left..left + TILE_INPUTS].as_chunks_mut::<16>().0;
        for (half, (row, codes)) in row.iter_mut().zip(codes.as_chunks::<8>().0).enumerate() {
            let places = u16::from_le_bytes(places[place_index(output, half)]);
            let quads = row.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0);
            for (i, (quad, &[first, second])) in quads.enumerate() {
                match MOVES[usize::from(places >> (i * 4) & 15)] {
                    Some((kept, a, b)) => {
                        let codes = u32::from(first) << a | u32::from(second) << b;
                        *quad = (zeros & kept | codes).to_le_bytes();
                    }
                    None => is_ordered = false,
                }
            }
        }
    }
    is_ordered
}

/// Index among the numbers of a tile of that for `half`, 16 of the 32 inputs, of `output`.
fn place_index(output: usize, half: usize) -> usize {
    let row = output % 2 * 2 + output % 8 / 4 + output % 4 / 2 * 32 + output / 8 * 4;
    // In each two rows the number at the upper right and that at the lower left change places.
    match (row % 2, half) {
        (0, 1) => (row + 1) * 2,
        (1, 0) => (row - 1) * 2 + 1,
        _ => row * 2 + half,
    }
}
