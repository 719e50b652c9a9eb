//! Sizes as people write them: `4GiB`, `512MiB`, `8GB`, `1.5 GiB`, `4294967296`.

/// The units, and how many bytes one is. Not `4G`: some mean 4 * 1024^3 by it, others
/// 4 * 1000^3.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

const HOW: &str = "write a number and a unit: 4GiB, 512MiB, 8GB, or plain bytes";

/// The bytes that `text` says, rounded down; or what is wrong with it and how to write it.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let trimmed = text.trim();
    let number_end = trimmed
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
        return Err(format!("not a size: {HOW}"));
    }
    let Some(&(_, unit_bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        if let letter @ ("k" | "m" | "g" | "t") = unit.as_str() {
            let letter = letter.to_ascii_uppercase();
            return Err(format!(
                "{letter} may be 1024 or 1000 to a step: write {letter}iB or {letter}B"
            ));
        }
        return Err(format!("unknown unit: {HOW}"));
    };
    exact(whole, fraction, unit_bytes)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| {
            format!(
                "more bytes than there are addresses ({} is the most)",
                usize::MAX
            )
        })
}

/// `whole.fraction` units in bytes, rounded down. `None` if it is too much.
fn exact(whole: &str, fraction: &str, unit_bytes: u64) -> Option<u64> {
    let unit = u128::from(unit_bytes);
    let mut bytes = whole
        .parse::<u64>()
        .ok()
        .map(u128::from)?
        .checked_mul(unit)?;
    // More digits than these are less than a byte of a terabyte.
    let digits = &fraction[..fraction.len().min(18)];
    if let Ok(part) = digits.parse::<u64>() {
        let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
        bytes += u128::from(part) * unit / scale;
    }
    u64::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, expected) in [
            ("0", 0),
            ("4294967296", 4 << 30),
            ("4GiB", 4 << 30),
            (" 4 gib ", 4 << 30),
            ("512MiB", 512 << 20),
            ("16KiB", 16 << 10),
            ("2TiB", 2 << 40),
            ("8GB", 8_000_000_000),
            ("3MB", 3_000_000),
            ("1.5GiB", 3 << 29),
            ("0.1GB", 100_000_000),
            ("4.375 GiB", 4_697_620_480),
            ("1.9999999999999999999999999KiB", 2047),
            ("7B", 7),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        assert_eq!(bytes(&usize::MAX.to_string()), Ok(usize::MAX));
    }

    #[test]
    fn what_is_no_size_says_how_to_write_one() {
        for (text, part) in [
            ("", "not a size"),
            ("GiB", "not a size"),
            (".5GiB", "not a size"),
            ("1.GiB", "not a size"),
            ("1.2.3GiB", "not a size"),
            ("-1", "not a size"),
            ("4GiBs", "4GiB, 512MiB, 8GB, or plain bytes"),
            ("4G", "write GiB or GB"),
            ("4m", "write MiB or MB"),
            ("1e9", "unknown unit"),
            ("18446744073709551616", "more bytes than there are"),
            ("99999999999TiB", "more bytes than there are"),
            ("4 294 967 296", "unknown unit"),
            ("４GiB", "not a size"),
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
