//! An adapter of transformers as llama.cpp has it.

use std::collections::HashMap;

use super::{base_of, moves, require_there, shape_of};
use crate::config::Texts;
use crate::families::engine::general::identity;
use crate::families::engine::mapping::{Mapped, Mapping, refused};
use crate::families::engine::names::{Place, fill};
use crate::families::engine::request::GgufRequest;
use crate::families::engine::source::SourceTensor;
use crate::families::engine::table::{Model, TensorRule};
use crate::families::engine::to_gguf::{GgufModel, StatedClass};
use crate::families::engine::transform;
use crate::model::gguf::{GGML_QNT_VERSION, GgufMetadataValue};
use crate::model::gguf_keys::VERSION;
use crate::remember::layout::assembled::Change;
use crate::remember::{Group, ResolvedItem};
use crate::{Result, TargetDtype};

/// The factors A `[rank, in]` and B `[out, rank]` of what is added to a weight.
pub(crate) struct LoraPair<'m> {
    /// The weight's name in transformers.
    pub weight: String,
    pub a: SourceTensor<'m>,
    pub b: SourceTensor<'m>,
    /// Whether the weight is an embedding, to which the transposed product is added.
    pub is_embedding: bool,
    /// What B is multiplied by. GGUF has one alpha for all products.
    pub factor: f64,
}

/// An adapter, and what it was trained for.
pub(crate) struct LoraRequest<'a> {
    /// The directory of the base model, of which the config is read.
    pub base: GgufRequest<'a>,
    /// The directory of the adapter, and its files.
    pub own: GgufRequest<'a>,
    pub texts: &'a Texts,
    pub alpha: f64,
}

/// The adapter of `pairs` as GGUF.
///
/// # Errors
/// `Unsupported` if the base's class is unknown, or a weight is none whose product llama.cpp adds;
/// `Parse` that names the field or the tensor which is missing, or is none of the class.
pub(crate) fn lora_to_gguf<'m>(
    pairs: &[LoraPair<'m>],
    request: &LoraRequest<'_>,
) -> Result<GgufModel<'m>> {
    let texts = Texts::new(request.base.directory, request.base.limits);
    let config = texts.json("config.json")?;
    let (name, StatedClass { class, fields, .. }, config) =
        base_of(config.as_ref(), &request.base, &texts)?;
    let model = Model::new(&class, config, fields)?;
    let mapping = Mapping { class: &class, dims: &model.dims };
    let mut factors = Factors { mapping, class_name: name, made: vec![], stacks: HashMap::new() };
    pairs
        .iter()
        .try_for_each(|pair| factors.add(pair, request.own.to))?;
    let out = factors.finish(request.own.to)?;
    let (mut metadata, note) = identity((class.gguf, "adapter"), &request.own, request.texts, &[])?;
    let kind = GgufMetadataValue::String("lora".to_owned());
    metadata.insert(2, ("adapter.type".to_owned(), kind));
    let alpha = GgufMetadataValue::F32(request.alpha as f32);
    metadata.push(("adapter.lora.alpha".to_owned(), alpha));
    metadata.push((VERSION.to_owned(), GgufMetadataValue::U32(GGML_QNT_VERSION)));
    let mut companions = texts.companions();
    companions.extend(request.texts.companions());
    Ok(GgufModel {
        items: out.into_iter().map(ResolvedItem::from).collect(),
        metadata,
        notes: note.into_iter().collect(),
        companions,
    })
}

/// The factors of an adapter under their names in GGUF.
struct Factors<'a, 'm> {
    mapping: Mapping<'a>,
    class_name: &'a str,
    made: Vec<Factor<'m>>,
    /// Where stacks of experts are, by name.
    stacks: HashMap<String, usize>,
}

/// A factor, and whether it moves as the weight does.
struct Factor<'m> {
    tensor: Mapped<'m>,
    moves: bool,
}

impl<'m> Factors<'_, 'm> {
    /// Adds both factors of a pair, to each weight of GGUF that has rows of the pair's weight.
    fn add(&mut self, pair: &LoraPair<'m>, to: Option<TargetDtype>) -> Result<()> {
        let found = self.mapping.rules_of(&pair.weight);
        if found.is_empty() {
            let what = format!("no weight of {} is called `{}`", self.class_name, pair.weight);
            return Err(refused(&pair.a.name, what));
        }
        let [a, b] = factors_of(pair, to)?;
        for (rule, place, suffix) in found {
            self.check(pair, rule, place)?;
            let name = format!("{}{suffix}", fill(rule.gguf, place));
            for (source, is_a) in [(&a, true), (&b, false)] {
                let end = if is_a { "lora_a" } else { "lora_b" };
                let moves = moves(rule, is_a).ok_or_else(|| {
                    let what = format!("`{name}` of GGUF is made otherwise than row by row, and what an adapter adds to it is not converted");
                    refused(&source.name, what)
                })?;
                self.push(format!("{name}.{end}"), (rule, place, suffix), source.clone(), moves)?;
            }
        }
        Ok(())
    }

    /// Fails unless the pair fits the weight of `rule`, and the model has it.
    fn check(&self, pair: &LoraPair<'_>, rule: &TensorRule, place: Place) -> Result<()> {
        let (inputs, outputs) = (pair.a.shape[1], pair.b.shape[0]);
        let layer = place.layer;
        require_there(&self.mapping, rule, place, &pair.a.name)?;
        let is_embedding = rule.gguf == "token_embd";
        if is_embedding != pair.is_embedding {
            let what =
                "llama.cpp adds the product of an embedding to the embedding of tokens alone";
            return Err(refused(&pair.a.name, what));
        }
        let found = if is_embedding {
            [inputs, outputs]
        } else {
            [outputs, inputs]
        };
        self.mapping
            .check_shape(&pair.b.name, (&shape_of(rule), layer), ".weight", &found)
    }

    /// Adds a factor, or one expert's to its stack.
    fn push(
        &mut self,
        name: String,
        (rule, place, suffix): (&'static TensorRule, Place, &'static str),
        source: SourceTensor<'m>,
        moves: bool,
    ) -> Result<()> {
        let expert = place.expert.unwrap_or(0);
        if let Some(&at) = self.stacks.get(&name) {
            return self.made[at].tensor.push(expert, source);
        }
        if rule.transform.is_stack() {
            self.stacks.insert(name.clone(), self.made.len());
        }
        let tensor = Mapped { name, rule, place, suffix, sources: vec![(expert, source)] };
        self.made.push(Factor { tensor, moves });
        Ok(())
    }

    /// The tensors of GGUF, in the type `to` or as they are stored.
    fn finish(mut self, to: Option<TargetDtype>) -> Result<Vec<Group<'m>>> {
        for &at in self.stacks.values() {
            let stack = &mut self.made[at].tensor;
            stack.sources.sort_by_key(|(expert, _)| *expert);
            self.mapping.check_experts(stack)?;
        }
        let dims = self.mapping.dims;
        let make = |Factor { mut tensor, moves }: Factor<'m>| {
            let stored = tensor.sources[0].1.stored;
            let dtype = to.or(stored).unwrap_or(TargetDtype::F32);
            match moves {
                true => transform::to_gguf(tensor, dtype, Change::None, dims),
                false => {
                    let source = tensor.sources.swap_remove(0).1;
                    Ok(source.renamed(tensor.name, dtype))
                }
            }
        };
        self.made.into_iter().map(make).collect()
    }
}

/// A and B as they are stored in GGUF, but for rows and columns that move.
fn factors_of<'m>(pair: &LoraPair<'m>, to: Option<TargetDtype>) -> Result<[SourceTensor<'m>; 2]> {
    let (a, b) = (pair.a.clone(), pair.b.clone());
    let (&[rank, _], &[_, of]) = (&a.shape[..], &b.shape[..]) else {
        let what = format!("its shape is {:?}, and llama.cpp adds products of matrices", a.shape);
        return Err(refused(&a.name, what));
    };
    if rank != of {
        let what = format!("its rank is {rank}, and that of `{}` is {of}", b.name);
        return Err(refused(&a.name, what));
    }
    let a = match pair.is_embedding {
        true => {
            let dtype = to.or(a.stored).unwrap_or(TargetDtype::F32);
            transform::transposed(a, dtype)
        }
        false => a,
    };
    let b = match pair.factor == 1.0 {
        true => b,
        false => {
            let factors = [pair.factor as f32, 1.0].map(f32::to_bits);
            b.changed_rows(&b.name, (0, b.shape[0]), Change::Times(factors))
        }
    };
    Ok([a, b])
}
