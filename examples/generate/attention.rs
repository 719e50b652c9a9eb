//! Grouped-query attention over the paged cache: keys and values are read where
//! they lie.
//!
//! ```text
//!   token, KV head h:   the `group` query heads that share h
//!     block 0           keys [slots, dim] . q   -> scores -> shares
//!     block 1           values [slots, dim]     -> out += share * value
//!     ...               one block at a time, softmax kept up as it goes
//! ```
//!
//! No row of scores for the whole context is kept: a block's scores fit on the
//! stack. Blocks are taken in the order of the tokens, so the result depends
//! neither on where the cache put them nor on the number of threads.

use tenslab::kv::Step;

use crate::kernels::{Kernels, Number, Shares, scale};
use crate::threads::Team;
use crate::trouble::Trouble;

/// Tokens in a block of the cache.
pub(crate) const BLOCK_TOKENS: usize = 32;

/// Query heads that are worked on at one time: their softmax is on the stack.
const HEADS_AT_ONCE: usize = 8;

/// The sizes of one layer's attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) query: usize,
    /// Key/value heads; divides `query`.
    pub(crate) kv: usize,
    /// Elements of a head.
    pub(crate) dim: usize,
}

/// `out = softmax(q k) v` for the new tokens of a step, each over all tokens up to
/// itself. `q` (scaled already) and `out` are `[tokens, query heads, dim]`.
///
/// # Errors
///
/// Those of the cache.
pub(crate) fn attend<K: Number>(
    kernels: Kernels,
    team: &Team,
    step: &Step<'_>,
    layer: usize,
    heads: Heads,
    q: &[f32],
    out: &mut [f32],
) -> Result<(), Trouble> {
    let unit = heads.query / heads.kv * heads.dim;
    let longest = step.start() + q.len() / (heads.query * heads.dim);
    team.split([out], unit, 2 * unit * longest, &|first, [out]| {
        for (at, out) in (first..).zip(out.chunks_exact_mut(unit)) {
            let (token, kv_head) = (at / heads.kv, at % heads.kv);
            let q = &q[at * unit..][..unit];
            let seen = step.start() + token + 1;
            for (q, out) in q
                .chunks(HEADS_AT_ONCE * heads.dim)
                .zip(out.chunks_mut(HEADS_AT_ONCE * heads.dim))
            {
                attend_heads::<K>(kernels, step, layer, kv_head, seen, heads.dim, q, out)?;
            }
        }
        Ok(())
    })
}

/// The query heads of `q` over the first `seen` tokens of one KV head.
#[expect(
    clippy::too_many_arguments,
    reason = "one place, one caller; a struct would only rename them"
)]
fn attend_heads<K: Number>(
    kernels: Kernels,
    step: &Step<'_>,
    layer: usize,
    kv_head: usize,
    seen: usize,
    dim: usize,
    q: &[f32],
    out: &mut [f32],
) -> Result<(), Trouble> {
    let mut shares = [Shares::NONE; HEADS_AT_ONCE];
    let mut scores = [0.0; BLOCK_TOKENS];
    out.fill(0.0);
    for block in 0..seen.div_ceil(BLOCK_TOKENS) {
        let slots = BLOCK_TOKENS.min(seen - block * BLOCK_TOKENS);
        let keys = &step.keys_head::<K>(layer, block, kv_head)?[..slots * dim];
        let values = &step.values_head::<K>(layer, block, kv_head)?[..slots * dim];
        let scores = &mut scores[..slots];
        for ((q, out), shares) in q
            .chunks_exact(dim)
            .zip(out.chunks_exact_mut(dim))
            .zip(&mut shares)
        {
            kernels.matmul(keys, q, dim, scores);
            scale(out, shares.take(scores));
            kernels.weigh(scores, values, out);
        }
    }
    for (out, shares) in out.chunks_exact_mut(dim).zip(shares) {
        scale(out, shares.scale());
    }
    Ok(())
}
