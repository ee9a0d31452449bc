//! Answers that are reused: a resolver and a policy are functions of component, settings and input.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// Answers kept per component; the oldest go first.
const CAPACITY: usize = 4_096;

/// The answers of one component with one set of settings, so that only the input is left for the key.
pub(crate) struct Memo<V> {
    kept: Mutex<Kept<V>>,
    capacity: usize,
}

struct Kept<V> {
    answers: HashMap<Key, (V, Option<Instant>)>,
    order: VecDeque<Key>,
}

/// Digest of an input.
pub(crate) type Key = [u8; 32];

/// Digest of whatever makes the answer.
pub(crate) fn key(input: &impl Serialize) -> Option<Key> {
    let mut hasher = Sha256::new();
    serde_json::to_writer(Writer(&mut hasher), input).ok()?;
    Some(hasher.finalize().into())
}

struct Writer<'a>(&'a mut Sha256);

impl std::io::Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<V: Clone> Memo<V> {
    pub(crate) fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    fn with_capacity(capacity: usize) -> Self {
        let kept = Kept {
            answers: HashMap::new(),
            order: VecDeque::new(),
        };
        Self {
            kept: Mutex::new(kept),
            capacity,
        }
    }

    pub(crate) fn get(&self, key: &Key, now: Instant) -> Option<V> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, until) = kept.answers.get(key)?;
        until.is_none_or(|until| now < until).then(|| answer.clone())
    }

    pub(crate) fn put(&self, key: Key, answer: V, valid_for: Option<Duration>, now: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let until = valid_for.and_then(|valid_for| now.checked_add(valid_for));
        if kept.answers.insert(key, (answer, until)).is_none() {
            kept.order.push_back(key);
        }
        while kept.order.len() > self.capacity {
            if let Some(oldest) = kept.order.pop_front() {
                kept.answers.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_reused_for_equal_input_while_it_is_valid() {
        let memo = Memo::new();
        let now = Instant::now();
        let same = key(&("claim", "a")).unwrap();
        memo.put(same, 1, Some(Duration::from_secs(10)), now);
        assert_eq!(memo.get(&key(&("claim", "a")).unwrap(), now), Some(1));
        assert_eq!(memo.get(&key(&("claim", "b")).unwrap(), now), None);
        assert_eq!(memo.get(&same, now + Duration::from_secs(10)), None);
    }

    #[test]
    fn the_memory_of_answers_is_bounded_and_the_oldest_go_first() {
        let memo = Memo::with_capacity(3);
        let now = Instant::now();
        let keys: Vec<Key> = (0..10).map(|n| key(&n).unwrap()).collect();
        for (n, key) in keys.iter().enumerate() {
            memo.put(*key, n, None, now);
        }
        let left: Vec<_> = keys.iter().filter_map(|key| memo.get(key, now)).collect();
        assert_eq!(left, [7, 8, 9]);
    }
}
