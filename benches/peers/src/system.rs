//! What the kernel says and does: page faults, resident bytes, cores, load.

use std::mem::MaybeUninit;

/// Bytes of a page here. Memory is touched at this distance.
pub const PAGE_BYTES: usize = 4096;

/// Page faults of the process so far, threads that ended included.
pub fn page_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: a valid `who` and a place for one `rusage`.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(answer, 0, "getrusage of oneself");
    // SAFETY: filled in, for the call said so.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_minflt + usage.ru_majflt).expect("a count")
}

/// Resident bytes of the process, counted exactly (48 us a call).
pub fn resident_bytes() -> i64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux");
    kibibytes(&text, "Rss:") << 10
}

/// Resident bytes once the harness's own heap, which is glibc's, has given back what it can:
/// else glibc would be measured with memory that it had before.
pub fn settled_bytes() -> i64 {
    // SAFETY: no precondition.
    unsafe { libc::malloc_trim(0) };
    resident_bytes()
}

/// Lets [`peak_resident_bytes`] begin again at what is resident now.
pub fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux, and a process of one's own");
}

/// The most that has been resident. The kernel counts it to within some pages a core.
pub fn peak_resident_bytes() -> i64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    kibibytes(&text, "VmHWM:") << 10
}

/// The number in a line `Name: N kB`.
fn kibibytes(text: &str, name: &str) -> i64 {
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or_else(|| panic!("a line `{name} N kB`"))
}

/// The cores that this process may use.
pub fn cores() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: 0 is the calling thread, and the place is as large as said.
    let answer =
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
    assert_eq!(answer, 0, "the affinity of oneself");
    // SAFETY: all zero is an empty set, and the call filled it in.
    let set = unsafe { set.assume_init() };
    let in_set = |&core: &usize| {
        // SAFETY: `core` is below the size of a set.
        unsafe { libc::CPU_ISSET(core, &set) }
    };
    (0..libc::CPU_SETSIZE as usize).filter(in_set).collect()
}

/// Keeps the calling thread on one of the given cores: the `worker`-th, round and round.
/// Threads that it starts inherit that.
pub fn pin(cores: &[usize], worker: usize) {
    let core = cores[worker % cores.len()];
    // SAFETY: all zero is an empty set.
    let mut set = unsafe { MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init() };
    // SAFETY: `core` came out of a set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: 0 is the calling thread, and the set is as large as said.
    let answer =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    assert_eq!(answer, 0, "core {core} was ours a moment ago");
}

/// The processor's name and the load of the last minute.
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("?");
    format!("{model}, {} cores, load {load}", cores().len())
}
