//! Files that are malformed, contradictory or hostile: each gives the right kind of error, or is read for what it is.
//! Nothing may panic, take much time or memory, or leave a file behind.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/allocator.rs"]
mod allocator;
#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "gguf")]
mod gguf;
mod mutations;
#[cfg(all(feature = "npz", feature = "pth"))]
mod npz;
#[cfg(all(feature = "npz", feature = "pth"))]
mod pickles;
#[cfg(all(feature = "npz", feature = "pth"))]
mod pth;
#[cfg(all(feature = "npz", feature = "pth"))]
mod trial;
#[cfg(all(feature = "npz", feature = "pth"))]
mod zip;

#[global_allocator]
static ALLOCATOR: allocator::CountingAllocator = allocator::CountingAllocator;
