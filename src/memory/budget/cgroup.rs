//! What the kernel lets the process's control group have.
//!
//! ```text
//!   proc/self/cgroup      which group          5:memory:/pod/web        0::/pod/web
//!   proc/self/mountinfo   where groups are     …/memory  (v1)           …  (v2)
//!                                                 │                        │
//!   pod/web                                    limit_in_bytes           memory.max
//!   pod                                        limit_in_bytes           memory.max
//! ```
//!
//! The least of all that stand above the process counts, for a group shares what its
//! parent may have. Both versions may be there at once. In a container the process's
//! path may be one outside of what is mounted; then the mounted groups are what is known.

use std::io;
use std::path::{Component, Path, PathBuf};

/// What the process's control group may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupMemory {
    limit: Option<(u64, PathBuf)>,
}

/// A control group's file that says nothing that can be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The file is there, but cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file holds no number of bytes.
    #[error("{} holds {text:?} and no number of bytes", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The beginning of what it holds.
        text: String,
    },
}

/// Limits of version 1 from here on mean that there is none: the kernel writes the
/// largest multiple of a page that fits an `i64`, and pages are up to 64 KiB.
const UNLIMITED_V1: u64 = i64::MAX as u64 - 0xffff;

/// As much of a file as an error cites.
const CITED_CHARS: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn file(self) -> &'static str {
        match self {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }
    }

    /// Where groups are when nothing says where.
    fn usual_mount(self) -> &'static str {
        match self {
            Version::V1 => "/sys/fs/cgroup/memory",
            Version::V2 => "/sys/fs/cgroup",
        }
    }

    /// The process's group, from a line of `proc/self/cgroup`.
    fn group(self, line: &str) -> Option<&Path> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_ours = match self {
            Version::V1 => controllers.split(',').any(|name| name == "memory"),
            Version::V2 => number == "0" && controllers.is_empty(),
        };
        is_ours.then(|| Path::new(path))
    }

    /// Which group is mounted where, from a line of `proc/self/mountinfo`.
    fn mount(self, line: &str) -> Option<(PathBuf, PathBuf)> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (group, at) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1).unwrap_or(""));
        let is_ours = match self {
            Version::V1 => name == "cgroup" && options.split(',').any(|one| one == "memory"),
            Version::V2 => name == "cgroup2",
        };
        is_ours.then(|| (unescaped(group), unescaped(at)))
    }
}

/// A path as it is: the kernel writes blanks, tabs, line ends and backslashes as three
/// octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 4);
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                plain.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            _ => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain.push_str(rest);
    plain.into()
}

/// The text of a file; `None` where there is none.
fn text(path: &Path) -> Result<Option<String>, CgroupError> {
    match std::fs::read(path) {
        // A path may be no UTF-8; a number is.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(CgroupError::Unreadable {
                path: path.to_owned(),
                source: error,
            }),
        },
    }
}

/// `path` below `root`: its plain components and nothing else, so that it stays there.
fn below(root: &Path, path: &Path) -> PathBuf {
    let plain = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    root.join(plain.collect::<PathBuf>())
}

/// The limit that a file states. `Ok(None)`: there is no file, or no limit.
fn stated(version: Version, path: &Path) -> Result<Option<u64>, CgroupError> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let malformed = || CgroupError::Malformed {
        path: path.to_owned(),
        text: text.chars().take(CITED_CHARS).collect(),
    };
    let word = text.trim();
    let none = match version {
        Version::V1 => "-1",
        Version::V2 => "max",
    };
    if word == none {
        return Ok(None);
    }
    // `parse` alone would take a sign.
    if !word.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed());
    }
    let bytes: u64 = word.parse().map_err(|_| malformed())?;
    Ok(Some(bytes).filter(|&bytes| version == Version::V2 || bytes < UNLIMITED_V1))
}

impl CgroupMemory {
    /// Reads the files below `root`, which is `/` but in tests.
    ///
    /// # Errors
    /// As [`Limit::from_cgroup`](super::Limit::from_cgroup).
    pub fn read(root: &Path) -> Result<Self, CgroupError> {
        let groups = text(&root.join("proc/self/cgroup"))?.unwrap_or_default();
        let mounts = text(&root.join("proc/self/mountinfo"))?.unwrap_or_default();
        let mut limit: Option<(u64, PathBuf)> = None;
        for version in [Version::V2, Version::V1] {
            let group = groups.lines().find_map(|line| version.group(line));
            let group = group.unwrap_or(Path::new("/"));
            let mount = mounts.lines().find_map(|line| version.mount(line));
            let (top, at) = mount.unwrap_or_else(|| ("/".into(), version.usual_mount().into()));
            let at = below(root, &at);
            // Where the group is not below what is mounted, that is all we can see.
            let inner = group.strip_prefix(&top).unwrap_or(Path::new(""));
            let innermost = below(&at, inner);
            for folder in innermost.ancestors().take_while(|one| one.starts_with(&at)) {
                let file = folder.join(version.file());
                if let Some(bytes) = stated(version, &file)?
                    && limit.as_ref().is_none_or(|(least, _)| bytes < *least)
                {
                    limit = Some((bytes, file));
                }
            }
        }
        Ok(Self { limit })
    }

    /// The limit in bytes and the file that states it: the least there is, of equal ones
    /// the innermost. `None`: there is no limit.
    #[must_use]
    pub fn limit(&self) -> Option<(u64, &Path)> {
        self.limit
            .as_ref()
            .map(|(bytes, file)| (*bytes, file.as_path()))
    }
}
