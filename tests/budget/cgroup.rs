use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tenslab::memory::{CgroupError, CgroupMemory, Limit};

/// A made-up system: `(path, contents)` below its root.
fn system(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, contents) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    root
}

/// The limit, and the file it is from relative to the root.
fn read(files: &[(&str, &str)]) -> Option<(u64, String)> {
    let root = system(files);
    let (limit, group) = Limit::from_cgroup(root.path()).unwrap();
    let found = group.limit().map(|(bytes, file)| {
        let file = file.strip_prefix(root.path()).unwrap();
        (bytes, file.to_str().unwrap().to_owned())
    });
    let expected = found.as_ref().map_or(usize::MAX, |found| {
        usize::try_from(found.0).unwrap_or(usize::MAX)
    });
    assert_eq!(limit.limit_bytes(), expected);
    found
}

fn is(found: &Option<(u64, String)>, bytes: u64, file: &str) -> bool {
    found
        .as_ref()
        .is_some_and(|(b, f)| (*b, f.as_str()) == (bytes, file))
}

const MOUNT_V2: &str =
    "29 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const MOUNT_V1: &str = "28 1 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
    35 28 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    36 28 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

#[test]
fn version_two_takes_the_least_of_all_groups_above() {
    let system = |inner: &'static str, outer: &'static str| {
        read(&[
            ("proc/self/cgroup", "0::/pod/web\n"),
            ("proc/self/mountinfo", MOUNT_V2),
            ("sys/fs/cgroup/pod/web/memory.max", inner),
            ("sys/fs/cgroup/pod/memory.max", outer),
        ])
    };
    let (inner, outer) = (
        "sys/fs/cgroup/pod/web/memory.max",
        "sys/fs/cgroup/pod/memory.max",
    );
    assert!(is(&system("1000\n", "2000\n"), 1000, inner));
    assert!(is(&system("3000\n", "2000\n"), 2000, outer));
    assert!(is(&system("max\n", "2000\n"), 2000, outer));
    assert!(is(&system("1000", "max"), 1000, inner));
    assert!(is(&system("1000\n", "1000\n"), 1000, inner));
    assert!(is(&system("0\n", "1000\n"), 0, inner));
    assert!(is(
        &system("18446744073709551615\n", "max\n"),
        u64::MAX,
        inner
    ));
    assert_eq!(system("max\n", "max\n"), None);
}

#[test]
fn version_one_too_and_its_largest_number_is_no_limit() {
    let system = |inner: &'static str, outer: &'static str| {
        read(&[
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/other\n4:memory:/pod/web\n0::/\n",
            ),
            ("proc/self/mountinfo", MOUNT_V1),
            ("sys/fs/cgroup/memory/pod/web/memory.limit_in_bytes", inner),
            ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", outer),
            (
                "sys/fs/cgroup/cpu,cpuacct/other/memory.limit_in_bytes",
                "1\n",
            ),
        ])
    };
    let inner = "sys/fs/cgroup/memory/pod/web/memory.limit_in_bytes";
    let outer = "sys/fs/cgroup/memory/pod/memory.limit_in_bytes";
    assert!(is(&system("4096\n", "9223372036854771712\n"), 4096, inner));
    assert!(is(&system("9223372036854771712\n", "8192\n"), 8192, outer));
    assert_eq!(
        system("9223372036854771712\n", "9223372036854710272\n"),
        None
    );
    assert_eq!(system("-1\n", "9223372036854775807\n"), None);
}

#[test]
fn both_versions_at_once_count_both() {
    let found = read(&[
        ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
        (
            "proc/self/mountinfo",
            "36 28 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             41 28 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300\n"),
        ("sys/fs/cgroup/unified/b/memory.max", "200\n"),
    ]);
    assert!(is(&found, 200, "sys/fs/cgroup/unified/b/memory.max"));
}

/// A container sees its own group as the top of what is mounted, and the path may be the
/// one outside, or lead out of the name space.
#[test]
fn in_a_container_the_mounted_group_is_the_top() {
    let file = "sys/fs/cgroup/memory.max";
    for (group, mounted) in [
        ("/docker/1f", "/docker/1f"),
        ("/", "/"),
        ("/../../docker/1f", "/"),
        ("/docker/1f", "/somewhere/else"),
    ] {
        let mount = format!("29 1 0:26 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        let group = format!("0::{group}\n");
        let found = read(&[
            ("proc/self/cgroup", &group),
            ("proc/self/mountinfo", &mount),
            ("sys/fs/cgroup/memory.max", "700\n"),
            ("memory.max", "1\n"),
            ("sys/fs/memory.max", "1\n"),
        ]);
        assert!(is(&found, 700, file), "{group} in {mounted}: {found:?}");
    }
    let found = read(&[
        ("proc/self/cgroup", "0::/docker/1f/inner\n"),
        (
            "proc/self/mountinfo",
            "29 1 0:26 /docker/1f /my\\040groups rw - cgroup2 cgroup rw\n",
        ),
        ("my groups/inner/memory.max", "500\n"),
    ]);
    assert!(is(&found, 500, "my groups/inner/memory.max"));
}

#[test]
fn without_mounts_the_usual_places_are_looked_at() {
    let found = read(&[
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/a/memory.max", "10\n"),
    ]);
    assert!(is(&found, 10, "sys/fs/cgroup/a/memory.max"));
    let found = read(&[
        ("proc/self/cgroup", "7:memory:/a\n"),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "20\n"),
    ]);
    assert!(is(
        &found,
        20,
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes"
    ));
}

#[test]
fn where_there_is_nothing_there_is_no_limit() {
    assert_eq!(read(&[]), None);
    assert_eq!(read(&[("proc/self/cgroup", "0::/gone\n")]), None);
    assert_eq!(read(&[("proc/self/cgroup", "")]), None);
    let nonsense = "no colons\n::\n0:\n:::::\n\u{1f}\n36 - cgroup2\n - - - \n";
    assert_eq!(
        read(&[
            ("proc/self/cgroup", nonsense),
            ("proc/self/mountinfo", nonsense)
        ]),
        None
    );
}

#[test]
fn what_is_no_number_is_an_error_and_not_unlimited() {
    let long = "9".repeat(1000);
    for text in [
        "",
        "\n",
        "lots",
        "-1",
        "+5",
        "1 2",
        "12k",
        "1e9",
        "18446744073709551616",
        &long,
    ] {
        let root = system(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", MOUNT_V2),
            ("sys/fs/cgroup/a/memory.max", text),
        ]);
        let error = Limit::from_cgroup(root.path()).unwrap_err();
        let shown = error.to_string();
        assert!(matches!(error, CgroupError::Malformed { .. }), "{text:?}");
        assert!(shown.contains("sys/fs/cgroup/a/memory.max"), "{shown}");
        assert!(shown.len() < 200 + root.path().as_os_str().len(), "{shown}");
    }
    // Not even text, and a folder where a file should be.
    let root = system(&[("sys/fs/cgroup/memory.max", "")]);
    fs::write(
        root.path().join("sys/fs/cgroup/memory.max"),
        [0xff, 0xfe, b'1'],
    )
    .unwrap();
    assert!(CgroupMemory::read(root.path()).is_err());
    let root = system(&[("sys/fs/cgroup/memory.max/file", "")]);
    let error = CgroupMemory::read(root.path()).unwrap_err();
    assert!(matches!(error, CgroupError::Unreadable { .. }), "{error}");
}

/// Whatever this machine has: it can be read.
#[test]
fn the_real_system_answers() {
    let (limit, group) = Limit::from_cgroup("/").unwrap();
    match group.limit() {
        Some((bytes, file)) => {
            assert!(limit.limit_bytes() as u64 <= bytes);
            assert!(file.starts_with("/") && Path::new(file).is_file());
        }
        None => assert_eq!(limit.limit_bytes(), usize::MAX),
    }
}
