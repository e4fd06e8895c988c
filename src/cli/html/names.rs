//! What names of tensors say: the layer that a tensor is in, and its module.

/// A stack of layers and the number of one: `model.layers` and 12 of
/// `model.layers.12.mlp.up_proj.weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layer<'a> {
    pub stack: &'a str,
    pub number: u64,
}

/// The layer of a tensor: the first part of its name that is a number, and what comes before it.
pub(super) fn layer(name: &str) -> Option<Layer<'_>> {
    let (start, part) = numbered_part(name)?;
    let stack = name.get(..start.checked_sub(1)?)?;
    Some(Layer { stack, number: part.parse().ok()? })
}

/// Where the first part that is a number begins, and the part.
fn numbered_part(name: &str) -> Option<(usize, &str)> {
    let mut start = 0;
    for part in name.split('.') {
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some((start, part));
        }
        start += part.len() + 1;
    }
    None
}

/// The module that a tensor is in: its layer, or without one what comes before the last part.
pub(super) fn module(name: &str) -> &str {
    match numbered_part(name) {
        Some((start, part)) => &name[..start + part.len()],
        None => name.rsplit_once('.').map_or(name, |(module, _)| module),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_modules() {
        for (name, expected, in_module) in [
            ("model.layers.12.mlp.up_proj.weight", Some(("model.layers", 12)), "model.layers.12"),
            ("blk.0.ffn_up.weight", Some(("blk", 0)), "blk.0"),
            ("output.weight", None, "output"),
            ("W_enc", None, "W_enc"),
            ("0.weight", None, "0"),
            ("a.99999999999999999999.b", None, "a.99999999999999999999"),
            ("a..b", None, "a."),
            ("", None, ""),
            ("blk.3", Some(("blk", 3)), "blk.3"),
        ] {
            let found = layer(name).map(|layer| (layer.stack, layer.number));
            assert_eq!((found, module(name)), (expected, in_module), "{name}");
        }
    }
}
