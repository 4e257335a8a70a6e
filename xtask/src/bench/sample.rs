//! Times of one thing done again and again.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Times, in milliseconds, sorted.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    fn new(times: &[Duration]) -> Self {
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

    /// Between the two nearest where it falls between.
    fn quantile(&self, part: f64) -> f64 {
        let at = part * (self.sorted.len() - 1) as f64;
        let (below, above) = (self.sorted[at.floor() as usize], self.sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }
}

/// One who is measured.
pub(super) struct Contestant<'a> {
    act: Box<dyn FnMut() -> Result<()> + 'a>,
    /// How often in one turn. What is quick beside what is slow takes several: else it would always be measured while the
    /// machine still clears up after the slow one.
    in_a_row: u32,
}

/// One who does it once in a turn.
pub(super) fn once<'a>(act: impl FnMut() -> Result<()> + 'a) -> Contestant<'a> {
    in_a_row(1, act)
}

/// One who does it several times in a turn.
pub(super) fn in_a_row<'a>(times: u32, act: impl FnMut() -> Result<()> + 'a) -> Contestant<'a> {
    Contestant { act: Box::new(act), in_a_row: times }
}

/// Measures everyone in turns, after one turn that does not count.
pub(super) fn take_turns<const N: usize>(turns: u32, mut contestants: [Contestant<'_>; N]) -> Result<[Samples; N]> {
    let mut times = [const { Vec::new() }; N];
    for turn in 0..=turns {
        for (contestant, times) in contestants.iter_mut().zip(&mut times) {
            for _ in 0..contestant.in_a_row {
                let start = Instant::now();
                (contestant.act)()?;
                if turn > 0 {
                    times.push(start.elapsed());
                }
            }
        }
    }
    Ok(times.map(|times| Samples::new(&times)))
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
    fn quantiles_are_where_they_should_be() {
        let samples = Samples::new(&[5, 1, 4, 2, 3].map(Duration::from_millis));
        assert_eq!((samples.p50(), samples.mean(), samples.count()), (3.0, 3.0, 5));
        assert!((samples.p95() - 4.8).abs() < 1e-9);
    }

    #[test]
    fn turns_are_taken() {
        let order = std::cell::RefCell::new(Vec::new());
        let push = |name| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Ok(())
            }
        };
        let [a, b] = take_turns(1, [once(push('a')), in_a_row(2, push('b'))]).unwrap();
        assert_eq!((a.count(), b.count()), (1, 2));
        assert_eq!(order.into_inner(), ['a', 'b', 'b', 'a', 'b', 'b']);
    }
}
