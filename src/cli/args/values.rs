//! The values of options: what they are parsed to, and what is said of those that cannot be.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use std::sync::OnceLock;

use clap::builder::{PossibleValue, TypedValueParser};

use crate::hooks::NamedInput;
use crate::{ConvertTarget, Dtype, ForgetScheme, GgufTypes, TargetDtype};

/// A parser of names that shells complete. The help does not list them.
#[derive(Clone, Copy)]
pub(super) struct Named<T: 'static> {
    pub parse: fn(&str) -> Result<T, String>,
    pub names: fn() -> &'static [String],
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Named<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        TypedValueParser::parse_ref(&self.parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            (self.names)()
                .iter()
                .map(|name| PossibleValue::new(name.as_str())),
        ))
    }
}

/// Names of schemes, for `forget --to`.
pub(super) fn scheme_names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let schemes = ForgetScheme::all().map(|(name, _)| name.to_owned());
        let gguf = ForgetScheme::all_gguf().map(|name| format!("gguf:{}", name.to_lowercase()));
        schemes.chain(gguf).collect()
    })
}

/// Names of containers and schemes, for `convert --to`.
pub(super) fn target_names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let containers = ConvertTarget::ALL
            .iter()
            .map(|target| target.extension().to_owned());
        containers.chain(scheme_names().iter().cloned()).collect()
    })
}

/// Element types, for `remember --to` and `--out-dtype`.
pub(super) fn dtype_names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| ["bf16", "f16", "f32"].map(str::to_owned).to_vec())
}

/// What `merge --to` takes.
pub(super) fn merge_names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| [dtype_names(), target_names()].concat())
}

pub(super) const DTYPE: Named<TargetDtype> = Named { parse: parse_dtype, names: dtype_names };
pub(super) const SCHEME: Named<ForgetScheme> = Named { parse: parse_scheme, names: scheme_names };
pub(super) const TARGET: Named<ConvertTo> = Named { parse: parse_target, names: target_names };
pub(super) const MERGE_TARGET: Named<MergeTo> =
    Named { parse: parse_merge_target, names: merge_names };

pub(super) fn parse_dtype(text: &str) -> Result<TargetDtype, String> {
    text.parse().map_err(|_| {
        let dtypes = "supported target dtypes: bf16, f32, f16";
        let named = [text.to_owned(), format!("gguf:{text}")];
        match text.parse() {
            Ok(ConvertTarget::Safetensors) => {
                return format!("{dtypes}; `amn remember FILE` writes safetensors");
            }
            Ok(_) => {
                return format!("{dtypes}; `amn convert FILE --to {text}` writes that container");
            }
            Err(_) => {}
        }
        let scheme = named.iter().find(|name| parse_scheme(name).is_ok());
        scheme.map_or(dtypes.to_owned(), |name| {
            format!("{dtypes}; `amn forget FILE --to {name}` encodes")
        })
    })
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
        .ok_or_else(|| "a part is I/N, from 1/N to N/N; --part-index counts from 0".to_owned())
}

/// A part counted from 0; returns it counted from 1.
pub(super) fn parse_part_index(text: &str) -> Result<(usize, usize), String> {
    let part = text
        .split_once('/')
        .and_then(|(part, of)| Some((part.parse::<usize>().ok()?, of.parse::<usize>().ok()?)));
    part.filter(|&(part, of)| part < of)
        .map(|(part, of)| (part + 1, of))
        .ok_or_else(|| "a part that is counted from 0 is I/N, from 0/N to N-1/N".to_owned())
}

/// The value of `convert --to`: a container, or a scheme that tensors are encoded to.
#[derive(Debug, Clone)]
pub(in super::super) enum ConvertTo {
    Container(ConvertTarget),
    Scheme(ForgetScheme),
}

pub(super) fn parse_target(text: &str) -> Result<ConvertTo, String> {
    if let Ok(container) = text.parse() {
        return Ok(ConvertTo::Container(container));
    }
    // What people ask of a converter that other commands do.
    let listed = ConvertTarget::listed();
    let command = match text {
        "csv" => Some("`amn show FILE TENSOR --csv`".to_owned()),
        "hf" | "huggingface" | "transformers" | "dir" | "directory" => {
            Some("`amn remember FILE -o DIRECTORY` writes a model for transformers".to_owned())
        }
        _ if NamedInput::is_model_file(&format!("model.{text}")) => {
            Some("files of that kind are read and not written".to_owned())
        }
        _ if parse_dtype(text).is_ok() => Some(format!(
            "`amn remember FILE --to {text}` decodes, and `--out-dtype {text}` is the type in other containers"
        )),
        _ => None,
    };
    match command {
        Some(command) => Err(format!("containers: {listed}; {command}")),
        None => parse_scheme(text)
            .map(ConvertTo::Scheme)
            .map_err(|what| format!("containers: {listed}; {what}")),
    }
}

/// The value of `merge --to`: an element type, or what `convert --to` takes.
#[derive(Debug, Clone)]
pub(in super::super) enum MergeTo {
    Dtype(TargetDtype),
    Other(ConvertTo),
}

pub(super) fn parse_merge_target(text: &str) -> Result<MergeTo, String> {
    match text.parse() {
        Ok(dtype) => Ok(MergeTo::Dtype(dtype)),
        Err(_) => parse_target(text)
            .map(MergeTo::Other)
            .map_err(|what| format!("element types: bf16, f16, f32; {what}")),
    }
}

/// An adapter's directory or file, and its weight behind the last `=` if that is a number.
pub(super) fn parse_adapter(text: &str) -> Result<(PathBuf, f64), String> {
    let weighted = text
        .rsplit_once('=')
        .and_then(|(path, weight)| Some((path, weight.parse::<f64>().ok()?)));
    let (path, weight) = weighted.unwrap_or((text, 1.0));
    match weight.is_finite() && !path.is_empty() {
        true => Ok((PathBuf::from(path), weight)),
        false => Err("an adapter is PATH or PATH=WEIGHT, e.g. lora=0.5".to_owned()),
    }
}

/// A global of a pickle.
pub(super) fn parse_global(text: &str) -> Result<String, String> {
    let is_global = text.split('.').all(|part| !part.is_empty()) && text.contains('.');
    match is_global && !text.contains(char::is_whitespace) {
        true => Ok(text.to_owned()),
        false => Err("a global is MODULE.NAME, e.g. argparse.Namespace".to_owned()),
    }
}

/// Programs whose names stand for many schemes, and those that most people take.
const COMMON: &[(&str, &[&str])] = &[
    ("gguf", &["gguf:q4_k_m", "gguf:q5_k_m", "gguf:q6_k", "gguf:q8_0", "gguf:iq4_xs"]),
    ("mlx", &["mlx-4bit", "mlx-6bit", "mlx-8bit", "mlx-mxfp4", "mlx-nvfp4"]),
    ("4bit", &["nf4", "w4a16", "gptq", "awq", "nvfp4", "mlx-4bit", "gguf:q4_k_m"]),
    ("8bit", &["int8", "fp8", "w8a8", "mxfp8", "mlx-8bit", "gguf:q8_0"]),
    ("compressed-tensors", &["w4a16", "w8a8", "fp8", "fp8-channel", "nvfp4-ct"]),
    ("bitsandbytes", &["nf4", "nf4-dq", "fp4", "int8"]),
    ("comfy", &["fp8-comfy", "comfy-nvfp4"]),
];

/// The scheme of this name.
pub(super) fn parse_scheme(text: &str) -> Result<ForgetScheme, String> {
    let parsed = text.parse();
    parsed.map_err(|e: crate::AnamnesisError| {
        // Also a part of the name, as in `mlx-q4`.
        let of_program =
            |(name, _): &&(&str, _)| *name == text || text.split('-').any(|word| word == *name);
        let detail = match (COMMON.iter().find(of_program), e) {
            (Some((_, common)), _) => format!("which one? --to {}", common.join(", ")),
            (None, crate::AnamnesisError::Unsupported { detail, .. }) => detail,
            (None, other) => return other.to_string(),
        };
        format!("{detail}; `amn forget --list` names all")
    })
}

/// The help of `convert --to`.
pub(super) fn help_of_containers() -> String {
    let listed = ConvertTarget::listed();
    let (first, last) = listed.rsplit_once(", ").unwrap_or(("", &listed));
    format!(
        "Container of the output: {first} or {last}; or a scheme, as for forget: gguf:q4_k, bnb-nf4, … [default: as OUT ends]"
    )
}

/// A pattern and a name; the last `=` counts, for expressions have some.
pub(super) fn parse_rename(text: &str) -> Result<(String, String), String> {
    let pair = text.rsplit_once('=').filter(|(old, _)| !old.is_empty());
    let pair = pair.map(|(old, new)| (old.to_owned(), new.to_owned()));
    pair.ok_or_else(|| "a name is changed by OLD=NEW".to_owned())
}

/// Numbers of layers: one, or the first and the last of several.
pub(super) fn parse_layers(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<usize>().ok();
    let layers = number(first)
        .zip(number(last))
        .filter(|(first, last)| first <= last);
    let layers = layers.map(|(first, last)| first..=last);
    layers.ok_or_else(|| "layers are given by their numbers, from 0 on: 5 or 20-27".to_owned())
}

/// Bits of a weight.
pub(super) fn parse_bits(text: &str) -> Result<f64, String> {
    let bits = text.parse().ok().filter(|bits| (1.0..=16.0).contains(bits));
    bits.ok_or_else(|| "bits a weight are a number from 1 to 16, such as 4.5".to_owned())
}

/// A type of ggml.
pub(super) fn parse_ggml_type(text: &str) -> Result<Dtype, String> {
    GgufTypes::parse_type(text).map_err(|e| match e {
        crate::AnamnesisError::Unsupported { detail, .. } => detail,
        other => other.to_string(),
    })
}

/// A pattern and the name of a type, of which the scheme says what it is.
pub(super) fn parse_tensor_type(text: &str) -> Result<(String, String), String> {
    let given = text.rsplit_once('=');
    given
        .filter(|(pattern, name)| !pattern.is_empty() && !name.is_empty())
        .map(|(pattern, name)| (pattern.to_owned(), name.to_owned()))
        .ok_or_else(|| "a type is given by GLOB=TYPE".to_owned())
}

/// A size as [`format_bytes`](crate::format_bytes) prints it, `1.50 GB`, or shorter: `5G`, `500MB`,
/// `2GiB`, `500000000`. Units are powers of 1024, in upper or lower case.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let number = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match &lower[number.len()..] {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let bytes = power.and_then(|power| bytes_of(number.trim(), power));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| {
        "a size is a number of bytes, or of KB, MB or GB, which are powers of 1024, e.g. 5GB, 1.5G, 512MiB".to_owned()
    })
}

/// `number` times 2 to the power of `power`, exactly if it is an integer, else rounded down.
fn bytes_of(number: &str, power: u32) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << power);
    }
    let is_decimal = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let bytes = number
        .parse::<f64>()
        .ok()
        .filter(|_| is_decimal && power > 0)?
        * f64::from(power).exp2();
    // Above 2^53 fractions of bytes say nothing; u64 ends at 2^64.
    (bytes < f64::from(53).exp2()).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_schemes_are_schemes() {
        for name in COMMON.iter().flat_map(|(_, names)| *names) {
            assert!(parse_scheme(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn completed_names_are_parsed() {
        let all = [scheme_names(), target_names(), dtype_names(), merge_names()];
        assert!(all.iter().all(|names| names.len() > 2));
        assert!(scheme_names().iter().all(|name| parse_scheme(name).is_ok()));
        assert!(target_names().iter().all(|name| parse_target(name).is_ok()));
        assert!(dtype_names().iter().all(|name| parse_dtype(name).is_ok()));
        assert!(
            merge_names()
                .iter()
                .all(|name| parse_merge_target(name).is_ok())
        );
    }

    #[test]
    fn sizes_are_read_as_they_are_printed() {
        for bytes in [1, 1023, 1024, 1536, 3 << 20, 5 << 30, (5 << 30) + (1 << 29)] {
            assert_eq!(parse_size(&crate::format_bytes(bytes)), Ok(bytes));
        }
        for text in ["5G", "5g", "5GB", "5 GB", "5GiB", "5.0gb", "5368709120", "5120M"] {
            assert_eq!(parse_size(text), Ok(5 << 30), "{text}");
        }
        for text in [
            "",
            "0",
            "G",
            "-1",
            "1.5",
            "1e3K",
            "inf",
            "nanG",
            "5 X",
            "5GBB",
            "99999999T",
            "1.5.2K",
            "٣K",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
