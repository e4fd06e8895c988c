//! The running account of one call, and how errors name the limits that it enforces.

use std::cell::Cell;
use std::fmt::Display;

use super::{ParseLimits, cap};
use crate::{AnamnesisError, Result};

/// Ratio up to which a compressed member does not count as one that grows: its length is in
/// proportion to the file's. Weights are compressed to half or a tenth of their size, masks of
/// which one value in a hundred is set to a fiftieth, and zeros to a thousandth.
#[cfg(any(feature = "npz", feature = "pth", feature = "onnx"))]
const ORDINARY_RATIO: u64 = 100;

/// Running account of one call: one parse, or one call that materialises tensors. All readers of a
/// call share it, so the files of a directory count together.
///
/// Nothing is ever credited back: the account bounds what a file causes to be allocated in all, not
/// the peak.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: ParseLimits,
    total: Cell<u64>,
    items: Cell<u64>,
    /// Bytes of compressed members that are more than [`ORDINARY_RATIO`] times as long as stored.
    #[cfg(any(feature = "npz", feature = "pth", feature = "onnx"))]
    decompressed: Cell<u64>,
    /// Memory that tables of tensors and keys take, and the bytes of the files that they are of.
    tables: Cell<(u64, u64)>,
    /// Memory that values of JSON files may still take besides their share of the files' lengths.
    pub(crate) free_json: Cell<usize>,
}

/// Memory of the tables that are made for a tensor, from parsing to the plan of an output.
const TENSOR_BYTES: u64 = 1000;

/// Memory of the tables that are made for a metadata key.
const KEY_BYTES: u64 = 256;

/// Memory of tables that needs no file in proportion: 48 000 tensors.
const FREE_TABLE_BYTES: u64 = 48 << 20;

/// Memory of tables for each byte of a file. Real tensors have thousands of bytes; headers of empty
/// ones have some thirty.
const TABLE_BYTES_PER_BYTE: u64 = 6;

/// Memory that parsed JSON files of one call may take besides a multiple of their lengths.
pub(crate) const FREE_JSON_BYTES: usize = 32 << 20;

impl Budget {
    pub(crate) fn new(limits: &ParseLimits) -> Self {
        Self {
            limits: limits.clone(),
            total: Cell::new(0),
            items: Cell::new(0),
            #[cfg(any(feature = "npz", feature = "pth", feature = "onnx"))]
            decompressed: Cell::new(0),
            tables: Cell::new((0, 0)),
            free_json: Cell::new(FREE_JSON_BYTES),
        }
    }

    /// An account without bounds.
    pub(crate) fn unbounded() -> Self {
        Self::new(&ParseLimits::unbounded())
    }

    /// The limits that this account enforces.
    pub(crate) fn limits(&self) -> &ParseLimits {
        &self.limits
    }

    /// Charges an allocation of `bytes`. Call it before allocating.
    pub(crate) fn alloc(&self, bytes: u64, what: impl Display) -> Result<()> {
        self.single(bytes, &what)?;
        self.grow(bytes, what)
    }

    /// Checks the final size of a buffer without charging it: for a buffer that grows in steps,
    /// each of which is charged with [`grow`](Self::grow).
    pub(crate) fn single(&self, bytes: u64, what: impl Display) -> Result<()> {
        cap_set_by(SINGLE, bytes, self.limits.single_alloc, format_args!("bytes for {what}"))
    }

    /// Charges `bytes` to the total alone: for a step of a growing buffer, or for many small
    /// allocations together.
    pub(crate) fn grow(&self, bytes: u64, what: impl Display) -> Result<()> {
        // Saturating: sums of declared lengths can pass `u64::MAX`, and a wrapped sum would be
        // within the limit.
        self.total.set(self.total.get().saturating_add(bytes));
        cap_set_by(
            TOTAL,
            self.total.get(),
            self.limits.total,
            format_args!("bytes in all, with {what}"),
        )
    }

    /// Counts `n` declared items.
    pub(crate) fn items(&self, n: u64, of: impl Display) -> Result<()> {
        self.items.set(self.items.get().saturating_add(n));
        cap_set_by(ITEMS, self.items.get(), self.limits.items, format_args!("items, with {n} {of}"))
    }

    /// Counts the tensors and metadata keys of a file of `len` bytes, which take memory whatever
    /// their size is.
    pub(crate) fn tables(&self, tensors: u64, keys: u64, len: u64) -> Result<()> {
        let (mut taken, mut bytes) = self.tables.get();
        taken = taken
            .saturating_add(tensors.saturating_mul(TENSOR_BYTES))
            .saturating_add(keys.saturating_mul(KEY_BYTES));
        bytes = bytes.saturating_add(len);
        self.tables.set((taken, bytes));
        let most = FREE_TABLE_BYTES.saturating_add(bytes.saturating_mul(TABLE_BYTES_PER_BYTE));
        cap(
            "MAX_TABLE_BYTES",
            taken,
            most,
            format_args!(
                "bytes of memory for tables of {bytes} bytes of files, with {tensors} more tensors and {keys} more keys"
            ),
        )
    }

    /// Checks that a member of `stored` compressed bytes may decompress to `len` bytes, and counts
    /// these if they are more than [`ORDINARY_RATIO`] times as many.
    #[cfg(any(feature = "npz", feature = "pth", feature = "onnx"))]
    pub(crate) fn decompress(&self, stored: u64, len: u64, what: impl Display) -> Result<()> {
        // Rounded up, so that a ratio slightly above the limit is over it.
        let times = len.div_ceil(stored.max(1));
        cap_set_by(RATIO, times, self.limits.ratio, format_args!("times its stored size: {what}"))?;
        if times <= ORDINARY_RATIO {
            return Ok(());
        }
        self.decompressed
            .set(self.decompressed.get().saturating_add(len));
        cap_set_by(
            DECOMPRESSED,
            self.decompressed.get(),
            self.limits.decompressed,
            format_args!(
                "bytes of compressed members, with {what}, which is {times} times as long as stored"
            ),
        )
    }
}

/// Name of a limit in errors, the method of [`ParseLimits`] that sets it, and the program's option.
type LimitNames = (&'static str, &'static str, &'static str);

const SINGLE: LimitNames =
    ("max_single_alloc_bytes", "with_max_single_alloc", "--max-single-alloc");
const TOTAL: LimitNames = ("max_total_bytes", "with_max_total_bytes", "--max-total-bytes");
const ITEMS: LimitNames = ("max_item_count", "with_max_item_count", "--max-item-count");
#[cfg(any(feature = "npz", feature = "pth", feature = "onnx"))]
const RATIO: LimitNames =
    ("max_decompression_ratio", "with_max_decompression_ratio", "--max-decompression-ratio");
#[cfg(any(feature = "npz", feature = "pth", feature = "onnx"))]
const DECOMPRESSED: LimitNames =
    ("max_decompressed_bytes", "with_max_decompressed_bytes", "--max-decompressed-bytes");

/// [`cap`] for a bound that the caller sets; the message says with what.
fn cap_set_by(
    (limit, method, option): LimitNames,
    n: u64,
    max: u64,
    what: impl Display,
) -> Result<()> {
    cap(limit, n, max, what).map_err(|error| match error {
        AnamnesisError::LimitExceeded { limit, message } => AnamnesisError::LimitExceeded {
            limit,
            message: format!("{message} ({option}, or `ParseLimits::{method}`, raises it)"),
        },
        other => other,
    })
}
