//! What the tables of architectures are made of.

pub(crate) mod mlx;
mod model;
mod prediction;
mod rope;
mod rules;
mod settings;
mod transforms;

use std::collections::HashMap;

use serde_json::{Map, Value};

use self::mlx::MlxClass;
pub(crate) use self::model::Model;
pub(crate) use self::prediction::{Prediction, PredictionNames};
pub(crate) use self::rope::{OwnScaling, RopeTraits};
pub(crate) use self::rules::{experts, heads, in_layers, only, optional, parameter, same};
pub(crate) use self::settings::{
    ConfigFields, Kind, OwnSetting, Setting, StatedKey, count, number, own, required, setting,
};
pub(crate) use self::transforms::{OwnTransform, Parts, Then, Tiling, Transform, Turn};
use super::dims::{Dim, Dims, Need, OwnSizes};
use super::fields::{Fields, is_same, wrong};
use super::names::{Place, fill, find_one};
use crate::Result;
use crate::remember::{Group, ResolvedItem};
use crate::tokenizer::TokenizerRules;

/// A class of models: how transformers and llama.cpp name the same thing.
#[derive(Clone, Copy)]
pub(crate) struct ModelClass {
    /// llama.cpp's name, the value of `general.architecture`.
    pub gguf: &'static str,
    /// Classes of transformers that are read as this one. The first is written.
    pub classes: &'static [&'static str],
    /// `model_type` of the configs.
    pub model_type: &'static str,
    /// Fields that the class has where a config is silent.
    pub defaults: &'static [(&'static str, Default)],
    /// What llama.cpp takes for granted of the class. A config that says something else is refused,
    /// and one from GGUF says it. What few configs say is [`Traits::also_implied`].
    pub implied: &'static [(&'static str, Default)],
    /// Fields that the class calls otherwise than others: the usual name, and its own, which a config
    /// from GGUF gets. To GGUF, the lists of names in `fields/names.rs` have it.
    pub own_fields: &'static [(&'static str, &'static str)],
    /// Fields that are not in GGUF, each with the one that it is equal to.
    pub equal_fields: &'static [(&'static str, &'static str)],
    /// Projections that all have a bias or all have none, by their names in GGUF, and the field
    /// that says so. Without a field they always have one.
    pub biases: &'static [(&'static str, &'static [&'static str])],
    pub tensors: &'static [&'static [TensorRule]],
    /// Tensors that some checkpoints have in place of others, under the same names in GGUF. They
    /// are not written.
    pub other_tensors: &'static [TensorRule],
    /// The architecture's own settings, behind those that all have. One of the same key takes the
    /// place of theirs.
    pub settings: &'static [&'static [Setting]],
    pub traits: Traits,
    /// What the converter has of its tokenizers alone.
    pub tokenizer: &'static TokenizerRules,
    /// What mlx-lm has of it; `None`: no such class.
    pub mlx: Option<&'static MlxClass>,
}

impl ModelClass {
    /// A class of which nothing is known.
    pub(crate) const PLAIN: Self = Self {
        gguf: "",
        classes: &[],
        model_type: "",
        defaults: &[],
        implied: &[],
        own_fields: &[],
        equal_fields: &[],
        biases: &[],
        tensors: &[],
        other_tensors: &[],
        settings: &[],
        traits: Traits::PLAIN,
        tokenizer: &TokenizerRules::PLAIN,
        mlx: None,
    };

    /// The class with an output that is no embedding, although all published models tie the two.
    pub(crate) fn untied(&self) -> Self {
        let traits = Traits { ties_output: false, ..self.traits };
        Self { traits, ..*self }
    }

    /// The architecture's own settings.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &'static Setting> + use<> {
        self.settings.iter().flat_map(|settings| settings.iter())
    }

    /// What names of tensors of the model without its output begin with, which some files lack:
    /// the first part of the embedding's name. Empty if that is a name by itself.
    pub(crate) fn base_prefix(&self) -> String {
        let mut rules = self.tensors.iter().flat_map(|rules| rules.iter());
        let embedding = rules.find(|rule| rule.gguf == "token_embd");
        let parts = embedding.and_then(|rule| rule.hf.split_once('.'));
        parts.map_or_else(String::new, |(first, _)| format!("{first}."))
    }

    /// Whether rows of a tensor change by `transform`.
    pub(crate) fn has_transform(&self, transform: Transform) -> bool {
        let mut rules = self.tensors.iter().flat_map(|rules| rules.iter());
        rules.any(|rule| rule.transform == transform)
    }

    /// Whether one of these settings is of `kind`.
    pub(crate) fn has_setting(&self, kind: Kind) -> bool {
        self.settings().any(|setting| setting.kind == kind)
    }
}

/// How a class differs from others in ways that no rule for a tensor and no setting expresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub head_dim: HeadDim,
    /// Values of norms are stored with 1 added.
    pub norms_plus_one: bool,
    /// Each layer has a norm before attention and one before the feed-forward layer, whose outputs
    /// only these read.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub has_pre_norms: bool,
    /// `lm_head` is left out of GGUF, because the class always ties it to the embedding.
    pub ties_output: bool,
    /// llama.cpp does not take the embedding for a missing `lm_head`.
    pub needs_output: bool,
    pub rope: RopeTraits,
    /// The embedding may have more rows than there are tokens, which GGUF does not get.
    pub cuts_embedding: bool,
    /// Every so many layers one sees the whole text, and the others a window of it. llama.cpp knows
    /// no other pattern.
    pub full_attention_every: Option<usize>,
    /// transformers 5 reads `is_causal`, and no layer of the class has a window of attention. In
    /// other classes both may differ.
    pub reads_causal: bool,
    /// What becomes of layers behind the last one, which predict further tokens.
    pub prediction: Prediction,
    /// What layers are unless `layer_types` says it: all of this kind, and every so many layers one
    /// of full attention.
    pub layer_kinds: Option<(&'static str, usize)>,
    /// Sizes of layers that differ.
    pub by_layer: Option<&'static ByLayer>,
    /// A token may go to the best groups of experts.
    pub has_expert_groups: bool,
    /// No layer has attention, and the config states no heads.
    pub is_recurrent: bool,
    /// Names of kinds of layers that mean others, each with the other.
    pub kind_names: &'static [(&'static str, &'static str)],
    /// Letters of the kinds of layers, of classes whose config has a text
    /// (`hybrid_override_pattern`) or `layers_block_type` in place of `layer_types`.
    pub layer_letters: &'static [(&'static str, char)],
    /// The kind that at least one layer must have.
    pub needs_kind: Option<&'static str>,
    /// A kind that no layer may have: a model of the class with such a layer has a row of its own.
    pub lacks_kind: Option<&'static str>,
    /// What names of tensors may begin with: models have it in some files, and not in others.
    pub prefix: Option<&'static str>,
    /// How many layers there are from one with experts to the next, and which is the first of them.
    pub experts_every: Option<Period>,
    /// Stacks of experts that quantized checkpoints store one by one, each with the projections
    /// that it has side by side, by their names in transformers.
    pub experts_apart: &'static [(&'static str, &'static [&'static str])],
    /// A field that is true, or above 0, in models of this class. Others of the same name in
    /// transformers are another class here.
    pub config_sign: Option<&'static str>,
    /// A field, and its value in models of this class. Others of the same name in transformers are
    /// another class here.
    pub config_value: Option<(&'static str, Default)>,
    /// `model_type` of the nested config, of classes of multimodal models whose language models are
    /// of several classes.
    pub nested_type: Option<&'static str>,
    /// What the names of tensors begin with that GGUF does not get.
    pub left_out: &'static [&'static str],
    /// As [`ModelClass::implied`], of fields that few configs have. They are not written from GGUF.
    pub also_implied: &'static [(&'static str, Default)],
    /// Windows of attention of the class in transformers that llama.cpp does not have. A note says
    /// so.
    pub lost_windows: LostWindows,
    /// The window of transformers where a config has no field for it, not even null.
    pub default_window: Option<u32>,
    /// Why scores of the classifier differ: what a note says of a GGUF file, and of a model that was
    /// one.
    pub other_scores: Option<[&'static str; 2]>,
    /// What the class has in transformers alone.
    pub laws: &'static [Law],
    /// Sets fields that others say in this class, of a config with its defaults.
    pub completes: &'static [fn(&mut Fields) -> Result<()>],
    /// Sets fields that the tensors of a GGUF file say.
    pub from_tensors: &'static [FromTensors],
    /// Sets fields that others say in this class, of a config that comes from GGUF.
    pub restores: &'static [Restore],
    /// Tables of integers.
    pub integers: &'static [IntegerTable],
    /// What becomes of tensors that no rule expresses.
    pub own_tensors: Option<&'static OwnTensors>,
    /// Tensors of layers that GGUF alone has.
    pub fills: &'static [Fill],
    /// It is the image tower of a multimodal model, and not its language model.
    pub is_tower: bool,
    /// The config that has most fields, inside of the config.
    pub nested: Option<&'static NestedConfig>,
    /// It is a draft of another model, the target, for speculative decoding: the tokenizer is that
    /// of the target, and so may be embedding and output.
    pub is_draft: bool,
    /// What tells this class from others of the same name in GGUF.
    pub sign: Sign,
}

/// A table of integers of layers, with its whole names on both sides.
#[derive(Debug)]
pub(crate) struct IntegerTable {
    pub gguf: &'static str,
    pub hf: &'static str,
    pub need: Need,
    /// Rows and columns.
    pub shape: [Dim; 2],
    /// Integers are below this.
    pub below: Dim,
    /// The name in transformers of a tensor of these layers that nothing reads, and GGUF does not get.
    pub unread: &'static str,
}

/// What becomes of tensors of transformers that no rule expresses.
#[derive(Debug)]
pub(crate) struct OwnTensors {
    /// Makes of those of a model fields, and tensors that have a rule.
    pub to_gguf: TakeTensors,
    /// Makes them of the fields of a config that comes from GGUF, and of tensors that have a rule.
    pub to_hf: MakeTensors,
    /// What keys begin with, without the architecture's name, that a file of layers that predict
    /// further tokens alone lacks; and those that one without tensors lacks.
    pub keys: [&'static [&'static str]; 2],
}

impl OwnTensors {
    /// Whether the key of a file of `architecture` is one that the file lacks, without tensors or with
    /// those of layers that predict further tokens alone.
    pub(crate) fn is_lacking(&self, key: &str, architecture: &str, has_tensors: bool) -> bool {
        let key = key.strip_prefix(architecture);
        let own = key
            .and_then(|key| key.strip_prefix('.'))
            .unwrap_or_default();
        self.keys[usize::from(!has_tensors)]
            .iter()
            .any(|start| own.starts_with(start))
    }
}

/// # Errors
/// `Parse` that names a tensor which is missing, or is none that llama.cpp could read.
pub(crate) type TakeTensors = for<'m> fn(&mut Fields, &mut Vec<ResolvedItem<'m>>) -> Result<()>;

/// # Errors
/// `Parse` that names a field which is missing.
pub(crate) type MakeTensors =
    for<'m> fn(&mut Map<String, Value>, &mut Vec<Group<'m>>) -> Result<()>;

/// A vector of each layer that GGUF alone has, and whose values are all one number.
#[derive(Debug)]
pub(crate) struct Fill {
    /// Its whole name.
    pub gguf: &'static str,
    pub len: Dim,
    /// The field that is the number; `None`: it is 1.
    pub field: Option<&'static str>,
}

/// Sets the fields of rope of a config that comes from GGUF, by the tensors of factors.
///
/// # Errors
/// `Parse` or `Unsupported` if no config says what they say.
pub(crate) type RestoreRope = fn(&mut Map<String, Value>, &[(String, Vec<f32>)]) -> Result<()>;

/// A config inside of the config, of the class's `model_type`.
#[derive(Debug)]
pub(crate) struct NestedConfig {
    pub key: &'static str,
    /// `model_type` of the outer one.
    pub model_type: &'static str,
    /// The fields of the outer one alone.
    pub outer: &'static [&'static str],
}

impl NestedConfig {
    /// The config whose fields of both are `config`.
    pub(crate) fn around(&self, config: Map<String, Value>) -> Map<String, Value> {
        let is_outer = |(name, _): &(String, Value)| self.outer.contains(&name.as_str());
        let (mut outer, inner): (Map<_, _>, Map<_, _>) = config.into_iter().partition(is_outer);
        outer.insert(self.key.to_owned(), Value::Object(inner));
        outer.insert("model_type".to_owned(), self.model_type.into());
        outer
    }
}

/// Sizes of layers that differ, and what follows for rope.
#[derive(Debug)]
pub(crate) struct ByLayer {
    /// The sizes of all layers of a model with these fields and sizes.
    pub sizes: fn(&Fields, &Dims) -> Result<Vec<OwnSizes>>,
    /// Sets rope where it has factors for heads of other lengths.
    pub restore_rope: Option<RestoreRope>,
}

/// Something that transformers computes of a model, and llama.cpp may not be able to.
///
/// Returns what a user should know if it computes nearly the same.
///
/// # Errors
/// `Parse` that names the field of which llama.cpp makes something else.
pub(crate) type Law = fn(&Model<'_>) -> Result<Option<String>>;

/// How many layers there are from one of a kind to the next, and which is the first of them.
///
/// # Errors
/// `Parse` that names the field which is missing or impossible.
pub(crate) type Period = fn(&Fields) -> Result<(usize, usize)>;

/// The shapes of all tensors of a GGUF file, by their names.
pub(crate) type TensorShapes<'a> = HashMap<&'a str, &'a [usize]>;

/// Sets fields of a config by the tensors of its GGUF file.
///
/// # Errors
/// `Parse` if no config says what the tensors are.
pub(crate) type FromTensors = fn(&mut Map<String, Value>, &TensorShapes<'_>) -> Result<()>;

/// Sets fields of a config that comes from GGUF.
///
/// # Errors
/// `Parse` or `Unsupported` if no config says what the others say.
pub(crate) type Restore = fn(&mut Map<String, Value>, &Dims) -> Result<()>;

/// Which layers have a window of attention in transformers, and none in llama.cpp, or none in
/// mlx-lm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LostWindows {
    /// None.
    Nowhere,
    /// All, unless `use_sliding_window` is false.
    Everywhere,
    /// If `use_sliding_window` is true, those that `layer_types` calls so, or all.
    Flagged,
    /// Those that `layer_types` calls so, or else those from the number in `max_window_layers` on,
    /// which is this by default.
    From(u32),
}

/// Whether GGUF states the size of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadDim {
    /// If the config does.
    AsConfig,
    /// Always.
    Stated,
    /// Never: it is hidden size / heads.
    Derived,
}

/// What in a GGUF file tells a class from others of the same architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Nothing: it is the class of all files that no other class takes.
    Rest,
    /// It has experts.
    Experts,
    /// The pre-tokenizer is this one.
    PreTokenizer(&'static str),
    /// A key, without the architecture's name, is this number, or true for 1.
    Key(&'static str, u64),
    /// It has a key, without the architecture's name.
    Has(&'static str),
    /// A key, without the architecture's name, is a list.
    List(&'static str),
    /// The kind of the tokenizer (`tokenizer.ggml.model`) is this one.
    Tokenizer(&'static str),
    /// It has a tensor.
    Tensor(&'static str),
    /// All of them.
    All(&'static [Sign]),
    /// Files of it look like those of another class, which is written for them.
    Never,
}

impl Traits {
    pub(crate) const PLAIN: Self = Self {
        head_dim: HeadDim::AsConfig,
        norms_plus_one: false,
        has_pre_norms: false,
        ties_output: false,
        needs_output: false,
        rope: RopeTraits::PLAIN,
        cuts_embedding: false,
        full_attention_every: None,
        reads_causal: false,
        prediction: Prediction::Unknown,
        layer_kinds: None,
        by_layer: None,
        has_expert_groups: false,
        is_recurrent: false,
        kind_names: &[],
        layer_letters: &[],
        needs_kind: None,
        lacks_kind: None,
        prefix: None,
        left_out: &[],
        experts_every: None,
        experts_apart: &[],
        config_sign: None,
        config_value: None,
        nested_type: None,
        also_implied: &[],
        lost_windows: LostWindows::Nowhere,
        default_window: None,
        other_scores: None,
        laws: &[],
        completes: &[],
        from_tensors: &[],
        restores: &[],
        integers: &[],
        own_tensors: None,
        fills: &[],
        is_tower: false,
        nested: None,
        is_draft: false,
        sign: Sign::Rest,
    };
}

/// The value of a field that a config leaves out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Default {
    Int(u64),
    /// A number below 0, without its sign.
    Minus(i64),
    Float(f64),
    Bool(bool),
    Text(&'static str),
    /// The field is not there, or null.
    Absent,
}

/// A tensor, or those of its name in all layers, without `.weight` or `.bias`, which both sides
/// have alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorRule {
    /// Name in GGUF; `{i}` is the layer.
    pub gguf: &'static str,
    /// Name in transformers; `{i}` is the layer, and `{e}` the expert of tensors that GGUF stacks.
    pub hf: &'static str,
    pub transform: Transform,
    /// The shape that the config prescribes for the weight, as transformers has it.
    pub shape: &'static [Dim],
    /// The same as GGUF has it, where its dimensions are others. Of stacks it is that of one
    /// expert.
    pub gguf_shape: Option<&'static [Dim]>,
    /// Whether the names are whole, and no `.weight` or `.bias` follows.
    pub is_whole_name: bool,
    /// Which layers have the weight.
    pub need: Need,
    /// Whether transformers has it in F32, whatever the model's type.
    pub keeps_f32: bool,
    /// Whether GGUF alone has it, as a copy of another tensor.
    pub is_copy: bool,
}

impl TensorRule {
    /// The parts of names for which `{e}` stands, of tensors that are joined.
    fn joined_names(&self) -> &'static [&'static str] {
        match self.transform {
            Transform::Joined(names) | Transform::Beside(names) => names,
            _ => &[],
        }
    }

    /// The numbers in `name`, if it is one of `pattern`, the rule's on one side.
    pub(crate) fn find(&self, pattern: &str, name: &str) -> Option<Place> {
        find_one(pattern, self.joined_names(), name)
    }

    /// The name in transformers at `place`.
    pub(crate) fn hf_name(&self, place: Place) -> String {
        let names = self.joined_names();
        let part = place.expert.and_then(|number| names.get(number));
        match part {
            Some(part) => fill(&self.hf.replace("{e}", part), place),
            None => fill(self.hf, place),
        }
    }

    /// Whether it is filters of one channel each, as convolutions have them.
    pub(crate) fn is_filter(&self) -> bool {
        matches!(self.shape, [channels, Dim::One, _] if *channels != Dim::One)
    }

    /// The dimension of length 1 that transformers has, and GGUF does not: that of the channels of
    /// filters `[n, 1, k]`.
    pub(crate) fn dim_of_one(&self) -> Option<usize> {
        let is_shorter = self
            .gguf_shape
            .is_some_and(|dims| dims.len() + 1 == self.shape.len());
        let at = self.shape.iter().position(|dim| *dim == Dim::One);
        at.filter(|_| is_shorter)
    }
}

impl From<&Default> for Value {
    fn from(value: &Default) -> Self {
        match *value {
            Default::Int(n) => n.into(),
            Default::Minus(n) => (-n).into(),
            Default::Float(x) => x.into(),
            Default::Bool(flag) => flag.into(),
            Default::Text(text) => text.into(),
            Default::Absent => Self::Null,
        }
    }
}

impl Fields {
    /// Fails if a field says something else than `owner` takes for granted.
    pub(crate) fn check_values(&self, implied: &[(&str, Default)], owner: &str) -> Result<()> {
        for (field, value) in implied {
            let expected = Value::from(value);
            if let Some(found) = self
                .0
                .get(*field)
                .filter(|found| !is_same(found, &expected))
            {
                let what = format!("it is {found}, and {owner} has {expected}");
                return Err(wrong(field, what));
            }
        }
        Ok(())
    }
}
