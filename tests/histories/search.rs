//! Looks for an order of a history's parts in which each was possible: Wing and Gong's search, with Lowe's memory of
//! what was tried.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use crate::model::State;
use crate::record::Micros;
use crate::steps::Part;

/// Far more than any history of ours has needed. One that needs more has failed.
pub(crate) const NODES_MAX: usize = 150_000;

/// Why there is no order.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// The parts of the longest order that was found.
    pub(crate) done: Vec<usize>,
    /// What the model was in then.
    pub(crate) state: State,
    pub(crate) gave_up: bool,
}

type Bits = Vec<u64>;

fn has(bits: &Bits, part: usize) -> bool {
    bits[part / 64] & (1 << (part % 64)) != 0
}

fn with(bits: &Bits, part: usize) -> Bits {
    let mut bits = bits.clone();
    bits[part / 64] |= 1 << (part % 64);
    bits
}

/// What was tried, as a digest: the states themselves would fill the memory.
fn digest(done: &Bits, state: &State) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, done, state).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// How many nodes it took, or why there is no order among the first `limit`.
pub(crate) fn explain(parts: &[Part], limit: usize) -> Result<usize, Box<Stuck>> {
    let mut by_return: Vec<usize> = (0..parts.len()).collect();
    by_return.sort_by_key(|part| parts[*part].returned);
    let empty: Bits = vec![0; parts.len().div_ceil(64).max(1)];
    let mut stack = vec![(empty.clone(), State::default())];
    let mut seen: HashSet<u128> = HashSet::new();
    let mut stuck = Stuck {
        done: Vec::new(),
        state: State::default(),
        gave_up: false,
    };
    let mut most = None;
    while let Some((done, state)) = stack.pop() {
        if !seen.insert(digest(&done, &state)) {
            continue;
        }
        let next = candidates(parts, &by_return, &done);
        if (0..parts.len()).all(|part| has(&done, part) || parts[part].optional) {
            return Ok(seen.len());
        }
        let count = done.iter().map(|word| word.count_ones()).sum::<u32>();
        if most.is_none_or(|most| count > most) {
            most = Some(count);
            stuck.done = (0..parts.len()).filter(|part| has(&done, *part)).collect();
            stuck.state = state.clone();
        }
        if seen.len() > limit {
            stuck.gave_up = true;
            return Err(Box::new(stuck));
        }
        // A look that fits may come now: later would be no better. Not so a change that has nothing to do yet.
        let idle = next.iter().find(|part| {
            let part = &parts[**part];
            !part.optional && part.step.only_looks() && part.step.take(&state, part.at).is_some()
        });
        if let Some(part) = idle {
            stack.push((with(&done, *part), state));
            continue;
        }
        // The one that was answered first is tried first.
        for part in next.into_iter().rev() {
            for after in outcomes(&parts[part], &state) {
                stack.push((with(&done, part), after));
            }
        }
    }
    Err(Box::new(stuck))
}

/// The parts that may be next: those that were called before any other that is left was answered.
fn candidates(parts: &[Part], by_return: &[usize], done: &Bits) -> Vec<usize> {
    let left = by_return.iter().copied().filter(|part| !has(done, *part));
    let first: Option<Micros> = left.clone().map(|part| parts[part].returned).min();
    let mut ending = false;
    left.filter(|part| {
        let part = &parts[*part];
        let may = first.is_some_and(|first| part.called <= first) && part.after.is_none_or(|before| has(done, before));
        // What was found at the end was so all at once: one order of it is as good as any, and there are 2^n beginnings.
        let ends = part.record.is_none() && !part.optional;
        may && !(ends && std::mem::replace(&mut ending, true))
    })
    .collect()
}

/// All states that a part may lead to, with whatever the server did by itself before it.
fn outcomes(part: &Part, state: &State) -> Vec<State> {
    let mut before = vec![state.clone()];
    for job in part.step.touches(state) {
        before = before
            .into_iter()
            .flat_map(|state| state.by_itself(job, part.until_now))
            .collect();
    }
    let mut after: Vec<State> = Vec::new();
    for one in before {
        if let Some(next) = part.step.take(&one, part.at)
            && !(part.optional && next == one)
            && !after.contains(&next)
        {
            after.push(next);
        }
    }
    after
}
