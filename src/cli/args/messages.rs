//! How much a command says.

use super::run::RUN;

#[derive(Debug, Clone, Default, clap::Args)]
pub(in super::super) struct MessageArgs {
    /// Print errors and results alone: no notes, no summary, no progress
    #[arg(short, long, conflicts_with = "verbose", help_heading = RUN)]
    pub quiet: bool,
    /// Say on stderr which files are opened and what is decided for each tensor
    #[arg(short, long, help_heading = RUN)]
    pub verbose: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub(in super::super) struct ProgressArgs {
    /// Progress on stderr: a bar on a terminal and elsewhere a line every 10 seconds (auto), also
    /// with --quiet and for short runs (always), none (never), or lines of JSON as in docs/json.md
    /// (json)
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = RUN)]
    pub progress: ProgressMode,
}

/// The values of `--progress`. Their texts would turn each option of `--help` into a paragraph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in super::super) enum ProgressMode {
    Auto,
    Always,
    Never,
    Json,
}
