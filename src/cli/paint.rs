//! Colours of verdicts.

use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;

/// What a word says of a model or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Doubtful,
    Bad,
}

/// `word` in the colour of `verdict`, if stdout shows colours.
pub(super) fn painted(word: &str, verdict: Verdict) -> String {
    if !shows_colors() {
        return word.to_owned();
    }
    let color = match verdict {
        Verdict::Good => AnsiColor::Green,
        Verdict::Doubtful => AnsiColor::Yellow,
        Verdict::Bad => AnsiColor::Red,
    };
    let style = color.on_default().bold();
    format!("{style}{word}{style:#}")
}

/// Whether stdout is a terminal that shows colours, unless `NO_COLOR`, `CLICOLOR` or `CLICOLOR_FORCE`
/// say otherwise. Consoles of Windows are told to interpret escape sequences; those that cannot get
/// none.
fn shows_colors() -> bool {
    static SHOWS: OnceLock<bool> = OnceLock::new();
    *SHOWS.get_or_init(|| {
        AutoStream::auto(std::io::stdout()).current_choice() == ColorChoice::AlwaysAnsi
    })
}
