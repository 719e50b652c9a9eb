//! The paged KV cache: keys and values of many sequences in blocks of one region.
//!
//! ```text
//!  region     | block 0 | block 1 | block 2 | block 3 | block 4 | block 5 |
//!               A, B      B         idle      A, B      A         free
//!
//!  tables     A: [ 3, 0 | 4 ]    B: [ 3, 0 | 1 ]    shared | own: written by one sequence only
//!  idle       2                  nobody's, findable by its tokens: evicted when needed
//!  free       5                  all of it under the cache's one lock
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
//! A block that is full and committed is *registered*: whoever comes with the same tokens
//! behind the same blocks, in the same [`Namespace`], finds it and shares it. Nobody writes
//! it from then on. When its last user goes it is *idle*; if no block is free, the oldest
//! idle one is evicted, which is always the end of a chain. The book's chapter
//! (`docs/kv.md`) has the pictures, and how to write an attention kernel over it.
//!
//! How many blocks a budget of memory holds, and how long a sequence may then be, says a
//! [`Plan`]; a model's sizes come from its `config.json` ([`ModelConfig`]) or are written
//! down as [`KvDims`]. On the command line it is `tenslab plan`.
//!
//! # Life of a token
//!
//! ```text
//!  cache.acquire(prompt, ..)     shares what is there, takes blocks for the rest, all or none
//!    seq.append(&ids)            a Step: slots for the new tokens, none readable; a last
//!                                  block that others have too is copied first
//!      step.layer_mut(l)         one layer's new slots, to write
//!        .write(&k, &v)            or runs(), for kernels that write in place
//!      step.keys(l, block)       that layer, with the new slots in it
//!      step.commit()             every layer was written: the tokens are there, and
//!                                  blocks that are full now can be found
//!      step.commit_first(n)      of drafted tokens, those that were right
//!      drop(step)                none of them, and the blocks it took go back
//!    seq.keys(l, block)          committed tokens only
//!    seq.fork(), truncate(n)     the same tokens once more, or fewer of them
//!  drop(seq)                     its blocks go back, the last one first; what is
//!                                  registered stays findable until its place is needed
//! ```
//!
//! # Who may write
//!
//! The types say it, so that no call checks it while tokens are made:
//!
//! - A block is written only while it is in one table and not registered, so that only one
//!   [`Sequence`] reaches its bytes. [`append`](Sequence::append) decides that under the lock,
//!   and exchanges a last block that others have too (after a [`fork`](Sequence::fork)) or
//!   that is registered (after a [`truncate`](Sequence::truncate)) for a copy.
//! - A sequence owns its cache's handle, so a block's number never meets another cache.
//! - A [`Step`] borrows its sequence mutably: while one lives, there is no other
//!   step, and nobody reads the sequence but through the step.
//! - Writing needs `&mut Step`, reading `&Step` or `&Sequence`: no slice that was
//!   lent for reading is ever written.
//! - A step only writes slots behind the committed tokens. A layer is written when
//!   [`write`](LayerMut::write) returned `Ok`, or [`runs`](LayerMut::runs) lent its
//!   last piece. It may be written again in the same step: the last one counts.
//! - A step reads a layer only after it wrote it ([`KvError::LayerNotWritten`]
//!   before that); [`Step::committed`] lends the tokens from before the step.
//! - [`Step::commit`] needs every layer; otherwise it names those that are missing
//!   and rolls back. [`Step::commit_first`] takes some of the tokens and rolls the others
//!   back. What is not committed is never registered. A step that is leaked with
//!   [`std::mem::forget`] commits nothing: its blocks stay reserved for the sequence.
//! - Blocks go back by dropping, and no other way: a [`Sequence`], a [`Pin`] or the last view
//!   of a block's [tensor](Sequence::keys_tensor). Each is one use of a block, which is
//!   neither evicted nor written as long as it has others.
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
//! All metadata is allocated when the cache is made: acquire, append, write, read, commit,
//! fork, truncate, pin and drop make no heap block; a tensor of a block makes one. All but
//! write and read take the cache's one lock once, to move blocks and to look them up, a hash and a
//! comparison for each whole block of a prompt; where a block is copied, once more. Payload is
//! never touched under it. An eviction looks at a few records, however large the cache is. A read is a few
//! comparisons and an offset: no lock, no atomic write.
//!
//! Checked by `tests/kv` (the rules above, threads, other engines' own cases, and random
//! operations against a model, byte for byte; under AddressSanitizer free blocks are
//! poisoned) and `tests/kv_heap.rs` (no heap blocks). `docs/lessons.md` names the test for
//! each fault that users of other caches reported.
//!
//! [`SharedAllocator`]: crate::memory::SharedAllocator

mod admission;
mod block_tokens;
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
mod payload;
mod pin;
mod plan;
mod plane;
mod region;
mod relieve;
mod sequence;
mod shared;
mod spec;
mod step;
mod tables;
mod two_steps;
mod write;

pub use admission::Admission;
pub use cache::{KvCache, KvLimits, KvStats};
pub use config::ModelConfig;
pub use error::KvError;
pub use format::KvFormat;
pub use hash::PrefixHash;
pub use layers::LayerSet;
pub use layout::{BLOCK_ALIGN, Layout, Part};
pub use ledger::KvCounters;
pub use namespace::Namespace;
pub use options::{BlockFill, Eviction, KvOptions};
pub use pin::Pin;
pub use plan::{Plan, PlanError};
pub use plane::Plane;
pub use region::RegionLayout;
pub use relieve::Relieved;
pub use sequence::{BlockId, Sequence};
pub use spec::{GroupId, KvDims, KvSpec, MAX_BLOCK_TOKENS, MAX_LAYERS, ScalePlane};
pub use step::Step;
pub use tables::{BlockTable, PageCsr, padded_rows, slot_mapping};
pub use write::{LayerMut, Run, Runs};
