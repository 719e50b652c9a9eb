//! Copies and casts beside memcpy, ndarray's `assign` and candle's `contiguous`.
//!
//! ```text
//!   cell       what is copied, how many bytes, how many threads
//!   round      every contender once around: 3 ms of operations each
//!   row        min and median of the rounds, and how many times faster than it ours is
//! ```
//!
//! All of a cell's contenders take turns, so a machine that slows down slows all of them:
//! **compare within a cell only.** Every contender's result is checked against ours once.
//!
//! `ours` copies into a tensor that is there, as ndarray does. `ours, new` takes a new one
//! from a slab that was used before, as candle takes one from malloc (above some size
//! that is fresh pages, which cost candle more than the copy). A cast always takes a new one;
//! its memcpy moves as many bytes as the cast reads and writes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Parser;
use ndarray::{ArrayD, IxDyn};
use tenslab::{DType, Element, SharedAllocator, SlabAllocator, Tensor, memory, ops};

/// Copies and casts beside what a reader would use otherwise.
#[derive(Parser, Debug)]
struct Options {
    /// Only cells whose name has this in it.
    #[arg(long, default_value = "")]
    filter: String,
    /// KiB of the source, a list.
    #[arg(long, value_delimiter = ',', default_value = "256,262144")]
    kib: Vec<usize>,
    /// Threads of the rayon pool, a list.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Rounds for each cell.
    #[arg(long, default_value_t = 25)]
    rounds: usize,
}

/// One who competes.
struct Contender<'a> {
    name: &'static str,
    operate: Box<dyn FnMut() + Send + 'a>,
}

fn contender<'a>(name: &'static str, operate: impl FnMut() + Send + 'a) -> Contender<'a> {
    Contender {
        name,
        operate: Box::new(operate),
    }
}

/// Takes turns and prints a row for each. The first contender is ours.
fn race(cell: &str, rounds: usize, contenders: &mut [Contender<'_>]) {
    let slice = Duration::from_millis(3);
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    let all = contenders.len();
    for round in 0..=rounds {
        // Another one begins each round: whoever comes after one that leaves many lines to be
        // written back pays for it.
        for turn in 0..all {
            let at = (round + turn) % all;
            let (contender, times) = (&mut contenders[at], &mut times[at]);
            let began = Instant::now();
            let mut operations = 0_u32;
            while operations == 0 || began.elapsed() < slice {
                (contender.operate)();
                operations += 1;
            }
            // The first round warms up.
            if round > 0 {
                times.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(operations));
            }
        }
    }
    let figures: Vec<(f64, f64)> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            (times[0], times[times.len() / 2])
        })
        .collect();
    let ours = figures[0];
    for (contender, (min, median)) in contenders.iter().zip(&figures) {
        println!(
            "{cell:<34} {:<18} {min:>11.1} {median:>11.1}   x{:>5.2} x{:>5.2}",
            contender.name,
            min / ours.0,
            median / ours.1
        );
    }
}

/// A layout to copy from: how the source is made of a packed tensor of some bytes.
struct Layout {
    name: &'static str,
    dtype: DType,
    /// Sizes of the packed tensor, of so many elements.
    dims: fn(usize) -> Vec<usize>,
    view: View,
}

enum View {
    Whole,
    Permuted(&'static [usize]),
    /// This part of the last dimension: from, to, of so many.
    Cut(usize, usize, usize),
}

fn square(elements: usize) -> Vec<usize> {
    let side = elements.isqrt();
    vec![side, side]
}

fn heads(elements: usize) -> Vec<usize> {
    vec![elements / (16 * 64), 16, 64]
}

const LAYOUTS: [Layout; 9] = [
    Layout {
        name: "contiguous f32",
        dtype: DType::F32,
        dims: square,
        view: View::Whole,
    },
    Layout {
        name: "transposed f32",
        dtype: DType::F32,
        dims: square,
        view: View::Permuted(&[1, 0]),
    },
    Layout {
        name: "transposed u16",
        dtype: DType::U16,
        dims: square,
        view: View::Permuted(&[1, 0]),
    },
    Layout {
        name: "transposed u8",
        dtype: DType::U8,
        dims: square,
        view: View::Permuted(&[1, 0]),
    },
    Layout {
        name: "transposed f64",
        dtype: DType::F64,
        dims: square,
        view: View::Permuted(&[1, 0]),
    },
    Layout {
        name: "heads apart f32",
        dtype: DType::F32,
        dims: heads,
        view: View::Permuted(&[1, 0, 2]),
    },
    Layout {
        name: "keys turned f32",
        dtype: DType::F32,
        dims: heads,
        view: View::Permuted(&[1, 2, 0]),
    },
    Layout {
        name: "middle half f32",
        dtype: DType::F32,
        dims: square,
        view: View::Cut(1, 3, 4),
    },
    Layout {
        name: "pairs of four f32",
        dtype: DType::F32,
        dims: |elements| vec![elements / 4, 4],
        view: View::Cut(1, 3, 4),
    },
];

/// As many blocks of a size as are needed at once, each used before.
fn warm(bytes: usize) -> SharedAllocator {
    let slab = SlabAllocator::new(bytes.next_multiple_of(64), 2).expect("a slab");
    let allocator = SharedAllocator::new(slab);
    let touch = |_| {
        let tensor = Tensor::empty([bytes], DType::U8, &allocator).expect("a block");
        tensor.write::<u8>().expect("nobody else").fill(1);
        tensor
    };
    drop([0, 1].map(touch));
    allocator
}

fn copies<T: Element + PartialEq + candle::Maybe>(
    layout: &Layout,
    cell: &str,
    bytes: usize,
    rounds: usize,
) {
    let dims = (layout.dims)(bytes / size_of::<T>());
    let rank = dims.len();
    let shape = tenslab::Shape::from_dims(&dims).expect("a shape");
    let whole = ops::full(shape, 0, layout.dtype, memory::cpu()).expect("a tensor");
    for (at, element) in whole
        .write_bytes()
        .expect("nobody else")
        .iter_mut()
        .enumerate()
    {
        *element = u8::try_from(at % 113).unwrap_or(0);
    }
    let elements: Vec<T> = whole.read::<T>().expect("packed").to_vec();
    let theirs = ArrayD::from_shape_vec(IxDyn(&dims), elements).expect("as many elements");
    let (src, their_src) = match layout.view {
        View::Whole => (whole.clone(), theirs.view()),
        View::Permuted(order) => (
            whole.permute(order).expect("an order"),
            theirs.view().permuted_axes(IxDyn(order)),
        ),
        View::Cut(from, to, of) => {
            let size = dims[rank - 1];
            let (from, to) = (size * from / of, size * to / of);
            let mut view = theirs.view();
            view.slice_axis_inplace(ndarray::Axis(rank - 1), (from..to).into());
            (whole.slice(rank - 1, from, to).expect("a range"), view)
        }
    };
    let dst = Tensor::zeros(*src.shape(), layout.dtype, memory::cpu()).expect("a tensor");
    let mut their_dst = their_src.to_owned().as_standard_layout().into_owned();
    ops::copy(&dst, &src).expect("a copy");
    assert_eq!(
        &*dst.read::<T>().expect("packed"),
        their_dst.as_slice().expect("packed")
    );
    let allocator = warm(src.nbytes());
    let (from, mut to) = (vec![1_u8; src.nbytes()], vec![1_u8; src.nbytes()]);
    let mut contenders = vec![
        contender("ours", || ops::copy(&dst, &src).expect("a copy")),
        contender("ours, new", || {
            drop(black_box(src.contiguous_in(&allocator).expect("a copy")));
        }),
        contender("memcpy", || {
            black_box(&mut to).copy_from_slice(black_box(&from))
        }),
        contender("ndarray assign", || their_dst.assign(black_box(&their_src))),
    ];
    if let View::Whole = layout.view {
        // Where two buffers lie decides as much as who copies: so memcpy, there.
        contenders.push(contender("memcpy, there", || {
            let from = src.read::<T>().expect("packed");
            (dst.write::<T>().expect("nobody else")).copy_from_slice(&from);
        }));
    }
    if let Some(operate) = T::contiguous(&whole, &layout.view, &dst) {
        contenders.push(Contender {
            name: "candle contiguous",
            operate,
        });
    }
    race(cell, rounds, &mut contenders);
}

/// candle, where it was built in.
mod candle {
    use super::View;
    use tenslab::Tensor;

    /// A dtype that candle may have.
    pub(super) trait Maybe {
        fn contiguous(
            whole: &Tensor,
            view: &View,
            result: &Tensor,
        ) -> Option<Box<dyn FnMut() + Send>>;
    }

    /// The dtypes for which candle is not asked.
    macro_rules! not_asked {
        ($($T:ty),*) => { $(
            impl Maybe for $T {
                fn contiguous(_: &Tensor, _: &View, _: &Tensor) -> Option<Box<dyn FnMut() + Send>> {
                    None
                }
            }
        )* };
    }
    not_asked!(u8, u16, f64);

    impl Maybe for f32 {
        #[cfg(not(feature = "candle"))]
        fn contiguous(_: &Tensor, _: &View, _: &Tensor) -> Option<Box<dyn FnMut() + Send>> {
            None
        }

        #[cfg(feature = "candle")]
        fn contiguous(
            whole: &Tensor,
            view: &View,
            result: &Tensor,
        ) -> Option<Box<dyn FnMut() + Send>> {
            use candle_core::{D, Device};
            let elements = whole.read::<f32>().expect("packed").to_vec();
            let theirs =
                candle_core::Tensor::from_vec(elements, whole.shape().dims(), &Device::Cpu)
                    .expect("a tensor");
            let src = match *view {
                // `contiguous` would do nothing.
                View::Whole => return None,
                View::Permuted(order) => theirs.permute(order),
                View::Cut(from, to, of) => {
                    let size = whole.shape().dims()[whole.rank() - 1];
                    theirs.narrow(D::Minus1, size * from / of, size * (to - from) / of)
                }
            }
            .expect("a view");
            let flat = src
                .contiguous()
                .and_then(|t| t.flatten_all())
                .expect("a copy");
            assert_eq!(
                flat.to_vec1::<f32>().expect("f32"),
                *result.read::<f32>().expect("packed")
            );
            Some(Box::new(move || {
                drop(std::hint::black_box(src.contiguous().expect("a copy")));
            }))
        }
    }
}

fn casts(from: DType, to: DType, cell: &str, bytes: usize, rounds: usize) {
    let elements = bytes / from.bytes();
    let src = Tensor::empty([elements], from, memory::cpu()).expect("a tensor");
    ops::fill_uniform(&src, -100.0, 100.0, 1).expect("floats");
    let allocator = warm(elements * to.bytes());
    let moved = elements * (from.bytes() + to.bytes()) / 2;
    let (read, mut written) = (vec![1_u8; moved], vec![1_u8; moved]);
    let mut contenders = vec![
        contender("ours", || {
            drop(black_box(ops::cast(&src, to, &allocator).expect("a cast")))
        }),
        contender("memcpy", || {
            black_box(&mut written).copy_from_slice(black_box(&read))
        }),
    ];
    race(cell, rounds, &mut contenders);
    let back = ops::cast(&src, to, memory::cpu()).expect("a cast");
    assert_eq!(back.numel(), elements);
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default()
}

fn main() {
    let options = Options::parse();
    println!("load {}", load().trim());
    println!(
        "{:<34} {:<18} {:>11} {:>11}   ours is faster by",
        "cell", "contender", "min us", "median us"
    );
    for &kib in &options.kib {
        for &threads in &options.threads {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .expect("a pool");
            let wanted = |cell: &str| cell.contains(&options.filter);
            for layout in &LAYOUTS {
                let cell = format!("copy {}/{kib}KiB/{threads}", layout.name);
                if wanted(&cell) {
                    pool.install(|| match layout.dtype {
                        DType::U8 => copies::<u8>(layout, &cell, kib << 10, options.rounds),
                        DType::U16 => copies::<u16>(layout, &cell, kib << 10, options.rounds),
                        DType::F64 => copies::<f64>(layout, &cell, kib << 10, options.rounds),
                        _ => copies::<f32>(layout, &cell, kib << 10, options.rounds),
                    });
                }
            }
            for (from, to) in [
                (DType::F32, DType::BF16),
                (DType::BF16, DType::F32),
                (DType::F32, DType::F16),
                (DType::F16, DType::F32),
            ] {
                let cell = format!("cast {from} {to}/{kib}KiB/{threads}");
                if wanted(&cell) {
                    pool.install(|| casts(from, to, &cell, kib << 10, options.rounds));
                }
            }
        }
    }
    println!("load {}", load().trim());
}
