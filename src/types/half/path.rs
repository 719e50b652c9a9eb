//! Which code converts slices: the best that this CPU has, asked once.

use super::portable;
use crate::types::{bf16, f16};

#[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
use super::{avx2, avx512};
use half::slice::HalfFloatSliceExt;

/// From this many elements on a conversion stores around the cache: 48 MiB in and out.
///
/// `benches/half.rs` on a CPU with 32 MiB of last-level cache: at 6 MiB it loses up to a
/// half, at 24 MiB it depends, from 48 MiB on it wins 1.1 to 1.4 times.
const STREAM_ELEMENTS: usize = 8 << 20;

/// The machine code that converts a slice. All of them give the same bits.
///
/// There is one for each instruction set that this CPU has, with stores into the cache
/// and with stores around it. The functions of [this module](super) pick one by the
/// CPU and the length. Pick yourself to compare them, or to cut a large conversion into
/// pieces: the path should then be that of the whole.
///
/// ```
/// use tenslab::types::half::CodePath;
/// use tenslab::bf16;
///
/// let wide = vec![1.0_f32; 1000];
/// for path in CodePath::available() {
///     let mut narrow = vec![bf16::ZERO; 1000];
///     path.narrow_bf16(&wide, &mut narrow);
///     assert!(narrow.iter().all(|half| half.to_bits() == 0x3f80), "{}", path.name());
/// }
/// ```
///
/// Stores around the cache (non-temporal ones) spare the memory bus a read of what will
/// be overwritten. They pay where the result does not fit the cache anyway.
///
/// Cost to pick: a few loads; what the CPU has is asked once for each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodePath(Kind);

/// That a value of it exists says that the CPU can run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    Avx2 {
        stream: bool,
    },
    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    Avx512 {
        stream: bool,
    },
}

impl CodePath {
    /// Loops without intrinsics, on every CPU.
    pub const PORTABLE: CodePath = CodePath(Kind::Portable);

    /// The fastest one for this many elements.
    #[must_use]
    pub fn for_elements(elements: usize) -> CodePath {
        let stream = elements >= STREAM_ELEMENTS;
        Self::avx512(stream)
            .or_else(|| Self::avx2(stream))
            .unwrap_or(Self::PORTABLE)
    }

    /// All that this CPU can run.
    pub fn available() -> impl Iterator<Item = CodePath> {
        [
            Some(Self::PORTABLE),
            Self::avx2(false),
            Self::avx2(true),
            Self::avx512(false),
            Self::avx512(true),
        ]
        .into_iter()
        .flatten()
    }

    /// `"portable"`, `"avx2"`, `"avx2 around the cache"`, …
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
            Kind::Avx2 { stream: false } => "avx2",
            #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
            Kind::Avx2 { stream: true } => "avx2 around the cache",
            #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
            Kind::Avx512 { stream: false } => "avx512",
            #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
            Kind::Avx512 { stream: true } => "avx512 around the cache",
        }
    }

    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    fn avx2(stream: bool) -> Option<CodePath> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        has.then_some(CodePath(Kind::Avx2 { stream }))
    }

    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    fn avx512(stream: bool) -> Option<CodePath> {
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        has.then_some(CodePath(Kind::Avx512 { stream }))
    }

    #[cfg(not(all(target_arch = "x86_64", not(tenslab_portable))))]
    const fn avx2(_stream: bool) -> Option<CodePath> {
        None
    }

    #[cfg(not(all(target_arch = "x86_64", not(tenslab_portable))))]
    const fn avx512(_stream: bool) -> Option<CodePath> {
        None
    }
}

#[track_caller]
fn assert_same_length(from: usize, to: usize) {
    assert_eq!(from, to, "{from} elements cannot fill {to}");
}

macro_rules! convert {
    ($(#[$doc:meta])* $name:ident: $from:ty => $to:ty, $from_bits:expr, $to_bits:expr) => {
        $(#[$doc])*
        ///
        /// # Panics
        /// If the lengths differ.
        #[track_caller]
        pub fn $name(self, from: &[$from], to: &mut [$to]) {
            assert_same_length(from.len(), to.len());
            let (from, to) = ($from_bits(from), $to_bits(to));
            match self.0 {
                Kind::Portable => portable::$name(from, to),
                // SAFETY: the CPU has AVX2 and F16C: the kind is only made by `avx2`,
                // which asked.
                #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                Kind::Avx2 { stream: false } => unsafe { avx2::$name::<false>(from, to) },
                // SAFETY: the CPU has AVX2 and F16C: `avx2` asked.
                #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                Kind::Avx2 { stream: true } => unsafe { avx2::$name::<true>(from, to) },
                // SAFETY: the CPU has AVX-512 F and BW: the kind is only made by `avx512`,
                // which asked.
                #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                Kind::Avx512 { stream: false } => unsafe { avx512::$name::<false>(from, to) },
                // SAFETY: the CPU has AVX-512 F and BW: `avx512` asked.
                #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                Kind::Avx512 { stream: true } => unsafe { avx512::$name::<true>(from, to) },
            }
        }
    };
}

impl CodePath {
    convert! {
        /// Widens `from` into `to`, exactly.
        widen_f16: f16 => f32, HalfFloatSliceExt::reinterpret_cast, std::convert::identity
    }
    convert! {
        /// Narrows `from` into `to`: nearest, ties to even.
        narrow_f16: f32 => f16, std::convert::identity, HalfFloatSliceExt::reinterpret_cast_mut
    }
    convert! {
        /// Widens `from` into `to`, exactly.
        widen_bf16: bf16 => f32, HalfFloatSliceExt::reinterpret_cast, std::convert::identity
    }
    convert! {
        /// Narrows `from` into `to`: nearest, ties to even.
        narrow_bf16: f32 => bf16, std::convert::identity, HalfFloatSliceExt::reinterpret_cast_mut
    }
}
