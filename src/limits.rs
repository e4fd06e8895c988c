//! Bounds on the memory that a file may claim: [`ParseLimits`], set by the caller, and `Budget`,
//! the running account that every reader charges before it allocates.
//!
//! Independent of the caller, each reader has permanent caps, far above what real files need.

mod budget;
mod pages;

pub(crate) use self::budget::{Budget, FREE_JSON_BYTES};

use std::fmt::Display;

use zerocopy::FromZeros;

use crate::{AnamnesisError, Result};

/// Bounds on the memory and the items that a file may claim.
///
/// The default bounds decompression alone. The crate's permanent caps, which are far above what any
/// model needs, hold in any case.
///
/// Every bound is checked before memory is allocated. Each call has an account of its own: parsing
/// has one, and so has each later call that materialises tensors of the parsed model.
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

/// Default of [`ParseLimits::with_max_decompressed_bytes`]: a file of 1 MiB can be as large as
/// this.
const DECOMPRESSED_BYTES: u64 = 1 << 30;

impl ParseLimits {
    /// Limits of which only [`with_max_decompressed_bytes`](Self::with_max_decompressed_bytes) has
    /// a bound, its default; besides it only the crate's permanent caps hold.
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

    /// Sets the largest number of items that a file may declare: tensors, metadata keys, members of
    /// an archive.
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

    /// Sets the most bytes that all compressed members of one call may have together after
    /// decompression, of those that are more than 100 times as long as stored. The default is 1
    /// GiB: 1 MiB of a file can become as much.
    #[must_use]
    pub const fn with_max_decompressed_bytes(mut self, bytes: u64) -> Self {
        self.decompressed = bytes;
        self
    }

    /// Lets pickles name the global `name`, such as `argparse.Namespace`, which by default is an
    /// error. Its objects become values without content: tensors in them are not found, and a note
    /// of the model says so. Nothing is imported or called. Globals that are known to be dangerous
    /// (`PickleRisk`) stay errors.
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

/// Returns a zeroed buffer of `len` bytes, all of whose pages exist. So threads that write to it
/// under a lock do not hold the lock while the system makes a page.
///
/// # Errors
/// `LimitExceeded` (`available_memory`) if the allocation fails, where `vec![0; len]` would abort
/// the process.
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

/// Returns a zeroed buffer of `len` bytes. The system makes and zeroes the pages of a large one
/// when they are first written, by whichever thread that is, and so there is no pass over it
/// before.
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
    Err(AnamnesisError::LimitExceeded { limit, message: format!("{n} {what}; at most {max}") })
}
/// Joins the first `most` of `names` for a message, and says how many more there are.
pub(crate) fn join_first<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let named: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    let named = named.join(", ");
    match names.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
