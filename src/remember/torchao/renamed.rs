//! Parameters that transformers has renamed when it saved them. A model's class may have other
//! names than the published checkpoints of it (`model.language_model.layers` for `model.layers`),
//! and the names of checkpoints are saved. Metadata keep those of the class.
//!
//! Source: transformers `core_model_loading.revert_weight_conversion`; `TorchAoHfQuantizer`
//! flattens parameters before that.

use std::collections::HashMap;

use super::description::TorchaoParameter;

/// Most parameters of a model that are alike in what renaming keeps. Real models have one or two.
const MAX_ALIKE: usize = 64;

/// Fewest components at the end that both names have.
const LEAST_ENDING: usize = 2;

/// What renaming keeps of a name: the last component, and the numbers of layers and experts.
type KeptNames<'n> = (&'n str, Vec<&'n str>);

fn kept(name: &str) -> KeptNames<'_> {
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    (last, name.split('.').filter(is_number).collect())
}

/// Parameters none of whose parts has the name that metadata give it.
pub(super) struct LostParameters<'p>(HashMap<KeptNames<'p>, Vec<&'p TorchaoParameter>>);

impl<'p> LostParameters<'p> {
    pub(super) fn new(lost: impl Iterator<Item = &'p TorchaoParameter>) -> Self {
        let mut by_kept: HashMap<_, Vec<_>> = HashMap::new();
        for parameter in lost {
            by_kept
                .entry(kept(&parameter.name))
                .or_default()
                .push(parameter);
        }
        Self(by_kept)
    }

    /// The parameter that is stored as `name`: the one whose name ends like it the longest, and has
    /// the most other components of it. `None` if there is none, or several that metadata describe
    /// differently.
    pub(super) fn find(&self, name: &str) -> Option<&'p TorchaoParameter> {
        let alike = self.0.get(&kept(name))?;
        if alike.len() > MAX_ALIKE {
            return None;
        }
        let rated = || alike.iter().map(|&one| (likeness(&one.name, name), one));
        let best = rated().map(|(rating, _)| rating).max()?;
        let mut found = rated().filter(|(rating, _)| *rating == best);
        let (_, one) = found.next().filter(|_| best.0 >= LEAST_ENDING)?;
        let is_same = found.all(|(_, other)| other.description == one.description);
        is_same.then_some(one)
    }
}

/// How many components both names end with, and how many more of one the other has anywhere.
fn likeness(one: &str, other: &str) -> (usize, usize) {
    let both = one.rsplit('.').zip(other.rsplit('.'));
    let ending = both.take_while(|(a, b)| a == b).count();
    let mut rest: Vec<&str> = other.rsplit('.').skip(ending).collect();
    let found = one.rsplit('.').skip(ending).filter(|part| {
        let at = rest.iter().position(|other| other == part);
        at.map(|at| rest.swap_remove(at)).is_some()
    });
    (ending, found.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remember::torchao::description::TorchaoDescription;

    fn parameter(name: &str, class: &str) -> TorchaoParameter {
        TorchaoParameter {
            name: name.to_owned(),
            description: TorchaoDescription {
                class: class.to_owned(),
                data: serde_json::Map::new(),
                parts: Vec::new(),
            }
            .into(),
        }
    }

    #[test]
    fn names_that_end_alike() {
        let lost = [
            parameter("model.language_model.layers.0.self_attn.q_proj.weight", "A"),
            parameter("model.vision_tower.encoder.layers.0.self_attn.q_proj.weight", "B"),
            parameter("model.layers.1.mlp.experts.down_proj", "C"),
            parameter("model.a.layers.2.q_proj.weight", "D"),
            parameter("model.b.layers.2.q_proj.weight", "D"),
            parameter("model.a.layers.3.q_proj.weight", "D"),
            parameter("model.b.layers.3.q_proj.weight", "E"),
        ];
        let lost = LostParameters::new(lost.iter());
        let class = |name: &str| lost.find(name).map(|found| found.description.class.clone());
        for (name, want) in [
            ("language_model.model.layers.0.self_attn.q_proj.weight", Some("A")),
            ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", Some("B")),
            ("model.layers.1.block_sparse_moe.experts.down_proj", Some("C")),
            ("layers.2.q_proj.weight", Some("D")),
            ("layers.3.q_proj.weight", None),
            ("model.layers.4.q_proj.weight", None),
            ("model.layers.0.self_attn.k_proj.weight", None),
            ("model.layers.1.mlp.other.down_proj", None),
        ] {
            assert_eq!(class(name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn too_many_that_are_alike() {
        let lost: Vec<_> = (0..=MAX_ALIKE)
            .map(|i| parameter(&format!("a{i}.q.weight"), "A"))
            .collect();
        assert!(
            LostParameters::new(lost[1..].iter())
                .find("q.weight")
                .is_some()
        );
        assert!(LostParameters::new(lost.iter()).find("q.weight").is_none());
    }
}
