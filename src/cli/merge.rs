//! `amn merge`.

use std::io::Write;
use std::path::PathBuf;

use super::args::{ConvertTo, InputsArgs, MergeArgs, MergeTo};
use super::batch::write_all;
use super::plan::OutputStyle;
use super::write::run_options;
use super::{CommandResult, option_checks};
use crate::{Adapter, ConvertOptions, Forget, RememberOptions, Result, TargetDtype};

/// Merges adapters into a model and prints a summary.
pub(super) fn merge(args: &MergeArgs, out: &mut impl Write) -> CommandResult {
    let limits = args.run.read.limits.limits();
    let opened = args.adapters.iter().map(|(path, weight)| {
        let adapter = Adapter::open_with_limits(path, &limits)?;
        Ok(adapter.with_weight(*weight))
    });
    let adapters = opened.collect::<Result<Vec<_>>>()?;
    let (mut options, to) = match &args.to {
        MergeTo::Dtype(to) => {
            let mut options = ConvertOptions::from(RememberOptions::default());
            let output = args.run.output.path.as_deref();
            options.target = option_checks::remembered_as(output).unwrap_or_default();
            (options, Some(*to))
        }
        MergeTo::Other(ConvertTo::Container(container)) => {
            (ConvertOptions::new(*container).with_decode(true), None)
        }
        MergeTo::Other(ConvertTo::Scheme(scheme)) => {
            (ConvertOptions::from(Forget::from(scheme.clone())), None)
        }
    };
    let to: TargetDtype = to.unwrap_or(options.run.to);
    options.run = run_options(to, &args.run)?.with_cast(args.cast.cast());
    let options = options.with_adapters(adapters);
    let inputs = InputsArgs { files: vec![PathBuf::clone(&args.base)], root: None };
    write_all(
        &inputs,
        &options,
        &args.run,
        &OutputStyle { suffix: Some("merged"), ..OutputStyle::default() },
        out,
    )
}
