use std::fmt;

/// What a file that is no safetensors file looks like instead.
///
/// People pass the wrong file far more often than a damaged one, and the length
/// field of a safetensors file turns any other format into "header too large".
/// So the first bytes are looked at before that is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignFormat {
    /// A zip archive, which is what PyTorch's `.bin` and `.pt` files are.
    Zip,
    /// A bare pickle: PyTorch's older format.
    Pickle,
    /// llama.cpp's format.
    Gguf,
    /// The stand-in that Git LFS leaves where the file was not fetched.
    LfsPointer,
    /// A web page: a failed download.
    Html,
    /// JSON text: a config or an index.
    Json,
    /// gzip-compressed data.
    Gzip,
    /// HDF5: Keras' format.
    Hdf5,
}

impl ForeignFormat {
    /// Recognises a format by the first bytes of a file; 64 are enough.
    #[must_use]
    pub fn detect(first: &[u8]) -> Option<Self> {
        const MAGIC: [(&[u8], ForeignFormat); 6] = [
            (b"PK\x03\x04", ForeignFormat::Zip),
            (b"PK\x05\x06", ForeignFormat::Zip),
            (b"GGUF", ForeignFormat::Gguf),
            (b"version https://git-lfs", ForeignFormat::LfsPointer),
            (b"\x1f\x8b", ForeignFormat::Gzip),
            (b"\x89HDF\r\n\x1a\n", ForeignFormat::Hdf5),
        ];
        if let Some((_, format)) = MAGIC.iter().find(|(magic, _)| first.starts_with(magic)) {
            return Some(*format);
        }
        if let [0x80, 2..=5, ..] = first {
            return Some(Self::Pickle);
        }
        let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
        let text = text.trim_ascii_start();
        let starts = |tag: &str| {
            text.get(..tag.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(tag.as_bytes()))
        };
        if starts("<!doctype") || starts("<html") || starts("<?xml") || starts("<head") {
            return Some(Self::Html);
        }
        match text.first() {
            Some(b'{' | b'[') => Some(Self::Json),
            _ => None,
        }
    }
}

impl fmt::Display for ForeignFormat {
    /// What it looks like and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zip => "it is a zip archive, as PyTorch's .bin and .pt files are; convert it to safetensors",
            Self::Pickle => "it is a pickle, PyTorch's older format; convert it to safetensors",
            Self::Gguf => "it is a GGUF file; convert it to safetensors",
            Self::LfsPointer => "it is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
            Self::Html => "it is a web page, so a download went wrong; download it again",
            Self::Json => "it is JSON text; name the .safetensors file, or an index that ends in .json",
            Self::Gzip => "it is gzip-compressed; decompress it first",
            Self::Hdf5 => "it is an HDF5 file; convert it to safetensors",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart() {
        let cases: [(&[u8], Option<ForeignFormat>); 14] = [
            (b"PK\x03\x04\x00\x00\x08\x08", Some(ForeignFormat::Zip)),
            (b"\x80\x02\x8a\x0al\xfc", Some(ForeignFormat::Pickle)),
            (b"\x80\x04\x95", Some(ForeignFormat::Pickle)),
            (b"\x80\x09\x95", None),
            (b"GGUF\x03\x00\x00\x00", Some(ForeignFormat::Gguf)),
            (
                b"version https://git-lfs.github.com/spec/v1\n",
                Some(ForeignFormat::LfsPointer),
            ),
            (b"\n <!DOCTYPE html>", Some(ForeignFormat::Html)),
            (b"<HTML>", Some(ForeignFormat::Html)),
            (b"\xef\xbb\xbf{\"a\":1}", Some(ForeignFormat::Json)),
            (b"{\n \"metadata\"", Some(ForeignFormat::Json)),
            (b"\x1f\x8b\x08", Some(ForeignFormat::Gzip)),
            (b"\x89HDF\r\n\x1a\n", Some(ForeignFormat::Hdf5)),
            (b"", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ];
        for (bytes, format) in cases {
            assert_eq!(ForeignFormat::detect(bytes), format, "{bytes:?}");
        }
    }
}
