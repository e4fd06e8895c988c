//! Large pages for large buffers.

/// Buffers from here on are made of large pages. NumPy has the same bound for its arrays.
#[cfg(all(target_os = "linux", not(miri)))]
const LARGE: usize = 4 << 20;

/// Bytes of a large page. Where they are larger, this is still a multiple of a small one.
#[cfg(all(target_os = "linux", not(miri)))]
const LARGE_PAGE: usize = 2 << 20;

/// Asks the system for pages of 2 MiB in a large buffer that nothing has been written to. Buffers
/// as large as this are fresh from the system, which makes every page when it is first written;
/// 8192 small ones for 32 MiB take longer than decoding a tensor of this size.
///
/// Linux gives them to programs that ask (`transparent_hugepage/enabled` is `madvise`, its
/// default); a system that declines makes small pages.
#[cfg(all(target_os = "linux", not(miri)))]
#[expect(unsafe_code, reason = "advice on the pages of a buffer")]
pub(super) fn use_large_pages<T>(buffer: &mut [T]) {
    use rustix::mm::{Advice, madvise};
    let bytes = size_of_val(buffer);
    if bytes < LARGE {
        return;
    }
    // Whole large pages alone: others may hold what is not of this buffer, and would stay small.
    let start = buffer.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(LARGE_PAGE);
    let len = bytes.saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
    // SAFETY: the range lies within `buffer`, which nobody else uses meanwhile, and this advice
    // changes no byte of it. An error means that the system has no such pages.
    let _ = unsafe { madvise(start.wrapping_add(skipped).cast(), len, Advice::LinuxHugepage) };
}

/// Does nothing: other systems have no such advice.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn use_large_pages<T>(_buffer: &mut [T]) {}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests {
    use crate::limits::{zeroed, zeroed_on_write};

    /// Flags of the mapping that `address` is in, as the system lists them.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_ours = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let range = range.and_then(|(start, end)| {
                let number = |digits| usize::from_str_radix(digits, 16).ok();
                Some(number(start)?..number(end)?)
            });
            match (range, line.strip_prefix("VmFlags:")) {
                (Some(range), _) => is_ours = range.contains(&address),
                (None, Some(flags)) if is_ours => return flags.to_owned(),
                _ => {}
            }
        }
        String::new()
    }

    /// `hg` stands for the advice. A system without large pages refuses it.
    #[test]
    fn large_buffers_ask_for_large_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        for make in [|len| zeroed_on_write(len, "a test"), |len| zeroed(len, "a test")] {
            let buffer = make(64 << 20).unwrap();
            let flags = flags(buffer.as_ptr() as usize + buffer.len() / 2);
            assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
        }
    }
}
