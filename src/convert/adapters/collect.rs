//! Collects what an adapter changes, by the weights of the model.

use std::collections::{BTreeMap, HashMap};

use super::apart::ExpertsApart;
use super::change::WeightChange;
use super::factors::{FactorForm, Factors, ProductSize};
use super::form::{form_of_square, form_that_fits};
use super::heads::is_head;
use super::matrices::AdapterMatrix;
use super::parameters::{Assigner, Assignment, Parameters};
use super::peft_tensors::Replacement;
use super::sorted::{LoraTensors, SortedTensors};
use super::tensor::AdapterTensor;
use super::{Adapter, vocabulary};
use crate::config::what_was_meant;
use crate::error::InTensor;
use crate::model::Tensor;
use crate::remember::ResolvedItem;
use crate::remember::layout::adapted::{AddedMatrix, Lengths};
use crate::remember::seam::wrong;
use crate::{AnamnesisError, Result};

/// Collects the changes of one adapter.
pub(super) struct Collector<'a, 'm> {
    pub number: usize,
    pub adapter: &'a Adapter,
    pub names: &'a HashMap<String, usize>,
    pub items: &'a [ResolvedItem<'m>],
    /// Number of the embedding that is the head, too, which has no tensor of its own.
    pub tied: Option<usize>,
    pub changes: &'a mut BTreeMap<usize, WeightChange>,
}

impl Collector<'_, '_> {
    /// # Errors
    /// As [`merge`](super::merge::merge).
    pub(super) fn collect(&mut self, sorted: &SortedTensors) -> Result<()> {
        if !self.adapter.weight.is_finite() {
            let what = format!("its weight is {}", self.adapter.weight);
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        if sorted.is_empty() {
            return Err(AnamnesisError::parse("it has no tensors"));
        }
        for (weight, index) in &sorted.replacements {
            self.replace(weight, *index)?;
        }
        for (weight, index) in &sorted.rows {
            self.replace_rows(weight, *index)?;
        }
        self.require_rows(sorted.rows.keys())?;
        for (name, index) in &sorted.sums {
            self.add_values(name, &self.tensor(*index), self.adapter.weight)?;
        }
        let parameters = self.parameters(sorted)?;
        for (module, tensors) in &sorted.lora {
            match sorted.placed.get(module) {
                Some(places) => self.add_placed(*tensors, places)?,
                None => self.add_product(module, *tensors, parameters.weight(module))?,
            }
        }
        self.require_biases(sorted)
    }

    /// The parameters that the adapter names one by one, and which pair of factors belongs to
    /// which.
    fn parameters(&self, sorted: &SortedTensors) -> Result<Parameters> {
        let Some(config) = self.adapter.peft() else {
            return Ok(Parameters::default());
        };
        let assigner = Assigner {
            shape_of: &|weight| {
                let at = self.names.get(weight)?;
                Some(self.items[*at].shape().to_vec())
            },
            tensor: &|index| self.tensor(index),
        };
        let names = self.names.keys().map(String::as_str);
        assigner.assign(&config.parameters, names, &sorted.lora)
    }

    pub(super) fn tensor(&self, index: usize) -> AdapterTensor {
        let model = self.adapter.files.tensors.clone();
        AdapterTensor { model, index }
    }

    /// The item that the adapter's tensor `t` changes: its number and its shape.
    pub(super) fn item(&self, weight: &str, t: &Tensor<'_>) -> Result<(usize, Vec<usize>)> {
        let tied = || self.tied.filter(|_| is_head(weight));
        let Some(index) = self.names.get(weight).copied().or_else(tied) else {
            let meant = what_was_meant(weight, self.names.keys().map(String::as_str));
            let is_ggml = self.names.contains_key("token_embd.weight");
            let hint = match (is_ggml, self.adapter.has_gguf_names()) {
                (true, false) => {
                    "; its names are llama.cpp's, and an output directory (-o) gives it those of Hugging Face first"
                }
                (false, true) => {
                    "; the adapter's names are llama.cpp's, which models in GGUF have, and those that become GGUF (--to gguf)"
                }
                _ => "",
            };
            let what = format!("the model has no `{weight}` that it could change; {meant}{hint}");
            return Err(wrong(t, what));
        };
        let resized = self.changes.get(&index).and_then(|c| c.shape.clone());
        let shape = resized.unwrap_or_else(|| self.items[index].shape().to_vec());
        Ok((index, shape))
    }

    /// Whether `weight` is that of a head that is the embedding.
    pub(super) fn is_tied_head(&self, weight: &str) -> bool {
        self.tied.is_some() && is_head(weight)
    }

    /// The changes of item `index`, which this adapter is about to make.
    pub(super) fn change(&mut self, index: usize) -> &mut WeightChange {
        let change = self.changes.entry(index).or_default();
        if change.last.replace(self.number) != Some(self.number) {
            change.adapters += 1;
        }
        change
    }

    /// A weight that was trained as a whole.
    fn replace(&mut self, weight: &str, index: usize) -> Result<()> {
        let tensor = self.tensor(index);
        let t = tensor.get();
        let (item, shape) = self.item(weight, &t)?;
        let is_resized = t.shape() != shape;
        if is_resized && !vocabulary::is_resized(weight, &shape, t.shape()) {
            return Err(wrong(&t, format!("`{weight}` of the model is {shape:?}")));
        }
        self.require_whole_weight(&t)?;
        let replacement = Replacement::new(tensor.clone())?;
        let change = self.change(item);
        change.replacement = Some(replacement);
        if is_resized {
            change.shape = Some(t.shape().to_vec());
        }
        self.require_alone(item, &t)
    }

    /// Fails if the adapter's tensor `t`, which replaces values, is to count in part.
    pub(super) fn require_whole_weight(&self, t: &Tensor<'_>) -> Result<()> {
        if self.adapter.weight == 1.0 {
            return Ok(());
        }
        let what =
            "it replaces a weight, of which there is no part: the adapter's weight must be 1";
        Err(wrong(t, what))
    }

    /// A product of low rank, with the lengths of DoRA and what is added to the bias. It belongs to
    /// the weight of the module, or to the parameter that `assigned` names.
    fn add_product(
        &mut self,
        module: &str,
        tensors: LoraTensors,
        assigned: Option<&Assignment>,
    ) -> Result<()> {
        if tensors.composed.is_some() {
            return self.add_composed(module, tensors);
        }
        let (a, b) = self.factors(tensors)?;
        self.require_kind(&tensors, &a.get())?;
        if tensors.is_stack {
            return self.add_stack(module, tensors, (a, b));
        }
        if let Some(assigned) = assigned
            && let Some(experts) = &assigned.apart
        {
            return self.add_experts((assigned, experts), tensors, (a, b));
        }
        let weight = match assigned {
            Some(assigned) => assigned.weight.clone(),
            None => format!("{module}.weight"),
        };
        let (item, shape) = self.item(&weight, &a.get())?;
        let form = match assigned {
            Some(assigned) => assigned.form,
            None => self.form((module, &shape), tensors, [&a.get(), &b.get()])?,
        };
        let factors = Factors { form, a: a.clone(), b };
        let size = factors.fit((&weight, &shape))?;
        // Patterns of ranks and scales name a parameter by its own name.
        let pattern_name = assigned.map_or(module, |assigned| &assigned.weight);
        let scale = self.scale(pattern_name, tensors, (&a.get(), size.rank))?;
        let scale = scale * self.adapter.weight;
        let product = factors.scaled(size, scale)?;
        let lengths = self.lengths(&a.get(), tensors, (size, form))?;
        self.add(item, (size.whole(), product), &a.get())?;
        let change = self.change(item);
        if let Some(lengths) = lengths
            && change.lengths.replace(lengths).is_some()
        {
            let what = "the model's head is its embedding, and the adapter has DoRA for both: each would set the lengths of the other";
            return Err(wrong(&a.get(), what));
        }
        self.require_alone(item, &a.get())?;
        self.add_bias((module, assigned), (tensors, scale), &a.get())
    }

    /// The factors A and B of a module, of which one may be missing.
    fn factors(&self, tensors: LoraTensors) -> Result<(AdapterTensor, AdapterTensor)> {
        match (tensors.a, tensors.b) {
            (Some(a), Some(b)) => Ok((self.tensor(a), self.tensor(b))),
            _ => {
                let what = "one of the two factors (A, B) of the module is missing";
                Err(tensors.all().next().map_or_else(
                    || AnamnesisError::parse(what),
                    |first| wrong(&self.tensor(first).get(), what),
                ))
            }
        }
    }

    /// The products of a parameter whose experts the model has apart.
    fn add_experts(
        &mut self,
        (assigned, experts): (&Assignment, &ExpertsApart),
        tensors: LoraTensors,
        (a, b): (AdapterTensor, AdapterTensor),
    ) -> Result<()> {
        let t = a.get();
        let form = assigned.form;
        let factors = Factors { form, a: a.clone(), b: b.clone() };
        let size = factors.fit((&assigned.weight, &experts.shape()))?;
        let scale = self.scale(&assigned.weight, tensors, (&t, size.rank))? * self.adapter.weight;
        // A parameter has neither.
        self.lengths(&t, tensors, (size, form))?;
        self.add_bias(("", Some(assigned)), (tensors, scale), &t)?;
        for (name, size, product) in experts.products((&a, &b), size, scale)? {
            let (item, _) = self.item(&name, &t)?;
            self.add(item, (size, product), &t)?;
            self.require_alone(item, &t)?;
        }
        Ok(())
    }

    /// Adds a product to item `index`, of which the product makes a matrix of `size`.
    pub(super) fn add(
        &mut self,
        index: usize,
        (size, product): ([usize; 2], AddedMatrix),
        t: &Tensor<'_>,
    ) -> Result<()> {
        let change = self.change(index);
        if *change.size.get_or_insert(size) != size {
            let what = "the weight has other rows and columns for another tensor of an adapter";
            return Err(wrong(t, what));
        }
        change.products.push(product);
        Ok(())
    }

    /// How the factors A and B of a module are stored, whose weight has the shape `weight`.
    ///
    /// # Errors
    /// `Unsupported` if nothing tells.
    fn form(
        &self,
        (module, weight): (&str, &[usize]),
        tensors: LoraTensors,
        [a, b]: [&Tensor<'_>; 2],
    ) -> Result<FactorForm> {
        if let Some(form) = tensors.form {
            return Ok(form);
        }
        // Convolutions have one order, whatever the settings say of other modules.
        if a.shape().len() > 2 {
            return Ok(FactorForm::OutIn);
        }
        // An embedding is a table of rows, whose product is transposed whatever the settings say of
        // other modules.
        if tensors.is_embedding {
            return Ok(FactorForm::InOut);
        }
        if let Some(form) = form_that_fits(weight, a, b) {
            return Ok(form);
        }
        let (parent, _) = module.rsplit_once('.').unwrap_or_default();
        let beside = self.names.get(&format!("{parent}.c_attn.weight"));
        let beside = beside.map(|&at| self.items[at].shape());
        let config = self.adapter.peft();
        let is_transposed = config.is_some_and(|config| config.is_transposed);
        form_of_square((module, a), is_transposed, beside)
    }

    /// The factor of the product of a module of these `tensors`, whose A is `a`, and whose rank is
    /// `stored`.
    fn scale(
        &self,
        module: &str,
        tensors: LoraTensors,
        (a, stored): (&Tensor<'_>, usize),
    ) -> Result<f64> {
        let config = match (tensors.scale, self.adapter.peft()) {
            (Some(scale), _) => return Ok(scale),
            (None, Some(config)) => config,
            (None, None) => return Err(wrong(a, "it has no rank, so its scale is not known")),
        };
        let (rank, scale) = config.rank_and_scale(module)?;
        if stored as f64 != rank {
            let what = format!("its rank is {stored}, and {rank} in the settings of the adapter");
            return Err(wrong(a, what));
        }
        Ok(scale)
    }

    /// The lengths that an adapter of DoRA has for the outputs of the weight of `a`: rows of `[out,
    /// in]`, columns of `[in, out]` and of embeddings.
    fn lengths(
        &self,
        a: &Tensor<'_>,
        tensors: LoraTensors,
        (size, form): (ProductSize, FactorForm),
    ) -> Result<Option<Lengths>> {
        let is_dora = self.adapter.is_dora();
        let Some(index) = tensors.lengths else {
            return match is_dora {
                true => Err(wrong(
                    a,
                    "the settings say DoRA, and the module has no `lora_magnitude_vector`",
                )),
                false => Ok(None),
            };
        };
        let tensor = self.tensor(index);
        let t = tensor.get();
        if !is_dora {
            return Err(wrong(&t, "the settings of the adapter do not say DoRA (`use_dora`)"));
        }
        let is_matrix =
            matches!(form, FactorForm::OutIn | FactorForm::InOut | FactorForm::Transposed);
        if !is_matrix || self.adapter.weight != 1.0 {
            let what = format!(
                "{}: DoRA is merged into matrices and convolutions alone, with weight 1",
                InTensor(&t.name())
            );
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        let (n, what) = match form {
            FactorForm::InOut => (size.cols, "columns"),
            _ => (size.rows, "rows"),
        };
        if t.elements() != n {
            return Err(wrong(&t, format!("the weight has {n} {what}")));
        }
        Ok(Some(match form {
            FactorForm::InOut => {
                let lengths = AdapterMatrix::boxed(tensor, [1, n], false)?;
                Lengths::Columns { lengths, group: 1 }
            }
            _ => Lengths::Rows(AdapterMatrix::boxed(tensor, [n, 1], false)?),
        }))
    }

    /// Fails if several adapters change an item that one of them replaces, or whose rows get
    /// lengths: the order would count.
    pub(super) fn require_alone(&self, item: usize, t: &Tensor<'_>) -> Result<()> {
        let Some(change) = self.changes.get(&item) else {
            return Ok(());
        };
        let is_whole =
            change.replacement.is_some() || change.lengths.is_some() || !change.rows.is_empty();
        if is_whole && change.adapters > 1 {
            let what = format!(
                "{}: several adapters change the weight, and one of them replaces it or is DoRA",
                InTensor(&t.name())
            );
            return Err(AnamnesisError::unsupported("several adapters", what));
        }
        Ok(())
    }
}
