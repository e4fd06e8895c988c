//! Why llama.cpp does not load a file.

use std::fmt::{self, Display};

use crate::error::InTensor;

/// Why llama.cpp does not load a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum GraphProblem {
    /// A key is missing.
    Key(String),
    /// A key has a value that it cannot have beside others.
    Value { key: String, what: String },
    /// A tensor is missing.
    Missing { tensor: String, architecture: String },
    /// A tensor has another shape than the keys say.
    Shape {
        tensor: String,
        architecture: String,
        found: Vec<usize>,
        expected: Vec<u64>,
        sizes: String,
    },
    /// A tensor is there for which llama.cpp has no place.
    NoPlace { tensor: String, architecture: String },
}

impl GraphProblem {
    /// The tensor that it is about.
    pub(crate) fn tensor(&self) -> Option<&str> {
        match self {
            Self::Key(_) | Self::Value { .. } => None,
            Self::Missing { tensor, .. }
            | Self::Shape { tensor, .. }
            | Self::NoPlace { tensor, .. } => Some(tensor),
        }
    }

    /// Whether `other` is the same fault in another place.
    #[cfg_attr(not(feature = "check"), allow(dead_code))]
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Display for GraphProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "the key `{key}` is missing, which llama.cpp needs"),
            Self::Value { key, what } => write!(f, "the key `{key}`: {what}"),
            Self::Missing { tensor, architecture } => {
                write!(
                    f,
                    "{} is missing, which llama.cpp's {architecture} needs",
                    InTensor(&tensor)
                )
            }
            Self::Shape { tensor, architecture, found, expected, sizes } => write!(
                f,
                "{} has the shape {found:?}, and llama.cpp's {architecture} has room for {expected:?} ({sizes})",
                InTensor(&tensor)
            ),
            Self::NoPlace { tensor, architecture } => write!(
                f,
                "llama.cpp's {architecture} has no place for the tensor `{tensor}`, and loads no file with more tensors than it knows"
            ),
        }
    }
}
