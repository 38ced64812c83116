//! From keys to advisory locks: one mapping, which every path uses.

use crate::job::AppId;
use crate::uniqueness::key::KeyDigest;

/// Held shared by every transaction that locks keys one by one, and alone by one that would need too many.
/// The first eight bytes of SHA-256("solejob gate").
pub const GATE: i64 = 0x34ff_f3de_3323_7f70;

/// The advisory locks of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockSet {
    /// Sorted and without doubles: everybody takes locks in one order, so nobody waits in a circle.
    Each(Vec<i64>),
    /// The gate, alone. PostgreSQL's lock table is small and shared by all (6,400 on stock settings); a
    /// transaction with more keys than its share shuts everybody else out instead of filling it.
    All,
}

impl LockSet {
    /// `nonce` is a lock of the transaction's own, by which it can be waited for should its connection be lost.
    pub fn new(keys: impl Iterator<Item = (AppId, KeyDigest)>, nonce: i64, most: usize) -> LockSet {
        let mut ids: Vec<i64> = keys.map(|(app, digest)| lock_id(app, digest)).collect();
        ids.push(nonce);
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > most {
            LockSet::All
        } else {
            LockSet::Each(ids)
        }
    }
}

/// 64 bits of the key's SHA-256. Should two keys share them, the cost is a wait, never an answer.
fn lock_id(app: AppId, digest: KeyDigest) -> i64 {
    let mut head = [0; 8];
    head.copy_from_slice(&digest.0[..8]);
    // An odd multiplier spreads the application's number over all bits; one key text of two applications
    // then waits for nobody.
    i64::from_be_bytes(head) ^ app.0.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: u8) -> impl Iterator<Item = (AppId, KeyDigest)> {
        (0..n).rev().map(|i| (AppId(1), KeyDigest([i; 16])))
    }

    #[test]
    fn locks_are_sorted_and_taken_once() {
        let LockSet::Each(ids) = LockSet::new(keys(9).chain(keys(9)), 7, 100) else {
            panic!("few locks")
        };
        assert_eq!(ids.len(), 10);
        assert!(ids.is_sorted() && ids.contains(&7));
    }

    #[test]
    fn too_many_locks_become_the_gate() {
        assert!(matches!(LockSet::new(keys(9), 7, 10), LockSet::Each(_)));
        assert_eq!(LockSet::new(keys(10), 7, 10), LockSet::All);
    }

    #[test]
    fn two_applications_do_not_wait_for_each_other() {
        assert_ne!(
            lock_id(AppId(1), KeyDigest([1; 16])),
            lock_id(AppId(2), KeyDigest([1; 16]))
        );
    }
}
