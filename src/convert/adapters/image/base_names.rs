//! How a LoRA under other names calls the modules of a base: as diffusers writes them, as ComfyUI
//! reads them, as the scripts of kohya do, or as PEFT does.
//!
//! The scripts of kohya call modules of the UNet as diffusers or its authors do, and those of
//! transformers as the authors do, who may have several in one.
//!
//! Source: diffusers 0.42.1 `utils/state_dict_utils.py` (`convert_state_dict_to_kohya`).

use std::collections::{BTreeMap, HashMap};

use super::modules::{AuthorsNames, SharedRows};
use super::names::joined;
use crate::config::Texts;
use crate::convert::adapters::sorted::PlacedRows;
use crate::families::PEFT_PREFIX;
use crate::{AnamnesisError, ParsedModel, Result};

/// What modules are called behind, where the authors' file has all parts of a pipeline.
const DIFFUSION_MODEL: &str = "model.diffusion_model.";

/// What text encoders are called behind in such a file.
const TEXT_ENCODERS: &[&str] = &["cond_stage_model.", "conditioner.", "text_encoders."];

/// What modules of diffusers alone begin with.
const OF_DIFFUSERS: &[&str] = &[
    "condition_embedder.",
    "down_blocks.",
    "mid_block.",
    "single_transformer_blocks.",
    "up_blocks.",
];

/// Parts of a pipeline by what is in the names of their classes.
const PARTS: &[(&str, &str)] =
    &[("UNet", "unet"), ("Transformer", "transformer"), ("CLIPText", "text_encoder")];

/// Whose names an output has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::convert) enum LoraNames {
    /// diffusers' for a part of a pipeline, ComfyUI's for a file of the authors.
    Pipeline,
    Kohya,
    /// PEFT's, in a directory.
    Peft,
}

/// Rows of a product that are rows of a module of the output.
pub(super) struct TargetRows<'b> {
    /// The module, with all that the names of its factors begin with.
    pub module: String,
    /// Rows of the module.
    pub height: usize,
    /// The shape of each row, where factors must have it.
    pub kernel: Option<&'b [usize]>,
    /// The first row of the product, and that of the module.
    pub from: usize,
    pub to: usize,
    pub rows: usize,
}

/// How the output calls modules of a base.
pub(super) struct BaseNames<'b> {
    /// The part of a pipeline; `None`: a file of the authors.
    part: Option<String>,
    /// The class of that part.
    class: String,
    /// A tensor that is called as diffusers does.
    of_diffusers: Option<&'b str>,
    /// Shapes of the base's tensors.
    shapes: HashMap<&'b str, &'b [usize]>,
    style: LoraNames,
}

impl<'b> BaseNames<'b> {
    /// Those of `base`, whose tensors have these names and shapes.
    ///
    /// # Errors
    /// `Unsupported` if `config.json` beside `base` is that of a model which is no part of a
    /// pipeline that has LoRA.
    pub(super) fn new(
        base: &ParsedModel,
        shapes: HashMap<&'b str, &'b [usize]>,
        style: LoraNames,
    ) -> Result<Self> {
        let directory = base.model_directory();
        let texts = directory.as_ref().map(|at| Texts::new(at, &base.limits));
        let config = texts.map(|texts| texts.json("config.json"));
        let of_diffusers = shapes.keys().copied();
        let of_diffusers = of_diffusers
            .filter(|name| begins_with(name, OF_DIFFUSERS))
            .min();
        let Some(config) = config.transpose()?.flatten() else {
            let (part, class) = (None, String::new());
            return Ok(Self { part, class, of_diffusers, shapes, style });
        };
        let class = config
            .get("_class_name")
            .or_else(|| config["architectures"].get(0));
        let class = class.and_then(serde_json::Value::as_str).unwrap_or("");
        let Some((_, part)) = PARTS.iter().find(|(name, _)| class.contains(name)) else {
            let what = format!(
                "BASE is a `{class}`, and no UNet, transformer or text encoder of diffusers"
            );
            return Err(refused(what));
        };
        // Pipelines have directories that are called as their parts: `text_encoder_2`.
        let called = directory.as_ref().and_then(|at| at.file_name()?.to_str());
        let is_numbered = |name: &&str| {
            let rest = name
                .strip_prefix(part)
                .and_then(|rest| rest.strip_prefix('_'));
            rest.is_some_and(|number| number.parse::<u8>().is_ok())
        };
        let part = called.filter(is_numbered).unwrap_or(part);
        let (part, class) = (Some(part.to_owned()), class.to_owned());
        Ok(Self { part, class, of_diffusers, shapes, style })
    }

    /// Where the rows of a product are in modules of the output, if they belong at `place` of the
    /// base. `component` is the part of the pipeline that the adapter has them in.
    ///
    /// # Errors
    /// `Unsupported` if the base does not tell the names; `Parse` if it lacks a module.
    pub(super) fn targets(
        &self,
        place: &PlacedRows,
        component: &str,
    ) -> Result<Vec<TargetRows<'b>>> {
        let &PlacedRows { ref module, from, to, rows } = place;
        let shape = self.shape(module)?;
        let (height, cols) = (shape[0], shape[1..].iter().product());
        // kohya's scripts have factors as they were trained.
        let kernel = (self.style != LoraNames::Kohya).then_some(&shape[1..]);
        let whole = |module| vec![TargetRows { module, height, kernel, from, to, rows }];
        let Some(part) = &self.part else {
            return self.of_authors(module, component).map(whole);
        };
        let number = number_of(component);
        let is_first_text = part == "text_encoder";
        if self.style == LoraNames::Peft {
            return Ok(whole(format!("{PEFT_PREFIX}{module}")));
        }
        if self.style == LoraNames::Pipeline {
            let part = match (is_first_text, number) {
                (true, Some(number @ 2..)) => format!("{part}_{number}"),
                _ => part.clone(),
            };
            return Ok(whole(format!("{part}.{module}")));
        }
        if let Some(own) = number_of(part) {
            let number = number.filter(|_| is_first_text).unwrap_or(own);
            return Ok(whole(text_module(module, number)));
        }
        if part == "unet" {
            return Ok(whole(kohya("lora_unet", module)));
        }
        let Some(names) = AuthorsNames::of_class(&self.class) else {
            let what = format!(
                "kohya's scripts call modules of a `{}` as its authors do; give their file as BASE",
                self.class
            );
            return Err(refused(what));
        };
        let found = names.of(module);
        if found.is_empty() {
            return Ok(whole(kohya("lora_unet", module)));
        }
        let mut targets = vec![];
        for (authors, SharedRows { first: [theirs, ours], count }) in found {
            let ours = ours * cols;
            let len = count
                .map_or(height, |count| count * cols)
                .min(height.saturating_sub(ours));
            let (start, end) = (to.max(ours), (to + rows).min(ours + len));
            if start < end {
                targets.push(TargetRows {
                    height: self.height(names, &authors, cols)?,
                    module: kohya("lora_unet", &authors),
                    kernel: None,
                    from: from + start - to,
                    to: theirs * cols + start - ours,
                    rows: end - start,
                });
            }
        }
        Ok(targets)
    }

    /// Modules of the base that PEFT would find by the name of one of `modules`, which names end in,
    /// and that are none of these.
    pub(super) fn also_found<T>(&self, modules: &BTreeMap<String, T>) -> Vec<String> {
        let all = self.shapes.keys();
        let all = all.filter_map(|name| {
            let module = name.strip_suffix(".weight")?;
            Some(module.strip_prefix(DIFFUSION_MODEL).unwrap_or(module))
        });
        let is_found = |module: &&str| {
            let mut dots = module.match_indices('.');
            !modules.contains_key(*module)
                && dots.any(|(at, _)| modules.contains_key(&module[at + 1..]))
        };
        let mut found: Vec<String> = all.filter(is_found).map(str::to_owned).collect();
        found.sort_unstable();
        found
    }

    /// Rows of the module that the authors call `authors`, whose parts have `cols` columns.
    fn height(&self, names: AuthorsNames, authors: &str, cols: usize) -> Result<usize> {
        let mut height = 0;
        for (module, SharedRows { first: [theirs, ours], count }) in names.parts_of(authors) {
            let rows = match count {
                Some(count) => count * cols,
                None => self.shape(&module)?[0].saturating_sub(ours * cols),
            };
            height = height.max(theirs * cols + rows);
        }
        Ok(height)
    }

    /// The shape of a module's weight, which has rows.
    fn shape(&self, module: &str) -> Result<&'b [usize]> {
        let shape = self.shapes.get(&*format!("{module}.weight"));
        let shape = shape.copied().filter(|shape| !shape.is_empty());
        shape.ok_or_else(|| AnamnesisError::parse(format!("BASE has no `{module}.weight`")))
    }

    /// The module `module` of a file of the authors.
    fn of_authors(&self, module: &str, component: &str) -> Result<String> {
        if let Some(name) = self.of_diffusers {
            let what = format!(
                "BASE has the names of diffusers (`{name}`), and which part of a pipeline it is says the config.json that belongs beside it"
            );
            return Err(refused(what));
        }
        let rest = module.strip_prefix(DIFFUSION_MODEL).unwrap_or(module);
        let is_other = begins_with(module, TEXT_ENCODERS);
        match (self.style, is_other, number_of(component)) {
            (LoraNames::Pipeline, false, _) => Ok(format!("diffusion_model.{rest}")),
            (LoraNames::Peft, false, _) => Ok(format!("{PEFT_PREFIX}{rest}")),
            (LoraNames::Kohya, false, _) => Ok(kohya("lora_unet", rest)),
            (LoraNames::Kohya, true, Some(number)) => Ok(text_module(module, number)),
            _ => {
                let what = format!(
                    "`{module}` of BASE is no part of its diffusion model; give that part by itself as BASE"
                );
                Err(refused(what))
            }
        }
    }
}

/// The number of the text encoder that an adapter calls `component`; `None` if it is none.
fn number_of(component: &str) -> Option<u8> {
    let of_kohya = component.strip_prefix("lora_te");
    let of_diffusers = || component.strip_prefix("text_encoder");
    let number = of_kohya.or_else(of_diffusers)?.trim_start_matches('_');
    match number.is_empty() {
        true => Some(1),
        false => number.parse().ok(),
    }
}

/// The module `module` of the text encoder `number` for kohya's scripts.
fn text_module(module: &str, number: u8) -> String {
    let component = format!("lora_te{number}");
    // transformers 5 has no `text_model`.
    match module.find("encoder.layers.") {
        Some(at) => kohya(&component, &format!("text_model.{}", &module[at..])),
        None => kohya(&component, module),
    }
}

/// The module `module` of a part of a pipeline for kohya's scripts.
fn kohya(component: &str, module: &str) -> String {
    format!("{component}_{}", joined(module))
}

fn begins_with(name: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|part| name.starts_with(part))
}

fn refused(what: String) -> AnamnesisError {
    AnamnesisError::unsupported("a LoRA under other names", what)
}
