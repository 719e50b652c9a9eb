//! Who may drop what, where and when.

use std::cell::RefCell;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

use tenslab::memory::{Buffer, SharedAllocator, Storage};

use super::probe::Spy;
use super::{BOTTOMS, Stack, name, stacks, wrap, wrappers};

/// Every stack over a watched bottom. The story gets the only handle; afterwards all is
/// back and the bottom is gone.
fn watched(story: impl Fn(SharedAllocator)) {
    for bottom in BOTTOMS {
        for wrappers in wrappers() {
            let (spy, log) = Spy::watching(bottom.under(&wrappers));
            story(SharedAllocator::new(wrap(&wrappers, Arc::new(spy))));
            let what = name(&wrappers, bottom.name);
            assert!(log.taken() > 0, "{what}: nothing was asked for");
            assert_eq!(log.taken(), log.returned(), "{what}");
            assert!(log.is_gone(), "{what}: something is kept");
        }
    }
}

fn some(handle: &SharedAllocator) -> Vec<Buffer> {
    let sizes = [0, 1, 4096, 200_000];
    sizes
        .map(|bytes| handle.allocate(bytes, 64).unwrap())
        .into()
}

#[test]
fn buffers_outlive_every_handle() {
    watched(|handle| {
        let mut buffers = some(&handle);
        let storage = Storage::from(handle.allocate(100, 64).unwrap());
        drop(handle);
        for buffer in &mut buffers {
            buffer.as_mut_slice().fill(1);
        }
        drop(buffers);
        assert_eq!(storage.len(), 100);
    });
}

/// Lessons row 16.
#[test]
fn two_buffers_of_nothing_are_two() {
    watched(|handle| {
        for _ in 0..2 {
            let both = [handle.allocate(0, 64), handle.allocate(0, 64)].map(Result::unwrap);
            assert_eq!(handle.outstanding(), 2);
            drop(both);
            assert_eq!(handle.outstanding(), 0);
            let stats = handle.stats();
            assert_eq!((stats.requested_bytes, stats.live_bytes), (0, 0));
        }
    });
}

/// Lessons row 46: the numbers are those of who served the buffer, until it is back.
#[test]
fn the_numbers_follow_a_buffer_to_the_stack_it_came_from() {
    for bottom in BOTTOMS {
        for wrappers in wrappers() {
            let [one, other] =
                [(); 2].map(|()| SharedAllocator::new(wrap(&wrappers, bottom.under(&wrappers))));
            let before = other.stats();
            let buffers = some(&one);
            let counted = one.stats();
            assert_eq!(other.stats(), before);
            let mut holder = one.clone();
            assert_eq!(holder.stats(), counted);
            holder = other.clone();
            drop(buffers);
            assert_eq!(holder.stats(), before);
            assert_eq!(
                (one.stats().live_bytes, one.stats().requested_bytes),
                (0, 0)
            );
        }
    }
}

/// On a thread that never allocated, with the last handle gone.
#[test]
fn another_thread_may_drop_the_last_of_it() {
    watched(|handle| {
        let buffers = some(&handle);
        drop(handle);
        std::thread::spawn(move || drop(buffers)).join().unwrap();
    });
    watched(|handle| {
        let buffers = some(&handle);
        std::thread::spawn(move || drop(handle)).join().unwrap();
        drop(buffers);
    });
}

#[test]
fn a_thread_that_ends_may_drop_it_in_a_destructor() {
    struct Late(SharedAllocator, Vec<Buffer>);
    impl Drop for Late {
        fn drop(&mut self) {
            // A thread on its way out may still allocate.
            self.1.extend(some(&self.0));
        }
    }
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    watched(|handle| {
        let thread = std::thread::spawn(move || {
            let buffers = some(&handle);
            LATE.with(|late| *late.borrow_mut() = Some(Late(handle, buffers)));
        });
        thread.join().unwrap();
    });
}

/// Names the part that a child process has to play.
const PART: &str = "TENSLAB_CONFORMANCE_PART";

/// Runs the test `name` of this binary in a child that plays `part`.
fn child(name: &str, part: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .output()
        .unwrap()
}

/// A static is never dropped: what it holds is simply there when the process ends, while
/// other threads still allocate. The child has to end well.
#[test]
fn a_static_may_hold_it_when_the_process_ends() {
    type Held = Vec<(Stack, Vec<Buffer>)>;
    static HELD: OnceLock<Mutex<Held>> = OnceLock::new();
    if std::env::var_os(PART).is_none() {
        let output = child(
            "lifetimes::a_static_may_hold_it_when_the_process_ends",
            "exit",
        );
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{errors}");
        return;
    }
    let held: Held = stacks()
        .map(|stack| {
            let buffers = some(&stack.allocator);
            (stack, buffers)
        })
        .collect();
    let handles: Vec<_> = held
        .iter()
        .map(|(stack, _)| stack.allocator.clone())
        .collect();
    assert!(HELD.set(Mutex::new(held)).is_ok());
    let (started, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        loop {
            for handle in &handles {
                drop(some(handle));
            }
            let _ = started.send(());
        }
    });
    wait.recv().unwrap();
    std::process::exit(7);
}

/// Lessons row 49, and the contract in `memory`: in a forked child one may go on with a
/// stack that no other thread was in when it forked, and with stacks without a lock.
#[cfg(all(unix, not(tenslab_asan)))]
mod fork {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tenslab::memory::{CpuAllocator, SharedAllocator};

    use super::super::stacks;
    use super::some;

    // What the standard library links anyway.
    unsafe extern "C" {
        safe fn alarm(seconds: u32) -> u32;
        fn fork() -> i32;
        safe fn _exit(code: i32) -> !;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    }

    /// Runs `work` in a forked child. Returns how that ended: 0 is well, 14 (SIGALRM)
    /// says that it waited for ever.
    fn forked(work: impl FnOnce()) -> i32 {
        // SAFETY: the child does `work`, which takes no lock that another thread may hold
        // (or the test fails), and exits without running anybody's destructors.
        let pid = unsafe { fork() };
        assert!(pid >= 0, "cannot fork");
        if pid == 0 {
            alarm(60);
            work();
            _exit(0);
        }
        let mut status = -1;
        // SAFETY: our own child, and a place for its status.
        let waited = unsafe { waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        status
    }

    #[test]
    fn a_forked_child_allocates_once_and_exits() {
        for stack in stacks() {
            let mut held = some(&stack.allocator);
            held[2].as_mut_slice().fill(1);
            let status = forked(|| {
                held[2].as_mut_slice().fill(2);
                drop(some(&stack.allocator));
            });
            assert_eq!(status, 0, "{}", stack.name);
            let mine = held[2].as_slice().iter().all(|&byte| byte == 1);
            assert!(mine, "{}: the child wrote into the parent", stack.name);
        }
    }

    #[test]
    fn without_a_lock_also_while_another_thread_allocates() {
        let handle = SharedAllocator::new(SharedAllocator::new(CpuAllocator::new()));
        let done = Arc::new(AtomicBool::new(false));
        let other = std::thread::spawn({
            let (handle, done) = (handle.clone(), Arc::clone(&done));
            move || {
                while !done.load(Ordering::Relaxed) {
                    drop(some(&handle));
                }
            }
        });
        for _ in 0..200 {
            assert_eq!(forked(|| drop(some(&handle))), 0);
        }
        done.store(true, Ordering::Relaxed);
        other.join().unwrap();
        assert_eq!(handle.outstanding(), 0);
    }
}
