//! Containers, in and out: the one model, the readers that make it, and the writers that lay a file
//! out. Nothing here knows a quantization scheme.

pub(crate) mod model;
pub(crate) mod parse;
pub(crate) mod write;
