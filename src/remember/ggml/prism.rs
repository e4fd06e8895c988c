//! Rotated weights of PrismML's GGUF files (Bonsai 2), which `prism.hadamard.*` of the metadata
//! names.
//!
//! Its llama.cpp multiplies the input of a layer by signs S, and each block of columns of that by
//! Sylvester's matrix H over the root of its size: it computes `W' H S x`, and rows of the
//! embedding are `S H z`. A decoded model has plain layers, so that its weight is `W' H S`. `S` has
//! a sign for each column, by the width of the weight.
//!
//! `gdn_v_grouped` says that heads of values of linear attention are in the order of their keys
//! (`k * n + r`) in the stored columns of `ssm_out`, and not in that of the other tensors (`k +
//! keys * r`).
//!
//! 1bit-MONSTER's files say `onebit.hadamard_q4_0 = 32` instead: all matrices of Q4_0 are `W H` in
//! blocks of 32, without signs. A Q4_0 table of embeddings beside a head is plain; one that is the
//! head as well would be both, and is refused.
//!
//! Source: `src/llama-model.cpp`, `src/llama-graph.cpp` (`build_lora_mm`) of branch `prism` of [its
//! llama.cpp](https://github.com/PrismML-Eng/llama.cpp); 1bit-MONSTER's `tools/hadamard_q4_0.py`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::model::Tensor;
use crate::model::gguf::{GgufMetadata, GgufMetadataArray};
use crate::model::gguf_keys::{ROTATED_Q4_0, ROTATIONS};
use crate::remember::layout::column_factors::{ColumnFactors, MultipliedColumns};
use crate::remember::layout::transformed::{BlockTransform, SharedMatrix};
use crate::remember::seam::{Decode, PlainFloats, Resolution, ResolvedItem, refused, wrong};
use crate::remember::transforms::{
    change_decoder, check_block, push_problem, stored_of, transform,
};
use crate::{Dtype, ParsedModel, Result};

/// What errors are about.
const FEATURE: &str = "prism.hadamard";

/// Columns of a block where [`ROTATED_Q4_0`] says that there are rotations.
const Q4_0_SIZE: usize = 32;

/// The table of embeddings.
const EMBEDDINGS: &str = "token_embd.weight";

/// Most columns of a block.
const MAX_SIZE: u64 = 1 << 16;

/// What of the metadata is known, or a text that says what is not.
type Checked<T> = std::result::Result<T, String>;

/// Makes of the items of `resolution` those of a model without rotations. What cannot be undone
/// becomes a problem.
pub(in crate::remember) fn undo<'m>(model: &'m ParsedModel, resolution: &mut Resolution<'m>) {
    let (Some(gguf), Some(first)) = (model.gguf(), model.tensors().next()) else {
        return;
    };
    let read = match Rotations::read(&gguf.metadata) {
        Ok(None) => Rotations::of_q4_0(model, &gguf.metadata),
        read => read,
    };
    let rotations = match read {
        Ok(None) => return,
        Ok(Some(rotations)) => rotations,
        Err(what) => return push_problem(resolution, first, refused(&first, FEATURE, what)),
    };
    let mut failed = Vec::new();
    for item in &mut resolution.items {
        let tensor = stored_of(item);
        if !rotations.names.contains(tensor.name()) {
            continue;
        }
        match rotations.plan(item, &tensor) {
            Ok((blocks, signed)) => {
                transform(item, tensor, [Some(blocks), None]);
                if let Some(columns) = signed {
                    change_decoder(item, tensor, |stored| {
                        Box::new(MultipliedColumns { stored, columns })
                    });
                }
            }
            Err(error) => failed.push((tensor, error)),
        }
    }
    for (tensor, error) in failed {
        push_problem(resolution, tensor, error);
    }
}

/// What the metadata says of rotations.
struct Rotations {
    /// Columns of a block.
    size: usize,
    /// Names of rotated tensors.
    names: HashSet<String>,
    /// By the number of columns; `None`: all are positive.
    signs: Option<HashMap<usize, Arc<[f32]>>>,
    /// Numbers of heads of keys, and of values, if those of `ssm_out` are grouped.
    grouped: Option<[usize; 2]>,
}

impl Rotations {
    /// `None` if there are none.
    fn read(metadata: &GgufMetadata) -> Checked<Option<Self>> {
        if !metadata.keys().any(|key| key.starts_with(ROTATIONS)) {
            return Ok(None);
        }
        let keys = RotationKeys(metadata);
        let known = [
            ("transform", "normalized-sylvester-walsh-hadamard"),
            ("axis", "input-last-dimension"),
        ];
        for (key, known) in known {
            keys.expect_text(key, &[known])?;
        }
        let version = keys.number("version")?;
        if !(1..=2).contains(&version) {
            return Err(format!("its version is {version}, and 1 and 2 are known"));
        }
        let size = keys.number("block_size")?;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(format!("`block_size` is {size}, no power of two up to {MAX_SIZE}"));
        }
        let mut names = keys.texts("weight_names")?;
        if names.is_empty() {
            return Err("`weight_names` is missing or empty".to_owned());
        }
        names.extend(keys.texts("inverse_weight_names")?);
        let signs = match keys.expect_text("sign_mode", &["identity", "explicit"])? {
            "explicit" => Some(keys.signs()?),
            _ => None,
        };
        Ok(Some(Self {
            size: size as usize,
            names: names.into_iter().collect(),
            signs,
            grouped: keys.grouped()?,
        }))
    }

    /// The rotations of all weights of Q4_0; `None` if there are none.
    fn of_q4_0(model: &ParsedModel, metadata: &GgufMetadata) -> Checked<Option<Self>> {
        let Some(size) = metadata.get(ROTATED_Q4_0) else {
            return Ok(None);
        };
        if size.as_unsigned() != Some(Q4_0_SIZE as u64) {
            return Err(format!("`{ROTATED_Q4_0}` is not {Q4_0_SIZE}"));
        }
        let is_q4_0 = |t: &Tensor<'_>| t.dtype() == Dtype::Q4_0;
        let mut names: HashSet<String> = model
            .tensors()
            .filter(is_q4_0)
            .map(|t| t.name().to_owned())
            .collect();
        let has_head = || model.tensors().any(|t| t.name() == "output.weight");
        if names.remove(EMBEDDINGS) && !has_head() {
            return Err(format!(
                "`{EMBEDDINGS}` is Q4_0 and the head as well: as a head it is rotated, and as a table it is not"
            ));
        }
        Ok(Some(Self { size: Q4_0_SIZE, names, signs: None, grouped: None }))
    }

    /// What is to be done to the columns of `item`, a rotated tensor.
    fn plan<'m>(
        &self,
        item: &ResolvedItem<'m>,
        t: &Tensor<'m>,
    ) -> Result<(BlockTransform<'m>, Option<ColumnFactors>)> {
        let aligned = match item {
            ResolvedItem::Group(group) => group.decoder.grid(),
            ResolvedItem::Plain(_) => match PlainFloats::of(t) {
                Some(floats) => floats.grid(),
                None => return Err(refused(t, FEATURE, "it is rotated, and not of floats")),
            },
        };
        let (size, cols) = (self.size, aligned.cols);
        if cols == 0 || !cols.is_multiple_of(size) {
            let what = format!("blocks of {size} columns do not divide its rows");
            return Err(wrong(t, what));
        }
        let columns = BlockTransform {
            matrix: Arc::new(SharedMatrix::Sylvester),
            size,
            is_transposed: false,
            is_normalized: true,
        };
        let heads = self.heads(t, cols)?;
        let together = heads.map_or(aligned.col_align, |_| cols);
        let sides = [&None, &Some(columns.clone())];
        check_block(sides, [aligned.row_align, together], t)?;
        let signs = match &self.signs {
            None => None,
            Some(all) => {
                let missing = || wrong(t, format!("`sign_widths` has no {cols}"));
                Some(all.get(&cols).cloned().ok_or_else(missing)?)
            }
        };
        let is_signed = signs.is_some() || heads.is_some();
        let signed = is_signed.then_some(ColumnFactors { factors: signs, heads });
        Ok((columns, signed))
    }

    /// Numbers of heads of keys and values, if those of `t` are grouped.
    fn heads(&self, t: &Tensor<'_>, cols: usize) -> Result<Option<[usize; 2]>> {
        let Some([keys, values]) = self.grouped.filter(|_| t.name().contains(".ssm_out.")) else {
            return Ok(None);
        };
        let divides = |n: usize, of: usize| n > 0 && of > 0 && of.is_multiple_of(n);
        if divides(keys, values) && divides(values, cols) {
            return Ok(Some([keys, values]));
        }
        let what = format!("{keys} heads of keys and {values} of values do not divide its rows");
        Err(wrong(t, what))
    }
}

/// Keys of rotations in the metadata.
struct RotationKeys<'a>(&'a GgufMetadata);

impl RotationKeys<'_> {
    fn number(&self, key: &str) -> Checked<u64> {
        let value = self.0.get(&format!("{ROTATIONS}{key}"));
        value
            .and_then(|value| value.as_unsigned())
            .ok_or_else(|| format!("`{key}` is no number, or missing"))
    }

    /// The one of `known` that a key says.
    fn expect_text<'k>(&self, key: &str, known: &[&'k str]) -> Checked<&'k str> {
        let value = self.0.get(&format!("{ROTATIONS}{key}"));
        let text = value
            .as_ref()
            .and_then(|value| value.as_string())
            .unwrap_or("");
        let found = known.iter().find(|known| **known == text);
        found
            .copied()
            .ok_or_else(|| format!("`{key}` is `{text}`, and `{}` is known", known.join("`, `")))
    }

    fn array(&self, key: &str) -> Checked<Option<GgufMetadataArray>> {
        match self.0.get(&format!("{ROTATIONS}{key}")) {
            None => Ok(None),
            Some(value) => match value.as_array() {
                Some(array) => Ok(Some(array.clone())),
                None => Err(format!("`{key}` is no list")),
            },
        }
    }

    fn texts(&self, key: &str) -> Checked<Vec<String>> {
        let Some(array) = self.array(key)? else {
            return Ok(Vec::new());
        };
        let texts = array.as_string_slice().map(<[String]>::to_vec);
        texts.ok_or_else(|| format!("`{key}` is no list of texts"))
    }

    fn integers(&self, key: &str) -> Checked<Vec<i32>> {
        let array = self.array(key)?;
        let integers = array.as_ref().and_then(|array| array.as_i32_slice());
        let integers = integers.map(<[i32]>::to_vec);
        integers.ok_or_else(|| format!("`{key}` is no list of i32, or missing"))
    }

    /// The signs of columns, by the width of a weight.
    fn signs(&self) -> Checked<HashMap<usize, Arc<[f32]>>> {
        let (widths, values) = (self.integers("sign_widths")?, self.integers("sign_values")?);
        if values.iter().any(|&sign| sign != 1 && sign != -1) {
            return Err("`sign_values` has others than 1 and -1".to_owned());
        }
        let (mut signs, mut rest) = (HashMap::new(), &values[..]);
        for width in widths {
            let width = usize::try_from(width).ok();
            let Some((width, (these, others))) =
                width.and_then(|width| Some((width, rest.split_at_checked(width)?)))
            else {
                return Err("`sign_widths` are not the widths of `sign_values`".to_owned());
            };
            signs.insert(width, these.iter().map(|&sign| sign as f32).collect());
            rest = others;
        }
        match rest {
            [] => Ok(signs),
            _ => Err("`sign_values` has more signs than `sign_widths` say".to_owned()),
        }
    }

    /// Numbers of heads of keys and values, if those of `ssm_out` are grouped.
    fn grouped(&self) -> Checked<Option<[usize; 2]>> {
        let value = self.0.get(&format!("{ROTATIONS}gdn_v_grouped"));
        if value.and_then(|value| value.as_bool()) != Some(true) {
            return Ok(None);
        }
        let architecture = self.0.get("general.architecture");
        let architecture = architecture
            .as_ref()
            .and_then(|value| value.as_string())
            .unwrap_or("");
        let number = |key: &str| {
            let key = format!("{architecture}.ssm.{key}");
            let value = self.0.get(&key).and_then(|value| value.as_unsigned());
            let number = value.and_then(|n| usize::try_from(n).ok());
            number.ok_or_else(|| format!("`{key}` is no number, or missing"))
        };
        Ok(Some([number("group_count")?, number("time_step_rank")?]))
    }
}
