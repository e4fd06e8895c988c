//! Containers: what is read from files of each format, which malformed headers are errors, and the
//! limits that a caller sets.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

#[cfg(all(feature = "npz", feature = "pth", feature = "onnx"))]
mod archives;
#[cfg(all(feature = "npz", feature = "pth"))]
mod checkpoints;
#[cfg(all(feature = "coreml", feature = "remember"))]
mod coreml;
#[cfg(feature = "pth")]
mod distributed;
mod duplicates;
#[cfg(feature = "pth")]
mod exported;
#[cfg(feature = "gguf")]
mod gguf;
mod headers;
#[cfg(all(feature = "hdf5", feature = "remember"))]
mod keras;
mod limits;
#[cfg(all(feature = "npz", feature = "pth", feature = "gguf"))]
mod llamafile;
#[cfg(all(feature = "onnx", feature = "remember"))]
mod onnx;
#[cfg(all(feature = "openvino", feature = "remember"))]
mod openvino;
#[cfg(all(feature = "paddle", feature = "remember"))]
mod paddle;
#[cfg(feature = "remember")]
mod qnat;
#[cfg(feature = "pth")]
mod rank_files;
mod readers;
mod requests;
#[cfg(feature = "tensorflow")]
mod tensorflow;
#[cfg(feature = "zarr")]
mod zarr;
#[cfg(feature = "pth")]
mod zero;
