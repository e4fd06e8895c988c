//! HIGGS of transformers: pairs of rotated values, each one of a grid, as FLUTE packs them for a
//! kernel.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.weight` I16 `[out · b / 16, in]` | codes of b bits; those of two neighbouring inputs are the two numbers of a pair |
//! | `P.tables2` `[2^b, 2^b, 2]` | the values of a pair, in the type of the scales; F16 is written for the bits of BF16, too |
//! | `P.tables` `[2^b]` | what each number stands for where pairs are of two single values, or nothing |
//! | `P.scales` F16 or BF16 `[out, in / group]` | scales |
//!
//! The order of the codes depends on the tile of the kernel that was fastest for the GPU, whose
//! number the config has for each layer (`tune_metadata`, `template_id`).
//!
//! Layout: flute `utils.py` (`_pack_4bit`, `_pack_3bit`, `_pack_2bit`), `codegen_utils.py`
//! (`codegen_raw`), transformers `integrations/higgs.py`. Formula: flute `tests/higgs.py`
//! (`vector_dequantize_higgs`), with the rotation of `qgemm_hadamard`.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use self::codes::{FluteCodes, FluteTiles};
use self::rotated::HiggsWeight;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::hadamard::{HadamardColumns, StoredHadamard};
use crate::remember::layout::hadamard::HadamardRotated;
use crate::remember::layout::vectors::{Codebooks, VectorWeight, WeightNorm};
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    Floats, Group, Identity, Index, QuantScheme, Scheme, TensorRole, base_of, refused,
    require_shape, wrong,
};
use crate::{Dtype, Result};

mod codes;
mod rotated;

pub(super) struct Higgs;

/// Name in listings.
const FAMILY: &str = "HIGGS";

/// Values that share a scale (transformers `HiggsConfig`).
const GROUPS: [usize; 3] = [64, 128, 256];

/// Most columns that FLUTE rotates together.
const MAX_ROTATION: usize = 1 << 15;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Higgs],
    codes: &[],
    companions: &[(Ends(".tables2"), TensorRole::QuantMap)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Higgs {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "weight").filter(|_| t.dtype() == Dtype::I16) else {
            return Ok(None);
        };
        let is_named = all.config.quant_method() == Some(&QuantMethod::Higgs);
        if !is_named && all.at(base, "tables2").is_none() {
            return Ok(None);
        }
        let layer = HiggsLayer {
            t: *t,
            base,
            pairs: all.need(t, base, "tables2")?,
            singles: all.need(t, base, "tables")?,
            scales: all.need(t, base, "scales")?,
            all,
        };
        if !is_named {
            let what = "only its config (quant_method `higgs`) tells the order of its codes, and there is none";
            return Err(refused(t, FAMILY, what));
        }
        layer.claim().map(Some)
    }
}

/// A layer that is being claimed.
struct HiggsLayer<'a, 'm> {
    t: Tensor<'m>,
    /// The name of its weight without the last part.
    base: &'m str,
    pairs: Tensor<'m>,
    singles: Tensor<'m>,
    scales: Tensor<'m>,
    all: &'a Index<'m>,
}

impl<'m> HiggsLayer<'_, 'm> {
    fn claim(&self) -> Result<Group<'m>> {
        let (t, tuned) = (&self.t, self.tuned()?);
        self.check_values_of_a_code()?;
        let bits = self.bits()?;
        let (rows, cols, group) = self.sizes(bits)?;
        for (key, found) in [("num_bits", bits), ("group_size", group), ("N", rows), ("K", cols)] {
            self.check_tuned(tuned, key, found)?;
        }
        let tiles = self.tiles(tuned, bits, rows)?;
        let rotation = self.rotation(cols, group)?;
        let entries = 1 << (2 * bits);
        let values = (self.values_of_pairs(tuned)?, 2 * entries);
        let Some(codebooks) = Codebooks::new(vec![values], 2, false) else {
            return Err(wrong(&self.pairs, "more pairs than are decoded"));
        };
        let codes = FluteCodes { part: t.part(), tiles, rows, cols };
        let scales = Matrix { floats: Floats::ieee(&self.scales)?, cols: cols / group };
        let rotated = VectorWeight {
            rows,
            cols,
            block: [1, 2],
            terms: 1,
            codebooks,
            codes: Box::new(codes),
            norm: WeightNorm::Groups { factors: Box::new(scales), size: group },
            has_whole_rows: false,
            row_align: tiles.rows(),
        };
        let entry = 1.0 / (rotation as f64).sqrt();
        let general = HadamardRotated {
            rotated: Box::new(rotated),
            group: rotation,
            stored: Some(StoredHadamard { columns: HadamardColumns::InOrder, entry, divisor: 1.0 }),
        };
        let decoder =
            HiggsWeight { general, codes, values, scales, group, entry, table: OnceLock::new() };
        let scheme = QuantScheme::Vectors { family: FAMILY, bits: 2 * bits, values: 2 };
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::QuantMap, self.pairs),
            (TensorRole::QuantMap, self.singles),
            (TensorRole::Scale, self.scales),
        ];
        let (name, shape) = (format!("{}weight", self.base), vec![rows, cols]);
        Ok(Group::new(name, shape, scheme, parts, Box::new(decoder)))
    }

    /// What the config says of the kernel that the layer was packed for.
    ///
    /// # Errors
    /// It says nothing of this layer.
    fn tuned(&self) -> Result<&Map<String, Value>> {
        let module = self.base.trim_end_matches('.');
        let layers = self.all.config.section("tune_metadata");
        let layer = layers.and_then(|layers| layers.get(module)?.as_object());
        layer.ok_or_else(|| {
            let what = format!(
                "only `tune_metadata` of the config tells the order of its codes, and has no `{module}`"
            );
            refused(&self.t, FAMILY, what)
        })
    }

    /// # Errors
    /// The config has another number for the layer than `found`.
    fn check_tuned(&self, tuned: &Map<String, Value>, key: &str, found: usize) -> Result<()> {
        match tuned.get(key) {
            Some(said) if said.as_u64() == u64::try_from(found).ok() => Ok(()),
            said => {
                let said = said.map_or_else(|| "nothing".to_owned(), Value::to_string);
                let what = format!("`tune_metadata` has as {key} {said}, and it is {found} here");
                Err(wrong(&self.t, what))
            }
        }
    }

    /// Kernels take pairs from `tables2` whether they are of one grid (`p` 2) or of two numbers
    /// (`p` 1).
    ///
    /// # Errors
    /// The config has another `p`, which transformers does not have.
    fn check_values_of_a_code(&self) -> Result<()> {
        let section = self.all.config.at("");
        match section.int(&["p"]).filter(|(p, _)| !(1..=2).contains(p)) {
            None => Ok(()),
            Some((p, place)) => {
                let what = format!("{place} says `p` {p}, and HIGGS has 1 or 2 values of a grid");
                Err(refused(&self.t, FAMILY, what))
            }
        }
    }

    /// Bits of a code, as the tables tell them.
    ///
    /// # Errors
    /// The tables are not of 2, 3 or 4 bits, or the config says another number.
    fn bits(&self) -> Result<usize> {
        let count = self.pairs.shape().first().copied().unwrap_or(0);
        let bits = (2..=4).find(|bits| 1 << bits == count);
        let Some(bits) = bits.filter(|_| self.pairs.shape() == [count, count, 2]) else {
            let what = "pairs are of 4, 8 or 16 numbers each, [n, n, 2]";
            return Err(wrong(&self.pairs, what));
        };
        require_shape(&self.t, &self.singles, &[count])?;
        self.check_config("bits", bits)?;
        Ok(bits)
    }

    /// # Errors
    /// The config says another number than `found`.
    fn check_config(&self, key: &str, found: usize) -> Result<()> {
        let said = self.all.config.at("").int(&[key]);
        match said.filter(|(said, _)| usize::try_from(*said) != Ok(found)) {
            None => Ok(()),
            Some((said, place)) => {
                let what = format!("{place} says `{key}` {said}, and it is {found} here");
                Err(wrong(&self.t, what))
            }
        }
    }

    /// Rows and columns of the weight, and columns that share a scale.
    ///
    /// # Errors
    /// The tensors do not go together.
    fn sizes(&self, bits: usize) -> Result<(usize, usize, usize)> {
        let t = &self.t;
        let (&[words, cols], &[rows, groups]) = (t.shape(), self.scales.shape()) else {
            return Err(wrong(t, "codes and scales of HIGGS are matrices"));
        };
        if rows.checked_mul(bits) != words.checked_mul(16) {
            let what = format!("{words} words are not those of {rows} rows of {bits} bits");
            return Err(wrong(t, what));
        }
        let group = GROUPS
            .into_iter()
            .find(|group| cols > 0 && groups.checked_mul(*group) == Some(cols));
        let Some(group) = group else {
            let what =
                format!("{groups} scales of {cols} inputs are not one for each 64, 128 or 256");
            return Err(wrong(t, what));
        };
        self.check_config("group_size", group)?;
        let known = self.all.config.layer_sizes(self.base.trim_end_matches('.'))[1];
        if let Some(known) = known.filter(|&known| known != cols) {
            // transformers pads inputs when it quantizes, and cannot load what it has padded.
            let what = format!("the layer has {known} inputs, and it is stored with {cols}");
            return Err(refused(t, FAMILY, what));
        }
        Ok((rows, cols, group))
    }

    /// The tiles that the codes are packed in.
    ///
    /// # Errors
    /// The kernel is not one of FLUTE's, or the outputs are not whole tiles.
    fn tiles(&self, tuned: &Map<String, Value>, bits: usize, rows: usize) -> Result<FluteTiles> {
        let template = tuned.get("template_id").and_then(Value::as_u64);
        let Some(tiles) = template.and_then(|template| FluteTiles::of(bits, template)) else {
            let found = tuned
                .get("template_id")
                .map_or_else(String::new, Value::to_string);
            let what = format!("its `template_id` {found} is none of {bits} bits that FLUTE has");
            return Err(refused(&self.t, FAMILY, what));
        };
        if !rows.is_multiple_of(tiles.rows()) {
            let what = format!("{rows} outputs are not tiles of {}", tiles.rows());
            return Err(wrong(&self.t, what));
        }
        Ok(tiles)
    }

    /// Columns that are rotated together.
    ///
    /// # Errors
    /// The config does not say, or what does not fit.
    fn rotation(&self, cols: usize, group: usize) -> Result<usize> {
        let Some((said, place)) = self.all.config.at("").int(&["hadamard_size"]) else {
            let what = "no config with `hadamard_size` tells how it is rotated";
            return Err(refused(&self.t, FAMILY, what));
        };
        let size = usize::try_from(said).ok();
        let fits = |&size: &usize| {
            let is_known = size.is_power_of_two() && size <= MAX_ROTATION;
            is_known && size.is_multiple_of(group) && cols.is_multiple_of(size)
        };
        size.filter(fits).ok_or_else(|| {
            let what = format!(
                "{place} says `hadamard_size` {said}, which does not go with {cols} inputs in groups of {group}"
            );
            wrong(&self.t, what)
        })
    }

    /// The values of pairs, which transformers labels F16 when it quantizes, whatever they are.
    ///
    /// # Errors
    /// Tables and scales are not of one of the two types.
    fn values_of_pairs(&self, tuned: &Map<String, Value>) -> Result<Floats<'m>> {
        let (pairs, scales) = (self.pairs.dtype(), self.scales.dtype());
        let is_bf16 = tuned.get("dtype").and_then(Value::as_str) == Some("torch.bfloat16");
        match (pairs, scales) {
            (Dtype::F16, Dtype::F16) if !is_bf16 => Floats::ieee(&self.pairs),
            (Dtype::F16, Dtype::BF16) if is_bf16 => Ok(Floats::bf16_as_f16(&self.pairs)),
            (Dtype::BF16, Dtype::BF16) if is_bf16 => Floats::ieee(&self.pairs),
            _ => {
                let what = format!("values of {pairs} do not go with scales of {scales}");
                Err(wrong(&self.pairs, what))
            }
        }
    }
}
