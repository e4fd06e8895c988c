//! What of a `transform_config` cannot be undone: modules of unknown classes, blocks beyond memory,
//! transforms of modules that are not there.

use super::{FEATURE, OnlineTransforms, SIDES, stored_of};
use crate::Result;
use crate::config::is_embedding;
use crate::model::Tensor;
use crate::remember::layout::transformed::BlockTransform;
use crate::remember::seam::{Resolution, ResolvedItem, lcm, refused};

/// Most values of a block, all of which have to be in memory together.
const MAX_BLOCK: usize = 1 << 20;

impl<'m> OnlineTransforms<'_, 'm> {
    /// Checks that the class of `module` is known: files do not tell classes. Codes are of linear
    /// layers, embeddings have names.
    pub(super) fn check_class(&self, module: &str, is_unsure: bool, t: &Tensor<'_>) -> Result<()> {
        if is_embedding(module) {
            let what = "it is transformed when the model runs, and is an embedding by its name";
            return Err(refused(t, FEATURE, what));
        }
        if is_unsure && module != "lm_head" && !self.owners.contains(module) {
            let what =
                "all modules of class `Linear` are transformed, and whether it is one is not known";
            return Err(refused(t, FEATURE, what));
        }
        Ok(())
    }

    /// What the config transforms besides the weights that were found.
    pub(super) fn missed(&self) -> Option<String> {
        let schemes = self.config.schemes.iter().enumerate();
        let mut uses = schemes.flat_map(|(i, scheme)| {
            let uses = scheme.uses.iter().enumerate();
            uses.map(move |(n, u)| ([i, n], scheme, u))
        });
        uses.find_map(|(numbers, scheme, u)| {
            if !SIDES.contains(&u.location) {
                return None;
            }
            let (name, location) = (&scheme.name, u.location.name());
            let Some(modules) = self.used.get(&numbers) else {
                return Some(format!(
                    "no weight is of a module that `{name}` has at the location `{location}`"
                ));
            };
            // Classes have the names of modules that are not there. Which modules are of a class,
            // files do not tell.
            let unknown = u.unknown_target(modules)?;
            Some(format!(
                "`{unknown}` of `{name}` at the location `{location}` is no module with a weight, and classes but `Linear` are not known"
            ))
        })
    }

    /// Checks that an output layer that is transformed has a weight of its own: an embedding cannot
    /// be its weight then.
    pub(super) fn check_tied(&self, resolution: &Resolution<'m>) -> Result<()> {
        let names = || resolution.items.iter().map(ResolvedItem::name);
        let embedding = resolution
            .items
            .iter()
            .find(|item| item.name().ends_with("embed_tokens.weight"));
        let Some(embedding) = embedding.filter(|_| !names().any(|name| name == "lm_head.weight"))
        else {
            return Ok(());
        };
        let t = stored_of(embedding);
        for location in SIDES {
            if self.find("lm_head", location, &t)?.is_some() {
                let what = format!(
                    "`lm_head` is transformed at the location `{}`, and has no weight besides the embedding",
                    location.name()
                );
                return Err(refused(&t, FEATURE, what));
            }
        }
        Ok(())
    }
}

/// Checks that blocks of rows and columns fit in memory, together with those that the decoder of a
/// weight needs at once.
pub(in crate::remember) fn check_block(
    sides: [&Option<BlockTransform<'_>>; 2],
    aligned: [usize; 2],
    t: &Tensor<'_>,
) -> Result<()> {
    let sizes = sides.map(|side| side.as_ref().map_or(1, |side| side.size));
    let [rows, cols] = [0, 1].map(|i| lcm(sizes[i], aligned[i]));
    if rows.saturating_mul(cols) <= MAX_BLOCK {
        return Ok(());
    }
    let what = format!(
        "it is transformed in blocks of {rows} x {cols}, more than the {MAX_BLOCK} values that are held in memory"
    );
    Err(refused(t, FEATURE, what))
}
