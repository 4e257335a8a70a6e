//! Measures operations repeatedly, and computes statistics of their times.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measured times in milliseconds, sorted.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    /// Creates samples from measured times.
    pub(super) fn from_times(times: &[Duration]) -> Self {
        let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    pub(super) fn count(&self) -> usize {
        self.sorted.len()
    }

    pub(super) fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len() as f64
    }

    pub(super) fn p50(&self) -> f64 {
        self.quantile(0.50)
    }

    pub(super) fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    pub(super) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    /// Returns a quantile. Interpolates between the two nearest samples.
    fn quantile(&self, part: f64) -> f64 {
        let at = part * (self.sorted.len() - 1) as f64;
        let (below, above) = (self.sorted[at.floor() as usize], self.sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }
}

/// An operation that is measured.
pub(super) struct Contestant<'a>(Box<dyn FnMut() -> Result<()> + 'a>);

/// Creates a contestant that runs this operation in each turn.
pub(super) fn once<'a>(act: impl FnMut() -> Result<()> + 'a) -> Contestant<'a> {
    Contestant(Box::new(act))
}

/// Measures all contestants in turns, after one turn that does not count. The order is different in each turn, because
/// the clean-up after one contestant slows down the next, which must not always be the same.
pub(super) fn take_turns<const N: usize>(turns: u32, mut contestants: [Contestant<'_>; N]) -> Result<[Samples; N]> {
    let mut times = [const { Vec::new() }; N];
    let mut order: [usize; N] = std::array::from_fn(|index| index);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for turn in 0..=turns {
        dice.shuffle(&mut order);
        for &index in &order {
            let start = Instant::now();
            (contestants[index].0)()?;
            if turn > 0 {
                times[index].push(start.elapsed());
            }
        }
    }
    Ok(times.map(|times| Samples::from_times(&times)))
}

/// A pseudo-random number generator (xorshift) that returns the same numbers in every run.
struct Dice(u64);

impl Dice {
    fn shuffle(&mut self, order: &mut [usize]) {
        for end in (1..order.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(end, (self.0 % (end as u64 + 1)) as usize);
        }
    }
}

/// Runs a command that must succeed.
pub(super) fn succeed(command: &mut Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_correct() {
        let samples = Samples::from_times(&[5, 1, 4, 2, 3].map(Duration::from_millis));
        assert_eq!((samples.p50(), samples.mean(), samples.count()), (3.0, 3.0, 5));
        assert!((samples.p95() - 4.8).abs() < 1e-9);
    }

    #[test]
    fn samples_are_taken_in_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let push = |name| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Ok(())
            }
        };
        let [a, b] = take_turns(40, [once(push('a')), once(push('b'))]).unwrap();
        assert_eq!((a.count(), b.count()), (40, 40));
        let order = order.into_inner();
        let turns = order.as_chunks::<2>().0;
        assert!(turns.iter().all(|turn| turn.contains(&'a') && turn.contains(&'b')), "each once in every turn");
        assert!(turns.contains(&['a', 'b']) && turns.contains(&['b', 'a']), "and nobody always first");
    }
}
