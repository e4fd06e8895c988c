//! Rows of embeddings that an adapter replaces, those of single tokens (`trainable_token_indices`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::change::{TokenRows, WeightChange};
use super::collect::Collector;
use super::peft_tensors::Replacement;
use super::tensor::are_same;
use crate::error::InTensor;
use crate::remember::Decode;
use crate::remember::layout::assembled::{Assembled, Change, Piece, RowOrder};
use crate::remember::seam::wrong;
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Result, TargetDtype};

/// The tokens whose rows were trained, in the order of the rows.
#[derive(Debug, Default)]
pub(super) enum TrainedTokens {
    #[default]
    None,
    /// Of the only module that has such rows.
    OfOne(Vec<usize>),
    /// By the end of the module's name.
    ByModule(BTreeMap<String, Vec<usize>>),
}

impl TrainedTokens {
    /// # Errors
    /// `Parse` if `value` is neither a list of different numbers nor an object of such lists.
    pub(super) fn new(value: Option<&Value>) -> Result<Self> {
        match value {
            None | Some(Value::Null) => Ok(Self::None),
            Some(Value::Array(numbers)) => Ok(Self::OfOne(tokens(numbers)?)),
            Some(Value::Object(modules)) => {
                let of_module = |(module, numbers): (&String, &Value)| {
                    let numbers = numbers.as_array().ok_or_else(malformed)?;
                    Ok((module.clone(), tokens(numbers)?))
                };
                let modules = modules.iter().map(of_module);
                Ok(Self::ByModule(modules.collect::<Result<_>>()?))
            }
            Some(_) => Err(malformed()),
        }
    }

    /// The tokens of the module of the weight `weight`.
    fn of(&self, weight: &str) -> Option<&[usize]> {
        let module = weight.strip_suffix(".weight")?;
        match self {
            Self::None => None,
            Self::OfOne(tokens) => Some(tokens),
            Self::ByModule(modules) => {
                let mut modules = modules.iter();
                let (_, tokens) = modules.find(|(end, _)| is_end(module, end))?;
                Some(tokens)
            }
        }
    }

    /// The modules that the settings name, each by the end of its name.
    fn modules(&self) -> impl Iterator<Item = &str> {
        let named = match self {
            Self::ByModule(modules) => Some(modules),
            _ => None,
        };
        named.into_iter().flatten().map(|(module, _)| &**module)
    }
}

/// Whether the name `module` is `end`, or ends with it after a dot.
fn is_end(module: &str, end: &str) -> bool {
    let before = module.strip_suffix(end);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn malformed() -> AnamnesisError {
    let what = "its `trainable_token_indices` is neither a list of different numbers of tokens nor an object of such lists";
    AnamnesisError::parse(what)
}

fn tokens(numbers: &[Value]) -> Result<Vec<usize>> {
    let number = |number: &Value| {
        let number = number.as_u64().and_then(|n| usize::try_from(n).ok());
        number.ok_or_else(malformed)
    };
    let tokens: Vec<usize> = numbers.iter().map(number).collect::<Result<_>>()?;
    let mut sorted = tokens.clone();
    sorted.sort_unstable();
    match sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(malformed()),
        false => Ok(tokens),
    }
}

impl TokenRows {
    /// Whether the rows `other` are those of other tokens, of which none is among these.
    fn is_apart(&self, other: &Self) -> bool {
        let ours: HashSet<usize> = self.tokens.iter().copied().collect();
        other.tokens.iter().all(|token| !ours.contains(token))
    }
}

impl Collector<'_, '_> {
    /// The rows `index` of the weight `weight`, which were trained alone.
    pub(super) fn replace_rows(&mut self, weight: &str, index: usize) -> Result<()> {
        let tensor = self.tensor(index);
        let t = tensor.get();
        let config = self.adapter.peft();
        let Some(tokens) = config.and_then(|config| config.tokens.of(weight)) else {
            let what = "the settings of the adapter do not say which tokens these are (`trainable_token_indices`)";
            return Err(wrong(&t, what));
        };
        let (item, shape) = self.item(weight, &t)?;
        let &[rows, cols] = &*shape else {
            return Err(wrong(&t, format!("`{weight}` of the model is {shape:?}, no table")));
        };
        if t.shape() != [tokens.len(), cols] {
            let what =
                format!("the settings name {} tokens, and `{weight}` is {shape:?}", tokens.len());
            return Err(wrong(&t, what));
        }
        if let Some(token) = tokens.iter().find(|&&token| token >= rows) {
            let what = format!("it has a row for token {token}, and `{weight}` has {rows} rows");
            return Err(wrong(&t, what));
        }
        self.require_whole_weight(&t)?;
        // Reads only what the constructor accepts.
        Replacement::new(tensor.clone())?;
        let rows = TokenRows { tokens: tokens.to_vec(), tensor: tensor.clone() };
        if !self.change(item).has_rows(&rows)? {
            let before = &mut self.change(item).rows;
            if !before.iter().all(|other| other.is_apart(&rows)) {
                let what = "the weight has another row for one of these tokens already, of a module whose weight is the same tensor";
                return Err(wrong(&t, what));
            }
            before.push(rows);
        }
        self.require_alone(item, &t)
    }

    /// Fails if the settings name the tokens of a module, and the adapter has no rows for it. A
    /// head that is the embedding has those of the embedding.
    // By value, as other iterators are passed.
    #[allow(clippy::needless_pass_by_value)]
    pub(super) fn require_rows<'a>(
        &self,
        weights: impl Iterator<Item = &'a String> + Clone,
    ) -> Result<()> {
        let Some(config) = self.adapter.peft() else {
            return Ok(());
        };
        let has = |end: &str| {
            let mut modules = weights
                .clone()
                .filter_map(|weight| weight.strip_suffix(".weight"));
            modules.any(|module| is_end(module, end))
        };
        let mut missing = config.tokens.modules().filter(|end| !has(end));
        let is_missing = match &config.tokens {
            TrainedTokens::None => None,
            TrainedTokens::OfOne(_) => weights.clone().next().is_none().then_some("the embedding"),
            TrainedTokens::ByModule(_) => {
                missing.find(|end| !self.is_tied_head(&format!("{end}.weight")))
            }
        };
        match is_missing {
            None => Ok(()),
            Some(module) => Err(AnamnesisError::parse(format!(
                "its `trainable_token_indices` names tokens of `{module}`, and it has no rows for them"
            ))),
        }
    }
}

/// The decoder of a table of `rows` rows and `cols` columns in which the rows of tokens in `changed`
/// replace those of `base`.
///
/// # Errors
/// `Unsupported` if an adapter's tensor is not F32, F16 or BF16.
pub(super) fn with_rows<'m>(
    base: Box<dyn Decode + 'm>,
    [rows, cols]: [usize; 2],
    changed: Vec<TokenRows>,
) -> Result<Box<dyn Decode + 'm>> {
    let base: Arc<dyn Decode + 'm> = Arc::from(base);
    // Number of the token, decoder of its row, and number of the row there.
    let mut replaced: Vec<(usize, Arc<dyn Decode + 'm>, usize)> = vec![];
    for TokenRows { tokens, tensor } in changed {
        let decoder: Arc<dyn Decode + 'm> = Arc::new(Replacement::new(tensor)?);
        let of_tensor = tokens.into_iter().enumerate();
        replaced.extend(of_tensor.map(|(row, token)| (token, decoder.clone(), row)));
    }
    sort_by_key(&mut replaced, |(token, ..)| *token);
    let piece = |decoder: &Arc<dyn Decode + 'm>, first: usize, rows: usize| Piece {
        decoder: decoder.clone(),
        rows,
        order: RowOrder::From(first),
        turn: rows,
    };
    let (mut pieces, mut at) = (vec![], 0);
    for (token, decoder, row) in replaced {
        if token > at {
            pieces.push(piece(&base, at, token - at));
        }
        pieces.push(piece(&decoder, row, 1));
        at = token + 1;
    }
    if at < rows {
        pieces.push(piece(&base, at, rows - at));
    }
    Ok(assembled(pieces, cols))
}

/// The decoder of all `rows` rows of `cols` columns of `decoder`, which others decode as well.
pub(super) fn rows_of<'m>(
    decoder: Arc<dyn Decode + 'm>,
    [rows, cols]: [usize; 2],
) -> Box<dyn Decode + 'm> {
    let all = Piece { decoder, rows, order: RowOrder::From(0), turn: rows };
    assembled(vec![all], cols)
}

/// The decoder of rows of `cols` columns that follow each other in `pieces`.
fn assembled(pieces: Vec<Piece<'_>>, cols: usize) -> Box<dyn Decode + '_> {
    Box::new(Assembled {
        pieces,
        takes_turns: false,
        cols,
        dtype: TargetDtype::F32,
        change: Change::None,
        columns: None,
    })
}

impl WeightChange {
    /// Whether the rows `new` are among those that replace the weight's: the head of a tied model
    /// may have those of the embedding once more.
    fn has_rows(&self, new: &TokenRows) -> Result<bool> {
        for rows in self.rows.iter().filter(|rows| rows.tokens == new.tokens) {
            if are_same(&rows.tensor.get(), &new.tensor.get())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails if rows of the weight `name` are replaced, and a product is added to it: PEFT makes no
    /// such adapter.
    pub(super) fn require_rows_alone(&self, name: &str) -> Result<()> {
        if self.rows.is_empty() || self.size.is_none() {
            return Ok(());
        }
        let what = format!(
            "{}: it has a LoRA and rows of single tokens (`trainable_token_indices`), which PEFT does not merge into one weight",
            InTensor(&name)
        );
        Err(AnamnesisError::unsupported("an adapter", what))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_by_module() {
        let of = |value: Value, weight: &str| {
            let tokens = TrainedTokens::new(Some(&value)).unwrap();
            tokens.of(weight).map(<[usize]>::to_vec)
        };
        let by_module = || json!({"embed_tokens": [3, 1], "head": [2]});
        for (value, weight, expected) in [
            (json!([3, 1]), "model.embed_tokens.weight", Some(vec![3, 1])),
            (by_module(), "model.embed_tokens.weight", Some(vec![3, 1])),
            (by_module(), "embed_tokens.weight", Some(vec![3, 1])),
            (by_module(), "head.weight", Some(vec![2])),
            (by_module(), "lm_head.weight", None),
            (json!(null), "embed_tokens.weight", None),
        ] {
            assert_eq!(of(value.clone(), weight), expected, "{value} {weight}");
        }
        for wrong in [json!([1, 1]), json!([-1]), json!([1.5]), json!({"a": 1}), json!("a")] {
            assert!(TrainedTokens::new(Some(&wrong)).is_err(), "{wrong}");
        }
    }
}
