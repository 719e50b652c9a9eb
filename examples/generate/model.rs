//! The forward pass of a Llama: token ids in, the logits of the last one out.
//!
//! ```text
//!   ids -> embedding -> x
//!   each layer:  x += o(attention(rope(q), rope(k), v))      q, k, v of norm(x)
//!                x += down(silu(gate) * up)                  gate, up of norm(x)
//!   last token:  head(norm(x)) -> logits
//! ```
//!
//! Every byte here is tenslab's: weights are frozen tensors over one slab, keys and
//! values go into the blocks of a [`Step`], activations and scratch are tensors of an
//! arena, whose step ends when the pass did. All arithmetic is f32.

use tenslab::kv::Sequence;
use tenslab::memory::{AllocError, Request, Tag};
use tenslab::weights::Weights;
use tenslab::{DType, SharedAllocator, StepArena, Tensor};

use crate::attention::{Heads, attend};
use crate::config::Config;
use crate::kernels::{Kernels, Number, rms_norm, rotate, scale, silu_times};
use crate::threads::Team;
use crate::trouble::Trouble;
use crate::view::View;

/// Where the tensors of a forward pass come from.
#[derive(Debug)]
pub(crate) struct Room {
    /// What layers hand to each other: it dies with the pass.
    activations: SharedAllocator,
    /// What a product or a rotation needs for itself: it dies with the pass, too.
    scratch: SharedAllocator,
    /// What the pass is for.
    logits: SharedAllocator,
}

impl Room {
    /// All that dies with a pass comes from `step`.
    pub(crate) fn new(step: &SharedAllocator, logits: &SharedAllocator) -> Self {
        Self {
            activations: step.with_tag(Tag::Activations),
            scratch: step.with_tag(Tag::Scratch),
            logits: logits.with_tag(Tag::Activations),
        }
    }
}

/// The tensors of one decoder layer.
#[derive(Debug)]
struct Layer {
    attention_norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    mlp_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// A model ready to run.
#[derive(Debug)]
pub(crate) struct Model {
    config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
}

impl Model {
    /// Takes the tensors that `config` asks for out of `weights`.
    ///
    /// # Errors
    ///
    /// A tensor that is missing, has another shape than `config` says or a dtype
    /// that the kernels do not read, and tensors that `config` says nothing about.
    pub(crate) fn new(config: Config, weights: &Weights) -> Result<Self, Trouble> {
        let take = |name: &str, shape: &[usize]| -> Result<Tensor, Trouble> {
            let tensor = weights
                .get(name)
                .map_err(|error| Trouble::new(format!("by config.json: {error}")))?;
            if tensor.shape().dims() != shape {
                let found = tensor.shape();
                return Err(Trouble::new(format!(
                    "config.json does not belong to this checkpoint: by it {name} is {shape:?}, the file has {found}"
                )));
            }
            if !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16) {
                let dtype = tensor.dtype();
                return Err(Trouble::new(format!(
                    "{name} is {dtype}; this example computes with float32, float16 and bfloat16"
                )));
            }
            Ok(tensor)
        };
        for name in weights.names() {
            let layer = name
                .strip_prefix("model.layers.")
                .and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
            if layer.is_some_and(|layer| layer >= config.layers) {
                let layers = config.layers;
                return Err(Trouble::new(format!(
                    "config.json does not belong to this checkpoint: by it there are {layers} layers, the file has {name}"
                )));
            }
            if name.ends_with(".bias") {
                return Err(Trouble::new(format!(
                    "the checkpoint has {name}; this example computes without biases"
                )));
            }
        }
        let (hidden, inner) = (config.hidden, config.intermediate);
        let (q_rows, kv_rows) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );
        let mut layers = Vec::with_capacity(config.layers);
        for l in 0..config.layers {
            let take = |name: &str, shape: &[usize]| {
                take(&format!("model.layers.{l}.{name}.weight"), shape)
            };
            layers.push(Layer {
                attention_norm: take("input_layernorm", &[hidden])?,
                q: take("self_attn.q_proj", &[q_rows, hidden])?,
                k: take("self_attn.k_proj", &[kv_rows, hidden])?,
                v: take("self_attn.v_proj", &[kv_rows, hidden])?,
                o: take("self_attn.o_proj", &[hidden, q_rows])?,
                mlp_norm: take("post_attention_layernorm", &[hidden])?,
                gate: take("mlp.gate_proj", &[inner, hidden])?,
                up: take("mlp.up_proj", &[inner, hidden])?,
                down: take("mlp.down_proj", &[hidden, inner])?,
            });
        }
        let embedding = take("model.embed_tokens.weight", &[config.vocab, hidden])?;
        let norm = take("model.norm.weight", &[hidden])?;
        let head = if config.tied {
            embedding.clone()
        } else {
            take("lm_head.weight", &[config.vocab, hidden])?
        };
        Ok(Self {
            config,
            embedding,
            layers,
            norm,
            head,
        })
    }

    /// The sizes.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The number format of its products' weights.
    pub(crate) fn dtype(&self) -> DType {
        self.layers
            .first()
            .map_or(self.embedding.dtype(), |layer| layer.q.dtype())
    }

    /// Elements, for each token, of what a forward pass makes: the activations `x`, its norm,
    /// `q`, `k` and `v`; the scratch for two products, for what the gate let through, and for
    /// the angles.
    fn widths(&self) -> ([usize; 5], [usize; 4]) {
        let config = &self.config;
        let (hidden, inner, dim) = (config.hidden, config.intermediate, config.head_dim);
        let (q, kv) = (config.heads * dim, config.kv_heads * dim);
        let activations = [hidden, hidden.max(q), q, kv, kv];
        // What a product makes, [rows, tokens], before it is turned into [tokens, rows].
        let scratch = [inner.max(hidden).max(q), inner.max(2 * kv), inner, dim];
        (activations, scratch)
    }

    /// Bytes that a [`forward`](Self::forward) pass over `count` tokens takes of an arena.
    ///
    /// # Errors
    ///
    /// More than an address space holds.
    pub(crate) fn step_bytes(&self, count: usize) -> Result<usize, AllocError> {
        let (activations, scratch) = self.widths();
        let widths = activations.into_iter().chain(scratch);
        widths
            .map(|width| width.saturating_mul(count))
            .try_fold(0, |sum: usize, elements| {
                let bytes = elements.saturating_mul(size_of::<f32>());
                Ok(sum.saturating_add(StepArena::footprint(&Request::new(bytes, 64)?)))
            })
    }

    /// Bytes of the logits.
    pub(crate) fn logits_bytes(&self) -> usize {
        self.config.vocab.saturating_mul(size_of::<f32>())
    }

    /// Appends `tokens` (at least one, each below the vocabulary) to the sequence and
    /// returns the logits behind the last one: `[vocab]`, f32.
    ///
    /// `K` is the number format of the cache. When this returns, all but the logits is back
    /// in `room`.
    ///
    /// # Errors
    ///
    /// A full cache, no memory. The sequence is then as before.
    pub(crate) fn forward<K: Number>(
        &self,
        kernels: Kernels,
        team: &Team,
        sequence: &mut Sequence,
        tokens: &[u32],
        room: &Room,
    ) -> Result<Tensor, Trouble> {
        let config = &self.config;
        let (count, hidden, inner, dim) = (
            tokens.len(),
            config.hidden,
            config.intermediate,
            config.head_dim,
        );
        let heads = Heads {
            query: config.heads,
            kv: config.kv_heads,
            dim,
        };
        let (q_width, kv_width) = (heads.query * dim, heads.kv * dim);
        let take = |width: usize, room| Tensor::empty([count * width], DType::F32, room);

        let ([x, normed, q, k, v], scratch) = self.widths();
        let tensors = [
            take(x, &room.activations)?,
            take(normed, &room.activations)?,
            take(q, &room.activations)?,
            take(k, &room.activations)?,
            take(v, &room.activations)?,
        ];
        let [x, normed, q, k, v] = &tensors;
        let (mut x, mut normed) = (x.write::<f32>()?, normed.write::<f32>()?);
        let (mut q, mut k, mut v) = (q.write::<f32>()?, k.write::<f32>()?, v.write::<f32>()?);
        let [raw, raw_two, active, angles] = scratch;
        let tensors = [
            take(raw, &room.scratch)?,
            take(raw_two, &room.scratch)?,
            take(active, &room.scratch)?,
            take(angles, &room.scratch)?,
        ];
        let [raw, raw_two, active, angles] = &tensors;
        let (mut raw, mut raw_two) = (raw.write::<f32>()?, raw_two.write::<f32>()?);
        let (mut active, mut angles) = (active.write::<f32>()?, angles.write::<f32>()?);

        let mut step = sequence.append(tokens)?;
        self.angles(step.start(), &mut angles);
        let embedding = View::of(&self.embedding)?;
        for (id, x) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
            embedding.row(*id as usize, x);
        }
        drop(embedding);

        for (l, layer) in self.layers.iter().enumerate() {
            self.norm(&layer.attention_norm, &x, &mut normed)?;
            let norm = &normed[..count * hidden];
            let views = [
                View::of(&layer.q)?,
                View::of(&layer.k)?,
                View::of(&layer.v)?,
            ];
            let [q_view, k_view, v_view] = &views;
            let (k_raw, v_raw) = raw_two[..2 * kv_width * count].split_at_mut(kv_width * count);
            let q_raw = &mut raw[..q_width * count];
            team.both(
                || q_view.matmul(kernels, team, norm, hidden, q_raw),
                || {
                    team.both(
                        || k_view.matmul(kernels, team, norm, hidden, k_raw),
                        || v_view.matmul(kernels, team, norm, hidden, v_raw),
                    )
                },
            )?;
            turn_over(q_raw, count, &mut q);
            turn_over(k_raw, count, &mut k);
            turn_over(v_raw, count, &mut v);
            scale(&mut q, 1.0 / (dim as f32).sqrt());
            for ((q, k), angles) in q
                .chunks_exact_mut(q_width)
                .zip(k.chunks_exact_mut(kv_width))
                .zip(angles.chunks_exact(dim))
            {
                let (cos, sin) = angles.split_at(dim / 2);
                q.chunks_exact_mut(dim)
                    .chain(k.chunks_exact_mut(dim))
                    .for_each(|head| rotate(head, cos, sin));
            }
            step.layer_mut(l)?.write(&k, &v)?;

            let mixed = &mut normed[..count * q_width];
            attend::<K>(kernels, team, &step, l, heads, &q, mixed)?;
            let o_raw = &mut raw[..hidden * count];
            View::of(&layer.o)?.matmul(kernels, team, mixed, q_width, o_raw)?;
            add_turned(o_raw, count, &mut x);

            self.norm(&layer.mlp_norm, &x, &mut normed)?;
            let norm = &normed[..count * hidden];
            let (gate, up) = (View::of(&layer.gate)?, View::of(&layer.up)?);
            let outs = [&mut raw[..inner * count], &mut raw_two[..inner * count]];
            team.split(
                outs,
                count,
                2 * hidden * count,
                &|first, [gate_raw, up_raw]| {
                    gate.part(kernels, first, norm, hidden, gate_raw);
                    up.part(kernels, first, norm, hidden, up_raw);
                    silu_times(gate_raw, up_raw);
                    Ok(())
                },
            )?;
            turn_over(&raw[..inner * count], count, &mut active);
            let down_raw = &mut raw[..hidden * count];
            View::of(&layer.down)?.matmul(kernels, team, &active, inner, down_raw)?;
            add_turned(down_raw, count, &mut x);
        }

        let last = &x[(count - 1) * hidden..];
        self.norm(&self.norm, last, &mut normed)?;
        let logits = Tensor::empty([config.vocab], DType::F32, &room.logits)?;
        View::of(&self.head)?.matmul(
            kernels,
            team,
            &normed[..hidden],
            hidden,
            &mut logits.write::<f32>()?,
        )?;
        step.commit()?;
        Ok(logits)
    }

    /// `out[t] = norm(x[t]) * weight`.
    fn norm(&self, weight: &Tensor, x: &[f32], out: &mut [f32]) -> Result<(), Trouble> {
        let (hidden, weight) = (self.config.hidden, View::of(weight)?);
        for (x, out) in x.chunks_exact(hidden).zip(out.chunks_exact_mut(hidden)) {
            weight.row(0, out);
            rms_norm(x, self.config.rms_epsilon, out);
        }
        Ok(())
    }

    /// The cosines and sines by which the tokens from position `start` on turn:
    /// `[tokens, 2, dim / 2]`.
    fn angles(&self, start: usize, out: &mut [f32]) {
        let half = self.config.turns.len();
        for (position, out) in (start..).zip(out.chunks_exact_mut(2 * half)) {
            let (cos, sin) = out.split_at_mut(half);
            for ((turn, cos), sin) in self.config.turns.iter().zip(cos).zip(sin) {
                // In f64: at position 8,000 an f32 angle is off by 2e-4.
                let (s, c) = (position as f64 * turn).sin_cos();
                #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is meant")]
                {
                    (*cos, *sin) = (c as f32, s as f32);
                }
            }
        }
    }
}

/// `[rows, tokens]` to `[tokens, rows]`.
fn turn_over(raw: &[f32], tokens: usize, out: &mut [f32]) {
    if tokens == 1 {
        out.copy_from_slice(raw);
        return;
    }
    let rows = raw.len() / tokens;
    for (t, out) in out.chunks_exact_mut(rows).enumerate() {
        for (out, raw) in out.iter_mut().zip(raw.chunks_exact(tokens)) {
            *out = raw[t];
        }
    }
}

/// `x[t][r] += raw[r][t]`.
fn add_turned(raw: &[f32], tokens: usize, x: &mut [f32]) {
    let rows = raw.len() / tokens;
    for (t, x) in x.chunks_exact_mut(rows).enumerate() {
        for (x, raw) in x.iter_mut().zip(raw.chunks_exact(tokens)) {
            *x += raw[t];
        }
    }
}
