//! Writing where the system is in the way: full disks, limits, permissions, kills, links.
//! What was at the path is there afterwards, unchanged, and nothing beside it.
//!
//! What needs a process of its own is a child: this binary again, with the name of the test
//! and a directory in the environment.

#![cfg(all(target_os = "linux", not(loom)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a child talks to its parent")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tenslab::weights::{
    Checkpoint, SaveEntry, SaveOptions, SaveProgress, SaveReport, WeightsError, save_with,
};
use tenslab::{DType, Tensor, memory};

const OLD: &str = "what was there";

/// 400,000 bytes and a header.
fn tensor() -> Tensor {
    Tensor::zeros([100_000], DType::F32, memory::cpu()).unwrap()
}

fn write_with(
    path: &Path,
    progress: &mut dyn FnMut(SaveProgress) -> ControlFlow<()>,
) -> Result<SaveReport, WeightsError> {
    let x = tensor();
    let entries = [SaveEntry::tensor("x", &x)];
    save_with(path, &entries, &SaveOptions::default(), progress)
}

fn write(path: &Path) -> Result<SaveReport, WeightsError> {
    write_with(path, &mut |_| ControlFlow::Continue(()))
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

/// The old file and nothing else.
fn assert_untouched(directory: &Path) {
    assert_eq!(files(directory), ["model.safetensors"]);
    let text = fs::read_to_string(directory.join("model.safetensors")).unwrap();
    assert_eq!(text, OLD);
}

fn with_an_old_file() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    fs::write(&path, OLD).unwrap();
    (place, path)
}

const CHILD: &str = "TENSLAB_WRITER_CHILD";

/// The directory that this process is to work in, if it is the child of that test.
fn told(test: &str) -> Option<PathBuf> {
    let told = std::env::var(CHILD).ok()?;
    let (wanted, directory) = told.split_once(' ')?;
    (wanted == test).then(|| directory.into())
}

/// `program` with these arguments, and behind them the child of a test.
fn child(test: &str, directory: &Path, program: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{test} {}", directory.display()));
    command
}

/// What a child printed behind `word`.
fn said<'a>(output: &'a Output, text: &'a str, word: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.split_once(word));
    let errors = String::from_utf8_lossy(&output.stderr);
    line.unwrap_or_else(|| panic!("{}: {text}{errors}", output.status))
        .1
}

/// A shell that mounts a small file system over its first argument and runs the rest. The
/// mount is in a namespace of its own, so it goes when the shell goes.
const SMALL_DISK: &str = "mount -t tmpfs -o size=64k full \"$1\" || exit 77; shift; exec \"$@\"";

#[test]
fn a_full_disk_is_an_error_with_numbers_and_nothing_is_left() {
    let test = "a_full_disk_is_an_error_with_numbers_and_nothing_is_left";
    if let Some(directory) = told(test) {
        let path = directory.join("model.safetensors");
        fs::write(&path, OLD).unwrap();
        let mut calls = 0;
        let error = write_with(&path, &mut |_| {
            calls += 1;
            ControlFlow::Continue(())
        });
        let error = error.unwrap_err();
        assert_untouched(&directory);
        println!("FULL {calls} {error}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mount = place.path().to_str().unwrap();
    let unshare = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        SMALL_DISK,
        "sh",
        mount,
    ];
    let output = match child(test, place.path(), &unshare).output() {
        Ok(output) if !matches!(output.status.code(), Some(1 | 77)) => output,
        other => {
            eprintln!("skipped: no namespace with a small tmpfs can be had here: {other:?}");
            return;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let (calls, message) = said(&output, &text, "FULL ").split_once(' ').unwrap();
    assert!(output.status.success());
    assert!(
        message.contains("model.safetensors: cannot write a file of 400128 bytes")
            && message.contains("No space left"),
        "{message}"
    );
    if !cfg!(tenslab_portable) {
        // 64 KiB less a page for what was there.
        assert!(message.contains(", there is room for 61440: "), "{message}");
        assert_eq!(calls, "0", "it was known before a byte was written");
    }
}

/// Ends the process with a signal where it is not ignored, so a shell ignores it.
#[test]
fn a_limit_of_the_process_is_an_error_with_numbers_and_nothing_is_left() {
    let test = "a_limit_of_the_process_is_an_error_with_numbers_and_nothing_is_left";
    if let Some(directory) = told(test) {
        limit(Resource::Fsize, 100_000);
        let error = write(&directory.join("model.safetensors")).unwrap_err();
        println!("LIMIT {error}");
        return;
    }
    let (place, path) = with_an_old_file();
    let shell = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
    let output = child(test, place.path(), &shell).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let message = said(&output, &text, "LIMIT ");
    let begin = format!("{}: cannot write a file of 400128 bytes", path.display());
    assert!(
        message.starts_with(&begin) && message.contains("File too large"),
        "{message}"
    );
    if !cfg!(tenslab_portable) {
        assert!(
            message.contains(", there is room for 100000: "),
            "{message}"
        );
    }
    assert_untouched(place.path());
}

fn limit(resource: Resource, bytes: u64) {
    let current = Some(bytes);
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

/// What is in a directory after a kill: the old file, if there was one, and where files without a
/// name cannot be had one unfinished file, which begins with a dot.
fn assert_killed_cleanly(directory: &Path, unnamed: bool, old: bool) {
    let mut found = files(directory);
    found.retain(|name| unnamed || !name.starts_with(".tenslab-"));
    let expected = if old { &["model.safetensors"][..] } else { &[] };
    assert_eq!(found, expected);
    if old {
        let text = fs::read_to_string(directory.join("model.safetensors")).unwrap();
        assert_eq!(text, OLD);
    }
}

/// Can a file without a name be had where temporary directories are?
fn unnamed_files_can_be_had() -> bool {
    let place = tempfile::tempdir().unwrap();
    write(&place.path().join("x")).unwrap().unnamed
}

#[test]
fn where_linux_has_files_without_a_name_they_are_used() {
    use std::os::unix::fs::OpenOptionsExt;
    // O_TMPFILE as most machines number it.
    let place = tempfile::tempdir().unwrap();
    let probe = fs::OpenOptions::new()
        .write(true)
        .custom_flags(0o20_200_000)
        .open(place.path());
    let there_are = probe.is_ok() && !cfg!(tenslab_portable);
    assert_eq!(unnamed_files_can_be_had(), there_are);
}

/// A limit whose signal nobody ignores kills the process in the middle of its work.
#[test]
fn a_limit_that_kills_leaves_what_was_there() {
    let test = "a_limit_that_kills_leaves_what_was_there";
    if let Some(directory) = told(test) {
        limit(Resource::Core, 0);
        limit(Resource::Fsize, 100_000);
        let _ = write(&directory.join("model.safetensors"));
        println!("SURVIVED");
        return;
    }
    let (place, _) = with_an_old_file();
    let shell = ["env", "--default-signal=XFSZ"];
    let output = child(test, place.path(), &shell).output().unwrap();
    assert_eq!(output.status.signal(), Some(25), "{output:?}");
    assert_killed_cleanly(place.path(), unnamed_files_can_be_had(), true);
}

/// Kills a child that stands still in the middle of writing. `old`: is there a file already?
fn kill_in_the_middle(test: &str, signal: &str, number: i32, old: bool) {
    let (place, path) = with_an_old_file();
    if !old {
        fs::remove_file(&path).unwrap();
    }
    let program = ["env", "--default-signal=INT,TERM"];
    let mut child = child(test, place.path(), &program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains("HALF 4194304 of 8388608")),
        "the child ended before it was half done"
    );
    let unnamed = unnamed_files_can_be_had();
    assert_killed_cleanly(place.path(), unnamed, old);
    let sent = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().signal(), Some(number));
    assert_killed_cleanly(place.path(), unnamed, old);
    // And the next one writes.
    write(&path).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().entries().len(), 1);
}

/// The child: says when it is half done, and waits for ever.
fn stand_still_in_the_middle(directory: &Path) {
    let x = Tensor::zeros([8 << 20], DType::U8, memory::cpu()).unwrap();
    let entries = [SaveEntry::tensor("x", &x)];
    let path = directory.join("model.safetensors");
    let _ = save_with(&path, &entries, &SaveOptions::default(), &mut |now| {
        if now.done_bytes > 0 {
            println!("HALF {} of {}", now.done_bytes, now.total_bytes);
            // The other end stays open until the parent is gone.
            let _ = std::io::stdin().read(&mut [0]);
        }
        ControlFlow::Continue(())
    });
}

#[test]
fn ctrl_c_in_the_middle_leaves_what_was_there() {
    let test = "ctrl_c_in_the_middle_leaves_what_was_there";
    match told(test) {
        Some(directory) => stand_still_in_the_middle(&directory),
        None => {
            for old in [true, false] {
                kill_in_the_middle(test, "-INT", 2, old);
            }
        }
    }
}

#[test]
fn a_kill_in_the_middle_leaves_what_was_there() {
    let test = "a_kill_in_the_middle_leaves_what_was_there";
    match told(test) {
        Some(directory) => stand_still_in_the_middle(&directory),
        None => {
            for old in [true, false] {
                kill_in_the_middle(test, "-KILL", 9, old);
            }
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_directory_that_may_not_be_written_to_is_an_error() {
    let (place, path) = with_an_old_file();
    for mode in [0o555, 0o333, 0o000] {
        set_mode(place.path(), mode);
        let failed = std::thread::scope(|scope| {
            // Capabilities are a thread's own, so they are given up on one that ends here.
            let work = || {
                let mut sets = capabilities(None).ok()?;
                let all = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                sets.effective.remove(all);
                set_capabilities(None, sets).ok()?;
                Some(write(&path).unwrap_err())
            };
            scope.spawn(work).join().unwrap()
        });
        set_mode(place.path(), 0o755);
        let Some(error) = failed else {
            eprintln!("skipped: the right to write everywhere cannot be given up here");
            return;
        };
        let WeightsError::Io { source, .. } = &error else {
            panic!("{mode:o}: {error}");
        };
        assert_eq!(
            source.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
        assert!(error.to_string().contains(place.path().to_str().unwrap()));
        assert_untouched(place.path());
    }
}

#[test]
fn permissions_are_those_of_a_new_file_or_of_the_replaced_one() {
    let place = tempfile::tempdir().unwrap();
    let (path, plain) = (place.path().join("model"), place.path().join("plain"));
    fs::write(&plain, "").unwrap();
    write(&path).unwrap();
    assert_eq!(mode(&path), mode(&plain), "what the umask leaves");
    for (old, new) in [
        (0o600, 0o600),
        (0o444, 0o444),
        (0o666, 0o666),
        (0o4755, 0o755),
    ] {
        set_mode(&path, old);
        assert!(write(&path).unwrap().replaced);
        assert_eq!(mode(&path), new, "{old:o}");
    }
    assert_eq!(files(place.path()), ["model", "plain"]);
}

#[test]
fn a_link_stays_one_and_what_it_leads_to_is_written() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("store")).unwrap();
    fs::create_dir(at("models")).unwrap();
    symlink("../store/blob", at("models/model")).unwrap();
    symlink(at("models/model"), at("link")).unwrap();
    // A link to nothing, and then to what is there.
    for replaced in [false, true] {
        let report = write(&at("link")).unwrap();
        assert_eq!(report.replaced, replaced);
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(files(&at("store")), ["blob"]);
        assert_eq!(files(&at("models")), ["model"]);
        assert_eq!(Checkpoint::open(at("link")).unwrap().entries().len(), 1);
    }
    // Another name of the file that is replaced keeps the file.
    let before = fs::read(at("store/blob")).unwrap();
    fs::hard_link(at("store/blob"), at("other")).unwrap();
    save_with(at("link"), &[], &SaveOptions::default(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(fs::read(at("other")).unwrap() == before);

    symlink("circle", at("circle")).unwrap();
    let error = write(&at("circle")).unwrap_err();
    assert!(error.to_string().contains("links in a row"), "{error}");
}

#[test]
fn a_device_or_a_socket_is_not_replaced() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let _listens = UnixListener::bind(&path).unwrap();
    for path in [path.as_path(), Path::new("/dev/null")] {
        let error = write(path).unwrap_err();
        assert!(matches!(error, WeightsError::NotAFile { .. }), "{error}");
    }
    let null = fs::metadata("/dev/null").unwrap().file_type();
    assert!(null.is_char_device());
    assert_eq!(files(place.path()), ["model.safetensors"]);
}

/// Relative paths, a name as long as names can be, and a name that is no text.
#[test]
fn names_of_files_may_be_any_that_the_system_takes() {
    use std::os::unix::ffi::OsStringExt;
    let place = tempfile::tempdir().unwrap();
    let odd = std::ffi::OsString::from_vec(b"model \xff\n.safetensors".to_vec());
    for name in ["x".repeat(255).into(), odd] {
        let path = place.path().join(name);
        for replaced in [false, true] {
            assert_eq!(write(&path).unwrap().replaced, replaced);
        }
    }
    let too_long = write(&place.path().join("x".repeat(256))).unwrap_err();
    assert!(matches!(too_long, WeightsError::Io { .. }), "{too_long}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}
