//! What a class makes of a config: the fields that it leaves out, those that other fields say, what
//! llama.cpp takes for granted, and sizes.

use serde_json::Value;

use super::dims::{Dims, check_layers};
use super::fields::{Fields, HEADS, LAYER_KINDS, LAYERS, LETTERS, layer_kinds, wrong};
use super::rope::Rope;
use super::table::{HeadDim, Model, ModelClass, Prediction, Transform};
use crate::Result;

impl Fields {
    /// Adds what `class` takes for granted.
    ///
    /// # Errors
    /// `Parse` if a field that others follow from has another type.
    pub(crate) fn complete(&mut self, class: &ModelClass) -> Result<()> {
        for (key, default) in class.defaults {
            self.0
                .entry((*key).to_owned())
                .or_insert_with(|| default.into());
        }
        if !class.traits.layer_letters.is_empty() {
            self.kinds_by_letter(class)?;
            self.count_kinds();
        }
        check_layers(self)?;
        if let Some(Value::Array(kinds)) = self.0.get_mut(LAYER_KINDS) {
            for kind in kinds {
                let meant = class
                    .traits
                    .kind_names
                    .iter()
                    .find(|(name, _)| kind == name);
                if let Some((_, meant)) = meant {
                    *kind = (*meant).into();
                }
            }
        }
        let has_kinds = self.0.contains_key(LAYER_KINDS);
        if let Some((kind, every)) = class.traits.layer_kinds.filter(|_| !has_kinds) {
            let every = self
                .count(&["full_attention_interval"])?
                .map_or(every, |n| n as usize);
            let kinds = layer_kinds(self.need(LAYERS)? as usize, kind, every);
            self.0.insert(LAYER_KINDS.to_owned(), kinds);
        }
        class
            .traits
            .completes
            .iter()
            .try_for_each(|complete| complete(self))
    }

    /// Sets `layer_types` to what `hybrid_override_pattern` or `layers_block_type` says.
    fn kinds_by_letter(&mut self, class: &ModelClass) -> Result<()> {
        let letters = class.traits.layer_letters;
        let Some(pattern) = self.0.get(LETTERS) else {
            let kinds = self.0.remove("layers_block_type");
            self.0
                .extend(kinds.map(|kinds| (LAYER_KINDS.to_owned(), kinds)));
            return Ok(());
        };
        let kind = |letter: char| letters.iter().find(|(_, known)| *known == letter);
        let text = pattern.as_str().unwrap_or_default().chars();
        let kinds: Option<Value> = text
            .map(|letter| Some(kind(letter)?.0))
            .collect::<Option<Vec<_>>>()
            .map(Value::from);
        let Some(kinds) = kinds else {
            let what = format!("{pattern} has layers that llama.cpp's {} has not", class.gguf);
            return Err(wrong(LETTERS, what));
        };
        self.0.insert(LAYER_KINDS.to_owned(), kinds);
        Ok(())
    }

    /// Sets the number of layers to that of their kinds if the config does not state it, as
    /// transformers 5 writes it.
    fn count_kinds(&mut self) {
        let kinds = self.0.get(LAYER_KINDS).and_then(Value::as_array);
        let Some(layers) = kinds.map(Vec::len) else {
            return;
        };
        if self.get(LAYERS).is_none() {
            self.0.insert(LAYERS[0].to_owned(), layers.into());
        }
    }

    /// Fails if the config says something else than what llama.cpp takes for granted of `class`.
    pub(crate) fn check_implied(&self, class: &ModelClass, dims: &Dims) -> Result<()> {
        let owner = format!("llama.cpp's {}", class.gguf);
        self.check_values(class.implied, &owner)?;
        let expect = |field: &str, expected: &Value| self.expect(field, expected, &owner);
        if let Some(every) = class.traits.full_attention_every {
            expect("sliding_window_pattern", &every.into())?;
            let kind = class
                .traits
                .layer_kinds
                .map_or("sliding_attention", |(kind, _)| kind);
            expect(LAYER_KINDS, &layer_kinds(dims.layers, kind, every))?;
        }
        if let Some(kinds) = self.0.get(LAYER_KINDS)
            && kinds
                .as_array()
                .is_none_or(|kinds| kinds.len() != dims.layers)
        {
            let what = format!("it is no list of {} layers", dims.layers);
            return Err(wrong(LAYER_KINDS, what));
        }
        if let Some(kind) = class.traits.needs_kind
            && !dims
                .kinds()
                .into_iter()
                .flatten()
                .any(|found| found == kind)
        {
            let what = format!("no layer is of {kind}; llama.cpp has another class for that");
            return Err(wrong(LAYER_KINDS, what));
        }
        if class.traits.head_dim == HeadDim::Derived {
            let derived = dims.hidden / dims.heads;
            expect("head_dim", &derived.into())?;
        }
        for (field, other) in class.equal_fields {
            if let Some(expected) = self.0.get(*other) {
                expect(field, expected)?;
            }
        }
        Ok(())
    }
}

impl<'a> Model<'a> {
    /// The model of a config with these `fields`, which are [complete](Fields::complete).
    ///
    /// # Errors
    /// `Parse` that names the field which is missing or impossible.
    pub(crate) fn new(
        class: &'a ModelClass,
        stated: &'a Value,
        mut fields: Fields,
    ) -> Result<Self> {
        let dims = Dims::of_class(&fields, class)?;
        if class.traits.head_dim == HeadDim::Stated {
            fields.0.entry("head_dim").or_insert(dims.head.into());
        }
        let rope = Rope::new(&fields)?;
        Ok(Self { class, stated, fields, dims, rope })
    }
}

impl Dims {
    /// As [`new`](Self::new), with the sizes of layers, if they differ in models of `class`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of_class(fields: &Fields, class: &ModelClass) -> Result<Self> {
        let mut fields = fields.clone();
        if class.traits.is_recurrent {
            fields.0.insert(HEADS[0].to_owned(), 1.into());
        }
        let mut dims = Self::new(&fields)?;
        if let Prediction::Apart(names) = class.traits.prediction {
            dims.prediction_kinds = names.kinds;
        }
        if let Some(every) = class.traits.experts_every {
            dims.experts_every = every(&fields)?;
        }
        let mut of_part = [Transform::Neighbours, Transform::Halves].into_iter();
        if of_part.any(|transform| class.has_transform(transform)) {
            dims.rotating = Some(Rope::new(&fields)?.rotating(class, &dims));
        }
        if let Some(by_layer) = class.traits.by_layer {
            dims.layer_sizes = (by_layer.sizes)(&fields, &dims)?;
        }
        Ok(dims)
    }
}
