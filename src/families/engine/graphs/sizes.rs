//! Sizes of tensors and conditions of tables, and what they are in a file.

use std::collections::HashMap;
use std::fmt::{self, Display};

use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// A size, as an expression over the keys of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Size {
    N(u64),
    /// Number of tokens.
    Vocab,
    /// Layers without those that predict further tokens.
    Layers,
    /// The key without the architecture's name, or 0. Of a list, the value of the layer.
    Key(&'static str),
    /// A key that has no architecture's name in front, or 0.
    General(&'static str),
    /// Length of the list that a key is, or 0.
    Len(&'static str),
    /// The dimension of this number of a tensor, or 0.
    Of(&'static str, usize),
    /// Heads of keys and values: as many as heads, unless a key says it.
    KvHeads,
    /// Length of a head of keys.
    HeadK,
    /// Length of a head of values.
    HeadV,
    /// Dimensions of a head that rotate.
    Rotating,
    /// Classes of texts: those that have a name, or 1.
    Labels,
    /// Any size.
    Free,
    /// The first, or the second if that is 0.
    Or(&'static [Size; 2]),
    /// The larger one.
    Max(&'static [Size; 2]),
    Sum(&'static [Size]),
    Product(&'static [Size]),
    Minus(&'static [Size; 2]),
    Quotient(&'static [Size; 2]),
}

/// When tensors are loaded, and in which layers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    Always,
    Above0(Size),
    Is(Size, u64),
    AtLeast(Size, u64),
    /// In layers from this one on.
    From(Size),
    /// In every so many layers, the last of each.
    Every(Size),
    /// In layers of linear attention: those that a key lists, or all but one in so many.
    Linear(u64),
    /// In layers that see a window of the text.
    Window,
    /// In layers whose numbers the list of this key has.
    Listed(&'static str),
    /// In layers that predict further tokens.
    Predicting,
    /// In layers that predict further tokens, if the file has them: llama.cpp loads it without, too.
    MayPredict,
    /// If there is a tensor of this name.
    Has(&'static str),
    /// If a key is this text.
    Text(&'static str, &'static str),
    Not(&'static When),
    /// If it is true in some layer.
    Somewhere(&'static When),
    Any(&'static [When]),
    All(&'static [When]),
}

pub(super) const EMBD: Size = Size::Key("embedding_length");
pub(super) const VOCAB: Size = Size::Vocab;
pub(super) const CONTEXT: Size = Size::Key("context_length");
pub(super) const HEADS: Size = Size::Key("attention.head_count");
pub(super) const HEAD: Size = Size::HeadK;
pub(super) const QUERIES: Size = Size::Product(&[Size::HeadK, HEADS]);
pub(super) const KEYS: Size = Size::Product(&[Size::HeadK, Size::KvHeads]);
pub(super) const VALUES: Size = Size::Product(&[Size::HeadV, Size::KvHeads]);
pub(super) const FF: Size = Size::Key("feed_forward_length");
pub(super) const EXPERTS: Size = Size::Key("expert_count");
pub(super) const USED: Size = Size::Key("expert_used_count");
pub(super) const HALF_ROTATING: Size = Size::Quotient(&[Size::Rotating, Size::N(2)]);

/// Most layers that llama.cpp loads (`LLAMA_MAX_LAYERS`).
pub(super) const MOST_LAYERS: u64 = 512;

/// The keys and tensors of a file that sizes and conditions are about.
pub(super) struct GgufFacts<'a> {
    pub architecture: &'a str,
    pub tokens: u64,
    pub keys: HashMap<&'a str, KeyFacts>,
    pub tensors: HashMap<&'a str, &'a [usize]>,
}

/// What a key says.
pub(super) enum KeyFacts {
    Number(u64),
    Numbers(Vec<u64>),
    Text(String),
    /// A list of texts, by its length.
    Texts(u64),
    Other,
}

impl KeyFacts {
    pub(super) fn new(value: &GgufMetadataValue) -> Self {
        let flag = || value.as_bool().map(u64::from);
        let number = value.as_unsigned().or_else(flag);
        if let Some(number) = number {
            return Self::Number(number);
        }
        if let Some(text) = value.as_string() {
            return Self::Text(text.to_owned());
        }
        // Lists of tokens are longer than those of layers.
        let most = MOST_LAYERS as usize;
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        match value.as_array() {
            Some(GgufMetadataArray::Bool(all)) => {
                Self::Numbers(all.iter().take(most).map(|x| (*x).into()).collect())
            }
            Some(GgufMetadataArray::U32(all)) => {
                Self::Numbers(all.iter().take(most).map(|x| (*x).into()).collect())
            }
            Some(GgufMetadataArray::I32(all)) => {
                let all = all.iter().take(most);
                Self::Numbers(all.map(|x| unsigned((*x).into())).collect())
            }
            Some(GgufMetadataArray::String(all)) => Self::Texts(all.len() as u64),
            _ => Self::Other,
        }
    }
}

impl GgufFacts<'_> {
    /// What the architecture's key `key` says.
    pub(super) fn key(&self, key: &str) -> Option<&KeyFacts> {
        self.keys
            .get(format!("{}.{key}", self.architecture).as_str())
    }

    fn number(&self, key: &str, layer: usize) -> Option<u64> {
        match self.key(key)? {
            KeyFacts::Number(number) => Some(*number),
            KeyFacts::Numbers(all) => all.get(layer).copied(),
            _ => None,
        }
    }

    /// Layers, with those that predict further tokens.
    pub(super) fn all_layers(&self) -> u64 {
        self.number("block_count", 0).unwrap_or(0)
    }

    pub(super) fn is_predicting(&self, layer: usize) -> bool {
        layer as u64 >= self.size(Size::Layers, 0)
    }

    /// The value of `size` in layer `layer`.
    pub(super) fn size(&self, size: Size, layer: usize) -> u64 {
        let of = |size: &Size| self.size(*size, layer);
        // Of models without heads, all sizes of heads are 0.
        let plain = || of(&EMBD).checked_div(self.size(HEADS, 0)).unwrap_or(0);
        let head = |own: &str, of_window: &str| {
            let window = self
                .number(of_window, layer)
                .filter(|_| self.has_window(layer));
            window
                .or_else(|| self.number(own, layer))
                .unwrap_or_else(plain)
        };
        match size {
            Size::N(n) => n,
            Size::Vocab => self.tokens,
            Size::Layers => {
                let behind = self.number("nextn_predict_layers", 0).unwrap_or(0);
                self.all_layers().saturating_sub(behind)
            }
            Size::Key(key) => self.number(key, layer).unwrap_or(0),
            Size::General(key) => match self.keys.get(key) {
                Some(KeyFacts::Number(number)) => *number,
                _ => 0,
            },
            Size::Len(key) => match self.key(key) {
                Some(KeyFacts::Numbers(all)) => all.len() as u64,
                _ => 0,
            },
            Size::Of(name, dim) => {
                let shape = self.tensors.get(name);
                let size = shape.and_then(|shape| shape.iter().rev().nth(dim));
                size.map_or(0, |size| *size as u64)
            }
            Size::KvHeads => self
                .number("attention.head_count_kv", layer)
                .unwrap_or_else(|| of(&HEADS)),
            Size::HeadK => head("attention.key_length", "attention.key_length_swa"),
            Size::HeadV => head("attention.value_length", "attention.value_length_swa"),
            Size::Rotating => self
                .number("rope.dimension_count", layer)
                .unwrap_or_else(|| of(&Size::HeadK)),
            Size::Labels => match self.key("classifier.output_labels") {
                Some(KeyFacts::Texts(count)) => *count,
                _ => 1,
            },
            Size::Free => 0,
            Size::Or([first, second]) => match of(first) {
                0 => of(second),
                n => n,
            },
            Size::Max([first, second]) => of(first).max(of(second)),
            Size::Sum(all) => all.iter().map(of).fold(0, u64::saturating_add),
            Size::Product(all) => all.iter().map(of).fold(1, u64::saturating_mul),
            Size::Minus([whole, part]) => of(whole).saturating_sub(of(part)),
            Size::Quotient([whole, part]) => of(whole).checked_div(of(part)).unwrap_or(0),
        }
    }

    /// Whether the keys say that layer `layer` sees a window of the text.
    fn has_window(&self, layer: usize) -> bool {
        self.number("attention.sliding_window_pattern", layer) == Some(1)
    }

    /// Whether `when` is true in layer `layer`.
    pub(super) fn is(&self, when: When, layer: usize) -> bool {
        match when {
            When::Always => true,
            When::Above0(size) => self.size(size, layer) > 0,
            When::Is(size, n) => self.size(size, layer) == n,
            When::AtLeast(size, n) => self.size(size, layer) >= n,
            When::From(size) => layer as u64 >= self.size(size, layer),
            When::Every(size) => (layer as u64 + 1).checked_rem(self.size(size, layer)) == Some(0),
            When::Linear(every) => self.is_linear(every, layer),
            When::Window => self.has_window(layer),
            When::Listed(key) => match self.key(key) {
                Some(KeyFacts::Numbers(all)) => all.contains(&(layer as u64)),
                _ => false,
            },
            When::Predicting | When::MayPredict => self.is_predicting(layer),
            When::Has(name) => self
                .tensors
                .contains_key(name_in_layer(name, layer).as_str()),
            When::Text(key, text) => {
                matches!(self.key(key), Some(KeyFacts::Text(found)) if found == text)
            }
            When::Not(when) => !self.is(*when, layer),
            When::Somewhere(when) => {
                (0..self.all_layers() as usize).any(|layer| self.is(*when, layer))
            }
            When::Any(all) => all.iter().any(|when| self.is(*when, layer)),
            When::All(all) => all.iter().all(|when| self.is(*when, layer)),
        }
    }

    /// The key that is missing, if that is why `when` is not true in layer `layer`.
    pub(super) fn missing_key(&self, when: When, layer: usize) -> Option<&'static str> {
        match when {
            When::Above0(Size::Key(key)) | When::AtLeast(Size::Key(key), _) => {
                self.key(key).is_none().then_some(key)
            }
            When::Any(all) => all.iter().find_map(|when| self.missing_key(*when, layer)),
            When::All(all) => {
                let mut false_ones = all.iter().filter(|when| !self.is(**when, layer));
                let key = self.missing_key(*false_ones.next()?, layer)?;
                false_ones
                    .all(|when| self.missing_key(*when, layer).is_some())
                    .then_some(key)
            }
            _ => None,
        }
    }

    fn is_linear(&self, every: u64, layer: usize) -> bool {
        if let Some(KeyFacts::Numbers(all)) = self.key("attention.recurrent_layers") {
            return all.get(layer) == Some(&1);
        }
        let every = self.number("full_attention_interval", 0).unwrap_or(every);
        let is_full = (layer as u64 + 1).checked_rem(every) == Some(0);
        !self.is_predicting(layer) && !is_full
    }
}

/// The name of a row in layer `layer`.
pub(super) fn name_in_layer(name: &str, layer: usize) -> String {
    name.replace("{i}", &layer.to_string())
}

/// The row of the tensor `name`, and its layer.
pub(super) fn row_and_layer(name: &str) -> (String, usize) {
    let found = name.split_once("blk.").and_then(|(stack, rest)| {
        let (layer, rest) = rest.split_once('.')?;
        Some((format!("{stack}blk.{{i}}.{rest}"), layer.parse().ok()?))
    });
    found.unwrap_or_else(|| (name.to_owned(), 0))
}

/// The expression, in terms of keys.
impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Size], sign: &str| {
            all.iter().enumerate().try_for_each(|(i, size)| match i {
                0 => write!(f, "{size}"),
                _ => write!(f, " {sign} {size}"),
            })
        };
        match self {
            Self::N(n) => write!(f, "{n}"),
            Self::Vocab => f.write_str("tokens"),
            Self::Layers => f.write_str("block_count"),
            Self::Of(name, dim) => write!(f, "dimension {dim} of {name}"),
            Self::Len(key) => write!(f, "values of {key}"),
            Self::Key(key) | Self::General(key) => f.write_str(key),
            Self::KvHeads => f.write_str("attention.head_count_kv"),
            Self::HeadK => f.write_str("attention.key_length"),
            Self::HeadV => f.write_str("attention.value_length"),
            Self::Rotating => f.write_str("rope.dimension_count"),
            Self::Labels => f.write_str("classifier.output_labels"),
            Self::Free => f.write_str("any size"),
            Self::Or([first, _]) => write!(f, "{first}"),
            Self::Max(all) => list(f, *all, "or"),
            Self::Sum(all) => {
                f.write_str("(")?;
                list(f, all, "+")?;
                f.write_str(")")
            }
            Self::Product(all) => list(f, all, "×"),
            Self::Minus(all) => {
                f.write_str("(")?;
                list(f, *all, "-")?;
                f.write_str(")")
            }
            Self::Quotient(all) => list(f, *all, "/"),
        }
    }
}
