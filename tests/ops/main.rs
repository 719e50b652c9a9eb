//! The operations of `tenslab::ops`, a file each, on packed and on strided tensors.
//!
//! ```text
//!   copy     by logical index                 random   any two views, against the naive loop
//!   cast     every layout, every refusal      golden   every pair of dtypes, against NumPy
//!   create, fill, compare, display, gather, cat        the contract, sentence by sentence
//! ```
//!
//! `docs/spec_ops.md` says which sentence of the contract is which test.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "what is lost is what the expected value is about"
)]

mod cast;
mod cat;
mod compare;
mod copy;
mod create;
mod display;
mod fill;
mod gather;
mod golden;
mod random;
mod turned;

use tenslab::memory::cpu;
use tenslab::{Element, Shape, Tensor};

fn tensor<T: Element>(dims: &[usize], elements: &[T]) -> Tensor {
    let shape = Shape::from_dims(dims).unwrap();
    let tensor = Tensor::empty(shape, T::DTYPE, cpu()).unwrap();
    tensor.write::<T>().unwrap().copy_from_slice(elements);
    tensor
}

fn counted(dims: &[usize]) -> Tensor {
    let numel: usize = dims.iter().product();
    tensor::<u16>(
        dims,
        &(0..numel)
            .map(|at| u16::try_from(at).unwrap())
            .collect::<Vec<_>>(),
    )
}

fn elements(tensor: &Tensor) -> Vec<u16> {
    tensor.read::<u16>().unwrap().to_vec()
}

fn for_each_index(dims: &[usize], mut visit: impl FnMut(&[usize])) {
    for mut at in 0..dims.iter().product() {
        let mut index = vec![0; dims.len()];
        for (dim, &size) in dims.iter().enumerate().rev() {
            index[dim] = at % size;
            at /= size;
        }
        visit(&index);
    }
}
