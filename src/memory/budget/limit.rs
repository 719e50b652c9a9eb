//! The one number that several users share, and whom to ask where it does not suffice.
//!
//! ```text
//!   take ── fits? ── yes ─▶ counted
//!             │
//!             no ─▶ callbacks, the oldest first, no lock held ─▶ fits? ─▶ … at most four rounds
//! ```

use std::fmt;
use std::path::Path;

use super::pressure::{Callback, Inside, ROUNDS};
use super::pressure::{Callbacks, PressureGuard, Shortage};
use super::{CgroupError, CgroupMemory, Charge};
use crate::memory::AllocError;
use crate::memory::biased::Biased;
use crate::mutant::{self, Mutant};
use crate::sync::Arc;

/// So many bytes, shared by whoever has a clone.
///
/// [`Budget`](super::Budget)s count allocations against it, [`Charge`]s anything else.
/// The sum of both is never above the limit (but where the limit was
/// [lowered](Limit::set_limit_bytes) below it), however many threads ask at once; and a
/// request that fits is never refused because of one that does not.
///
/// ```
/// use tenslab::memory::Limit;
///
/// let limit = Limit::new(1000);
/// let mut chunk = limit.charge(600)?;             // before the memory is mapped
/// assert!(limit.charge(500).is_err());
/// chunk.shrink(300);
/// assert_eq!((limit.used_bytes(), limit.peak_bytes()), (300, 600));
/// drop(chunk);                                    // after it is unmapped
/// assert_eq!(limit.used_bytes(), 0);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
///
/// Cheap to clone. A clone, a charge and an allocation keep the count alive; there is no
/// one owner.
#[derive(Clone)]
pub struct Limit {
    core: Arc<Core>,
}

pub(super) struct Core {
    /// Behind one lock, so that a limit is never half looked at; one that leans to a thread,
    /// because most of the time one asks.
    count: Biased<Count>,
    callbacks: Callbacks,
}

#[derive(Debug)]
struct Count {
    used: usize,
    limit: usize,
    peak: usize,
}

impl Count {
    fn look(&self) -> Refusal {
        Refusal {
            live_bytes: self.used,
            limit_bytes: self.limit,
        }
    }

    /// What would be used with `bytes` more, if that fits.
    #[inline]
    fn with(&self, bytes: usize) -> Result<usize, Refusal> {
        if bytes == 0 {
            return Ok(self.used); // fits also where the limit was lowered below what is used
        }
        let sum = self.used.checked_add(bytes);
        sum.filter(|&sum| sum <= self.limit).ok_or(self.look())
    }

    fn use_up(&mut self, used: usize) {
        self.used = used;
        self.peak = self.peak.max(used);
    }
}

/// What stood in the way, as one look saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    live_bytes: usize,
    limit_bytes: usize,
}

impl Refusal {
    fn shortage(self, requested_bytes: usize) -> Shortage {
        let room = self.limit_bytes.saturating_sub(self.live_bytes);
        let over = self.live_bytes.saturating_sub(self.limit_bytes);
        Shortage {
            requested_bytes,
            missing_bytes: requested_bytes.saturating_sub(room).saturating_add(over),
            live_bytes: self.live_bytes,
            limit_bytes: self.limit_bytes,
        }
    }
}

impl Core {
    fn look(&self) -> Refusal {
        self.count.with(|count| count.look())
    }

    /// Counts `bytes` more, if they fit.
    ///
    /// Who gets bytes that came back sees that their block went back to the upstream: the
    /// lock orders the two.
    #[inline]
    fn try_take(&self, bytes: usize) -> Result<(), Refusal> {
        if mutant::is(Mutant::BudgetFetchAdd) {
            let sum = self.count.with(|count| {
                count.used += bytes;
                count.used
            });
            return self.count.with(|count| {
                if sum > count.limit {
                    count.used -= bytes;
                    return Err(count.look());
                }
                count.peak = count.peak.max(sum);
                Ok(())
            });
        }
        if mutant::is(Mutant::BudgetTwoSteps) {
            let sum = self.count.with(|count| count.with(bytes))?;
            self.count.with(|count| count.use_up(sum));
            return Ok(());
        }
        if mutant::is(Mutant::BudgetPeakTwoSteps) {
            let peak = self.count.with(|count| {
                count.used = count.with(bytes)?;
                Ok(count.peak.max(count.used))
            })?;
            self.count.with(|count| count.peak = peak);
            return Ok(());
        }
        self.count.with(|count| {
            let sum = count.with(bytes)?;
            count.use_up(sum);
            Ok(())
        })
    }

    #[inline]
    pub(super) fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.count.with(|count| {
            debug_assert!(count.used >= bytes, "{bytes} given back of {}", count.used);
            count.used = count.used.wrapping_sub(bytes);
        });
    }

    /// Calls the callbacks in turn, the oldest first, as long as `short` says what is
    /// missing; it is told what they say they gave back. Returns that sum.
    #[cold]
    fn press(&self, first: Shortage, mut short: impl FnMut(usize) -> Option<Shortage>) -> usize {
        let mut shortage = first;
        let mut given_back = 0_usize;
        // A callback's own requests do not call callbacks of the same limit again.
        let Some(_inside) = Inside::enter(std::ptr::from_ref(self).addr()) else {
            return 0;
        };
        for _ in 0..ROUNDS {
            let mut gave = 0_usize;
            let mut round = self.callbacks.round();
            while let Some(callback) = self.callbacks.next(&mut round) {
                let bytes = callback(shortage);
                gave = gave.saturating_add(bytes);
                given_back = given_back.saturating_add(bytes);
                match short(given_back) {
                    None => return given_back,
                    Some(still) => shortage = still,
                }
            }
            if gave == 0 {
                break; // nobody has anything
            }
        }
        given_back
    }
}

impl Limit {
    /// A limit of `bytes` bytes, of which none are used.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            core: Arc::new(Core {
                count: Biased::new(Count {
                    used: 0,
                    limit: bytes,
                    peak: 0,
                }),
                callbacks: Callbacks::new(),
            }),
        }
    }

    /// No limit: it only counts.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The memory that the process's control group may have, and where that stands.
    ///
    /// `root` is where the system's files are: `/`, or a test's own directory. Where
    /// no group has a limit (or there are no groups) the limit is
    /// [`unlimited`](Limit::unlimited). All that the process uses counts for the kernel,
    /// not only what goes through budgets: leave the rest some room with
    /// [`set_limit_bytes`](Limit::set_limit_bytes).
    ///
    /// ```
    /// use tenslab::memory::Limit;
    ///
    /// let (limit, group) = Limit::from_cgroup("/")?;
    /// if let Some((bytes, file)) = group.limit() {
    ///     limit.set_limit_bytes(limit.limit_bytes() / 10 * 9);
    ///     println!("{bytes} bytes, says {}", file.display());
    /// }
    /// # Ok::<(), tenslab::memory::CgroupError>(())
    /// ```
    ///
    /// # Errors
    /// [`CgroupError`] with the path, where a file is there but cannot be read or holds
    /// no number. It is not taken for "unlimited".
    pub fn from_cgroup(root: impl AsRef<Path>) -> Result<(Self, CgroupMemory), CgroupError> {
        let group = CgroupMemory::read(root.as_ref())?;
        let bytes = group.limit().map_or(usize::MAX, |(bytes, _)| {
            usize::try_from(bytes).unwrap_or(usize::MAX)
        });
        Ok((Self::new(bytes), group))
    }

    /// The most that may be used, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.core.look().limit_bytes
    }

    /// Raises or lowers the limit, for whoever asks from now on.
    ///
    /// Nothing is taken from anybody: where more than `bytes` is used, nothing fits until
    /// enough came back. [`shed`](Limit::shed) asks for that.
    pub fn set_limit_bytes(&self, bytes: usize) {
        self.core.count.with(|count| count.limit = bytes);
    }

    /// Bytes that are charged at this moment.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.core.look().live_bytes
    }

    /// Bytes that would fit at this moment, without pressure.
    #[must_use]
    pub fn available_bytes(&self) -> usize {
        let look = self.core.look();
        look.limit_bytes.saturating_sub(look.live_bytes)
    }

    /// The most that was charged at one time, since the last
    /// [`reset_peak`](Limit::reset_peak).
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        self.core.count.with(|count| count.peak)
    }

    /// Forgets the peak and nothing else. Returns it.
    ///
    /// What is charged at the same time is in the old peak or in the new one.
    pub fn reset_peak(&self) -> usize {
        self.core.count.with(|count| {
            let peak = count.peak;
            count.peak = count.used;
            peak
        })
    }

    /// Charges `bytes` bytes of memory that no [`Budget`](super::Budget) sees.
    ///
    /// # Errors
    /// [`OverBudget`](AllocError::OverBudget) with the numbers, where they do not fit
    /// and callbacks did not make room.
    pub fn charge(&self, bytes: usize) -> Result<Charge, AllocError> {
        self.take(bytes)?;
        Ok(Charge::taken(self.clone(), bytes))
    }

    /// Calls `give_back` whenever there is too little, until the guard is dropped.
    ///
    /// It is told the [`Shortage`] and answers how many bytes it gave back, 0 if none;
    /// the answer only decides whether to go on asking. It is called on the thread that
    /// is short, without any lock held, by several threads at once if several are
    /// short. So it may allocate from and give back to the same budget, register
    /// callbacks and drop guards. What it asks of this limit itself is refused where it
    /// does not fit, without calling callbacks again. It must not wait for a lock
    /// under which anybody allocates.
    ///
    /// All callbacks are asked in turn, the oldest first, until the request fits; at
    /// most four times round, and once round where nobody gave anything. Nobody is
    /// asked for a request above the whole limit.
    ///
    /// A callback must not hold what holds this limit (a `SharedAllocator` over a
    /// `Budget` of it, say), or neither is ever destroyed: let it hold a `Weak`.
    pub fn on_pressure(
        &self,
        give_back: impl Fn(Shortage) -> usize + Send + Sync + 'static,
    ) -> PressureGuard {
        let callback: Callback = Arc::new(Box::new(give_back));
        let id = self.core.callbacks.add(callback);
        PressureGuard::new(self.clone(), id)
    }

    pub(super) fn forget_callback(&self, id: u64) {
        self.core.callbacks.remove(id);
    }

    /// Asks the callbacks for what is used above the limit. Returns how many bytes above
    /// it are still used.
    pub fn shed(&self) -> usize {
        let over = |look: Refusal| Some(look.shortage(0)).filter(|short| short.missing_bytes > 0);
        if let Some(shortage) = over(self.core.look()) {
            self.core.press(shortage, |_| over(self.core.look()));
        }
        self.core.look().shortage(0).missing_bytes
    }

    /// Charges `bytes` bytes, with pressure where they do not fit.
    #[inline]
    pub(in crate::memory) fn take(&self, bytes: usize) -> Result<(), AllocError> {
        match self.core.try_take(bytes) {
            Ok(()) => Ok(()),
            Err(refusal) => self.take_under_pressure(bytes, refusal),
        }
    }

    /// Counts `bytes`, if they fit as it is: no callback is asked.
    pub(in crate::memory) fn try_take(&self, bytes: usize) -> bool {
        self.core.try_take(bytes).is_ok()
    }

    #[cold]
    fn take_under_pressure(&self, bytes: usize, mut refusal: Refusal) -> Result<(), AllocError> {
        let mut taken = false;
        let mut given_back_bytes = 0;
        if bytes <= refusal.limit_bytes {
            given_back_bytes = self.core.press(refusal.shortage(bytes), |_| {
                match self.core.try_take(bytes) {
                    Ok(()) => {
                        taken = true;
                        None
                    }
                    Err(still) => {
                        refusal = still;
                        Some(still.shortage(bytes))
                    }
                }
            });
        }
        if taken {
            return Ok(());
        }
        Err(AllocError::OverBudget {
            requested_bytes: bytes,
            live_bytes: refusal.live_bytes,
            limit_bytes: refusal.limit_bytes,
            given_back_bytes,
        })
    }

    /// Asks the callbacks for `bytes` bytes that the upstream does not have, whatever
    /// the limit says. Returns what they say they gave back.
    pub(super) fn relieve(&self, bytes: usize) -> usize {
        let shortage = |given_back: usize| {
            let look = self.core.look();
            Some(Shortage {
                requested_bytes: bytes,
                missing_bytes: bytes.saturating_sub(given_back),
                live_bytes: look.live_bytes,
                limit_bytes: look.limit_bytes,
            })
            .filter(|short| short.missing_bytes > 0)
        };
        shortage(0).map_or(0, |first| self.core.press(first, shortage))
    }

    pub(in crate::memory) fn give_back(&self, bytes: usize) {
        self.core.give_back(bytes);
    }

    /// Is it the same count?
    #[must_use]
    pub fn is_same(&self, other: &Limit) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("limit_bytes", &self.limit_bytes())
            .field("used_bytes", &self.used_bytes())
            .field("peak_bytes", &self.peak_bytes())
            .finish_non_exhaustive()
    }
}
