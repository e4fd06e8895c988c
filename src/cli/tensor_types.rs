//! The types of single tensors that the arguments ask for, and those of all tensors as a file
//! (`--plan`).

use std::path::Path;

use super::args::TypeArgs;
use super::option_checks::read_text;
use super::sums::{SideOutput, check_place, write_text};
use crate::{AnamnesisError, Conversion, Forget, Result};

/// Gives tensors the types that the arguments ask for.
///
/// # Errors
/// `Usage` if a type is none that the scheme has beside it; those of reading a plan.
pub(super) fn apply(args: &TypeArgs, forget: &mut Forget) -> Result<()> {
    forget.types.token_embedding = args.token_embedding_type;
    forget.types.output = args.output_tensor_type;
    (forget.bits, forget.size) = (args.bits, args.size);
    forget.refuses_requantizing = !args.allow_requantize;
    for (pattern, name) in &args.tensor_type {
        forget
            .give(pattern, name)
            .map_err(|e| as_usage(e, "--tensor-type"))?;
    }
    match args.read_plan() {
        Some(path) => read(path, forget),
        None => Ok(()),
    }
}

/// The error that a type of this name cannot be given, which says no format of a file.
fn as_usage(error: AnamnesisError, about: &str) -> AnamnesisError {
    match error {
        AnamnesisError::Unsupported { format, detail } => {
            AnamnesisError::usage(format!("{about}: `{format}`: {detail}"))
        }
        other => other.about(about.to_owned()),
    }
}

/// Gives tensors the types that the lines `NAME=TYPE` of a file say. Empty lines and those after `#`
/// say nothing.
///
/// # Errors
/// `Usage` that names the line; those of reading.
fn read(path: &Path, forget: &mut Forget) -> Result<()> {
    for (i, line) in read_text("--plan", path)?.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let about = || format!("--plan: {}, line {}", path.display(), i + 1);
        let Some((name, kind)) = line.rsplit_once('=') else {
            return Err(AnamnesisError::usage(format!("{}: it is not NAME=TYPE", about())));
        };
        forget
            .give(name.trim(), kind.trim())
            .map_err(|e| as_usage(e, &about()))?;
    }
    Ok(())
}

/// Writes the types of all that `conversion` encodes to `output`.
///
/// # Errors
/// `Io` if the file cannot be written.
pub(super) fn write(
    path: &Path,
    conversion: &Conversion<'_>,
    output: &Path,
    force: bool,
) -> Result<()> {
    let side = SideOutput { path, what: "the plan" };
    check_place(side, output, &conversion.paths(output), Some(conversion), force)?;
    let mut text = String::new();
    for encoded in &conversion.report().encoded {
        text += &format!("{}={}\n", encoded.name, encoded.scheme);
    }
    write_text(path, &text, Some(conversion), force)
}
