//! The paged KV cache: keys and values of many sequences in blocks of one region.
//!
//! ```text
//!  region     | block 0 | block 1 | block 2 | block 3 | block 4 | block 5 |
//!               A 16..32  B  0..16  free      A  0..16  B 16..20  free
//!
//!  tables     A: [ 3, 0 ]    B: [ 1, 4 ]     each written by its own sequence only
//!  free       2, 5                           under the cache's one lock
//!
//!  a block    | layer 0: keys | values | layer 1: keys | values | ... | pad |
//!  a plane    [head][slot][dim]   the tokens of one head are contiguous
//! ```
//!
//! The picture is the default [`Layout`]. A layer-major one has all blocks of layer 0 in
//! front of those of layer 1; a cache of one component (MLA) has keys only: [`KvSpec`].
//! Both change where bytes lie, and nothing of what follows.
//!
//! A [`KvCache`] takes one region from any [`SharedAllocator`] and cuts it into
//! equal blocks, which hold [`KvSpec::block_tokens`] tokens of *all* layers. A
//! [`Sequence`] has a table of block numbers, in token order; where those blocks
//! lie is of no meaning. So no memory is lost to fragmentation: as long as any
//! block is free, any sequence can grow.
//!
//! How many blocks a budget of memory holds, and how long a sequence may then be, says a
//! [`Plan`]; a model's sizes come from its `config.json` ([`ModelConfig`]) or are written
//! down as [`KvDims`]. On the command line it is `tenslab plan`.
//!
//! # Life of a token
//!
//! ```text
//!  cache.acquire(prompt, ..)     takes blocks for the prompt, all or none
//!    seq.append(&ids)            a Step: slots for the new tokens, none readable
//!      step.layer_mut(l)         one layer's new slots, to write
//!        .write(&k, &v)            or runs(), for kernels that write in place
//!      step.keys(l, block)       that layer, with the new slots in it
//!      step.commit()             every layer was written: the tokens are there
//!      drop(step)                or they are not, and the blocks it took go back
//!    seq.keys(l, block)          committed tokens only
//!  drop(seq)                     its blocks go back, the last one first
//! ```
//!
//! # Who may write
//!
//! The types say it, so that no call checks it while tokens are made:
//!
//! - A block is in at most one table, so only one [`Sequence`] reaches its bytes.
//!   It owns its cache's handle, so a block number never meets another cache.
//! - A [`Step`] borrows its sequence mutably: while one lives, there is no other
//!   step, and nobody reads the sequence but through the step.
//! - Writing needs `&mut Step`, reading `&Step` or `&Sequence`: no slice that was
//!   lent for reading is ever written.
//! - A step only writes slots behind the committed tokens. A layer is written when
//!   [`write`](LayerMut::write) returned `Ok`, or [`runs`](LayerMut::runs) lent its
//!   last piece. It may be written again in the same step: the last one counts.
//! - A step reads a layer only after it wrote it ([`KvError::LayerNotWritten`]
//!   before that); [`Step::committed`] lends the tokens from before the step.
//! - [`Step::commit`] takes all tokens of the step. To keep some of them only (drafted
//!   tokens of which two were right), drop the step and append those again; truncating and
//!   forking come with the prefix index.
//! - [`Step::commit`] needs every layer; otherwise it names those that are missing
//!   and rolls back. A step that is leaked with [`std::mem::forget`] commits nothing:
//!   its blocks stay reserved for the sequence.
//!
//! Reading the sequence while a step writes it, keeping a slice across an append, or
//! holding two layers' slots at one time does not compile:
//!
//! ```compile_fail,E0502
//! # use tenslab::kv::{KvError, Sequence};
//! fn read_beside_a_step(seq: &mut Sequence) -> Result<(), KvError> {
//!     let step = seq.append(&[1])?;
//!     let _ = seq.keys::<f32>(0, 0)?;     // `seq` is borrowed by `step`
//!     step.commit()
//! }
//! ```
//!
//! ```compile_fail,E0502
//! # use tenslab::kv::{KvError, Sequence};
//! fn keep_a_slice(seq: &mut Sequence) -> Result<f32, KvError> {
//!     let old = seq.keys_head::<f32>(0, 0, 0)?;
//!     seq.append(&[1])?.commit()?;        // `old` is still used below
//!     Ok(old[0])
//! }
//! ```
//!
//! ```compile_fail,E0499
//! # use tenslab::kv::{KvError, Step};
//! fn two_layers(step: &mut Step<'_>) -> Result<(), KvError> {
//!     let mut first = step.layer_mut(0)?;
//!     let mut second = step.layer_mut(1)?;
//!     first.write(&[1.0_f32], &[1.0])?;
//!     second.write(&[1.0_f32], &[1.0])
//! }
//! ```
//!
//! ```compile_fail,E0502
//! # use tenslab::kv::{KvError, Step};
//! fn read_while_pieces_live(step: &mut Step<'_>) -> Result<usize, KvError> {
//!     let pieces = step.layer_mut(0)?.runs::<f32>()?;
//!     let _ = step.keys::<f32>(0, 0)?;    // `pieces` would alias it
//!     Ok(pieces.count())
//! }
//! ```
//!
//! Sequences are [`Send`], and different ones may be used from different threads at
//! the same time. A [`Step`] is [`Sync`]: the threads of an attention kernel may all
//! read it.
//!
//! # What it costs
//!
//! All metadata is allocated when the cache is made: acquire, append, write, read,
//! commit and drop make no heap block. They take the cache's one lock only to move
//! blocks and, in a commit, to count tokens; payload is never touched under it. A read
//! is a few comparisons and an offset: no lock, no atomic write.
//!
//! Checked by `tests/kv` (the rules above, threads, and random operations against a
//! model, byte for byte; under AddressSanitizer free blocks are poisoned) and
//! `tests/kv_heap.rs` (no heap blocks).
//!
//! [`SharedAllocator`]: crate::memory::SharedAllocator

mod cache;
mod config;
mod error;
mod format;
mod hash;
mod layers;
mod layout;
mod ledger;
mod lender;
mod namespace;
mod options;
mod pin;
mod plan;
mod plane;
mod region;
mod relieve;
mod sequence;
mod spec;
mod step;
mod write;

pub use cache::{Admission, KvCache, KvLimits, KvStats};
pub use config::ModelConfig;
pub use error::KvError;
pub use format::KvFormat;
pub use hash::PrefixHash;
pub use layers::LayerSet;
pub use layout::{BLOCK_ALIGN, Layout, Part};
pub use ledger::KvCounters;
pub use namespace::Namespace;
pub use options::{BlockFill, KvOptions};
pub use pin::Pin;
pub use plan::{Plan, PlanError};
pub use plane::Plane;
pub use region::RegionLayout;
pub use relieve::Relieved;
pub use sequence::{BlockId, Sequence};
pub use spec::{GroupId, KvDims, KvSpec, MAX_BLOCK_TOKENS, MAX_LAYERS, ScalePlane};
pub use step::Step;
pub use write::{LayerMut, Run, Runs};
