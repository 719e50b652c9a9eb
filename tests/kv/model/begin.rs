//! How a sequence of the model begins: what it finds, what it needs, and who is refused.

use tenslab::kv::{KvError, Namespace};
use tenslab::memory::AllocError;

use super::op::Request;
use super::{Lab, SEQUENCES, Twin, WIDTH};

impl Lab {
    pub(super) fn acquire(&mut self, request: &Request) -> bool {
        let Request {
            ref prompt,
            salt,
            reserve,
            max_hit,
            watermark,
        } = *request;
        let namespace = Namespace::default().with_salt(salt.into());
        let wanted = prompt.len() + reserve;
        let (block_tokens, max) = (self.block_tokens(), WIDTH * self.block_tokens());
        let cache = &self.cache;
        let (stats, before) = (cache.stats(), cache.counters());
        let admits = cache.can_admit(prompt, &namespace, reserve, max_hit, watermark);
        let admission = cache.admission(prompt, &namespace, reserve, max_hit);
        assert_eq!(cache.stats(), stats, "asking changes nothing");
        // As far as the request may forget idle blocks.
        let evictable = admission
            .as_ref()
            .map_or(0, |admission| admission.evictable);
        let room_for = self.room(&stats, evictable);
        let got = cache.acquire(prompt, &namespace, reserve, max_hit);
        let after = cache.counters();
        if wanted > max {
            let expected = KvError::SequenceTooLong {
                tokens: wanted,
                max,
            };
            assert_eq!(admission.unwrap_err(), expected);
            assert_eq!(got.unwrap_err(), expected);
            assert!(!admits);
            return false;
        }
        let admission = admission.unwrap();
        // What is found in whole blocks is not needed, and all else is.
        let need = admission.need;
        let shared = admission.hit_tokens / block_tokens;
        assert_eq!(need, wanted.div_ceil(block_tokens) - shared);
        assert_eq!(
            (admission.free, admission.sequences, admission.max_sequences),
            (stats.blocks_free, self.twins.len(), SEQUENCES)
        );
        let idle = stats.blocks_idle;
        assert!((idle.saturating_sub(shared)..=idle).contains(&evictable));
        let room = stats.blocks_free + evictable;
        let kept = if self.twins.is_empty() { 0 } else { watermark };
        let has_slot = self.twins.len() < SEQUENCES;
        assert_eq!(admits, has_slot && need + kept <= room);

        if !has_slot {
            assert_eq!(got.unwrap_err(), KvError::OutOfSequences { max: SEQUENCES });
            assert_eq!(self.cache.stats(), stats);
            return false;
        }
        if need > room {
            let expected = KvError::OutOfBlocks {
                need,
                free: admission.free,
                evictable,
                total: self.blocks,
            };
            assert_eq!(got.unwrap_err(), expected);
            assert_eq!(self.cache.stats(), stats);
            return false;
        }
        let real = match got {
            Ok(real) => real,
            Err(KvError::Alloc(AllocError::OverBudget { .. })) => {
                let partial = self.cache.options().partial_hits();
                let lacks = room_for.lacks_memory_for(need);
                assert!(lacks || partial && room_for.lacks_memory_with_source(need));
                self.assert_only_forgot(stats);
                self.seen.refused_memory += 1;
                return false;
            }
            Err(error) => panic!("{error:?}"),
        };
        assert!(!room_for.lacks_memory_for(need), "{need} of {room_for:?}");
        self.seen.warmed += u64::from(room_for.takes_cold(need));
        assert_eq!(real.block_ids().count(), wanted.div_ceil(block_tokens));
        assert_eq!(after.taken_blocks - before.taken_blocks, need as u64);
        let hit = real.hit_tokens();
        assert_eq!((hit, real.len()), (admission.hit_tokens, hit));
        assert_eq!(after.hit_tokens - before.hit_tokens, hit as u64);
        let most = max_hit.unwrap_or(prompt.len().saturating_sub(1));
        self.assert_found(prompt, namespace, hit, most.min(prompt.len()));
        self.twins.push(Twin {
            real,
            namespace,
            tokens: prompt[..hit].to_vec(),
            prompt: prompt.clone(),
            leaked: false,
            cut: false,
            untouched_from: hit,
        });
        true
    }

    /// Of a prompt of which `most` tokens may be found, `hit` are.
    fn assert_found(&self, prompt: &[u32], namespace: Namespace, hit: usize, most: usize) {
        assert!(hit <= most, "{hit} of {most}");
        for len in 1..=hit {
            let beginning = (namespace, prompt[..len].to_vec());
            let known = self.known.contains(&beginning);
            assert!(known, "{len} tokens were never there");
        }
        let block_tokens = self.block_tokens();
        let counters = self.cache.counters();
        let evicted = counters.evicted_for_space + counters.evicted_for_pressure;
        if self.cache.options().prefix_caching() && evicted == 0 {
            let whole = |blocks: &usize| {
                let beginning = prompt[..blocks * block_tokens].to_vec();
                self.whole.contains(&(namespace, beginning))
            };
            let expected = (1..=most / block_tokens).take_while(whole).count();
            let found = hit / block_tokens;
            assert!(found >= expected, "{expected} whole blocks are there");
        }
    }
}
