//! The crate's error: each variant says who is to blame.

use std::fmt::Write as _;
use std::path::Path;

/// Longest message that [`printable`] lets through, in characters.
const MAX_MESSAGE: usize = 2048;

/// What went wrong, by who is to blame for it.
///
/// Messages name the tensor or file at fault. Control, bidirectional and zero-width characters that
/// a file puts into a message are escaped when the error is displayed; the fields keep the raw text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnamnesisError {
    /// The input is malformed, or contradicts itself or its config.
    #[error("parse error: {}", printable(reason))]
    Parse {
        /// What is wrong, and where.
        reason: String,
    },
    /// The input is well-formed, but of a kind that this build cannot handle.
    #[error("unsupported format `{}`: {}", printable(format), printable(detail))]
    Unsupported {
        /// The format or scheme.
        format: String,
        /// The tensor or file, and what would help.
        detail: String,
    },
    /// The input asks for more than a limit allows.
    #[error("limit exceeded ({limit}): {}", printable(message))]
    LimitExceeded {
        /// Name of the limit.
        limit: &'static str,
        /// What was asked for, and the bound.
        message: String,
    },
    /// A pickle names a global that is not on the allow-list.
    #[error(
        "disallowed pickle global `{}.{}` (potential code execution)",
        short(module),
        short(name)
    )]
    DisallowedGlobal {
        /// Module of the global.
        module: String,
        /// Name of the global.
        name: String,
    },
    /// The caller's [`CancelToken`](crate::CancelToken) was set.
    #[error("operation cancelled by the caller")]
    Cancelled,
    /// The operating system, or the caller's reader or writer, failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, AnamnesisError>;

impl AnamnesisError {
    /// A [`Parse`](Self::Parse) error.
    pub(crate) fn parse(reason: impl Into<String>) -> Self {
        Self::Parse {
            reason: reason.into(),
        }
    }

    /// An [`Unsupported`](Self::Unsupported) error.
    pub(crate) fn unsupported(format: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Unsupported {
            format: format.into(),
            detail: detail.into(),
        }
    }

    /// The same error with `what` before its text, where that is about the input.
    pub(crate) fn about(self, what: impl std::fmt::Display) -> Self {
        match self {
            Self::Parse { reason } => Self::parse(format!("{what}: {reason}")),
            Self::LimitExceeded { limit, message } => Self::LimitExceeded {
                limit,
                message: format!("{what}: {message}"),
            },
            other => other,
        }
    }

    /// An I/O error that names the file.
    pub(crate) fn io_at(path: &Path, error: &std::io::Error) -> Self {
        Self::Io(std::io::Error::new(
            error.kind(),
            format!("{}: {error}", printable(&path.to_string_lossy())),
        ))
    }
}

impl From<safetensors::SafeTensorError> for AnamnesisError {
    fn from(error: safetensors::SafeTensorError) -> Self {
        Self::parse(format!("failed to parse safetensors header: {error}"))
    }
}

/// `text` made safe for a terminal: characters that move the cursor, reorder or hide text become
/// `\u{…}`, and text over 2048 characters is cut with a count of what is missing.
pub fn printable(text: &str) -> String {
    clean(text, MAX_MESSAGE)
}

/// [`printable`] for names, cut at 48 characters.
fn short(text: &str) -> String {
    if text.chars().count() <= 48 {
        return clean(text, 48);
    }
    let head: String = text.chars().take(48).collect();
    format!("{}…", clean(&head, 48))
}

fn clean(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    for (i, c) in text.chars().enumerate() {
        if i == max {
            let _ = write!(out, "… ({} more characters)", text.chars().count() - max);
            break;
        }
        if is_deceptive(c) {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        } else {
            out.push(c);
        }
    }
    out
}

/// Control, bidirectional, zero-width and byte-order-mark characters.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_safe_for_a_terminal() {
        let error = AnamnesisError::parse("tensor `a\u{1b}[31m\u{202e}b\n`");
        assert_eq!(
            error.to_string(),
            "parse error: tensor `a\\u{1b}[31m\\u{202e}b\\u{a}`"
        );
        let long = AnamnesisError::parse("x".repeat(5000)).to_string();
        assert!(long.ends_with("… (2952 more characters)"), "{long}");
    }

    #[test]
    fn io_is_transparent() {
        let error = AnamnesisError::from(std::io::Error::other("range transfer budget exceeded"));
        assert_eq!(error.to_string(), "range transfer budget exceeded");
    }
}
