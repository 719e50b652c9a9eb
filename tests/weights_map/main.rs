//! Mapped weights: byte for byte those of a load, wherever they lie in the file; what is copied
//! is counted; and what happens to whoever does not keep the contract.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
#[path = "../checkpoint_files/mod.rs"]
mod checkpoint_files;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod files;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod holdings;

/// Where there are no mappings, to map is refused, and not done in another way.
#[cfg(not(all(unix, not(tenslab_portable))))]
#[test]
fn without_mappings_it_is_refused() {
    use tenslab::weights::{MapOptions, Weights, WeightsError};
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x");
    let json = br#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.extend([1, 2]);
    std::fs::write(&path, bytes).unwrap();
    // SAFETY: the file is this test's alone.
    let error = unsafe { Weights::map(&path, &MapOptions::default()) }.unwrap_err();
    assert!(matches!(error, WeightsError::Map { .. }), "{error}");
}
