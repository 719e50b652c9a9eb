//! Weights that several processes share: [`Weights::seal`] and [`Weights::map_sealed`].
//!
//! ```text
//!   one process                                     any number of others
//!   files ──pread, cast──▶ memfd ──seal──▶ SealedWeights ── its descriptor ──▶ map_sealed ──▶ Weights
//!                          filled once     nobody writes,                     seals checked,
//!                                          nobody cuts                        index checked
//! ```
//!
//! The tensors are read straight into the memory that is sealed, so there is one copy while they
//! are loaded and one afterwards, however many processes have it. It has no name: it is gone when
//! the last descriptor and the last mapping are. And what is mapped cannot change, whatever the
//! files and the other processes do, so mapping it is safe. What it *says* may still be anything:
//! [`image`] believes none of it.
//!
//! `tests/weights_sealed` compares it with a load, feeds it hostile memory, and counts the
//! pages of two processes.

mod fault;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod image;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod linux;

pub use self::fault::SealedFault;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
pub use self::linux::SealedWeights;

use super::WeightsError;

impl From<SealedFault> for WeightsError {
    fn from(fault: SealedFault) -> Self {
        Self::Sealed {
            fault: Box::new(fault),
        }
    }
}
