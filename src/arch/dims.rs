//! The sizes of a model, and the shapes that follow from them.

use super::fields::{Fields, wrong};
use crate::Result;

/// A dimension of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dim {
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
    One,
}

/// The sizes of a model as its config states them.
#[derive(Debug, Clone)]
pub(super) struct Dims {
    pub layers: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head: usize,
    inner: Option<usize>,
    expert_inner: Option<usize>,
    shared_inner: Option<usize>,
    pub experts: Option<usize>,
}

/// Fields of the number of layers.
pub(super) const LAYERS: &[&str] = &["num_hidden_layers", "n_layers", "n_layer", "num_layers"];
/// Fields of the length of a hidden state.
pub(super) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "dim"];
/// Fields of the number of heads.
pub(super) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads"];
/// Fields of the number of heads of keys and values.
pub(super) const KV_HEADS: &[&str] = &["num_key_value_heads", "n_kv_heads"];
/// Fields of the number of experts.
pub(super) const EXPERTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];
/// Fields of the width of a feed-forward layer.
pub(super) const INNER: &[&str] = &["intermediate_size", "n_inner", "hidden_dim"];

/// Most layers of a model.
const MOST_LAYERS: u32 = 1 << 14;

impl Dims {
    /// # Errors
    /// `Parse` that names a field which is missing, or contradicts another.
    pub(super) fn new(fields: &Fields) -> Result<Self> {
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
        let head = match size(&["head_dim"])? {
            Some(head) => head,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let what = format!("{heads} does not divide hidden_size, {hidden}");
                return Err(wrong(HEADS[0], what));
            }
        };
        let layers = need(LAYERS)?;
        if layers > MOST_LAYERS as usize {
            return Err(wrong(LAYERS[0], format!("{layers} layers")));
        }
        Ok(Self {
            layers,
            hidden,
            vocab: need(&["vocab_size"])?,
            heads,
            kv_heads,
            head,
            inner: size(INNER)?,
            expert_inner: size(&["moe_intermediate_size"])?,
            shared_inner: size(&["shared_expert_intermediate_size"])?,
            experts: fields
                .count(EXPERTS)?
                .map(|n| n as usize)
                .filter(|n| *n > 0),
        })
    }

    /// The size of `dim`, and the fields that prescribe it; `None`: none does.
    pub(super) fn size(&self, dim: Dim) -> Option<(usize, &'static str)> {
        let of = |size: usize, field| Some((size, field));
        match dim {
            Dim::Hidden => of(self.hidden, "hidden_size"),
            Dim::Inner => of(self.inner?, "intermediate_size"),
            Dim::ExpertInner => match self.expert_inner {
                Some(inner) => of(inner, "moe_intermediate_size"),
                None => of(self.inner?, "intermediate_size"),
            },
            Dim::SharedInner => of(self.shared_inner?, "shared_expert_intermediate_size"),
            Dim::Vocab => of(self.vocab, "vocab_size"),
            Dim::Queries => {
                let size = self.heads.saturating_mul(self.head);
                of(size, "num_attention_heads × head_dim")
            }
            Dim::Keys => {
                let size = self.kv_heads.saturating_mul(self.head);
                of(size, "num_key_value_heads × head_dim")
            }
            Dim::Head => of(self.head, "head_dim"),
            Dim::Experts => of(self.experts?, "num_experts"),
            Dim::TwoInner => of(self.inner?.saturating_mul(2), "2 × intermediate_size"),
            Dim::Heads => of(self.heads, "num_attention_heads"),
            Dim::One => of(1, "1"),
        }
    }
}
