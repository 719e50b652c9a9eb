//! Names that resemble a name nobody has, for the error message.

/// Names are compared one by one; above this many it would take too long.
const MOST_NAMES: usize = 20_000;
/// Longer names are not compared letter by letter.
const MOST_LETTERS: usize = 200;
/// How many are named.
const SHOWN: usize = 3;

/// Up to three of `names` that resemble `wanted`, the closest first.
///
/// Close is: one ends with the other (a missing `model.`), or a few letters
/// differ. Time is bounded by [`MOST_NAMES`] times the square of [`MOST_LETTERS`].
pub(super) fn similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let limit = (wanted.chars().count() / 5).max(2);
    let mut close: Vec<(usize, &str)> = names
        .take(MOST_NAMES)
        .filter_map(|name| {
            let shorter = wanted.len().min(name.len());
            if shorter > 3 && (name.ends_with(wanted) || wanted.ends_with(name)) {
                return Some((0, name));
            }
            distance(wanted, name, limit).map(|distance| (distance, name))
        })
        .collect();
    close.sort_unstable();
    close.truncate(SHOWN);
    close.into_iter().map(|(_, name)| name.into()).collect()
}

/// How many letters to insert, remove or replace; `None` above `limit`.
fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().max(b.len()) > MOST_LETTERS || a.len().abs_diff(b.len()) > limit {
        return None;
    }
    // row[j]: the distance from the letters of `a` so far to the first j of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let replace = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
        if row.iter().all(|&distance| distance > limit) {
            return None;
        }
    }
    row.last().copied().filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_and_a_missing_prefix_are_close() {
        let names = [
            "model.norm.weight",
            "model.embed_tokens.weight",
            "lm_head.weight",
        ];
        let of = |wanted| similar(wanted, names.iter().copied());
        assert_eq!(of("model.nrom.weight"), ["model.norm.weight"]);
        assert_eq!(of("embed_tokens.weight"), ["model.embed_tokens.weight"]);
        assert!(of("transformer.wte").is_empty());
        assert!(of("").is_empty());
    }

    #[test]
    fn distances_are_letters() {
        assert_eq!(distance("kitten", "sitting", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("", "ab", 2), Some(2));
        assert_eq!(distance("häuser", "hauser", 2), Some(1));
    }
}
