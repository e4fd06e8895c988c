//! Records for the crate `log`, with the feature `log`: the files that are opened, what is decided
//! for each tensor, and what an interrupted conversion goes on with. Texts hold names from files,
//! which nothing has escaped.

#[cfg(feature = "log")]
pub(crate) use log::{debug, info};

/// Stands in for the macros of `log`: checks the arguments and evaluates none.
#[cfg(not(feature = "log"))]
macro_rules! discard {
    ($($argument:tt)*) => {
        if false {
            let _ = format_args!($($argument)*);
        }
    };
}
#[cfg(not(feature = "log"))]
pub(crate) use {discard as debug, discard as info};
