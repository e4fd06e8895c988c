//! What a config says of the codes and the scales of a module's weight, compared with what the
//! tensors are. Schemes go by names, dtypes and shapes; a config that says something else proves
//! that one of the two was changed.

use crate::Result;
use crate::config::Module;
use crate::remember::seam::scale_layout::{has_halves, rows_and_cols};
use crate::remember::seam::{
    Algorithm, Fp8Format, Granularity, Group, Index, MethodFacts, QuantScheme, Registry, Scheme,
    StatedCodes, module_of, wrong,
};

/// What the config says of a weight: a value, and how the config puts it.
struct Statement<T> {
    value: T,
    says: String,
}

fn state<T>(value: T, says: String) -> Option<Statement<T>> {
    Some(Statement { value, says })
}

/// The algorithm of a module, and how the config writes its name.
fn algorithm<'c>(
    registry: &Registry,
    module: &Module<'c>,
) -> Option<(&'static Algorithm, &'c str)> {
    let (name, _) = module.text(&["quant_algo"])?;
    Some((registry.algorithm(&name.to_uppercase())?, name))
}

/// The type of the codes. Keys are looked up whatever the method: each of them is written by one
/// library, and a config that lost its method still says what it says.
fn codes(
    facts: Option<&MethodFacts>,
    module: &Module<'_>,
    registry: &Registry,
) -> Option<Statement<StatedCodes>> {
    if let Some((row, name)) = algorithm(registry, module) {
        return state(row.1, format!("the config says `{name}`"));
    }
    // compressed-tensors.
    if let Some((kind @ ("int" | "float"), _)) = module.text(&["type"]) {
        let (bits, place) = module.int(&["num_bits"])?;
        let bits = u8::try_from(bits).ok()?;
        // It has no other float of eight bits (`quant_args.py`, `FP8_DTYPE`).
        let format = (bits == 8).then_some(Fp8Format::E4M3);
        let value = match kind {
            "int" => StatedCodes::Int(bits),
            _ => StatedCodes::Float(bits, format),
        };
        return state(value, format!("{place} says `{kind}` of {bits} bits"));
    }
    if let Some((name, place)) = module.text(&["dtype", "fmt", "data_type", "format"])
        && let Some(value) = registry.word(name)
    {
        return state(value, format!("{place} says `{name}`"));
    }
    let MethodFacts { method, codes, .. } = facts?;
    state(*codes, format!("the config says {method:?}"))
}

/// Which values share a scale.
fn scales(
    facts: Option<&MethodFacts>,
    module: &Module<'_>,
    registry: &Registry,
) -> Option<Statement<Granularity>> {
    if let Some((scales, says)) = facts.and_then(|facts| facts.scales) {
        return state(scales, says.to_owned());
    }
    let group = || {
        let (size, _) = module.int(&["group_size"])?;
        usize::try_from(size)
            .ok()
            .filter(|&n| n > 0)
            .map(Granularity::Group)
    };
    if let Some((row, name)) = algorithm(registry, module) {
        let of_blocks = module
            .block_side()
            .map(|side| Granularity::Block { rows: side, cols: side });
        let value = of_blocks.or(row.2).or_else(group)?;
        return state(value, format!("the config says `{name}` with {value}"));
    }
    // compressed-tensors, and Quark.
    let (strategy, place) = module.text(&["strategy", "qscheme"])?;
    let value = match strategy {
        "tensor" | "per_tensor" => Granularity::Tensor,
        "channel" | "per_channel" => Granularity::Channel,
        "group" | "tensor_group" | "per_group" => group()?,
        // `block` is compared where the blocks are fitted.
        _ => return None,
    };
    state(value, format!("{place} says `{strategy}`: {value}"))
}

/// How the config says that scales are not those of blocks.
fn denies_blocks(facts: Option<&MethodFacts>, module: &Module<'_>) -> Option<&'static str> {
    let [always, if_null] = facts?.no_blocks;
    always.or_else(|| if_null.filter(|_| module.is_null("weight_block_size")))
}

/// Rows and columns that share a scale, none of them beyond a matrix of `[rows, cols]`: a scale for
/// more than there is, is one for all.
fn extent(scales: Granularity, [rows, cols]: [usize; 2]) -> [usize; 2] {
    let [height, width] = match scales {
        Granularity::Tensor => [rows, cols],
        Granularity::Channel => [1, cols],
        Granularity::Group(n) => [1, n],
        Granularity::Block { rows, cols } => [rows, cols],
    };
    [height.min(rows), width.min(cols)]
}

fn granularity(scheme: &QuantScheme) -> Option<Granularity> {
    Some(match *scheme {
        QuantScheme::FineGrainedFp8 { rows: 1, cols, .. } => Granularity::Group(cols),
        QuantScheme::FineGrainedFp8 { rows, cols, .. } => Granularity::Block { rows, cols },
        QuantScheme::PerChannelFp8 { .. } => Granularity::Channel,
        QuantScheme::PerTensorFp8 { .. } => Granularity::Tensor,
        QuantScheme::Nvfp4 { .. } => Granularity::Group(16),
        QuantScheme::Grouped { scales, .. } => scales,
        _ => return None,
    })
}

/// Checks that the config's method is one of those whose models have the tensors of `scheme`. A
/// scheme without methods is told by its tensors or its description, whatever a config says.
///
/// # Errors
/// The method is that of other schemes.
pub(super) fn check_method(
    scheme: &dyn Scheme,
    group: &Group<'_>,
    all: &Index<'_>,
    registry: &Registry,
) -> Result<()> {
    let identity = scheme.identity();
    let Some(method) = all.config.quant_method() else {
        return Ok(());
    };
    let is_meant = identity.methods.is_empty()
        || identity.methods.contains(method)
        || !registry.knows(method)
        // What is left out of the method may be quantized otherwise.
        || all.config.at(module_of(&group.name)).skipped;
    if is_meant {
        return Ok(());
    }
    let place = all.config.text(&["quant_method", "method"]);
    let place = place.map_or("the config", |(_, place)| place);
    let says = all.config.method().unwrap_or_default();
    let what = format!(
        "{place} says quant_method `{says}`, and its tensors are those of {}",
        identity.name
    );
    Err(wrong(&group.parts[0].1, what))
}

/// Compares `group` with what the config says of its module.
///
/// # Errors
/// The codes are of another type than the config says, or other values share a scale.
pub(super) fn check_stated(group: &Group<'_>, all: &Index<'_>, registry: &Registry) -> Result<()> {
    let module = all.config.at(module_of(&group.name));
    let mut checks = module
        .candidates()
        .map(|entry| check_entry(group, &entry, all, registry));
    let first = checks.next().unwrap_or(Ok(()));
    // One of the entries for a module holds.
    first.or_else(|error| match checks.any(|other| other.is_ok()) {
        true => Ok(()),
        false => Err(error),
    })
}

/// Compares `group` with the config's entry `module`.
fn check_entry(
    group: &Group<'_>,
    module: &Module<'_>,
    all: &Index<'_>,
    registry: &Registry,
) -> Result<()> {
    let Some(found) = StatedCodes::of(group) else {
        return Ok(());
    };
    let (facts, t) = (all.method, &group.parts[0].1);
    // A rule that is not understood might hold for this module, and one that leaves it out does not
    // describe it.
    if module.uncertain || module.skipped {
        return Ok(());
    }
    let fixed = facts.and_then(|facts| state(facts.codes, facts.fixed?.to_owned()));
    if let Some(stated) = fixed.or_else(|| codes(facts, module, registry))
        && !stated.value.allows(found)
    {
        let what = format!("{}, and the weight is stored as {}", stated.says, t.dtype());
        return Err(wrong(t, what));
    }
    let Some(found) = granularity(&group.scheme) else {
        return Ok(());
    };
    let (_, cols) = rows_and_cols(&group.shape);
    let rows = group.shape.iter().nth_back(1).copied().unwrap_or(1);
    let is_stack = group.shape.len() > 2;
    let by_column = Granularity::Block { rows, cols: 1 };
    // Of a stack, the rows of two projections may have a scale each.
    let by_half = Granularity::Block {
        rows: match is_stack && has_halves(&group.name) {
            true => rows / 2,
            false => rows,
        },
        cols,
    };
    let differs = |stated: Granularity| extent(stated, [rows, cols]) != extent(found, [rows, cols]);
    if let Some(says) = denies_blocks(facts, module)
        && [Granularity::Tensor, Granularity::Channel, by_column, by_half]
            .into_iter()
            .all(differs)
    {
        let what = format!("{says} without blocks, and its tensors have {found}");
        return Err(wrong(t, what));
    }
    // Stacks of bytes are quantized by other rules than the layers that a config speaks of: by
    // expert or by column.
    let is_free = is_stack && !matches!(found, Granularity::Group(_));
    if let Some(stated) = scales(facts, module, registry).filter(|_| !is_free)
        && differs(stated.value)
    {
        let what = format!("{}, and its tensors have a {found}", stated.says);
        return Err(wrong(t, what));
    }
    Ok(())
}
