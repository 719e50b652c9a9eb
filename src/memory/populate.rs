//! Pages brought into memory before they are needed, by several threads.

use super::pages::populate_range;
use super::{AllocError, HugePages, OsPages, PageSource};

/// Brings the pages that `bytes` lies in into memory now, instead of one by one when they
/// are first touched. What they hold is not changed.
///
/// The range is cut into `threads` pieces, at multiples of 2 MiB; each is touched by a
/// thread of its own, the first by the caller. So with one thread no other is started, and
/// on a machine with several memory nodes the pages come from the caller's. 0 threads
/// are one. Nothing here does this unasked.
///
/// ```
/// use tenslab::memory::{self, resident_bytes};
///
/// let mut weights = memory::cpu().allocate(64 << 20, 64)?;
/// weights.populate(0..8 << 20, 2)?;
/// # #[cfg(all(target_os = "linux", not(tenslab_portable)))]
/// assert_eq!(resident_bytes(&weights.as_slice()[..8 << 20]), Some(8 << 20));
/// # Ok::<(), memory::AllocError>(())
/// ```
///
/// # Errors
/// [`AllocError::OutOfMemory`] where the system has no memory, or no thread, to give. Some pages may be in memory then.
/// (Where it kills processes instead of saying so, no call can tell.)
pub fn populate(bytes: &mut [u8], threads: usize) -> Result<(), AllocError> {
    // So large that no page, and no huge page, is in two pieces.
    let grain = HugePages::BYTES.max(OsPages::new().page_bytes());
    let piece = bytes.len().div_ceil(threads.max(1)).next_multiple_of(grain);
    let before = bytes.as_ptr().addr().wrapping_neg() & (grain - 1);
    let first = bytes.len().min(before + piece);
    let (first, rest) = bytes.split_at_mut(first);
    if rest.is_empty() {
        return populate_range(first);
    }
    std::thread::scope(|scope| {
        let mut outcome = Ok(());
        let mut others = Vec::new();
        for part in rest.chunks_mut(piece) {
            let bytes = part.len();
            let other = std::thread::Builder::new()
                .name("tenslab-populate".to_owned())
                .spawn_scoped(scope, move || populate_range(part));
            match other {
                Ok(other) => others.push(other),
                // The system has no thread to give: its piece comes with the first touch.
                Err(_) => outcome = Err(AllocError::OutOfMemory { bytes }),
            }
        }
        outcome = outcome.and(populate_range(first));
        for other in others {
            // A thread that only touches pages does not panic.
            outcome = outcome.and(other.join().unwrap_or(Ok(())));
        }
        outcome
    })
}
