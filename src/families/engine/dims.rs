//! The sizes of a model, and the shapes that follow from them.

mod experts;

use self::experts::check_experts;
use super::fields::{
    EXPERTS, Fields, HEADS, HIDDEN, INNER, KV_HEADS, LABELS, LAYER_KINDS, LAYERS, PREDICTION, wrong,
};
use crate::Result;

/// A dimension of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dim {
    /// `hidden_size`
    Hidden,
    /// `intermediate_size`
    Inner,
    /// `moe_intermediate_size`, or `intermediate_size` where a class has no other
    ExpertInner,
    /// `shared_expert_intermediate_size`
    SharedInner,
    /// `vocab_size`
    Vocab,
    /// `num_attention_heads` × `head_dim`
    Queries,
    /// `num_key_value_heads` × `head_dim`
    Keys,
    /// `head_dim`
    Head,
    /// Twice `intermediate_size`
    TwoInner,
    /// `num_attention_heads`
    Heads,
    /// Number of experts
    Experts,
    /// `num_hidden_layers`
    Layers,
    One,
    /// The field of this name
    Field(&'static str),
    /// Number of names in `id2label`
    Labels,
    /// `max_position_embeddings` without the positions up to that of the padding token
    Positions,
    Sum(&'static [Dim]),
    Product(&'static [Dim]),
    /// The first divided by the second, if it is a multiple of it
    Quotient(&'static [Dim; 2]),
}

/// The sizes of a model as its config states them.
#[derive(Debug, Clone)]
pub(crate) struct Dims {
    pub layers: usize,
    /// Layers behind these, which predict further tokens.
    pub prediction: usize,
    /// The kinds of each of these.
    pub prediction_kinds: &'static [&'static str],
    pub hidden: usize,
    pub vocab: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head: usize,
    /// Dimensions of a head that rotate, of classes whose tensors depend on it.
    pub rotating: Option<usize>,
    inner: Option<usize>,
    expert_inner: Option<usize>,
    shared_inner: Option<usize>,
    pub experts: Option<usize>,
    /// Layers in front of the first one with experts.
    dense: usize,
    /// How many layers there are from one with experts to the next, and which is the first of them.
    pub experts_every: (usize, usize),
    /// The sizes of layers, of classes where they differ.
    pub layer_sizes: Vec<OwnSizes>,
    /// All fields of the config.
    fields: Fields,
}

/// Which layers have a weight. Those that it does not name must not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    All,
    Optional,
    /// Layers without experts.
    Dense,
    /// Layers with experts.
    Sparse,
    /// Layers with experts, if a field of the config is above 0.
    SparseIf(&'static str),
    /// All, if the config has a field.
    With(&'static str),
    /// All, unless the config has a field.
    Without(&'static str),
    /// All, if a field of the config is above 0.
    Above0(&'static str),
    /// All, unless a flag of the config is true.
    Unless(&'static str),
    /// All, if a flag of the config is true. Coming back, the flag is true if the first layer has
    /// the weight.
    If(&'static str),
    /// Layers that `layer_types` calls so.
    Kind(&'static str),
    /// Layers that the list in a field calls so, and those behind it; all without the list.
    KindIn(&'static str, &'static str),
    /// Layers behind the last one, which predict further tokens.
    Prediction,
    /// Layers that do not use the keys of an earlier one. The others may have it.
    OwnKeys,
    /// Layers that do not use the values of an earlier one, and whose keys are not their values.
    OwnValues,
    /// All but the first.
    AllButFirst,
    /// The first.
    First,
}

/// The sizes of a layer, where they are not those of the model.
#[derive(Debug, Clone)]
pub(crate) struct OwnSizes {
    /// Length of a head.
    pub head: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of the feed-forward layer; `None`: that of the model.
    pub inner: Option<usize>,
    /// Whether it has keys; `None`: it may, and nobody reads them.
    pub keys: Option<bool>,
    /// Whether it has values of its own; `None`: it may, and nobody reads them.
    pub values: Option<bool>,
}

/// Fields of the number of layers in front of the first one with experts.
const DENSE: &[&str] = &["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"];

/// Field of the number of experts of each layer, in towers where these differ.
pub(crate) const EXPERTS_BY_LAYER: &str = "experts_by_layer";

/// Period and first layer of which no layer is one: the first is in no period.
pub(crate) const NO_LAYER: (usize, usize) = (1, 1);

/// Most layers of a model.
pub(crate) const MOST_LAYERS: u32 = 1 << 14;

/// Fails if `fields` state more layers than any model has: lists have a value for each.
pub(crate) fn check_layers(fields: &Fields) -> Result<()> {
    match fields.count(LAYERS)?.filter(|layers| *layers > MOST_LAYERS) {
        None => Ok(()),
        Some(layers) => Err(wrong(LAYERS[0], format!("{layers} layers"))),
    }
}

/// The layer that the tensor `name` of GGUF is of.
pub(crate) fn layer_of(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("blk.")?;
    rest.split('.').next()?.parse().ok()
}

impl Dims {
    /// # Errors
    /// `Parse` that names a field which is missing, or contradicts another.
    pub(crate) fn new(fields: &Fields) -> Result<Self> {
        let size = |names: &[&str]| -> Result<Option<usize>> {
            match fields.count(names)? {
                Some(0) => Err(wrong(names[0], "it is 0")),
                n => Ok(n.map(|n| n as usize)),
            }
        };
        let need = |names: &[&str]| size(names)?.ok_or_else(|| wrong(names[0], "it is missing"));
        let (hidden, heads) = (need(HIDDEN)?, need(HEADS)?);
        let kv_heads = size(KV_HEADS)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let what = format!("{kv_heads} does not divide num_attention_heads, {heads}");
            return Err(wrong(KV_HEADS[0], what));
        }
        // Where keys and values are latent, `head_dim` is the part that rotates.
        let head = match size(&["head_dim", "qk_rope_head_dim", "d_kv"])? {
            Some(head) => head,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let what = format!("{heads} does not divide hidden_size, {hidden}");
                return Err(wrong(HEADS[0], what));
            }
        };
        let layers = need(LAYERS)?;
        check_layers(fields)?;
        let experts = fields.count(EXPERTS)?.map(|n| n as usize);
        let experts = experts.filter(|n| *n > 0);
        let dense = match (fields.count(DENSE)?, experts) {
            (_, None) => layers,
            (dense, Some(_)) => dense.unwrap_or(0) as usize,
        };
        if dense > layers {
            let what = format!("{dense} of {layers} layers");
            return Err(wrong(DENSE[0], what));
        }
        if let Some(experts) = experts {
            check_experts(fields, experts)?;
        }
        if let (Some(head), Some(rotary)) =
            (fields.count(&["head_dim"])?, fields.count(&["qk_rope_head_dim"])?)
            && head != rotary
        {
            let what =
                format!("it is {head}, and qk_rope_head_dim, the part that rotates, {rotary}");
            return Err(wrong("head_dim", what));
        }
        if let Some(rotary) = fields.count(&["rotary_dim"])?
            && (rotary == 0 || rotary as usize > head)
        {
            let what = format!("it is {rotary}, and a head has {head} dimensions");
            return Err(wrong("rotary_dim", what));
        }
        let prediction = fields.count(&[PREDICTION])?.unwrap_or(0);
        if prediction > MOST_LAYERS {
            return Err(wrong(PREDICTION, format!("{prediction} layers")));
        }
        Ok(Self {
            layers,
            prediction: prediction as usize,
            prediction_kinds: &[],
            hidden,
            vocab: need(&["vocab_size"])?,
            heads,
            kv_heads,
            head,
            rotating: None,
            inner: size(INNER)?,
            expert_inner: size(&["moe_intermediate_size"])?,
            shared_inner: size(&["shared_expert_intermediate_size"])?,
            experts,
            dense,
            experts_every: (1, 0),
            layer_sizes: vec![],
            fields: fields.clone(),
        })
    }

    /// The sizes of layer `layer`, where layers differ.
    fn sizes_of(&self, layer: Option<usize>) -> Option<&OwnSizes> {
        self.layer_sizes.get(layer?)
    }

    /// Length of a head of layer `layer`.
    fn head_of(&self, layer: Option<usize>) -> usize {
        self.sizes_of(layer).map_or(self.head, |sizes| sizes.head)
    }

    /// Heads of queries of layer `layer`.
    pub(crate) fn heads_of(&self, layer: Option<usize>) -> usize {
        self.sizes_of(layer).map_or(self.heads, |sizes| sizes.heads)
    }

    /// Heads of keys and values of layer `layer`.
    pub(crate) fn kv_heads_of(&self, layer: Option<usize>) -> usize {
        self.sizes_of(layer)
            .map_or(self.kv_heads, |sizes| sizes.kv_heads)
    }

    /// Width of the feed-forward layer of layer `layer`.
    pub(crate) fn inner_of(&self, layer: Option<usize>) -> Option<usize> {
        let own = self.sizes_of(layer).and_then(|sizes| sizes.inner);
        own.or(self.inner)
    }

    /// Length of a head of the last layer, which sees the whole text.
    pub(crate) fn full_head(&self) -> usize {
        self.layer_sizes
            .last()
            .map_or(self.head, |sizes| sizes.head)
    }

    /// The size of `dim` in layer `layer`; `None`: the config does not say it.
    pub(crate) fn size(&self, dim: Dim, layer: Option<usize>) -> Option<usize> {
        let all = |dims: &[Dim], start: usize, join: fn(usize, usize) -> usize| {
            let mut sizes = dims.iter().map(|dim| self.size(*dim, layer));
            sizes.try_fold(start, |all, size| Some(join(all, size?)))
        };
        match dim {
            Dim::Hidden => Some(self.hidden),
            Dim::Inner => self.inner_of(layer),
            Dim::ExpertInner => self.expert_inner.or(self.inner),
            Dim::SharedInner => self.shared_inner,
            Dim::Vocab => Some(self.vocab),
            Dim::Queries => Some(self.heads_of(layer).saturating_mul(self.head_of(layer))),
            Dim::Keys => {
                let head = self.head_of(layer);
                Some(self.kv_heads_of(layer).saturating_mul(head))
            }
            Dim::Head => Some(self.head_of(layer)),
            Dim::Layers => Some(self.layers),
            Dim::Experts => self.experts_of(layer),
            Dim::TwoInner => Some(self.inner_of(layer)?.saturating_mul(2)),
            Dim::Heads => Some(self.heads_of(layer)),
            Dim::One => Some(1),
            Dim::Field(name) => Some(self.fields.count(&[name]).ok()?? as usize),
            Dim::Labels => self.fields.0.get(LABELS)?.as_object().map(|all| all.len()),
            Dim::Positions => {
                let all = self.fields.count(&["max_position_embeddings"]).ok()??;
                (all as usize).checked_sub(self.unused_positions().ok()?)
            }
            Dim::Sum(dims) => all(dims, 0, usize::saturating_add),
            Dim::Product(dims) => all(dims, 1, usize::saturating_mul),
            Dim::Quotient([whole, part]) => {
                let (whole, part) = (self.size(*whole, layer)?, self.size(*part, layer)?);
                let is_multiple = part > 0 && whole.is_multiple_of(part);
                is_multiple.then(|| whole / part)
            }
        }
    }

    /// The fields that prescribe `dim`.
    pub(crate) fn fields_of(&self, dim: Dim) -> String {
        let all = |dims: &[Dim], sign: &str| {
            let names: Vec<_> = dims.iter().map(|dim| self.fields_of(*dim)).collect();
            names.join(sign)
        };
        let text = match dim {
            Dim::Hidden => "hidden_size",
            Dim::Inner => "intermediate_size",
            Dim::ExpertInner if self.expert_inner.is_some() => "moe_intermediate_size",
            Dim::ExpertInner => "intermediate_size",
            Dim::SharedInner => "shared_expert_intermediate_size",
            Dim::Vocab => "vocab_size",
            Dim::Queries => "num_attention_heads × head_dim",
            Dim::Keys => "num_key_value_heads × head_dim",
            Dim::Head => "head_dim",
            Dim::Experts => "num_experts",
            Dim::Layers => "num_hidden_layers",
            Dim::TwoInner => "2 × intermediate_size",
            Dim::Heads => "num_attention_heads",
            Dim::One => "1",
            Dim::Field(name) => name,
            Dim::Labels => "the number of names in id2label",
            Dim::Positions => "max_position_embeddings - pad_token_id - 1",
            Dim::Sum(dims) => return format!("({})", all(dims, " + ")),
            Dim::Product(dims) => return all(dims, " × "),
            Dim::Quotient(dims) => return all(dims, " / "),
        };
        text.to_owned()
    }

    /// The size of `dim`.
    ///
    /// # Errors
    /// `Parse` that names a field which is missing, 0, or no multiple of another.
    pub(crate) fn need_size(&self, dim: Dim) -> Result<usize> {
        let all = |dims: &[Dim], start: usize, join: fn(usize, usize) -> usize| -> Result<usize> {
            let mut sizes = dims.iter().map(|dim| self.need_size(*dim));
            sizes.try_fold(start, |all, size| Ok(join(all, size?)))
        };
        Ok(match dim {
            Dim::Field(name) => self.need(name)?,
            Dim::Sum(dims) => all(dims, 0, usize::saturating_add)?,
            Dim::Product(dims) => all(dims, 1, usize::saturating_mul)?,
            Dim::Quotient([whole, part]) => {
                let (size, by) = (self.need_size(*whole)?, self.need_size(*part)?);
                if !size.is_multiple_of(by) {
                    let what = format!("{} does not divide it", self.fields_of(*part));
                    return Err(wrong(&self.fields_of(*whole), what));
                }
                size / by
            }
            _ => {
                let missing = || wrong(&self.fields_of(dim), "it is missing");
                self.size(dim, None).ok_or_else(missing)?
            }
        })
    }

    /// The value of the field `name` as a size.
    ///
    /// # Errors
    /// `Parse` if it is missing, 0 or no size.
    pub(crate) fn need(&self, name: &str) -> Result<usize> {
        match self.fields.need(&[name])? {
            0 => Err(wrong(name, "it is 0")),
            size => Ok(size as usize),
        }
    }

    /// The number in the field `name`; 1 without it.
    ///
    /// # Errors
    /// `Parse` if it is no number.
    pub(crate) fn factor(&self, name: &str) -> Result<f32> {
        Ok(self.fields.number(&[name])?.unwrap_or(1.0) as f32)
    }

    /// Positions of a model whose texts begin behind the position of the padding token: those that
    /// no text has.
    ///
    /// # Errors
    /// `Parse` if the config has no padding token.
    pub(crate) fn unused_positions(&self) -> Result<usize> {
        let padding = self.fields.need(&["pad_token_id"])? as usize;
        Ok(padding.saturating_add(1))
    }

    /// What each layer is, as `layer_types` says.
    pub(crate) fn kinds(&self) -> Option<impl Iterator<Item = &str>> {
        let kinds = self.fields.0.get(LAYER_KINDS)?.as_array()?.iter();
        Some(kinds.map(|kind| kind.as_str().unwrap_or_default()))
    }

    /// Which layers are of `kind`, with those that predict further tokens.
    pub(crate) fn layers_of(&self, kind: &str) -> Option<impl Iterator<Item = bool>> {
        let behind = self.prediction_kinds.contains(&kind);
        let behind = std::iter::repeat_n(behind, self.prediction);
        Some(self.kinds()?.map(move |found| found == kind).chain(behind))
    }

    /// Whether a layer is of `kind`.
    pub(crate) fn has_kind(&self, kind: &str) -> bool {
        self.layers_of(kind)
            .is_some_and(|mut all| all.any(|is_so| is_so))
    }

    /// Number of experts of layer `layer`.
    pub(crate) fn experts_of(&self, layer: Option<usize>) -> Option<usize> {
        let own = || self.fields.0.get(EXPERTS_BY_LAYER)?.get(layer?)?.as_u64();
        own().map_or(self.experts, |experts| usize::try_from(experts).ok())
    }

    /// Whether layer `layer` has experts.
    fn has_experts(&self, layer: usize) -> bool {
        let (every, first) = self.experts_every;
        layer >= self.dense && layer % every == first
    }

    /// Whether layer `layer` has a weight of which `need` says which layers have it; `None`: it
    /// may.
    pub(crate) fn has(&self, need: Need, layer: usize) -> Option<bool> {
        let has_field = |name: &str| self.fields.get(&[name]).is_some();
        let is_above_0 = |name: &str| self.fields.count(&[name]).is_ok_and(|n| n > Some(0));
        match need {
            Need::All => Some(true),
            Need::Optional => None,
            Need::Dense => Some(!self.has_experts(layer)),
            Need::Sparse => Some(self.has_experts(layer)),
            Need::SparseIf(field) => Some(self.has_experts(layer) && is_above_0(field)),
            Need::With(field) => Some(has_field(field)),
            Need::Without(field) => Some(!has_field(field)),
            Need::Above0(field) => Some(is_above_0(field)),
            Need::OwnKeys => self.sizes_of(Some(layer))?.keys,
            Need::OwnValues => self.sizes_of(Some(layer))?.values,
            Need::If(field) => Some(self.fields.flag(field)),
            Need::Unless(field) => Some(!self.fields.flag(field)),
            Need::Prediction => Some(layer >= self.layers),
            Need::AllButFirst => Some(layer > 0),
            Need::First => Some(layer == 0),
            Need::KindIn(field, kind) => {
                let found = self.fields.0.get(field).and_then(|list| list.get(layer));
                Some(found.is_none_or(|found| found == kind))
            }
            Need::Kind(kind) if layer >= self.layers => Some(self.prediction_kinds.contains(&kind)),
            Need::Kind(kind) => {
                let kinds = self.fields.0.get(LAYER_KINDS);
                Some(kinds.and_then(|kinds| kinds.get(layer)?.as_str()) == Some(kind))
            }
        }
    }
}
