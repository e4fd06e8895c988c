//! A Hugging Face model as GGUF: its tensors under GGUF's names and in its order of rows, and its
//! metadata.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::dims::Dims;
use super::fields::{Fields, KeyValue, wrong};
use super::general::identity;
use super::graphs::{OUTPUT, has_output, problems};
use super::keyed::take_keys;
use super::mapping::{Mapped, Mapping};
use super::names::of_language_model;
use super::pooling::{self, POOLING};
use super::request::{GgufRequest, ModelPart};
use super::rope::Rope;
use super::source::{SourceTensor, computed, sources_of};
use super::table::{Kind, Model, ModelClass, Transform};
use super::tied::is_untied;
use super::{checks, draft, fills, fused, integers, prediction, reranker, settings, transform};
use crate::config::Texts;
use crate::error::{InTensor, counted};
use crate::families::{class_name, class_of, has_tower, is_base};
use crate::model::gguf::{GGML_QNT_VERSION, GgufMetadataValue};
use crate::model::gguf_keys::{FILE_TYPE, VERSION};
use crate::remember::layout::assembled::Change;
use crate::remember::{EncodedAs, Group, QuantScheme, ResolvedItem, Window};
use crate::source::CompanionFile;
use crate::tokenizer::kept::KeptMetadata;
use crate::tokenizer::{self, TokenizerKeys, TokenizerRequest};
use crate::{AnamnesisError, Result, TargetDtype};

/// A model that is ready to be written as GGUF.
pub(crate) struct GgufModel<'m> {
    pub items: Vec<ResolvedItem<'m>>,
    pub metadata: Vec<KeyValue>,
    /// What a user should know.
    pub notes: Vec<String>,
    /// The files that were read for it.
    pub companions: Vec<CompanionFile>,
}

/// The model of `items` as GGUF; `None` if no `config.json` names its class.
///
/// # Errors
/// `Unsupported` if the class is unknown; `Parse` that names the field, the file or the tensor
/// which is missing, contradicts another, or is none of the class.
pub(crate) fn to_gguf<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    request: &GgufRequest<'_>,
) -> Result<Option<GgufModel<'m>>> {
    let texts = Texts::new(request.directory, request.limits);
    let Some(config) = texts.json("config.json")? else {
        return Ok(None);
    };
    let Some(name) = class_name(&config) else {
        return Ok(None);
    };
    let StatedClass { class, mut fields, is_reranker } =
        StatedClass::read((name, &config), request, &texts)?;
    let class = &class;
    let mut lost_modules = None;
    if class.settings().any(|setting| setting.key == POOLING) {
        lost_modules = pooling::add_to(&mut fields, &texts)?;
    }
    let without = prediction::select_part((class, name), &fields, items, request.part)?;
    prediction::count_layers(&mut fields, class, items)?;
    draft::add_of_tensors(&mut fields, class, items);
    if let Some(own) = class.traits.own_tensors {
        (own.to_gguf)(&mut fields, items)?;
    }
    let model = Model::new(class, &config, fields)?;
    let nearly_same = checks::check(&model)?;
    let kept = KeptMetadata::read(&texts, class.gguf)?;
    let of_target = draft::texts_of_target(class, request);
    let mut tokenizer = match &of_target {
        Some(target) => tokenizer_of(&model, request, target, None),
        None => tokenizer_of(&model, request, &texts, kept.as_ref()),
    }?;
    // A directory without weights has settings and a tokenizer.
    let made = match items.is_empty() && request.part == ModelPart::Vocabulary {
        true => {
            MadeTensors { main: request.to.unwrap_or(TargetDtype::F16), ..MadeTensors::default() }
        }
        false => {
            let classifier = is_reranker.then_some(&tokenizer.keys[..]);
            MadeTensors::new(items, (&model, name), (classifier, tokenizer.tokens), request)?
        }
    };
    if is_reranker {
        reranker::add_template(&mut tokenizer.keys);
    }
    let file_type = request.file_type.unwrap_or(made.main.gguf_file_type());
    let file_type = (FILE_TYPE.to_owned(), GgufMetadataValue::U32(file_type));
    let (mut metadata, card_note) = identity((class.gguf, "model"), request, &texts, &made.out)?;
    if let Some(kept) = &kept {
        kept.restore_general(&mut metadata);
    }
    metadata.extend(settings::to_gguf(&model, file_type)?);
    match request.part {
        // The converter writes what belongs to tensors with them.
        ModelPart::Vocabulary if PHI.contains(&class.gguf) => {
            metadata.retain(|(key, _)| !key.ends_with(".rope.scaling.attn_factor"));
        }
        ModelPart::Vocabulary => {}
        _ => metadata.extend(made.keyed),
    }
    metadata.push((VERSION.to_owned(), GgufMetadataValue::U32(GGML_QNT_VERSION)));
    // A draft's own mask counts more than that of the tokenizer.
    let is_new = |(key, _): &KeyValue| metadata.iter().all(|(other, _)| other != key);
    let of_tokenizer: Vec<_> = tokenizer.keys.into_iter().filter(is_new).collect();
    metadata.extend(of_tokenizer);
    if request.part != ModelPart::Vocabulary {
        let all = made.out.iter().chain(&made.left_out);
        require_loadable(class, &metadata, all, &made.source_names)?;
    }
    if let Some(own) = class.traits.own_tensors
        && matches!(request.part, ModelPart::Prediction | ModelPart::Vocabulary)
    {
        let has_tensors = request.part == ModelPart::Prediction;
        metadata.retain(|(key, _)| !own.is_lacking(key, class.gguf, has_tensors));
    }
    let has_tower = !made.notes.is_empty() && has_tower(&config);
    let tower = has_tower.then(|| "--mmproj writes the model's image tower".to_owned());
    let notes = made
        .notes
        .into_iter()
        .chain(tower)
        .chain(without)
        .chain(model.rope.note(class))
        .chain(lost_modules)
        .chain(tokenizer.notes)
        .chain(card_note)
        .chain(texts.note())
        .chain(of_target.as_ref().and_then(Texts::note));
    let notes = notes.chain(checks::notes(&model, nearly_same)?);
    Ok(Some(GgufModel {
        items: made.out.into_iter().map(ResolvedItem::from).collect(),
        metadata,
        notes: notes.collect(),
        companions: [&texts]
            .into_iter()
            .chain(&of_target)
            .flat_map(Texts::companions)
            .collect(),
    }))
}

/// Architectures whose factor of attention belongs to the tensors of rope.
const PHI: [&str; 2] = ["phi3", "phimoe"];

/// The tensors of a GGUF file, and what follows from those of the input.
#[derive(Default)]
struct MadeTensors<'m> {
    out: Vec<Group<'m>>,
    /// Those that the part of the model which is asked for has not.
    left_out: Vec<Group<'m>>,
    /// Keys of the metadata that are tensors in transformers.
    keyed: Vec<KeyValue>,
    /// Element type of matrices.
    main: TargetDtype,
    /// What each tensor is made of.
    source_names: HashMap<String, String>,
    notes: Vec<String>,
}

impl<'m> MadeTensors<'m> {
    /// What becomes of `items`, tensors of a model that its config calls `name`. `classifier` are the
    /// keys of the tokenizer, if the output becomes a classifier, and `tokens` how many rows the
    /// embedding keeps.
    ///
    /// # Errors
    /// As [`to_gguf`].
    fn new(
        items: &mut Vec<ResolvedItem<'m>>,
        (model, name): (&Model<'_>, &str),
        (classifier, tokens): (Option<&[KeyValue]>, usize),
        request: &GgufRequest<'_>,
    ) -> Result<Self> {
        let class = model.class;
        let ids = draft::ids_for_gguf(class, &model.dims, items)?;
        let integers = integers::take(class, &model.dims, items, true)?;
        let mut sources = sources_of(std::mem::take(items).into_iter())?;
        if let Some(keys) = classifier {
            let is_tied = model.fields.flag("tie_word_embeddings");
            reranker::add_classifier(&mut sources, keys, is_tied)?;
        }
        let mapping = Mapping { class, dims: &model.dims };
        let mut mapped = mapping.to_gguf(sources, name, &of_language_model)?;
        mapping.check_biases(&mapped.tensors, &model.fields)?;
        require_output(class, (name, &model.fields), &mapped.tensors)?;
        let keyed = take_keys(class, &mut mapped.tensors)?;
        let source_names = source_names(&mapped.tensors);
        let main = main_dtype(&[&mapped.tensors], request);
        let mut all = make_tensors(mapped.tensors, model, (main, tokens), request)?;
        all.extend(ids);
        all.extend(integers);
        let layers = model.dims.layers;
        let all = fused::fuse(all, (class, name, layers), request.fused)?;
        let is_q8 = |group: &Group<'_>| group.encoded_as == Some(EncodedAs::Q8_0);
        if request.fp8_as_q8 && !all.iter().any(is_q8) {
            let what = "no matrix of the model is FP8 with scales; leave the option out";
            return Err(AnamnesisError::unsupported("--fp8-as-q8", what));
        }
        let is_kept = |group: &Group<'_>| match request.part {
            ModelPart::Whole | ModelPart::WithoutPrediction => true,
            ModelPart::Vocabulary => false,
            ModelPart::Prediction => prediction::is_kept_alone(&group.name, layers),
        };
        let (out, left_out): (Vec<_>, Vec<_>) = all.into_iter().partition(is_kept);
        let mut notes = mapped.notes;
        if !left_out.is_empty() {
            notes.push(format!(
                "{} left out of this part of the model",
                counted(left_out.len(), "tensor")
            ));
        }
        Ok(Self { out, left_out, keyed, main, source_names, notes })
    }
}

/// What a config says of a model before its tensors are known.
pub(super) struct StatedClass {
    pub class: ModelClass,
    /// The fields, with what the class takes for granted.
    pub fields: Fields,
    /// A language model whose output becomes a classifier.
    is_reranker: bool,
}

impl StatedClass {
    /// Of a model that `config` calls `name`.
    ///
    /// # Errors
    /// As [`to_gguf`].
    pub(super) fn read(
        (name, config): (&str, &Value),
        request: &GgufRequest<'_>,
        texts: &Texts,
    ) -> Result<Self> {
        let mut class: &ModelClass = find_class(name, config)?;
        let mut fields = Fields::new(config)?;
        draft::add_target(&mut fields, class, request)?;
        let reranker = reranker::class_of(class, (config, &fields), request, texts)?;
        if let Some(reranker) = reranker {
            class = reranker;
            reranker::add_labels(&mut fields);
        }
        reranker::check_labels(class, &fields)?;
        checks::add_default_window(class, config, &mut fields);
        // Before the defaults of the class: what a config does not state differs by the version of
        // transformers. Of a list of layers the class makes numbers, or it is an error below.
        if !fields.0.get("rope_theta").is_some_and(Value::is_array) {
            Rope::new(&fields)?.check_bases(class)?;
        }
        fields.complete(class)?;
        // llama.cpp's converter leaves the output out, and the program loads it.
        let is_classifier = class.has_setting(Kind::Labels(true));
        let may_have_output = !is_classifier && has_output(class.gguf);
        let may_be_untied = class.traits.ties_output && may_have_output;
        let class = match may_be_untied && is_untied(config, &fields)? {
            true => class.untied(),
            false => *class,
        };
        Ok(Self { class, fields, is_reranker: reranker.is_some() })
    }
}

/// The keys of the model's tokenizer.
///
/// # Errors
/// Those of its files; `Parse` if there are more or fewer tokens than rows of the embedding.
fn tokenizer_of(
    model: &Model<'_>,
    request: &GgufRequest<'_>,
    texts: &Texts,
    kept: Option<&KeptMetadata>,
) -> Result<TokenizerKeys> {
    let (class, rows) = (model.class, model.dims.vocab);
    let (rules, architecture) = draft::tokenizer_rules(class, &model.fields);
    let tokenizer = tokenizer::to_gguf(&TokenizerRequest {
        texts,
        config: &Value::Object(model.fields.0.clone()),
        vocab_size: rows,
        pre: request.pre_tokenizer,
        architecture,
        rules,
        cuts_embedding: class.traits.cuts_embedding,
    });
    let mut tokenizer = tokenizer.map_err(|error| match error {
        AnamnesisError::Unsupported { format, detail }
            if class.traits.is_draft && request.target.is_none() =>
        {
            AnamnesisError::unsupported(format, format!("{detail}; {}", draft::WAY_OUT))
        }
        error => error,
    })?;
    // A pre-tokenizer that is asked for counts more than the one that was.
    if let Some(kept) = kept.filter(|_| request.pre_tokenizer.is_none()) {
        kept.restore_tokenizer(texts, rows, &mut tokenizer)?;
    }
    if tokenizer.tokens == rows || class.traits.cuts_embedding && tokenizer.tokens < rows {
        return Ok(tokenizer);
    }
    let what = format!("{} tokens, and {rows} rows of the embedding", tokenizer.tokens);
    Err(wrong("vocab_size", what))
}

/// The tensors of GGUF: those that are computed, and what `tensors` become. `main` is the type of
/// matrices, and `tokens` the number of rows that the embedding keeps.
fn make_tensors<'m>(
    tensors: Vec<Mapped<'m>>,
    model: &Model<'_>,
    (main, tokens): (TargetDtype, usize),
    request: &GgufRequest<'_>,
) -> Result<Vec<Group<'m>>> {
    let Model { class, fields, dims, rope, .. } = model;
    let mut out = Vec::with_capacity(tensors.len() + 1);
    out.extend(rope.tensors(class, dims)?.into_iter().map(computed));
    out.extend(fills::to_gguf(class, fields, dims)?);
    for tensor in tensors {
        let group = tensor_of(tensor, class, dims, main, request)?;
        out.push(match group.name == EMBEDDING && tokens < dims.vocab {
            true => with_rows(group, tokens),
            false => group,
        });
    }
    Ok(out)
}

/// The embedding of tokens.
const EMBEDDING: &str = "token_embd.weight";

/// Fails if there is no `lm_head` although it is not the embedding: llama.cpp would take the
/// embedding for it.
/// The embedding is what llama.cpp takes for that of a class which has none.
fn require_output(
    class: &ModelClass,
    (name, fields): (&str, &Fields),
    tensors: &[Mapped<'_>],
) -> Result<()> {
    let is_draft = class.traits.is_draft;
    let is_flagged = fields.flag("tie_word_embeddings");
    let is_tied = class.traits.ties_output || is_base(name) && !is_draft || is_flagged;
    // That of the target.
    let has_none = || {
        tensors
            .iter()
            .all(|tensor| tensor.rule.gguf != "token_embd")
    };
    if is_draft && (class.traits.needs_output || has_none()) {
        return Ok(());
    }
    let has_output = tensors.iter().any(|tensor| tensor.name == OUTPUT);
    if has_output || is_tied && !class.traits.needs_output {
        return Ok(());
    }
    let why = match is_tied {
        true => format!("llama.cpp's {} needs it", class.gguf),
        false => "tie_word_embeddings in config.json is false".to_owned(),
    };
    let error = AnamnesisError::parse(format!("there is none, and {why}"));
    Err(error.in_tensor("lm_head.weight"))
}

/// What each tensor of GGUF is made of, the first one of several.
fn source_names(tensors: &[Mapped<'_>]) -> HashMap<String, String> {
    let names = tensors.iter().map(|tensor| {
        let source = &tensor.sources[0].1.name;
        (tensor.name.clone(), source.clone())
    });
    names.collect()
}

/// Fails if llama.cpp would not load a file of `tensors` with the metadata `keys`. `sources` says what
/// tensors are made of.
///
/// # Errors
/// `Parse` that names the tensor or the key, and what llama.cpp has room for.
fn require_loadable<'a>(
    class: &ModelClass,
    keys: &[KeyValue],
    tensors: impl Iterator<Item = &'a Group<'a>>,
    sources: &HashMap<String, String>,
) -> Result<()> {
    let keys = keys.iter().map(|(key, value)| (key.as_str(), value));
    let tensors = tensors.map(|group| (&*group.name, &group.shape[..]));
    let Some(problem) = problems(class.gguf, keys, tensors).into_iter().next() else {
        return Ok(());
    };
    let source = problem.tensor().and_then(|tensor| sources.get(tensor));
    let source = source.map_or(String::new(), |name| format!("{}: ", InTensor(&name)));
    let what =
        format!("{source}in GGUF, {problem}; its tensors alone are written with --tensors-only");
    Err(AnamnesisError::parse(what))
}

/// The first `rows` rows of the matrix `group`.
fn with_rows(group: Group<'_>, rows: usize) -> Group<'_> {
    let window = Window { inner: Arc::from(group.decoder), first: 0, rows };
    Group {
        shape: [rows, group.shape[1]].into(),
        is_copied: false,
        decoder: Box::new(window),
        ..group
    }
}

/// The row of the class `name`.
///
/// # Errors
/// `Unsupported` if there is none.
fn find_class(name: &str, config: &Value) -> Result<&'static ModelClass> {
    class_of(name, config).ok_or_else(|| {
        let what = "config.json: the class of the model has no GGUF names here; its tensors alone are written with --tensors-only";
        AnamnesisError::unsupported(name, what)
    })
}

/// Element type of matrices: the one that is asked for, or that of the first matrix that is stored
/// in two bytes.
pub(crate) fn main_dtype(tensors: &[&[Mapped<'_>]], request: &GgufRequest<'_>) -> TargetDtype {
    let all = || tensors.iter().copied().flatten();
    let sources = || all().flat_map(|tensor| &tensor.sources);
    let stored = || {
        let matrices = sources().filter(|(_, source)| source.shape.len() > 1);
        let mut dtypes = matrices.filter_map(|(_, source)| source.stored);
        let narrow = dtypes.find(|dtype| *dtype != TargetDtype::F32);
        let is_plain = || sources().all(|(_, source)| source.stored.is_some());
        narrow.or_else(|| is_plain().then_some(TargetDtype::F32))
    };
    request.to.or_else(stored).unwrap_or(request.decoded)
}

/// Whether llama.cpp wants the tensor `name` in F32, whatever the model's type.
///
/// Source: `ModelBase.prepare_tensors` in `conversion/base.py`.
pub(crate) fn is_always_f32(name: &str, rank: usize) -> bool {
    const ENDS: &[&str] = &[
        "_norm.weight",
        ".ffn_gate_inp.weight",
        ".ffn_gate_inp_shexp.weight",
        "position_embd.weight",
        "token_types.weight",
        ".ssm_conv1d.weight",
        ".ssm_conv1d_q.weight",
        ".ssm_conv1d_k.weight",
        ".ssm_conv1d_v.weight",
        ".shortconv.conv.weight",
        ".indexer.proj.weight",
        ".time_mix_first.weight",
        ".time_mix_w1.weight",
        ".time_mix_w2.weight",
        ".time_mix_decay_w1.weight",
        ".time_mix_decay_w2.weight",
        ".time_mix_lerp_fused.weight",
        ".altup_correct_coef.weight",
        ".altup_predict_coef.weight",
    ];
    let is_matrix = [".weight", ".lora_a", ".lora_b"]
        .iter()
        .any(|end| name.ends_with(end));
    rank <= 1 || !is_matrix || ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether llama.cpp's converter writes the tensor `name` of this architecture in F32, as it does not of others.
fn is_f32_of(architecture: &str, name: &str) -> bool {
    let mut ends = [".indexer.q_proj.weight", ".indexer.k_proj.weight"].into_iter();
    architecture == "minimax-m3" && ends.any(|end| name.ends_with(end))
}

/// The tensor of GGUF that is made of `tensor`.
fn tensor_of<'m>(
    tensor: Mapped<'m>,
    class: &ModelClass,
    dims: &Dims,
    main: TargetDtype,
    request: &GgufRequest<'_>,
) -> Result<Group<'m>> {
    let rule = tensor.rule;
    let there = rule.gguf_shape.filter(|_| tensor.suffix != ".bias");
    let is_stack = matches!(rule.transform, Transform::Experts | Transform::Stack(_));
    let rank = there.map_or(tensor.shape().len(), <[_]>::len) + usize::from(is_stack);
    // What is encoded is exact before, as far as it is stored.
    let own = tensor.sources[0].1.stored.unwrap_or(request.decoded);
    let dtype = match () {
        () if tensor.rule.keeps_f32
            || is_always_f32(&tensor.name, rank)
            || is_f32_of(class.gguf, &tensor.name) =>
        {
            TargetDtype::F32
        }
        () if request.encodes => own,
        () => main,
    };
    let change = match class.traits.norms_plus_one && has_offset(&tensor.name) {
        true => Change::PlusOne,
        false => Change::None,
    };
    let is_free = rank > 1 && !tensor.name.ends_with("_norm.weight");
    if !(request.fp8_as_q8 && is_free && tensor.sources.iter().all(|(_, source)| is_fp8(source))) {
        return transform::to_gguf(tensor, dtype, change, dims);
    }
    // Quantized from what decoding gives, which is F32.
    let mut group = transform::to_gguf(tensor, TargetDtype::F32, change, dims)?;
    match group
        .shape
        .last()
        .is_some_and(|cols| cols.is_multiple_of(Q8_0_BLOCK))
    {
        true => group.encoded_as = Some(EncodedAs::Q8_0),
        false => group.keeps = Some(TargetDtype::F16),
    }
    Ok(group)
}

/// Values of a block of Q8_0. llama.cpp's converter makes F16 of rows that are no blocks.
const Q8_0_BLOCK: usize = 32;

/// Whether the tensor is FP8 with scales.
fn is_fp8(source: &SourceTensor<'_>) -> bool {
    use QuantScheme::{FineGrainedFp8, PerChannelFp8, PerTensorFp8};

    matches!(source.scheme, FineGrainedFp8 { .. } | PerChannelFp8 { .. } | PerTensorFp8 { .. })
}

/// Whether the norm `name` is stored with 1 added in classes that do so. That of linear attention
/// is not.
pub(crate) fn has_offset(name: &str) -> bool {
    name.ends_with("norm.weight") && !name.ends_with("ssm_norm.weight")
}
