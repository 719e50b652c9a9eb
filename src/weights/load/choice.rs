//! Which tensors are loaded, and of which of them a part.

use std::fmt;

use super::shard::Shard;
use crate::sync::Arc;
use crate::weights::similar::similar;
use crate::weights::{Checkpoint, WeightEntry, WeightsError};

/// Which tensors of a checkpoint are loaded.
///
/// ```
/// use tenslab::weights::{Choice, LoadOptions, Weights, WeightsError, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let zeros = || Tensor::zeros([4], DType::F32, memory::cpu());
/// save(&path, &[("layers.0.up", zeros()?), ("layers.1.up", zeros()?)], &Default::default())?;
///
/// let choice = Choice::matching(["layers.1.*"]);
/// let options = LoadOptions { choice, ..LoadOptions::default() };
/// let weights = Weights::load(&path, &options)?;
/// assert_eq!(weights.names().collect::<Vec<_>>(), ["layers.1.up"]);
/// assert!(matches!(weights.get("layers.0.up"), Err(WeightsError::LeftOut { .. })));
/// assert_eq!(weights.report().read_bytes, 16);          // the other one was not read
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Choice(Kind);

/// In a box within the `Arc`, for loom's cannot be made `dyn` once it is shared.
type Wanted = Arc<Box<dyn Fn(WeightEntry<'_>) -> bool + Send + Sync>>;

#[derive(Clone)]
enum Kind {
    All,
    Patterns(Vec<String>),
    By(Wanted),
}

impl Choice {
    /// All of them.
    #[must_use]
    pub fn all() -> Self {
        Self(Kind::All)
    }

    /// Those whose whole name matches one of these patterns: `*` stands for any text, dots
    /// and nothing at all included, `?` for any one character, all else for itself.
    #[must_use]
    pub fn matching<I>(patterns: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self(Kind::Patterns(
            patterns.into_iter().map(Into::into).collect(),
        ))
    }

    /// Those for which the answer is yes. It is asked once for each tensor, in their order.
    #[must_use]
    pub fn by(wanted: impl Fn(WeightEntry<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self(Kind::By(Arc::new(Box::new(wanted))))
    }

    /// By position among the entries: is it loaded?
    pub(super) fn of(
        &self,
        checkpoint: &Checkpoint,
        allow_unmatched: bool,
    ) -> Result<Vec<bool>, WeightsError> {
        let entries = checkpoint.entries();
        match &self.0 {
            Kind::All => Ok(vec![true; entries.len()]),
            Kind::By(wanted) => Ok(entries.map(&**wanted).collect()),
            Kind::Patterns(patterns) => {
                let mut chosen = vec![false; entries.len()];
                for pattern in patterns {
                    let mut matched = false;
                    for at in matching(checkpoint, pattern) {
                        chosen[at] = true;
                        matched = true;
                    }
                    if !matched && !allow_unmatched {
                        return Err(nothing_matches(checkpoint, pattern));
                    }
                }
                Ok(chosen)
            }
        }
    }
}

impl Default for Choice {
    /// All of them.
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::All => f.write_str("all"),
            Kind::Patterns(patterns) => f.debug_list().entries(patterns).finish(),
            Kind::By(_) => f.write_str("by a closure"),
        }
    }
}

/// Of which tensors only a part is loaded, or that they are loaded whole.
///
/// ```
/// use tenslab::weights::{Shard, ShardRule};
///
/// // Megatron's cut, for rank 1 of 4: rows of what widens, columns of what narrows.
/// let rows = Shard { dim: 0, rank: 1, world: 4, uneven: false };
/// let rules = vec![
///     ShardRule::whole("*norm*"),
///     ShardRule::part("*.down_proj.weight", Shard { dim: 1, ..rows }),
///     ShardRule::part("*_proj.weight", rows),
/// ];
/// # assert_eq!(rules.len(), 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRule {
    /// Whose names: as in [`Choice::matching`].
    pub pattern: String,
    /// Which part; none for all of it.
    pub shard: Option<Shard>,
}

impl ShardRule {
    /// Of the tensors with such a name, this part.
    #[must_use]
    pub fn part(pattern: impl Into<String>, shard: Shard) -> Self {
        let (pattern, shard) = (pattern.into(), Some(shard));
        Self { pattern, shard }
    }

    /// The tensors with such a name are loaded whole, whatever later rules say.
    #[must_use]
    pub fn whole(pattern: impl Into<String>) -> Self {
        let pattern = pattern.into();
        Self {
            pattern,
            shard: None,
        }
    }
}

/// The first rule for this name.
pub(super) fn shard_of(rules: &[ShardRule], name: &str) -> Option<Shard> {
    rules
        .iter()
        .find(|rule| matches(&rule.pattern, name))?
        .shard
}

/// Does each rule match some name?
pub(super) fn refuse_unmatched(
    rules: &[ShardRule],
    checkpoint: &Checkpoint,
) -> Result<(), WeightsError> {
    for rule in rules {
        if matching(checkpoint, &rule.pattern).next().is_none() {
            return Err(nothing_matches(checkpoint, &rule.pattern));
        }
    }
    Ok(())
}

/// The positions of the tensors whose names match. One without wildcards is looked up: a list
/// of a million names is fine.
fn matching<'a>(
    checkpoint: &'a Checkpoint,
    pattern: &'a str,
) -> Box<dyn Iterator<Item = usize> + 'a> {
    if !pattern.contains(['*', '?']) {
        return Box::new(checkpoint.position(pattern).into_iter());
    }
    let entries = checkpoint.entries().enumerate();
    Box::new(entries.filter_map(move |(at, entry)| matches(pattern, entry.name()).then_some(at)))
}

fn nothing_matches(checkpoint: &Checkpoint, pattern: &str) -> WeightsError {
    // What the wildcards stand for is not known, so the rest has to resemble a name.
    let letters: String = pattern.chars().filter(|letter| *letter != '*').collect();
    let names = checkpoint.entries().map(WeightEntry::name);
    WeightsError::NothingMatches {
        path: checkpoint.path().into(),
        pattern: pattern.into(),
        tensors: checkpoint.entries().len(),
        close: similar(&letters, names),
    }
}

/// `*` is any text, `?` one character. At most as many steps as the product of the lengths:
/// only the last star is ever tried again.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // Behind the last star, and from where on in the name it may begin to match.
    let mut last_star = None;
    loop {
        let (mut wanted, mut rest) = (pattern.clone(), name.clone());
        let fits = match (wanted.next(), rest.next()) {
            (Some('*'), _) => {
                last_star = Some((wanted.clone(), name.clone()));
                pattern = wanted;
                continue;
            }
            (Some('?'), Some(_)) => true,
            (None, None) => return true,
            (wanted, letter) => wanted.is_some() && wanted == letter,
        };
        if fits {
            (pattern, name) = (wanted, rest);
            continue;
        }
        // The star takes one character more.
        let Some((behind, from)) = &mut last_star else {
            return false;
        };
        if from.next().is_none() {
            return false;
        }
        (pattern, name) = (behind.clone(), from.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, without a thought for time.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match (pattern.first(), name.first()) {
            (None, _) => name.is_empty(),
            (Some('*'), _) => (0..=name.len()).any(|at| by_definition(&pattern[1..], &name[at..])),
            (Some('?'), Some(_)) => by_definition(&pattern[1..], &name[1..]),
            (Some(a), Some(b)) => a == b && by_definition(&pattern[1..], &name[1..]),
            (Some(_), None) => false,
        }
    }

    #[test]
    fn patterns_match_as_they_are_defined() {
        // All texts of up to 4 (patterns) and 5 (names) of a few letters.
        let texts = |letters: &[char], most: usize| {
            let mut all = vec![Vec::new()];
            let mut last = all.clone();
            for _ in 0..most {
                last = last
                    .iter()
                    .flat_map(|text| letters.iter().map(|l| [text.as_slice(), &[*l]].concat()))
                    .collect();
                all.extend(last.clone());
            }
            all
        };
        let (mut yes, mut no) = (0, 0);
        for pattern in texts(&['*', '?', 'a', 'ä'], 4) {
            for name in texts(&['a', 'ä', '*'], 5) {
                let expected = by_definition(&pattern, &name);
                let (p, n): (String, String) = (pattern.iter().collect(), name.iter().collect());
                assert_eq!(matches(&p, &n), expected, "{p:?} {n:?}");
                if expected { yes += 1 } else { no += 1 }
            }
        }
        assert!(yes > 10_000 && no > 10_000, "{yes} {no}");
    }

    #[test]
    fn many_stars_cost_a_product_and_not_a_power() {
        let name = "a".repeat(60_000);
        assert!(!matches("*a*a*a*a*a*a*a*a*a*a*b", &name));
        assert!(matches("*a*a*a*a*a*a*a*a*a*a*", &name));
    }
}
