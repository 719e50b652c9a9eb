//! Where the header ends, where the file ends, and what is no safetensors file at all.

use tenslab::weights::{ForeignFormat, FormatFault, Header, HeaderLimits};

use crate::checkpoint_files::{file, packed};
use crate::{fault, names, read};

#[test]
fn empty_and_seven_bytes_are_too_small() {
    assert_eq!(fault(b""), FormatFault::Empty);
    assert_eq!(fault(&[1; 7]), FormatFault::TooSmall { file_bytes: 7 });
}

#[test]
fn a_header_of_zero_bytes_is_an_error() {
    assert_eq!(fault(&[0; 8]), FormatFault::EmptyHeader);
    assert_eq!(fault(&[0; 4096]), FormatFault::EmptyHeader);
}

#[test]
fn an_empty_object_is_a_checkpoint_without_tensors() {
    assert!(names(&file("{}", 0)).is_empty());
}

#[test]
fn a_header_longer_than_its_file_is_truncated_and_costs_no_memory() {
    let within = [
        (32 << 20, HeaderLimits::default()),
        (100_000_000, HeaderLimits::of_format()),
    ];
    for (header_bytes, limits) in within {
        let mut bytes = u64::to_le_bytes(header_bytes).to_vec();
        bytes.extend(b"{}");
        assert_eq!(
            Header::from_bytes(&bytes, &limits),
            Err(FormatFault::HeaderTruncated {
                needed_bytes: header_bytes + 8,
                file_bytes: 10
            })
        );
    }
}

#[test]
fn one_byte_short_is_truncated_by_one_byte() {
    let (json, bytes) = packed(&[("a", "U8", &[4], 4), ("b", "F32", &[2], 8)]);
    let whole = file(&json, bytes);
    let needed_bytes = whole.len() as u64;
    let fault = fault(&whole[..whole.len() - 1]);
    assert_eq!(
        fault,
        FormatFault::Truncated {
            name: "b".into(),
            needed_bytes,
            file_bytes: needed_bytes - 1
        }
    );
    assert!(fault.to_string().contains("1 are missing"), "{fault}");
    // Every other length, down to the header's first byte.
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn trailing_bytes_are_an_error_unless_allowed() {
    let (json, bytes) = packed(&[("x", "U8", &[3], 3)]);
    for (file, trailing) in [(file("{}", 1), 1), (file(&json, bytes + 5), 5)] {
        let expected_bytes = (file.len() - trailing) as u64;
        let trailing_bytes = trailing as u64;
        assert_eq!(
            fault(&file),
            FormatFault::TrailingBytes {
                trailing_bytes,
                expected_bytes
            }
        );
        let lenient = HeaderLimits {
            allow_trailing: true,
            ..HeaderLimits::default()
        };
        assert!(Header::from_bytes(&file, &lenient).is_ok());
    }
}

#[test]
fn spaces_around_the_json_are_padding() {
    let (json, bytes) = packed(&[("x", "F32", &[1], 4)]);
    assert_eq!(names(&file(&format!("  \n\t{json}   "), bytes)), ["x"]);
    assert_eq!(
        names(&file(&format!("{}{json}", " ".repeat(4096)), bytes)),
        ["x"]
    );
    for padding in ["\0", "x", "{}", "\u{a0}"] {
        let fault = fault(&file(&format!("{json}{padding}"), bytes));
        assert!(matches!(fault, FormatFault::BadJson { .. }), "{fault:?}");
    }
}

#[test]
fn other_formats_are_called_by_their_names() {
    let cases: [(&[u8], ForeignFormat); 7] = [
        (
            b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl",
            ForeignFormat::Zip,
        ),
        (
            b"\x80\x02}q\x00X\x06\x00\x00\x00weight",
            ForeignFormat::Pickle,
        ),
        (b"GGUF\x03\x00\x00\x00\x10\x01\x00\x00", ForeignFormat::Gguf),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            ForeignFormat::LfsPointer,
        ),
        (
            b"<!DOCTYPE html><html><body>404</body></html>",
            ForeignFormat::Html,
        ),
        (b"{\"model_type\": \"llama\"}", ForeignFormat::Json),
        (b"{}", ForeignFormat::Json),
    ];
    for (bytes, format) in cases {
        let fault = fault(bytes);
        assert_eq!(fault, FormatFault::Foreign { format });
        assert!(
            fault
                .to_string()
                .starts_with("not a safetensors file: it is "),
            "{fault}"
        );
    }
}
