//! How much a command says, and how it reads.

use super::LimitArgs;
use super::run::RUN;
use crate::{CancelToken, RememberOptions, TargetDtype};

#[derive(Debug, Clone, Default, clap::Args)]
pub(in super::super) struct MessageArgs {
    /// Print errors and results alone: no notes, no summary, no progress
    #[arg(short, long, conflicts_with = "verbose", help_heading = RUN)]
    pub quiet: bool,
    /// Say on stderr which files are opened and what is decided for each tensor
    #[arg(short, long, help_heading = RUN)]
    pub verbose: bool,
}

/// How a command that reads tensor data runs.
#[derive(Debug, Clone, clap::Args)]
pub(in super::super) struct ReadArgs {
    /// Worker threads [default: one for each core]
    #[arg(short = 'j', long, value_name = "N", help_heading = RUN, value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    #[command(flatten)]
    pub messages: MessageArgs,
    /// Progress on stderr: a bar on a terminal and elsewhere a line every 10 seconds (auto), also
    /// with --quiet and for short runs (always), none (never), or lines of JSON as in docs/json.md
    /// (json)
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = RUN)]
    pub progress: ProgressMode,
    #[command(flatten)]
    pub limits: LimitArgs,
}

impl ReadArgs {
    /// The options of a run that decodes to `to`, which `cancel` ends.
    pub(in super::super) fn options(
        &self,
        to: TargetDtype,
        cancel: CancelToken,
    ) -> RememberOptions {
        let options = RememberOptions::new(to).with_cancel(cancel);
        match self.threads {
            Some(threads) => options.with_threads(threads as usize),
            None => options,
        }
    }
}

/// The values of `--progress`. Their texts would turn each option of `--help` into a paragraph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in super::super) enum ProgressMode {
    Auto,
    Always,
    Never,
    Json,
}
