//! Sets of addresses as ranges that neither overlap nor touch, as the kernel's interval sets require.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address, and the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Any address of the network.
    pub address: IpAddr,
    /// The number of leading bits.
    pub length: u8,
}

impl Prefix {
    /// A single address.
    pub const fn host(address: IpAddr) -> Self {
        Self { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// An IPv4 network.
    pub const fn v4(address: [u8; 4], length: u8) -> Self {
        let [a, b, c, d] = address;
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length }
    }

    /// The first and last address, as numbers.
    fn bounds(self) -> (u128, u128) {
        let (bits, width) = match self.address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let free = width - u32::from(self.length).min(width);
        let mask = if free == 128 { u128::MAX } else { (1 << free) - 1 };
        (bits & !mask, bits | mask)
    }
}

/// A set of IPv4 and IPv6 addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl Ranges {
    /// Adds a network.
    pub fn add(&mut self, prefix: Prefix) {
        self.insert(prefix.address.is_ipv4(), prefix.bounds());
    }

    /// Adds all addresses of another set.
    pub fn merge(&mut self, other: &Self) {
        for (v4, ranges) in [(true, &other.v4), (false, &other.v6)] {
            for range in ranges {
                self.insert(v4, *range);
            }
        }
    }

    /// Removes a network.
    pub fn remove(&mut self, prefix: Prefix) {
        let (from, to) = prefix.bounds();
        let ranges = self.family_mut(prefix.address.is_ipv4());
        let mut left = Vec::with_capacity(ranges.len());
        for &(first, last) in &*ranges {
            if first < from {
                left.push((first, last.min(from - 1)));
            }
            if last > to {
                left.push((first.max(to + 1), last));
            }
        }
        *ranges = left;
    }

    /// Whether the set contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (number, _) = Prefix::host(address).bounds();
        let ranges = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        ranges.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }

    /// The first and last addresses of the IPv4 ranges, in order, as numbers.
    pub(crate) fn v4(&self) -> &[(u128, u128)] {
        &self.v4
    }

    /// The first and last addresses of the IPv6 ranges, in order, as numbers.
    pub(crate) fn v6(&self) -> &[(u128, u128)] {
        &self.v6
    }

    fn family_mut(&mut self, v4: bool) -> &mut Vec<(u128, u128)> {
        if v4 { &mut self.v4 } else { &mut self.v6 }
    }

    fn insert(&mut self, v4: bool, (mut first, mut last): (u128, u128)) {
        let ranges = self.family_mut(v4);
        ranges.retain(|&(from, to)| {
            let joined = from <= last.saturating_add(1) && first <= to.saturating_add(1);
            if joined {
                (first, last) = (first.min(from), last.max(to));
            }
            !joined
        });
        let at = ranges.partition_point(|(from, _)| *from < first);
        ranges.insert(at, (first, last));
    }
}

impl Extend<Prefix> for Ranges {
    fn extend<T: IntoIterator<Item = Prefix>>(&mut self, prefixes: T) {
        for prefix in prefixes {
            self.add(prefix);
        }
    }
}

/// One range per line: the first and the last address.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (first, last) in &self.v4 {
            writeln!(f, "{} {}", Ipv4Addr::from(*first as u32), Ipv4Addr::from(*last as u32))?;
        }
        for (first, last) in &self.v6 {
            writeln!(f, "{} {}", Ipv6Addr::from(*first), Ipv6Addr::from(*last))?;
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ranges = Self::default();
        for line in text.lines() {
            let wrong = || format!("invalid address range {line:?}: expected its first and last address");
            let (first, last) = line.split_once(' ').ok_or_else(wrong)?;
            let (first, last): (IpAddr, IpAddr) =
                (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
            if first.is_ipv4() != last.is_ipv4() || first > last {
                return Err(wrong());
            }
            ranges.insert(first.is_ipv4(), (Prefix::host(first).bounds().0, Prefix::host(last).bounds().0));
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix { address: address.parse().unwrap(), length: length.parse().unwrap() }
    }

    fn ranges(add: &[&str], remove: &[&str]) -> String {
        let mut ranges = Ranges::default();
        ranges.extend(add.iter().map(|text| prefix(text)));
        for text in remove {
            ranges.remove(prefix(text));
        }
        assert_eq!(ranges.to_string().parse(), Ok(ranges.clone()));
        ranges.to_string()
    }

    #[test]
    fn overlapping_and_adjacent_ranges_are_merged() {
        assert_eq!(ranges(&["10.0.1.0/24", "10.0.0.0/24", "10.0.0.7/32"], &[]), "10.0.0.0 10.0.1.255\n");
        assert_eq!(ranges(&["10.0.0.9/24", "10.0.2.0/24"], &[]), "10.0.0.0 10.0.0.255\n10.0.2.0 10.0.2.255\n");
        assert_eq!(ranges(&["0.0.0.0/0", "10.0.0.0/8"], &[]), "0.0.0.0 255.255.255.255\n");
        assert_eq!(ranges(&["::/0"], &[]), ":: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff\n");
        assert_eq!(ranges(&["fe80::/64", "10.0.0.1/32"], &[]), "10.0.0.1 10.0.0.1\nfe80:: fe80::ffff:ffff:ffff:ffff\n");
    }

    #[test]
    fn removing_a_range_keeps_its_surroundings() {
        assert_eq!(ranges(&["10.0.0.0/24"], &["10.0.0.128/26"]), "10.0.0.0 10.0.0.127\n10.0.0.192 10.0.0.255\n");
        assert_eq!(ranges(&["10.0.0.0/24"], &["10.0.0.0/8"]), "");
        assert_eq!(ranges(&["0.0.0.0/0"], &["255.255.255.255/32"]), "0.0.0.0 255.255.255.254\n");
        assert_eq!(ranges(&["10.0.0.0/24"], &["11.0.0.0/24"]), "10.0.0.0 10.0.0.255\n");
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for text in ["10.0.0.1", "10.0.0.2 10.0.0.1", "10.0.0.1 ::1", "x y", "10.0.0.1 10.0.0.2 10.0.0.3"] {
            assert!(text.parse::<Ranges>().is_err(), "{text}");
        }
    }
}
