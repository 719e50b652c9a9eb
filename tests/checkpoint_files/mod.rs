//! Checkpoint files for tests: hand-written ones, and the shared ones.

#![allow(dead_code, unused_imports, reason = "every test file uses some of it")]

use std::path::{Path, PathBuf};

#[path = "../shared_data/mod.rs"]
mod shared_data;

pub(crate) use shared_data::shared;

/// A safetensors file: length field, this JSON, this many bytes of data.
pub(crate) fn file(json: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    // Not zero, and different from one byte to the next.
    bytes.extend((1..=251_u8).cycle().take(data_bytes));
    bytes
}

/// One entry of a header.
pub(crate) fn entry(name: &str, dtype: &str, shape: &[u64], begin: u64, end: u64) -> String {
    let name = serde_json::to_string(name).unwrap();
    format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
}

/// A header of these entries.
pub(crate) fn object(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

/// A header of tensors that follow each other: name, dtype, shape, bytes.
pub(crate) fn packed(tensors: &[(&str, &str, &[u64], u64)]) -> (String, usize) {
    let mut begin = 0;
    let entries: Vec<_> = tensors
        .iter()
        .map(|&(name, dtype, shape, bytes)| {
            let entry = entry(name, dtype, shape, begin, begin + bytes);
            begin += bytes;
            entry
        })
        .collect();
    (object(&entries), usize::try_from(begin).unwrap())
}

/// Writes a file into `directory`. Where `TENSLAB_SEEDS` names the folder of the fuzzers'
/// seeds, what is short enough goes there too.
pub(crate) fn write(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    if let Some(seeds) = std::env::var_os("TENSLAB_SEEDS") {
        write_seed(Path::new(&seeds), name, bytes);
    }
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Writes the seed of one of the fuzzers, under a name that its bytes determine.
fn write_seed(seeds: &Path, name: &str, bytes: &[u8]) {
    const LONGEST: usize = 1024;
    let folder = if name.ends_with(".index.json") {
        "index"
    } else if name.ends_with(".safetensors") {
        "header"
    } else {
        return;
    };
    if bytes.len() <= LONGEST {
        // FNV-1a.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        std::fs::write(seeds.join(folder).join(format!("{hash:016x}")), bytes).unwrap();
    }
}
