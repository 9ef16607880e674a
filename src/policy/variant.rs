//! A/B: variants of a rule, and which of them a task belongs to.

use sha2::{Digest, Sha256};

use super::{Backoff, Policy};

/// One way of a rule to retry, compared with the others of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Unique within the policy.
    pub name: String,
    /// How many tasks it gets, in relation to the other weights. 0 takes no new tasks; those that have it keep it.
    pub weight: u32,
    /// The delays.
    pub backoff: Backoff,
    /// Failed attempts that are followed by another.
    pub max_retries: i64,
}

impl Policy {
    /// The variant of a task: the `stored` one while the policy still has it, else a weighted choice that depends on the names of policy and
    /// task alone. So whoever asks gets the same answer, and a task keeps its variant for life once it is stored.
    ///
    /// `None` when the policy has no variants.
    pub fn variant_for(&self, task_id: &str, stored: Option<&str>) -> Option<&Variant> {
        if let Some(kept) = self.variants.iter().find(|variant| Some(variant.name.as_str()) == stored) {
            return Some(kept);
        }
        let total: u64 = self.variants.iter().map(|variant| u64::from(variant.weight)).sum();
        if total == 0 {
            return self.variants.first();
        }
        let mut place = hash(&self.name, task_id) % total;
        self.variants.iter().find(|variant| {
            let weight = u64::from(variant.weight);
            let here = place < weight;
            place = place.saturating_sub(weight);
            here
        })
    }
}

/// A number that is as good as random and the same for ever. The policy's name is in it, so that two policies split the same tasks
/// independently.
fn hash(policy: &str, task_id: &str) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(policy.as_bytes());
    // A byte that is in no UTF-8 text keeps ("ab", "c") and ("a", "bc") apart.
    hasher.update([0xff]);
    hasher.update(task_id.as_bytes());
    let digest = hasher.finalize();
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn variant(name: &str, weight: u32) -> Variant {
        Variant { name: name.into(), weight, backoff: Backoff::Fixed(1), max_retries: 3 }
    }

    fn policy(variants: Vec<Variant>) -> Policy {
        Policy { variants, ..Policy::built_in() }
    }

    #[test]
    fn tasks_are_split_by_weight_and_always_the_same_way() {
        let policy = policy(vec![variant("fast", 3), variant("never", 0), variant("slow", 1)]);
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for n in 0..10_000 {
            let id = format!("task-{n}");
            let name = &policy.variant_for(&id, None).unwrap().name;
            assert_eq!(policy.variant_for(&id, None).unwrap().name, *name);
            *counts.entry(name).or_default() += 1;
        }
        // Three standard deviations of 10,000 draws at 3/4 are 130.
        assert!((7_370..7_630).contains(&counts["fast"]), "{counts:?}");
        assert_eq!(counts["fast"] + counts["slow"], 10_000, "weight 0 takes no new tasks");
    }

    #[test]
    fn a_stored_variant_stays_while_it_exists_whatever_its_weight() {
        let policy = policy(vec![variant("fast", 1), variant("slow", 0)]);
        assert_eq!(policy.variant_for("a", Some("slow")).unwrap().name, "slow");
        assert_eq!(policy.variant_for("a", Some("gone")).unwrap().name, "fast");
        assert!(Policy::built_in().variant_for("a", Some("slow")).is_none());
    }

    #[test]
    fn two_policies_split_the_same_tasks_independently() {
        let both = |name: &str| Policy { name: name.into(), ..policy(vec![variant("a", 1), variant("b", 1)]) };
        let (first, second) = (both("x"), both("y"));
        let same = (0..1000)
            .filter(|n| first.variant_for(&n.to_string(), None) == second.variant_for(&n.to_string(), None))
            .count();
        assert!((400..600).contains(&same), "{same}");
    }
}
