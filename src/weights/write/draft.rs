//! [`Draft`]: a file that is not there until it is complete.
//!
//! ```text
//!   Linux     open(O_TMPFILE)     fallocate, write, fsync      linkat(name)        fsync(directory)
//!             no name yet                                      taken? then linkat(.tenslab-1-0.tmp)
//!                                                              and rename(name)
//!   else      create(.tenslab-1-0.tmp)    write, fsync         rename(name)        fsync(directory)
//! ```
//!
//! A file without a name is gone when the process is, whatever ended it. It cannot take the
//! name of another, though (`linkat` replaces nothing), so over an old file it passes through
//! a name of its own: complete by then, and for two calls. Where the file system knows no
//! such files, or `/proc` is not there to name them by, it has that name from the start.
//! Every error removes it.
//!
//! Only the last step changes anything that others see, and it is one call that is done or
//! not: `linkat` or `rename`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::system;
use crate::weights::WeightsError;

/// Links that are followed; more of them are a circle.
const MAX_LINKS: usize = 40;

/// Names that are tried: threads and processes that write to one directory take some.
const MAX_NAMES: u32 = 10_000;

/// Where the file goes.
pub(super) struct Target {
    /// Behind all links, and absolute, so that it stays where it is.
    path: PathBuf,
    directory: PathBuf,
    /// Of the file that is there.
    permissions: Option<fs::Permissions>,
}

impl Target {
    /// Finds out where `path` leads to. Writes nothing.
    pub(super) fn at(path: &Path) -> Result<Self, WeightsError> {
        let refused = |kind: ErrorKind, what: &str| {
            WeightsError::io(path, "write", io::Error::new(kind, what))
        };
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(refused(ErrorKind::IsADirectory, "the path names no file"));
        }
        let examine = |error| WeightsError::io(path, "examine", error);
        let mut place = std::path::absolute(path).map_err(examine)?;
        let mut links = 0;
        let permissions = loop {
            let metadata = match fs::symlink_metadata(&place) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => break None,
                Err(error) => return Err(examine(error)),
            };
            if metadata.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(refused(ErrorKind::Other, "more than 40 links in a row"));
                }
                let to = fs::read_link(&place).map_err(examine)?;
                // Relative to where the link is.
                place.pop();
                place.push(to);
            } else if metadata.is_dir() {
                return Err(refused(ErrorKind::IsADirectory, "it is a directory"));
            } else if !metadata.is_file() {
                return Err(WeightsError::NotAFile { path: path.into() });
            } else {
                break Some(plain(metadata.permissions()));
            }
        };
        let (Some(directory), Some(_)) = (place.parent(), place.file_name()) else {
            return Err(refused(ErrorKind::InvalidInput, "the path names no file"));
        };
        Ok(Self {
            directory: directory.into(),
            path: place,
            permissions,
        })
    }

    /// Is a file there already?
    pub(super) fn is_taken(&self) -> bool {
        self.permissions.is_some()
    }

    /// The directory, if it is to be synced and directories can be opened.
    pub(super) fn directory_to_sync(&self, sync: bool) -> Result<Option<File>, WeightsError> {
        (sync && cfg!(unix))
            .then(|| File::open(&self.directory))
            .transpose()
            .map_err(|error| WeightsError::io(&self.directory, "open", error))
    }

    /// Makes the name of the file last.
    pub(super) fn sync(&self, directory: &File) -> Result<(), WeightsError> {
        match directory.sync_all() {
            // There are file systems whose directories cannot be synced: they know why.
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::Unsupported
                ) =>
            {
                Err(WeightsError::io(&self.directory, "sync", error))
            }
            _ => Ok(()),
        }
    }

    /// The first free name beside the target that `take` can take.
    fn beside<T>(&self, mut take: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
        let process = std::process::id();
        let mut number = 0;
        loop {
            let path = self
                .directory
                .join(format!(".tenslab-{process}-{number}.tmp"));
            match take(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MAX_NAMES => {
                    number += 1;
                }
                other => return other.map(|taken| (path, taken)),
            }
        }
    }
}

/// A file that goes away unless it is published.
pub(super) struct Draft<'a> {
    /// As the caller named it, for errors.
    path: &'a Path,
    file: File,
    /// Its name for the time being, if it has one.
    name: Option<PathBuf>,
    file_bytes: u64,
    /// Bytes that were free before.
    free_bytes: Option<u64>,
}

impl<'a> Draft<'a> {
    /// A file with room for as many bytes, as far as the system can tell.
    pub(super) fn create(
        path: &'a Path,
        target: &Target,
        file_bytes: u64,
    ) -> Result<Self, WeightsError> {
        let unnamed = system::unnamed(&target.directory, mode(target));
        Self::of(unnamed, path, target, file_bytes)
    }

    /// Of a file without a name, or where there is none of a new one beside the target.
    fn of(
        unnamed: Option<File>,
        path: &'a Path,
        target: &Target,
        file_bytes: u64,
    ) -> Result<Self, WeightsError> {
        let (file, name) = match unnamed {
            Some(file) => (file, None),
            None => {
                let created = target.beside(|path| named(path, mode(target)));
                let (name, file) =
                    created.map_err(|error| WeightsError::io(path, "create", error))?;
                (file, Some(name))
            }
        };
        let draft = Self {
            path,
            free_bytes: system::free_bytes(&file),
            file,
            name,
            file_bytes,
        };
        if let Some(permissions) = &target.permissions {
            draft.set_permissions(permissions)?;
        }
        system::reserve(&draft.file, file_bytes).map_err(|error| draft.refused(error))?;
        Ok(draft)
    }

    /// What the umask took away, if it took something.
    fn set_permissions(&self, wanted: &fs::Permissions) -> Result<(), WeightsError> {
        let set = self.file.metadata().and_then(|metadata| {
            if plain(metadata.permissions()) == *wanted {
                return Ok(());
            }
            self.file.set_permissions(wanted.clone())
        });
        set.map_err(|error| WeightsError::io(self.path, "set the permissions of", error))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn is_unnamed(&self) -> bool {
        self.name.is_none()
    }

    /// What went wrong while it was written, with numbers where it is about room.
    pub(super) fn refused(&self, source: io::Error) -> WeightsError {
        let room_bytes = match source.kind() {
            ErrorKind::StorageFull => self.free_bytes,
            ErrorKind::FileTooLarge => system::largest_file(),
            ErrorKind::QuotaExceeded => None,
            _ => return WeightsError::io(self.path, "write", source),
        };
        WeightsError::NoRoom {
            path: self.path.into(),
            file_bytes: self.file_bytes,
            room_bytes: room_bytes.filter(|&room| room < self.file_bytes),
            source,
        }
    }

    /// Waits until the bytes are on the disk.
    pub(super) fn sync(&self) -> Result<(), WeightsError> {
        self.file.sync_all().map_err(|error| self.refused(error))
    }

    /// Gives the file its name.
    pub(super) fn publish(mut self, target: &Target) -> Result<(), WeightsError> {
        let path = self.path;
        let error = |error| WeightsError::io(path, "write", error);
        if self.name.is_none() {
            match system::give_name(&self.file, &target.path) {
                Err(taken) if taken.kind() == ErrorKind::AlreadyExists => {}
                other => return other.map_err(error),
            }
            let linked = target.beside(|path| system::give_name(&self.file, path));
            self.name = Some(linked.map_err(error)?.0);
        }
        if let Some(name) = &self.name {
            fs::rename(name, &target.path).map_err(error)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // The error that brought us here is the one to report.
            let _ = fs::remove_file(name);
        }
    }
}

/// Who may read, write and execute, and nothing else: the new file has another owner, whom a
/// set-user-ID bit was not meant for.
#[cfg(unix)]
fn plain(permissions: fs::Permissions) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(permissions.mode() & 0o777)
}

#[cfg(not(unix))]
fn plain(permissions: fs::Permissions) -> fs::Permissions {
    permissions
}

/// What a file may be for others from its first moment on: as the replaced one, or
/// `rw-rw-rw-`, less the umask.
fn mode(target: &Target) -> u32 {
    #[cfg(unix)]
    if let Some(permissions) = &target.permissions {
        return std::os::unix::fs::PermissionsExt::mode(permissions);
    }
    let _ = target;
    0o666
}

/// A new file of this name.
fn named(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write;

    use super::*;

    /// What a file system without nameless files gets, on every system.
    #[test]
    fn a_draft_with_a_name_takes_the_place_of_the_target_or_goes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        for (expected, publish) in [(0, false), (1, true), (1, false), (1, true)] {
            let target = Target::at(&path).unwrap();
            let draft = Draft::of(None, &path, &target, 3).unwrap();
            let other = Draft::of(None, &path, &target, 3).unwrap();
            assert!(!draft.is_unnamed() && draft.name != other.name);
            draft.file().write_all(b"new").unwrap();
            if publish {
                draft.publish(&target).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            } else {
                drop(draft);
            }
            drop(other);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), expected);
        }
    }

    /// A directory takes the name after it was looked at: the rename fails, and what was
    /// linked or created for it goes.
    #[test]
    fn a_name_that_was_taken_meanwhile_is_an_error_and_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        let target = Target::at(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let unnamed = Draft::create(&path, &target, 3).unwrap();
        let named = Draft::of(None, &path, &target, 3).unwrap();
        for draft in [unnamed, named] {
            let error = draft.publish(&target).unwrap_err();
            assert!(matches!(error, WeightsError::Io { .. }), "{error}");
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
