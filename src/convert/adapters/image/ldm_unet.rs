//! Modules of the UNet of Stable Diffusion 1, 2 and XL: the names in their authors' files, and
//! those of diffusers, which number the same layers otherwise.
//!
//! Source: diffusers 0.42.1 `loaders/single_file_utils.py` (`convert_ldm_unet_checkpoint`).

/// Layers of a block, of which the last one of all but the last block changes the size.
const LAYERS: usize = 3;

/// Parts of a block of convolutions.
const RESNET: &[(&str, &str)] = &[
    ("in_layers.0", "norm1"),
    ("in_layers.2", "conv1"),
    ("emb_layers.1", "time_emb_proj"),
    ("out_layers.0", "norm2"),
    ("out_layers.3", "conv2"),
    ("skip_connection", "conv_shortcut"),
];

/// Modules outside of the blocks.
const AROUND: &[(&str, &str)] = &[
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("label_emb.0.0", "add_embedding.linear_1"),
    ("label_emb.0.2", "add_embedding.linear_2"),
    ("input_blocks.0.0", "conv_in"),
    ("out.0", "conv_norm_out"),
    ("out.2", "conv_out"),
];

/// What diffusers calls the UNet's module `name`; `None` if it is none.
pub(super) fn name_of_diffusers(name: &str) -> Option<String> {
    if let Some((_, other)) = AROUND.iter().find(|(ours, _)| *ours == name) {
        return Some((*other).to_owned());
    }
    let (side, rest) = name.split_once('.')?;
    let (number, rest) = rest.split_once('.')?;
    let number: usize = number.parse().ok()?;
    match side {
        "middle_block" => match number {
            1 => Some(format!("mid_block.attentions.0.{rest}")),
            0 | 2 => Some(format!("mid_block.resnets.{}.{}", number / 2, part_of_resnet(rest)?)),
            _ => None,
        },
        "input_blocks" => {
            let (block, layer) = (number.checked_sub(1)? / LAYERS, (number - 1) % LAYERS);
            let (kind, rest) = rest.split_once('.')?;
            in_block(("down_blocks", "downsamplers.0.conv", "op"), [block, layer], kind, rest)
        }
        "output_blocks" => {
            let (kind, rest) = rest.split_once('.')?;
            in_block(
                ("up_blocks", "upsamplers.0.conv", "conv"),
                [number / LAYERS, number % LAYERS],
                kind,
                rest,
            )
        }
        _ => None,
    }
}

/// The name of the module `rest` of a layer of a block: `0` are convolutions, `1` attention, and
/// what changes the size stands last.
fn in_block(
    (side, other_size, convolution): (&str, &str, &str),
    [block, layer]: [usize; 2],
    kind: &str,
    rest: &str,
) -> Option<String> {
    if rest == convolution {
        return Some(format!("{side}.{block}.{other_size}"));
    }
    match kind {
        "0" => Some(format!("{side}.{block}.resnets.{layer}.{}", part_of_resnet(rest)?)),
        "1" => Some(format!("{side}.{block}.attentions.{layer}.{rest}")),
        _ => None,
    }
}

fn part_of_resnet(name: &str) -> Option<&'static str> {
    let (_, other) = RESNET.iter().find(|(ours, _)| *ours == name)?;
    Some(other)
}

/// What the authors may call the UNet's module `name` of diffusers: what enlarges stands behind
/// attention, if its layer has any.
pub(super) fn names_of_authors(name: &str) -> Vec<String> {
    if let Some((ours, _)) = AROUND.iter().find(|(_, other)| *other == name) {
        return vec![(*ours).to_owned()];
    }
    match *name.splitn(5, '.').collect::<Vec<_>>() {
        ["mid_block", kind, layer, ..] => {
            let layer = layer.parse().ok().filter(|layer| *layer < LAYERS);
            let number = |layer: usize| if kind == "resnets" { 2 * layer } else { 1 };
            let rest = name.splitn(4, '.').nth(3);
            let rest = rest.and_then(|rest| part_of_layer(kind, rest));
            let found = layer.zip(rest);
            let found =
                found.map(|(layer, (_, rest))| format!("middle_block.{}.{rest}", number(layer)));
            found.into_iter().collect()
        }
        [side @ ("down_blocks" | "up_blocks"), block, kind, layer, rest] => {
            let numbers: Option<[usize; 2]> = block
                .parse()
                .ok()
                .zip(layer.parse().ok())
                .map(<[usize; 2]>::from);
            let Some([block, layer]) =
                numbers.filter(|[block, layer]| *block < 100 && *layer < LAYERS)
            else {
                return vec![];
            };
            let (first, last) = (LAYERS * block, LAYERS * (block + 1));
            match (side, kind, part_of_layer(kind, rest)) {
                ("down_blocks", "downsamplers", _) if rest == "conv" => {
                    vec![format!("input_blocks.{last}.0.op")]
                }
                ("up_blocks", "upsamplers", _) if rest == "conv" => [1, 2]
                    .map(|at| format!("output_blocks.{}.{at}.conv", last - 1))
                    .into(),
                ("down_blocks", _, Some((at, rest))) => {
                    vec![format!("input_blocks.{}.{at}.{rest}", first + layer + 1)]
                }
                (_, _, Some((at, rest))) => {
                    vec![format!("output_blocks.{}.{at}.{rest}", first + layer)]
                }
                _ => vec![],
            }
        }
        _ => vec![],
    }
}

/// The number of blocks of this kind in a layer of the authors, and what they call the module `rest`
/// in it.
fn part_of_layer<'a>(kind: &str, rest: &'a str) -> Option<(usize, &'a str)> {
    match kind {
        "resnets" => {
            let (ours, _) = RESNET.iter().find(|(_, other)| *other == rest)?;
            Some((0, *ours))
        }
        "attentions" => Some((1, rest)),
        _ => None,
    }
}
