//! The oracle's rule: when is a generated text right?
//!
//! An independent float64 program wrote down, for each step of a greedy run, the
//! highest logits and the id it chose. Another program that computes in f32, or keeps
//! keys and values in half precision, is off by a little. So step by step:
//!
//! - each of the oracle's logits is met within the tolerance;
//! - the id is the oracle's. Where the oracle's two highest logits are less than twice
//!   the tolerance apart, the second id is right too. A run that took it goes on with
//!   another text, and the comparison ends there, unless the oracle's ids were fed.
//!
//! The tolerances are those of the oracle's README; its own peers keep within them.

use serde_json::Value;

/// Ids and logits, the highest first.
pub(crate) type Highest = (Vec<u32>, Vec<f64>);

/// A greedy run as it must be.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// Number format of the weights: f32, f16 or bf16.
    pub(crate) weights: String,
    /// The prompt.
    pub(crate) prompt: Vec<u32>,
    /// The text the prompt came from, where there is one.
    pub(crate) text: Option<String>,
    /// The chosen ids.
    pub(crate) greedy: Vec<u32>,
    /// What each was chosen from.
    pub(crate) highest: Vec<Highest>,
}

/// A run as it was.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The chosen ids.
    pub(crate) tokens: Vec<u32>,
    /// What each was chosen from.
    pub(crate) highest: Vec<Highest>,
}

/// How far a logit may be off, with keys and values in this format.
pub(crate) fn tolerance(kv_dtype: &str) -> f64 {
    match kv_dtype {
        "f32" => 1e-3,
        "f16" => 0.05,
        "bf16" => 0.2,
        other => panic!("no tolerance for {other}"),
    }
}

impl Expected {
    /// Compares by the rule. `fed` says that each step was fed the oracle's id, whatever
    /// the run chose itself. Returns how many steps were compared.
    pub(crate) fn compare(
        &self,
        found: &Found,
        tolerance: f64,
        fed: bool,
    ) -> Result<usize, String> {
        let steps = self.greedy.len();
        if found.tokens.len() != steps || found.highest.len() != steps {
            return Err(format!(
                "{} tokens and {} lists for {steps} steps",
                found.tokens.len(),
                found.highest.len()
            ));
        }
        for step in 0..steps {
            let (ids, logits) = &self.highest[step];
            met(&self.highest[step], &found.highest[step], tolerance)
                .map_err(|what| format!("step {step}: {what}"))?;
            let chosen = found.tokens[step];
            if chosen != self.greedy[step] {
                let gap = logits[0] - logits[1];
                if gap >= 2.0 * tolerance || chosen != ids[1] {
                    return Err(format!(
                        "step {step}: {chosen} for {}, which leads by {gap}",
                        self.greedy[step]
                    ));
                }
                if !fed {
                    return Ok(step);
                }
            }
        }
        Ok(steps)
    }
}

/// Is each of the expected logits met?
fn met(expected: &Highest, found: &Highest, tolerance: f64) -> Result<(), String> {
    let lowest = found.1.last().copied().unwrap_or(f64::INFINITY);
    for (id, logit) in expected.0.iter().zip(&expected.1) {
        let Some(at) = found.0.iter().position(|other| other == id) else {
            // Another one may have pushed it off the list, if they are about equal.
            if *logit > lowest + tolerance {
                return Err(format!("{id} with {logit} is missing in {found:?}"));
            }
            continue;
        };
        let off = (found.1[at] - logit).abs();
        if off.is_nan() || off > tolerance {
            return Err(format!(
                "logit of {id} is {} for {logit}: off by {off}",
                found.1[at]
            ));
        }
    }
    Ok(())
}

/// The runs of `tiny-llama/oracle.json`.
pub(crate) fn tiny_llama(oracle: &Value) -> Vec<Expected> {
    let runs = oracle["runs"].as_array().expect("runs");
    runs.iter()
        .map(|run| {
            expected(
                run["weights"].as_str().expect("weights"),
                &run["ids"],
                None,
                run,
                "top3",
            )
        })
        .collect()
}

/// The runs of `smollm2_oracle.json` with weights of that format, f32 or bf16.
pub(crate) fn smollm2(oracle: &Value, weights: &str) -> Vec<Expected> {
    let runs = oracle["runs"].as_array().expect("runs");
    let of = |run: &Value| {
        let text = run["prompt"].as_str().map(str::to_owned);
        expected(
            weights,
            &run["ids"],
            text,
            &run[format!("weights_{weights}")],
            "top5",
        )
    };
    runs.iter().map(of).collect()
}

fn expected(
    weights: &str,
    prompt: &Value,
    text: Option<String>,
    run: &Value,
    list: &str,
) -> Expected {
    let highest: Vec<Highest> = run[list]
        .as_array()
        .expect("lists")
        .iter()
        .map(highest)
        .collect();
    let greedy = ids(&run["greedy"]);
    assert_eq!(greedy.len(), highest.len(), "the oracle itself");
    Expected {
        weights: weights.into(),
        prompt: ids(prompt),
        text,
        greedy,
        highest,
    }
}

/// Numbers of a JSON list, as ids.
pub(crate) fn ids(list: &Value) -> Vec<u32> {
    let id = |id: &Value| u32::try_from(id.as_u64().expect("an id")).expect("an id");
    list.as_array()
        .expect("a list of ids")
        .iter()
        .map(id)
        .collect()
}

/// `[[ids], [logits]]`.
pub(crate) fn highest(pair: &Value) -> Highest {
    let logits = pair[1]
        .as_array()
        .expect("logits")
        .iter()
        .map(|logit| logit.as_f64().expect("a logit"));
    (ids(&pair[0]), logits.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        let highest: Vec<Highest> = vec![
            (vec![7, 3, 5], vec![9.0, 4.0, 3.0]),
            (vec![2, 7, 1], vec![6.0, 5.95, 1.0]),
            (vec![4, 1, 2], vec![8.0, 2.0, 1.0]),
        ];
        Expected {
            weights: "f32".into(),
            prompt: vec![1],
            text: None,
            greedy: vec![7, 2, 4],
            highest,
        }
    }

    fn found() -> Found {
        let expected = expected();
        Found {
            tokens: expected.greedy,
            highest: expected.highest,
        }
    }

    #[test]
    fn the_same_run_is_right_to_the_end() {
        assert_eq!(expected().compare(&found(), 1e-3, false), Ok(3));
    }

    #[test]
    fn a_logit_that_is_off_is_an_error_at_its_step() {
        let mut off = found();
        off.highest[2].1[1] += 0.002;
        let error = expected().compare(&off, 1e-3, false).unwrap_err();
        assert!(error.starts_with("step 2: logit of 1"), "{error}");
        assert_eq!(expected().compare(&off, 0.05, false), Ok(3));
        off.highest[2].1[1] = f64::NAN;
        assert!(expected().compare(&off, 0.05, false).is_err());
    }

    #[test]
    fn another_id_is_right_only_where_two_are_about_equal() {
        let mut other = found();
        other.tokens[1] = 7;
        assert!(
            expected().compare(&other, 1e-3, false).is_err(),
            "0.05 apart, 0.001 allowed"
        );
        assert_eq!(
            expected().compare(&other, 0.05, false),
            Ok(1),
            "the text goes another way"
        );
        assert_eq!(
            expected().compare(&other, 0.05, true),
            Ok(3),
            "unless the oracle's is fed"
        );
        other.tokens[1] = 1;
        assert!(
            expected().compare(&other, 0.05, true).is_err(),
            "the third is never right"
        );
        let mut wrong = found();
        wrong.tokens[0] = 3;
        assert!(expected().compare(&wrong, 0.2, true).is_err(), "5 apart");
    }

    #[test]
    fn a_missing_id_is_an_error_unless_it_is_about_as_high_as_the_last() {
        let mut missing = found();
        missing.highest[0] = (vec![7, 3, 9], vec![9.0, 4.0, 3.02]);
        assert_eq!(expected().compare(&missing, 0.05, false), Ok(3));
        missing.highest[0] = (vec![7, 9, 5], vec![9.0, 4.0, 3.0]);
        assert!(expected().compare(&missing, 0.05, false).is_err());
    }

    #[test]
    fn a_short_run_is_an_error() {
        let mut short = found();
        short.tokens.pop();
        assert!(expected().compare(&short, 0.2, false).is_err());
    }
}
