//! A storm of tensor operations on two threads, with a model that knows where each element
//! lies.
//!
//! ```text
//!   thread 0   handles ─┐  view, clone, drop, guards, get_mut, freeze, new tensors
//!                       ├─▶ post ◀─┤  handles go over, so both threads are at one storage
//!   thread 1   handles ─┘
//! ```
//!
//! Element `p` of every storage holds `p` in its low byte and a number of its last writer
//! above it. Each handle carries the list of places that its view should hold. So whoever
//! reads sees a wrong offset, stride or bound at once, and a writer in between too: it would
//! have left two numbers in one write. In the AddressSanitizer lane, where it is a million
//! steps, the slab poisons every byte that no tensor has.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::sync::{Barrier, Mutex};

use probe::Dice;
use tenslab::memory::{BorrowError, SharedAllocator, SlabAllocator};
use tenslab::tensor::TensorError;
use tenslab::{DType, Shape, Tensor};

/// Steps of all threads together.
const STEPS: usize = if cfg!(tenslab_asan) {
    1_000_000
} else {
    200_000
};
const THREADS: usize = 2;
const ELEMENTS: usize = 48;

/// A view, and the place in its storage of each element in row-major order.
#[derive(Clone)]
struct Handle {
    tensor: Tensor,
    places: Vec<u8>,
}

/// How often what happened. Each has to have happened.
#[derive(Debug, Default)]
struct Tally {
    views: usize,
    reads: usize,
    writes: usize,
    alone: usize,
    disjoint: usize,
    copies: usize,
    frozen: usize,
    not_sole: usize,
    not_packed: usize,
    borrowed: usize,
    posted: usize,
}

struct Storm<'a> {
    dice: Dice,
    slab: &'a SharedAllocator,
    post: &'a Mutex<Vec<Handle>>,
    handles: Vec<Handle>,
    number: u32,
    tally: Tally,
}

fn checked(elements: &[u32], places: &[u8]) {
    assert_eq!(elements.len(), places.len());
    for (element, &place) in elements.iter().zip(places) {
        assert_eq!(
            element & 0xff,
            u32::from(place),
            "{elements:x?} at {places:?}"
        );
    }
}

fn fill(elements: &mut [u32], places: &[u8], number: u32) {
    checked(elements, places);
    for (element, &place) in elements.iter_mut().zip(places) {
        *element = number << 8 | u32::from(place);
    }
}

impl Storm<'_> {
    fn fresh(&mut self) {
        let dims = [[48, 1, 1], [4, 3, 4], [2, 24, 1], [6, 2, 4]][self.dice.below(4)];
        let Ok(tensor) = Tensor::empty(dims, DType::U32, self.slab) else {
            return; // all blocks are out
        };
        let mut elements = tensor.write::<u32>().unwrap();
        for (element, place) in elements.iter_mut().zip(0..) {
            *element = place;
        }
        drop(elements);
        let places = (0..48).collect();
        self.handles.push(Handle { tensor, places });
    }

    /// A view of `from` whose element at each index is the one at `old(index)`.
    fn view(&mut self, from: &Handle, tensor: Tensor, old: impl Fn(&mut Vec<usize>)) {
        let (dims, before) = (tensor.shape().dims(), from.tensor.shape().dims());
        let mut places = Vec::new();
        for mut at in 0..tensor.numel() {
            let mut index = vec![0; dims.len()];
            for (dim, &size) in dims.iter().enumerate().rev() {
                index[dim] = at % size;
                at /= size;
            }
            old(&mut index);
            let steps = before.iter().zip(&index);
            places.push(from.places[steps.fold(0, |at, (size, index)| at * size + index)]);
        }
        self.tally.views += 1;
        self.handles.push(Handle { tensor, places });
    }

    fn some_view(&mut self, from: &Handle) {
        let (tensor, rank) = (&from.tensor, from.tensor.rank());
        if rank == 0 {
            return self.view(from, tensor.unsqueeze(0).unwrap(), |index| {
                index.remove(0);
            });
        }
        let (dim, other) = (self.dice.below(rank), self.dice.below(rank));
        let size = tensor.shape().dim(dim);
        let (a, b) = (self.dice.below(size + 1), self.dice.below(size + 1));
        let (start, end) = (a.min(b), a.max(b));
        match self.dice.below(7) {
            0 | 1 => self.view(from, tensor.slice(dim, start, end).unwrap(), |index| {
                index[dim] += start;
            }),
            2 => self.view(from, tensor.transpose(dim, other).unwrap(), |index| {
                index.swap(dim, other);
            }),
            3 if start < size => self.view(from, tensor.select(dim, start).unwrap(), |index| {
                index.insert(dim, start);
            }),
            4 if rank < 5 => self.view(from, tensor.unsqueeze(dim).unwrap(), |index| {
                index.remove(dim);
            }),
            5 if size == 1 => self.view(from, tensor.squeeze(dim).unwrap(), |index| {
                index.insert(dim, 0);
            }),
            _ => match tensor.reshape(Shape::from([tensor.numel()])) {
                Ok(flat) => self.handles.push(Handle {
                    tensor: flat,
                    places: from.places.clone(),
                }),
                Err(error) => self.refused(from, &error),
            },
        }
    }

    /// Counts a refusal, which has to be one of those that may be.
    fn refused(&mut self, from: &Handle, error: &TensorError) {
        let named = match error {
            TensorError::NotContiguous { .. } => {
                assert!(!from.tensor.is_contiguous());
                self.tally.not_packed += 1;
                return;
            }
            TensorError::Alloc(_) => return,
            TensorError::Borrow(BorrowError::Frozen { storage }) => {
                assert!(from.tensor.is_frozen());
                self.tally.frozen += 1;
                storage
            }
            TensorError::Borrow(BorrowError::NotSole { storage, handles }) => {
                assert!(*handles > 1);
                self.tally.not_sole += 1;
                storage
            }
            TensorError::Borrow(
                BorrowError::Writing { storage } | BorrowError::Reading { storage, .. },
            ) => {
                self.tally.borrowed += 1;
                storage
            }
            other => panic!("{other}"),
        };
        assert_eq!(*named, from.tensor.storage_id());
    }

    fn read(&mut self, from: &Handle) {
        match from.tensor.read::<u32>() {
            Ok(elements) => {
                checked(&elements, &from.places);
                if !from.tensor.is_frozen() {
                    // Nobody writes while somebody reads, here or there. (Another may freeze
                    // meanwhile: that refuses the writer too.)
                    let error = from.tensor.write::<u32>().unwrap_err();
                    self.refused(from, &error);
                }
                self.tally.reads += 1;
            }
            Err(error) => self.refused(from, &error),
        }
    }

    fn write(&mut self, from: &Handle) {
        self.number = (self.number + 1) & 0xff_ffff;
        match from.tensor.write::<u32>() {
            Ok(mut elements) => {
                fill(&mut elements, &from.places, self.number);
                let error = from.tensor.read_bytes().unwrap_err();
                self.refused(from, &error);
                // Whoever else wrote in between would have left its own number.
                let mine = |element: &u32| element >> 8 == self.number;
                assert!(elements.iter().all(mine));
                self.tally.writes += 1;
            }
            Err(error) => self.refused(from, &error),
        }
    }

    fn write_disjoint(&mut self, from: &Handle) {
        if from.tensor.rank() == 0 {
            return;
        }
        let cut = self.dice.below(from.tensor.shape().dim(0) + 1);
        let sizes = [cut, from.tensor.shape().dim(0) - cut];
        let [first, second] = from.tensor.split(0, sizes).unwrap();
        match Tensor::write_disjoint::<u32, 2>([&second, &first]) {
            Ok(mut both) => {
                let [second, first] = both.slices();
                let (left, right) = from.places.split_at(first.len());
                fill(first, left, 1);
                fill(second, right, 2);
                self.tally.disjoint += 1;
            }
            Err(error) => self.refused(from, &error),
        }
    }

    fn alone(&mut self, mut from: Handle) {
        let sole = from.tensor.get_mut::<u32>().map(|elements| {
            fill(elements, &from.places, 3);
        });
        match sole {
            Ok(()) => self.tally.alone += 1,
            Err(error) => self.refused(&from, &error),
        }
        self.handles.push(from);
    }

    fn packed(&mut self, from: &Handle) {
        match from.tensor.contiguous_in(self.slab) {
            Ok(tensor) if tensor.storage_id() == from.tensor.storage_id() => {
                assert!(from.tensor.is_contiguous());
            }
            Ok(mut copy) => {
                checked(copy.get_mut::<u32>().unwrap(), &from.places);
                self.tally.copies += 1;
            }
            Err(error) => self.refused(from, &error),
        }
    }

    fn step(&mut self) {
        if self.handles.is_empty() {
            return self.fresh();
        }
        let which = self.dice.below(self.handles.len());
        let handle = self.handles[which].clone();
        match self.dice.below(32) {
            0 => self.fresh(),
            1..8 => self.some_view(&handle),
            8..14 => self.read(&handle),
            14..18 => self.write(&handle),
            18..20 => self.write_disjoint(&handle),
            20..24 => {
                let taken = self.handles.swap_remove(which);
                drop(handle);
                self.alone(taken);
            }
            24 | 25 => self.packed(&handle),
            26 if self.dice.below(64) == 0 => match handle.tensor.freeze() {
                Ok(()) => assert!(handle.tensor.write::<u32>().is_err()),
                Err(error) => self.refused(&handle, &error),
            },
            27 => {
                let mut post = self.post.lock().unwrap();
                post.push(self.handles.swap_remove(which));
                if post.len() > 4 {
                    let at = self.dice.below(post.len());
                    self.handles.push(post.swap_remove(at));
                }
                self.tally.posted += 1;
            }
            _ => drop(self.handles.swap_remove(which)),
        }
        while self.handles.len() > 24 {
            let which = self.dice.below(self.handles.len());
            self.handles.swap_remove(which);
        }
    }
}

#[test]
fn a_storm_of_operations_on_two_threads_ends_with_every_element_in_its_place() {
    let slab = SharedAllocator::new(SlabAllocator::new(ELEMENTS * 4, 24).unwrap());
    let post = Mutex::new(Vec::new());
    let start = Barrier::new(THREADS);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                let (slab, post, start) = (&slab, &post, &start);
                scope.spawn(move || {
                    let mut storm = Storm {
                        dice: Dice(thread + 1),
                        slab,
                        post,
                        handles: Vec::new(),
                        number: 0,
                        tally: Tally::default(),
                    };
                    start.wait();
                    for _ in 0..STEPS / THREADS {
                        storm.step();
                    }
                    storm.tally
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let left = post.into_inner().unwrap();
    for handle in &left {
        let packed = handle.tensor.contiguous_in(&slab).unwrap();
        checked(&packed.read::<u32>().unwrap(), &handle.places);
    }
    drop(left);
    assert_eq!(slab.outstanding(), 0, "every block is back");
    for Tally {
        views,
        reads,
        writes,
        alone,
        disjoint,
        copies,
        frozen,
        not_sole,
        not_packed,
        borrowed,
        posted,
    } in tallies
    {
        let counts = [
            views, reads, writes, alone, disjoint, copies, frozen, not_sole, not_packed, borrowed,
            posted,
        ];
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }
}
