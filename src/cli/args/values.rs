//! The values of options: what they are parsed to, and what is said of those that cannot be.

use crate::{ConvertTarget, Dtype, ForgetScheme, GgufTypes, TargetDtype};

pub(super) fn parse_dtype(text: &str) -> Result<TargetDtype, String> {
    text.parse()
        .map_err(|_| "supported target dtypes: bf16, f32, f16".to_owned())
}

pub(super) fn parse_tolerance(text: &str) -> Result<f64, String> {
    let tolerance = text
        .parse()
        .ok()
        .filter(|x: &f64| *x >= 0.0 && x.is_finite());
    tolerance.ok_or_else(|| "a tolerance is a number that is not negative, e.g. 1e-6".to_owned())
}

pub(super) fn parse_part(text: &str) -> Result<(usize, usize), String> {
    let part = text
        .split_once('/')
        .and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    part.filter(|&(part, of)| part >= 1 && part <= of)
        .ok_or_else(|| "a part is I/N, from 1/N to N/N".to_owned())
}

/// The value of `convert --to`: a container, or a scheme that tensors are encoded to.
#[derive(Debug, Clone)]
pub(in crate::cli) enum ConvertTo {
    Container(ConvertTarget),
    Scheme(ForgetScheme),
}

pub(super) fn parse_target(text: &str) -> Result<ConvertTo, String> {
    if let Ok(container) = text.parse() {
        return Ok(ConvertTo::Container(container));
    }
    let scheme = parse_scheme(text).map(ConvertTo::Scheme);
    scheme.map_err(|what| format!("containers: {}; {what}", ConvertTarget::listed()))
}

/// The scheme of this name.
pub(super) fn parse_scheme(text: &str) -> Result<ForgetScheme, String> {
    text.parse().map_err(|e: crate::AnamnesisError| match e {
        crate::AnamnesisError::Unsupported { detail, .. } => {
            format!("{detail}; `amn forget --list` names all")
        }
        other => other.to_string(),
    })
}

/// The help of `convert --to`.
pub(super) fn help_of_containers() -> String {
    let listed = ConvertTarget::listed();
    let (first, last) = listed.rsplit_once(", ").unwrap_or(("", &listed));
    format!(
        "Container of the output: {first} or {last}; or a scheme, as for forget: gguf:q4_k, bnb-nf4, …"
    )
}

/// A pattern and a name; the last `=` counts, for expressions have some.
pub(super) fn parse_rename(text: &str) -> Result<(String, String), String> {
    let pair = text.rsplit_once('=').filter(|(old, _)| !old.is_empty());
    let pair = pair.map(|(old, new)| (old.to_owned(), new.to_owned()));
    pair.ok_or_else(|| "a name is changed by OLD=NEW".to_owned())
}

/// A type of ggml.
pub(super) fn parse_ggml_type(text: &str) -> Result<Dtype, String> {
    GgufTypes::parse_type(text).map_err(|e| match e {
        crate::AnamnesisError::Unsupported { detail, .. } => detail,
        other => other.to_string(),
    })
}

/// A pattern and a type of ggml.
pub(super) fn parse_tensor_type(text: &str) -> Result<(String, Dtype), String> {
    let (pattern, dtype) = text
        .rsplit_once('=')
        .filter(|(pattern, _)| !pattern.is_empty())
        .ok_or_else(|| "a type is given by GLOB=TYPE".to_owned())?;
    Ok((pattern.to_owned(), parse_ggml_type(dtype)?))
}

/// A number of bytes: `500000000`, `500MB` or `2G`, in powers of 1000, or `MiB` and `GiB` in those of 1024.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("K", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
    ];
    let unit = UNITS
        .iter()
        .find_map(|(unit, n)| Some((text.strip_suffix(unit)?, *n)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let bytes = number
        .trim()
        .parse()
        .ok()
        .and_then(|n: u64| n.checked_mul(unit))
        .filter(|&n| n > 0);
    bytes.ok_or_else(|| "a size is a number of bytes, or of KB, MB, GB, KiB, MiB or GiB".to_owned())
}
