//! What loom is told of the blocks' bytes, which it cannot see: that they are read, or
//! written. In every other build there is nothing here.

pub(super) use told::Payload;

#[cfg(not(loom))]
mod told {
    pub(in crate::kv) struct Payload;

    impl Payload {
        pub(in crate::kv) fn new(_blocks: usize) -> Self {
            Self
        }

        #[inline]
        pub(in crate::kv) fn read(&self, _block: impl FnOnce() -> u32) {}

        #[inline]
        pub(in crate::kv) fn write(&self, _block: impl FnOnce() -> u32) {}
    }
}

#[cfg(loom)]
mod told {
    use crate::sync::UnsafeCell;

    /// One cell for each block: loom fails a model where nothing orders two accesses, one of
    /// which writes.
    pub(in crate::kv) struct Payload(Box<[UnsafeCell<()>]>);

    // SAFETY: the cells hold nothing.
    unsafe impl Sync for Payload {}

    impl Payload {
        pub(in crate::kv) fn new(blocks: usize) -> Self {
            Self((0..blocks).map(|_| UnsafeCell::new(())).collect())
        }

        /// The block may be read from now on by who calls.
        #[track_caller]
        pub(in crate::kv) fn read(&self, block: impl FnOnce() -> u32) {
            self.0[block() as usize].with(|_| ());
        }

        /// The block is written now, or may be from now on, by who calls.
        #[track_caller]
        pub(in crate::kv) fn write(&self, block: impl FnOnce() -> u32) {
            self.0[block() as usize].with_mut(|_| ());
        }
    }
}
