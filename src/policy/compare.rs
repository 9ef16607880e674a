//! Whether one variant of a policy ended better than another, or whether it only looks so.
//!
//! `policy report` and the simulator say the same sentence from the same numbers. It compares shares of tasks that ended well and
//! nothing else: it picks no variant, and knows nothing of costs or times.

/// One variant and how its tasks ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// The variant.
    pub name: String,
    /// Its tasks that have ended.
    pub n: u64,
    /// How many of them succeeded; at most `n`.
    pub succeeded: u64,
}

/// How far two shares lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The first share minus the second, in percentage points.
    pub points: f64,
    /// Lower end of the 95 % interval, in percentage points.
    pub low: f64,
    /// Upper end of the 95 % interval, in percentage points.
    pub high: f64,
    /// How often so large a difference, either way, comes from equal variants; two-sided, 0 to 1.
    pub p_value: f64,
}

/// Of the normal distribution, 95 % lie within so many standard deviations.
const Z: f64 = 1.959_963_984_540_054;

impl Arm {
    /// The share that succeeded; 0 of none is 0.
    pub fn rate(&self) -> f64 {
        share(self.succeeded, self.n)
    }

    /// The 95 % interval of that share; see [`wilson`].
    pub fn interval(&self) -> (f64, f64) {
        wilson(self.succeeded, self.n)
    }
}

/// The 95 % score interval of a share, without continuity correction; nothing tried says nothing: 0 to 1.
///
/// E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209–212.
pub fn wilson(successes: u64, n: u64) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (n_f, p) = (float(n), share(successes, n));
    let z2 = Z * Z;
    let centre = (p + z2 / (2.0 * n_f)) / (1.0 + z2 / n_f);
    let half = Z / (1.0 + z2 / n_f) * (p * (1.0 - p) / n_f + z2 / (4.0 * n_f * n_f)).sqrt();
    // Exact at the ends, where rounding would leave a hair of impossible shares.
    let low = if successes == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if successes >= n { 1.0 } else { (centre + half).min(1.0) };
    (low, high)
}

/// The share of `a` minus that of `b`. With nothing in one of them nothing is known: −100 to 100.
///
/// The interval is method 10 (Wilson's intervals, squared and added) of R. G. Newcombe, Interval estimation for the difference between
/// independent proportions, Statistics in Medicine 17 (1998) 873–890; the p-value is that of the two-proportion z-test with the pooled share.
pub fn difference(a: &Arm, b: &Arm) -> Difference {
    if a.n == 0 || b.n == 0 {
        return Difference { points: 0.0, low: -100.0, high: 100.0, p_value: 1.0 };
    }
    let (p, q) = (a.rate(), b.rate());
    let ((p_low, p_high), (q_low, q_high)) = (a.interval(), b.interval());
    let below = (p - p_low).hypot(q_high - q);
    let above = (p_high - p).hypot(q - q_low);
    let pooled = float(a.succeeded + b.succeeded) / float(a.n + b.n);
    let deviation = (pooled * (1.0 - pooled) * (1.0 / float(a.n) + 1.0 / float(b.n))).sqrt();
    let p_value = if deviation > 0.0 { two_sided((p - q).abs() / deviation) } else { 1.0 };
    let points = 100.0 * (p - q);
    Difference { points, low: points - 100.0 * below, high: points + 100.0 * above, p_value }
}

/// What the numbers say, for people: `fast is better by 12.1 points, 95 % interval 9.8–14.4`.
///
/// The best arm is compared with each other one, every comparison by itself: with many arms one of them will look good by chance.
pub fn sentence(arms: &[Arm]) -> String {
    if let Some(empty) = arms.iter().find(|arm| arm.n == 0) {
        return format!("nothing to compare: no task of {} has ended yet", empty.name);
    }
    let mut sorted: Vec<&Arm> = arms.iter().collect();
    sorted.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
    match sorted.as_slice() {
        [] => "nothing to compare: there are no variants".into(),
        [only] => format!("nothing to compare: {} is the only variant", only.name),
        [best, other] => against(best, other, ""),
        [best, others @ ..] => {
            let all: Vec<String> =
                others.iter().map(|other| against(best, other, &format!(" than {}", other.name))).collect();
            all.join("; ")
        }
    }
}

/// `than` names the other one where there are several.
fn against(best: &Arm, other: &Arm, than: &str) -> String {
    let Difference { points, low, high, .. } = difference(best, other);
    let interval = if low < 0.0 { format!("−{:.1} to {high:.1}", -low) } else { format!("{low:.1}–{high:.1}") };
    if low > 0.0 {
        return format!("{} is better{than} by {points:.1} points, 95 % interval {interval}", best.name);
    }
    let (best, other) = (&best.name, &other.name);
    if points == 0.0 {
        return format!("no difference between {best} and {other} so far, 95 % interval {interval}");
    }
    format!("no proven difference: {best} is {points:.1} points ahead of {other}, 95 % interval {interval}")
}

/// The fewest attempts for one task that any schedule needs when failures know nothing of each other: the share `permanent` of tasks that
/// no retry mends needs one each; of the others the share f = 1 − `first_try` / (1 − `permanent`) is unfinished after each attempt, so that
/// with n `retries` they need 1 + f + f² + … + fⁿ (the sum of a geometric series: each attempt is an independent trial). A schedule that
/// calls into an outage needs more; one whose failures heal while it waits can need less.
pub fn least_attempts(first_try: f64, permanent: f64, retries: i64) -> f64 {
    let mendable = 1.0 - permanent;
    if mendable <= 0.0 {
        return 1.0;
    }
    let failing = (1.0 - first_try / mendable).clamp(0.0, 1.0);
    let mut left = 1.0;
    let mut calls = 0.0;
    for _ in 0..=retries.clamp(0, 1000) {
        calls += left;
        left *= failing;
    }
    permanent + mendable * calls
}

/// The probability that a normal value lies at least `z` ≥ 0 standard deviations away, on either side.
///
/// erfc(z/√2) by the Chebyshev fit of Press et al., Numerical Recipes in C, 2nd ed., §6.2 (`erfcc`): relative error below 1.2e−7 everywhere.
fn two_sided(z: f64) -> f64 {
    const FIT: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x);
    let sum = FIT.iter().rev().fold(0.0, |sum, term| sum * t + term);
    (t * (sum - x * x).exp()).clamp(0.0, 1.0)
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { float(part) / float(of) }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tasks stay far below 2^53")]
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(name: &str, succeeded: u64, n: u64) -> Arm {
        Arm { name: name.into(), n, succeeded }
    }

    fn near(found: f64, expected: f64, within: f64) {
        assert!((found - expected).abs() <= within, "{found} is not {expected}");
    }

    /// R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998) 857–872, table I, method 3.
    #[test]
    fn the_interval_of_a_share_is_the_one_in_the_book() {
        for ((successes, n), (low, high)) in [
            ((81, 263), (0.2553, 0.3662)),
            ((15, 148), (0.0624, 0.1605)),
            ((0, 20), (0.0, 0.1611)),
            ((1, 29), (0.0061, 0.1718)),
        ] {
            let found = wilson(successes, n);
            near(found.0, low, 0.00005);
            near(found.1, high, 0.00005);
        }
        assert_eq!(wilson(0, 0), (0.0, 1.0));
        assert!(wilson(20, 20).1 >= 1.0);
    }

    /// Newcombe, Statistics in Medicine 17 (1998) 873–890, table II, method 10.
    #[test]
    fn the_interval_of_a_difference_is_the_one_in_the_book() {
        for ((a, m), (b, n), (low, high)) in [
            ((56, 70), (48, 80), (0.0524, 0.3339)),
            ((9, 10), (3, 10), (0.1705, 0.8090)),
            ((6, 7), (2, 7), (0.0582, 0.8062)),
            ((5, 56), (0, 29), (-0.0381, 0.1926)),
            ((0, 10), (0, 20), (-0.1611, 0.2775)),
            ((10, 10), (0, 20), (0.6791, 1.0)),
        ] {
            let found = difference(&arm("a", a, m), &arm("b", b, n));
            near(found.low / 100.0, low, 0.00005);
            near(found.high / 100.0, high, 0.00005);
        }
    }

    #[test]
    fn the_least_attempts_are_the_sum_of_what_is_still_unfinished() {
        near(least_attempts(1.0, 0.0, 3), 1.0, 1e-9);
        near(least_attempts(0.5, 0.0, 2), 1.75, 1e-9);
        near(least_attempts(0.0, 0.0, 3), 4.0, 1e-9);
        // A2's figures: 82 % at first try.
        near(least_attempts(0.82, 0.0, 3), 1.0 + 0.18 + 0.0324 + 0.005_832, 1e-9);
        // One in ten cannot be mended: nine tenths fail by half.
        near(least_attempts(0.45, 0.1, 1), 0.1 + 0.9 * 1.5, 1e-9);
        near(least_attempts(0.0, 1.0, 3), 1.0, 1e-9);
    }

    #[test]
    fn the_p_value_is_that_of_the_pooled_z_test() {
        // z = 1.959964 is the 5 % of every table; 4 is 6.334e-5.
        near(two_sided(Z), 0.05, 1e-7);
        near(two_sided(4.0), 6.334e-5, 1e-8);
        near(two_sided(0.0), 1.0, 1e-6);
        // 56/70 and 48/80: pooled 104/150, z = 0.2 / sqrt(0.69333 · 0.30667 · (1/70 + 1/80)) = 2.6502.
        near(difference(&arm("a", 56, 70), &arm("b", 48, 80)).p_value, 0.008_05, 0.000_05);
        assert!((difference(&arm("a", 5, 5), &arm("b", 7, 7)).p_value - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_sentence_says_better_only_when_the_interval_says_so() {
        let (fast, slow) = (arm("fast", 960, 1000), arm("slow", 839, 1000));
        assert_eq!(sentence(&[slow.clone(), fast.clone()]), "fast is better by 12.1 points, 95 % interval 9.5–14.7");
        let unsure = sentence(&[arm("fast", 9, 10), arm("slow", 8, 10)]);
        assert_eq!(unsure, "no proven difference: fast is 10.0 points ahead of slow, 95 % interval −23.6 to 42.1");
        let same = sentence(&[arm("fast", 8, 10), arm("slow", 8, 10)]);
        assert_eq!(same, "no difference between fast and slow so far, 95 % interval −34.1 to 34.1");
        let three = sentence(&[fast.clone(), slow, arm("middle", 900, 1000)]);
        assert!(
            three.starts_with("fast is better than middle by 6.0 points")
                && three.contains("; fast is better than slow")
        );
        assert_eq!(sentence(&[fast.clone(), arm("slow", 0, 0)]), "nothing to compare: no task of slow has ended yet");
        assert_eq!(sentence(&[fast]), "nothing to compare: fast is the only variant");
    }
}
