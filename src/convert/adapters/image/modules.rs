//! Modules of image and video models under two names: those of their authors, which single files
//! and ComfyUI have, and those of diffusers, which may have the rows of one module in several.
//!
//! Source: diffusers 0.42.1 `loaders/single_file_utils.py`
//! (`convert_flux_transformer_checkpoint_to_diffusers`, `convert_wan_transformer_to_diffusers`),
//! and
//! [`ldm_unet`](super::ldm_unet).

use super::ldm_unet;

/// Rows that two modules share. Rows are counted in columns of the weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedRows {
    /// The first of them in the module of each name: the authors', diffusers'.
    pub first: [usize; 2],
    /// How many times as many as columns; `None`: all to the end.
    pub count: Option<usize>,
}

impl SharedRows {
    pub(super) const ALL: Self = Self { first: [0, 0], count: None };
}

/// A module under the names of the authors and of diffusers, where `#` is a number.
struct Module {
    names: [&'static str; 2],
    rows: SharedRows,
}

impl Module {
    /// `name` under the other of both names, if it is the first: numbers of `names`. With the
    /// shared rows.
    fn renamed(&self, name: &str, [from, to]: [usize; 2]) -> Option<(String, SharedRows)> {
        Some((renamed(name, self.names[from], self.names[to])?, self.rows))
    }
}

const fn same(authors: &'static str, diffusers: &'static str) -> Module {
    Module { names: [authors, diffusers], rows: SharedRows::ALL }
}

/// Part `number` of the authors' module, of as many rows as columns.
const fn part(authors: &'static str, diffusers: &'static str, number: usize) -> Module {
    let rows = SharedRows { first: [number, 0], count: Some(1) };
    Module { names: [authors, diffusers], rows }
}

/// Flux 1.
const FLUX: &[Module] = &[
    same("img_in", "x_embedder"),
    same("txt_in", "context_embedder"),
    same("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    same("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    same("vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    same("vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    same("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    same("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    same("double_blocks.#.img_mod.lin", "transformer_blocks.#.norm1.linear"),
    same("double_blocks.#.txt_mod.lin", "transformer_blocks.#.norm1_context.linear"),
    part("double_blocks.#.img_attn.qkv", "transformer_blocks.#.attn.to_q", 0),
    part("double_blocks.#.img_attn.qkv", "transformer_blocks.#.attn.to_k", 1),
    part("double_blocks.#.img_attn.qkv", "transformer_blocks.#.attn.to_v", 2),
    part("double_blocks.#.txt_attn.qkv", "transformer_blocks.#.attn.add_q_proj", 0),
    part("double_blocks.#.txt_attn.qkv", "transformer_blocks.#.attn.add_k_proj", 1),
    part("double_blocks.#.txt_attn.qkv", "transformer_blocks.#.attn.add_v_proj", 2),
    same("double_blocks.#.img_attn.proj", "transformer_blocks.#.attn.to_out.0"),
    same("double_blocks.#.txt_attn.proj", "transformer_blocks.#.attn.to_add_out"),
    same("double_blocks.#.img_mlp.0", "transformer_blocks.#.ff.net.0.proj"),
    same("double_blocks.#.img_mlp.2", "transformer_blocks.#.ff.net.2"),
    same("double_blocks.#.txt_mlp.0", "transformer_blocks.#.ff_context.net.0.proj"),
    same("double_blocks.#.txt_mlp.2", "transformer_blocks.#.ff_context.net.2"),
    same("single_blocks.#.modulation.lin", "single_transformer_blocks.#.norm.linear"),
    part("single_blocks.#.linear1", "single_transformer_blocks.#.attn.to_q", 0),
    part("single_blocks.#.linear1", "single_transformer_blocks.#.attn.to_k", 1),
    part("single_blocks.#.linear1", "single_transformer_blocks.#.attn.to_v", 2),
    Module {
        names: ["single_blocks.#.linear1", "single_transformer_blocks.#.proj_mlp"],
        rows: SharedRows { first: [3, 0], count: None },
    },
    same("single_blocks.#.linear2", "single_transformer_blocks.#.proj_out"),
    same("final_layer.linear", "proj_out"),
    // diffusers has scales before shifts.
    Module {
        names: ["final_layer.adaLN_modulation.1", "norm_out.linear"],
        rows: SharedRows { first: [0, 1], count: Some(1) },
    },
    Module {
        names: ["final_layer.adaLN_modulation.1", "norm_out.linear"],
        rows: SharedRows { first: [1, 0], count: Some(1) },
    },
];

/// Wan.
const WAN: &[Module] = &[
    same("blocks.#.self_attn.q", "blocks.#.attn1.to_q"),
    same("blocks.#.self_attn.k", "blocks.#.attn1.to_k"),
    same("blocks.#.self_attn.v", "blocks.#.attn1.to_v"),
    same("blocks.#.self_attn.o", "blocks.#.attn1.to_out.0"),
    same("blocks.#.cross_attn.q", "blocks.#.attn2.to_q"),
    same("blocks.#.cross_attn.k", "blocks.#.attn2.to_k"),
    same("blocks.#.cross_attn.v", "blocks.#.attn2.to_v"),
    same("blocks.#.cross_attn.o", "blocks.#.attn2.to_out.0"),
    same("blocks.#.cross_attn.k_img", "blocks.#.attn2.add_k_proj"),
    same("blocks.#.cross_attn.v_img", "blocks.#.attn2.add_v_proj"),
    same("blocks.#.ffn.0", "blocks.#.ffn.net.0.proj"),
    same("blocks.#.ffn.2", "blocks.#.ffn.net.2"),
    same("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
    same("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
    same("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
    same("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
    same("time_projection.1", "condition_embedder.time_proj"),
    same("img_emb.proj.1", "condition_embedder.image_embedder.ff.net.0.proj"),
    same("img_emb.proj.3", "condition_embedder.image_embedder.ff.net.2"),
    same("head.head", "proj_out"),
];

/// Transformers of diffusers by what the names of their classes begin with, and their modules that
/// the scripts of kohya call as the authors do.
///
/// Source: diffusers 0.42.1 `loaders/lora_conversion_utils.py`
/// (`_convert_kohya_flux_lora_to_diffusers`, `_convert_musubi_wan_lora_to_diffusers`,
/// `_convert_non_diffusers_qwen_lora_to_diffusers`).
#[cfg(feature = "models")]
const TRANSFORMERS: &[(&str, &[Module])] =
    &[("FluxTransformer2D", FLUX), ("WanTransformer3D", WAN), ("QwenImageTransformer2D", &[])];

/// Modules of a transformer under the names of its authors.
#[cfg(feature = "models")]
#[derive(Clone, Copy)]
pub(super) struct AuthorsNames(&'static [Module]);

#[cfg(feature = "models")]
impl AuthorsNames {
    /// Those of the transformer `class` of diffusers; `None` if it is none of these.
    pub(super) fn of_class(class: &str) -> Option<Self> {
        let mut known = TRANSFORMERS.iter();
        let found = known.find(|(begin, _)| class.starts_with(begin));
        found.map(|&(_, modules)| Self(modules))
    }

    /// The authors' modules that have rows of the module `name` of diffusers, and these rows: those
    /// of the authors' module stand first. Empty: the authors call it the same.
    pub(super) fn of(self, name: &str) -> Vec<(String, SharedRows)> {
        let modules = self.0.iter();
        let found = modules.filter_map(|module| module.renamed(name, [1, 0]));
        found.collect()
    }

    /// The modules of diffusers that have rows of the authors' module `name`, and these rows, as
    /// [`of`](Self::of) returns them.
    pub(super) fn parts_of(self, name: &str) -> Vec<(String, SharedRows)> {
        let modules = self.0.iter();
        let found = modules.filter_map(|module| module.renamed(name, [0, 1]));
        found.collect()
    }
}

/// The other names of the module `name` below `prefix`, and the rows that it shares with the module
/// of each name: those of this module stand first.
pub(super) fn other_names(prefix: &str, name: &str) -> Vec<(String, SharedRows)> {
    let mut found = vec![];
    for module in FLUX.iter().chain(WAN) {
        let SharedRows { first: [authors, diffusers], count } = module.rows;
        let swapped = SharedRows { first: [diffusers, authors], count };
        found.extend(module.renamed(name, [0, 1]));
        let of_authors = module.renamed(name, [1, 0]);
        found.extend(of_authors.map(|(other, _)| (other, swapped)));
    }
    let mut of_unet = ldm_unet::names_of_authors(name);
    of_unet.extend(ldm_unet::name_of_diffusers(name));
    // transformers 5 stores a text encoder without the first part of the name.
    let is_clip = name.starts_with("encoder.layers.") && !prefix.ends_with("text_model.");
    let of_clip = is_clip.then(|| format!("text_model.{name}"));
    found.extend(
        of_unet
            .into_iter()
            .chain(of_clip)
            .map(|other| (other, SharedRows::ALL)),
    );
    found
}

/// `name` as `to`, if it is `from`.
fn renamed(name: &str, from: &str, to: &str) -> Option<String> {
    let Some((before, after)) = from.split_once('#') else {
        return (name == from).then(|| to.to_owned());
    };
    let number = name.strip_prefix(before)?.strip_suffix(after)?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| to.replace('#', number))
}
