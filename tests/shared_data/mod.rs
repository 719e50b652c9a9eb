//! The data that lies beside the package: traces, weight files, oracles.

use std::path::{Path, PathBuf};

/// A path below `../shared/data`, or below the `data` of the folder that
/// `TENSLAB_SHARED` names.
///
/// `None`, and a line that says so, where it is not there. CI sets `TENSLAB_NO_SKIP`:
/// there, what is absent is a failure.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let root = std::env::var_os("TENSLAB_SHARED").map_or(beside, PathBuf::from);
    let path = root.join("data").join(path);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("TENSLAB_NO_SKIP").is_some();
    assert!(!required, "{} is not there", path.display());
    eprintln!(
        "skipped: {} is not there; TENSLAB_SHARED may name the shared folder",
        path.display()
    );
    None
}
