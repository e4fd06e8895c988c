//! The bodies of the fuzz targets. Two programs compile this module: the fuzz targets, which search
//! for inputs, and the test program `hostile`, which replays the corpus that they have found.
//!
//! Errors are fine. Panics are not, and neither is an output that contradicts itself: see
//! [`model::check`].

mod bytes;
mod containers;
mod decode;
mod directory;
pub mod doors;
pub mod encode;
pub mod golden;
mod headers;
pub mod model;
mod round_trip;
pub mod said;

/// The name of a target, which is that of its program and its corpus, and what it does with an
/// input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("safetensors", containers::safetensors),
    ("safetensors_header", headers::safetensors),
    ("gguf", containers::any),
    ("gguf_header", headers::gguf),
    ("npz", containers::npz),
    ("npy", containers::npy),
    ("pth", containers::any),
    ("pickle", containers::pickle),
    ("zip", headers::zip),
    ("qnat", containers::any),
    ("onnx", containers::any),
    ("msgpack", containers::any),
    ("burnpack", containers::any),
    ("hdf5", containers::any),
    ("tflite", containers::any),
    ("executorch", containers::any),
    ("ggml", containers::any),
    ("mindspore", containers::any),
    ("mlc", containers::mlc),
    ("paddle", containers::paddle),
    ("openvino", containers::openvino),
    ("tensorflow", containers::tensorflow),
    ("coreml", containers::coreml),
    ("zarr", containers::zarr),
    ("directory", directory::run),
    ("doors", doors::run),
    ("decode", decode::run),
    ("encode", encode::run),
    ("round_trip", round_trip::run),
];

/// Runs the target called `name`.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, body) = TARGETS.iter().find(|(target, _)| *target == name).unwrap();
    body(bytes);
}
