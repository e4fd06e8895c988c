//! What the tables of towers are made of.

use serde_json::{Map, Value};

use super::{SETTINGS, VISION, add_text_size};
use crate::Result;
use crate::config::TEXT_CONFIGS;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;
use crate::remember::Group;

/// A tower of images or sounds.
pub(in crate::families) struct Tower {
    /// Its tensors and settings. Its classes are those of the whole models. What is implied holds
    /// where a config is silent, too.
    pub class: ModelClass,
    /// Field of its config in that of the whole model.
    pub config: &'static str,
    /// Whether llama.cpp takes the two projections of feed-forward layers for each other if they are
    /// square, as some old files have them.
    pub swaps_square: bool,
    /// Fields of the whole model that the table has among those of the tower's config.
    pub of_model: &'static [OfModel],
    /// Fields of the processor that the table has among those of the tower's config.
    pub of_processor: &'static [&'static str],
    /// Fields of the whole model, each with what its class has where it is silent, and with what
    /// the projector takes for granted.
    pub expected: &'static [(&'static str, Default, Default)],
    /// Adds to the fields of the tower's config what follows from them, and what other parts of the
    /// config say.
    pub complete: fn(&mut Fields, &TowerConfig<'_>) -> Result<()>,
    /// What stands in front of a number in names of tensors that is a position in the list of
    /// layers in a field; GGUF has the layer there.
    pub listed: Option<(&'static str, &'static str)>,
    /// The whole models that it comes back as, with a language model.
    pub wholes: &'static [Whole],
    /// Sets, of a tower that comes from GGUF, what other fields say.
    pub restore: fn(&mut WholeConfig) -> Result<()>,
    /// Tensors that llama.cpp has in one type, whatever the model's: whole names, or those of rules that
    /// have no end.
    pub types: &'static [(&'static str, TowerType)],
    /// The token whose row of the embedding the tower has, too.
    pub token: Option<&'static str>,
    /// What llama.cpp computes otherwise, whatever the file says.
    pub note: Option<&'static str>,
    /// Why no directory comes back; empty: one does, or its language model is no class here.
    pub one_way: &'static str,
    /// Means and deviations of colours where no processor says them.
    pub colours: Option<[[f32; 3]; 2]>,
    /// What names of layers begin with of which the last is left out.
    pub unread_layer: Option<&'static str>,
    /// The tower of sounds that stands in the same file, if the model has one.
    pub sounds: Option<&'static Tower>,
    /// A tensor that GGUF alone has, and what makes it.
    pub added: Option<AddedTensor>,
    /// Tensors of transformers that nothing reads, and GGUF does not have. They come back as zeros.
    pub unread: &'static [(&'static str, &'static [Dim])],
}

impl Tower {
    /// Whether it is a tower of images.
    pub(super) fn is_of_images(&self) -> bool {
        self.class
            .settings()
            .any(|setting| setting.key == SETTINGS[0].key)
    }
}

/// A field of the whole model that is one of the tower in the table.
pub(in crate::families) struct OfModel {
    /// Its name in the table.
    pub name: &'static str,
    /// Its name in the config of the whole model.
    pub field: &'static str,
    /// What the class has where its config is silent.
    pub default: Default,
}

/// A class of whole models: what its directory has beside what the language model and the tower
/// have.
pub(in crate::families) struct Whole {
    /// llama.cpp's name of the language model; empty: any.
    pub text: &'static str,
    pub class: &'static str,
    pub model_type: &'static str,
    /// `model_type` of the config of the language model; `None`: that of its own class.
    pub text_type: Option<&'static str>,
    /// What names of tensors of the language model begin with in place of `model.`.
    pub inner: &'static str,
    /// Fields of the numbers of tokens, each with the text of the token.
    pub tokens: &'static [(&'static str, &'static str)],
    /// Fields of the processor that all models of the class have.
    pub processor: &'static [(&'static str, Default)],
}

/// The config of a whole model that comes from GGUF, while it is made.
pub(in crate::families) struct WholeConfig {
    /// The fields beside the nested configs.
    pub root: Map<String, Value>,
    /// The fields of the language model.
    pub text: Map<String, Value>,
    /// The fields of the tower, under the names of the table. Those that no config has are not
    /// written.
    pub fields: Fields,
    /// The fields of the tower that a config has besides those of the table.
    pub vision: Map<String, Value>,
    /// How images become pixels.
    pub processor: Map<String, Value>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// Field of the name of the nested config of the language model, where that is another than usual.
pub(super) const TEXT_FIELD: &str = "text_field";

/// The same where its fields stand beside that of the tower.
pub(super) const FLAT: &str = "";

/// The row of the embedding that some towers have, too.
pub(super) const TOKEN_ROW: &str = "v.token_embd.img_break";

/// The type of a tensor of a tower that does not follow the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum TowerType {
    F16,
    F32,
    /// Filters, as those of patches: F16 in a model of F16, and else F32.
    Filter,
}

/// The configs of a multimodal model, beside that of its tower.
pub(in crate::families) struct TowerConfig<'a> {
    /// `config.json`.
    pub root: &'a Map<String, Value>,
    /// How images become pixels.
    pub processor: &'a Map<String, Value>,
}

impl TowerConfig<'_> {
    /// The field `name` of the language model.
    pub(super) fn text(&self, name: &str) -> Option<&Value> {
        let mut nested = TEXT_CONFIGS.iter().filter_map(|key| self.root.get(*key));
        let nested = nested.find_map(|text| text.get(name));
        nested.or_else(|| self.root.get(name))
    }
}

/// Name of a tensor, and what makes it of the sizes.
pub(in crate::families) type AddedTensor = (&'static str, fn(&Dims) -> Group<'static>);

/// A class without anything in which towers differ.
pub(super) const PLAIN: ModelClass = ModelClass {
    gguf: "clip",
    traits: Traits {
        is_tower: true,
        sign: Sign::Never,
        // transformers has it in some versions, and not in others.
        prefix: Some("model."),
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

pub(super) const PLAIN_TOWER: Tower = Tower {
    class: PLAIN,
    config: VISION,
    swaps_square: false,
    of_model: &[],
    of_processor: &[],
    expected: &[],
    complete: add_text_size,
    listed: None,
    wholes: &[],
    restore: |_| Ok(()),
    types: &[],
    token: None,
    note: None,
    one_way: "",
    colours: None,
    unread_layer: None,
    sounds: None,
    added: None,
    unread: &[],
};
