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

/// One who is measured: does it once.
pub(super) type Contestant<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Measures everyone in turns, after one turn that does not count.
pub(super) fn take_turns<const N: usize>(turns: u32, mut contestants: [Contestant<'_>; N]) -> Result<[Samples; N]> {
    let mut times = [const { Vec::new() }; N];
    for turn in 0..=turns {
        for (contestant, times) in contestants.iter_mut().zip(&mut times) {
            let start = Instant::now();
            contestant()?;
            if turn > 0 {
                times.push(start.elapsed());
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
            Box::new(move || {
                order.borrow_mut().push(name);
                Ok(())
            }) as Contestant<'_>
        };
        let [a, b] = take_turns(2, [push('a'), push('b')]).unwrap();
        assert_eq!((a.count(), b.count()), (2, 2));
        assert_eq!(order.into_inner(), ['a', 'b', 'a', 'b', 'a', 'b']);
    }
}
