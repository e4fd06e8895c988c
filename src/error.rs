//! [`AnamnesisError`]: one variant for each answer to the question who is to blame.

mod printable;

use std::fmt::{Display, Formatter};
use std::path::{Path, PathBuf};

use self::printable::short;
pub use self::printable::{counted, printable};

/// What a message about a tensor begins with, before the name and a backtick.
const TENSOR: &str = "tensor `";

/// The beginning of a message about the tensor of this name, which [`AnamnesisError::tensor`] reads
/// back. No message is made otherwise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InTensor<N>(pub(crate) N);

impl<N: Display> Display for InTensor<N> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{TENSOR}{}`", self.0)
    }
}

/// Error of every function of this crate; its variant says who is to blame.
///
/// [`kind`](Self::kind) returns the variant without its fields. Messages name the tensor or file at
/// fault. `Display` escapes control, bidirectional and zero-width characters, which a name in a
/// file may hold; the fields keep the raw text.
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
    /// The input needs more memory or items than a limit allows.
    #[error("limit exceeded ({limit}): {}", printable(message))]
    LimitExceeded {
        /// Name of the limit, such as `max_item_count`.
        limit: &'static str,
        /// What the input needs, and the bound.
        message: String,
    },
    /// A pickle names a global that is not on the allow-list; see `docs/safety.md`.
    #[error("disallowed pickle global `{}.{}` ({})", short(module), short(name), danger(module))]
    DisallowedGlobal {
        /// Python module of the global.
        module: String,
        /// Name of the global in its module.
        name: String,
    },
    /// The caller's options are wrong, or ask for what this input has not.
    #[error("{}", printable(message))]
    Usage {
        /// The option, what is wrong with it, and what would help.
        message: String,
    },
    /// The caller's [`CancelToken`](crate::CancelToken) was set.
    #[error("operation cancelled by the caller")]
    Cancelled,
    /// The operating system, or the caller's reader or writer, failed.
    #[error(transparent)]
    Io(std::io::Error),
}

/// Who is to blame for an [`AnamnesisError`]: its variant, without the fields.
///
/// ```
/// use anamnesis::ErrorKind;
/// let error = anamnesis::parse("no such file").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Io);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is malformed ([`AnamnesisError::Parse`]).
    Parse,
    /// This build cannot handle the input ([`AnamnesisError::Unsupported`]).
    Unsupported,
    /// A limit is too low for the input ([`AnamnesisError::LimitExceeded`]).
    LimitExceeded,
    /// A pickle might run code ([`AnamnesisError::DisallowedGlobal`]).
    DisallowedGlobal,
    /// The caller's options are wrong ([`AnamnesisError::Usage`]).
    Usage,
    /// The caller cancelled the operation ([`AnamnesisError::Cancelled`]).
    Cancelled,
    /// Reading or writing failed ([`AnamnesisError::Io`]).
    Io,
}

/// [`Result`](std::result::Result) with [`AnamnesisError`].
pub type Result<T> = std::result::Result<T, AnamnesisError>;

impl AnamnesisError {
    /// Returns the error's variant without its fields.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Parse { .. } => ErrorKind::Parse,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::LimitExceeded { .. } => ErrorKind::LimitExceeded,
            Self::DisallowedGlobal { .. } => ErrorKind::DisallowedGlobal,
            Self::Usage { .. } => ErrorKind::Usage,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Io(_) => ErrorKind::Io,
        }
    }

    /// Returns the name of the tensor that the error is about, as the file has it, or `None` if it
    /// is about something else.
    ///
    /// Every message about a tensor begins with its name in backticks, so a name that holds a
    /// backtick ends there.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        let message = match self {
            Self::Parse { reason } => reason,
            Self::Unsupported { detail, .. } => detail,
            Self::LimitExceeded { message, .. } | Self::Usage { message } => message,
            _ => return None,
        };
        let (name, rest) = message.strip_prefix(TENSOR)?.split_once('`')?;
        (rest.is_empty() || rest.starts_with([' ', ':', ','])).then_some(name)
    }

    /// Returns the path of the file that an [`Io`](Self::Io) error is about, if it is known.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        let Self::Io(error) = self else {
            return None;
        };
        let context = error.get_ref()?.downcast_ref::<IoContext>()?;
        context.path.as_deref()
    }

    /// A [`Parse`](Self::Parse) error.
    #[must_use]
    pub fn parse(reason: impl Into<String>) -> Self {
        Self::Parse { reason: reason.into() }
    }

    /// An [`Unsupported`](Self::Unsupported) error.
    #[must_use]
    pub fn unsupported(format: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Unsupported { format: format.into(), detail: detail.into() }
    }

    /// A [`Usage`](Self::Usage) error.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into() }
    }

    /// The [`Unsupported`](Self::Unsupported) error for `what`, which needs a feature that this
    /// build leaves out. Several features are passed as one text, with backticks between them.
    pub(crate) fn missing_feature(what: impl Into<String>, feature: &str) -> Self {
        Self::unsupported(
            what,
            format!("needs the feature `{feature}`, which this build leaves out"),
        )
    }

    /// Prefixes the message of a `Parse`, `LimitExceeded` or `Usage` error with `what` and a colon. Other
    /// variants are returned unchanged.
    #[must_use]
    pub fn about(self, what: impl Display) -> Self {
        match self {
            Self::Parse { reason } => Self::parse(format!("{what}: {reason}")),
            Self::LimitExceeded { limit, message } => {
                Self::LimitExceeded { limit, message: format!("{what}: {message}") }
            }
            Self::Usage { message } => Self::usage(format!("{what}: {message}")),
            other => other,
        }
    }

    /// The same error about the tensor `name`, which its message begins with and
    /// [`tensor`](Self::tensor) returns. Errors without a message of this crate are returned unchanged.
    ///
    /// ```
    /// let error = anamnesis::AnamnesisError::parse("a value is NaN").in_tensor("lm_head.weight");
    /// assert_eq!(error.tensor(), Some("lm_head.weight"));
    /// ```
    #[must_use]
    pub fn in_tensor(self, name: &str) -> Self {
        match self {
            Self::Unsupported { format, detail } => {
                Self::unsupported(format, format!("{}: {detail}", InTensor(name)))
            }
            other => other.about(InTensor(name)),
        }
    }

    /// The operating system's code of an [`Io`](Self::Io) error, as
    /// [`std::io::Error::raw_os_error`] returns it, even if the message begins with a path. `None`
    /// if the error has another origin, such as the caller's reader.
    ///
    /// ```
    /// # #[cfg(unix)] {
    /// let error = anamnesis::parse("no such file").unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(2)); // ENOENT
    /// # }
    /// ```
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io(error) => os_code(error),
            _ => None,
        }
    }

    /// An [`Io`](Self::Io) error of the kind of `error`, whose message begins with the file's path, which
    /// [`file`](Self::file) returns.
    #[must_use]
    pub fn io_at(path: &Path, error: &std::io::Error) -> Self {
        Self::io_with(path.display(), Some(path.to_path_buf()), error)
    }

    /// An [`Io`](Self::Io) error of the kind of `error`, whose message begins with `what` and a
    /// colon.
    pub(crate) fn io_in(what: impl Display, error: &std::io::Error) -> Self {
        let context = error.get_ref().and_then(|e| e.downcast_ref::<IoContext>());
        Self::io_with(what, context.and_then(|context| context.path.clone()), error)
    }

    fn io_with(what: impl Display, path: Option<PathBuf>, error: &std::io::Error) -> Self {
        let payload = IoContext {
            message: printable(&format!("{what}: {error}")),
            path,
            os: os_code(error).map(std::io::Error::from_raw_os_error),
        };
        Self::Io(std::io::Error::new(error.kind(), payload))
    }
}

/// Payload of an `io::Error` whose message says where it happened. An `io::Error` holds a code or a
/// payload, never both, so the code stays in the payload's source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct IoContext {
    /// Safe for a terminal.
    message: String,
    /// The file that it happened to.
    path: Option<PathBuf>,
    #[source]
    os: Option<std::io::Error>,
}

/// The operating system's code of `error`, or of the error that a context was added to.
fn os_code(error: &std::io::Error) -> Option<i32> {
    let context = || error.get_ref()?.downcast_ref::<IoContext>();
    error
        .raw_os_error()
        .or_else(|| context()?.os.as_ref()?.raw_os_error())
}

/// What loading a pickle with a global of `module` could do, or what to do instead.
fn danger(module: &str) -> &'static str {
    match module.starts_with("__torch__") {
        true => "TorchScript: `torch.jit.load` it, and save its `state_dict()`",
        false => "potential code execution",
    }
}

impl From<std::io::Error> for AnamnesisError {
    /// An error whose text is not safe for a terminal, which only a caller's reader can have, becomes
    /// one of the same kind with the text escaped.
    fn from(error: std::io::Error) -> Self {
        let text = error.to_string();
        match printable(&text) {
            safe if safe == text => Self::Io(error),
            safe => Self::Io(std::io::Error::new(error.kind(), safe)),
        }
    }
}

impl From<safetensors::SafeTensorError> for AnamnesisError {
    fn from(error: safetensors::SafeTensorError) -> Self {
        Self::parse(format!("failed to parse safetensors header: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tensor_of_an_error() {
        let of = |error: AnamnesisError| error.tensor().map(str::to_owned);
        let about = AnamnesisError::parse("tensor `a.b` (F16 [2]): its `a.c` is missing");
        assert_eq!(of(about).as_deref(), Some("a.b"));
        let refused = AnamnesisError::unsupported("EXL2", "tensor `x`");
        assert_eq!(of(refused).as_deref(), Some("x"));
        assert_eq!(of(AnamnesisError::parse("the tensor `x`")), None);
        assert_eq!(of(AnamnesisError::Cancelled), None);
    }

    #[test]
    fn messages_are_safe_for_a_terminal() {
        let error = AnamnesisError::parse("tensor `a\u{1b}[31m\u{202e}b\n`");
        assert_eq!(error.to_string(), "parse error: tensor `a\\u{1b}[31m\\u{202e}b\\u{a}`");
        let long = AnamnesisError::parse("x".repeat(5000)).to_string();
        assert!(long.ends_with("… (2952 more characters)"), "{long}");
    }

    #[test]
    fn scripts_are_told_from_other_globals() {
        let text = |module: &str| {
            let (module, name) = (module.to_owned(), "M".to_owned());
            AnamnesisError::DisallowedGlobal { module, name }.to_string()
        };
        assert!(text("__torch__.net").contains("torch.jit.load"));
        assert!(text("os").contains("potential code execution"));
    }

    #[test]
    fn io_is_transparent() {
        let error = AnamnesisError::from(std::io::Error::other("range transfer budget exceeded"));
        assert_eq!(error.to_string(), "range transfer budget exceeded");
    }

    #[test]
    fn context_keeps_the_code() {
        use std::error::Error as _;
        let refused = std::io::Error::from_raw_os_error(13);
        let text = refused.to_string();
        let error = AnamnesisError::io_at(Path::new("a"), &refused);
        assert_eq!(error.to_string(), format!("a: {text}"));
        assert_eq!(error.raw_os_error(), Some(13));
        let source = error
            .source()
            .and_then(|e| e.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(13));
        let AnamnesisError::Io(inner) = error else {
            panic!()
        };
        assert_eq!(inner.kind(), refused.kind());
        let twice = AnamnesisError::io_in("reading tensor `x`", &inner);
        assert_eq!(twice.to_string(), format!("reading tensor `x`: a: {text}"));
        assert_eq!(twice.raw_os_error(), Some(13));
        let own = AnamnesisError::io_at(Path::new("a"), &std::io::Error::other("no"));
        assert_eq!((own.raw_os_error(), &*own.to_string()), (None, "a: no"));
    }

    #[test]
    fn context_keeps_the_kind() {
        let limit = AnamnesisError::LimitExceeded {
            limit: "max_item_count",
            message: "2 tensors; at most 1".to_owned(),
        };
        for (error, kind, text) in [
            (
                AnamnesisError::parse("it is short"),
                ErrorKind::Parse,
                "parse error: `a`: it is short",
            ),
            (
                limit,
                ErrorKind::LimitExceeded,
                "limit exceeded (max_item_count): `a`: 2 tensors; at most 1",
            ),
            (
                AnamnesisError::unsupported("HDF5", "convert it"),
                ErrorKind::Unsupported,
                "unsupported format `HDF5`: convert it",
            ),
            (AnamnesisError::Cancelled, ErrorKind::Cancelled, "operation cancelled by the caller"),
        ] {
            let error = error.about("`a`");
            assert_eq!((error.kind(), &*error.to_string()), (kind, text));
        }
    }
}
