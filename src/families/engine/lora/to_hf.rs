//! An adapter of llama.cpp as PEFT has it.

use std::collections::HashMap;

use super::peft::{PEFT_PREFIX, PeftSettings};
use super::{base_of, moves, require_there, shape_of};
use crate::config::Texts;
use crate::families::engine::fields::wrong_key;
use crate::families::engine::mapping::{Mapping, refused};
use crate::families::engine::names::{Place, fill};
use crate::families::engine::request::GgufRequest;
use crate::families::engine::source::SourceTensor;
use crate::families::engine::table::{Model, TensorRule, Transform};
use crate::families::engine::to_gguf::StatedClass;
use crate::families::engine::to_hf::DirectoryModel;
use crate::families::engine::transform;
use crate::families::is_base;
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::remember::layout::assembled::Change;
use crate::remember::{Group, MAX_EXPERTS, ResolvedItem};
use crate::{Result, TargetDtype};

/// The adapter of `items`, whose metadata is `metadata`, with its alpha if it has one, for the model that `base` describes, with
/// `adapter_config.json`. What is in blocks is decoded to `to`.
///
/// # Errors
/// `Unsupported` if the base's class is unknown; `Parse` that names the field or the tensor which is
/// missing, is none of the class, or has rows of several tensors of transformers.
pub(crate) fn lora_to_hf<'m>(
    items: Vec<ResolvedItem<'m>>,
    (metadata, alpha): (&GgufMetadata, Option<f64>),
    base: &GgufRequest<'_>,
    to: TargetDtype,
) -> Result<DirectoryModel<'m>> {
    let texts = Texts::new(base.directory, base.limits);
    let config = texts.json("config.json")?;
    let (name, StatedClass { class, fields, .. }, config) = base_of(config.as_ref(), base, &texts)?;
    let model = Model::new(&class, config, fields)?;
    let architecture = metadata.get("general.architecture");
    let architecture = architecture.as_ref().and_then(GgufMetadataValue::as_string);
    if architecture != Some(class.gguf) {
        let found = architecture.unwrap_or_default();
        let what = format!("the adapter is for `{found}`, and the base is {}", class.gguf);
        return Err(wrong_key("general.architecture", what));
    }
    let left_out = match is_base(name) {
        true => class.base_prefix(),
        false => String::new(),
    };
    let mapping = Mapping { class: &class, dims: &model.dims };
    let settings = PeftSettings { task: Some("CAUSAL_LM"), ..PeftSettings::default() };
    let mut adapter = Adapter { mapping, to, out: vec![], settings, alpha, left_out };
    pairs_of(items)?
        .into_iter()
        .try_for_each(|(name, [a, b])| adapter.add(&name, [a, b]))?;
    Ok(DirectoryModel {
        files: vec![adapter.settings.file()],
        items: adapter.out.into_iter().map(ResolvedItem::from).collect(),
        notes: vec![],
    })
}

/// The factors A and B of each weight, by its name in GGUF, in the order of the file.
///
/// # Errors
/// `Parse` that names a tensor which is no factor, or whose other factor is missing.
fn pairs_of(items: Vec<ResolvedItem<'_>>) -> Result<Vec<(String, [SourceTensor<'_>; 2])>> {
    let mut waiting: HashMap<String, (SourceTensor<'_>, bool)> = HashMap::new();
    let mut pairs = vec![];
    for item in items {
        let source = SourceTensor::new(item)?;
        let (weight, is_a) = match source.name.rsplit_once(".lora_") {
            Some((weight, "a")) => (weight.to_owned(), true),
            Some((weight, "b")) => (weight.to_owned(), false),
            _ => return Err(refused(&source.name, "its name is none of a LoRA for weights")),
        };
        match (waiting.remove(&weight), is_a) {
            (Some((a, true)), false) => pairs.push((weight, [a, source])),
            (Some((b, false)), true) => pairs.push((weight, [source, b])),
            (Some(_), _) => return Err(refused(&source.name, "there are two of it")),
            (None, _) => drop(waiting.insert(weight, (source, is_a))),
        }
    }
    let left = waiting.into_values().map(|(source, _)| source);
    match left.min_by(|a, b| a.name.cmp(&b.name)) {
        Some(source) => Err(refused(&source.name, "the other factor is missing")),
        None => Ok(pairs),
    }
}

/// The factors of an adapter under PEFT's names.
struct Adapter<'a, 'm> {
    mapping: Mapping<'a>,
    to: TargetDtype,
    out: Vec<Group<'m>>,
    settings: PeftSettings,
    /// What products are multiplied by, and divided by their ranks; `None`: nothing.
    alpha: Option<f64>,
    /// What names of the table begin with, and those of the base do not.
    left_out: String,
}

impl<'m> Adapter<'_, 'm> {
    /// Adds the factors of the weight that GGUF calls `name`, or those of each of its experts.
    fn add(&mut self, name: &str, factors: [SourceTensor<'m>; 2]) -> Result<()> {
        let (rule, place) = self.rule_of(name, &factors[0].name)?;
        let is_embedding = rule.gguf == "token_embd";
        let rank = self.check((rule, place), is_embedding, &factors)?;
        let pattern = rule.hf.strip_suffix(".weight").unwrap_or(rule.hf);
        let pattern = pattern.strip_prefix(&self.left_out).unwrap_or(pattern);
        let module = |expert| fill(pattern, Place { expert, ..place });
        let modules: Vec<String> = match rule.transform.is_stack() {
            true => (0..factors[0].shape[0])
                .map(|expert| module(Some(expert)))
                .collect(),
            false => vec![module(None)],
        };
        let of_each = (rank, self.alpha.unwrap_or(rank as f64));
        let modules = modules.into_iter().map(|module| (module, of_each));
        self.settings.modules.extend(modules);
        self.settings.is_turned |= rule.transform == Transform::Transposed;
        for (source, is_a) in factors.into_iter().zip([true, false]) {
            let end = match (is_embedding, is_a) {
                (true, true) => "lora_embedding_A",
                (true, false) => "lora_embedding_B",
                (false, true) => "lora_A.weight",
                (false, false) => "lora_B.weight",
            };
            let hf_name = |expert| format!("{PEFT_PREFIX}{}.{end}", module(expert));
            let dtype = source.stored.unwrap_or(self.to);
            match moves(rule, is_a) == Some(true) {
                true => {
                    let of_rule = (&hf_name as &dyn Fn(_) -> _, rule);
                    let (source, dims) = ((name.to_owned(), source), self.mapping.dims);
                    self.out
                        .extend(transform::to_hf(source, of_rule, dtype, Change::None, dims)?);
                }
                false if is_embedding && is_a => {
                    let turned = transform::transposed(source, dtype);
                    self.out.push(turned.renamed(hf_name(None), dtype));
                }
                false => self.out.push(source.renamed(hf_name(None), dtype)),
            }
        }
        Ok(())
    }

    /// The rank of two factors, which fit the weight of `rule`.
    fn check(
        &self,
        (rule, place): (&TensorRule, Place),
        is_embedding: bool,
        [a, b]: &[SourceTensor<'m>; 2],
    ) -> Result<usize> {
        require_there(&self.mapping, rule, place, &a.name)?;
        let of_matrix =
            |source: &SourceTensor<'m>| match (&source.shape[..], rule.transform.is_stack()) {
                (&[rows, cols], false) => Ok((1, [rows, cols])),
                (&[matrices, rows, cols], true) => Ok((matrices, [rows, cols])),
                _ => {
                    let what =
                        format!("its shape is {:?}, which is none of a factor", source.shape);
                    Err(refused(&source.name, what))
                }
            };
        let ((count, of_a), (others, [rows, rank])) = (of_matrix(a)?, of_matrix(b)?);
        let [of, cols] = if is_embedding {
            [of_a[1], of_a[0]]
        } else {
            of_a
        };
        // Each expert becomes a tensor, and one without values could have any number of them.
        if rank == 0 || count > MAX_EXPERTS {
            let what =
                format!("its shape is {:?}: no rank, or more than {MAX_EXPERTS} experts", b.shape);
            return Err(refused(&b.name, what));
        }
        let experts = self.mapping.dims.experts.unwrap_or(0);
        if of != rank || count != others || rule.transform == Transform::Experts && count != experts
        {
            let what =
                format!("its shape is {:?}, and that of `{}` {:?}", a.shape, b.name, b.shape);
            return Err(refused(&a.name, what));
        }
        let found = if is_embedding {
            [cols, rows]
        } else {
            [rows, cols]
        };
        self.mapping
            .check_shape(&b.name, (&shape_of(rule), place.layer), ".weight", &found)?;
        Ok(rank)
    }

    /// The rule of the weight `name` of the factor `factor`.
    fn rule_of(&self, name: &str, factor: &str) -> Result<(&'static TensorRule, Place)> {
        match self.mapping.rules_in_gguf(name)[..] {
            [(rule, ..)]
                if moves(rule, false).is_none() || rule.transform.some_parts().is_some() =>
            {
                let what =
                    "its weight is no whole one of transformers, or made otherwise than row by row";
                Err(refused(factor, what))
            }
            [(rule, place, _)] if name.ends_with(".weight") => Ok((rule, place)),
            _ => {
                let what = format!("no weight of {} is called `{name}`", self.mapping.class.gguf);
                Err(refused(factor, what))
            }
        }
    }
}
