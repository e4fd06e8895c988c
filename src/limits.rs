//! Bounds on the memory that a file may claim: [`ParseLimits`], set by the caller, and `Budget`, the running account that
//! every reader charges before it allocates.
//!
//! Independent of the caller, each reader has permanent caps, far above what real files need.

mod pages;

use std::cell::Cell;
use std::fmt::Display;

use zerocopy::FromZeros;

use crate::{AnamnesisError, Result};

/// Bounds on the memory and the items that a file may claim.
///
/// The default bounds decompression alone. The crate's permanent caps, which are far above what any model needs, hold in
/// any case.
///
/// Every bound is checked before memory is allocated. Each call has an account of its own: parsing has one, and so
/// has each later call that materialises tensors of the parsed model.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// use anamnesis::{AnamnesisError, ParseLimits, parse_with_limits};
/// let limits = ParseLimits::default().with_max_single_alloc(64 << 20).with_max_item_count(100_000);
/// let model = parse_with_limits("tests/data/demo/model-fp8.safetensors", &limits)?;
/// # assert!(model.remember_to_bytes(anamnesis::TargetDtype::BF16).is_ok());
///
/// let none = limits.with_max_item_count(0);
/// let refused = parse_with_limits("tests/data/demo/model-fp8.safetensors", &none);
/// assert!(matches!(refused, Err(AnamnesisError::LimitExceeded { limit: "max_item_count", .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLimits {
    single_alloc: u64,
    total: u64,
    items: u64,
    ratio: u64,
    decompressed: u64,
    opaque: Vec<String>,
}

/// Default of [`ParseLimits::with_max_decompressed_bytes`]: a file of 1 MiB can be as large as this.
const DECOMPRESSED_BYTES: u64 = 1 << 30;

/// Ratio up to which a compressed member does not count as one that grows: its length is in proportion to the file's.
/// Weights are compressed to half or a tenth of their size, masks of which one value in a hundred is set to a fiftieth, and
/// zeros to a thousandth.
#[cfg(any(feature = "npz", feature = "pth"))]
const ORDINARY_RATIO: u64 = 100;

impl ParseLimits {
    /// Limits of which only [`with_max_decompressed_bytes`](Self::with_max_decompressed_bytes) has a bound, its default;
    /// besides it only the crate's permanent caps hold.
    #[must_use]
    pub const fn unbounded() -> Self {
        Self {
            single_alloc: u64::MAX,
            total: u64::MAX,
            items: u64::MAX,
            ratio: u64::MAX,
            decompressed: DECOMPRESSED_BYTES,
            opaque: Vec::new(),
        }
    }

    /// Sets the largest single allocation whose size a file declares, in bytes.
    #[must_use]
    pub const fn with_max_single_alloc(mut self, bytes: u64) -> Self {
        self.single_alloc = bytes;
        self
    }

    /// Sets the most bytes that all allocations of one call may have together.
    #[must_use]
    pub const fn with_max_total_bytes(mut self, bytes: u64) -> Self {
        self.total = bytes;
        self
    }

    /// Sets the largest number of items that a file may declare: tensors, metadata keys, members of an archive.
    #[must_use]
    pub const fn with_max_item_count(mut self, count: u64) -> Self {
        self.items = count;
        self
    }

    /// Sets the largest ratio of the length of a compressed member to its stored length.
    #[must_use]
    pub const fn with_max_decompression_ratio(mut self, ratio: u64) -> Self {
        self.ratio = ratio;
        self
    }

    /// Sets the most bytes that all compressed members of one call may have together after decompression, of those that are
    /// more than 100 times as long as stored. The default is 1 GiB: 1 MiB of a file can become as much.
    #[must_use]
    pub const fn with_max_decompressed_bytes(mut self, bytes: u64) -> Self {
        self.decompressed = bytes;
        self
    }

    /// Lets pickles name the global `name`, such as `argparse.Namespace`, which by default is an error. Its objects become
    /// values without content: tensors in them are not found, and a note of the model says so. Nothing is imported or called. Globals
    /// that are known to be dangerous (`PickleRisk`) stay errors.
    #[must_use]
    pub fn with_opaque_global(mut self, name: impl Into<String>) -> Self {
        self.opaque.push(name.into());
        self
    }

    /// Whether pickles may name the global `name` of `module`.
    #[cfg(feature = "pth")]
    pub(crate) fn is_opaque(&self, module: &str, name: &str) -> bool {
        let is_named = |text: &String| {
            let rest = text.strip_prefix(module);
            rest.and_then(|rest| rest.strip_prefix('.')) == Some(name)
        };
        self.opaque.iter().any(is_named)
    }

    /// Largest single allocation in bytes; `u64::MAX` if it is unbounded.
    #[must_use]
    pub const fn max_single_alloc_bytes(&self) -> u64 {
        self.single_alloc
    }

    /// Most bytes of all allocations of one call; `u64::MAX` if they are unbounded.
    #[must_use]
    pub const fn max_total_bytes(&self) -> u64 {
        self.total
    }

    /// Largest number of declared items; `u64::MAX` if it is unbounded.
    #[must_use]
    pub const fn max_item_count(&self) -> u64 {
        self.items
    }

    /// Largest ratio of decompressed to stored length; `u64::MAX` if it is unbounded.
    #[must_use]
    pub const fn max_decompression_ratio(&self) -> u64 {
        self.ratio
    }

    /// Most bytes of all members together that are more than 100 times as long as stored.
    #[must_use]
    pub const fn max_decompressed_bytes(&self) -> u64 {
        self.decompressed
    }
}

impl Default for ParseLimits {
    fn default() -> Self {
        Self::unbounded()
    }
}

/// Running account of one call: one parse, or one call that materialises tensors. All readers of a call share it, so
/// the files of a directory count together.
///
/// Nothing is ever credited back: the account bounds what a file causes to be allocated in all, not the peak.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: ParseLimits,
    total: Cell<u64>,
    items: Cell<u64>,
    /// Bytes of compressed members that are more than [`ORDINARY_RATIO`] times as long as stored.
    #[cfg(any(feature = "npz", feature = "pth"))]
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

/// Memory of tables for each byte of a file. Real tensors have thousands of bytes; headers of empty ones have some thirty.
const TABLE_BYTES_PER_BYTE: u64 = 6;

/// Memory that parsed JSON files of one call may take besides a multiple of their lengths.
pub(crate) const FREE_JSON_BYTES: usize = 32 << 20;

impl Budget {
    pub(crate) fn new(limits: &ParseLimits) -> Self {
        Self {
            limits: limits.clone(),
            total: Cell::new(0),
            items: Cell::new(0),
            #[cfg(any(feature = "npz", feature = "pth"))]
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

    /// Checks the final size of a buffer without charging it: for a buffer that grows in steps, each of which is
    /// charged with [`grow`](Self::grow).
    pub(crate) fn single(&self, bytes: u64, what: impl Display) -> Result<()> {
        cap_set_by(
            SINGLE,
            bytes,
            self.limits.single_alloc,
            format_args!("bytes for {what}"),
        )
    }

    /// Charges `bytes` to the total alone: for a step of a growing buffer, or for many small allocations together.
    pub(crate) fn grow(&self, bytes: u64, what: impl Display) -> Result<()> {
        // Saturating: sums of declared lengths can pass `u64::MAX`, and a wrapped sum would be within the limit.
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
        cap_set_by(
            ITEMS,
            self.items.get(),
            self.limits.items,
            format_args!("items, with {n} {of}"),
        )
    }

    /// Counts the tensors and metadata keys of a file of `len` bytes, which take memory whatever their size is.
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
                "bytes of memory for {tensors} tensors and {keys} keys of a file of {len} bytes"
            ),
        )
    }

    /// Checks that a member of `stored` compressed bytes may decompress to `len` bytes, and counts these if they are more
    /// than [`ORDINARY_RATIO`] times as many.
    #[cfg(any(feature = "npz", feature = "pth"))]
    pub(crate) fn decompress(&self, stored: u64, len: u64, what: impl Display) -> Result<()> {
        // Rounded up, so that a ratio slightly above the limit is over it.
        let times = len.div_ceil(stored.max(1));
        cap_set_by(
            RATIO,
            times,
            self.limits.ratio,
            format_args!("times its stored size: {what}"),
        )?;
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

const SINGLE: LimitNames = (
    "max_single_alloc_bytes",
    "with_max_single_alloc",
    "--max-single-alloc",
);
const TOTAL: LimitNames = (
    "max_total_bytes",
    "with_max_total_bytes",
    "--max-total-bytes",
);
const ITEMS: LimitNames = ("max_item_count", "with_max_item_count", "--max-item-count");
#[cfg(any(feature = "npz", feature = "pth"))]
const RATIO: LimitNames = (
    "max_decompression_ratio",
    "with_max_decompression_ratio",
    "--max-decompression-ratio",
);
#[cfg(any(feature = "npz", feature = "pth"))]
const DECOMPRESSED: LimitNames = (
    "max_decompressed_bytes",
    "with_max_decompressed_bytes",
    "--max-decompressed-bytes",
);

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

/// Returns a zeroed buffer of `len` bytes, all of whose pages exist. So threads that write to it under a lock do not hold
/// the lock while the system makes a page.
///
/// # Errors
/// `LimitExceeded` (`available_memory`) if the allocation fails, where `vec![0; len]` would abort the process.
pub(crate) fn zeroed(len: u64, what: impl Display) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match usize::try_from(len)
        .ok()
        .filter(|&len| out.try_reserve_exact(len).is_ok())
    {
        Some(len) => {
            pages::use_large_pages(out.spare_capacity_mut());
            out.resize(len, 0);
        }
        None => return Err(no_room(len, what)),
    }
    Ok(out)
}

/// Returns a zeroed buffer of `len` bytes. The system makes and zeroes the pages of a large one when they are first
/// written, by whichever thread that is, and so there is no pass over it before.
///
/// # Errors
/// `LimitExceeded` (`available_memory`) if the allocation fails.
pub(crate) fn zeroed_on_write(len: u64, what: impl Display) -> Result<Vec<u8>> {
    let mut out = usize::try_from(len)
        .ok()
        .and_then(|len| u8::new_vec_zeroed(len).ok())
        .ok_or_else(|| no_room(len, what))?;
    pages::use_large_pages(&mut out);
    Ok(out)
}

/// Returns an empty buffer with room for `len` bytes, for what is decoded by appending.
///
/// # Errors
/// `LimitExceeded` (`available_memory`) if the allocation fails.
pub(crate) fn empty_with_room(len: u64, what: impl Display) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match usize::try_from(len) {
        Ok(bytes) if out.try_reserve_exact(bytes).is_ok() => Ok(out),
        _ => Err(no_room(len, what)),
    }
}

fn no_room(len: u64, what: impl Display) -> AnamnesisError {
    AnamnesisError::LimitExceeded {
        limit: "available_memory",
        message: format!("no room for {what} of {len} bytes"),
    }
}

/// Checks `n <= max`, where `max` is a caller's bound or a permanent cap of this crate.
///
/// # Errors
/// `LimitExceeded` with the name `limit` and the message "`n` `what`; at most `max`".
pub(crate) fn cap(limit: &'static str, n: u64, max: u64, what: impl Display) -> Result<()> {
    if n <= max {
        return Ok(());
    }
    Err(AnamnesisError::LimitExceeded {
        limit,
        message: format!("{n} {what}; at most {max}"),
    })
}
