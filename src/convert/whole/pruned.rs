//! [`Pruned`]: what changes in a model that is written without some of its layers.

use crate::config::Texts;
use crate::convert::adapters::ConfigField;
use crate::convert::options::ConvertOptions;
use crate::families::{LayersLeft, size_label, without_layers, without_layers_of_config};
use crate::model::gguf::GgufMetadataValue;
use crate::remember::ResolvedItem;
use crate::{AnamnesisError, ConvertTarget, ParsedModel, Result};

/// Key of the number of parameters.
const SIZE_LABEL: &str = "general.size_label";

/// A model without some of its layers, or with all of them.
#[derive(Default)]
pub(in crate::convert) struct Pruned {
    left: Option<LayersLeft>,
    /// Members of `config.json` that change.
    pub fields: Vec<ConfigField>,
    /// Keys of GGUF metadata that change.
    pub keys: Vec<(String, GgufMetadataValue)>,
    /// What the metadata says of the number of parameters.
    size_label: Option<String>,
}

impl Pruned {
    /// What the options leave of `model`.
    ///
    /// # Errors
    /// `Usage` if the output has other names than the model, or another file goes by the numbers of
    /// layers; those of [`LayersLeft`].
    pub(in crate::convert) fn of(model: &ParsedModel, options: &ConvertOptions) -> Result<Self> {
        let pruned = &options.names.prune_layers;
        if pruned.is_empty() {
            return Ok(Self::default());
        }
        check_options(model, options)?;
        if let Some(source) = model.gguf() {
            let (left, keys) = without_layers(&source.metadata, pruned)?;
            let size_label = source.metadata.get(SIZE_LABEL);
            let size_label = size_label.as_ref().and_then(GgufMetadataValue::as_string);
            let size_label = size_label.map(str::to_owned);
            return Ok(Self { left: Some(left), keys, size_label, ..Self::default() });
        }
        let texts = model
            .model_directory()
            .map(|directory| Texts::new(&directory, &model.limits));
        let config = texts
            .map(|texts| texts.json("config.json"))
            .transpose()?
            .flatten();
        let (left, fields) = without_layers_of_config(&config.unwrap_or_default(), pruned)?;
        let field = |(key, old, new)| ConfigField { key, old: Some(old), new };
        let fields = fields.into_iter().map(field).collect();
        Ok(Self { left: Some(left), fields, ..Self::default() })
    }

    /// Takes the layers out of `items`, and gives the others their new names. Returns the names of the
    /// tensors that are left out.
    pub(in crate::convert) fn apply(&mut self, items: &mut Vec<ResolvedItem<'_>>) -> Vec<String> {
        let mut left_out = vec![];
        let Some(left) = &self.left else {
            return left_out;
        };
        let label = |items: &[ResolvedItem<'_>]| {
            size_label(items.iter().map(|item| (item.name(), item.shape())))
        };
        let is_made = self
            .size_label
            .as_ref()
            .is_some_and(|stated| *stated == label(items));
        items.retain_mut(|item| {
            let Some(name) = left.new_name(item.name()) else {
                left_out.push(item.name().to_owned());
                return false;
            };
            let name = name.into_owned();
            if name != item.name() {
                item.rename(name);
            }
            true
        });
        if is_made {
            let label = GgufMetadataValue::String(label(items));
            self.keys.push((SIZE_LABEL.to_owned(), label));
        }
        left_out
    }
}

/// Fails if the output has other names than the model, or the options name a file that goes by the
/// numbers that layers have now.
fn check_options(model: &ParsedModel, options: &ConvertOptions) -> Result<()> {
    let is_same_side = match options.target {
        ConvertTarget::Gguf => model.is_gguf(),
        ConvertTarget::Safetensors => {
            !model.is_gguf() && options.is_directory(model) && !options.makes_mlx()
        }
        _ => false,
    };
    let what = if !is_same_side {
        "the output has the names of the model: a directory becomes a directory, GGUF becomes GGUF; leave layers out first, and convert that"
    } else if model.is_gguf() && options.encodes() {
        "types of a mixture go by how many layers there are; leave layers out first, and encode that"
    } else if options.encoding_files().next().is_some() || !options.adapters.is_empty() {
        "importance matrices, adapters and the like name layers by the numbers that they have now; leave layers out first, or merge first"
    } else {
        return Ok(());
    };
    Err(AnamnesisError::usage(format!("--prune-layers: {what}")))
}
