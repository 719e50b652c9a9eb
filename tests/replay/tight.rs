//! Caches so small that requests pass by or push each other out, against the simulator.

use super::TOOL;
use super::naive;
use super::program::{line, written};

/// Numbers that look like chance and are the same every time (a linear congruence).
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// Prompts that begin as an earlier one did and then go on with new blocks, as ids of a
/// Mooncake trace do: an id belongs to one prefix.
fn family(requests: usize, dice: &mut Dice) -> Vec<Vec<u64>> {
    let mut prompts: Vec<Vec<u64>> = vec![Vec::new()];
    let mut fresh = 0;
    while prompts.len() < requests {
        let like = &prompts[usize::try_from(dice.below(prompts.len() as u64)).unwrap()];
        let common = usize::try_from(dice.below(like.len() as u64 + 1)).unwrap();
        let mut prompt = like[..common].to_vec();
        for _ in 0..dice.below(7) {
            fresh += 1;
            prompt.push(fresh);
        }
        prompts.push(prompt);
    }
    prompts
}

#[test]
fn small_caches_count_as_the_simulator_does() {
    let mut dice = Dice(1);
    let mut seen = naive::Counts::default();
    for (capacity, in_flight) in [
        (1, 1),
        (6, 1),
        (6, 3),
        (10, 4),
        (16, 9),
        (40, 500),
        (900, 7),
    ] {
        let prompts = family(400, &mut dice);
        let trace = written(prompts.iter().map(|ids| line(ids)).collect::<String>());
        let (blocks, at_one_time) = (capacity.to_string(), in_flight.to_string());
        for block_tokens in ["1", "2", "16"] {
            let flags = ["--blocks", &blocks, "--in-flight", &at_one_time];
            let flags = [&flags[..], &["--block-tokens", block_tokens]].concat();
            let report = TOOL.answer(&trace.path, &flags);
            let count = |name: &str| usize::try_from(report[name].as_u64().unwrap()).unwrap();
            let counted = naive::Counts {
                blocks: count("blocks"),
                hits: count("hits"),
                evictions: count("evictions"),
                bypassed: count("bypassed"),
                finished_early: count("finished_early"),
                peak_pinned: count("peak_pinned"),
            };
            let expected = naive::prompts(&prompts, capacity, in_flight);
            assert_eq!(counted, expected, "{flags:?}");
            seen = naive::Counts {
                hits: seen.hits + counted.hits,
                bypassed: seen.bypassed + counted.bypassed,
                finished_early: seen.finished_early + counted.finished_early,
                evictions: seen.evictions + counted.evictions,
                ..seen
            };
        }
    }
    let each = [
        seen.hits,
        seen.bypassed,
        seen.finished_early,
        seen.evictions,
    ];
    assert!(
        each.iter().all(|&count| count > 100),
        "every case came up: {seen:?}"
    );
}
