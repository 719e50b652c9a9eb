//! The numbers of `../shared/data/traces/README.md`: first from the simulator, so that the
//! definitions are understood, then from the program.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::TOOL;
use super::naive;
use super::shared_data::shared;

const MOONCAKE: &str = "traces/mooncake_conversation_trace.jsonl";
const AZURE: &str = "traces/AzureLLMInferenceTrace_code.csv";

/// Blocks of the cache, hits, evictions.
const MOONCAKE_NUMBERS: [(usize, usize, usize); 3] = [
    (2_000, 15_944, 258_547),
    (16_000, 77_277, 183_214),
    (200_000, 105_592, 0),
];

/// Another reader than the program's own.
fn mooncake(path: &Path) -> Vec<Vec<u64>> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| {
            let request: Value = serde_json::from_str(line).unwrap();
            let full = request["input_length"].as_u64().unwrap() / 512;
            let ids = request["hash_ids"].as_array().unwrap();
            let ids = ids.iter().map(|id| id.as_u64().unwrap());
            ids.take(usize::try_from(full).unwrap()).collect()
        })
        .collect()
}

/// In ticks of 100 ns since midnight: the trace is one of an evening.
fn azure(path: &Path) -> Vec<naive::Arrival> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .skip(1)
        .map(|line| {
            let digits = |range: std::ops::Range<usize>| line[range].parse::<u64>().unwrap();
            let seconds = (digits(11..13) * 60 + digits(14..16)) * 60 + digits(17..19);
            let at = seconds * 10_000_000 + digits(20..27);
            let tokens: Vec<usize> = line[28..].split(',').map(|n| n.parse().unwrap()).collect();
            naive::Arrival {
                at,
                end: at + tokens[1] as u64 * 200_000,
                tokens: tokens[0] + tokens[1],
            }
        })
        .collect()
}

#[test]
fn the_simulator_gives_the_published_numbers() {
    let Some(path) = shared(MOONCAKE) else {
        return;
    };
    let prompts = mooncake(&path);
    assert_eq!(prompts.len(), 12_031);
    for (capacity, hits, evictions) in MOONCAKE_NUMBERS {
        for in_flight in [1, 8, 32] {
            let counts = naive::prompts(&prompts, capacity, in_flight);
            assert_eq!(counts.blocks, 276_491);
            let case = format!("{capacity} blocks, {in_flight} in flight");
            assert_eq!(counts.hits, hits, "{case}");
            assert_eq!(counts.evictions, evictions, "{case}");
            assert_eq!((counts.bypassed, counts.finished_early), (0, 0), "{case}");
        }
    }

    let Some(path) = shared(AZURE) else {
        return;
    };
    let churn = naive::arrivals(&azure(&path), 16);
    assert_eq!(
        (churn.allocations, churn.peak_blocks, churn.peak_sequences),
        (1_148_326, 5_447, 44)
    );
    let waste = churn.empty_slots as f64 / (churn.allocations * 16) as f64;
    assert_eq!(format!("{:.2} %", waste * 100.0), "0.37 %");
}

#[test]
fn the_program_gives_the_published_mooncake_numbers() {
    let Some(path) = shared(MOONCAKE) else {
        return;
    };
    let prompts = mooncake(&path);
    for (capacity, hits, evictions) in MOONCAKE_NUMBERS {
        for in_flight in [1, 8, 32] {
            let case = format!("{capacity} blocks, {in_flight} in flight");
            let (capacity_flag, in_flight_flag) = (capacity.to_string(), in_flight.to_string());
            let flags = ["--blocks", &capacity_flag, "--in-flight", &in_flight_flag];
            let report = TOOL.answer(&path, &flags);
            assert_eq!(report["requests"], 12_031, "{case}");
            assert_eq!(report["blocks"], 276_491, "{case}");
            assert_eq!(report["hits"], hits, "{case}");
            assert_eq!(report["evictions"], evictions, "{case}");
            assert_eq!(report["bypassed"], 0, "{case}");
            assert_eq!(report["waste"], 0.0, "{case}");
            assert_eq!(report["heap_blocks_per_request"], 0.0, "{case}");
            let counts = naive::prompts(&prompts, capacity, in_flight);
            assert_eq!(report["peak_pinned"], counts.peak_pinned, "{case}");
        }
    }
}

#[test]
fn the_program_gives_the_published_azure_numbers() {
    let Some(path) = shared(AZURE) else {
        return;
    };
    let report = TOOL.answer(&path, &["--blocks", "5447"]);
    assert_eq!(report["requests"], 8_819);
    assert_eq!(report["blocks"], 1_148_326);
    assert_eq!(report["allocations"], 1_148_326);
    assert_eq!(report["hits"], 0);
    assert_eq!(report["evictions"], 0);
    assert_eq!(report["finished_early"], 0);
    assert_eq!(report["peak_pinned"], 5_447);
    assert_eq!(report["peak_sequences"], 44);
    let churn = naive::arrivals(&azure(&path), 16);
    let waste = churn.empty_slots as f64 / (churn.allocations * 16) as f64;
    assert_eq!(report["waste"], waste);
    assert_eq!(report["heap_blocks_per_request"], 0.0);

    // One block less, and somebody has to go.
    let report = TOOL.answer(&path, &["--blocks", "5446"]);
    assert_eq!(report["blocks"], 1_148_326);
    assert!(report["finished_early"].as_u64().unwrap() > 0);
    assert!(report["peak_pinned"].as_u64().unwrap() <= 5_446);
}
