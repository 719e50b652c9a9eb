use std::sync::Barrier;
use std::thread;

use tenslab::kv::{KvCache, KvError, KvSpec, Layout};
use tenslab::{DType, bf16, memory};

use super::{DIMS, acquire, append, assert_holds, limits, salts, small_cache};

/// Sequences of two threads grow, are verified and die over one region, so that blocks
/// go from one thread to the other all the time.
#[test]
fn sequences_of_two_threads_never_see_each_other() {
    for layout in Layout::ALL {
        let spec = KvSpec::new(DIMS, DType::BF16)
            .unwrap()
            .with_layout(layout)
            .unwrap();
        let cache = KvCache::new(spec, limits(12, 4, 6), memory::cpu()).unwrap();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            for thread in 0..2_u64 {
                let (cache, start) = (&cache, &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..200 {
                        let first = (thread * 1000 + round) * 100;
                        let mut sequence = acquire(cache, 1 + (round % 7) as usize).unwrap();
                        let mut len = 0;
                        for tokens in [3, 1, 1, 6, 2, 9] {
                            append::<bf16>(&mut sequence, &salts(first + len as u64, tokens))
                                .unwrap();
                            len += tokens;
                            assert_holds::<bf16>(&sequence, &salts(first, len));
                        }
                        if round % 3 == 0 {
                            drop(sequence.append(&[0; 2]).unwrap());
                            assert_holds::<bf16>(&sequence, &salts(first, len));
                        }
                    }
                });
            }
        });
        cache.check().unwrap();
        assert_eq!(cache.stats().blocks_used, 0);
        assert_eq!(cache.stats().blocks_idle + cache.stats().blocks_free, 12);
    }
}

/// lessons/kv.md scenario 27: eight threads each want all 16 blocks; all or nothing
/// means that a loser never saw, and never took, a part of them.
#[test]
fn nobody_gets_a_part_under_contention() {
    let cache = small_cache(16, 8);
    let start = Barrier::new(8);
    let won: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let mut won = 0;
                    for _ in 0..500 {
                        match acquire(&cache, 64) {
                            Ok(sequence) => {
                                assert_eq!(sequence.block_ids().count(), 16);
                                won += 1;
                            }
                            Err(error) => assert_eq!(
                                error,
                                KvError::OutOfBlocks {
                                    need: 16,
                                    free: 0,
                                    evictable: 0,
                                    total: 16
                                }
                            ),
                        }
                    }
                    won
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert!(won >= 1);
    cache.check().unwrap();
    assert_eq!(cache.stats().blocks_free, 16);
}

/// A sequence may live on another thread than the one that made it, and the heads of one
/// step may be read by several threads.
#[test]
fn a_step_is_read_by_several_threads() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    append::<f32>(&mut sequence, &salts(0, 5)).unwrap();
    let mut sequence = thread::spawn(move || {
        append::<f32>(&mut sequence, &salts(5, 3)).unwrap();
        sequence
    })
    .join()
    .unwrap();

    let mut step = sequence.append(&[0; 2]).unwrap();
    for layer in 0..3 {
        step.layer_mut(layer)
            .unwrap()
            .write(&[1.5_f32; 20], &[2.5; 12])
            .unwrap();
    }
    let step = &step;
    thread::scope(|scope| {
        for head in 0..2 {
            scope.spawn(move || {
                for layer in 0..3 {
                    assert_eq!(step.keys_head::<f32>(layer, 2, head).unwrap(), [1.5; 10]);
                    assert_eq!(step.values_head::<f32>(layer, 2, head).unwrap(), [2.5; 6]);
                }
            });
        }
    });
}
