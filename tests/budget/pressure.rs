use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tenslab::memory::{
    AllocError, Budget, Buffer, Charge, CpuAllocator, Fault, FaultPlan, Limit, PressureGuard,
    SharedAllocator, Shortage, SlabAllocator,
};

use crate::probe::Dice;

fn count(counter: &Arc<AtomicUsize>) -> Arc<AtomicUsize> {
    Arc::clone(counter)
}

/// A callback that only counts and answers `answer`.
fn counting(limit: &Limit, answer: usize) -> (PressureGuard, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let guard = limit.on_pressure({
        let calls = count(&calls);
        move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            answer
        }
    });
    (guard, calls)
}

fn calls(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}

/// Held charges that a callback gives back one by one.
fn cache(limit: &Limit, charges: usize, bytes: usize) -> Arc<Mutex<Vec<Charge>>> {
    let held = (0..charges).map(|_| limit.charge(bytes).unwrap()).collect();
    Arc::new(Mutex::new(held))
}

#[test]
fn who_is_asked_learns_what_is_missing_and_the_request_succeeds() {
    let limit = Limit::new(100);
    let held = cache(&limit, 9, 10);
    let told = Arc::new(Mutex::new(Vec::new()));
    let _guard = limit.on_pressure({
        let (held, told) = (Arc::clone(&held), Arc::clone(&told));
        move |short: Shortage| {
            told.lock().unwrap().push(short);
            held.lock()
                .unwrap()
                .pop()
                .map_or(0, |charge| charge.bytes())
        }
    });
    let charge = limit.charge(35).unwrap();
    let told = told.lock().unwrap();
    let missing: Vec<usize> = told.iter().map(|short| short.missing_bytes).collect();
    assert_eq!(missing, [25, 15, 5]);
    assert_eq!((told[0].requested_bytes, told[0].live_bytes), (35, 90));
    assert_eq!(told[0].limit_bytes, 100);
    assert_eq!(limit.used_bytes(), 60 + 35);
    drop(charge);
}

/// Lessons row 23: what pressure gave back is in the error.
#[test]
fn a_refusal_after_pressure_says_what_it_gave_back() {
    let limit = Limit::new(100);
    let held = cache(&limit, 2, 10);
    let _rest = limit.charge(80).unwrap();
    let _guard = limit.on_pressure({
        let held = Arc::clone(&held);
        move |_| {
            held.lock()
                .unwrap()
                .pop()
                .map_or(0, |charge| charge.bytes())
        }
    });
    let error = limit.charge(50).unwrap_err();
    assert_eq!(
        error.to_string(),
        "50 bytes do not fit the budget: 80 of 100 are in use, and 20 were given back on demand"
    );
}

#[test]
fn the_oldest_is_asked_first_and_who_is_gone_is_not_asked() {
    let limit = Limit::new(10);
    let order = Arc::new(Mutex::new(Vec::new()));
    let register = |name: &'static str| {
        let order = Arc::clone(&order);
        limit.on_pressure(move |_| {
            order.lock().unwrap().push(name);
            0
        })
    };
    let (first, second, _third) = (register("first"), register("second"), register("third"));
    let _all = limit.charge(10).unwrap();
    assert!(limit.charge(1).is_err());
    drop(second);
    assert!(limit.charge(1).is_err());
    drop(first);
    assert!(limit.charge(1).is_err());
    let order = order.lock().unwrap();
    assert_eq!(
        *order,
        ["first", "second", "third", "first", "third", "third"]
    );
}

#[test]
fn nobody_is_asked_for_what_never_fits() {
    let limit = Limit::new(10);
    let (_guard, asked) = counting(&limit, 1);
    assert!(limit.charge(11).is_err());
    assert_eq!(calls(&asked), 0);
}

#[test]
fn a_callback_that_promises_and_gives_nothing_is_asked_four_times() {
    for (answer, expected) in [(0, 1), (1, 4), (usize::MAX, 4)] {
        let limit = Limit::new(10);
        let _all = limit.charge(10).unwrap();
        let (_guard, asked) = counting(&limit, answer);
        assert!(limit.charge(1).is_err());
        assert_eq!(calls(&asked), expected);
    }
}

/// Lessons row 25.
#[test]
fn an_upstream_that_always_fails_is_asked_a_few_times_and_no_more() {
    let always = || Fault::new(CpuAllocator::new(), FaultPlan::Calls(0..u64::MAX));
    for answer in [0, 1, usize::MAX] {
        for callbacks in [0, 1, 20] {
            let (outer, inner) = (Limit::unlimited(), Limit::unlimited());
            let guards: Vec<_> = (0..callbacks)
                .flat_map(|_| [counting(&outer, answer), counting(&inner, answer)])
                .collect();
            let fault = Arc::new(always());
            let stack = Budget::new(Budget::new(Arc::clone(&fault), &inner), &outer);
            let handle = SharedAllocator::new(stack);
            let error = handle.allocate(1024, 64).unwrap_err();
            assert_eq!(error, handle.allocate(1024, 64).unwrap_err());
            assert!(matches!(error, AllocError::OutOfMemory { .. }));
            assert!(fault.calls() < 2 * 10, "{} calls", fault.calls());
            if callbacks == 0 || answer == 0 {
                assert_eq!(fault.calls(), 2, "nothing changed: no reason to ask again");
            }
            assert_eq!((outer.used_bytes(), inner.used_bytes()), (0, 0));
            drop(guards);
        }
    }
}

/// The upstream is short, not the limit: callbacks are asked all the same.
#[test]
fn an_upstream_that_is_short_is_asked_again_when_something_came_back() {
    let limit = Limit::unlimited();
    let slab = SlabAllocator::new(64, 3).unwrap();
    let handle = SharedAllocator::new(Budget::new(slab, &limit));
    let cached: Arc<Mutex<Vec<Buffer>>> = Arc::default();
    let _guard = limit.on_pressure({
        let cached = Arc::clone(&cached);
        move |short| {
            assert_eq!(short.missing_bytes, 50);
            let dropped = cached.lock().unwrap().pop();
            dropped.map_or(0, |buffer| buffer.len())
        }
    });
    for _ in 0..3 {
        let buffer = handle.allocate(64, 64).unwrap();
        cached.lock().unwrap().push(buffer);
    }
    let out: Vec<_> = (0..3).map(|_| handle.allocate(50, 1).unwrap()).collect();
    assert!(cached.lock().unwrap().is_empty());
    let error = handle.allocate(50, 1).unwrap_err();
    assert_eq!(error.to_string(), "all 3 blocks of the slab are in use");
    drop(out);
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn a_callback_may_register_forget_and_charge_without_end() {
    let limit = Limit::new(10);
    let grown: Arc<Mutex<Vec<PressureGuard>>> = Arc::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let first = limit.on_pressure({
        let (limit, grown, asked) = (limit.clone(), Arc::clone(&grown), count(&asked));
        move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            // What does not fit is refused, and nobody is called for it again.
            assert!(limit.charge(5).is_err());
            assert_eq!(limit.shed(), 0);
            let another = limit.on_pressure(|_| 1);
            grown.lock().unwrap().push(another);
            1
        }
    });
    let all = limit.charge(10).unwrap();
    assert!(limit.charge(1).is_err());
    assert_eq!(calls(&asked), 4);
    drop((all, first));
    grown.lock().unwrap().clear();
    drop(limit.charge(10).unwrap());
}

#[test]
fn a_callback_may_drop_its_own_guard() {
    let limit = Limit::new(10);
    let own: Arc<Mutex<Option<PressureGuard>>> = Arc::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let guard = limit.on_pressure({
        let (own, asked) = (Arc::clone(&own), count(&asked));
        move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            let guard = own.lock().unwrap().take();
            drop(guard);
            1
        }
    });
    *own.lock().unwrap() = Some(guard);
    let _all = limit.charge(10).unwrap();
    assert!(limit.charge(1).is_err() && limit.charge(1).is_err());
    assert_eq!(calls(&asked), 1);
}

#[test]
fn a_callback_that_panics_leaves_nothing_behind() {
    let limit = Limit::new(4096 + 10);
    let slab = SlabAllocator::new(4096, 4).unwrap();
    let handle = SharedAllocator::new(Budget::new(slab, &limit));
    let angry = Arc::new(AtomicBool::new(true));
    let _guard = limit.on_pressure({
        let angry = Arc::clone(&angry);
        move |_| {
            assert!(!angry.load(Ordering::Relaxed), "not today");
            0
        }
    });
    let held = handle.allocate(4096, 64).unwrap();
    // At the charge for what was asked, and at the one for the rest of the block.
    for bytes in [11, 10] {
        let found = catch_unwind(AssertUnwindSafe(|| handle.allocate(bytes, 1)));
        assert!(found.is_err(), "the panic is the callback's own");
        assert_eq!((limit.used_bytes(), handle.outstanding()), (4096, 1));
        assert_eq!(handle.stats().live_bytes, 4096);
    }
    // This thread is in no callback any more, so it is asked again.
    angry.store(false, Ordering::Relaxed);
    assert!(handle.allocate(11, 1).is_err());
    drop(held);
    assert!(handle.allocate(10, 1).is_ok());
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn a_lower_limit_is_shed_by_who_can() {
    let limit = Limit::new(100);
    let held = cache(&limit, 10, 10);
    let _guard = limit.on_pressure({
        let held = Arc::clone(&held);
        move |_| {
            held.lock()
                .unwrap()
                .pop()
                .map_or(0, |charge| charge.bytes())
        }
    });
    limit.set_limit_bytes(75);
    assert_eq!((limit.shed(), limit.used_bytes()), (0, 70));
    limit.set_limit_bytes(0);
    assert_eq!(limit.shed(), 30, "four rounds, a charge each");
    assert_eq!((limit.shed(), limit.used_bytes()), (0, 0));
}

/// Ends the process when `progress` stands still, so that a deadlock is a failure.
fn watchdog(progress: &Arc<AtomicUsize>, done: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let (progress, done) = (count(progress), Arc::clone(done));
    thread::spawn(move || {
        let (mut last, mut looks) = (usize::MAX, 0);
        while !done.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(20));
            let now = calls(&progress);
            looks = if now == last { looks + 1 } else { 0 };
            last = now;
            if looks == 3000 {
                eprintln!("no step in 3000 looks: a deadlock after {now}");
                std::process::abort();
            }
        }
    })
}

/// Lessons row 8: two threads are short over and over; the callback empties a cache of
/// buffers, allocates from the same stack and gives back.
#[test]
fn two_threads_under_pressure_that_allocates_come_to_an_end() {
    const STEPS: usize = 3000;
    let limit = Limit::new(64 << 10);
    let slab = SlabAllocator::new(1 << 10, 64).unwrap();
    let handle = SharedAllocator::new(Budget::new(slab, &limit));
    let cached: Arc<Mutex<Vec<Buffer>>> = Arc::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let guard = limit.on_pressure({
        // Holds a handle, so the guard goes first.
        let (handle, cached, asked) = (handle.clone(), Arc::clone(&cached), count(&asked));
        move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            let dropped = std::mem::take(&mut *cached.lock().unwrap());
            let given_back = dropped.len() << 10;
            drop(dropped);
            drop(handle.allocate(1 << 10, 64));
            given_back
        }
    });
    let (progress, done) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let dog = watchdog(&progress, &done);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (handle, cached, progress) = (handle.clone(), Arc::clone(&cached), &progress);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut mine: Vec<Buffer> = Vec::new();
                for _ in 0..STEPS {
                    if let Ok(buffer) = handle.allocate(1 << 10, 64) {
                        mine.push(buffer);
                    }
                    if mine.len() > 8 {
                        let buffer = mine.swap_remove(dice.below(mine.len()));
                        cached.lock().unwrap().push(buffer);
                    }
                    progress.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.store(true, Ordering::SeqCst);
    dog.join().unwrap();
    assert_eq!(calls(&progress), 2 * STEPS);
    assert!(calls(&asked) > 0, "it was never short");
    drop(guard);
    cached.lock().unwrap().clear();
    assert_eq!((limit.used_bytes(), handle.outstanding()), (0, 0));
    assert!(limit.peak_bytes() <= 64 << 10);
}

#[test]
fn a_thread_that_ends_may_be_short_in_its_destructors() {
    struct Late(Limit, Arc<AtomicUsize>);
    impl Drop for Late {
        fn drop(&mut self) {
            if self.0.charge(1).is_err() {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let limit = Limit::new(10);
    let _all = limit.charge(10).unwrap();
    let (_guard, asked) = counting(&limit, 0);
    let refused = Arc::new(AtomicUsize::new(0));
    thread::spawn({
        let late = Late(limit.clone(), count(&refused));
        move || LATE.with(|cell| *cell.borrow_mut() = Some(late))
    })
    .join()
    .unwrap();
    assert_eq!((calls(&refused), calls(&asked)), (1, 1));
}
