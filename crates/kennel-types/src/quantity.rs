//! Sizes, durations and CPU counts as people write them.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A number of bytes, written `512m`, `4G` or `1048576`. Units are powers of 1024, as in Docker's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// A text that is not a valid quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {text:?}: expected {expected}")]
pub struct InvalidQuantity {
    what: &'static str,
    text: String,
    expected: &'static str,
}

impl InvalidQuantity {
    fn new(what: &'static str, text: &str, expected: &'static str) -> Self {
        Self { what, text: text.to_owned(), expected }
    }
}

impl std::fmt::Display for ByteSize {
    /// Writes the size with the largest unit in which it is a whole number, for example `512MiB`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let whole = units.iter().find(|(shift, _)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match whole {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for ByteSize {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let err = || InvalidQuantity::new("size", text, "a number with an optional unit, for example 512m or 4G");
        let (number, unit) = split(text);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(err()),
        };
        let number: f64 = number.parse().map_err(|_| err())?;
        #[allow(clippy::cast_precision_loss)] // a limit of more than 2^53 bytes is refused below
        let bytes = number * (1u64 << shift) as f64;
        if bytes.is_finite() && (1.0..9e15).contains(&bytes) { Ok(Self(bytes as u64)) } else { Err(err()) }
    }
}

/// Parses a duration: `30s`, `5m`, `1h`, `250ms`. A number without a unit means seconds.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidQuantity> {
    let err = || InvalidQuantity::new("duration", text, "a number with ms, s, m or h, for example 30s");
    let (number, unit) = split(text);
    let scale = match unit {
        "" | "s" | "sec" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(err()),
    };
    let seconds = number.parse::<f64>().map_err(|_| err())? * scale;
    if seconds.is_finite() && (0.001..3.2e8).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(err())
    }
}

/// Parses a number of CPUs, `0.5` or `2`, and returns thousandths of a CPU.
pub fn parse_cpus(text: &str) -> Result<u32, InvalidQuantity> {
    let err = || InvalidQuantity::new("number of CPUs", text, "a number, for example 0.5 or 2");
    let cpus: f64 = text.trim().parse().map_err(|_| err())?;
    if (0.01..=1024.0).contains(&cpus) { Ok((cpus * 1000.0).round() as u32) } else { Err(err()) }
}

/// Formats a size for people: `512.0 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[allow(clippy::cast_precision_loss)] // shown with one digit
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..end].trim(), &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_displayed_in_the_largest_whole_unit() {
        for (bytes, text) in [(0, "0"), (1000, "1000"), (1024, "1KiB"), (512 << 20, "512MiB"), (3 << 29, "1536MiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(ByteSize(5 << 40).to_string().parse(), Ok(ByteSize(5 << 40)));
    }

    #[test]
    fn sizes() {
        assert_eq!("512m".parse(), Ok(ByteSize(512 << 20)));
        assert_eq!("4G".parse(), Ok(ByteSize(4 << 30)));
        assert_eq!("1.5k".parse(), Ok(ByteSize(1536)));
        assert_eq!("100".parse(), Ok(ByteSize(100)));
        for bad in ["", "m", "-1", "0", "12x", "1e400", "nan", "inf"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_mins(5)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
        for bad in ["", "0", "-1s", "5 weeks", "s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = text.parse::<ByteSize>();
            let _ = parse_duration(&text);
            let _ = parse_cpus(&text);
        }

        #[test]
        fn displayed_sizes_can_be_parsed(bytes in 1u64..(1 << 50)) {
            prop_assert_eq!(bytes.to_string().parse::<ByteSize>(), Ok(ByteSize(bytes)));
        }
    }
}
