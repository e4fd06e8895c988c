//! Edits that nothing in a model can tell.

mod facts;

use super::Edit;
use super::tensors::{Change, Stored};
use facts::{
    fits_blocks, fits_columns, fits_leading, is_gone, is_named, is_wide, new_shape, retyped, says,
    scales,
};

/// A kind of edit that leaves a model as valid as it was, with the reason.
struct Rule {
    reason: &'static str,
    applies: fn(&Edit) -> bool,
}

const RULES: &[Rule] = &[
    Rule {
        reason: "the shape of a trellis alone tells its bits",
        applies: |edit| edit.kind == "dimension changed" && edit.place.ends_with(".trellis"),
    },
    Rule {
        reason: "mlx-vlm's config does not say which layers have a second scale",
        applies: |edit| {
            let ends = [".weight_scale_2", ".weight_global_scale"];
            is_gone(edit)
                && ends.iter().any(|end| edit.place.ends_with(end))
                && says(edit, &["\"mode\""])
        },
    },
    Rule {
        reason: "without a config that names it, EXL3's codebook is told by its mark or the lack of one",
        applies: |edit| {
            let ends = [".mcg", ".mul1"];
            is_gone(edit)
                && ends.iter().any(|end| edit.place.ends_with(end))
                && !says(edit, &["\"codebook\""])
        },
    },
    Rule {
        reason: "one scale for a matrix, or for all of a stack, fits every weight of as many matrices",
        applies: |edit| {
            let is_one_each = |t: &Stored| t.shape.len() <= 1;
            let change = edit
                .tensor
                .as_ref()
                .filter(|_| edit.kind == "names swapped");
            change.is_some_and(|change| match edit.role.as_str() {
                "scale" => is_one_each(&change.old),
                "quantized" => change.old.shape.len() == 3 && scales(change).all(is_one_each),
                _ => false,
            })
        },
    },
    Rule {
        reason: "a last word that codes fill in part holds zeros behind them, which could be codes",
        applies: |edit| edit.kind == "description" && edit.place.ends_with(".weight_shape"),
    },
    Rule {
        reason: "a last byte of a mask that columns fill in part holds zeros behind them, which could be columns of zeros",
        applies: |edit| {
            let is_of_mask = |change: &Change| {
                let mut others = change.others.iter();
                others.any(|(t, _)| t.name.ends_with(".bitmask"))
            };
            let numbers = edit.new.split(|c: char| !c.is_ascii_digit());
            let numbers: Vec<usize> = numbers.filter_map(|n| n.parse().ok()).collect();
            let is_longer = matches!(*numbers, [new, old, 1] if old < new && old.div_ceil(8) == new.div_ceil(8));
            edit.kind == "description"
                && edit.place.ends_with(".shape")
                && edit.tensor.as_ref().is_some_and(is_of_mask)
                && is_longer
        },
    },
    Rule {
        reason: "floats are as valid in another float type of their width",
        applies: |edit| {
            // Values that are left of a sparse weight, those that BitNet multiplies by a scale, and
            // those that FP-Quant has rotated, are no codes.
            let is_value = [".compressed", ".weight", ".dqweight"]
                .iter()
                .any(|end| edit.place.ends_with(end));
            let is_value = edit.role != "quantized" || is_value;
            is_value && retyped(edit).is_some_and(|[old, new]| is_wide(old) && is_wide(new))
        },
    },
    Rule {
        reason: "exponents are stored as U8 and as F8_E8M0, which differ in one of 256",
        applies: |edit| {
            retyped(edit).is_some_and(|types| types.iter().all(|t| ["U8", "F8_E8M0"].contains(t)))
        },
    },
    Rule {
        reason: "without a description, codes of a byte are as valid in another type of a byte",
        applies: |edit| {
            edit.role == "quantized"
                && !says(edit, &["quant", "\"_type\"", "\"format\""])
                && retyped(edit).is_some()
        },
    },
    Rule {
        reason: "nothing but GPTQModel's config tells that inputs are rotated",
        applies: |edit| edit.place.ends_with("/quantization_config/rotation"),
    },
    Rule {
        reason: "nothing but AutoRound's config tells how many columns are rotated together",
        applies: |edit| edit.place.contains("/rotation_config/block_size"),
    },
    Rule {
        reason: "nothing but the description tells whether a weight of ComfyUI is rotated, and how many columns together",
        applies: |edit| {
            edit.kind == "description"
                && edit.place.ends_with(".comfy_quant")
                && edit.new.contains("/convrot")
        },
    },
    Rule {
        reason: "W4A8 of ComfyUI has codebooks and corrections, or none",
        applies: |edit| {
            let ends = [".weight_codebook", ".weight_correction"];
            is_gone(edit) && ends.iter().any(|end| edit.place.ends_with(end))
        },
    },
    Rule {
        reason: "offsets of SpQR say which row a single value is of, and nothing else does",
        applies: |edit| edit.kind == "description" && edit.place.ends_with(".row_offsets"),
    },
    Rule {
        reason: "nothing but SDNQ's config tells whether columns are rotated, and how many together",
        applies: |edit| edit.place.contains("hadamard"),
    },
    Rule {
        reason: "SDNQ stores no shape of packed codes, and groups of any size: the shape of the scales tells it alone",
        applies: |edit| {
            let is_size = ["dimension changed", "axis added", "shape moved"].contains(&edit.kind);
            let is_part = edit.place.ends_with(".weight") || edit.place.ends_with(".scale");
            is_size && is_part && says(edit, &["sdnq"])
        },
    },
    Rule {
        reason: "one scale of SDNQ does not tell whether its matrix is stored transposed",
        applies: |edit| edit.place.contains("/use_quantized_matmul"),
    },
    Rule {
        reason: "rules of SDNQ's config name the dtypes of layers, and not their shapes",
        applies: |edit| edit.place.contains("modules_dtype_dict"),
    },
    Rule {
        reason: "the factors of a square weight of SDNQ have one shape where they are stored transposed",
        applies: |edit| {
            edit.kind == "names swapped" && edit.role == "low-rank" && says(edit, &["sdnq"])
        },
    },
    Rule {
        reason: "a rotated weight of FP-Quant has no scales, and those of codes may be padded to 128 rows: no other tensor tells its rows",
        applies: |edit| {
            let is_size = ["dimension changed", "shape moved"].contains(&edit.kind);
            let ends = [".dqweight", ".qweight"];
            is_size && ends.iter().any(|end| edit.place.ends_with(end)) && says(edit, &["fp_quant"])
        },
    },
    Rule {
        reason: "HIGGS: nothing but the number of a kernel tells the order of its codes",
        applies: |edit| edit.place.ends_with("/template_id") && edit.kind.starts_with("config"),
    },
    Rule {
        reason: "HIGGS: its `tables` have a name that tensors of other models have",
        applies: |edit| edit.kind == "companion added" && edit.new.ends_with(".tables"),
    },
    Rule {
        reason: "nothing but the description tells whether the input of a ComfyUI layer is shifted",
        applies: |edit| edit.kind == "description" && edit.new.contains("act_unsigned"),
    },
    Rule {
        reason: "layers of Nunchaku have a bias, or none",
        applies: |edit| {
            let is_gone = is_gone(edit) || edit.kind == "another module's name";
            is_gone && edit.role == "offset" && edit.place.ends_with(".bias")
        },
    },
    Rule {
        reason: "torchao does not describe which eight-bit floats a Float8Tensor has, and the dtype of its codes holds",
        applies: |edit| {
            edit.place.ends_with("_qdata")
                && retyped(edit).is_some_and(|types| types.iter().all(|t| t.starts_with("F8_E")))
        },
    },
    Rule {
        reason: "a scale for each index of the first dimensions fits every size of the others",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| scales(change).all(|t| fits_leading(change, t)))
        },
    },
    Rule {
        reason: "codes packed down the rows of columns fit columns of every number",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| {
                let rows = |shape: &[usize]| shape.first().copied();
                let has_same_rows = |new: &Stored| rows(&new.shape) == rows(&change.old.shape);
                let is_one_a_row =
                    |t: &Stored| t.shape.get(1..).is_some_and(|s| s.iter().all(|n| *n == 1));
                change.new.as_ref().is_some_and(has_same_rows) && scales(change).all(is_one_a_row)
            })
        },
    },
    Rule {
        reason: "tiles of scales are padded, and fit every weight that takes as many",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| {
                let elements = |t: &Stored| t.shape.iter().product::<usize>();
                let is_tiled = |t: &Stored| elements(t).is_multiple_of(TILE);
                scales(change).any(is_tiled)
                    && scales(change)
                        .all(|t| is_tiled(t) || t.shape.iter().skip(1).all(|n| *n == 1))
            })
        },
    },
    Rule {
        reason: "an axis of one moves no value, and nothing counts the axes",
        applies: |edit| {
            new_shape(edit).is_some() && matches!(edit.kind, "axis added" | "axes of one removed")
        },
    },
    Rule {
        reason: "nothing says how many blocks a row of an embedding has",
        applies: |edit| {
            let change = edit
                .tensor
                .as_ref()
                .filter(|_| edit.kind == "dimension changed");
            let has_rows = |change: &Change| {
                let new = change.new.as_ref();
                new.is_some_and(|new| new.shape.first() == change.old.shape.first())
            };
            edit.place.contains(".embedding_") && change.is_some_and(has_rows)
        },
    },
    Rule {
        reason: "mlx-lm infers bits and groups of a layer that the config does not name from its width",
        applies: |edit| {
            let change = edit
                .tensor
                .as_ref()
                .filter(|_| edit.kind == "dimension changed");
            let is_mlx = |change: &Change| {
                let all = change.others.iter().map(|(t, _)| t).chain([&change.old]);
                let leading = |t: &Stored| t.shape.split_last().map(|(_, rows)| rows.to_vec());
                all.into_iter()
                    .any(|t| t.dtype == "U32" && t.name.ends_with(".weight"))
                    && change
                        .new
                        .as_ref()
                        .is_some_and(|new| leading(new) == leading(&change.old))
            };
            change.is_some_and(is_mlx) && !is_named(edit)
        },
    },
    Rule {
        reason: "a global scale may be missing where the config has no entry that speaks of it",
        applies: |edit| edit.place.ends_with(".global_scale") && is_gone(edit) && !is_named(edit),
    },
    Rule {
        reason: "without the key the default of the library holds",
        applies: |edit| edit.kind == "config removed" && edit.place.ends_with("/linear_class"),
    },
    Rule {
        reason: "blocks of the flattened weight fit every shape of as many values",
        applies: |edit| {
            let is_order = edit.place.ends_with(".shape") && edit.new.contains("other order");
            edit.kind == "description" && (is_order || edit.new.starts_with("/shape"))
        },
    },
    Rule {
        reason: "an offset may be any number",
        applies: |edit| edit.kind == "description" && edit.new.starts_with("/nested_offset"),
    },
    Rule {
        reason: "a layer may have any parameter that is no companion by its name",
        applies: |edit| {
            let ends = [".scales", ".biases", ".scale", ".shape"];
            let is_shape = edit.new.ends_with(".original_shape");
            match edit.kind {
                "companion added" => ends.iter().any(|end| edit.new.ends_with(end)),
                kind => kind == "another module's name" && is_shape,
            }
        },
    },
    Rule {
        reason: "a scale for each half of a matrix, or one, fits any number of rows where the config denies blocks",
        applies: |edit| {
            let ends = ["gate_up_proj", "gate_up_proj_scale_inv"];
            let is_of = match edit.kind {
                "names swapped" => edit.place.contains(".experts."),
                "dimension changed" | "shape moved" => {
                    ends.iter().any(|end| edit.place.ends_with(end))
                }
                _ => false,
            };
            is_of && says(edit, &["\"weight_block_size\":null"])
        },
    },
    Rule {
        reason: "BitNet multiplies floats by their scale, too, where the config says `autobitlinear`",
        applies: |edit| edit.kind == "companion added" && says(edit, &["\"autobitlinear\""]),
    },
    Rule {
        reason: "one group fits any number of inputs",
        applies: |edit| {
            // QQQ has no scales of groups then, which is an empty tensor.
            let is_one = |t: &Stored| matches!(t.shape.as_slice(), [1, _] | [0]);
            new_shape(edit).is_some_and(|change| scales(change).all(is_one))
        },
    },
    Rule {
        reason: "a scale for each column fits any number of rows",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| scales(change).all(|t| fits_columns(change, t)))
        },
    },
    Rule {
        reason: "without a config, shapes are all that tells the size of groups and blocks",
        applies: |edit| {
            let is_part =
                matches!(edit.role.as_str(), "quantized" | "scale" | "zero-point" | "offset");
            let shapes = |change: &Change| {
                change
                    .new
                    .as_ref()
                    .is_some_and(|new| new.shape != change.old.shape)
            };
            is_part && edit.model.configs.is_empty() && edit.tensor.as_ref().is_some_and(shapes)
        },
    },
    Rule {
        reason: "one scale for a stack is as valid as one for each of its matrices",
        applies: |edit| {
            let change = edit.tensor.as_ref().filter(|_| edit.role == "scale");
            let is_one = |change: &Change| change.new.as_ref().is_some_and(|new| new.shape == [1]);
            change.is_some_and(|change| is_one(change) && change.old.shape.len() == 1)
        },
    },
    Rule {
        reason: "only the index tells how many inputs a last word has that is filled in part",
        applies: |edit| {
            let is_ragged = |change: &Change| change.old.shape.iter().any(|n| n % 32 != 0);
            edit.role == "g_idx" && edit.tensor.as_ref().is_some_and(is_ragged)
        },
    },
    Rule {
        reason: "without a config only the index says that the columns of a group lie apart",
        applies: |edit| edit.role == "g_idx" && edit.model.configs.is_empty() && is_gone(edit),
    },
    Rule {
        reason: "a word of the config is all that says how codes or zero points are meant",
        applies: |edit| {
            let keys = ["/data_type", "/packing_format", "/pack_method", "/sym", "/quant_method"];
            edit.kind.starts_with("config") && keys.iter().any(|key| edit.place.ends_with(key))
        },
    },
    Rule {
        reason: "the last block of a side may be short by any number of values",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| scales(change).all(|t| fits_blocks(change, t)))
        },
    },
    Rule {
        reason: "only the config tells the size of blocks, of which the last may be short",
        applies: |edit| {
            let is_size = edit.place.contains("/group_size");
            edit.kind == "config number" && is_size && says(edit, &["FP8_BLOCK_SCALES"])
        },
    },
    Rule {
        reason: "without a config and another scale in the file, codes without a scale are a plain cast",
        applies: |edit| {
            let other_scales = edit
                .tensor
                .iter()
                .flat_map(|change| &change.others)
                .any(|(_, role)| role == "scale");
            edit.role == "scale" && edit.model.configs.is_empty() && !other_scales && is_gone(edit)
        },
    },
    Rule {
        reason: "a tensor without companions is what its header says, and where it is not, none is",
        applies: |edit| {
            let alone = |change: &Change| {
                let mut roles = change.others.iter().map(|(_, role)| role.as_str());
                roles.all(|role| matches!(role, "passthrough" | "quantized"))
            };
            edit.role == "quantized" && edit.tensor.as_ref().is_some_and(alone)
        },
    },
    Rule {
        reason: "an embedding that the config leaves out may be cast, and then has no scale",
        applies: |edit| is_gone(edit) && edit.place.ends_with(".ngram_embedding.weight_scale"),
    },
    Rule {
        reason: "codes of vectors fit any number of inputs",
        applies: |edit| {
            edit.kind == "dimension changed"
                && edit.place.ends_with(".codes")
                && says(edit, &["aqlm"])
        },
    },
    Rule {
        reason: "only VPTQ's config tells how many outputs the last vectors have, and how many inputs a group",
        applies: |edit| {
            let ends = ["/out_features", "/group_size"];
            edit.kind.starts_with("config")
                && ends.iter().any(|end| edit.place.ends_with(end))
                && says(edit, &["vptq"])
        },
    },
    Rule {
        reason: "only its config tells that AutoRound wrote a model from its files alone, whose zero points are others",
        applies: |edit| edit.kind.starts_with("config") && edit.place.ends_with("/model_free"),
    },
    Rule {
        reason: "ModelOpt merges most factors of columns into the layer before, and no config says which",
        applies: |edit| edit.place.ends_with(".pre_quant_scale") && is_gone(edit),
    },
];

/// Scales of a tile.
const TILE: usize = 512;

pub fn reason(edit: &Edit) -> Option<&'static str> {
    RULES
        .iter()
        .find(|rule| (rule.applies)(edit))
        .map(|rule| rule.reason)
}

pub fn reasons() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.reason)
}
