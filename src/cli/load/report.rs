//! What a load took, for people and for programs.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tenslab::weights::LoadReport;

use super::Verified;
use crate::cli::table::COLUMNS;
use crate::cli::text::{binary_bytes, escaped, wrapped};

/// The most tensors with odd values that are listed for people. All are counted.
const MOST_LISTED: usize = 20;

/// All that is printed.
pub(super) struct Report<'a> {
    pub(super) path: &'a Path,
    pub(super) mode: String,
    pub(super) load: &'a LoadReport,
    /// Bytes of all tensors in the files.
    pub(super) tensor_bytes: u64,
    /// From opening to the last byte, and what was verified.
    pub(super) seconds: f64,
    pub(super) verified: Option<&'a Verified>,
}

impl Report<'_> {
    fn gb_per_s(&self) -> f64 {
        self.tensor_bytes as f64 / self.seconds / 1e9
    }

    pub(super) fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        let load = self.load;
        let verified = self.verified.map(|verified| {
            let digests = verified.digests.iter().map(|digest| {
                json!({ "path": digest.path.to_string_lossy(), "sha256": digest.sha256.to_string() })
            });
            let non_finite = verified.non_finite.iter().map(|tensor| {
                json!({ "name": tensor.name, "count": tensor.count, "first": tensor.first })
            });
            json!({
                "files": digests.collect::<Vec<_>>(),
                "non_finite": non_finite.collect::<Vec<_>>(),
            })
        });
        let answer = json!({
            "path": self.path.to_string_lossy(),
            "mode": self.mode,
            "files": load.files,
            "tensors": load.tensors,
            "left_out": load.left_out,
            "total_bytes": self.tensor_bytes,
            "mapped_bytes": load.mapped_bytes,
            "copied_bytes": load.copied_bytes,
            "realigned_bytes": load.realigned_bytes,
            "cast_tensors": load.cast_tensors,
            "protected_bytes": load.protected_bytes,
            "threads": load.threads,
            "seconds": self.seconds,
            "gb_per_s": self.gb_per_s(),
            "peak_rss_bytes": peak_rss_bytes(),
            "verified": verified,
        });
        answer.serialize(&mut serde_json::Serializer::pretty(&mut *out))?;
        writeln!(out)
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let load = self.load;
        for line in wrapped(&escaped(&self.path.to_string_lossy()), COLUMNS) {
            writeln!(out, "{line}")?;
        }
        let files = if load.files == 1 { "file" } else { "files" };
        let tensors = load.tensors;
        writeln!(
            out,
            "{tensors} tensors of {} {files}, mode {}",
            load.files, self.mode
        )?;
        if load.left_out > 0 {
            writeln!(out, "{} tensors were left out", load.left_out)?;
        }
        writeln!(out)?;
        let lines = [
            ("in the files", self.tensor_bytes),
            ("mapped", load.mapped_bytes),
            ("copied", load.copied_bytes),
            ("realigned", load.realigned_bytes),
            ("read-only", load.protected_bytes as u64),
        ];
        for (what, bytes) in lines.into_iter().filter(|(_, bytes)| *bytes > 0) {
            writeln!(
                out,
                "{what:<13} {bytes:>15} bytes  {:>10}",
                binary_bytes(bytes)
            )?;
        }
        if load.cast_tensors > 0 {
            writeln!(out, "{:<13} {:>15} tensors", "cast", load.cast_tensors)?;
        }
        let (seconds, rate) = (self.seconds, self.gb_per_s());
        let threads = load.threads;
        writeln!(
            out,
            "{:<13} {seconds:>15.3} seconds, {rate:.2} GB/s, {threads} threads",
            "time"
        )?;
        if let Some(peak) = peak_rss_bytes() {
            writeln!(
                out,
                "{:<13} {peak:>15} bytes  {:>10}",
                "peak memory",
                binary_bytes(peak)
            )?;
        }
        self.verified
            .map_or(Ok(()), |verified| print_verified(verified, out))
    }
}

fn print_verified(verified: &Verified, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    for digest in &verified.digests {
        let name = digest.path.file_name().unwrap_or(digest.path.as_os_str());
        writeln!(out, "sha256 {}", digest.sha256)?;
        for line in wrapped(&escaped(&name.to_string_lossy()), COLUMNS - 2) {
            writeln!(out, "  {line}")?;
        }
    }
    let odd = &verified.non_finite;
    if odd.is_empty() {
        return writeln!(out, "no NaN and no infinity");
    }
    writeln!(out, "NaN or infinite values in {} tensors", odd.len())?;
    for tensor in odd.iter().take(MOST_LISTED) {
        let text = format!(
            "{}: {}, the first is number {}",
            escaped(&tensor.name),
            tensor.count,
            tensor.first
        );
        for line in wrapped(&text, COLUMNS - 2) {
            writeln!(out, "  {line}")?;
        }
    }
    match odd.len().saturating_sub(MOST_LISTED) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more; --json has them all"),
    }
}

/// The most memory that the process had at one time: of Linux.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
