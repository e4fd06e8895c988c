//! Bits and group size of an MLX weight, from the config, the shapes and the sizes of the layer.

use super::{MlxLayer, OF_MODULE, bits_per_group, mflux};
use crate::config::is_cross_attention;
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::{Index, base_of, module_of, wrong};
use crate::{AnamnesisError, Dtype, Result};

/// Group sizes of the affine mode.
const GROUP_SIZES: [usize; 3] = [32, 64, 128];

/// Bits and group size of the affine mode where neither is stated (`_defaults_for_mode` of MLX).
const DEFAULT: (usize, usize) = (4, 64);

impl<'m> MlxLayer<'_, 'm> {
    /// All pairs of bits and group size that the shapes allow.
    fn allowed(&self) -> Vec<(usize, usize)> {
        // 32, 64 and 128 are what `mx.quantize` accepts, so that most products belong to one pair
        // alone.
        let pairs = (1..=8usize).flat_map(|bits| GROUP_SIZES.map(|group| (bits, group)));
        // Ollama has integers of 4 and of 8 bits.
        let is_written = |bits: usize| !self.names.is_of_ollama || matches!(bits, 4 | 8);
        let pairs = pairs.filter(|&(bits, _)| is_written(bits));
        pairs.filter(|&pair| self.fits(pair)).collect()
    }

    fn fits(&self, (bits, group): (usize, usize)) -> bool {
        bits.checked_mul(group) == Some(self.bits_per_group)
            && (1..=8).contains(&bits)
            && (self.row_words() * 32).is_multiple_of(bits)
    }

    /// Bits and group size by Ollama's metadata, or else by the config, if it has both, or else by
    /// mflux's metadata.
    pub(super) fn configured(&self, all: &Index<'m>) -> Option<(usize, usize)> {
        if let Some(stated) = &self.stated {
            return Some(stated.size());
        }
        let module = all.config.at(module_of(self.t.name()));
        let size = |n: i64| usize::try_from(n).ok();
        // An entry inherits nothing: what it lacks is MLX's default (`to_quantized`).
        let own = |key| module.own_int(key).and_then(size);
        if let (bits @ Some(_), group) | (bits, group @ Some(_)) = (own("bits"), own("group_size"))
        {
            return Some((bits.unwrap_or(DEFAULT.0), group.unwrap_or(DEFAULT.1)));
        }
        let number = |keys: &[&str]| module.int(keys).and_then(|(n, _)| size(n));
        let configured = number(&["bits"]).zip(number(&["group_size"]));
        configured.or_else(|| mflux::size(&module, self.bits_per_group))
    }

    /// The columns of the weight, as far as the sizes of the model or a sibling prove them. `bits`
    /// are the config's.
    fn proven_cols(&self, bits: usize, all: &Index<'m>) -> Option<usize> {
        let module = module_of(self.t.name());
        // The inputs of the down projection are the outputs of the up projection.
        // `intermediate_size` does not hold for each: experts that are shared can be several in
        // one.
        if let Some(parent) = base_of(module, "down_proj") {
            let up = all.at(parent, "up_proj.weight")?;
            let outputs = up.shape().iter().nth_back(1).copied()?;
            // Phi-3-small has the gate in the up projection, which then has twice as many outputs.
            let has_gate = all.at(parent, "gate_proj.weight").is_some();
            let is_fused = !has_gate && self.cols(bits).checked_mul(2) == Some(outputs);
            return Some(outputs).filter(|_| !is_fused);
        }
        let [_, inputs] = all.config.layer_sizes(module);
        let inputs = inputs.filter(|_| inputs == all.config.hidden_size())?;
        let shape = [rows_and_cols(self.t.shape()).0, self.cols(bits)];
        let is_other = all.is_of_other_model(module, shape) || all.has_joined_inputs(module);
        Some(inputs).filter(|_| !is_other && !self.has_other_heads(all))
    }

    /// Whether the weight is the `o_proj` of an attention whose queries or keys have other widths
    /// than `config.json` gives: linear attention beside the attention that has those widths (Kimi
    /// Linear). Rows are stored as they are.
    fn has_other_heads(&self, all: &Index<'m>) -> bool {
        let Some(attention) = base_of(module_of(self.t.name()), "o_proj") else {
            return false;
        };
        let outputs = |layer: &str| {
            let t = all.at(attention, &format!("{layer}.weight"))?;
            let [stated, _] = all.config.layer_sizes(&format!("{attention}{layer}"));
            Some((rows_and_cols(t.shape()).0, stated))
        };
        // Queries may have their gates beside them (Qwen 3 Next).
        let has_queries = outputs("q_proj").is_none_or(|(rows, stated)| {
            stated.is_none_or(|stated| rows == stated || Some(rows) == stated.checked_mul(2))
        });
        !has_queries || outputs("k_proj").is_some_and(|(rows, stated)| Some(rows) != stated)
    }

    /// Whether codes of `bits` bits give the weight a width that the model has, which settles what
    /// its shapes leave open.
    ///
    /// The config of the quantization need not name a layer that differs from its default: mlx-lm
    /// goes by the sizes of the layer then.
    pub(super) fn has_known_cols(&self, bits: usize, all: &Index<'m>) -> bool {
        let module = module_of(self.t.name());
        let [_, inputs] = all.config.layer_sizes(module);
        let known = self.proven_cols(bits, all).or(inputs);
        let known = known.or(all.config.hidden_size());
        !all.config.at(module).is_named() && known == Some(self.cols(bits))
    }

    /// The error about a config that says other bits and groups than the shapes, which allow
    /// `pairs`.
    pub(super) fn contradiction(
        &self,
        configured: Option<(usize, usize)>,
        pairs: &[(usize, usize)],
    ) -> AnamnesisError {
        let says = configured.map_or("nothing".to_owned(), |(bits, group)| {
            format!("{bits} bits in groups of {group}")
        });
        let what = format!("the config says {says}, and the shapes (bits, group) {pairs:?}");
        wrong(&self.t, what)
    }

    /// Bits by the config, if they fit the shapes. Without a config they are those that the shapes
    /// allow alone; where the config only has a default that does not fit, those that give the
    /// layer its columns.
    ///
    /// # Errors
    /// The config does not fit, and the sizes of the layer do not tell, or the shapes allow several
    /// pairs of bits and group size.
    fn configured_bits(&self, all: &Index<'m>) -> Result<usize> {
        let configured = self.configured(all);
        if let Some((bits, _)) = configured.filter(|&pair| self.fits(pair)) {
            return Ok(bits);
        }
        let allowed = self.allowed();
        match allowed.as_slice() {
            &[(bits, _)] if configured.is_none() || self.has_known_cols(bits, all) => Ok(bits),
            several => Err(self.contradiction(configured, several)),
        }
    }

    /// Bits of the integers, checked against the columns of sibling projections.
    ///
    /// A config need not name every layer that differs from its default, and the default may fit
    /// the shapes of such a layer with a wrong number of columns. Projections of the same input
    /// have equally many columns, so siblings reveal that. Then `hidden_size` decides.
    pub(super) fn bits(&self, all: &Index<'m>) -> Result<usize> {
        self.check_hidden_size(all)?;
        let bits = self.configured_bits(all)?;
        // Ollama says it of each weight, and not by a default for all.
        if self.stated.is_some() {
            return Ok(bits);
        }
        let Some((other, theirs)) = self.mismatched_sibling(self.cols(bits), all)? else {
            return Ok(self.bits_by_cols(bits, all).unwrap_or(bits));
        };
        let allowed: Vec<usize> = self.allowed().into_iter().map(|(bits, _)| bits).collect();
        match allowed
            .iter()
            .find(|&&bits| Some(self.cols(bits)) == all.config.hidden_size())
        {
            Some(&bits) => Ok(bits),
            None => {
                let what = format!(
                    "by the config it has {} columns, and `{other}` {theirs}",
                    self.cols(bits)
                );
                Err(wrong(&self.t, what))
            }
        }
    }

    /// Checks the width of the model, by which bits are told, against its last norm.
    ///
    /// # Errors
    /// The norm has another width, and the weight has as many columns as `config.json` says that the
    /// model has.
    fn check_hidden_size(&self, all: &Index<'m>) -> Result<()> {
        let hidden = all.config.hidden_size();
        let [_, inputs] = all.config.layer_sizes(module_of(self.t.name()));
        let norm = all.norm_of_other_width();
        let Some((norm, hidden)) = norm.zip(hidden).filter(|_| inputs == hidden) else {
            return Ok(());
        };
        let what = format!(
            "config.json says `hidden_size` {hidden}, and `{}` has {} values",
            norm.name(),
            norm.elements()
        );
        Err(wrong(&self.t, what))
    }

    /// The bits that give the weight the columns which its layer is known to have, if they are not
    /// those of `bits`, the config's default, and the shapes allow them. mlx-lm infers the bits of
    /// a layer without an entry like this (`infer_quant_config`).
    fn bits_by_cols(&self, bits: usize, all: &Index<'m>) -> Option<usize> {
        let cols = self
            .proven_cols(bits, all)
            .filter(|&cols| cols != self.cols(bits))?;
        let is_named = all.config.at(module_of(self.t.name())).is_named();
        let allowed = self.allowed();
        let mut others = allowed.into_iter().filter(|_| !is_named);
        others.find_map(|(other, _)| (self.cols(other) == cols).then_some(other))
    }

    /// A projection of the same input whose number of columns by the config is not `cols`: its name
    /// and that number.
    fn mismatched_sibling(&self, cols: usize, all: &Index<'m>) -> Result<Option<(&'m str, usize)>> {
        let module = module_of(self.t.name());
        let attention: &[_] = match is_cross_attention(module) {
            true => &["k_proj", "v_proj"],
            false => &["q_proj", "k_proj", "v_proj"],
        };
        for siblings in [attention, &["gate_proj", "up_proj"]] {
            let Some((ours, parent)) = siblings
                .iter()
                .find_map(|s| Some((*s, base_of(module, s)?)))
            else {
                continue;
            };
            for other in siblings.iter().filter(|other| **other != ours) {
                let base = format!("{parent}{other}.");
                let (Some(t), Some(scales)) = (all.at(&base, "weight"), all.at(&base, "scales"))
                else {
                    continue;
                };
                if t.dtype() != Dtype::U32 || scales.dtype() == Dtype::U8 {
                    continue;
                }
                let other = MlxLayer {
                    bits_per_group: bits_per_group(&t, &scales)?,
                    t,
                    base: &base,
                    names: OF_MODULE,
                    scales,
                    stated: None,
                };
                let theirs = other.cols(other.configured_bits(all)?);
                if theirs != cols {
                    return Ok(Some((t.name(), theirs)));
                }
            }
        }
        Ok(None)
    }
}
