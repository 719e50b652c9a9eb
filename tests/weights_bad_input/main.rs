//! What stands in a file is not believed: every rule of the format, one test each.
//!
//! Sentences are the rows of the project's table of bad inputs. Where the reference
//! reader (the `safetensors` crate) differs, the test says so.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../checkpoint_files/mod.rs"]
mod checkpoint_files;

mod fields;
mod length;
mod limits;
mod names;
mod ranges;

use tenslab::weights::{Checkpoint, FormatFault, Header, HeaderLimits, WeightsError};

use checkpoint_files::write;

/// Reads a file twice, from memory and from the disk, and compares.
fn read(bytes: &[u8]) -> Result<Header, FormatFault> {
    let result = Header::from_bytes(bytes, &HeaderLimits::default());

    // The same through a file: the same fault, with the path, on one line.
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "x.safetensors", bytes);
    match (&result, Checkpoint::open(&path)) {
        (Ok(header), Ok(checkpoint)) => {
            assert_eq!(header.tensors().len(), checkpoint.entries().len());
        }
        (Err(fault), Err(error)) => {
            let message = error.to_string();
            assert!(
                message.starts_with(&path.display().to_string()),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
            let WeightsError::Format { fault: found, .. } = error else {
                panic!("{error:?} is not about the format");
            };
            assert_eq!(*found, *fault);
        }
        (memory, disk) => panic!("from memory {memory:?}, from disk {disk:?}"),
    }
    result
}

fn fault(bytes: &[u8]) -> FormatFault {
    read(bytes).expect_err("a fault")
}

/// The names of a header that is fine.
fn names(bytes: &[u8]) -> Vec<String> {
    let header = read(bytes).expect("a header");
    header.tensors().map(|t| t.name().into()).collect()
}
