//! mlx-lm's recipes of two widths: values, and what leads back into the residual stream, have the
//! higher one in some of the layers, and so has the output.
//!
//! Source: mlx-lm 0.32.2 `convert.py` (`mixed_quant_predicate_builder`).

use super::NamedMethod;
use crate::lethe::ForgetScheme;
use crate::{AnamnesisError, Result};

/// Modules that have the higher width in some layers.
const VALUES: &[&str] = &["v_proj", "v_a_proj", "v_b_proj", "down_proj"];

/// A recipe for one model.
pub(super) struct Recipe {
    /// The method of the lower width and of the higher one.
    methods: [NamedMethod; 2],
    /// Which part of a module's path is the number of its layer.
    layer_part: usize,
    layers: usize,
}

impl Recipe {
    /// # Errors
    /// `Unsupported` if no module of `names` is called as mlx-lm looks for layers.
    pub(super) fn new<'n>(
        scheme: &ForgetScheme,
        bits: [u8; 2],
        names: impl Iterator<Item = &'n str> + Clone,
        named: impl Fn(&ForgetScheme) -> Option<NamedMethod>,
    ) -> Result<Self> {
        let refused = |what: &str| AnamnesisError::unsupported(scheme.to_string(), what);
        let is_number = |part: &str| part.parse::<usize>().is_ok();
        let mut down = names.clone().filter(|name| name.contains("down_proj"));
        let layer_part = down.find_map(|name| name.split('.').position(is_number));
        let layer_part = layer_part.ok_or_else(|| {
            refused("the recipe is for layers with modules called `down_proj`; --tensor-type gives widths to others")
        })?;
        let numbers = names.filter_map(|name| name.split('.').nth(layer_part)?.parse().ok());
        let layers = numbers
            .max()
            .map_or(0, |last: usize| last.saturating_add(1));
        let method = |bits: u8| {
            let scheme = scheme.beside(&format!("mlx-{bits}bit"))?;
            named(&scheme).ok_or_else(|| refused("it has no method"))
        };
        Ok(Self { methods: [method(bits[0])?, method(bits[1])?], layer_part, layers })
    }

    /// What a module is encoded with.
    pub(super) fn of(&self, module: &str) -> &NamedMethod {
        let layer = module.split('.').nth(self.layer_part);
        let layer: usize = layer.and_then(|part| part.parse().ok()).unwrap_or(0);
        let eighth = self.layers / 8;
        // As in llama.cpp's mixtures: the first and the last eighth, and each third between them.
        let is_chosen = layer < eighth || layer >= 7 * self.layers / 8 || (layer - eighth) % 3 == 2;
        let has_part = |parts: &[&str]| parts.iter().any(|part| module.contains(part));
        let is_high = has_part(VALUES) && is_chosen || has_part(&["lm_head"]);
        &self.methods[usize::from(is_high)]
    }
}
