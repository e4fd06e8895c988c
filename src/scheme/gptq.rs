//! GPTQ: `X.qweight` I32 `[in * bits / 32, out]`, `X.scales` `[groups, out]`, and mostly `X.qzeros` I32
//! `[groups, out * bits / 32]`; `X.g_idx` I32 `[in]` maps inputs to groups. Divisions round up. The weight
//! is `X.weight` `[out, in]`.
//!
//! Layout: gptqmodel `nn_modules/qlinear/__init__.py` (`PackableQuantLinear`).

use std::ops::Range;

use super::packed::{Layout, Packed, for_each_zeros, load_scales};
use super::{Buffers, Decode, Floats, Grid, Group, Index, QuantScheme, Scheme, TensorRole, Tile};
use super::{load, read, refused, wrong};
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::gptq::{Columns, Rows, restore_zeros};
use crate::remember::packed::{CHUNK, chunk, unpack};
use crate::simd::{Level, dispatch};
use crate::{AnamnesisError, Dtype, Result};

pub(super) struct Gptq;

impl Scheme for Gptq {
    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Gptq
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(packed) = Packed::find(t, all)? else { return Ok(None) };
        let awq = all.config.method().as_deref() == Some("awq");
        match packed.layout() {
            Layout::Gptq if awq => return Err(wrong(t, "the config says AWQ, and the shapes say GPTQ")),
            Layout::Gptq => {}
            Layout::AwqGemm => return Ok(None),
            Layout::Unknown if packed.words[0] == packed.groups => {
                return Err(refused(t, "AWQ GEMV", "only the GEMM layout is decoded"));
            }
            Layout::Unknown => {
                let scales = packed.scales.shape();
                return Err(wrong(t, format!("with scales {scales:?} it is neither GPTQ nor AWQ")));
            }
        }
        let g_idx = all.at(packed.base, "g_idx").filter(|g| g.elements() > 0);
        let (bits, k) = bits_and_inputs(&packed, g_idx.as_ref(), all)?;
        let group_size = packed.group_size(k, g_idx.is_some(), all)?;
        if g_idx.is_none() && packed.groups > 1 && all.config.flag("desc_act") == Some(true) {
            return Err(wrong(t, format!("the config says desc_act, and its `{}g_idx` is missing", packed.base)));
        }
        let zeros = zeros(&packed, bits, all)?;
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, packed.scales)];
        parts.extend(packed.qzeros.map(|z| (TensorRole::ZeroPoint, z)));
        parts.extend(all.at(packed.base, "g_idx").map(|g| (TensorRole::GroupIndex, g)));
        let decoder = Box::new(Weight {
            qweight: t.part(),
            scales: Floats::ieee(&packed.scales)?,
            zeros,
            g_idx: g_idx.map(|g| g.part()),
            bits,
            k,
            n: packed.n,
            groups: packed.groups,
            group_size,
        });
        let name = format!("{}weight", packed.base);
        Ok(Some(Group {
            name,
            shape: vec![packed.n, k],
            scheme: QuantScheme::Gptq,
            parts,
            split: vec![],
            keeps: None,
            decoder,
        }))
    }
}

/// Widths that are packed as one stream of bits.
const WIDTHS: [usize; 4] = [2, 3, 4, 8];

/// Bits of a code, and input features. The width must fit the shapes of all tensors at once; the config
/// decides where several do, and must be among them.
fn bits_and_inputs(packed: &Packed<'_>, g_idx: Option<&Tensor<'_>>, all: &Index<'_>) -> Result<(usize, usize)> {
    let t = &packed.qweight;
    let rows = packed.words[0];
    let inputs = |bits: usize| match g_idx {
        Some(g) => (words_of(g.elements(), bits) == Some(rows)).then(|| g.elements()),
        None => rows.checked_mul(32).filter(|all| all.is_multiple_of(bits)).map(|all| all / bits),
    };
    let zeros_fit = |bits: usize| {
        let shape = packed.qzeros.as_ref().map(Tensor::shape);
        shape.is_none_or(|shape| words_of(packed.n, bits).is_some_and(|words| shape == [packed.groups, words]))
    };
    if let Some(g) = g_idx.filter(|g| g.dtype() != Dtype::I32 || g.shape().len() != 1) {
        return Err(wrong(g, "a g_idx is I32 and has one dimension"));
    }
    let fitting: Vec<(usize, usize)> =
        WIDTHS.iter().filter(|&&b| zeros_fit(b)).filter_map(|&b| Some((b, inputs(b)?))).collect();
    // Per-module overrides outrank the general figure; then only the shapes speak, if they can.
    let overridden = all.config.has("dynamic") || all.config.has("extra_config");
    let configured = all.config.int(&["bits"]).filter(|_| !overridden);
    let proved = packed.qzeros.is_some() || g_idx.is_some();
    match (configured, fitting.as_slice()) {
        (Some((bits @ 5..=7, place)), _) => Err(refused(t, "GPTQ", format!("planar packing of {bits} bits ({place})"))),
        (Some((bits, place)), fitting) => match fitting.iter().find(|(b, _)| *b as i64 == bits) {
            Some(found) => Ok(*found),
            None => Err(wrong(t, format!("{place} says {bits} bits; {}", shapes(packed, g_idx, fitting)))),
        },
        (None, [only]) if proved => Ok(*only),
        (None, fitting) => Err(wrong(t, format!("{}, and no config tells the bits", shapes(packed, g_idx, fitting)))),
    }
}

/// Words that `codes` codes take.
fn words_of(codes: usize, bits: usize) -> Option<usize> {
    Some(codes.checked_mul(bits)?.div_ceil(32))
}

/// What the shapes say of the width, for an error.
fn shapes(packed: &Packed<'_>, g_idx: Option<&Tensor<'_>>, fitting: &[(usize, usize)]) -> String {
    let widths: Vec<String> = fitting.iter().map(|(bits, _)| bits.to_string()).collect();
    let widths = if widths.is_empty() { "none".to_owned() } else { widths.join(" or ") };
    let (zeros, index) = (packed.qzeros.as_ref().map(Tensor::shape), g_idx.map(Tensor::shape));
    format!("scales {:?}, qzeros {zeros:?} and g_idx {index:?} fit {widths}", packed.scales.shape())
}

/// Where zero points come from.
#[derive(Clone, Copy)]
enum Zeros<'m> {
    /// Packed; version 1 stores them one too low.
    Packed { part: Part<'m>, version_1: bool },
    /// The middle of the range.
    Symmetric,
}

fn zeros<'m>(packed: &Packed<'m>, bits: usize, all: &Index<'m>) -> Result<Zeros<'m>> {
    let t = &packed.qweight;
    let format = all.config.text(&["checkpoint_format", "format", "packing_format"]);
    let symmetric = all.config.flag("sym");
    let Some(qzeros) = packed.qzeros else {
        return match symmetric {
            Some(true) => Ok(Zeros::Symmetric),
            _ => Err(wrong(t, format!("its `{}qzeros` is missing, and no config says `sym: true`", packed.base))),
        };
    };
    let part = qzeros.part();
    let version_1 = match format {
        Some(("gptq_v2" | "auto_round:gptqmodel" | "auto_round", _)) => false,
        Some(("gptq" | "auto_round:auto_gptq" | "auto_round:gptq", _)) | None => true,
        Some((other, place)) => return Err(refused(t, "GPTQ", format!("{place} says its format is `{other}`"))),
    };
    // The middle of the range, stored as it is: nonsense in version 1, where it would read as one more.
    let suspect = version_1 && (symmetric == Some(true) || format.is_none() && symmetric.is_none());
    if suspect && part.is_readable() && is_middle(&part, packed, bits)? {
        return match symmetric {
            // gptqmodel's transformers path writes version 2 under the name of version 1.
            Some(true) => Ok(Zeros::Symmetric),
            _ => {
                let what = "every zero point is stored as the middle of the range: symmetric in version 2, nonsense in version 1";
                Err(wrong(&qzeros, format!("{what}; `checkpoint_format` in a quantize_config.json would tell")))
            }
        };
    }
    Ok(Zeros::Packed { part, version_1 })
}

/// Whether the packed zero points are 2^(bits - 1). Those of a symmetric layer are all alike, so that the
/// beginning tells.
fn is_middle(qzeros: &Part<'_>, packed: &Packed<'_>, bits: usize) -> Result<bool> {
    let (stride, n) = ((packed.n * bits).div_ceil(32), packed.n.min(1024));
    let (mut staging, mut words, mut middle) = (Vec::new(), Vec::new(), true);
    let groups: Vec<usize> = (0..packed.groups.min(4)).collect();
    for_each_zeros(qzeros, stride, &groups, 0..(n * bits).div_ceil(32), &mut staging, &mut words, |_, words| {
        let mut stored = (0..n.div_ceil(CHUNK)).flat_map(|i| unpack_any(words, i, bits)).take(n);
        middle &= stored.all(|code| code == 1 << (bits - 1));
    })?;
    Ok(middle)
}

/// Columns of an indexed layer that are sure to lie in one tile, with all groups.
const INDEXED_COLS: usize = 64 << 10;

/// One packed linear layer.
struct Weight<'m> {
    qweight: Part<'m>,
    scales: Floats<'m>,
    zeros: Zeros<'m>,
    g_idx: Option<Part<'m>>,
    bits: usize,
    k: usize,
    n: usize,
    groups: usize,
    group_size: usize,
}

impl Weight<'_> {
    /// The groups that columns `cols` use. Where they are not the even ones, `index` has for each column the
    /// place of its group among them.
    fn load_groups(&self, cols: &Range<usize>, index: &mut Vec<u32>, staging: &mut Vec<u8>) -> Result<Vec<usize>> {
        index.clear();
        let even = cols.start / self.group_size..cols.end.div_ceil(self.group_size);
        let Some(g_idx) = &self.g_idx else { return Ok(even.collect()) };
        read(g_idx, self.k * 4, 0..1, cols.start * 4..cols.end * 4, staging)?;
        index.extend(staging.as_chunks().0.iter().map(|&g| u32::from_le_bytes(g)));
        if let Some(&group) = index.iter().find(|&&g| g as usize >= self.groups) {
            let (name, groups) = (g_idx.name, self.groups);
            return Err(AnamnesisError::parse(format!("tensor `{name}`: group {} of {groups}", group as i32)));
        }
        if cols.clone().zip(index.iter()).all(|(k, &g)| k / self.group_size == g as usize) {
            index.clear();
            return Ok(even.collect());
        }
        let mut used: Vec<usize> = index.iter().map(|&g| g as usize).collect();
        used.sort_unstable();
        used.dedup();
        for g in index {
            *g = used.partition_point(|&group| group < *g as usize) as u32;
        }
        Ok(used)
    }

    fn load_zeros(&self, groups: &[usize], tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { zeros, staging, zero_words, .. } = buffers;
        let (count, middle) = (groups.len(), (1u32 << (self.bits - 1)) as f32);
        zeros.clear();
        zeros.resize(count * tile.rows.len(), middle);
        let Zeros::Packed { part, version_1 } = self.zeros else { return Ok(()) };
        let stride = (self.n * self.bits).div_ceil(32);
        let cols = tile.rows.start * self.bits / 32..(tile.rows.end * self.bits).div_ceil(32);
        let three = version_1 && self.bits == 3;
        for_each_zeros(&part, stride, groups, cols, staging, zero_words, |g, words| {
            if version_1 {
                restore_zeros(words, self.bits);
            }
            for (i, rows) in zeros.chunks_mut(CHUNK * count).enumerate() {
                let codes = unpack_any(words, i, self.bits);
                for (row, code) in rows.chunks_exact_mut(count).zip(codes) {
                    row[g] = if three { (code + 1) & 7 } else { code } as f32;
                }
            }
        })
    }

    fn run<const BITS: usize>(&self, tile: &Tile, rows: Range<usize>, buffers: &Buffers, level: Level, out: Out<'_>) {
        let (count, first) = (rows.len(), rows.start - tile.rows.start);
        let words_per_row = buffers.words.len() / tile.rows.len();
        let groups = buffers.scales.len() / tile.rows.len();
        let columns = if buffers.index.is_empty() {
            Columns::Even { size: self.group_size, start: tile.cols.start % self.group_size }
        } else {
            Columns::Indexed(&buffers.index)
        };
        let kernel = Rows::<BITS> {
            words: &buffers.words[first * words_per_row..(first + count) * words_per_row],
            words_per_row,
            cols: tile.cols.len(),
            scales: &buffers.scales[first * groups..(first + count) * groups],
            zeros: &buffers.zeros[first * groups..(first + count) * groups],
            groups,
            columns,
        };
        dispatch(level, &kernel, out);
    }
}

/// Chunk `i` of `words`, at a width known at run time.
fn unpack_any(words: &[u32], i: usize, bits: usize) -> [u32; CHUNK] {
    match bits {
        2 => unpack::<2>(&chunk(words, i * 2)),
        3 => unpack::<3>(&chunk(words, i * 3)),
        4 => unpack::<4>(&chunk(words, i * 4)),
        _ => unpack::<8>(&chunk(words, i * 8)),
    }
}

impl Decode for Weight<'_> {
    fn grid(&self) -> Grid {
        // A tile of some of the columns can still name any group, so each of its columns may bring one.
        let scattered = self.g_idx.is_some() && self.k > INDEXED_COLS;
        let groups = if scattered { 1.0 } else { self.groups as f64 / self.k as f64 };
        let load_bits = self.bits as f64 + 64.0 * groups;
        Grid { rows: self.n, cols: self.k, row_align: CHUNK, col_align: CHUNK, load_bits, transposed: true }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let words = tile.cols.start * self.bits / 32..(tile.cols.end * self.bits).div_ceil(32);
        load::read_transposed(
            &self.qweight,
            self.n,
            words,
            tile.rows.clone(),
            &mut buffers.staging,
            &mut buffers.words,
        )?;
        let groups = self.load_groups(&tile.cols, &mut buffers.index, &mut buffers.staging)?;
        let Buffers { staging, row, scales, .. } = buffers;
        load_scales(&self.scales, self.n, &groups, tile.rows.clone(), staging, row, scales)?;
        self.load_zeros(&groups, tile, buffers)
    }

    fn decode(&self, tile: &Tile, rows: Range<usize>, buffers: &Buffers, level: Level, out: Out<'_>) {
        match self.bits {
            2 => self.run::<2>(tile, rows, buffers, level, out),
            3 => self.run::<3>(tile, rows, buffers, level, out),
            4 => self.run::<4>(tile, rows, buffers, level, out),
            _ => self.run::<8>(tile, rows, buffers, level, out),
        }
    }
}
