//! `amn forget`.

use std::io::Write;

use super::args::ForgetArgs;
use super::convert::{Manner, run_options, write};
use super::input;
use crate::{ConvertOptions, Forget, ForgetScheme, Result};

/// Encodes a model, and says what it cost.
pub(super) fn forget(args: &ForgetArgs, out: &mut impl Write) -> Result<()> {
    let scheme: ForgetScheme = args.to.parse()?;
    let suffix = scheme.to_string().trim_start_matches("gguf:").to_owned();
    let to = args.out_dtype.unwrap_or_else(|| scheme.dtype());
    let mut forget = Forget::from(scheme);
    (forget.include, forget.exclude) = (args.run.include.clone(), args.run.exclude.clone());
    (forget.like, forget.imatrix) = (args.like.clone(), args.imatrix.clone());
    let input = input::open(&args.input)?;
    let mut options = ConvertOptions::from(forget);
    options.run = run_options(to, &args.run)?;
    write(&input, &options, &args.run, &Manner { suffix: &suffix, json: args.json }, out)
}
