//! `amn remember` and `amn convert`.

use std::io::Write;
use std::path::Path;

use super::args::{ConvertArgs, ConvertTo, RememberArgs};
use super::batch::write_all;
use super::finish::finish;
use super::option_checks::{converted_as, remembered_as};
use super::plan::OutputStyle;
use super::write::run_options;
use super::{CommandResult, tensor_types};
use crate::hooks::NamedInput;
use crate::{AnamnesisError, ConvertOptions, Forget, ModelScope};

/// Decodes a model and prints a summary; with `--finish`, gives a directory made in parts its name.
pub(super) fn remember(args: &RememberArgs, out: &mut impl Write) -> CommandResult {
    if args.finish {
        let [output] = args.input.files.as_slice() else {
            let what = "--finish: it takes one directory";
            return Err(AnamnesisError::usage(what).into());
        };
        return finish(output, &args.run, out);
    }
    let run = run_options(args.to, &args.run)?.with_cast(args.cast.cast());
    let mut options = ConvertOptions::from(run);
    let output = args.run.output.path.as_deref();
    options.target = remembered_as(output).unwrap_or_default();
    write_all(
        &args.input,
        &options,
        &args.run,
        &OutputStyle { asks_dtype: true, ..OutputStyle::default() },
        out,
    )
}

/// Writes a model into another container.
pub(super) fn convert(args: &ConvertArgs, out: &mut impl Write) -> CommandResult {
    let to = match &args.to {
        Some(to) => to.clone(),
        None => ConvertTo::Container(converted_as(args).map_err(AnamnesisError::usage)?),
    };
    let mut options = match &to {
        ConvertTo::Container(container) => {
            ConvertOptions::new(*container).with_decode(args.out_dtype.is_some())
        }
        ConvertTo::Scheme(scheme) => {
            let mut forget = Forget::from(scheme.clone());
            tensor_types::apply(&args.types, &mut forget)?;
            ConvertOptions::from(forget)
        }
    };
    if let Some(base) = &args.base {
        let cached = NamedInput::in_hub(base)?;
        options.base = Some(cached.unwrap_or_else(|| base.clone()));
    }
    options
        .files
        .extend(args.types.read_plan().map(Path::to_path_buf));
    let dtype = args.out_dtype.unwrap_or(options.run.to);
    options.run = run_options(dtype, &args.run)?.with_cast(args.cast.cast());
    args.model.apply(&mut options);
    options.kohya_names = args.kohya_names;
    options.fp8_as_q8 = args.fp8_as_q8;
    if args.vocab_only || args.mtp {
        options.scope = if args.mtp {
            ModelScope::Prediction
        } else {
            ModelScope::Vocabulary
        };
    }
    let suffix = match &to {
        _ if args.vocab_only => Some("vocab".to_owned()),
        ConvertTo::Scheme(scheme) => Some(scheme.suffix()),
        ConvertTo::Container(container) => {
            let suffix = container.suffix();
            suffix
                .filter(|_| args.out_dtype.is_none())
                .map(str::to_owned)
        }
    };
    write_all(
        &args.input,
        &options,
        &args.run,
        &OutputStyle {
            suffix: suffix.as_deref(),
            asks_dtype: args.out_dtype.is_some(),
            plan: args.types.saved_plan(),
            ..OutputStyle::default()
        },
        out,
    )
}
