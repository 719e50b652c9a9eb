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

/// Tensors around every size at which the loader does something else: nothing, odd
/// bytes, small ones that are read together, 1 MiB of scratch, 4 MiB of a piece.
pub(crate) fn awkward(directory: &Path) -> PathBuf {
    const MIB: u64 = 1 << 20;
    let tensors: Vec<(&str, &str, Vec<u64>, u64)> = vec![
        ("nothing first", "F32", vec![0], 0),
        ("odd", "U8", vec![3], 3),
        ("f32", "F32", vec![5], 20),
        ("f16", "F16", vec![1], 2),
        ("bf16 of many threads", "BF16", vec![4_700_001], 9_400_002),
        ("other", "F8_E4M3FNUZ", vec![7], 7),
        ("reserved", "F8_E4M3", vec![9], 9),
        ("as large as the scratch", "F32", vec![MIB / 4], MIB),
        ("one more", "F16", vec![MIB / 2 + 1], MIB + 2),
        ("small", "BF16", vec![3, 3], 18),
        ("nothing", "BF16", vec![2, 0], 0),
        ("f16 of many threads", "F16", vec![1000, 2100], 4_200_000),
        ("as large as a piece", "U8", vec![4 * MIB], 4 * MIB),
        ("f32 of many threads", "F32", vec![1_300_003], 5_200_012),
        ("integers", "I64", vec![700_000], 5_600_000),
        ("last", "F64", vec![], 8),
        ("nothing last", "F16", vec![0], 0),
    ];
    let packed_tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, *dtype, &shape[..], *bytes))
        .collect();
    let (json, bytes) = packed(&packed_tensors);
    let mut content = file(&json, 0);
    // All kinds of bit patterns, infinities and NaNs among them.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    content.extend((0..bytes).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    }));
    write(directory, "model.safetensors", &content)
}
